"""Locks on files: held by one process at a time, and gone with it, however it ends."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_SECONDS = 1.0  # a process that is just ending is waited for
_MOMENT = 0.05


def take_lock(path: Path, *, seconds: float = _SECONDS) -> TextIO | None:
    """The lock, made when absent or left by a dead process; None where a live one keeps it.

    Raises:
        OSError: there can be no lock at that place.
    """
    end = time.monotonic() + seconds
    # A run that is killed and begun again at once must not meet its own lock.
    while (lock := _try_lock(path)) is None and time.monotonic() < end:
        time.sleep(_MOMENT)
    return lock


def _try_lock(path: Path) -> TextIO | None:
    # Opened without truncating: the holder's name must stay readable.
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock may have removed the file since it was opened here.
        if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            lock.truncate(0)
            lock.write(f"{os.getpid()} on {platform.node()}")
            lock.flush()
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    # Ctrl-C between taking and keeping the lock must not leave it open.
    except BaseException:
        lock.close()
        raise
    lock.close()
    return None


def release_lock(lock: TextIO) -> None:
    """Remove the file while it is still ours, then let go."""
    with suppress(OSError):
        # Unlinked before it is closed: afterwards the name may be another process's.
        Path(lock.name).unlink()
    lock.close()


def name_holder(path: Path) -> str:
    """The process that has a lock, as far as it says."""
    with suppress(OSError, UnicodeDecodeError):
        # The file may be anybody's: only what looks like ours is printed.
        if re.fullmatch(r"\d+ on [\w.-]*", told := path.read_text()):
            return f"process {told}"
    return "another process"
