"""Whether a layer of torch computes in a narrower type than its weights are, seen by running it.

Many libraries compute a softmax, or tables of rotary positions, in float32 whatever the weights
are. Every operation of one run is watched: a fraction that is narrower than the tokens and goes
into one as wide as they are has left its rounding in the answer. One that ends in whole numbers,
as the buckets of a table do, has not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from keyhole._arrays import FORMATS
from keyhole.oracles.base import Imperfection
from keyhole.oracles.inside.torch_wiring import name_format
from keyhole.oracles.torch_module import hold_evaluation_mode, torch

# Not imported by its own name: without torch the sentence of `torch_module` must come first.
_Mode: Any = torch.utils._python_dispatch.TorchDispatchMode
# What is told of operations, by words in their names; the first that fits.
_PARTS = (("softmax", "its softmax"), ("cos", "its rotary tables"), ("sin", "its rotary tables"))
_PARTS += (("scaled_dot_product", "its attention"),)


class _Watch(_Mode):
    """Follows narrow fractions through the operations of a run.

    Args:
        wide: the type of the tokens.
    """

    def __init__(self, wide: str) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.wide = wide
        self.left: dict[str, set[str]] = {}  # operations behind what was widened, by format
        self._behind: dict[int, set[str]] = {}  # the same of narrow tensors, by their place
        self._held: list[Any] = []  # a place would be used again if its tensor were let go

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note where narrow numbers go."""
        given = func(*args, **(kwargs or {}))
        narrow = [t for t in _walk((args, kwargs)) if self._is_narrow(t)]
        names = {str(func)}.union(*(self._behind.get(id(t), set[str]()) for t in narrow))
        for tensor in _walk(given):
            if self._is_narrow(tensor):
                self._behind[id(tensor)] = self._behind.get(id(tensor), set[str]()) | names
                self._held.append(tensor)
            elif narrow and name_format(tensor) == self.wide:
                worst = max(narrow, key=lambda t: FORMATS[name_format(t)].roundoff)
                self.left.setdefault(name_format(worst), set()).update(names)
        return given

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Excepted from compiling, the first operation would load the compiler: two seconds.
        return False

    def _is_narrow(self, tensor: Any) -> bool:
        name = name_format(tensor)
        # A single number is a constant of the layer, and its rounding a part of the function.
        return name in FORMATS and tensor.ndim > 0 and _rounds_more(name, self.wide)


def _rounds_more(name: str, other: str) -> bool:
    return FORMATS[name].roundoff > FORMATS[other].roundoff


def _walk(held: Any) -> Iterable[Any]:
    """The tensors in what an operation takes or gives."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for part in held.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _walk(part)
    elif isinstance(held, tuple | list):
        for part in held:  # pyright: ignore[reportUnknownVariableType]
            yield from _walk(part)


@dataclass(frozen=True, slots=True)
class Narrow:
    """Arithmetic inside a layer that is narrower than its weights.

    Args:
        what: parts of the layer, in words.
        form: the type they are computed in.
        wide: the type of the weights.
    """

    what: str
    form: str
    wide: str

    @property
    def words(self) -> str:
        """For a list: what, and in which type."""
        return f"{self.what} in {self.form}"

    @property
    def imperfection(self) -> Imperfection:
        """What it leaves in answers."""
        cause = f"The module computes {self.words}, whatever its {self.wide} weights are."
        return Imperfection(roundoff=FORMATS[self.form].roundoff, cause=cause)


def watch_arithmetic(call: Callable[[Any], Any], model: Any, tokens: Any) -> Narrow | None:
    """The narrowest arithmetic inside a call that leaves its rounding in the answers.

    Args:
        call: what is run once.
        model: is held in evaluation mode.
        tokens: what it is run on.
    """
    wide = name_format(tokens)
    if wide not in FORMATS:
        return None
    watch = _Watch(wide)
    with hold_evaluation_mode(model), torch.no_grad(), _hold_uncompiled(), watch:
        call(tokens)
    worst = max(watch.left, key=lambda name: FORMATS[name].roundoff, default=None)
    if worst is None:
        return None
    parts = {words for word, words in _PARTS if any(word in name for name in watch.left[worst])}
    return Narrow(" and ".join(sorted(parts)) or "a part of its arithmetic", worst, wide)


def _hold_uncompiled() -> AbstractContextManager[Any]:
    """Compiled modules run as they were written; the compiler is not loaded for that."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
