"""A torch module or callable as an oracle; weights of torch files without running code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from keyhole._arrays import FORMATS, Answers, Array, Sequences
from keyhole.errors import InvalidInput
from keyhole.oracles.base import Imperfection
from keyhole.oracles.local import Local

try:
    import torch as _torch
except ImportError as missing:
    raise ImportError(
        "asking a torch module needs torch: pip install 'keyhole[torch]'."
    ) from missing

torch: Any = _torch  # its types are partial

_NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
# Names under which modules and their configurations keep the width, nearest first.
_SIZES = ("width", "embed_dim", "hidden_size", "d_model", "in_features")


@dataclass(slots=True)
class TorchModule:
    """A torch module or callable that maps (batch, length, width) to (batch,) or (batch, outputs).

    Questions are cast to the type of the weights and sent to their device; answers come back in
    float64. Modules are asked in evaluation mode without gradients, and left in the mode they were
    in. Weights in single precision or less are declared: the best verdict is then WITHIN_TOLERANCE;
    `module.double()` computes in float64 from the same ones.

    Args:
        module: what is asked.
        size: width of a token; read from the module where absent.
        count: numbers per answer; the module's `outputs` where absent, else its first answer.
        dtype: f64, f32, f16 or bf16, the type of questions; that of the weights where absent.
        within: the module whose weights and mode count, where `module` is only a callable around
            it.
        numbers: how many numbers a call may hold at once, the scores of one head counted; larger
            batches are split.
        last: read an answer (batch, length, outputs) at its last position instead of refusing it;
            `reads_last` says whether one was.
        inside: what arithmetic narrower than the weights leaves in answers, where there is any.
    """

    module: Callable[[Any], Any]
    size: int | None = None
    count: int | None = None
    dtype: str | None = None
    within: Any = None
    numbers: int = 1 << 24
    last: bool = False
    inside: Imperfection = Imperfection()  # noqa: RUF009
    reads_last: bool = field(init=False, default=False)
    inner: Local = field(init=False, repr=False)
    _format: str = field(init=False)
    _asked: Any = field(init=False, repr=False)
    _device: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.module, type):
            raise InvalidInput(
                f"{self.module.__name__} is a class; an instance of it can be asked."
            )
        self.within = self.module if self.within is None else self.within
        if self.dtype is not None and self.dtype not in _DTYPES:
            raise InvalidInput(
                f"the type of questions is one of {', '.join(_DTYPES)}; got {self.dtype!r}."
            )
        weights = _list_weights(self.within)
        own = next((w.dtype for w in weights), torch.float64)
        self._asked = _DTYPES[self.dtype] if self.dtype else own
        self._format = _find_narrowest_format([self._asked, *(w.dtype for w in weights)])
        self._device = next((w.device for w in weights), torch.device("cpu"))
        # Such a module answers shapes only.
        if self._device.type == "meta":
            raise InvalidInput(
                "the weights of the module are on the device `meta`, which holds none: load them"
                " first."
            )
        width = self.size if self.size is not None else find_width(self.within)
        count = self.count if self.count is not None else getattr(self.module, "outputs", None)
        self.inner = Local(self._answer, width, count)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer; None before the first answer where nobody said."""
        return self.inner.outputs

    @property
    def imperfection(self) -> Imperfection:
        """Rounding of the narrowest type among questions and weights, or inside."""
        return Imperfection.cast(self._format).combined(self.inside)

    def ask(self, X: Sequences) -> Answers:
        """Run the module on the batch, in as many calls as memory asks for."""
        return self.inner.ask(X)

    def _answer(self, X: Any) -> Any:
        if len(X) == 0 and self.outputs is not None:
            return np.zeros((0, self.outputs))
        _, length, width = X.shape
        # Scores are length x length numbers a sequence, beside its tokens.
        step = max(1, self.numbers // max(1, length * (length + width)))
        with hold_evaluation_mode(self.within), torch.no_grad():
            starts = range(0, max(1, len(X)), step)
            return np.concatenate([self._ask_part(X[i : i + step]) for i in starts])

    def _ask_part(self, X: Any) -> Any:
        """Answers to a part of a batch; halved as long as memory does not suffice."""
        try:
            return self._call_module(X)
        except (RuntimeError, MemoryError) as error:
            # Only memory is mended by asking less at a time.
            if len(X) < 2 or not _is_about_memory(error):
                raise
        half = len(X) // 2
        return np.concatenate([self._ask_part(X[:half]), self._ask_part(X[half:])])

    def _call_module(self, X: Any) -> Any:
        numbers = torch.from_numpy(np.array(X, dtype=np.float64, order="C"))
        tokens = numbers.to(self._device, self._asked)
        answers = tensor_of(self.module(tokens))
        if answers.ndim == 3 and self.last:
            self.reads_last = True
            answers = answers[:, -1]
        if answers.ndim == 3:
            raise InvalidInput(
                f"the module answers a sequence with a sequence, shape {tuple(answers.shape)};"
                " keyhole.torch_block and keyhole.torch_layer read its last token."
            )
        if answers.dtype not in _NAMES and (answers.is_complex() or answers.is_floating_point()):
            raise InvalidInput(
                f"the module answers in {answers.dtype}; keyhole reads"
                f" {', '.join(map(str, _NAMES))}."
            )
        if answers.ndim == 0:
            raise InvalidInput(
                "the module answers a whole batch with one number; an answer per sequence is"
                " needed."
            )
        # An answer coarser than what was declared would be fitted as if it were exact.
        if answers.dtype in _NAMES and _is_coarser(_NAMES[answers.dtype], self._format):
            name = _NAMES[answers.dtype]
            raise InvalidInput(
                f"the module answers in {name}, but its weights and questions are {self._format}: "
                f"give dtype='{name}', or within=MODULE where a callable hides one."
            )
        return answers.detach().to("cpu", torch.float64).numpy()


def tensor_of(answer: Any) -> Any:
    """The tensor in what a module answered: itself, or the first of several."""
    first = answer
    kind = answer.__class__
    if issubclass(kind, tuple | list) and len(answer):
        first = answer[0]
    if isinstance(first, torch.Tensor):
        return first
    there = f", with {', '.join(map(str, answer))[:120]}" if issubclass(kind, Mapping) else ""
    raise InvalidInput(f"the module must answer with a tensor; got a {kind.__name__}{there}.")


@contextmanager
def hold_evaluation_mode(module: Any) -> Generator[None]:
    """The module and all in it in evaluation mode while inside, and as before afterwards."""
    if isinstance(module, torch.nn.Module):
        training = [part for part in module.modules() if part.training]
    else:
        training = []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def find_width(module: Any) -> int | None:
    """The size of a token, from what modules usually say of themselves; None where nothing does."""
    parts = [module, getattr(module, "config", None)]
    parts += list(module.modules()) if isinstance(module, torch.nn.Module) else []
    sizes = (getattr(part, name, None) for part in parts for name in _SIZES)
    return next((size for size in sizes if isinstance(size, int) and size >= 1), None)


def _list_weights(module: Any) -> list[Any]:
    """Parameters and buffers that hold fractions."""
    if not isinstance(module, torch.nn.Module):
        return []
    return [w for w in [*module.parameters(), *module.buffers()] if w.is_floating_point()]


def _find_narrowest_format(dtypes: list[Any]) -> str:
    unknown = [dtype for dtype in dtypes if dtype not in _NAMES]
    if unknown:
        raise InvalidInput(
            f"the module has weights of {unknown[0]}; keyhole asks {', '.join(map(str, _NAMES))}."
        )
    return max((_NAMES[dtype] for dtype in dtypes), key=lambda name: FORMATS[name].roundoff)


def _is_coarser(name: str, other: str) -> bool:
    return FORMATS[name].roundoff > FORMATS[other].roundoff


def _is_about_memory(error: Exception) -> bool:
    # On a CPU torch raises a plain RuntimeError about its allocator.
    said = str(error).lower()
    told = "memory" in said and "alloc" in said
    return told or isinstance(error, MemoryError | torch.OutOfMemoryError)


def torch_weights(path: str | Path | IO[bytes]) -> dict[str, Array]:
    """All tensors of fractions in a torch file (.pt, .pth, .bin), in float64, by name.

    torch's files are pickles, which can run anything when opened. They are opened with
    `weights_only=True`, which takes tensors and plain containers and nothing else.

    Args:
        path: the file, or one already opened for reading bytes.

    Raises:
        InvalidInput: there is no such file, it is damaged, or it holds more than tensors.
    """
    try:
        with warnings.catch_warnings():
            # Warnings about the protocol of a pickle that is refused the next moment.
            warnings.simplefilter("ignore")
            held = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error}).") from error
    # What a damaged file raises in torch depends on where it is damaged.
    except Exception as error:
        raise InvalidInput(
            f"{path} holds more than tensors, or torch did not save it ({str(error)[:160]!r})."
            " Opening it could run code, so it is not opened; whoever trusts it can save its"
            " tensors as .safetensors."
        ) from error
    return {
        name: w.detach().to_dense().to(torch.float64).numpy() for name, w in _walk_tensors(held, "")
    }


def _walk_tensors(held: Any, name: str) -> Generator[tuple[str, Any]]:
    """Tensors in nested containers, with the way to each."""
    if isinstance(held, torch.Tensor):
        if held.is_floating_point():
            yield name, held
    # The class is asked, not the object, which could lie about it.
    elif issubclass(type(held), Mapping | list | tuple):
        for key, value in held.items() if issubclass(type(held), Mapping) else enumerate(held):
            yield from _walk_tensors(value, f"{name}.{key}" if name else str(key))
