r"""One head, one attention layer or one block inside a bigger torch model, as an oracle.

The question is fed as the layer's input, and the answer is its output at the last token. Without
`around` the part is asked by itself. Where it needs more than tokens (masks, positions),
`around(batch, length)` runs the whole model on anything of that shape; hooks then put the question
in the place of the layer's input and catch its output.

Projections found by name are asked as the layer they make up,

$$\big[\mathrm{softmax}(K_h(X)\, q_h(x_N) / \sqrt{e})^\top V_h(X)\big]_h \to \mathrm{output},$$

where the layer itself answers the same to two random batches. One that rotates positions in, scales
its scores otherwise, caps them or looks through a window does not, and is refused; `around` asks it
as the model runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.torch_agreement import check_formula
from keyhole.oracles.torch_found import Attention, listed, only_layer, part_of
from keyhole.oracles.torch_hooks import Around, Hooked
from keyhole.oracles.torch_module import TorchModule, find_width, tensor_of, torch


def torch_head(
    model: Any,
    name: str = "",
    head: int = 0,
    *,
    heads: int | None = None,
    around: Around | None = None,
) -> TorchModule:
    """One head as an oracle; it answers its own numbers, before the output projection.

    Args:
        model: the model the layer is in.
        name: the layer, or the start of its name, as `model.named_modules()` has it.
        head: which head, from 0.
        heads: how many heads the layer has; read from the model where absent.
        around: runs the whole model on a batch of that many sequences of that length, to ask the
            layer inside it.

    Raises:
        InvalidInput: there is no such layer or head, or its layer does not answer as its
            projections say.
    """
    layer = only_layer(model, name, heads)
    size = layer.head_size
    if not 0 <= head < (layer.heads or 0):
        raise InvalidInput(
            f"{layer.name or 'the layer'} has heads 0 to {(layer.heads or 0) - 1}; got {head}."
        )
    if around is None:
        _refuse_other_weights(layer)
        check_formula(model, layer, head=head)
        return _wrap_call(lambda tokens: layer.mixed(tokens)[:, head], layer.width, size, model)
    if layer.fused or layer.output is None:
        raise InvalidInput(
            f"{layer.name or 'the layer'} has no projection behind its heads that could be hooked;"
            " leave out around=."
        )
    hooked = Hooked(around, layer.module, layer.output, name=layer.name, before=True)
    return _wrap_call(
        lambda tokens: hooked(tokens).unflatten(-1, (-1, size))[:, -1, head],
        layer.width,
        size,
        model,
    )


def torch_layer(
    model: Any, name: str = "", *, heads: int | None = None, around: Around | None = None
) -> TorchModule:
    """One attention layer, its output projection included, as an oracle at the last token.

    Layers are `torch.nn.MultiheadAttention`, and linear projections under the names that models
    give them, such as `attention.self.query`, `key`, `value` with `attention.output.dense`, or
    `q_proj`, `k_proj`, `v_proj` with `o_proj` or `out_proj`.

    Args:
        model: the model the layer is in.
        name: the layer, or the start of its name, as `model.named_modules()` has it.
        heads: how many heads it has; read from the model where absent.
        around: runs the whole model on a batch of that many sequences of that length, to ask the
            layer inside it.

    Raises:
        InvalidInput: there is no such layer, or more than one, or it does not answer as its
            projections say.
    """
    layer = only_layer(model, name, heads)
    if around is not None:
        hooked = Hooked(
            around, layer.module, layer.end, name=layer.name, batch_first=layer.batch_first
        )
        return _wrap_call(lambda tokens: hooked(tokens)[:, -1], layer.width, None, model)
    if layer.fused:
        return _wrap_call(
            lambda tokens: _run_fused_layer(layer.module, tokens), layer.width, layer.width, model
        )
    _refuse_other_weights(layer)
    check_formula(model, layer)
    return _wrap_call(layer.answer, layer.width, None, model)


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
        batch_first: whether the block takes (batch, length, width) rather than (length, batch,
            width); where absent what torch's own attention in it says, else yes.
        around: runs the whole model on a batch of that many sequences of that length, to ask the
            block inside it.

    Raises:
        InvalidInput: there is no such part.
    """
    block = part_of(model, name)
    batch_first = _is_batch_first(block) if batch_first is None else batch_first
    ask = _build_direct_call(block, batch_first)
    if around is not None:
        ask = Hooked(around, block, block, name=name, batch_first=batch_first)
    return _wrap_call(
        lambda tokens: _take_last_row(ask(tokens)), width or find_width(block), None, model
    )


def _wrap_call(
    call: Callable[[Any], Any], width: int | None, outputs: int | None, model: Any
) -> TorchModule:
    return TorchModule(call, width, outputs, within=model)


def _is_batch_first(block: Any) -> bool:
    return all(
        part.batch_first
        for part in block.modules()
        if isinstance(part, torch.nn.MultiheadAttention)
    )


def _build_direct_call(block: Any, batch_first: bool) -> Callable[[Any], Any]:
    if batch_first:
        return lambda tokens: tensor_of(block(tokens))
    return lambda tokens: tensor_of(block(tokens.transpose(0, 1))).transpose(0, 1)


def _take_last_row(answers: Any) -> Any:
    if answers.ndim != 3:
        raise InvalidInput(
            f"a block answers (batch, length, outputs); got shape {tuple(answers.shape)}."
        )
    return answers[:, -1]


def _run_fused_layer(module: Any, tokens: Any) -> Any:
    """The layer of torch at its last token."""
    # torch's layer takes (length, batch, width) unless told otherwise.
    across = tokens if module.batch_first else tokens.transpose(0, 1)
    # Only torch's own forward is known to need no other query than the last.
    own = getattr(module.forward, "__func__", None) is torch.nn.MultiheadAttention.forward
    query = across
    if own:
        query = across[:, -1:] if module.batch_first else across[-1:]
    answers = module(query, across, across, need_weights=False)[0]
    return answers[:, -1] if module.batch_first else answers[-1]


def _refuse_other_weights(layer: Attention) -> None:
    """Refuse a layer with weights besides its projections: it is another function."""
    if layer.fused:
        _refuse_further_token(layer)
        return
    known = {
        id(w)
        for part in (*layer.sources, layer.output)
        if part is not None
        for w in part.parameters()
    }
    others = [
        name for name, w in layer.module.named_parameters(recurse=False) if id(w) not in known
    ]
    others += [
        name
        for name, part in layer.module.named_children()
        # A norm stands behind the heads, and does not change what they answer.
        if not name.lower().startswith("layernorm")
        and any(id(w) not in known for w in part.parameters())
    ]
    if others:
        raise InvalidInput(
            f"{layer.name or 'the layer'} has weights besides its projections ({listed(others)}): "
            "give around= to ask it as the model runs it."
        )


def _refuse_further_token(layer: Attention) -> None:
    """Refuse torch's layer where heads look at a key that is none of the tokens."""
    if layer.module.bias_k is not None or layer.module.add_zero_attn:
        raise InvalidInput(
            f"{layer.name or 'the layer'} adds a key of its own (add_bias_kv or add_zero_attn), so"
            " that its heads are not the formula on their tokens. keyhole.torch_layer asks the"
            " whole layer."
        )
