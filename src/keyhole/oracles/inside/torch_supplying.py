"""One attention layer of a torch model, called by itself with what it needs besides tokens.

Masks are left out: the last position sees every token under a causal one, and nothing is padded.
Positions are those of the model: its own rotary tables, its table of relative positions, its
slopes. A layer that adds a residual of its own is given zeros for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from keyhole.errors import InvalidInput, KeyholeError
from keyhole.oracles.inside.described import Told
from keyhole.oracles.inside.torch_wiring import list_arguments
from keyhole.oracles.torch_agreement import list_runs
from keyhole.oracles.torch_found import Attention, reach_module
from keyhole.oracles.torch_hooks import Hooked
from keyhole.oracles.torch_module import hold_evaluation_mode, tensor_of, torch

Supply = Callable[["Supplied", Any], Any]


@dataclass(frozen=True, eq=False, slots=True)
class Supplied:
    """A layer called with tokens, and with whatever else its arguments ask for.

    Args:
        model: the model the layer is in.
        layer: the layer.
    """

    model: Any
    layer: Attention

    def __call__(self, tokens: Any) -> Any:
        """Answers at the last position, (batch, outputs)."""
        layer = self.layer
        if layer.fused:
            return self._call_own_layer(tokens)
        # A norm or a residual behind the projection is no part of the layer: its output is caught.
        if layer.end is not layer.module and not layer.beside:
            hooked = Hooked(
                lambda batch, length: self._call(tokens), layer.module, layer.end, name=layer.name
            )
            return take_last_position(hooked(tokens), layer, len(tokens))
        mixed = take_last_position(tensor_of(self._call(tokens)), layer, len(tokens))
        return layer.output(mixed) if layer.beside else mixed

    def _call(self, tokens: Any) -> Any:
        return self.layer.module(tokens, **self._supply_arguments(tokens))

    def _call_own_layer(self, tokens: Any) -> Any:
        """The layer of torch itself, which takes queries, keys and values apart."""
        first = self.layer.batch_first
        across = tokens if first else tokens.transpose(0, 1)
        answers = self.layer.module(across, across, across, need_weights=False)[0]
        return answers[:, -1] if first else answers[-1]

    def _supply_arguments(self, tokens: Any) -> Told:
        """Values of the arguments besides tokens that the layer needs, by name."""
        supplied: Any = {}
        for name, argument in _list_further_arguments(self.layer.module):
            needed = argument.default is Parameter.empty
            value = _SUPPLIES[name](self, tokens) if name in _SUPPLIES else None
            # What is found is given, since `None` may stand for other positions than the model's.
            if value is not None or (needed and name in _EMPTY):
                supplied[name] = value
        return supplied

    def list_places(self) -> Iterator[Any]:
        """The layer's module and all around it, the nearest first."""
        parts = self.layer.name.split(".") if self.layer.name else []
        for count in range(len(parts), -1, -1):
            yield reach_module(self.model, ".".join(parts[:count]))


def _list_further_arguments(module: Any) -> list[tuple[str, Parameter]]:
    """Arguments after the first, which is the tokens; those of any name are left out."""
    listed = list(list_arguments(module).items())[1:]
    gathering = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [(name, argument) for name, argument in listed if argument.kind not in gathering]


def take_last_position(answers: Any, layer: Attention, batch: int) -> Any:
    """The last row of every sequence; one row each where the layer reads a position by itself.

    Raises:
        InvalidInput: answers are neither.
    """
    if answers.ndim == 2 and len(answers) == batch:
        return answers
    if answers.ndim != 3:
        raise InvalidInput(
            f"{layer.name or 'the layer'} answers shape {tuple(answers.shape)} to {batch}"
            " sequences, not (batch, length, outputs) or (batch, outputs)."
        )
    return answers[:, -1]


def _number_positions(call: Supplied, tokens: Any) -> Any:
    batch, length, _ = tokens.shape
    return torch.arange(length, device=tokens.device).expand(batch, length)


