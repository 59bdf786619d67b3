"""Servers on this machine: an open socket, an orderly stop, life in a thread."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from keyhole.errors import InvalidInput

_LAST_PORT = 65535


def open_listener(host: str, port: int, *, what: str) -> socket.socket:
    """A socket bound to an address.

    Raises:
        InvalidInput: there is no such address, or `what`, or anything else, has it already.
    """
    # The system would take a larger number for what is left of it by 65536.
    if not 0 <= port <= _LAST_PORT:
        raise InvalidInput(f"--port is a whole number from 0 to {_LAST_PORT}; got {port}.")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[
            0
        ]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise InvalidInput(f"there is no address {host}:{port} to listen on ({error}).") from error
    try:
        # A server that was just stopped can be started again at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except (OSError, OverflowError) as error:
        listener.close()
        raise InvalidInput(
            f"cannot listen on {host}:{port} ({error}). Is another {what} there? Try --port 0."
        ) from error
    return listener


class Listening(uvicorn.Server):
    """Serves an application until Ctrl-C or SIGTERM, and answers what is under way.

    Args:
        application: what is served.
        listener: where.
        address: what is announced.
        announce: told the address as soon as it answers.
        settings: further settings of uvicorn.
    """

    def __init__(
        self,
        application: Any,
        listener: socket.socket,
        address: str,
        announce: Callable[[str], Any],
        **settings: Any,
    ) -> None:
        # Standard output belongs to the record; questions are nobody's business.
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="critical",
            access_log=False,
            ws="none",
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            **settings,
        )
        super().__init__(config)
        self.listener = listener
        self.address = address
        self.announce = announce
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so."""
        await super().startup(sockets)
        self.announce(self.address)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals stop the server; afterwards the process goes on and ends in its own way."""
        # Python lets only the main thread handle signals.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def serve_until_stopped(self) -> None:
        """Serve in this thread."""
        self.run(sockets=[self.listener])

    @contextmanager
    def beside(self) -> Generator[str]:
        """Serve in a thread while inside, and hand over the address."""
        thread = threading.Thread(target=self.serve_until_stopped, daemon=True)
        thread.start()
        # A machine under load may take seconds to bind.
        self.ready.wait(20)
        try:
            yield self.address
        finally:
            self.should_exit = True
            thread.join(20)
