"""An attention layer as it is built, read at its last token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Answers, PerSequence, Sequences, check_sequences
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.layers.layer_maps import LayerMaps
from keyhole.models.layers.layer_yardstick import measure_layer
from keyhole.models.yardsticks import Yardstick


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class AttentionLayer(Face, LayerMaps):
    r"""Heads behind a norm that may tell positions apart; the last position is read.

    $$f(X) = b_o + [x_N + p_N] + \sum_h W_{o,h} \sum_i \alpha_{hi} (W_{v,g} n_i + b_{v,g}), \quad
    n_i = g \circ \mathrm{norm}(x_i + p_i) + s, \quad
    \alpha_{hi} = \frac{e^{\ell_{hi}}}{e^{s_h} + \sum_j e^{\ell_{hj}}},$$

    with the scores $\ell$ of `Wiring`, g = g(h) the group of a head and the bracket where there is
    a residual. Not determined: what an invertible map of values, or of queries and keys, does to
    both its sides (with rotary positions a complex number per pair); a constant per head of a
    table; how gain, shift and biases are split between the norm and what follows it.

    Args:
        Wq: query maps.
        Wk: key maps, one per group; heads share them in order.
        Wv: value maps, one per group.
        Wo: output maps.
        wiring: what stands before the heads, and how they tell positions apart; what it does not
            tell is absent, or what most layers are built with.
        bq: query biases.
        bk: key biases.
        bv: value biases.
        bo: constant added to the answer.
        table: what displacement adds to scores, from 0 on; for ALiBi one column, the slopes, whose
            product with the displacement is subtracted.
        positions: vectors added to the tokens, the first token's first.
        sinks: scores that take weight and answer nothing.
        gain: factors behind the norm.
        shift: what is added to these products.
        q_gain: factors of normed queries.
        k_gain: factors of normed keys.
    """

    def _check_length(self, X: Sequences) -> None:
        check_sequences(X, self.width)
        if self.longest is not None and X.shape[1] > self.longest:
            raise InvalidInput(
                f"this layer knows {self.longest} positions; got sequences of {X.shape[1]} tokens."
                f" Ask at most {self.longest}."
            )

    def __call__(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        self._check_length(X)
        weights = self.attend(X).reshape(len(X), self.groups, -1, X.shape[1])
        mixed = (weights @ self.values(self.normed(X))).reshape(len(X), -1)
        answers = mixed @ self.Wo.swapaxes(1, 2).reshape(-1, self.outputs)
        if self.wiring.residual:
            answers += self.place(X)[:, -1]
        return answers if self.bo is None else answers + self.bo

    def magnitude(self, X: Sequences) -> PerSequence:
        """Largest value of a token over heads, as it appears in an answer."""
        values = np.repeat(self.values(self.normed(X)), self.heads // self.groups, axis=1)
        return np.abs(values @ self.Wo.swapaxes(1, 2)).max(axis=(1, 2, 3))

    def yardstick(self, X: Sequences, eps: float) -> Yardstick:
        """What a gap is measured by; see `layers.layer_yardstick`."""
        self._check_length(X)
        return measure_layer(self, X, eps)
