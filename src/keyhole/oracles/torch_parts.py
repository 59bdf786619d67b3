r"""One head, one attention layer or one block inside a bigger torch model, as an oracle.

The question is fed as the layer's input, and the answer is its output at the last token. Without `around` the part is
called by itself. Where it needs more than tokens (masks, positions), `around(batch, length)` runs the whole model on
anything of that shape; hooks then put the question in the place of the layer's input and catch its output.

Projections found by name are asked as the layer they make up,

$$\big[\mathrm{softmax}(K_h(X)\, q_h(x_N) / \sqrt{e})^\top V_h(X)\big]_h \to \mathrm{output},$$

without the positions a model may rotate into queries and keys; `around` asks the layer as the model runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.torch_module import TorchModule, found_width, tensor_of, torch

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
_SHOWN = 12

Around = Callable[[int, int], Any]


@dataclass(frozen=True, eq=False, slots=True)
class _Attention:
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
            raise InvalidInput(f"{self.name or 'the layer'} does not say how many heads it has: give heads=.")
        size, rest = divmod(self.rows[0], self.heads)
        if rest or not size or self.rows[1] % size or self.heads % (self.rows[1] // size):
            raise InvalidInput(
                f"{self.name or 'the layer'} has {self.rows[0]} rows of queries and {self.rows[1]} of keys, which are "
                f"not those of {self.heads} heads. Give heads=."
            )
        return size

    def mixed(self, tokens: Any) -> Any:
        """Answers of all heads at the last token, (batch, heads, size); heads may share keys and values in groups."""
        size, (query, key, value) = self.head_size, self.project
        queries = query(tokens[:, -1]).unflatten(-1, (-1, size))
        shared = queries.shape[1] * size // self.rows[1]
        keys, values = (p(tokens).unflatten(-1, (-1, size)).repeat_interleave(shared, dim=2) for p in (key, value))
        scores = torch.einsum("bhe,bnhe->bhn", queries, keys) / size**0.5
        return torch.einsum("bhn,bnhe->bhe", torch.softmax(scores, dim=-1), values)


def torch_head(
    model: Any, name: str = "", head: int = 0, *, heads: int | None = None, around: Around | None = None
) -> TorchModule:
    """One head of an attention layer as an oracle; it answers its own numbers, before the output projection.

    Args:
        model: the model the layer is in.
        name: the layer, or the start of its name, as `model.named_modules()` has it.
        head: which head, from 0.
        heads: how many heads the layer has; read from the model where absent.
        around: runs the whole model on a batch of that many sequences of that length, to ask the layer inside it.

    Raises:
        InvalidInput: there is no such layer or head.
    """
    layer = _only(model, name, heads)
    size = layer.head_size
    if not 0 <= head < (layer.heads or 0):
        raise InvalidInput(f"{layer.name or 'the layer'} has heads 0 to {(layer.heads or 0) - 1}; got {head}.")
    if around is None:
        _nothing_else(layer)
        return _oracle(lambda tokens: layer.mixed(tokens)[:, head], layer.width, size, model)
    if layer.fused or layer.output is None:
        raise InvalidInput(
            f"{layer.name or 'the layer'} has no projection behind its heads that could be hooked; leave out around=."
        )
    hooked = _Hooked(around, layer.module, layer.output, name=layer.name, before=True)
    return _oracle(lambda tokens: hooked(tokens).unflatten(-1, (-1, size))[:, -1, head], layer.width, size, model)


def torch_layer(model: Any, name: str = "", *, heads: int | None = None, around: Around | None = None) -> TorchModule:
    """One attention layer with all its heads and its output projection as an oracle, read at the last token.

    Layers are `torch.nn.MultiheadAttention`, and linear projections under the names that models give them, such as
    `attention.self.query`, `key`, `value` with `attention.output.dense`, or `q_proj`, `k_proj`, `v_proj` with `o_proj`
    or `out_proj`.

    Args:
        model: the model the layer is in.
        name: the layer, or the start of its name, as `model.named_modules()` has it.
        heads: how many heads it has; read from the model where absent.
        around: runs the whole model on a batch of that many sequences of that length, to ask the layer inside it.

    Raises:
        InvalidInput: there is no such layer, or more than one.
    """
    layer = _only(model, name, heads)
    if around is not None:
        leave = layer.module if layer.output is None or layer.fused else layer.output
        hooked = _Hooked(around, layer.module, leave, name=layer.name, batch_first=layer.batch_first)
        return _oracle(lambda tokens: hooked(tokens)[:, -1], layer.width, None, model)
    if layer.fused:
        return _oracle(lambda tokens: _fused(layer.module, tokens), layer.width, layer.width, model)
    _nothing_else(layer)
    output: Any = torch.nn.Identity() if layer.output is None else layer.output
    return _oracle(lambda tokens: output(layer.mixed(tokens).flatten(1)), layer.width, None, model)


def torch_block(
    model: Any,
    name: str = "",
    *,
    width: int | None = None,
    batch_first: bool | None = None,
    around: Around | None = None,
) -> TorchModule:
    """Any part of a model that maps a sequence to a sequence, as an oracle, read at the last token.

    Args:
        model: the model the block is in.
        name: the block, as `model.named_modules()` has it; the model itself where empty.
        width: size of a token; read from the block where absent.
        batch_first: whether the block takes (batch, length, width) rather than (length, batch, width); where absent
            what torch's own attention in it says, else yes.
        around: runs the whole model on a batch of that many sequences of that length, to ask the block inside it.

    Raises:
        InvalidInput: there is no such part.
    """
    block = _part(model, name)
    batch_first = _batch_first(block) if batch_first is None else batch_first
    ask = _direct(block, batch_first)
    if around is not None:
        ask = _Hooked(around, block, block, name=name, batch_first=batch_first)
    return _oracle(lambda tokens: _last(ask(tokens)), width or found_width(block), None, model)


def _oracle(call: Callable[[Any], Any], width: int | None, outputs: int | None, model: Any) -> TorchModule:
    return TorchModule(call, width, outputs, within=model)


def _batch_first(block: Any) -> bool:
    return all(part.batch_first for part in block.modules() if isinstance(part, torch.nn.MultiheadAttention))


def _direct(block: Any, batch_first: bool) -> Callable[[Any], Any]:
    if batch_first:
        return lambda tokens: tensor_of(block(tokens))
    return lambda tokens: tensor_of(block(tokens.transpose(0, 1))).transpose(0, 1)


def _last(answers: Any) -> Any:
    if answers.ndim != 3:
        raise InvalidInput(f"a block answers (batch, length, outputs); got shape {tuple(answers.shape)}.")
    return answers[:, -1]


def _fused(module: Any, tokens: Any) -> Any:
    """The layer of torch, asked for its last token only."""
    if module.batch_first:
        return module(tokens[:, -1:], tokens, tokens, need_weights=False)[0][:, 0]
    across = tokens.transpose(0, 1)
    return module(across[-1:], across, across, need_weights=False)[0][0]


class _Caught(BaseException):
    """The output is there; the rest of the model need not run."""


@dataclass(frozen=True, slots=True)
class _Hooked:
    """Runs a model with the question in the place of one module's input, and catches another module's output.

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
        fed, caught = tokens if self.batch_first else tokens.transpose(0, 1), list[Any]()

        def replaced(module: Any, args: Any, kwargs: Any) -> Any:
            old = self._input(args, kwargs, fed)
            self._nothing_beside(module, old, args, kwargs)
            return tuple(fed if a is old else a for a in args), {k: fed if a is old else a for k, a in kwargs.items()}

        def catch(module: Any, args: Any, answer: Any = None) -> Any:
            caught.append(tensor_of(args if self.before else answer))
            raise _Caught

        hook = self.leave.register_forward_pre_hook if self.before else self.leave.register_forward_hook
        handles = [self.enter.register_forward_pre_hook(replaced, with_kwargs=True), hook(catch)]
        try:
            self.around(len(tokens), tokens.shape[1])
        except _Caught:
            return caught[0] if self.batch_first else caught[0].transpose(0, 1)
        finally:
            for handle in handles:
                handle.remove()
        raise InvalidInput(f"running the model did not come through {self.name or 'the layer'}; see around=.")

    def _input(self, args: Any, kwargs: Any, fed: Any) -> Any:
        """The tensor of tokens among what the module is called with."""
        tensors = [a for a in [*args, *kwargs.values()] if isinstance(a, torch.Tensor) and a.ndim == 3]
        if not tensors or tensors[0].shape != fed.shape:
            got = tuple(tensors[0].shape) if tensors else "no sequences"
            raise InvalidInput(
                f"running the model gave {self.name or 'the layer'} {got} where the question is {tuple(fed.shape)}: "
                "around= must run it on that many sequences of that length."
            )
        return tensors[0]

    def _nothing_beside(self, module: Any, old: Any, args: Any, kwargs: Any) -> None:
        """Refuse torch's layer where queries, keys and values come from different tokens: one question is not all."""
        taken = [*args[:3], *(kwargs.get(name, old) for name in ("query", "key", "value"))]
        if isinstance(module, torch.nn.MultiheadAttention) and any(one is not old for one in taken):
            raise InvalidInput(
                f"the model gives {self.name or 'the layer'} other tokens for queries than for keys or values: it is "
                "no self-attention there. Leave out around= to ask it by itself, or ask the block it is in."
            )


