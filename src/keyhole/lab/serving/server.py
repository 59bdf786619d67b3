"""`keyhole serve`: a model as a black box over HTTP, in the Open Inference Protocol V2."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.errors import BadAnswer, InvalidInput, KeyholeError
from keyhole.lab.serving import openapi
from keyhole.lab.serving.accounts import Accounts, Denied
from keyhole.lab.serving.bodies import Unpackable, unpack_body
from keyhole.lab.serving.metadata import (
    OUTPUT,
    VERSION,
    ModelMetadata,
    ServerMetadata,
    check_wishes,
    describe_model,
)
from keyhole.lab.serving.visitors import App, Doorkeeper, Names, check_names
from keyhole.oracles import Oracle, read_imperfection
from keyhole.oracles.http import wire

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from keyhole.lab.serving.listening import Listening, open_listener
except ImportError as missing:
    raise ImportError(
        "serving a model needs starlette and uvicorn: pip install 'keyhole[serve]'."
    ) from missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server bears.

    Args:
        request_bytes: largest body.
        connections: how many clients may be connected at once.
        head_seconds: how long the head of a request may take to arrive.
        body_seconds: how long its body may take.
        at_once: how many bodies are read out and answered at once.
    """

    request_bytes: int = 1 << 22
    connections: int = 128
    head_seconds: float = 5.0
    body_seconds: float = 30.0
    at_once: int = 2


