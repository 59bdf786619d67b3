r"""What one x shows of every head: its row $w_h = W_h^\top x$ and $D_h \cdot x$, then all of $D_h$.

At the angle where head h switches every other head is hard once $\tau$ is large enough, and the
logit of h is proportional to any move of y: each costs one query. Rows known, every y has a
foretold pattern of heads that are on; H patterns whose signs are independent give $D_h \cdot x$ for
all h at once, for x and for each of d - 1 small moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, Vector
from keyhole.learners.several_heads.circle import PairCircle, Steps, find_steps, locate_on_circle
from keyhole.learners.several_heads.pairs import (
    Indices,
    Pairs,
    Unresolved,
    is_readable,
    logistic,
    normalise_rows,
    read_own_logits,
    round_to_powers,
)

Read = Callable[[Indices, Vector], Vector]

OWN = 1.5  # logit aimed at
_FLAT = 2.0**-6  # the same in a rough search: sums of sigmoids are straight there
_MERGED = 2.0**-11  # width of a bracket that a rough search does not look into
_BENT = 0.1  # misfit of a third logit that a rough search allows
_AGAIN_ROUGH = 2  # rounds more, from the boundary points that the last one foretells
DRAWS = 3000  # of y, among which those far from all boundaries are looked for
_READABLE = 7.0  # larger logits are asked again with a smaller move
_AGAIN = 10  # times
_SHRINK = 0.125  # of the move, each time
_DECODED = 3  # times that the same answers are decoded with better rows
_CHECKS = 12  # fresh y that must show the steps foretold
_CIRCLES = 8  # tried, each with an x of its own
_ENOUGH = 3  # of them on which steps were told apart
_FAINT = 0.02  # least step over the largest, below which another x is tried
_MOVE = 0.05  # of x, where heads are to stay hard


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Rows and read-outs of all heads at one x.

    Args:
        x: the direction of the first token.
        w: W_h^T x, one row per head.
        J: D_h.x, one row per head.
        hard: product of lengths at which all are hard but at their boundaries.
        angles: where each head switched on the half circle on which it was found.
        own: logit to aim at when the head itself is read.
    """

    x: Vector
    w: Matrix
    J: Matrix
    hard: float
    angles: Vector
    own: float = OWN

    @property
    def faintest(self) -> float:
        """The least read-out, or row, over the largest."""
        sizes = np.abs(self.J).max(axis=1)
        norms = np.linalg.norm(self.w, axis=1)
        return float(min(sizes.min() / sizes.max(), norms.min() / norms.max()))


@dataclass(frozen=True, eq=False, slots=True)
class RowSearch:
    """Where to look for steps: products of lengths, and how many steps are too many.

    A rough search takes steps that nearly or wholly coincide for one, and reads its slope where
    that is well defined: at small logits.
    """

    soft: float
    hard: float
    most: int
    rough: bool = False

    def circle(self, pairs: Pairs, x: Vector, Y: Matrix) -> PairCircle:
        """Half a circle on which to look."""
        narrowest = max(2.0**-28, 2.0**6 * pairs.roundoff, 2.0**12 * self.soft / self.hard)
        circle = PairCircle(pairs, x, Y, self.hard, narrowest, self.most)
        # A rough search neither looks into a bracket nor asks that it be one head's.
        if self.rough:
            return replace(circle, narrowest=max(narrowest, _MERGED), straight=_BENT)
        return circle

    @property
    def own(self) -> float:
        """Logit aimed at."""
        return _FLAT if self.rough else OWN


def find_rows(pairs: Pairs, search: RowSearch, rng: np.random.Generator) -> Rows:
    """Steps on one circle, then every row in full: about 20 + d queries per head.

    Of a few x the first is taken that no read-out is almost orthogonal to, else the one with the
    largest least step.

    Raises:
        Unresolved: on no circle could the steps be told apart.
    """
    tried: list[Rows] = []
    for _ in range(_CIRCLES):
        x = normalise_rows(rng.normal(size=len(pairs.B)))
        try:
            tried.append(_find_rows_at(pairs, search, x, rng))
        except Unresolved:
            continue
        if tried[-1].faintest > _FAINT or len(tried) == _ENOUGH:
            break
    if not tried:
        raise Unresolved
    return max(tried, key=lambda rows: (len(rows.w), rows.faintest))


