"""Attention layers of a torch model, found by the names of their projections, as a formula."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.part_names import BEHIND, FUSED, GROUPS, HEADS, NEXT_TO, TRIPLES
from keyhole.oracles.torch_fused import build_projections, find_split
from keyhole.oracles.torch_module import torch

# A factor on scores; GPT-2's `scale_attn_weights` is a switch, and no number.
_SCALES = ("scaling", "inv_norm_factor", "softmax_scale", "scale")
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
        sources: the modules that hold the weights of the three projections.
        layout: where they are, in words.
        factor: what scores are multiplied by; None where nothing says, which is taken for one over
            the root of the size of a head.
    """

    name: str
    module: Any
    project: tuple[Any, Any, Any]
    output: Any
    width: int
    rows: tuple[int, int]
    heads: int | None
    sources: tuple[Any, ...]
    layout: str
    factor: float | None = None

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return self.head_size**-0.5 if self.factor is None else self.factor

    @property
    def groups(self) -> int:
        """Sets of keys and values; as many as heads where none are shared."""
        return self.rows[1] // self.head_size

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
        return torch.einsum("bhe,bnhe->bhn", self.queries(tokens), keys) * self.scale

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
    layers = list_attention(model, name)
    if not layers:
        raise InvalidInput(
            f"no attention layer was found at {name!r}: a torch.nn.MultiheadAttention, or"
            f" projections such as {' or '.join('/'.join(t) for t in TRIPLES[:2])}."
            " keyhole.torch_block asks any part."
        )
    if len(layers) > 1:
        raise InvalidInput(
            f"name one of the {len(layers)} attention layers: {listed([a.name for a in layers])}."
        )
    if heads is not None and heads < 1:
        raise InvalidInput(f"heads is a whole number >= 1; got {heads}.")
    return layers[0] if heads is None else replace(layers[0], heads=heads)


def list_attention(model: Any, name: str = "") -> list[Attention]:
    """All attention layers at or below the part of that name.

    Raises:
        InvalidInput: there is no such part.
    """
    return list(_find_layers(part_of(model, name), name, model))


def _find_layers(below: Any, prefix: str, model: Any) -> Generator[Attention]:
    """Attention layers at or below a module; an output projection may stand beside."""
    for name, module in below.named_modules(prefix=prefix):
        if isinstance(module, torch.nn.MultiheadAttention):
            yield _read_fused_layer(name, module)
        for triple in TRIPLES:
            parts = [getattr(module, part, None) for part in triple]
            if all(is_matrix(part) for part in parts):
                yield _read_projections(name, module, parts, model, triple)
        for joined, by_head in FUSED.items():
            if is_matrix(getattr(module, joined, None)):
                yield from _read_joined(name, module, joined, by_head, model)


def is_matrix(part: Any) -> bool:
    """Whether it is a module that multiplies tokens by a matrix."""
    weight = getattr(part, "weight", None)
    return isinstance(part, torch.nn.Module) and getattr(weight, "ndim", 0) == 2


def read_matrix_sizes(part: Any) -> tuple[int, int]:
    """Numbers that a linear module takes, and those it answers."""
    rows, columns = part.weight.shape
    # The Conv1D of transformers keeps its matrix the other way round.
    return (rows, columns) if type(part).__name__ == "Conv1D" else (columns, rows)


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
    layout = "in_proj_weight, out_proj"
    return Attention(
        name, module, project, module.out_proj, E, (E, E), module.num_heads, (module,), layout
    )


def _read_projections(
    name: str, module: Any, parts: list[Any], model: Any, names: tuple[str, ...]
) -> Attention:
    place, output = _find_output(name, module, model)
    (width, rows), (_, shared), _ = (read_matrix_sizes(part) for part in parts)
    return Attention(
        name,
        module,
        (parts[0], parts[1], parts[2]),
        output,
        width,
        (rows, shared),
        _find_number(name, module, model, HEADS),
        tuple(parts),
        _join_names(*names, place),
        _find_factor(module),
    )


def _read_joined(
    name: str, module: Any, joined: str, by_head: bool, model: Any
) -> Generator[Attention]:
    """The layer whose three projections are one, where its rows are those of heads."""
    part = getattr(module, joined)
    width, rows = read_matrix_sizes(part)
    said = [_find_number(name, module, model, names) for names in (HEADS, GROUPS)]
    split = find_split(rows, said[0], said[1], by_head)
    # With queries of their own the rows are keys and values of other tokens: cross-attention.
    if split is None or hasattr(module, "q_attn"):
        return
    place, output = _find_output(name, module, model)
    order = "head by head" if split.by_head else "one after another"
    yield Attention(
        name,
        module,
        build_projections(part, split),
        output,
        width,
        split.rows,
        split.heads,
        (part,),
        _join_names(f"{joined} (queries, keys, values {order})", place),
        _find_factor(module),
    )


def _join_names(*names: str) -> str:
    return ", ".join(name for name in names if name)


def _find_output(name: str, module: Any, model: Any) -> tuple[str, Any]:
    """The projection behind the heads, in the module or beside it, and its name."""
    above = _find_parent(model, name)
    places = [(module, path) for path in BEHIND] + [(above, path) for path in NEXT_TO]
    found = ((path, _find_linear(place, path)) for place, path in places)
    return next(((path, part) for path, part in found if part is not None), ("", None))


def _find_number(name: str, module: Any, model: Any, names: tuple[str, ...]) -> int | None:
    """A whole number that the module, the one above it or a configuration gives a name."""
    above = _find_parent(model, name)
    holders = (module, above, getattr(module, "config", None), getattr(model, "config", None))
    said = [getattr(holder, key, None) for holder in holders for key in names]
    return next((count for count in said if type(count) is int and count > 0), None)


def _find_factor(module: Any) -> float | None:
    """What a module says scores are multiplied by."""
    said = [getattr(module, key, None) for key in _SCALES]
    factor = next((value for value in said if type(value) is float and value > 0), None)
    # Tables of relative positions go without a factor where none is told: T5 was trained so.
    tabled = hasattr(module, "has_relative_attention_bias")
    return 1.0 if factor is None and tabled else factor


def _find_parent(model: Any, name: str) -> Any:
    return reach_module(model, name.rpartition(".")[0]) if name else None


def reach_module(model: Any, name: str) -> Any:
    """The module of a name that is there; scripted modules have no `get_submodule`."""
    for part in name.split(".") if name else ():
        model = getattr(model, part)
    return model


def _find_linear(place: Any, path: str) -> Any:
    """The linear module at a path below another, where there is one."""
    for part in path.split("."):
        place = getattr(place, part, None)
    if isinstance(place, torch.nn.Module) and getattr(place, "weight", None) is not None:
        return place
    return None
