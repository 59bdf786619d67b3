"""A model server as an oracle, over HTTP as Triton, KServe and MLServer speak it."""

from __future__ import annotations

import itertools
import ssl
import time
import weakref
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from keyhole._arrays import FORMATS, Answers, Matrix, Sequences, Stack
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed, clean_line
from keyhole.oracles.base import Imperfection, Meters, check_answers
from keyhole.oracles.http import wire
from keyhole.oracles.http.addresses import Address, parse_address
from keyhole.oracles.http.attempts import Asking, Missed, Pace, Patience
from keyhole.oracles.http.description import Description

try:
    import httpx2

    from keyhole.oracles.http.deadline import Deadline, hold_to_deadline
except ImportError as missing:
    raise ImportError(
        "asking a service over HTTP needs httpx2: pip install 'keyhole[http]'."
    ) from missing

# A server that sends without end must not fill the memory.
_LARGEST_ANSWER = 1 << 26
# Of one number written out: 17 digits, sign, point, exponent, comma.
_JSON_BYTES = 24
_BUSY = (429, 502, 503, 504)
_CONNECTIONS = 64
_PIECE = 32  # sequences that are worth a request of their own
_GRACE = 2.0  # seconds
# At metadata: a person waits for the first word that a server is not there.
_FETCHES = 3
_NARROW = {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}
# No connection was made, so that nothing was answered and nothing is paid.
_CERTAINLY_NOT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@dataclass(slots=True, weakref_slot=True)
class HttpService:
    """A model behind the Open Inference Protocol V2.

    Width, outputs and datatype come from the server's metadata. Bodies are bytes where the server
    lists the binary tensor extension, else JSON, which carries float64 without loss too.

    Args:
        address: http(s)://HOST:PORT/v2/models/NAME; `?binary=true` or `false` overrides what the
            server lists, and `input=` or `output=` picks tensors where there are several.
        size: width of a token, where the server does not say.
        count: numbers per answer, where the server does not say.
        token: sent as a bearer token.
        rate: at most so many sequences a second.
        timeout: seconds one request may take in all: connecting, sending, and the whole answer;
            another attempt has as many again.
        request_bytes: about how large a request may be; halved when the server finds it too large.
        connections: how many requests may be under way at once; a batch is spread over them.
        patience: how often and how long to try again; no attempt begins later than `timeout` and
            two seconds after the first.
        answers: the narrowest format that answers are known to have, whatever the server says.
    """

    address: str
    size: int | None = None
    count: int | None = None
    _: KW_ONLY
    token: str | None = field(default=None, repr=False)
    rate: float | None = None
    timeout: float = 30.0
    request_bytes: int = 1 << 20
    connections: int = 4
    patience: Patience = Patience()  # noqa: RUF009
    answers: str = "f64"
    latency: float = field(init=False, default=np.inf)
    meters: Meters = field(init=False, repr=False, default_factory=Meters)
    _parts: Address = field(init=False, repr=False)
    _client: httpx2.Client = field(init=False, repr=False)
    _deadline: Deadline = field(init=False, repr=False)
    _pace: Pace = field(init=False, repr=False)
    _about: Description = field(init=False, repr=False)
    _outputs: int | None = field(init=False, repr=False, default=None)
    _heard: bool = field(init=False, repr=False, default=False)
    _numbers: Iterator[int] = field(init=False, repr=False, default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._parts = parse_address(self.address)
        for name, value in (("rate", self.rate), ("timeout", self.timeout)):
            if value is not None and not (value > 0 and np.isfinite(value)):
                raise InvalidInput(f"a {name} is a finite number > 0; got {value}.")
        if not 1 <= self.connections <= _CONNECTIONS:
            raise InvalidInput(
                f"--in-flight is a whole number from 1 to {_CONNECTIONS}; got {self.connections}."
            )
        # So that whatever a service does, there is a word after twice the time of one request.
        in_all = min(self.patience.in_all, self.timeout + _GRACE)
        self.patience = replace(self.patience, in_all=in_all)
        self._pace = Pace(self.rate)
        self._client = self._build_client()
        self._deadline = hold_to_deadline(self._client)
        # Connections close with the object, also where nobody calls close.
        weakref.finalize(self, self._client.close)
        self._about = self._discover()
        self._outputs = self._about.outputs

    def _build_client(self) -> httpx2.Client:
        headers = {"Accept-Encoding": "identity", "User-Agent": "keyhole"}
        # Reading every root certificate takes longer than a local recovery: only where they serve.
        verify = self._parts.url.startswith("https:") or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx2.Client(
            headers=headers | _write_bearer_header(self.token),
            timeout=httpx2.Timeout(self.timeout, connect=min(self.timeout, 10.0)),
            limits=httpx2.Limits(
                max_connections=self.connections, max_keepalive_connections=self.connections
            ),
            trust_env=not self._parts.nearby,
            verify=verify,
        )

    @property
    def width(self) -> int:
        """Size of a token."""
        return self._about.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None before the first answer where nobody said."""
        return self._outputs

    @property
    def imperfection(self) -> Imperfection:
        """Rounding of the datatypes the service takes and answers in."""
        taken = Imperfection.cast(_NARROW.get(self._about.input_type, "f64"))
        given = Imperfection.cast(_NARROW.get(self._about.output_type, "f64"))
        return taken.combined(given)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, in as many requests as its size needs."""
        # Nothing to ask, and so no reason to open a connection.
        if len(X) == 0:
            return np.zeros((0, self._outputs or 1))
        bytes_each = X.shape[1] * X.shape[2] * (8 if self._about.binary else _JSON_BYTES)
        # A server that takes its time is asked in several places at once.
        share = max(_PIECE, -(-len(X) // self.connections))
        size = max(1, min(share, self.request_bytes // bytes_each))
        # A piece larger than a second's worth would pass the rate in one go.
        if self.rate is not None:
            size = max(1, min(size, int(self.rate)))
        asking = Asking(
            send=self._send,
            size=size,
            connections=self.connections,
            patience=self.patience,
            pace=self._pace,
            meters=self.meters,
            shrink=self._shrink,
        )
        return np.concatenate(asking.run(X))

    def _shrink(self) -> None:
        self.request_bytes = max(1, self.request_bytes // 2)

    def _send(self, X: Stack) -> Matrix:
        about = self._about
        number = str(next(self._numbers))
        body, headers = wire.write_question(
            X,
            about.input,
            about.input_type,
            binary=about.binary,
            wanted=about.output,
            number=number,
        )
        status, said, received = self._request("POST", f"{self._parts.url}/infer", body, headers)
        if status != 200:
            raise self._explain_refusal(status, said, received)
        try:
            message, behind = wire.open_message(received, said, wire.Reply)
            numbers = wire.numbers_of(message.outputs, about.output, behind)
            answered = message.outputs[wire.find_tensor(message.outputs, about.output)].datatype
        except InvalidInput as error:
            raise TargetFailed(
                f"{self._parts.url} answered something else than the V2 protocol: {error}"
            ) from error
        self._check_number(message.id, number)
        self._check_datatype(answered)
        answers = self._split_rows(numbers, len(X))
        self._outputs = answers.shape[1]
        self._heard = True
        return answers

    def _check_number(self, answered: Any, asked: str) -> None:
        """Raise where an answer is to another question: one that was sent twice, or went astray."""
        # A server need not speak of numbers; one that does gives them back.
        if answered not in (None, "", asked):
            raise TargetFailed(
                f"{self._parts.url} answered question {str(answered)[:40]!r} where {asked!r} was"
                " asked: its answers are out of step. Is a proxy in between? Start it anew."
            )

    def _check_datatype(self, answered: str) -> None:
        """Raise where answers are narrower than was said: rounding would look like a refutation."""
        stated = self._about.output is not None and self._about.output_type in wire.FLOATS
        if stated and answered in wire.WHOLE:
            problem = BadAnswer if self._heard else InvalidInput
            raise problem(
                f"{self._parts.url} says it answers {self._about.output_type}, and answered"
                f" {answered}, whole numbers. Is it the right output (?output=NAME)?"
            )
        narrow = _NARROW.get(answered, "f64")
        known = self.imperfection.combined(Imperfection.cast(self.answers))
        if FORMATS[narrow].roundoff > known.roundoff:
            problem = BadAnswer if self._heard else InvalidInput
            raise problem(
                f"{self._parts.url} says it answers {self._about.output_type}, and answered"
                f" {answered}: say so with --answers {narrow}."
            )

    def _split_rows(self, numbers: Any, batch: int) -> Matrix:
        """Numbers as rows, one a sequence."""
        # Counted, not read off a shape: servers disagree about that of one number per sequence.
        if len(numbers) == 0 or len(numbers) % batch:
            problem = BadAnswer if self._heard else InvalidInput
            raise problem(
                f"{self._parts.url} answered {len(numbers)} numbers to a batch of {batch}"
                " sequences."
            )
        return check_answers(numbers.reshape(batch, -1), batch=batch, outputs=self._outputs)

    def _explain_refusal(self, status: int, said: Any, received: bytes) -> Exception:
        """What a status other than 200 means: to be tried again, to be split, or final."""
        reason = _read_refusal(received)
        sentence = f"{self._parts.url} answered {status}{reason}."
        if status in _BUSY:
            after = _parse_retry_after(said.get("Retry-After"))
            # A gateway may fail behind an answer; a limit of the rate stands before it.
            return Missed(sentence, answered=status != 429, again=True, after=after)
        if status == 401 or (status == 403 and not reason):
            sentence = f"{sentence} A token is taken from the environment variable KEYHOLE_TOKEN."
        # Not followed: a token must not be sent where the address did not say.
        if 300 <= status < 400:
            place = said.get("Location") or "another address"
            sentence = f"{sentence} It points to {place[:200]}: give that one, if you trust it."
        # Before the first answer it is the caller's sizes that are most likely wrong.
        if status in (400, 422) and not self._heard:
            return InvalidInput(
                f"{sentence} Is width {self.width} right, and may sequences have any length?"
            )
        if status == 422:
            return BadAnswer(sentence)
        answered = not 400 <= status < 500
        return Missed(sentence, answered=answered, again=False, too_large=status == 413)

    def _request(
        self, method: str, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Any, bytes]:
        """One exchange: status, headers, body.

        Raises:
            Missed: nothing, or not all of it, came back.
        """
        asked = self._client.stream(method, url, content=body, headers=headers)
        start = time.monotonic()
        try:
            with self._deadline.within(self.timeout), asked as response:
                told = response.status_code, response.headers, _read_body(response)
            # The least of them: what is above it is connecting, or the model.
            self.latency = min(self.latency, time.monotonic() - start)
            return told
        except _CERTAINLY_NOT as error:
            raise Missed(_explain_unreachable(url, error), answered=False, again=True) from error
        except httpx2.TransportError as error:
            sentence = f"{url} {_explain_break(error, self.timeout)}."
            raise Missed(sentence, answered=True, again=True) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise TargetFailed(f"{url} cannot be asked: {error}.") from error

    def _discover(self) -> Description:
        try:
            # One patience for both: whoever stalls twice is waited for once.
            since = time.monotonic()
            metadata = self._get(self._parts.url, wire.Metadata, since)
            server = self._get(self._parts.server, wire.Service, since)
        except BaseException:
            self._client.close()
            raise
        if metadata is None:
            raise InvalidInput(
                f"there is no model at {self._parts.url}. Is its name {self._parts.name!r}?"
            )
        listed = server is not None and "binary_tensor_data" in server.extensions
        binary = self._parts.binary if self._parts.binary is not None else listed
        return Description.read_metadata(metadata, self._parts, binary, self.size, self.count)

    def _get(self, url: str, kind: type[wire.T], since: float) -> wire.T | None:
        """What is at an address; None where there is nothing."""
        status, said, body = self._fetch(url, 1, since)
        if status in (401, 403):
            raise TargetFailed(str(self._explain_refusal(status, said, body)))
        if status != 200:
            return None
        try:
            return wire.parse_message(body, kind)
        except InvalidInput as error:
            raise InvalidInput(
                f"{url} does not speak the V2 protocol of model servers: {error}"
            ) from error

    def _fetch(self, url: str, tries: int, since: float) -> tuple[int, Any, bytes]:
        try:
            status, said, body = self._request("GET", url, b"", {})
            if status in _BUSY:
                raise self._explain_refusal(status, said, body)
            return status, said, body
        except Missed as missed:
            wait = self.patience.wait(tries, missed, since) if tries < _FETCHES else None
            if wait is None:
                raise TargetFailed(str(missed)) from missed
        time.sleep(wait)
        return self._fetch(url, tries + 1, since)


def _write_bearer_header(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise InvalidInput("a token is printable ASCII without spaces; check KEYHOLE_TOKEN.")
    return {"Authorization": f"Bearer {token}"}


def _read_body(response: httpx2.Response) -> bytes:
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > _LARGEST_ANSWER:
            raise TargetFailed(
                f"{response.url} answered more than {_LARGEST_ANSWER:,} bytes; no question has so"
                " many."
            )
    return bytes(body)


def _read_refusal(body: bytes) -> str:
    """What a server says of a refusal, without anything a terminal would obey."""
    try:
        said = wire.parse_message(body, wire.Refusal)
        told = str(said.error or said.detail or "")
    except InvalidInput:
        told = body.decode("utf-8", "replace")
    text = clean_line(told[:300]).strip()
    return f": {text.rstrip('.')}" if text else ""


def _parse_retry_after(text: str | None) -> float | None:
    """The wait a Retry-After header asks for, in seconds or until a date."""
    if text is None:
        return None
    seconds = wire.parse_count(text.strip())
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    # A header is another's text, and the library's reader of dates raises what it likes.
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _explain_unreachable(url: str, error: Exception) -> str:
    return (
        f"{url} cannot be reached ({error or type(error).__name__}). Is the server running, and the"
        " address right?"
    )


def _explain_break(error: Exception, seconds: float) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return f"did not answer within {seconds:g} s (--timeout)"
    return f"broke off in the middle ({error or type(error).__name__})"
