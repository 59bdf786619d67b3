"""Who may talk to the explorer: a browser of this machine, on the explorer's own page."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from starlette.responses import JSONResponse

from keyhole.lab.serving.visitors import App, Message, Names, Receive, Scope, Send, read_headers
from keyhole.oracles.http.wire import parse_count

BODY = 1 << 16  # bytes of a request
TOKEN = "x-keyhole-token"  # noqa: S105
PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'"
    " data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A report may be anybody's file. It gets an origin of its own, so that its script can neither read
# what the explorer answers nor ask it for anything, and no address to fetch from.
REPORT = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src"
    " 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}


@dataclass(slots=True)
class Guard:
    """Refuses whoever has no business here, and gives every answer its headers.

    A page from elsewhere can give its requests neither our name as Host nor a header of ours
    without asking first, and cannot read the token.

    Args:
        inner: the application.
        port: the port it listens on.
    """

    inner: App
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return
        refused = self._refusal(scope["method"], read_headers(scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                # A report has a policy of its own, which is kept.
                extra = _HEADERS | {"content-security-policy": PAGE}
                message["headers"] += [
                    (k.encode(), v.encode()) for k, v in extra.items() if k.encode() not in known
                ]
            await send(message)

        answer: App = self.inner if refused is None else refused
        await answer(scope, receive, with_headers)

    def _refusal(self, method: str, headers: dict[str, str]) -> App | None:
        foreign = Names.at_loopback(self.port).refuse_foreign(method, headers)
        if foreign is not None:
            return _refuse_request(
                403, f"This page is for a browser of this machine, at its own address: {foreign}."
            )
        # A link must work; other pages cannot read what it answers.
        if method in ("GET", "HEAD"):
            return None
        # Only the page that we served knows the token of this start.
        if not hmac.compare_digest(headers.get(TOKEN, "").encode(), self.token.encode()):
            return _refuse_request(
                403, "This page is older than the explorer that answers it. Load it again."
            )
        # A body of unknown length could be endless.
        length = parse_count(headers.get("content-length", "0"))
        if length is None or length > BODY or "transfer-encoding" in headers:
            return _refuse_request(
                413, f"A request has at most {BODY:,} bytes here, and says how many."
            )
        return None


def _refuse_request(status: int, sentence: str) -> App:
    return JSONResponse({"sentence": sentence}, status_code=status)