def _find_rows_at(pairs: Pairs, search: RowSearch, x: Vector, rng: np.random.Generator) -> Rows:
    """The rows at x.

    Raises:
        Unresolved: see `find_steps`; or fresh y show other steps than the rows foretell.
    """
    Q = np.linalg.qr(rng.normal(size=(len(x), len(x))))[0].T
    steps = find_steps(search.circle(pairs, x, Q[:2]), search.soft)
    w = _measure_full_rows(pairs, x, Q, steps, search.own)
    for _ in range(_AGAIN_ROUGH if search.rough else 0):
        w = _measure_full_rows(pairs, x, Q, Steps(steps.J, w @ Q[:2].T), search.own)
    found = Rows(x, w, steps.J, search.hard, steps.roots, search.own)
    _confirm_rows(pairs, found, rng)
    return found


def _measure_full_rows(pairs: Pairs, x: Vector, Q: Matrix, steps: Steps, aim: float) -> Matrix:
    """Rows in full: the logit at each boundary point, and its change along every direction across.

    Answers are decoded twice more with the rows just found: a move may bring another head back from
    saturation.
    """
    at = locate_on_circle(steps.roots)
    a = at @ steps.A.T
    size = np.linalg.norm(steps.A, axis=1) * np.sqrt(len(x) / 2)
    tau = choose_steepness(pairs, measure_head_margins(a, np.arange(len(a))), size)
    frames = _build_frames(at, Q)
    h, k = (index.ravel().astype(np.intp) for index in np.indices((len(a), len(x))))
    move = np.where(k > 0, aim / (tau * size)[h] * np.sqrt(len(x)), 0.0)
    b = np.broadcast_to(steps.J, (len(h), *steps.J.shape))
    total = np.broadcast_to(x @ pairs.B, (len(h), len(pairs.units)))
    Y = np.zeros((len(h), len(x)))
    G = np.zeros((len(h), len(pairs.units)))

    def read(which: Indices, shrink: Vector) -> Vector:
        own = h[which]
        Y[which] = frames[own, 0] + (move[which] * shrink)[:, None] * frames[own, k[which]]
        G[which] = pairs.ask(np.broadcast_to(x, (len(own), len(x))), Y[which], tau[own])
        return read_own_logits(G[which], total[which], b[which], a[own] > 0, own)

    logits, shrink = read_logits(read, len(h))
    w = steps.A @ Q[:2]
    for _ in range(_DECODED):
        forms = (logits / tau[h]).reshape(len(a), -1)
        forms[:, 1:] = (forms[:, 1:] - forms[:, :1]) / (move * shrink).reshape(forms.shape)[:, 1:]
        w = np.einsum("hk,hkd->hd", forms, frames)
        logits = read_own_logits(G, total, b, logistic(tau[h][:, None] * (Y @ w.T)), h)
    if not is_readable(logits, 2 * _READABLE).all():
        raise Unresolved
    return w


def _build_frames(at: Matrix, Q: Matrix) -> Stack:
    """For every boundary point (cos, sin) an orthonormal basis that begins with it."""
    across = np.stack([-at[:, 1], at[:, 0]], axis=1)
    off = np.broadcast_to(Q[2:], (len(at), len(Q) - 2, len(Q)))
    return np.concatenate([(at @ Q[:2])[:, None], (across @ Q[:2])[:, None], off], axis=1)


def read_logits(read: Read, count: int) -> tuple[Vector, Vector]:
    """Readable logits of all queries, and how far the move of each had to be shrunk.

    Raises:
        Unresolved: some logit stays unreadable.
    """
    logits = np.full(count, np.nan)
    shrink = np.full(count, 1.0 / _SHRINK)
    for _ in range(_AGAIN):
        left = np.flatnonzero(~is_readable(logits, _READABLE))
        if len(left) == 0:
            return logits, shrink
        shrink[left] *= _SHRINK
        logits[left] = read(left, shrink[left])
    raise Unresolved


def measure_head_margins(a: Matrix, h: Indices) -> Vector:
    """Least size of the other heads' forms in every row of `a`; infinite when there are none."""
    sizes = np.abs(a)
    sizes[np.arange(len(a)), h] = np.inf
    return sizes.min(axis=1)


def choose_steepness(pairs: Pairs, margin: Vector, size: Vector | float) -> Vector:
    """Products of lengths at which the other heads are hard, and moves of the own are small."""
    return round_to_powers(np.sqrt(2.0) * np.maximum(pairs.saturation / margin, 8.0 / size))


