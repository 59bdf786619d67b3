"""Every kind of model as words and named tensors, for its file, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, check_shape
from keyhole.errors import InvalidInput
from keyhole.models.attention import Factored, Head, MultiHead, SelfAttention
from keyhole.models.baselines import Cell, Mlp, Recurrent
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.heads_before_network import HeadsBeforeNetwork
from keyhole.models.layers.layer_maps import OPTIONAL
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.models.layers.wiring import read_wiring
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.tensor import TensorAttention, TensorHeads
from keyhole.models.transformer import Network, OneLayer

Words = dict[str, str]
Tensors = dict[str, Array]
_CELL = ("Wx", "Wh", "bx", "bh")
# What words and tensors that make no sense raise.
_DAMAGE = (LookupError, ValueError, TypeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class NamedTensors:
    """A model whose file holds a tensor for each of its arrays.

    Args:
        name: the kind that a file names.
        required: tensors that a file must hold.
        optional: tensors that it may hold.
        write: a model as tensors; None where it has no such part.
        read: a model from tensors and words.
        settings: words that are kept beside the tensors.
        factored: whether A and B may stand for W.
    """

    name: str
    required: frozenset[str]
    optional: frozenset[str]
    write: Callable[[Any], Mapping[str, Array | None]]
    read: Callable[..., Any]
    settings: tuple[str, ...] = ()
    factored: bool = False

    def describe(self, model: Any) -> tuple[Words, Tensors]:
        """Words and tensors of a model."""
        words = {name: getattr(model, name) for name in self.settings}
        return words, {name: a for name, a in self.write(model).items() if a is not None}

    def restore(self, words: Mapping[str, str], tensors: Mapping[str, Array]) -> Any:
        """The model of words and tensors.

        Raises:
            InvalidInput: a tensor is missing, or unknown.
        """
        self._check_names(set(tensors))
        return self.read(
            **tensors, **{name: words[name] for name in self.settings if name in words}
        )

    def _check_names(self, got: set[str]) -> None:
        # A head of low rank is stored as its factors.
        factored = self.factored and "A" in got
        needed = (self.required - {"W"}) | {"A", "B"} if factored else self.required
        missing = needed - got
        extra = got - needed - self.optional
        if missing or extra:
            raise InvalidInput(
                f"a {self.name} file holds {sorted(needed)} and may hold {sorted(self.optional)}; "
                f"missing {sorted(missing)}, unknown {sorted(extra)}."
            )


def _pick_fields(*names: str) -> Callable[[Any], dict[str, Array | None]]:
    return lambda model: {name: getattr(model, name) for name in names}


def _write_head(head: Head) -> dict[str, Array | None]:
    W = {"A": head.W.A, "B": head.W.B} if isinstance(head.W, Factored) else {"W": head.W}
    return {**W, **_pick_fields("V", "h", "c", "U")(head)}


def _read_head(**tensors: Array) -> Head:
    if "W" in tensors:
        return Head(**tensors)
    rest = {name: array for name, array in tensors.items() if name not in ("A", "B")}
    return Head(W=Factored(tensors["A"], tensors["B"]), **rest)


def _write_tensor(unit: TensorAttention) -> dict[str, Array | None]:
    keys, values = (
        {f"{letter}{t}": a for t, a in enumerate(arrays, 1)}
        for letter, arrays in (("K", unit.K), ("V", unit.V))
    )
    return {"Q": unit.Q, **keys, **values}


def stack_heads(layer: TensorHeads) -> dict[str, Array]:
    """Q, K1, V1, K2, .. with an axis for heads, as files hold them."""
    several = {
        f"{letter}{t + 1}": np.stack([getattr(head, letter)[t] for head in layer.heads])
        for letter in "KV"
        for t in range(layer.order - 1)
    }
    return {"Q": np.stack([head.Q for head in layer.heads]), **several}


def unstack_heads(**tensors: Array) -> TensorHeads:
    """The layer that `stack_heads` wrote.

    Raises:
        InvalidInput: keys and values are not numbered from 1, or heads differ in number.
    """
    count = len(tensors) // 2
    names = {"Q", *(f"{letter}{t}" for letter in "KV" for t in range(1, count + 1))}
    if set(tensors) != names:
        raise InvalidInput(
            "a layer of heads holds Q and numbers its K and V from 1 without a gap; missing"
            f" {sorted(names - set(tensors))}."
        )
    sizes = {array.shape[:1] for array in tensors.values()}
    if len(sizes) != 1 or any(array.ndim != 3 for array in tensors.values()):
        raise InvalidInput("every array of a layer of heads has an axis for heads, of one size.")
    heads = [
        TensorAttention(
            tensors["Q"][h],
            tuple(tensors[f"K{t}"][h] for t in range(1, count + 1)),
            tuple(tensors[f"V{t}"][h] for t in range(1, count + 1)),
        )
        for h in range(len(tensors["Q"]))
    ]
    return TensorHeads(tuple(heads))


def _write_tensor_heads(layer: TensorHeads) -> dict[str, Array | None]:
    return dict(stack_heads(layer))


def _read_tensor(**tensors: Array) -> TensorAttention:
    count = len(tensors) // 2
    if missing := {f"{letter}{t}" for letter in "KV" for t in range(1, count + 1)} - set(tensors):
        raise InvalidInput(
            f"a tensor file numbers its K and V from 1 without a gap; missing {sorted(missing)}."
        )
    K, V = ([tensors[f"{letter}{t}"] for t in range(1, count + 1)] for letter in "KV")
    return TensorAttention(tensors["Q"], tuple(K), tuple(V))


def _read_tensor_row(**tensors: Array) -> TensorRow:
    return TensorRow(_read_tensor(**tensors))


def _name_fields(
    name: str, model: type[Any], required: str, optional: str = "", settings: str = ""
) -> NamedTensors:
    """The file of a model whose tensors are its fields."""
    needed = required.split()
    may = optional.split()
    write = _pick_fields(*needed, *may)
    words = tuple(settings.split())
    return NamedTensors(name, frozenset(needed), frozenset(may), write, model, words)


HEAD = NamedTensors(
    "head", frozenset("WV"), frozenset("hcU"), _write_head, _read_head, factored=True
)
MULTIHEAD = _name_fields("multihead", MultiHead, "W V", "h c U")
UNIT = _name_fields("unit", SelfAttention, "Q K V")
_TUPLES = frozenset(f"{letter}{t}" for letter in "KV" for t in range(2, 10))
TENSOR = NamedTensors("tensor", frozenset({"Q", "K1", "V1"}), _TUPLES, _write_tensor, _read_tensor)
TENSOR_ROW = NamedTensors(
    "tensor-row",
    frozenset({"Q", "K1", "V1"}),
    _TUPLES,
    lambda row: _write_tensor(row.unit),
    _read_tensor_row,
)
TENSOR_HEADS = NamedTensors(
    "tensor-heads", frozenset({"Q", "K1", "V1"}), _TUPLES, _write_tensor_heads, unstack_heads
)


def _read_smooth(activation: str = "gelu", s: Array | None = None, **tensors: Array) -> ReluNet:
    """A smooth network; a unit of width s is phi(s z)/s, which weights can hold."""
    if activation == "relu":
        raise InvalidInput("a smooth file names a smooth activation; relu has kind relu.")
    net = ReluNet(**tensors, activation=activation)
    if s is None:
        return net
    check_shape("s", s, (net.hidden,))
    if not (s > 0).all():
        raise InvalidInput("the widths s of a smooth file must be above 0.")
    return ReluNet(net.W1 * s[:, None], net.b1 * s, net.W2 / s, net.b2, activation)


RELU = _name_fields("relu", ReluNet, "W1 b1 W2 b2", settings="activation")
SMOOTH = NamedTensors(
    "smooth",
    RELU.required,
    frozenset({"s"}),
    _pick_fields("W1", "b1", "W2", "b2"),
    _read_smooth,
    RELU.settings,
)
GATED = _name_fields("gated", Gated, "A a B b C c", settings="activation")
ABSAFFINE = _name_fields("absaffine", AbsAffine, "n t D P q")
# The networks that may stand behind a head.
_NETWORKS = {kind.name: kind for kind in (RELU, SMOOTH, ABSAFFINE, GATED)}


def _read_layer(wiring: str | None = None, **tensors: Array) -> AttentionLayer:
    if wiring is None:
        raise InvalidInput("a layer file says its wiring, as JSON, in its metadata; it is missing.")
    return AttentionLayer(**tensors, wiring=read_wiring(wiring))  # pyright: ignore[reportArgumentType]


_LAYER = NamedTensors(
    "layer",
    frozenset({"Wq", "Wk", "Wv", "Wo"}),
    frozenset(OPTIONAL),
    _pick_fields("Wq", "Wk", "Wv", "Wo", *OPTIONAL),
    _read_layer,
    settings=("wiring",),
)


def describe_layer(model: AttentionLayer) -> tuple[Words, Tensors]:
    """Words and tensors of an attention layer; its wiring is one of the words."""
    tensors = {name: array for name, array in _LAYER.write(model).items() if array is not None}
    return {"wiring": model.wiring.write_json()}, tensors


def restore_layer(words: Mapping[str, str], tensors: Mapping[str, Array]) -> AttentionLayer:
    """An attention layer from its tensors and its wiring."""
    return _LAYER.restore(words, tensors)


_TOKENS = _name_fields("tokens", TokenHeads, "values scores", "direct")


def describe_tokens(model: TokenHeads) -> tuple[Words, Tensors]:
    """Words and tensors of attention between ids; how many ids there are is one of the words."""
    return {"vocabulary": str(model.outputs)}, _TOKENS.describe(model)[1]


def restore_tokens(words: Mapping[str, str], tensors: Mapping[str, Array]) -> TokenHeads:
    """Attention between ids, whose file says how many there are."""
    model: TokenHeads = _TOKENS.restore({}, tensors)
    if words.get("vocabulary") != str(model.outputs):
        raise InvalidInput(
            f"a tokens file says its vocabulary in its metadata, here {model.outputs}; got"
            f" {words.get('vocabulary')!r}."
        )
    return model


def describe_one_layer(model: OneLayer) -> tuple[Words, Tensors]:
    """Words and tensors of a one-layer Transformer, named head.* and net.*."""
    words, tensors = _describe_parts("head", HEAD, model.head, model.net)
    return words | {"residual": "true" if model.residual else "false"}, tensors


def describe_heads_before_network(model: HeadsBeforeNetwork) -> tuple[Words, Tensors]:
    """Words and tensors of several heads before a network, named heads.* and net.*."""
    return _describe_parts("heads", MULTIHEAD, model.heads, model.net)


def _describe_parts(
    part: str, kind: NamedTensors, attention: Any, net: Network
) -> tuple[Words, Tensors]:
    written = {ReluNet: RELU, AbsAffine: ABSAFFINE, Gated: GATED}[type(net)]
    about, network = written.describe(net)
    tensors = {f"{part}.{name}": a for name, a in kind.describe(attention)[1].items()}
    tensors |= {f"net.{name}": a for name, a in network.items()}
    return about | {"net_kind": written.name}, tensors


def restore_one_layer(words: Mapping[str, str], tensors: Mapping[str, Array]) -> OneLayer:
    """A one-layer Transformer from the parts head.* and net.*."""
    residual = words.get("residual")
    if residual not in ("true", "false"):
        raise InvalidInput(
            f"a onelayer file says residual (true or false) in its metadata; got {residual!r}."
        )
    head, net = _restore_parts("onelayer", "head", HEAD, words, tensors)
    return OneLayer(head, net, residual == "true")


def restore_heads_before_network(
    words: Mapping[str, str], tensors: Mapping[str, Array]
) -> HeadsBeforeNetwork:
    """Several heads before a network from the parts heads.* and net.*."""
    return HeadsBeforeNetwork(*_restore_parts("headsnet", "heads", MULTIHEAD, words, tensors))


def _restore_parts(
    name: str,
    part: str,
    kind: NamedTensors,
    words: Mapping[str, str],
    tensors: Mapping[str, Array],
) -> tuple[Any, Any]:
    net_kind = words.get("net_kind")
    if net_kind not in _NETWORKS:
        raise InvalidInput(
            f"a {name} file says net_kind ({' or '.join(_NETWORKS)}) in its metadata; got"
            f" {net_kind!r}."
        )
    parts = {each: take_part(tensors, each) for each in (part, "net")}
    known = {f"{each}.{name}" for each, named in parts.items() for name in named}
    if extra := set(tensors) - known:
        raise InvalidInput(f"a {name} file holds {part}.* and net.*; unknown {sorted(extra)}.")
    return kind.restore({}, parts[part]), _NETWORKS[net_kind].restore(words, parts["net"])


def take_part(tensors: Mapping[str, Array], part: str) -> Tensors:
    """The tensors of a part, named PART.*, by the rest of their names."""
    return {
        name.removeprefix(f"{part}."): a
        for name, a in tensors.items()
        if name.startswith(f"{part}.")
    }


def describe_mlp(model: Mlp) -> tuple[Words, Tensors]:
    """Words and tensors of a fully connected network."""
    layers = {"W": model.W, "b": model.b}
    named = {f"{name}{k}": a for name, parts in layers.items() for k, a in enumerate(parts)}
    words = {"z": json.dumps(list(model.z)), "length": str(model.length), "activation": "relu"}
    return words, _prefix_names("mlp", named, model.codes)


def restore_mlp(words: Mapping[str, str], tensors: Mapping[str, Array]) -> Mlp:
    """A fully connected network from its file."""
    parts = _strip_names("mlp", tensors)
    try:
        codes = parts.pop("codes", None)
        layers = len(parts) // 2
        W, b = (tuple(parts[f"{name}{k}"] for k in range(layers)) for name in ("W", "b"))
        return Mlp(W, b, int(words["length"]), _read_columns(words), codes)
    except _DAMAGE as error:
        raise _explain_damage("mlp", error) from error


def describe_recurrent(model: Recurrent) -> tuple[Words, Tensors]:
    """Words and tensors of a recurrent network."""
    named = {
        f"{k}.{name}": getattr(cell, name) for k, cell in enumerate(model.cells) for name in _CELL
    }
    named |= {"Wo": model.Wo, "bo": model.bo}
    words = {"z": json.dumps(list(model.z)), "cell": model.cell}
    words |= {"state_bits": str(model.state_bits), "state_range": repr(float(model.state_range))}
    # Files of one pass are the same bytes as before passes existed.
    words |= {"passes": str(model.passes)} if model.passes > 1 else {}
    return words, _prefix_names("rnn", named, model.codes)


def restore_recurrent(words: Mapping[str, str], tensors: Mapping[str, Array]) -> Recurrent:
    """A recurrent network from its file."""
    parts = _strip_names("rnn", tensors)
    try:
        codes = parts.pop("codes", None)
        layers = (len(parts) - 2) // len(_CELL)
        cells = tuple(Cell(*(parts[f"{k}.{name}"] for name in _CELL)) for k in range(layers))
        rounding = int(words["state_bits"]), float(words["state_range"])
        passes = int(words.get("passes", "1"))
        z = _read_columns(words)
        return Recurrent(
            words["cell"], cells, parts["Wo"], parts["bo"], z, codes, *rounding, passes
        )
    except _DAMAGE as error:
        raise _explain_damage("rnn", error) from error


def _prefix_names(kind: str, named: Tensors, codes: Array | None) -> Tensors:
    whole = named if codes is None else named | {"codes": codes}
    return {f"{kind}.{name}": part for name, part in whole.items()}


def _strip_names(kind: str, tensors: Mapping[str, Array]) -> Tensors:
    return {name.removeprefix(f"{kind}."): part for name, part in tensors.items()}


def _read_columns(words: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(int(k) for k in json.loads(words["z"]))


def _explain_damage(kind: str, error: Exception) -> InvalidInput:
    return InvalidInput(f"a {kind} file lacks something, or holds what makes no sense: {error}.")
