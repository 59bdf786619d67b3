r"""All of every W, from boundary points of one x.

At a z with $w_h \cdot z = 0$ and $\tau |w_e \cdot z|$ above saturation for every other e, head h
alone is soft, and stays so when x moves a little: the logit at $(x + \delta q, z)$ is $\tau
\delta\, q^\top W_h z$. So d - 1 vectors z and d vectors q give W_h on the complement of w_h at one
query per number, with neither bisection nor matching of heads between different x. The smaller
$\delta$ is, the more digits are lost: a factor $1/\delta$, some tens to thousands.

Columns are measured until one is a combination of those before it, as its first coordinates show;
of the others only the coordinates along the range are asked. The one column $W_h w_h$, along which
head h is never soft near x, is first read from $z + \beta w_h$, with $\beta$ chosen so that what is
known cancels, and then from d vectors x all over the space, each with a boundary point of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Indices, Matrix, Stack, Vector
from keyhole.learners.several_heads.pairs import Pairs, read_own_logits
from keyhole.learners.several_heads.rows import (
    Rows,
    apply_readouts,
    choose_boundary_basis,
    choose_steepness,
    draw_clear_directions,
    extend_to_basis,
    read_logits,
)

_MORE = 2  # coordinates beyond the rank that must agree
_CRUDE = 0.05  # of x: the column along the row is only to be a start
_ZERO = 2.0**-6  # of the usual coordinate: no larger one counts as zero, whatever the rounding


@dataclass(slots=True)
class Field:
    """The columns W_h z_j of one head on the complement of its row.

    Args:
        Z: orthonormal z, one per row.
        tau: product of lengths for each.
        move: how far x moves for each.
        noise: size of a coordinate that may be rounding.
        still: logits at x itself, almost zero.
        forms: coordinates along the basis, a column per z; NaN where not asked.
        rank: independent columns so far.
        growing: whether the last column was independent of those before.
    """

    Z: Matrix
    tau: Vector
    move: Vector
    noise: Vector
    still: Vector
    forms: Matrix
    rank: int = 0
    growing: bool = True


@dataclass(frozen=True, eq=False, slots=True)
class Isolation:
    """Everything that queries near one x need."""

    pairs: Pairs
    rows: Rows
    D: Stack
    q: Matrix

    @classmethod
    def near(cls, pairs: Pairs, rows: Rows, D: Stack) -> Isolation:
        """With a basis of moves that begins with x itself."""
        return cls(pairs, rows, D, extend_to_basis(rows.x))

    def fields(self, rng: np.random.Generator) -> list[Field]:
        """Boundary vectors of every head, with their logits at x."""
        fields = [self._field(h, rng) for h in range(len(self.rows.w))]
        stay = np.zeros((1, len(self.q)))
        wanted = [(h, j, stay) for h, f in enumerate(fields) for j in range(len(f.Z))]
        for (h, j, _), numbers in zip(wanted, self.coordinates(fields, wanted), strict=True):
            f = fields[h]
            f.still[j] = numbers[0] * f.tau[j] * f.move[j]
            f.forms[0, j] = f.still[j] / f.tau[j]
        return fields

    def _field(self, h: int, rng: np.random.Generator) -> Field:
        Z, margin = choose_boundary_basis(self.rows.w, h, rng)
        norm = float(np.linalg.norm(self.rows.w[h]))
        size = norm / np.sqrt(len(self.rows.x))
        tau = choose_steepness(self.pairs, margin, size)
        move = self.rows.own / (tau * size)
        # A read-out fainter than others is read with that many more of their roundings.
        faint = float(np.abs(self.rows.J).max() / np.abs(self.rows.J[h]).max())
        noise = np.minimum(2.0**7 * self.pairs.roundoff * (norm + faint / tau) / move, _ZERO * size)
        return Field(Z, tau, move, noise, np.zeros(len(Z)), np.zeros((len(self.q), len(Z))))

    def logits(self, X: Matrix, Y: Matrix, tau: Vector, h: Indices) -> Vector:
        """Own logits, the other heads being on or off as their rows at x say."""
        G = self.pairs.ask(X, Y, tau)
        on = Y @ self.rows.w.T > 0
        return read_own_logits(G, X @ self.pairs.B, apply_readouts(X, self.D), on, h)

    def coordinates(
        self, fields: list[Field], wanted: list[tuple[int, int, Matrix]]
    ) -> list[Vector]:
        """For every (head, column, directions q): the numbers q . W z."""
        counts = [len(w[2]) for w in wanted]
        h = np.repeat(np.array([w[0] for w in wanted], dtype=np.intp), counts)
        q = np.concatenate([w[2] for w in wanted])
        Z = np.repeat(np.array([fields[a].Z[b] for a, b, _ in wanted]), counts, axis=0)
        numbers = [(fields[a].tau[b], fields[a].move[b], fields[a].still[b]) for a, b, _ in wanted]
        tau, move, still = np.repeat(np.array(numbers, dtype=np.float64), counts, axis=0).T

        def read(which: Indices, shrink: Vector) -> Vector:
            X = self.rows.x + (move[which] * shrink)[:, None] * q[which]
            return self.logits(X, Z[which], tau[which], h[which])

        logits, shrink = read_logits(read, len(h))
        numbers = (logits - still) / (tau * move * shrink)
        ends = np.cumsum(counts)
        return [numbers[end - count : end] for end, count in zip(ends, counts, strict=True)]


def measure_boundary_columns(near: Isolation, rng: np.random.Generator) -> list[Matrix]:
    """W_h on the complement of w_h, as d x d matrices that send w_h to zero."""
    fields = near.fields(rng)
    d = len(near.q)
    for j in range(d - 1):
        growing = [h for h, f in enumerate(fields) if f.growing]
        first = {h: min(fields[h].rank + _MORE, d - 1) for h in growing}
        _fill_coordinates(near, fields, [(h, j, 1, 1 + first[h]) for h in growing])
        for h in growing:
            fields[h].growing = _is_independent(fields[h], j, 1 + first[h])
            fields[h].rank += fields[h].growing
        _fill_coordinates(
            near, fields, [(h, j, 1 + first[h], d) for h in growing if fields[h].growing]
        )
    return _complete_columns(near, fields)


def _fill_coordinates(
    near: Isolation, fields: list[Field], parts: list[tuple[int, int, int, int]]
) -> None:
    """Ask coordinates from..to of columns and write them down; the first, along x, is known."""
    parts = [part for part in parts if part[2] < part[3]]
    if parts:
        answers = near.coordinates(fields, [(h, j, near.q[a:b]) for h, j, a, b in parts])
        for (h, j, a, b), numbers in zip(parts, answers, strict=True):
            fields[h].forms[a:b, j] = numbers


def _is_independent(f: Field, j: int, known: int) -> bool:
    """Whether the first coordinates of column j are no combination of the columns before."""
    before = f.forms[1:known, :j]
    column = f.forms[1:known, j]
    weights = np.linalg.lstsq(before, column)[0] if j else np.zeros(0)
    misfit = np.abs(column - before @ weights).max(initial=0.0)
    allowed = f.noise[j] + float(np.abs(weights) @ f.noise[:j])
    # As few coordinates as columns are a combination of them whatever they are.
    return len(column) <= j or bool(misfit > allowed)


def _complete_columns(near: Isolation, fields: list[Field]) -> list[Matrix]:
    """The other columns of heads of low rank, along their range only."""
    ranges: dict[int, Matrix] = {}
    wanted: list[tuple[int, int, Matrix]] = []
    for h, f in enumerate(fields):
        if f.rank:
            ranges[h] = np.linalg.svd(f.forms[:, : f.rank], full_matrices=False)[0].T @ near.q
            wanted += [(h, j, ranges[h]) for j in range(f.rank, len(f.Z))]
        else:
            # Rank one: every boundary vector is sent to zero.
            f.forms[:] = 0.0
    answers = near.coordinates(fields, wanted) if wanted else []
    for (h, j, along), numbers in zip(wanted, answers, strict=True):
        fields[h].forms[:, j] = near.q @ along.T @ numbers
    return [near.q.T @ f.forms @ f.Z for f in fields]


def add_row_columns(near: Isolation, partial: list[Matrix], rng: np.random.Generator) -> Stack:
    """W with its columns W_h w_h, roughly."""
    units = near.rows.w / np.linalg.norm(near.rows.w, axis=1, keepdims=True)
    columns = [_measure_row_column(near, W, h, rng) for h, W in enumerate(partial)]
    return np.stack(partial) + np.einsum("hd,he->hde", np.stack(columns), units)


def _measure_row_column(near: Isolation, W: Matrix, h: int, rng: np.random.Generator) -> Vector:
    """The column along w_h, from y = z + beta w_h; what z does to a moved x cancels."""
    rows, q = near.rows, near.q
    norm = float(np.linalg.norm(rows.w[h]))
    Z, margin = draw_clear_directions(rows.w, h, rows.w[h], rng)
    best = int(np.argmax(margin))
    tau = float(choose_steepness(near.pairs, margin[best : best + 1], norm / np.sqrt(len(q)))[0])
    move = min(_CRUDE * min(1.0, 8.0 * rows.own), float(margin[best]) / norm * np.sqrt(len(q)) / 10)
    moves = np.where(np.arange(len(q)) > 0, move, 0.0)[:, None] * q
    still = near.logits(rows.x[None], Z[best : best + 1], np.full(1, tau), np.full(1, h))[0]
    known = moves @ W @ Z[best] / norm

    def read(which: Indices, shrink: Vector) -> Vector:
        beta = rows.own / (tau * norm) - shrink * known[which]
        Y = Z[best] + beta[:, None] * (rows.w[h] / norm)
        X = rows.x + shrink[:, None] * moves[which]
        return near.logits(X, Y, np.full(len(which), tau), np.full(len(which), h))

    logits, shrink = read_logits(read, len(q))
    beta = rows.own / (tau * norm) - shrink * known
    forms = ((logits - still) / tau - shrink * known * norm) / beta
    return q.T @ np.append(forms[0], (forms[1:] - forms[0]) / (move * shrink[1:]))
