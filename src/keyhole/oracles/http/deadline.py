"""The network below an HTTP client, held to one deadline for a whole exchange.

An HTTP client waits so and so long for every single read, and a server that sends a byte now and
then is never late. Here every wait, from the name to the last byte, gets what is left of the
exchange, and no more.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from ipaddress import ip_address
from queue import Empty, SimpleQueue
from typing import Any

from httpcore2 import (
    ConnectError,
    ConnectTimeout,
    NetworkBackend,
    NetworkStream,
    ReadTimeout,
    WriteError,
    WriteTimeout,
)


class Deadline(threading.local):
    """When the exchange of the calling thread must be over."""

    until = math.inf

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Everything inside takes so many seconds at most."""
        self.until = time.monotonic() + seconds
        try:
            yield
        finally:
            self.until = math.inf

    def measure_rest(self, late: type[Exception], most: float | None = None) -> float:
        """Seconds one wait may take: what is left, and `most` where that is less.

        Raises:
            late: nothing is left.
        """
        left = self.until - time.monotonic()
        if left <= 0:
            raise late("the time of this exchange is over")
        return left if most is None else min(left, most)


def hold_to_deadline(client: Any) -> Deadline:
    """Put a deadline below an httpx2 client, which takes no network of ours by any public way."""
    deadline = Deadline()
    for transport in filter(None, (client._transport, *client._mounts.values())):
        transport._pool._network_backend = _Network(transport._pool._network_backend, deadline)
    return deadline


class _Network(NetworkBackend):
    """Connects as `inner` does, within the deadline."""

    def __init__(self, inner: NetworkBackend, deadline: Deadline) -> None:
        self.inner = inner
        self.deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> NetworkStream:
        """A connection to the first address of a host that takes one."""
        places = _find_addresses(host, port, self.deadline.measure_rest(ConnectTimeout, timeout))
        failure: Exception = ConnectError(f"{host} has no address")
        for untried in range(len(places), 0, -1):
            # An address that swallows everything leaves the others their share.
            seconds = self.deadline.measure_rest(ConnectTimeout) / untried
            most = seconds if timeout is None else min(seconds, timeout)
            try:
                place = places[-untried]
                stream = self.inner.connect_tcp(place, port, most, local_address, socket_options)
                return _Stream(stream, self.deadline)
            except (ConnectError, ConnectTimeout) as error:
                failure = error
        raise failure


class _Stream(NetworkStream):
    """A connection on which every wait is within the deadline."""

    def __init__(self, inner: NetworkStream, deadline: Deadline, *, nested: bool = False) -> None:
        self.inner = inner
        self.deadline = deadline
        self.nested = nested

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """What has arrived."""
        return self.inner.read(max_bytes, self.deadline.measure_rest(ReadTimeout, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it: many small sends together are within the deadline too."""
        # TLS inside TLS: the socket carries the proxy's bytes, so only the stream may be written.
        if self.nested:
            return self.inner.write(buffer, self.deadline.measure_rest(WriteTimeout, timeout))
        wire = self.inner.get_extra_info("socket")
        rest = memoryview(buffer)
        try:
            while rest:
                wire.settimeout(self.deadline.measure_rest(WriteTimeout, timeout))
                rest = rest[wire.send(rest) :]
        except TimeoutError as error:
            raise WriteTimeout(str(error)) from error
        except OSError as error:
            raise WriteError(str(error)) from error
        return None

    def close(self) -> None:
        """Hang up."""
        self.inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> NetworkStream:
        """The same connection, encrypted; inside TLS to a proxy its bytes are not the socket's."""
        nested = isinstance(self.inner.get_extra_info("socket"), ssl.SSLSocket)
        seconds = self.deadline.measure_rest(ConnectTimeout, timeout)
        inner = self.inner.start_tls(ssl_context, server_hostname, seconds)
        return _Stream(inner, self.deadline, nested=nested)

    def get_extra_info(self, info: str) -> Any:
        """What the connection below says of itself."""
        return self.inner.get_extra_info(info)


def _find_addresses(host: str, port: int, seconds: float) -> list[str]:
    """Every address of a host, found in time.

    The system's resolver cannot be interrupted: it is asked in a thread that ends when it does.
    """
    try:
        return [str(ip_address(host))]
    # A name, not an address.
    except ValueError:
        found: SimpleQueue[list[str] | OSError] = SimpleQueue()
    threading.Thread(target=_resolve, args=(host, port, found), daemon=True).start()
    try:
        outcome = found.get(timeout=seconds)
    except Empty:
        raise ConnectTimeout(f"the name {host} was not resolved in {seconds:.3g} s") from None
    if isinstance(outcome, OSError):
        raise ConnectError(str(outcome)) from outcome
    return outcome


def _resolve(host: str, port: int, found: SimpleQueue[list[str] | OSError]) -> None:
    try:
        told = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        found.put([socket.getnameinfo(place, numeric)[0] for *_, place in told])
    except (OSError, UnicodeError) as error:
        found.put(error if isinstance(error, OSError) else OSError(str(error)))