def _part(model: Any, name: str) -> Any:
    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"a torch.nn.Module is needed; got a {type(model).__name__}.")
    parts = dict(model.named_modules())
    if name not in parts:
        near = [part for part in parts if part.startswith(name.split(".", maxsplit=1)[0])] or list(parts)[1:]
        raise InvalidInput(f"the model has no {name!r}; it has {_listed(near)}.")
    return parts[name]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more or "no parts"


def _only(model: Any, name: str, heads: int | None) -> _Attention:
    """The attention layer of that name, the only one at or below it."""
    below = _part(model, name)
    layers = list(_found(below, name, model))
    if not layers:
        raise InvalidInput(
            f"no attention layer was found at {name!r}: a torch.nn.MultiheadAttention, or projections such as "
            f"{' or '.join('/'.join(t) for t in _TRIPLES[:2])}. keyhole.torch_block asks any part."
        )
    if len(layers) > 1:
        raise InvalidInput(f"name one of the {len(layers)} attention layers: {_listed([a.name for a in layers])}.")
    if heads is not None and heads < 1:
        raise InvalidInput(f"heads is a whole number >= 1; got {heads}.")
    return layers[0] if heads is None else replace(layers[0], heads=heads)


def _found(below: Any, prefix: str, model: Any) -> Generator[_Attention]:
    """Attention layers at or below a module, in order; an output projection may stand beside the others."""
    for name, module in below.named_modules(prefix=prefix):
        if isinstance(module, torch.nn.MultiheadAttention):
            yield _torchs(name, module)
        for triple in _TRIPLES:
            parts = [getattr(module, part, None) for part in triple]
            if all(_matrix(part) for part in parts):
                yield _named(name, module, parts, model)


