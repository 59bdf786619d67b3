"""A model server as an oracle: the Open Inference Protocol V2 over HTTP, as Triton, KServe and
MLServer speak it.
"""

from __future__ import annotations

import ssl
import time
import weakref
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from keyhole._arrays import Answers, Matrix, Sequences, Stack
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.oracles import wire
from keyhole.oracles.attempts import Asking, Missed, Pace, Patience
from keyhole.oracles.base import Imperfection, Meters, check_answers

try:
    import httpx2

    from keyhole.oracles.deadline import Deadline, hold_to_deadline
except ImportError as missing:
    raise ImportError(
        "asking a service over HTTP needs httpx2: pip install 'keyhole[http]'."
    ) from missing

_FORM = "http://HOST:PORT/v2/models/NAME"
_LARGEST_ANSWER = 1 << 26
_JSON_BYTES = 24  # of a number written out
_BUSY = (429, 502, 503, 504)
_FETCHES = 3  # attempts at metadata: a server that is not there is said so soon
_NARROW = {"FP32": "f32", "FP16": "f16", "BF16": "bf16"}
_CERTAINLY_NOT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@dataclass(frozen=True, slots=True)
class _Address:
    """An address taken apart."""

    url: str
    input: str | None
    output: str | None
    binary: bool | None

    @property
    def name(self) -> str:
        return self.url.partition("/v2/models/")[2]

    @property
    def server(self) -> str:
        return self.url.partition("/models/")[0]

    @property
    def nearby(self) -> bool:
        """Whether it is this machine, which no proxy leads to."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def _parse_address(text: str) -> _Address:
    try:
        parts = urlsplit(text)
        usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        )
    except ValueError:
        raise InvalidInput(f"the address of a model is {_FORM}; got {text!r:.200}.") from None
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            "an address carries no password, since records keep it: put a token into KEYHOLE_TOKEN."
        )
    path, options = parts.path.rstrip("/"), dict(parse_qsl(parts.query))
    if not usable or "/v2/models/" not in path or path.endswith("/v2/models") or parts.fragment:
        raise InvalidInput(f"the address of a model is {_FORM}; got {text!r:.200}.")
    if unknown := set(options) - {"binary", "input", "output"}:
        raise InvalidInput(
            f"an address takes ?binary=, input= and output=; got {', '.join(sorted(unknown))}."
        )
    if options.get("binary", "true") not in ("true", "false"):
        raise InvalidInput(f"?binary= is true or false; got {options['binary']!r:.40}.")
    binary = options["binary"] == "true" if "binary" in options else None
    return _Address(
        f"{parts.scheme}://{parts.netloc}{path}",
        options.get("input"),
        options.get("output"),
        binary,
    )


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
        connections: how many requests may be under way at once.
        patience: how often and how long to try again.
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
    meters: Meters = field(init=False, repr=False, default_factory=Meters)
    _parts: _Address = field(init=False, repr=False)
    _client: httpx2.Client = field(init=False, repr=False)
    _deadline: Deadline = field(init=False, repr=False)
    _pace: Pace = field(init=False, repr=False)
    _about: _About = field(init=False, repr=False)
    _outputs: int | None = field(init=False, repr=False, default=None)
    _heard: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        self._parts = _parse_address(self.address)
        for name, value in (("rate", self.rate), ("timeout", self.timeout)):
            if value is not None and not (value > 0 and np.isfinite(value)):
                raise InvalidInput(f"a {name} is a finite number > 0; got {value}.")
        self._pace = Pace(self.rate)
        self._client = httpx2.Client(
            headers={"Accept-Encoding": "identity", "User-Agent": "keyhole"}
            | _write_bearer_header(self.token),
            timeout=httpx2.Timeout(self.timeout, connect=min(self.timeout, 10.0)),
            limits=httpx2.Limits(
                max_connections=self.connections, max_keepalive_connections=self.connections
            ),
            trust_env=not self._parts.nearby,
            verify=(
                True
                if self._parts.url.startswith("https:")
                else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            ),
        )
        self._deadline = hold_to_deadline(self._client)
        weakref.finalize(self, self._client.close)
        self._about = self._discover()
        self._outputs = self._about.outputs

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
        return Imperfection.cast(_NARROW.get(self._about.input_type, "f64")).combined(
            Imperfection.cast(_NARROW.get(self._about.output_type, "f64"))
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch, in as many requests as its size needs."""
        if len(X) == 0:
            return np.zeros((0, self._outputs or 1))
        bytes_each = X.shape[1] * X.shape[2] * (8 if self._about.binary else _JSON_BYTES)
        size = max(1, self.request_bytes // bytes_each)
        asking = Asking(
            send=self._send,
            size=size if self.rate is None else max(1, min(size, int(self.rate))),
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
        body, headers = wire.write_question(
            X, about.input, about.input_type, binary=about.binary, wanted=about.output
        )
        status, said, received = self._request("POST", f"{self._parts.url}/infer", body, headers)
        if status != 200:
            raise self._refusal(status, said, received)
        try:
            message, behind = wire.open_message(received, said, wire.Reply)
            numbers = wire.numbers_of(message.outputs, about.output, behind)
        except InvalidInput as error:
            raise TargetFailed(
                f"{self._parts.url} answered something else than the V2 protocol: {error}"
            ) from error
        answers = self._rows(numbers, len(X))
        self._outputs, self._heard = answers.shape[1], True
        return answers

    def _rows(self, numbers: Any, batch: int) -> Matrix:
        """Numbers as rows: they are counted, since servers disagree about the shape of one number
        per sequence.
        """
        if len(numbers) == 0 or len(numbers) % batch:
            problem = BadAnswer if self._heard else InvalidInput
            raise problem(
                f"{self._parts.url} answered {len(numbers)} numbers to a batch of {batch}"
                " sequences."
            )
        return check_answers(numbers.reshape(batch, -1), batch=batch, outputs=self._outputs)

    def _refusal(self, status: int, said: Any, received: bytes) -> Exception:
        """What a status other than 200 means: to be tried again, to be split, or final."""
        reason = _read_refusal(received)
        sentence = f"{self._parts.url} answered {status}{reason}."
        if status in _BUSY:
            return Missed(
                sentence,
                answered=status != 429,
                again=True,
                after=_parse_retry_after(said.get("Retry-After")),
            )
        if status == 401 or (status == 403 and not reason):
            sentence = f"{sentence} A token is taken from the environment variable KEYHOLE_TOKEN."
        if status in (400, 422) and not self._heard:
            return InvalidInput(
                f"{sentence} Is width {self.width} right, and may sequences have any length?"
            )
        if status == 422:
            return BadAnswer(sentence)
        return Missed(
            sentence, answered=not 400 <= status < 500, again=False, too_large=status == 413
        )

    def _request(
        self, method: str, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, Any, bytes]:
        """One exchange: status, headers, body.

        Raises:
            Missed: nothing, or not all of it, came back.
        """
        asked = self._client.stream(method, url, content=body, headers=headers)
        try:
            with self._deadline.within(self.timeout), asked as response:
                return response.status_code, response.headers, _read_body(response)
        except _CERTAINLY_NOT as error:
            raise Missed(_explain_unreachable(url, error), answered=False, again=True) from error
        except httpx2.TransportError as error:
            raise Missed(
                f"{url} {_explain_break(error, self.timeout)}.", answered=True, again=True
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise TargetFailed(f"{url} cannot be asked: {error}.") from error

    def _discover(self) -> _About:
        try:
            metadata, server = (
                self._get(self._parts.url, wire.Metadata),
                self._get(self._parts.server, wire.Service),
            )
        except BaseException:
            self._client.close()
            raise
        if metadata is None:
            raise InvalidInput(
                f"there is no model at {self._parts.url}. Is its name {self._parts.name!r}?"
            )
        listed = server is not None and "binary_tensor_data" in server.extensions
        binary = self._parts.binary if self._parts.binary is not None else listed
        return _About.of(metadata, self._parts, binary, self.size, self.count)

    def _get(self, url: str, kind: type[wire.T]) -> wire.T | None:
        """What is at an address; None where there is nothing."""
        status, said, body = self._fetched(url, 1)
        if status in (401, 403):
            raise TargetFailed(str(self._refusal(status, said, body)))
        if status != 200:
            return None
        try:
            return wire.parse_message(body, kind)
        except InvalidInput as error:
            raise InvalidInput(
                f"{url} does not speak the V2 protocol of model servers: {error}"
            ) from error

    def _fetched(self, url: str, tries: int) -> tuple[int, Any, bytes]:
        try:
            status, said, body = self._request("GET", url, b"", {})
            if status in _BUSY:
                raise self._refusal(status, said, body)
            return status, said, body
        except Missed as missed:
            wait = self.patience.wait(tries, missed) if tries < _FETCHES else None
            if wait is None:
                raise TargetFailed(str(missed)) from missed
        time.sleep(wait)
        return self._fetched(url, tries + 1)


@dataclass(frozen=True, slots=True)
class _About:
    """What is known of the model before it is asked."""

    width: int
    outputs: int | None
    input: str
    input_type: str
    output: str | None
    output_type: str
    binary: bool

    @classmethod
    def of(
        cls, told: wire.Metadata, parts: _Address, binary: bool, size: int | None, count: int | None
    ) -> _About:
        """What metadata and the caller say together.

        Raises:
            InvalidInput: they contradict each other, or the model is not one that can be asked
                sequences.
        """
        taken = _choose_tensor(told.inputs, parts.input, "input", parts.url)
        given = _choose_tensor(told.outputs, parts.output, "output", parts.url)
        width, outputs = _find_last_size(taken, 3), _find_last_size(given, 2)
        if size is not None and width not in (None, size):
            raise InvalidInput(f"{parts.url} has tokens of width {width}; --width says {size}.")
        if count is not None and outputs not in (None, count):
            raise InvalidInput(f"{parts.url} answers {outputs} numbers; --outputs says {count}.")
        width = size if width is None else width
        if width is None or width < 1:
            raise InvalidInput(f"{parts.url} does not say how wide its tokens are. Give --width.")
        input_type = "FP64" if taken is None else taken.datatype
        if input_type not in wire.FLOATS:
            raise InvalidInput(
                f"{parts.url} takes {input_type}; keyhole asks vectors of {', '.join(wire.FLOATS)}."
            )
        return cls(
            width,
            count if outputs is None else outputs,
            parts.input or ("input" if taken is None else taken.name),
            input_type,
            parts.output or (None if given is None else given.name),
            "FP64" if given is None else given.datatype,
            binary,
        )


def _choose_tensor(
    tensors: list[wire.Tensor], name: str | None, what: str, url: str
) -> wire.Tensor | None:
    """The tensor that is meant; None where the server lists none."""
    fitting = [tensor for tensor in tensors if name in (None, tensor.name)]
    if len(fitting) == 1 or not tensors:
        return fitting[0] if fitting else None
    names = ", ".join(tensor.name for tensor in tensors)[:200]
    raise InvalidInput(f"{url} has the {what}s {names}: name one of them with ?{what}=NAME.")


def _find_last_size(tensor: wire.Tensor | None, axes: int) -> int | None:
    """Size of the last axis, where it is told."""
    if tensor is None or not tensor.shape or (axes == 2 and len(tensor.shape) == 1):
        return None
    if len(tensor.shape) != axes:
        wanted = "(batch, length, width) in" if axes == 3 else "(batch, outputs) out"
        raise InvalidInput(f"{tensor.name} has shape {tensor.shape}; keyhole needs {wanted}.")
    return tensor.shape[-1] if tensor.shape[-1] > 0 else None


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
    text = "".join(c if c.isprintable() else " " for c in told[:300]).strip()
    return f": {text.rstrip('.')}" if text else ""


def _parse_retry_after(text: str | None) -> float | None:
    """The wait a Retry-After header asks for, in seconds or until a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
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
