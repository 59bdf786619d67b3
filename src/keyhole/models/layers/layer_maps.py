"""The maps of an attention layer as it is built, and the weights its heads give to tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import (
    Array,
    Float,
    Sequences,
    check_finite,
    check_shape,
    freeze_array,
    softmax,
)
from keyhole.errors import InvalidInput
from keyhole.models.layers.norms import normalise
from keyhole.models.layers.turning import list_displacements, list_frequencies, turn_pairs
from keyhole.models.layers.wiring import Wiring

OPTIONAL = ("bq", "bk", "bv", "bo", "table", "positions", "sinks", "gain", "shift")
OPTIONAL += ("q_gain", "k_gain")


@dataclass(frozen=True, eq=False, slots=True)
class LayerMaps:
    """All of an attention layer but its answers; see `AttentionLayer` for what the fields are."""

    Wq: Float[Array, "heads rank width"]
    Wk: Float[Array, "groups rank width"]
    Wv: Float[Array, "groups rank width"]
    Wo: Float[Array, "heads outputs rank"]
    wiring: Wiring = field(default_factory=Wiring)
    bq: Float[Array, "heads rank"] | None = None
    bk: Float[Array, "groups rank"] | None = None
    bv: Float[Array, "groups rank"] | None = None
    bo: Float[Array, "outputs"] | None = None
    table: Float[Array, "heads displacements"] | None = None
    positions: Float[Array, "length width"] | None = None
    sinks: Float[Array, "heads"] | None = None
    gain: Float[Array, "width"] | None = None
    shift: Float[Array, "width"] | None = None
    q_gain: Float[Array, "rank"] | None = None
    k_gain: Float[Array, "rank"] | None = None

    def __post_init__(self) -> None:
        for name in ("Wq", "Wk", "Wv", "Wo", *OPTIONAL):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, freeze_array(getattr(self, name)))
                check_finite(name, getattr(self, name))
        self._check_shapes()
        if self.wiring.groups not in (None, len(self.Wk)):
            raise InvalidInput(
                f"the wiring tells of {self.wiring.groups} groups; Wk and Wv have {len(self.Wk)}."
            )
        object.__setattr__(self, "wiring", self.wiring.complete(len(self.Wk)))
        self._check_wiring()

    def _check_shapes(self) -> None:
        check_shape("Wq", self.Wq, (None, None, None))
        heads, r, d = self.Wq.shape
        check_shape("Wk", self.Wk, (None, r, d))
        G = len(self.Wk)
        check_shape("Wv", self.Wv, (G, None, d))
        check_shape("Wo", self.Wo, (heads, None, self.Wv.shape[1]))
        o = self.Wo.shape[1]
        shapes = {"bq": (heads, r), "bk": (G, r), "bv": self.Wv.shape[:2], "bo": (o,)}
        shapes |= {"table": (heads, None), "positions": (None, d), "sinks": (heads,)}
        shapes |= {"gain": (d,), "shift": (d,), "q_gain": (r,), "k_gain": (r,)}
        for name, shape in shapes.items():
            if getattr(self, name) is not None:
                check_shape(name, getattr(self, name), shape)
        if G < 1 or heads % G:
            raise InvalidInput(f"{heads} heads cannot share {G} key and value maps evenly.")

    def _check_wiring(self) -> None:
        kind = self.wiring.positions
        _check_part(
            "table", self.table, wanted=kind in ("table", "alibi"), when=f"{kind} positions"
        )
        _check_part(
            "positions", self.positions, wanted=kind == "absolute", when=f"{kind} positions"
        )
        _check_part("sinks", self.sinks, wanted=bool(self.wiring.sinks), when="such a wiring")
        for name in ("gain", "shift"):
            if self.wiring.norm == "none" and getattr(self, name) is not None:
                raise InvalidInput(f"a layer without a norm has no {name}. Fold it into the maps.")
        for name in ("q_gain", "k_gain"):
            if not self.wiring.qk_norm and getattr(self, name) is not None:
                raise InvalidInput(f"{name} belongs to a wiring with qk_norm.")
        if kind == "alibi" and self.table is not None:
            check_shape("table of ALiBi, its slopes,", self.table, (self.heads, 1))
        if self.wiring.residual and self.outputs != self.width:
            raise InvalidInput(
                f"a residual needs as many outputs as a token has entries; got {self.outputs} and"
                f" {self.width}."
            )
        if kind == "rope":
            list_frequencies(self.rank, *self._rotary)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.Wq.shape[2]

    @property
    def outputs(self) -> int:
        """Numbers answered per sequence."""
        return self.Wo.shape[1]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.Wq)

    @property
    def groups(self) -> int:
        """Number of key and value maps."""
        return len(self.Wk)

    @property
    def rank(self) -> int:
        """Size of a query."""
        return self.Wq.shape[1]

    def find_group(self, h: int) -> int:
        """The key and value maps that a head reads."""
        return h * self.groups // self.heads

    @property
    def longest(self) -> int | None:
        """The longest sequence that is answered; None where any is."""
        if self.positions is not None:
            return len(self.positions)
        if self.table is not None and self.wiring.positions == "table":
            return self.table.shape[1]
        return None

    @property
    def _rotary(self) -> tuple[float, float]:
        return self.wiring.rope_base or 1.0, self.wiring.rotary_share or 1.0

    def place(self, X: Sequences) -> Sequences:
        """Tokens with what their positions add."""
        return X if self.positions is None else X + self.positions[: X.shape[1]]

    def normed(self, X: Sequences) -> Sequences:
        """Tokens as queries, keys and values read them."""
        n = normalise(self.place(X), self.wiring.norm or "none", self.wiring.eps or 0.0)
        n = n if self.gain is None else n * self.gain
        return n if self.shift is None else n + self.shift

    def _query(self, y: Float[Array, "batch width"]) -> Float[Array, "batch heads rank"]:
        q = (y @ self.Wq.reshape(-1, self.width).T).reshape(len(y), self.heads, self.rank)
        q = q if self.bq is None else q + self.bq
        return self._norm_head(q, self.q_gain)

    def _norm_head(self, vectors: Array, gain: Array | None) -> Array:
        if not self.wiring.qk_norm:
            return vectors
        normed = normalise(vectors, "rms", self.wiring.eps or 0.0)
        return normed if gain is None else normed * gain

    def _list_keys(self, n: Sequences) -> Float[Array, "batch groups length rank"]:
        """Keys, turned as seen from the last position."""
        keys = np.einsum("bnd,grd->bgnr", n, self.Wk, optimize=True)
        keys = keys if self.bk is None else keys + self.bk[:, None]
        keys = self._norm_head(keys, self.k_gain)
        if self.wiring.positions != "rope":
            return keys
        displaced = list_displacements(n.shape[1])
        return turn_pairs(keys, -np.outer(displaced, list_frequencies(self.rank, *self._rotary)))

    def _score(self, n: Sequences) -> Float[Array, "batch heads length"]:
        """Products of queries and keys, capped."""
        keys = self._list_keys(n)
        q = self._query(n[:, -1]).reshape(len(n), self.groups, -1, self.rank)
        scores = q @ keys.swapaxes(-1, -2) / np.sqrt(self.rank)
        scores = scores.reshape(len(n), self.heads, n.shape[1])
        cap = self.wiring.softcap
        return scores if cap is None else cap * np.tanh(scores / cap)

    def _bias_scores(self, length: int) -> Float[Array, "heads length"]:
        """What displacement alone adds to scores; minus infinity outside the window."""
        displaced = list_displacements(length)
        added = np.zeros((self.heads, length))
        if self.table is not None:
            alibi = self.wiring.positions == "alibi"
            added = -self.table * displaced if alibi else self.table[:, displaced]
        window = self.wiring.window
        return added if window is None else np.where(displaced < window, added, -np.inf)

    def logits(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Attention scores before the softmax; minus infinity outside the window."""
        return self._score(self.normed(X)) + self._bias_scores(X.shape[1])

    def attend(self, X: Sequences) -> Float[Array, "batch heads length"]:
        """Weights of the tokens; with sinks they sum to less than 1."""
        scores = self.logits(X)
        if self.sinks is None:
            return softmax(scores)
        sinks = np.broadcast_to(self.sinks[:, None], (*scores.shape[:2], 1))
        return softmax(np.concatenate([scores, sinks], axis=2))[..., :-1]

    def values(self, n: Sequences) -> Float[Array, "batch groups length rank"]:
        """What tokens behind the norm are worth."""
        values = np.einsum("bnd,grd->bgnr", n, self.Wv, optimize=True)
        return values if self.bv is None else values + self.bv[:, None]


def _check_part(name: str, part: Array | None, *, wanted: bool, when: str) -> None:
    """Raise where a layer has a part that its wiring does not know, or lacks one that it names."""
    if wanted and part is None:
        raise InvalidInput(f"a layer with {when} needs {name}.")
    if not wanted and part is not None:
        raise InvalidInput(f"a layer with {when} has no {name}.")
