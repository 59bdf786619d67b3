"""Attention layers of a torch model, found by the names of their projections, as a formula."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.torch_module import torch

# Names that transformers, fairseq, diffusers and others give the three projections.
_TRIPLES = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
)
_BEHIND = ("o_proj", "out_proj", "out_lin", "to_out.0", "to_out", "wo", "dense")
_NEXT_TO = ("output.dense", "output")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
# Names in a sentence; a model has thousands.
_SHOWN = 12


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """An attention layer found in a model.

    Args:
        name: the way to it.
        module: what holds the projections, and takes tokens when the model runs.
        project: queries, keys and values of tokens.
        output: the projection behind the heads; None where there is none.
        width: size of a token.
        rows: sizes of queries and of keys, all heads together.
        heads: their number; None where nothing says.
    """

    name: str
    module: Any
    project: tuple[Any, Any, Any]
    output: Any
    width: int
    rows: tuple[int, int]
    heads: int | None

    @property
    def fused(self) -> bool:
        """Whether it is torch's own layer, whose heads cannot be hooked."""
        return isinstance(self.module, torch.nn.MultiheadAttention)

    @property
    def batch_first(self) -> bool:
        """Whether the module takes (batch, length, width) rather than (length, batch, width)."""
        return not self.fused or self.module.batch_first

    @property
    def head_size(self) -> int:
        """Numbers of one head.

        Raises:
            InvalidInput: the number of heads is not known, or does not divide the projections.
        """
        if self.heads is None:
            raise InvalidInput(
                f"{self.name or 'the layer'} does not say how many heads it has: give heads=."
            )
        size, rest = divmod(self.rows[0], self.heads)
        # Fewer keys than queries: groups of heads share them, which must divide evenly.
        if rest or not size or self.rows[1] % size or self.heads % (self.rows[1] // size):
            raise InvalidInput(
                f"{self.name or 'the layer'} has {self.rows[0]} rows of queries and {self.rows[1]}"
                f" of keys, which are not those of {self.heads} heads. Give heads=."
            )
        return size

    @property
    def beside(self) -> bool:
        """Whether the output projection is no part of the module, which answers without it."""
        inside = any(part is self.output for part in self.module.modules())
        return self.output is not None and not inside

    @property
    def end(self) -> Any:
        """Whose output is the layer's: the module's, or its projection's before a norm."""
        # A module with a norm of its own answers behind it, and the heads' sum is the projection's.
        children = [name.lower() for name, _ in self.module.named_children()]
        normed = any(name.startswith("layernorm") for name in children)
        return self.output if self.output is not None and (self.beside or normed) else self.module

    def queries(self, tokens: Any) -> Any:
        """Queries of all heads at the last token, (batch, heads, size)."""
        return self.project[0](tokens[:, -1]).unflatten(-1, (-1, self.head_size))

    def shared(self, projection: Any, tokens: Any) -> Any:
        """Keys or values, (batch, length, heads, size); heads may share them in groups."""
        several = self.rows[0] // self.rows[1]
        split = projection(tokens).unflatten(-1, (-1, self.head_size))
        return split.repeat_interleave(several, dim=2)

    def scores(self, tokens: Any) -> Any:
        """Scores of all heads at the last token, (batch, heads, length)."""
        keys = self.shared(self.project[1], tokens)
        return torch.einsum("bhe,bnhe->bhn", self.queries(tokens), keys) / self.head_size**0.5

    def mixed(self, tokens: Any) -> Any:
        """Answers of all heads at the last token, (batch, heads, size)."""
        shares = torch.softmax(self.scores(tokens), dim=-1)
        return torch.einsum("bhn,bnhe->bhe", shares, self.shared(self.project[2], tokens))

    def answer(self, tokens: Any) -> Any:
        """The heads side by side, behind the output projection where there is one."""
        joined = self.mixed(tokens).flatten(1)
        return joined if self.output is None else self.output(joined)


def part_of(model: Any, name: str) -> Any:
    """The module of that name in a model.

    Raises:
        InvalidInput: there is none.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"a torch.nn.Module is needed; got a {type(model).__name__}.")
    parts = dict(model.named_modules())
    if name not in parts:
        start = name.split(".", maxsplit=1)[0]
        near = [part for part in parts if part.startswith(start)] or list(parts)[1:]
        raise InvalidInput(f"the model has no {name!r}; it has {listed(near)}.")
    return parts[name]


def listed(names: list[str]) -> str:
    """Names in a row, the first of them where they are many."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "no parts"


def only_layer(model: Any, name: str, heads: int | None) -> Attention:
    """The attention layer of that name, the only one at or below it."""
    below = part_of(model, name)
    layers = list(_find_layers(below, name, model))
    if not layers:
        raise InvalidInput(
            f"no attention layer was found at {name!r}: a torch.nn.MultiheadAttention, or"
            f" projections such as {' or '.join('/'.join(t) for t in _TRIPLES[:2])}."
            " keyhole.torch_block asks any part."
        )
    if len(layers) > 1:
        raise InvalidInput(
            f"name one of the {len(layers)} attention layers: {listed([a.name for a in layers])}."
        )
    if heads is not None and heads < 1:
        raise InvalidInput(f"heads is a whole number >= 1; got {heads}.")
    return layers[0] if heads is None else replace(layers[0], heads=heads)


def _find_layers(below: Any, prefix: str, model: Any) -> Generator[Attention]:
    """Attention layers at or below a module; an output projection may stand beside."""
    for name, module in below.named_modules(prefix=prefix):
        if isinstance(module, torch.nn.MultiheadAttention):
            yield _read_fused_layer(name, module)
        for triple in _TRIPLES:
            parts = [getattr(module, part, None) for part in triple]
            if all(_is_matrix(part) for part in parts):
                yield _read_projections(name, module, parts, model)


def _is_matrix(part: Any) -> bool:
    weight = getattr(part, "weight", None)
    return isinstance(part, torch.nn.Module) and getattr(weight, "ndim", 0) == 2


def _read_fused_layer(name: str, module: Any) -> Attention:
    """The layer of torch, its projections cut from its weights."""
    E = module.embed_dim
    bias = module.in_proj_bias
    if (module.kdim, module.vdim) != (E, E):
        raise InvalidInput(
            f"{name or 'the layer'} takes keys and values of other widths: it is no self-attention."
        )
    weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    # torch keeps the three stacked where their widths are equal.
    weights = weights if module.in_proj_weight is None else module.in_proj_weight.chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)

    def projection(i: int) -> Callable[[Any], Any]:
        return lambda tokens: torch.nn.functional.linear(tokens, weights[i], biases[i])

    project = (projection(0), projection(1), projection(2))
    return Attention(name, module, project, module.out_proj, E, (E, E), module.num_heads)


def _read_projections(name: str, module: Any, parts: list[Any], model: Any) -> Attention:
    above = _find_parent(model, name)
    places = [(module, path) for path in _BEHIND] + [(above, path) for path in _NEXT_TO]
    found = (_find_linear(place, path) for place, path in places)
    output = next((part for part in found if part is not None), None)
    holders = (module, above, getattr(model, "config", None))
    said = [getattr(holder, key, None) for holder in holders for key in _HEADS]
    heads = next((count for count in said if isinstance(count, int)), None)
    query, key, _ = (part.weight.shape for part in parts)
    return Attention(
        name, module, (parts[0], parts[1], parts[2]), output, query[1], (query[0], key[0]), heads
    )


def _find_parent(model: Any, name: str) -> Any:
    return model.get_submodule(name.rpartition(".")[0]) if name else None


def _find_linear(place: Any, path: str) -> Any:
    """The linear module at a path below another, where there is one."""
    for part in path.split("."):
        place = getattr(place, part, None)
    if isinstance(place, torch.nn.Module) and getattr(place, "weight", None) is not None:
        return place
    return None
