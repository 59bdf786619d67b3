"""An ONNX file as an oracle, run by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Answers, Sequences
from keyhole._files import find_file
from keyhole.errors import InvalidInput
from keyhole.oracles.base import Imperfection
from keyhole.oracles.local import Local

try:
    import onnxruntime
except ImportError as missing:
    raise ImportError(
        "asking an ONNX file needs onnxruntime: pip install 'keyhole[onnx]'."
    ) from missing

_DTYPES = {"tensor(double)": np.float64, "tensor(float)": np.float32, "tensor(float16)": np.float16}
_NARROW = {"tensor(float)": "f32", "tensor(float16)": "f16", "tensor(bfloat16)": "bf16"}
# The runtime warns of its own optimisations, and repeats names from the file as they are.
_FATAL_ONLY = 4


@dataclass(slots=True)
class OnnxFile:
    """A model in an ONNX file that maps (batch, length, width) to (batch,) or (batch, outputs).

    One that answers a sequence with a sequence, (batch, length, outputs), is read at its last
    position; `reads_last` says so. The datatype is read from the file; a float32 model is declared
    as such. Batch and length must be free.

    Args:
        path: the file.
        size: width of a token, where the file leaves it free.
        count: numbers per answer, where the file leaves it free.
    """

    path: str | Path
    size: int | None = None
    count: int | None = None
    inner: Local = field(init=False, repr=False)
    _taken: Any = field(init=False, repr=False)
    _given: Any = field(init=False, repr=False)
    _session: Any = field(init=False, repr=False)
    _sequences: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        self._session = open_session(Path(self.path))
        self._taken = require_one(
            list_ends(self._session.get_inputs, self.path), "input", self.path
        )
        self._given = require_one(
            list_ends(self._session.get_outputs, self.path), "output", self.path
        )
        if self._taken.type not in _DTYPES:
            raise InvalidInput(
                f"{self.path} takes {self._taken.type}; keyhole asks {', '.join(_DTYPES)}."
            )
        batch, length, width = _read_axes(self._taken, self.path)
        # A free axis is a word in ONNX, a fixed one a number.
        if isinstance(batch, int) or isinstance(length, int):
            raise InvalidInput(
                f"{self.path} takes shape {self._taken.shape} only: export it with dynamic batch"
                " and length."
            )
        if self.size is not None and isinstance(width, int) and width != self.size:
            raise InvalidInput(
                f"{self.path} has tokens of width {width}; --width says {self.size}."
            )
        self._sequences = len(self._given.shape or ()) == 3
        outputs = self._given.shape[-1] if len(self._given.shape or ()) in (2, 3) else None
        known = outputs if isinstance(outputs, int) else self.count
        self.inner = Local(self._answer, width if isinstance(width, int) else self.size, known)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None before the first answer where nobody said."""
        return self.inner.outputs

    @property
    def reads_last(self) -> bool:
        """Whether answers are sequences, of which the last position is read."""
        return self._sequences

    @property
    def imperfection(self) -> Imperfection:
        """Rounding of the datatypes the model takes and answers in."""
        taken, given = (
            Imperfection.cast(_NARROW.get(end.type, "f64")) for end in (self._taken, self._given)
        )
        return taken.combined(given)

    def ask(self, X: Sequences) -> Answers:
        """Run the model once on the whole batch."""
        return self.inner.ask(X)

    def _answer(self, X: Any) -> Any:
        numbers = np.ascontiguousarray(X, dtype=_DTYPES[self._taken.type])
        answers = self._session.run([self._given.name], {self._taken.name: numbers})[0]
        # A graph that was cut out of another need not say how many axes its output has.
        self._sequences = self._sequences or answers.ndim == 3
        return answers[:, -1] if self._sequences else answers


def open_session(path: Path) -> Any:
    """The file, loaded by onnxruntime.

    Raises:
        InvalidInput: there is no such file, or it holds no model.
    """
    find_file(path, f"no ONNX file at {path}. Check the path.")
    return load_session(str(path), str(path))


def load_session(model: str | bytes, name: str) -> Any:
    """A model, by its path or as the bytes of a file, loaded by onnxruntime.

    Raises:
        InvalidInput: onnxruntime cannot run it.
    """
    runtime: Any = onnxruntime
    options = runtime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    try:
        # One provider, or answers would depend on the machine; falling back is told by print.
        return runtime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as error:
        raise InvalidInput(f"{name} cannot be loaded as ONNX: {str(error)[:300]}") from error


def list_ends(listing: Callable[[], list[Any]], name: str | Path) -> list[Any]:
    """What a model takes or gives: `listing` is get_inputs or get_outputs of its session.

    Raises:
        InvalidInput: a name in it is no text.
    """
    try:
        ends = listing()
        for end in ends:
            _ = (end.name, end.shape, end.type)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{name} cannot be loaded as ONNX: a name in it is no text ({error})."
        ) from error
    return ends


def require_one(ends: list[Any], what: str, path: str | Path) -> Any:
    """The only input or output of a model.

    Raises:
        InvalidInput: there are several.
    """
    if len(ends) != 1:
        names = ", ".join(end.name for end in ends)
        raise InvalidInput(
            f"{path} has {len(ends)} {what}s ({names}); keyhole asks models with one."
        )
    return ends[0]


def _read_axes(taken: Any, path: str | Path) -> Any:
    if len(taken.shape or ()) != 3:
        raise InvalidInput(
            f"{path} takes shape {taken.shape}; keyhole asks (batch, length, width)."
        )
    return taken.shape