class _Refused(Exception):
    """A request that is not answered, with the status and the sentence it gets instead."""

    def __init__(
        self, status: int, sentence: str, after: int | None = None, *, hang_up: bool = False
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = {} if after is None else {"Retry-After": str(after)}
        if hang_up:
            # What is left of the body would be taken for the next request.
            self.headers["Connection"] = "close"
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"


@dataclass(slots=True)
class Black:
    """A black box behind an HTTP application.

    Args:
        oracle: what answers, output policies included.
        name: what the model is called.
        accounts: budget and rate per client.
        limits: what is borne.
        token: a bearer token everyone must show; None where there is none.
    """

    oracle: Oracle
    name: str
    accounts: Accounts = field(default_factory=Accounts)
    limits: Limits = Limits()
    token: str | None = field(default=None, repr=False)
    requests: int = field(default=0, init=False)
    refused: int = field(default=0, init=False)
    queries: int = field(default=0, init=False)
    _asking: threading.Lock = field(default_factory=threading.Lock, init=False)
    _bound: float | None = field(default=None, init=False)
    _places: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.name):
            raise InvalidInput(
                "the name of a served model has letters, digits, '.', '_' and '-'; got"
                f" {self.name!r}."
            )
        self._bound = read_imperfection(self.oracle).token_bound
        self._places = asyncio.Semaphore(self.limits.at_once)

    def application(self) -> Starlette:
        """The routes, each guarded: whatever happens, the answer has a reason."""
        model = f"/v2/models/{self.name}"
        # Whoever watches over servers has no token.
        open_to_all = {"/v2/health/live": {"live": True}, "/v2/health/ready": {"ready": True}}
        closed = {"/v2": ServerMetadata(), "/openapi.json": self._described}
        # The only version there is may be named or not.
        places = (model, f"{model}/versions/{VERSION}")
        for place in places:
            closed |= {place: self._metadata, f"{place}/ready": {"ready": True}}
        routes = [
            Route(path, self._told(said, guarded=False)) for path, said in open_to_all.items()
        ]
        routes += [Route(path, self._told(said, guarded=True)) for path, said in closed.items()]
        routes += [
            Route("/", self._guarded(self._page)),
            *(Route(f"{place}/infer", self._infer, methods=["POST"]) for place in places),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _refuse_unknown_address})

    def _metadata(self) -> ModelMetadata:
        return describe_model(self.name, self.oracle.width, self.oracle.outputs)

    def _described(self) -> openapi.ApiDocument:
        return openapi.describe_api(
            self.name, self.oracle.width, self.oracle.outputs, token=self.token is not None
        )

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(openapi.draw_api_page(self._described()))

    def _told(self, said: Any, *, guarded: bool) -> Callable[[Request], Awaitable[Response]]:
        async def tell(request: Request) -> Response:
            body = msgspec.json.encode(said() if callable(said) else said)
            return Response(body, media_type="application/json")

        return self._guarded(tell) if guarded else tell

    def _guarded(
        self, work: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self._admit(request)
                return await work(request)
            except _Refused as refused:
                return self._refusal(refused)

        return guarded

    def _admit(self, request: Request) -> None:
        # Compared in constant time: how long it takes must not tell how much was right.
        shown = request.headers.get("authorization", "").encode("utf-8", "replace")
        if self.token is not None and not hmac.compare_digest(
            shown, f"Bearer {self.token}".encode()
        ):
            raise _Refused(
                401,
                "this model requires a bearer token, and none or another was sent.",
                hang_up=True,
            )

    def refuse_foreign(self, reason: str) -> Response:
        """What whoever has no business here is told."""
        way_out = "Ask by the address it announced; --known-as NAME at its start adds a name."
        return self._refusal(_Refused(403, f"{reason}. {way_out}", hang_up=True))

    def _refusal(self, refused: _Refused) -> Response:
        self.refused += 1
        return JSONResponse(
            {"error": str(refused)}, status_code=refused.status, headers=refused.headers
        )

    async def _infer(self, request: Request) -> Response:
        self.requests += 1
        try:
            self._admit(request)
            body = await self._body(request)
            client = request.client.host if request.client else ""
            # Bodies are large once decoded: only so many at a time.
            async with self._places:
                content, headers = await asyncio.to_thread(
                    self._answered, body, dict(request.headers), client
                )
        except _Refused as refused:
            return self._refusal(refused)
        # The client learns the type alone; the message may hold paths of this machine.
        except Exception as error:
            sys.stderr.write(
                f"keyhole: the server failed on a request: {type(error).__name__}: {error}\n"
            )
            return self._refusal(_Refused(500, f"the server failed: {type(error).__name__}."))
        return Response(content, headers=headers)

    async def _body(self, request: Request) -> bytes:
        """The body of a request, as far as it is neither too large nor too slow."""
        most = self.limits.request_bytes
        body = bytearray()
        too_large = _Refused(413, f"a request has at most {most:,} bytes here.", hang_up=True)
        announced = wire.parse_count(request.headers.get("content-length", "0"))
        # Refused by its head, before a byte of it is stored.
        if announced is None or announced > most:
            raise too_large
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for part in request.stream():
                    body += part
                    # A client may send more than it announced, or announce nothing.
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise _Refused(
                408, "the body of the request did not arrive in time.", hang_up=True
            ) from None
        except ClientDisconnect:
            raise _Refused(
                400, "the client hung up in the middle of its request.", hang_up=True
            ) from None
        return bytes(body)

    def _answered(
        self, body: bytes, headers: dict[str, str], client: str
    ) -> tuple[bytes, dict[str, str]]:
        """The answer to a body; runs beside the event loop."""
        try:
            body = unpack_body(body, headers.get("content-encoding", ""), self.limits.request_bytes)
            message, behind = wire.open_message(body, headers, wire.Question)
            check_wishes(message)
            X = wire.read_questions(message, behind, self.oracle.width)
        except Unpackable as error:
            raise _Refused(error.status, str(error)) from error
        except InvalidInput as error:
            raise _Refused(400, str(error)) from error
        Y = self._ask(X, client)
        return wire.write_reply(
            Y, OUTPUT, model=self.name, number=message.id, binary=message.binary
        )

    def _ask(self, X: Stack, client: str) -> Matrix:
        # Checked here, so that a refused question costs the client nothing.
        if self._bound is not None and np.sqrt(
            np.einsum("bld,bld->bl", X, X).max()
        ) > self._bound * (1 + 1e-9):
            raise _Refused(400, f"tokens may have norm {self._bound:g} at most.")
        try:
            self.accounts.charge(client, len(X))
        except Denied as denied:
            raise _Refused(
                403 if denied.after is None else 429, str(denied), denied.after
            ) from denied
        # Policies draw noise in order, and many targets are not safe in threads.
        with self._asking, np.errstate(all="ignore"):
            self.queries += len(X)
            try:
                return self.oracle.ask(X)
            except BadAnswer as error:
                raise _Refused(422, str(error)) from error
            except KeyholeError as error:
                raise _Refused(500, str(error)) from error


def _refuse_unknown_address(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    sentence = "not in this way."
    if status == 404:
        sentence = "there is nothing at this address; / lists what there is."
    return JSONResponse({"error": sentence}, status_code=status)


def _make_impatient_protocol(head_seconds: float) -> type[H11Protocol]:
    """The HTTP protocol that hangs up on whoever does not send the head of a request in time."""

    class Impatient(H11Protocol):
        # Slow heads, byte by byte, would hold all connections there are.
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waiting() and self.timer is None:
                self._wait()
            elif not self._waiting():
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _waiting(self) -> bool:
            return not self.cycle or self.cycle.response_complete

        def _wait(self) -> None:
            self.timer = self.loop.call_later(head_seconds, self._late)

        def _stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _late(self) -> None:
            self.timer = None
            if self._waiting():
                self.transport.close()

    return Impatient


class Server(Listening):
    """Serves a black box to whoever calls it by a name it goes by."""

    def __init__(
        self,
        black: Black,
        host: str,
        port: int,
        announce: Callable[[str], Any] = str,
        *,
        known_as: Sequence[str] = (),
    ) -> None:
        # Before the port is taken: a mistake in a name needs no server.
        check_names(known_as)
        self.black = black
        limits = black.limits
        listener = open_listener(host, port, what="server")
        shown, number = listener.getsockname()[:2]
        names = Names.at(host, shown, number, known_as)
        address = (
            f"http://{f'[{shown}]' if ':' in shown else shown}:{number}/v2/models/{black.name}"
        )
        super().__init__(
            Doorkeeper(cast(App, black.application()), names, black.refuse_foreign),
            listener,
            address,
            announce,
            http=_make_impatient_protocol(limits.head_seconds),
            limit_concurrency=limits.connections,
            timeout_keep_alive=math.ceil(limits.head_seconds),
            timeout_graceful_shutdown=10,
        )
