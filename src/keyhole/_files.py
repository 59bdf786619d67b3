"""Files as they are found and kept: every failure to read or write one ends in a sentence.

A file may be anybody's: a pipe, a device, a name no disk takes, bytes that make a library raise
what it likes. What reads one does so here.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from keyhole.errors import InvalidInput, KeyholeError, StorageFailed

# The disk's failures; a place that cannot be written to at all is the caller's to change.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
_DEEPEST = 256  # folders in one another


def find_file(path: Path, missing: str) -> Path:
    """The path, where a file is there that can be read to its end.

    Args:
        path: where it should be.
        missing: the sentence that says what was looked for, and what to do.

    Raises:
        InvalidInput: it is not there, or is a directory, a pipe or a device.
    """
    _read_status(path, missing)
    return path


def read_file(path: Path, missing: str, *, most: int | None = None) -> bytes:
    """The bytes of a file; `most` bounds how many there may be.

    Raises:
        InvalidInput: there is no such file, it cannot be read, or it is larger.
    """
    size = _read_status(path, missing)
    if most is not None and size > most:
        raise InvalidInput(f"{path} has {size:,} bytes; at most {most:,} are read here.")
    try:
        # Not blocking: what was a file a moment ago may be a pipe by now.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(-1 if most is None else most + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}).") from error


def _read_status(path: Path, missing: str) -> int:
    """Bytes of a file that is one."""
    try:
        status = path.stat()
    # No file has a name with a zero byte, or one longer than a disk takes.
    except (OSError, ValueError) as error:
        raise InvalidInput(missing) from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInput(missing)
    return status.st_size


@contextmanager
def refuse_damage(path: os.PathLike[str] | str, what: str) -> Generator[None]:
    """While inside, whatever goes wrong is the fault of the file: one sentence says so.

    Args:
        path: the file.
        what: what it should be.

    Raises:
        InvalidInput: something went wrong.
    """
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error
    except KeyholeError:
        raise
    # A parser or a maker of arrays that is fed nonsense raises what it likes.
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise InvalidInput(f"{path} is not a readable {what} ({told:.300}).") from error


def make_folders(folder: Path, *, exist_ok: bool = True) -> None:
    """Make a folder with all folders above it.

    Raises:
        OSError: it cannot be made, or lies deeper than anybody's files do.
    """
    # Folders are made from the outermost in, by a call for each that is missing.
    if len(folder.parts) > _DEEPEST:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(folder))
    folder.mkdir(parents=True, exist_ok=exist_ok)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it.

    Raises:
        InvalidInput: the place cannot be written to.
        StorageFailed: the disk is full, or fails.
    """
    temporary: str | None = None
    try:
        make_folders(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Renaming is atomic, but only bytes on disk survive a power cut.
            os.fsync(file.fileno())
        # Temporary files are private; what replaces the target should be readable as any file.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise explain_write_failure(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def explain_write_failure(path: Path, error: OSError) -> KeyholeError:
    """The sentence for a failure to write: whether the disk is to blame, or the place."""
    if error.errno in _DISK:
        return StorageFailed(
            f"cannot write {path}: {error.strerror}. What was written before is kept; make room,"
            " and run it again with the same --out (and --resume)."
        )
    return InvalidInput(f"cannot write {path}: {error.strerror}. Choose another place.")


@contextmanager
def guard_database(path: Path, what: str) -> Generator[None]:
    """While inside, what SQLite complains of becomes a sentence.

    Args:
        path: the file of the database.
        what: what it should be.

    Raises:
        StorageFailed: the disk is full, or fails.
        InvalidInput: the file is another's, in use, or damaged.
    """
    try:
        yield
    # Of damaged pages come names that are no text, numbers of other kinds, and sizes beyond memory.
    except (sqlite3.Error, UnicodeError, ArithmeticError, TypeError, MemoryError) as error:
        # The lower byte is the kind of the failure; the rest tells apart where it came about.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise StorageFailed(
                f"cannot write {path}: {error}. What was written before is kept; make room, and run"
                " it again with the same --out (and --resume)."
            ) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise InvalidInput(
                f"{path} cannot be used ({error}): another process may be writing it. Wait for that"
                " run, or choose another --out."
            ) from error
        raise InvalidInput(
            f"{path} is not a {what} of this version, or a damaged one ({error!s:.300})."
            " Choose another --out."
        ) from error


def check_pages(base: sqlite3.Connection, path: Path, what: str) -> None:
    """Raise unless SQLite finds every page as it left it: damage may drop rows without a word.

    Raises:
        InvalidInput: it does not.
    """
    said = base.execute("PRAGMA quick_check(1)").fetchone()
    if said != ("ok",):
        raise InvalidInput(
            f"{path} is a damaged {what} ({said and said[0]!s:.200}). Choose another --out."
        )


def check_place(path: Path, what: str) -> None:
    """Raise where something other than a file stands at a path that is written to."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise InvalidInput(
            f"{path} is a directory, a pipe or a device, not a {what}. Choose another --out."
        )