def _turn_positions(call: Supplied, tokens: Any) -> Any:
    """Cosines and sines, by the rotary embedding that stands nearest to the layer."""
    found = (getattr(place, "rotary_emb", None) for place in call.list_places())
    rotary = next((part for part in found if isinstance(part, torch.nn.Module)), None)
    return None if rotary is None else rotary(tokens, _number_positions(call, tokens))


def _tilt_positions(call: Supplied, tokens: Any) -> Any:
    """The slopes times positions, made by the model around the layer."""
    found = (getattr(place, "build_alibi_tensor", None) for place in call.list_places())
    build = next((make for make in found if make is not None), None)
    mask = torch.ones(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    return None if build is None else build(mask, call.layer.heads, tokens.dtype)


def _find_table_bias(call: Supplied, tokens: Any) -> Any:
    """The table of relative positions that a model keeps in its first layer for all of them."""
    module = call.layer.module
    # A layer with a table of its own looks positions up in it.
    if getattr(module, "has_relative_attention_bias", None) is not False:
        return None
    for place in call.list_places():
        for part in place.modules():
            if getattr(part, "has_relative_attention_bias", False):
                return part.compute_bias(tokens.shape[1], tokens.shape[1], device=tokens.device)
    return None


_SUPPLIES: dict[str, Supply] = {
    "position_ids": _number_positions,
    "position_embeddings": _turn_positions,
    "alibi": _tilt_positions,
    "position_bias": _find_table_bias,
    "residual": lambda call, tokens: torch.zeros_like(tokens),
}
# Needed by their place, but nothing has to stand there.
_EMPTY = ("attention_mask", "mask", "layer_past", "past_key_values", "past_key_value", "alibi")
_EMPTY += ("head_mask", "encoder_hidden_states", "encoder_attention_mask", "use_cache", "is_causal")


def find_layer_call(model: Any, layer: Attention) -> Callable[[Any], Any]:
    """How a layer is asked: by itself, else inside the nearest module around it that runs.

    Each way is tried on two sequences of three zeros; the first that answers is taken.

    Raises:
        InvalidInput: none of them works; with the arguments that were missing, and what to wrap.
    """
    ways = [Supplied(model, layer)]
    around = [] if layer.fused else list(list_runs(model, layer))
    hooked = [
        Hooked(run, layer.module, layer.end, name=layer.name) for run in around if not run.alone
    ]
    calls = [*ways, *(_read_last_of(way, layer) for way in hooked)]
    said = ""
    for call in calls:
        try:
            _try_call(call, model, layer)
            return call
        # Modules of others raise anything; the first complaint is the layer's own.
        except Exception as error:
            said = said or f"{type(error).__name__}: {error}".rstrip(".")
    raise InvalidInput(_explain_wrapping(layer, said))


def _read_last_of(way: Hooked, layer: Attention) -> Callable[[Any], Any]:
    return lambda tokens: take_last_position(way(tokens), layer, len(tokens))


def make_trial_tokens(layer: Attention) -> Any:
    """Two sequences of three zeros, of the type of a layer's weights."""
    like = next(layer.module.parameters())
    return torch.zeros(2, 3, layer.width, dtype=like.dtype, device=like.device)


def _try_call(call: Callable[[Any], Any], model: Any, layer: Attention) -> None:
    with hold_evaluation_mode(model), torch.no_grad():
        answers = call(make_trial_tokens(layer))
    if answers.ndim != 2 or len(answers) != 2:
        raise KeyholeError(f"it answers {tuple(answers.shape)} to two sequences")


def _explain_wrapping(layer: Attention, said: str) -> str:
    taken = ", ".join(list_arguments(layer.module)) or "what it does not tell"
    name = layer.name or "the layer"
    return (
        f"{name} cannot be asked by tokens alone ({said[:300]}): it takes {taken}. Wrap it in a"
        f" callable of your own on a tensor (batch, length, {layer.width}), which adds what it"
        f" needs and returns the last position, such as `def ask(tokens):"
        f" return model.get_submodule({layer.name!r})(tokens, ...)[0][:, -1]` with `ask.width ="
        f" {layer.width}`, and name it as TARGET: my_model:ask."
    )