def _matrix(part: Any) -> bool:
    return isinstance(part, torch.nn.Module) and getattr(getattr(part, "weight", None), "ndim", 0) == 2


def _torchs(name: str, module: Any) -> _Attention:
    """The layer of torch, its projections cut from its weights."""
    E, bias = module.embed_dim, module.in_proj_bias
    if (module.kdim, module.vdim) != (E, E):
        raise InvalidInput(f"{name or 'the layer'} takes keys and values of other widths: it is no self-attention.")
    weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    weights = weights if module.in_proj_weight is None else module.in_proj_weight.chunk(3)
    biases = [None] * 3 if bias is None else bias.chunk(3)

    def projection(i: int) -> Callable[[Any], Any]:
        return lambda tokens: torch.nn.functional.linear(tokens, weights[i], biases[i])

    project = (projection(0), projection(1), projection(2))
    return _Attention(name, module, project, module.out_proj, E, (E, E), module.num_heads)


def _named(name: str, module: Any, parts: list[Any], model: Any) -> _Attention:
    above = _parent(model, name)
    places = [(module, path) for path in _BEHIND] + [(above, path) for path in _NEXT_TO]
    output = next((found for place, path in places if (found := _at(place, path)) is not None), None)
    said = [getattr(at, key, None) for at in (module, above, getattr(model, "config", None)) for key in _HEADS]
    heads = next((count for count in said if isinstance(count, int)), None)
    query, key, _ = (part.weight.shape for part in parts)
    return _Attention(name, module, (parts[0], parts[1], parts[2]), output, query[1], (query[0], key[0]), heads)


def _parent(model: Any, name: str) -> Any:
    return model.get_submodule(name.rpartition(".")[0]) if name else None


def _at(place: Any, path: str) -> Any:
    """The linear module at a path below another, where there is one."""
    for part in path.split("."):
        place = getattr(place, part, None)
    return place if isinstance(place, torch.nn.Module) and getattr(place, "weight", None) is not None else None


def _nothing_else(layer: _Attention) -> None:
    """Refuse a layer with weights besides its projections: asking only these would ask another function."""
    if layer.fused:
        _no_further_token(layer)
        return
    known = {id(w) for part in (*layer.project, layer.output) if part is not None for w in part.parameters()}
    others = [name for name, w in layer.module.named_parameters(recurse=False) if id(w) not in known]
    others += [
        name
        for name, part in layer.module.named_children()
        if not name.lower().startswith("layernorm") and any(id(w) not in known for w in part.parameters())
    ]
    if others:
        raise InvalidInput(
            f"{layer.name or 'the layer'} has weights besides its projections ({_listed(others)}): "
            "give around= to ask it as the model runs it."
        )


def _no_further_token(layer: _Attention) -> None:
    """Refuse torch's layer where every head looks at one more key than there are tokens, which none of them shows."""
    if layer.module.bias_k is not None or layer.module.add_zero_attn:
        raise InvalidInput(
            f"{layer.name or 'the layer'} adds a key of its own (add_bias_kv or add_zero_attn), so that its heads are "
            "not the formula on their tokens. keyhole.torch_layer asks the whole layer."
        )
