r"""Scores of a head in coordinates of the ball, and what positions make of them.

$$\ell_i = \kappa\big((W_q y + b_q)^\top R(\Delta_i)(W_k n_i + b_k)/\sqrt r\big) + T(\Delta_i)$$

with $\kappa$ a cap or nothing, and T in the span of a few columns: one per displacement for a
table, one for ALiBi, none otherwise. Where queries and keys have a norm of their own, v of either
is read as $g \circ v/\sqrt{\mathrm{mean}\,v^2 + \epsilon}$.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Float, Indices, Matrix, Vector
from keyhole.models import Wiring


@dataclass(frozen=True, eq=False, slots=True)
class ScoreForm:
    """What is known of the scores of every head.

    Args:
        frequencies: of rotary positions, one per turned pair; none without them.
        columns: displacements x free numbers: what T is made of.
        cap: of the scores, None where they are not capped.
        biased: whether queries and keys may have biases.
        sinks: whether a further score, the last free number, takes weight and has no value.
        head_eps: of the norm of queries and keys, None where they have none.
        still: whether the query is one that is known, whatever the last token is.
    """

    frequencies: Vector
    columns: Matrix
    cap: float | None
    biased: bool
    sinks: bool = False
    head_eps: float | None = None
    still: bool = False

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are turned."""
        return len(self.frequencies) > 0

    @property
    def key_biased(self) -> bool:
        """Whether a key bias shows: without turns or a cap it adds the same to every score."""
        return self.biased and (self.rotary or self.cap is not None)

    @property
    def longest(self) -> int:
        """How many displacements T knows."""
        return len(self.columns)

    def list_columns(self, length: int) -> Matrix:
        """What T is made of in sequences of that length; behind them a row for the sink."""
        columns = self.columns[:length]
        if not self.sinks:
            return columns
        rows, free = columns.shape
        return np.block([[columns, np.zeros((rows, 1))], [np.zeros((1, free)), np.ones((1, 1))]])

    def turn(self, vectors: Array, displaced: Indices) -> Array:
        """Keys as the last token sees them from so far; queries by minus as much."""
        if not self.rotary:
            return vectors
        angles = -displaced[..., None] * self.frequencies
        pairs = angles.shape[-1]
        first, second = vectors[..., :pairs], vectors[..., pairs : 2 * pairs]
        cos, sin = np.cos(angles), np.sin(angles)
        turned = [first * cos - second * sin, second * cos + first * sin]
        if vectors.shape[-1] > 2 * pairs:
            rest = vectors[..., 2 * pairs :]
            turned.append(np.broadcast_to(rest, (*turned[0].shape[:-1], rest.shape[-1])))
        return np.concatenate(turned, axis=-1)

    def norm_head(self, vectors: Array, gain: Vector) -> Array:
        """Queries or keys behind a norm of their own, if they have one."""
        if self.head_eps is None:
            return vectors
        return gain * vectors / _measure_size(vectors, self.head_eps)

    def derive_norm(self, slopes: Array, vectors: Array, gain: Vector) -> tuple[Array, Array]:
        r"""Derivatives by queries or keys, and by gains, from those by what a norm makes of them.

        $$\frac{g \circ s - u\,\mathrm{mean}(u \circ g \circ s)}{\rho}, \quad s \circ u, \qquad
        u = v/\rho$$
        """
        if self.head_eps is None:
            return slopes, np.zeros((*slopes.shape[:-1], 0))
        size = _measure_size(vectors, self.head_eps)
        u = vectors / size
        along = gain * slopes
        return (along - u * (along * u).mean(axis=-1, keepdims=True)) / size, slopes * u

    def limit(self, scores: Array) -> tuple[Array, Array]:
        """Capped scores, and the slope of the cap there."""
        if self.cap is None:
            return scores, np.ones_like(scores)
        capped = self.cap * np.tanh(scores / self.cap)
        return capped, 1.0 - (capped / self.cap) ** 2

    def uncap(self, scores: Array) -> Array:
        """The scores before the cap, as far as there are any."""
        if self.cap is None:
            return scores
        return self.cap * np.arctanh(np.clip(scores / self.cap, -1.0 + 1e-12, 1.0 - 1e-12))


def _measure_size(vectors: Array, eps: float) -> Array:
    return np.sqrt((vectors**2).mean(axis=-1, keepdims=True) + eps)


def _leave_out() -> Vector:
    return np.zeros(0)


@dataclass(frozen=True, eq=False, slots=True)
class HeadScores:
    """Parameters of the scores of one head; gains where queries and keys are normed."""

    Wq: Float[Array, "rank dimension"]
    bq: Vector
    Wk: Float[Array, "rank dimension"]
    bk: Vector
    tau: Vector
    q_gain: Vector = field(default_factory=_leave_out)
    k_gain: Vector = field(default_factory=_leave_out)

    def flatten(self) -> Vector:
        """All parameters in a row."""
        return np.concatenate([part.ravel() for part in self._parts])

    @property
    def _parts(self) -> tuple[Array, ...]:
        return (self.Wq, self.bq, self.Wk, self.bk, self.tau, self.q_gain, self.k_gain)

    def refill(self, values: Vector) -> HeadScores:
        """The same shapes with other numbers."""
        ends = np.cumsum([part.size for part in self._parts])[:-1]
        pieces = np.split(values, ends)
        shaped = [
            piece.reshape(part.shape) for piece, part in zip(pieces, self._parts, strict=True)
        ]
        return HeadScores(*shaped)


def make_table(
    wiring: Wiring, displacements: int, form: ScoreForm, taus: list[Vector]
) -> Matrix | None:
    """Slopes of ALiBi or entries of a table, one row per head; None where there are neither."""
    if wiring.positions == "alibi":
        return np.stack(taus)
    if wiring.positions != "table":
        return None
    table = np.stack([form.columns @ tau for tau in taus])
    # Entries beyond the window act on nothing, and longer sequences are answered all the same.
    beyond = 0 if wiring.window is None else displacements - table.shape[1]
    return np.pad(table, ((0, 0), (0, max(0, beyond))))
