"""Addresses of models on a server, taken apart and checked."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlsplit

from keyhole.errors import InvalidInput

_FORM = "http://HOST:PORT/v2/models/NAME"


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart."""

    url: str
    input: str | None
    output: str | None
    binary: bool | None

    @property
    def name(self) -> str:
        """Of the model."""
        return self.url.partition("/v2/models/")[2]

    @property
    def server(self) -> str:
        """Where the server speaks of itself."""
        return self.url.partition("/models/")[0]

    @property
    def nearby(self) -> bool:
        """Whether it is this machine, which no proxy leads to."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def parse_address(text: str) -> Address:
    """The parts of an address.

    Raises:
        InvalidInput: it is none of a model, or carries a password.
    """
    try:
        parts = urlsplit(text)
        # Reading the port is what makes urlsplit object to one that is no number.
        named = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise InvalidInput(f"the address of a model is {_FORM}; got {text!r:.200}.") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "an address carries no password, since records keep it: put a token into KEYHOLE_TOKEN."
        )
    path = parts.path.rstrip("/")
    options = dict(parse_qsl(parts.query))
    usable = named and parts.scheme in ("http", "https") and not parts.fragment
    if not usable or "/v2/models/" not in path or path.endswith("/v2/models"):
        raise InvalidInput(f"the address of a model is {_FORM}; got {text!r:.200}.")
    if unknown := set(options) - {"binary", "input", "output"}:
        raise InvalidInput(
            f"an address takes ?binary=, input= and output=; got {', '.join(sorted(unknown))}."
        )
    if options.get("binary", "true") not in ("true", "false"):
        raise InvalidInput(f"?binary= is true or false; got {options['binary']!r:.40}.")
    # Where an address is silent, the server's list of extensions decides.
    binary = options["binary"] == "true" if "binary" in options else None
    url = f"{parts.scheme}://{parts.netloc}{path}"
    return Address(url, options.get("input"), options.get("output"), binary)
