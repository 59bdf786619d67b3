r"""Telling heads apart by tokens without a value.

Heads that share value maps leave $M = \sum_h A_h$ a kernel, which is that of all value maps. Where
the last tokens are y in the kernel and an earlier one is $v + z$ with z in it too,

$$F - b = \sum_h A_h v\, \sigma(\beta_h + a_h^\top(v + z))$$

for every v and z, whatever the positions and biases are: z moves weights alone. Differences along
z are $\sum_h c_h \sigma'_h a_h^\top z$ with $c_h = A_h v$, second ones $\sum_h c_h \sigma''_h
(a_h^\top w)(a_h^\top z)$: the eigenvectors of one over the other are the $c_h$. Then directions are
known that move the weight of one head alone, at every v: whatever they change is $A_h v$, and r
tokens v span what head h answers. A fit of $(\beta_h, a_h)$, rows eliminated, ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Array, Float, Matrix, Stack, Vector
from keyhole.learners.positions.grouped.sharing import solve_least_squares
from keyhole.learners.positions.head_fit import is_coarse
from keyhole.learners.positions.head_pencil import (
    Moves,
    Separated,
    limit_scores,
    sharpen_head,
)
from keyhole.learners.positions.placed import Asking, LinearPart

_RANK = 1e-9  # of the largest singular value: less is rounding
TURNS = 3  # directions of second differences that are tried before another y
_APART = 3e-3  # of the largest eigenvalue, which differences of small steps do not blur
_STEP = 1e-3
_COARSE_STEP = 0.08
_COARSE_APART = 0.03
_PART = 0.6
BATCH = 4
_LEFT = 1e-6  # of answers, which a wrong head leaves
# Least singular value of all rows together: of a head that was found twice it is what fits leave.
_INDEPENDENT = 1e-6
_COARSE_INDEPENDENT = 1e-4
_READABLE = 1e-4  # weights nearer to 0 or 1 are not read
_ROUGH = 1e-3  # directions that rough weights do not tell
_FAINT = 3e-5  # of the largest slope
_SAME = 1e-9  # of a token
_STEPS = 30
_ODDS_STEPS = 6


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """What rounding of answers allows.

    Args:
        rank: share of the largest singular value, below which others are rounding.
        step: of second differences, as a share of the radius of the ball.
        apart: share of the largest eigenvalue that others must differ by.
        left: of answers, which a wrong head leaves.
        coarse: whether answers are rounded to less than float64.
        normed: whether queries and keys have a norm of their own: scores are odd in tokens.
        value: size of what has a value, a share of the radius of the ball.
        move: size of what moves weights.
    """

    rank: float
    step: float
    apart: float
    left: float
    coarse: bool = False
    normed: bool = False
    value: float = _PART
    move: float = _PART

    @classmethod
    def of(cls, roundoff: float) -> SplitLimits:
        """Limits for answers rounded so, where scores are linear in tokens."""
        if is_coarse(roundoff):
            return cls(100.0 * roundoff, _COARSE_STEP, _COARSE_APART, 1e3 * roundoff, coarse=True)
        return cls(_RANK, _STEP, _APART, _LEFT)

    @property
    def faint(self) -> float:
        """Share of the largest slope, below which others are not seen."""
        return self.step**1.5 if self.coarse else _FAINT


@dataclass(frozen=True, eq=False, slots=True)
class SharedSplit:
    """Heads told apart.

    Args:
        V: rows of every head (heads x rank x directions).
        shown: outputs x directions: an orthonormal basis of what answers lie in.
    """

    V: Stack
    shown: Matrix


@dataclass(eq=False, slots=True)
class KernelTry:
    """One last token y, and all that is asked at it."""

    asking: Asking
    linear: LinearPart
    length: int
    size: float
    limits: SplitLimits
    cap: float | None
    rng: np.random.Generator
    y: Vector = field(init=False)
    kernel: Matrix = field(init=False)
    valued: Matrix = field(init=False)
    v: Vector = field(init=False)
    seen: Matrix | None = field(init=False, default=None)
    tokens: list[Matrix] = field(default_factory=list[Matrix], init=False)
    answers: list[Matrix] = field(default_factory=list[Matrix], init=False)

    def __post_init__(self) -> None:
        rows = np.linalg.svd(self.linear.M)[2]
        count = len(find_row_space(self.linear.M, self.limits.rank))
        self.valued, self.kernel = rows[:count], rows[count:]
        self.y = self.size * self._draw(self.kernel)
        self.v = self.limits.value * self._draw(self.valued)

    def _draw(self, basis: Matrix) -> Vector:
        """A vector of the radius of the ball in a space."""
        drawn = self.rng.normal(size=len(basis)) @ basis
        return np.sqrt(basis.shape[1]) * drawn / np.linalg.norm(drawn)

    def _ask(self, tokens: Matrix) -> Matrix:
        """Answers where these tokens stand before the last ones, less the constant."""
        answers = self._ask_each(tokens)
        if self.limits.normed:
            opposite = tokens - 2.0 * tokens @ self.valued.T @ self.valued
            answers = 0.5 * (answers - self._ask_each(opposite))
        self.tokens.append(tokens)
        self.answers.append(answers)
        return answers

    def _ask_each(self, tokens: Matrix) -> Matrix:
        n = np.tile(self.y, (len(tokens), self.length, 1))
        n[:, -2] = tokens
        return self.asking.ask(n) - self.linear.constant

    def _list_asked(self) -> tuple[Matrix, Matrix]:
        """All tokens that were asked, and the answers."""
        return np.concatenate(self.tokens), np.concatenate(self.answers)

    def see(self) -> float:
        """How evenly moves change what heads answer: 1 for all alike, 0 where some head is unseen.

        Heads whose weight at y is nearly 0 or 1 are hardly moved.
        """
        self.seen = self._see_heads()
        if self.seen is None or len(self.seen) < 2:
            return 0.0
        answers = self._list_asked()[1]
        changes = np.linalg.svd(answers - answers.mean(axis=0), compute_uv=False)
        return float(changes[len(self.seen) - 1] / changes[0])

    def run(self) -> SharedSplit | None:
        """Rows of all heads, None where they do not explain the answers."""
        if self.seen is None and not self.see():
            return None
        seen = self.seen
        if seen is None or len(seen) < 2:
            return None
        duals = self._find_duals(self.v, seen)
        if duals is None:
            return None
        spans = self._span_heads(duals)
        shown = find_row_space(self._list_asked()[1], self.limits.rank).T
        heads, directions = len(seen), shown.shape[1]
        if directions % heads:
            return None
        return self._sharpen(spans @ shown, directions // heads, shown)

    def _see_heads(self) -> Matrix | None:
        """What heads make of one v, a basis: as many rows as there are heads.

        Moves in the kernel change weights alone, so that answers to them span no more.
        """
        answers = np.zeros((0, len(self.linear.M)))
        while len(answers) < min(len(self.kernel), len(self.linear.M)) + BATCH:
            moved = np.stack([self._draw(self.kernel) for _ in range(BATCH)])
            if self.limits.normed:
                # Scores of opposite tokens are opposite.
                moved = np.concatenate([moved[::2], -moved[::2]])
            answers = np.concatenate([answers, self._ask(self.v + self.limits.move * moved)])
            space = find_row_space(answers, self.limits.rank)
            if len(space) < len(answers):
                return space
        return None

    def _find_duals(self, v: Vector, seen: Matrix) -> Matrix | None:
        """Directions of the kernel that move the weight of one head each."""
        size, heads = len(self.kernel), len(seen)
        step = self.limits.step * np.sqrt(self.kernel.shape[1])
        for _ in range(TURNS):
            turn = np.linalg.qr(self.rng.normal(size=(size, size)))[0][: heads + 1]
            moves, slopes, bends = self._ask_bends(v, step * turn @ self.kernel)
            slopes, bends = slopes @ seen.T, bends @ seen.T
            # Where a group has more heads than a head is large, no direction moves one alone.
            if len(find_row_space(slopes, self.limits.faint)) < heads:
                return None
            mixed = _find_eigenvectors(solve_least_squares(slopes, bends).T, self.limits.apart)
            if mixed is None:
                continue
            moved = np.linalg.solve(mixed, slopes.T)
            if self.limits.coarse:
                moved = self._sharpen_slopes(v, seen, moves, mixed)
            if moved is not None:
                duals = np.linalg.pinv(moved).T @ turn @ self.kernel
                return duals / np.linalg.norm(duals, axis=1, keepdims=True)
        return None

    def _sharpen_slopes(
        self, v: Vector, seen: Matrix, moves: Moves, mixed: Matrix
    ) -> Matrix | None:
        """Slopes of all heads along the frame, fitted; None where they leave too much."""
        M = np.zeros((len(seen), moves.delta.shape[1]))
        M[:, 0] = seen @ (self.linear.M @ v)
        known = Moves(moves.delta, moves.answers @ seen.T)
        fits = [_fit_rows(row[None], known, M, self.cap) for row in np.linalg.inv(mixed)]
        sure = max(fit.left for fit in fits) < self.limits.left
        return np.stack([fit.slope[1:] for fit in fits]) if sure else None

    def _ask_bends(self, v: Vector, frame: Matrix) -> tuple[Moves, Matrix, Matrix]:
        """First and second differences at v: along a frame, and along one direction of it too.

        Returns:
            The moves as (1, coordinates in the frame), first differences, and second ones.
        """
        w = self.rng.normal(size=len(frame))
        w *= 0.5 / np.linalg.norm(w)
        z = 0.5 * np.eye(len(frame))
        at = np.concatenate([z + w, z - w, -z + w, -z - w])
        answers = self._ask(v + at @ frame)
        plus, minus, back, far = np.split(answers, 4)
        moves = Moves(np.column_stack([np.ones(len(at)), at]), answers)
        return moves, plus + minus - back - far, plus - minus - back + far

    def _span_heads(self, duals: Matrix) -> Float[Array, "heads tokens outputs"]:
        """What every head makes of some tokens v, as many as span it."""
        heads, outputs = len(duals), len(self.linear.M)
        far = self.limits.move * np.sqrt(self.kernel.shape[1]) * duals
        made: list[Matrix] = []
        while len(made) < max(1, outputs // heads):
            v = self.limits.value * self._draw(self.valued)
            answers = self._ask(np.concatenate([v[None], v + far]))
            change = answers[1:] - answers[0]
            made.append(change / np.linalg.norm(change, axis=1, keepdims=True))
            # The first v spans too: where a further one adds nothing, the heads are spanned.
            spanned = find_row_space(self._list_asked()[1], self.limits.rank)
            if len(spanned) < heads * (len(made) + 1):
                break
        return np.stack(made, axis=1)

    def _sharpen(self, spans: Stack, rank: int, shown: Matrix) -> SharedSplit | None:
        """Rows that annul what all other heads answer, each head fitted by itself."""
        if spans.shape[1] < rank:
            return None
        bases = [np.linalg.svd(span)[2][:rank] for span in spans]
        dual = np.linalg.pinv(np.concatenate(bases)).T.reshape(len(bases), rank, -1)
        M, tokens, answers = shown.T @ self.linear.M, *self._list_asked()
        if self.cap is not None and self.linear.biased:
            # A bias of keys adds to scores before the cap.
            tokens = np.column_stack([tokens, np.ones(len(tokens))])
            M = np.column_stack([M, np.zeros(len(M))])
        moves = Moves(tokens, answers @ shown)
        if self.limits.normed:
            moves = replace(moves, scored=_list_odd_features(tokens @ self.kernel.T))
        heads = [_fit_rows(V, moves, M, self.cap) for V in dual]
        rows = np.concatenate([head.V for head in heads])
        least = float(np.linalg.svd(rows, compute_uv=False)[-1])
        apart = least > (_COARSE_INDEPENDENT if self.limits.coarse else _INDEPENDENT)
        if apart and max(head.left for head in heads) < self.limits.left:
            return SharedSplit(np.stack([head.V for head in heads]), shown)
        return None


def _list_odd_features(z: Matrix) -> Matrix:
    """Columns of which any odd function of the rows is made: one for each, up to sign."""
    known = np.zeros((0, z.shape[1]))
    features = np.zeros((len(z), len(z)))
    sizes = np.linalg.norm(z, axis=1)
    for row in np.flatnonzero(sizes > _SAME * sizes.max()):
        vector, near = z[row], _SAME * sizes[row]
        for sign in (1.0, -1.0):
            at = np.linalg.norm(known - sign * vector, axis=1) <= near
            features[row, : len(known)] += sign * at
        if not features[row].any():
            features[row, len(known)] = 1.0
            known = np.vstack([known, vector])
    return features[:, : len(known)]


def find_row_space(matrix: Matrix, share: float) -> Matrix:
    """An orthonormal basis of what rows span but for a share of the largest, which is rounding."""
    try:
        _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # Seldom no end is found for a matrix, though one is for its transpose.
        columns, sizes, _ = np.linalg.svd(matrix.T, full_matrices=False)
        rows = columns.T
    return rows[: int((sizes > share * sizes[0]).sum())]


def _find_eigenvectors(matrix: Matrix, share: float) -> Matrix | None:
    """Eigenvectors in columns, None where eigenvalues are not real and apart."""
    values, vectors = (np.asarray(part, dtype=np.complex128) for part in np.linalg.eig(matrix))
    apart = np.abs(values[:, None] - values)[~np.eye(len(values), dtype=bool)]
    real = float(np.abs(values.imag).max()) == 0.0
    if not real or apart.min() < share * float(np.abs(values).max()):
        return None
    return vectors.real


def _fit_rows(rough: Matrix, moves: Moves, M: Matrix, cap: float | None) -> Separated:
    """One head fitted from rough rows, which read its weights first."""
    rows = np.linalg.qr(rough.T)[0].T
    values, made = moves.delta @ (rows @ M).T, moves.answers @ rows.T
    shares = (values * made).sum(axis=1) / (values**2).sum(axis=1)
    readable = (shares > _READABLE) & (shares < 1.0 - _READABLE)
    odds = np.log(shares[readable] / (1.0 - shares[readable]))
    beta, slope = _fit_odds(odds, moves.features[readable], cap)
    return sharpen_head(moves, M, rank=len(rows), beta=beta, slope=slope, steps=_STEPS, cap=cap)


def _fit_odds(odds: Vector, delta: Matrix, cap: float | None) -> tuple[float, Vector]:
    """Constant and slope of rough odds; the slope is that before the cap."""
    beta, slope = 0.0, np.zeros(delta.shape[1])
    for _ in range(1 if cap is None else _ODDS_STEPS):
        scores, bent = limit_scores(delta @ slope, cap)
        features = np.column_stack([np.ones(len(odds)), bent[:, None] * delta])
        step = solve_least_squares(features, odds - beta - scores, rcond=_ROUGH)
        beta, slope = beta + float(step[0]), slope + step[1:]
    return beta, slope
