"""A part of a torch model asked inside it: hooks put the question in, and catch the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.torch_module import tensor_of, torch

Around = Callable[[int, int], Any]


# Not an Exception: models that catch those would swallow it.
class _Caught(BaseException):
    """The output is there; the rest of the model need not run."""


@dataclass(frozen=True, slots=True)
class Hooked:
    """Runs a model with the question as one module's input, and catches another's output.

    Args:
        around: runs the model.
        enter: its input is replaced.
        leave: its output is caught.
        name: of the layer, for sentences.
        before: catch the input of `leave` instead.
        batch_first: whether tokens come as (batch, length, width).
    """

    around: Around
    enter: Any
    leave: Any
    name: str
    before: bool = False
    batch_first: bool = True

    def __call__(self, tokens: Any) -> Any:
        """What leaves when the tokens enter.

        Raises:
            InvalidInput: running the model does not bring these tokens to the module.
        """
        fed = tokens if self.batch_first else tokens.transpose(0, 1)
        caught = list[Any]()

        def replaced(module: Any, args: Any, kwargs: Any) -> Any:
            old = self._find_input(args, kwargs, fed)
            self._refuse_other_tokens(module, old, args, kwargs)
            named = {k: fed if a is old else a for k, a in kwargs.items()}
            return tuple(fed if a is old else a for a in args), named

        def catch(module: Any, args: Any, answer: Any = None) -> Any:
            caught.append(tensor_of(args if self.before else answer))
            raise _Caught

        if self.before:
            hook = self.leave.register_forward_pre_hook
        else:
            hook = self.leave.register_forward_hook
        handles = [self.enter.register_forward_pre_hook(replaced, with_kwargs=True), hook(catch)]
        try:
            self.around(len(tokens), tokens.shape[1])
        except _Caught:
            return caught[0] if self.batch_first else caught[0].transpose(0, 1)
        finally:
            # A hook left behind would answer the model's next caller.
            for handle in handles:
                handle.remove()
        raise InvalidInput(
            f"running the model did not come through {self.name or 'the layer'}; see around=."
        )

    def _find_input(self, args: Any, kwargs: Any, fed: Any) -> Any:
        """The tensor of tokens among what the module is called with."""
        tensors = [
            a for a in [*args, *kwargs.values()] if isinstance(a, torch.Tensor) and a.ndim == 3
        ]
        if not tensors or tensors[0].shape != fed.shape:
            got = tuple(tensors[0].shape) if tensors else "no sequences"
            raise InvalidInput(
                f"running the model gave {self.name or 'the layer'} {got} where the question is"
                f" {tuple(fed.shape)}: around= must run it on that many sequences of that length."
            )
        return tensors[0]

    def _refuse_other_tokens(self, module: Any, old: Any, args: Any, kwargs: Any) -> None:
        """Refuse torch's layer where queries, keys and values come from different tokens."""
        taken = [*args[:3], *(kwargs.get(name, old) for name in ("query", "key", "value"))]
        if isinstance(module, torch.nn.MultiheadAttention) and any(one is not old for one in taken):
            raise InvalidInput(
                f"the model gives {self.name or 'the layer'} other tokens for queries than for keys"
                " or values: it is no self-attention there. Leave out around= to ask it by itself,"
                " or ask the block it is in."
            )