def _confirm_rows(pairs: Pairs, rows: Rows, rng: np.random.Generator) -> None:
    """Refuse rows that fresh y do not bear out: a head without a step on the circle shows here."""
    Y = normalise_rows(rng.normal(size=(_CHECKS, len(rows.x))))
    G = pairs.ask(np.broadcast_to(rows.x, Y.shape), Y, rows.hard)
    foretold = (rows.x @ pairs.B - rows.J.sum(axis=0)) / 2 + (Y @ rows.w.T > 0) @ rows.J
    if not np.abs(G - foretold).max() <= 2.0**14 * pairs.roundoff * np.abs(rows.J).max():
        raise Unresolved


def extend_to_basis(x: Vector) -> Matrix:
    """Orthonormal rows, the first of them x."""
    M = np.eye(len(x))
    M[:, 0] = x
    Q = np.linalg.qr(M)[0].T
    Q[0] = x
    return Q


def measure_readouts(pairs: Pairs, rows: Rows, rng: np.random.Generator) -> Stack:
    """D of every head, from H patterns at each of d vectors near x.

    Raises:
        Unresolved: no H independent patterns were found, or x itself shows other values than its
            steps.
    """
    heads, d = rows.w.shape
    Y, signs, margin = _choose_sign_patterns(rows.w, rng)
    move = min(_MOVE, margin / 10)
    q = extend_to_basis(rows.x)
    X = rows.x + move * q
    X[0] = rows.x
    G = pairs.ask(np.repeat(X, heads, axis=0), np.tile(Y, (d, 1)), rows.hard).reshape(d, heads, -1)
    values = np.linalg.solve(signs, 2 * G - (X @ pairs.B)[:, None])
    if not np.abs(values[0] - rows.J).max() <= 2.0**14 * pairs.roundoff * np.abs(rows.J).max():
        raise Unresolved
    return solve_readouts(q, np.asarray(values, dtype=np.float64), move)


def solve_readouts(q: Matrix, values: Stack, move: float) -> Stack:
    """D_h from D_h.x at x, the first row of the basis q, and at its moves along all others."""
    along = (values - values[:1]) / move
    along[0] = values[0]
    return np.einsum("kd,kho->hdo", q, along)


def _choose_sign_patterns(w: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix, float]:
    """H vectors y far from all boundaries, with independent signs, and their least distance."""
    Y = normalise_rows(rng.normal(size=(DRAWS, w.shape[1])))
    a = Y @ normalise_rows(w).T * np.sqrt(w.shape[1])
    distance = np.abs(a).min(axis=1)
    chosen: list[int] = []
    span = np.zeros((0, len(w)))
    # The farthest first, so that the basis of signs keeps as clear of boundaries as can be.
    for i in np.argsort(-distance):
        sign = np.sign(a[i])
        new = sign - span.T @ (span @ sign)
        if np.linalg.norm(new) > 0.1:
            span = np.vstack([span, normalise_rows(new)])
            chosen.append(int(i))
        if len(chosen) == len(w):
            return Y[chosen], np.sign(a[chosen]), float(distance[chosen].min())
    raise Unresolved


def draw_complement(w: Vector, rng: np.random.Generator) -> Matrix:
    """A random orthonormal basis of the vectors orthogonal to w."""
    M = rng.normal(size=(len(w), len(w)))
    M[:, 0] = w
    return np.linalg.qr(M)[0].T[1:]


def choose_boundary_basis(
    w: Matrix, h: int, rng: np.random.Generator, tries: int = 30
) -> tuple[Matrix, Vector]:
    """An orthonormal basis of the complement of w_h clear of other boundaries, with its margins."""
    bases = [draw_complement(w[h], rng) for _ in range(tries if len(w) > 1 else 1)]
    clear = [measure_head_margins(Z @ w.T, np.full(len(Z), h)) for Z in bases]
    best = int(np.argmax([margin.min(initial=np.inf) for margin in clear]))
    return bases[best], clear[best]


def draw_clear_directions(
    w: Matrix, h: int, off: Vector, rng: np.random.Generator, draws: int = 400
) -> tuple[Matrix, Vector]:
    """Random unit vectors orthogonal to `off`, with margins from boundaries of heads but h."""
    u = off / np.linalg.norm(off)
    Y = rng.normal(size=(draws, len(u)))
    Y = normalise_rows(Y - np.outer(Y @ u, u))
    return Y, measure_head_margins(Y @ w.T, np.full(draws, h))


def apply_readouts(X: Matrix, D: Stack) -> Array:
    """D_h.x for every row and head."""
    return np.einsum("nd,hdo->nho", X, D)
