"""`keyhole ui`: the explorer, one page and the few answers it asks for, to this machine only."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from keyhole import __version__
from keyhole._files import find_file
from keyhole.drawing.html import escape_text
from keyhole.drawing.palette import EXPLORER_COLOURS, LIGHT
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.lab.commands.computing.bound import measure_job_plane
from keyhole.lab.jobs import UiJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.other_records import UiReady, UiRecord
from keyhole.lab.runs.records import Record, encode_json
from keyhole.lab.targets.answer_gaps import is_own_file
from keyhole.lab.targets.opening import load_askable_model
from keyhole.tasks import TASKS
from keyhole.web import runs as shelf
from keyhole.web.jobs import Desk, TooMany
from keyhole.web.messages import Asked, BoundResult, Seen, Target
from keyhole.web.requests import read_bound_wish
from keyhole.web.showcase import View, rehearse_views, show_task

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from keyhole.lab.serving.listening import Listening, open_listener
    from keyhole.web.guard import REPORT, Guard
except ImportError as missing:
    raise ImportError(
        "the explorer needs starlette and uvicorn: pip install 'keyhole[web]'."
    ) from missing

HOST = "127.0.0.1"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Answer = Callable[[bytes], object]


def read_page_files() -> dict[str, bytes]:
    """The files of the page by name, read once, and the palette as a style sheet."""
    folder = resources.files("keyhole.web") / "static"
    files = {item.name: item.read_bytes() for item in folder.iterdir() if item.is_file()}
    # A picture in a tab reads no style sheet: its two colours are filled in.
    icon = _fill_blanks(files["icon.svg"].decode(), {name: LIGHT[name] for name in ("ink", "page")})
    return files | {"icon.svg": icon.encode(), "palette.css": EXPLORER_COLOURS.encode()}


def _fill_blanks(text: str, said: Mapping[str, str]) -> str:
    # A template engine would be one dependency more.
    for name, value in said.items():
        text = text.replace(f"{{{name}}}", escape_text(value))
    return text


class Explorer:
    """The application behind the page.

    Args:
        runs: the directory of runs that is shown, and in which recoveries are kept.
        target: what may be asked, where something may.
    """

    def __init__(self, runs: Path, target: Target | None = None) -> None:
        self.runs = runs
        self.desk = Desk(runs, target)
        self.files = read_page_files()
        self.requests = 0

    def guarded(self, port: int) -> Guard:
        """The routes, behind a guard that knows the port."""
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._file),
            Route("/report/{name:path}", self._report),
            Route("/api/runs", self._runs),
            Route("/api/runs/{name:path}", self._run),
            Route("/api/compute", self._told(_answer_task), methods=["POST"]),
            Route("/api/limits", self._told(_answer_limits), methods=["POST"]),
            Route("/api/jobs", self._told(self._start, 202), methods=["POST"]),
            Route("/api/jobs/{name}", self._job),
            Route("/api/jobs/{name}/cancel", self._cancel, methods=["POST"]),
        ]
        guard = Guard(
            Starlette(routes=routes, exception_handlers={HTTPException: _answer_unknown}), port
        )  # pyright: ignore[reportArgumentType]
        self.token = guard.token
        return guard

    async def _page(self, request: Request) -> Response:
        self.requests += 1
        said = {"token": self.token, "version": __version__, "runs": str(self.runs)}
        said["target"] = msgspec.json.encode(self.desk.target).decode()
        said["tasks"] = msgspec.json.encode(_describe_tasks()).decode()
        page = _fill_blanks(self.files["index.html"].decode(), said)
        return Response(page, media_type="text/html", headers={"cache-control": "no-store"})

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(Path(name).suffix)
        # Only files that were read at the start: no path can lead elsewhere.
        if name not in self.files or kind is None:
            raise HTTPException(404)
        return Response(self.files[name], media_type=kind, headers={"cache-control": "no-cache"})

    async def _report(self, request: Request) -> Response:
        try:
            page = await asyncio.to_thread(
                shelf.read_run_report, self.runs, request.path_params["name"]
            )
        except shelf.NotThere as error:
            return _answer_json({"sentence": str(error)}, 404)
        return Response(page, media_type="text/html", headers={"content-security-policy": REPORT})

    async def _runs(self, request: Request) -> Response:
        return _answer_json(await asyncio.to_thread(shelf.list_runs, self.runs))

    async def _run(self, request: Request) -> Response:
        try:
            return _answer_json(
                await asyncio.to_thread(shelf.show_run, self.runs, request.path_params["name"])
            )
        except shelf.NotThere as error:
            return _answer_json({"sentence": str(error)}, 404)

    def _told(self, work: Answer, status: int = 200) -> Any:
        """A route that answers a JSON object with what `work` makes of it, or a sentence."""

        async def tell(request: Request) -> Response:
            self.requests += 1
            try:
                body = await request.body()
                return _answer_json(await asyncio.to_thread(work, body), status)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return _answer_json(
                    {"sentence": f"The request is not a JSON object: {error}."}, 400
                )
            except (InvalidInput, DoesNotFit) as error:
                return _answer_json({"sentence": str(error)}, 400)
            except TooMany as error:
                return _answer_json({"sentence": str(error)}, 429)
            except Exception as error:
                sys.stderr.write(
                    f"keyhole: the explorer failed on a request: {type(error).__name__}: {error}\n"
                )
                return _answer_json(
                    {"sentence": f"The explorer failed: {type(error).__name__}: {error}."}, 500
                )

        return tell

    def _start(self, content: bytes) -> Seen:
        asked = _read_asked(content)
        return self.desk.start(asked.kind, asked.fields).seen(0)

    async def _job(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        # Python refuses to read very long numbers, with an error of its own.
        if not after.isdecimal() or len(after) > 9:
            return _answer_json({"sentence": "after is the number of events seen before."}, 400)
        seen = await asyncio.to_thread(self.desk.see, request.path_params["name"], int(after))
        if seen is None:
            return _answer_json(
                {"sentence": "This job is not known any more. Start it again."}, 404
            )
        return _answer_json(seen)

    async def _cancel(self, request: Request) -> Response:
        task = self.desk.find(request.path_params["name"])
        if task is None:
            return _answer_json({"sentence": "This job is not known any more."}, 404)
        self.desk.cancel(task)
        return _answer_json(task.seen(len(task.events)))


class AskedTask(msgspec.Struct, frozen=True):
    """What the page must know of a task to ask for its sizes."""

    title: str
    sizes: Sequence[str]
    usual: dict[str, int]


def _describe_tasks() -> dict[str, AskedTask]:
    return {
        name: AskedTask(kind.title, kind.list_counts(), dict(kind.usual))
        for name, kind in TASKS.items()
    }


def _read_asked(content: bytes) -> Asked:
    try:
        return msgspec.json.decode(content, type=Asked)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}.") from error


def _answer_task(content: bytes) -> View:
    asked = _read_asked(content)
    return show_task(asked.kind, asked.fields)


def _answer_limits(content: bytes) -> BoundResult:
    """The verdict of inequalities alone, and the plane; nothing is built."""
    job = replace(read_bound_wish(content), build=False)
    return BoundResult(record=run_job(job).data, plane=measure_job_plane(job))


def _answer_json(data: object, status: int = 200) -> Response:
    body = encode_json(data)
    return Response(
        body, status, media_type="application/json", headers={"cache-control": "no-store"}
    )


def _answer_unknown(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _answer_json(
        {"sentence": "There is nothing at this address." if status == 404 else "Not in this way."},
        status,
    )


class Window(Listening):
    """Serves the explorer on the loopback."""

    def __init__(self, explorer: Explorer, port: int, announce: Callable[[str], Any]) -> None:
        self.explorer = explorer
        listener = open_listener(HOST, port, what="explorer")
        number = listener.getsockname()[1]
        super().__init__(
            explorer.guarded(number),
            listener,
            f"http://{HOST}:{number}/",
            announce,
            http="h11",
            limit_concurrency=64,
            timeout_graceful_shutdown=2,
        )

    def serve_until_stopped(self) -> None:
        """Serve in this thread; when it ends, so does every job."""
        try:
            # Loading libraries takes a second, which nobody should wait for twice.
            self.explorer.desk.warm()
            threading.Thread(target=rehearse_views, daemon=True).start()
            super().serve_until_stopped()
        finally:
            self.explorer.desk.close()
            self.listener.close()


def run_ui(
    job: UiJob, announce: Callable[[Record[UiReady]], None] | None = None
) -> Record[UiRecord]:
    """Serve the explorer until stopped; `announce` is told where it is as soon as it is there."""
    start = time.perf_counter()
    explorer = Explorer(Path(job.runs), read_ui_target(job))

    def ready(address: str) -> None:
        sentence = (
            f"The explorer is at {address} (Ctrl-C stops it). It shows the runs in {job.runs}."
        )
        if job.target is not None:
            sentence += f" It asks {job.target}."
        data = UiReady(status="READY", sentence=sentence, address=address, runs=job.runs)
        record = Record(data)
        _announce_record(record) if announce is None else announce(record)
        if job.open:
            # Some browsers keep the call waiting until they are closed.
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    window = Window(explorer, job.port, ready)
    window.serve_until_stopped()
    sentence = f"Served {explorer.requests:,} requests."
    spent = time.perf_counter() - start
    return Record(UiRecord(sentence=sentence, address=window.address, seconds=spent))


def read_ui_target(job: UiJob) -> Target | None:
    """What is asked, and the truth: a saved model is its own.

    Raises:
        InvalidInput: a file that was named is not there, or options of a target stand without one.
    """
    about = (job.width, job.outputs, job.layer, job.truth)
    if job.target is None:
        if any(value is not None for value in about):
            raise InvalidInput(
                "--width, --outputs, --layer and --truth tell of a target: keyhole ui TARGET."
            )
        return None
    if job.target.endswith((".safetensors", ".onnx")):
        find_file(Path(job.target), f"no model at {job.target}. Check the path.")
    truth = job.truth or (job.target if is_own_file(job.target) else None)
    if truth is not None:
        load_askable_model(truth)
    return Target(
        target=job.target, width=job.width, outputs=job.outputs, layer=job.layer, truth=truth
    )


def _announce_record(record: Record[UiReady]) -> None:
    sys.stderr.write(record.text() + "\n")
    sys.stderr.flush()
