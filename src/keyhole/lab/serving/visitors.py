"""Who may talk to a server here: whoever calls it by its name, and no page from elsewhere.

A page from elsewhere can make a browser send requests to this machine. It cannot give them our name
as Host once its own name leads here (DNS rebinding), and its posts say whose they are (Origin).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from keyhole.errors import InvalidInput, clean_line

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Names:
    """What a server goes by.

    Args:
        known: names of the host, in lower case; a number of version 6 in brackets.
        port: the port it listens on, which a Host must name; None where another may lead to it.
        numbers: whether every number of a host is ours, since a number cannot be rebound.
    """

    known: frozenset[str]
    port: int | None
    numbers: bool = False

    @classmethod
    def at_loopback(cls, port: int) -> Names:
        """Names of a server for this machine alone."""
        return cls(frozenset(_LOOPBACK), port)

    @classmethod
    def at(cls, host: str, address: str, port: int, known_as: Iterable[str] = ()) -> Names:
        """Names of a server at a host of somebody's choice, which has that address."""
        place = ip_address(address)
        chosen = frozenset(_bracket(name) for name in (host, address, *known_as))
        # With further names a proxy may stand in front, on another port.
        if place.is_loopback:
            return cls(chosen | frozenset(_LOOPBACK), None if known_as else port)
        # Listening everywhere, it is called by whatever leads to this machine.
        own = {socket.gethostname(), "localhost"} if place.is_unspecified else set[str]()
        return cls(chosen | {name.lower() for name in own}, None, place.is_unspecified)

    def refuse_foreign(self, method: str, headers: MutableMapping[str, str]) -> str | None:
        """Why a request is not answered; None where it may be."""
        host = headers.get("host", "").lower()
        origin = headers.get("origin")
        if not self._ours(host):
            return f"this server does not go by the name {clean_line(host[:80])!r}"
        # Only posts ask the model; what a GET answers no other page can read.
        if method not in ("GET", "HEAD") and origin is not None and not self._same(origin, host):
            return "posts of other pages are not answered"
        return None

    def _same(self, origin: str, host: str) -> bool:
        """Whether a page of that origin came from here."""
        scheme, _, place = origin.lower().partition("://")
        return scheme == "http" and (place == host if self.port is None else self._ours(place))

    def _ours(self, host: str) -> bool:
        taken = _HOST.fullmatch(host)
        if taken is None or (self.port is not None and int(taken[2] or 80) != self.port):
            return False
        return taken[1] in self.known or (self.numbers and _is_number(taken[1]))


def check_names(known_as: Iterable[str]) -> None:
    """Raise unless each is the bare name of a host."""
    for name in known_as:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise InvalidInput(
                f"--known-as is the name of a host, without scheme, port or path; got {name!r:.80}."
            )


def read_headers(scope: Scope) -> dict[str, str]:
    """The headers of a request, names in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


@dataclass(slots=True)
class Doorkeeper:
    """Lets through to an application what calls it by its name.

    Args:
        inner: the application.
        names: what it goes by.
        refuse: what is answered to everybody else, given the reason.
    """

    inner: App
    names: Names
    refuse: Callable[[str], App]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return
        reason = self.names.refuse_foreign(scope["method"], read_headers(scope))
        answer = self.inner if reason is None else self.refuse(reason)
        await answer(scope, receive, send)


def _bracket(name: str) -> str:
    return f"[{name.lower()}]" if ":" in name else name.lower()


def _is_number(name: str) -> bool:
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
