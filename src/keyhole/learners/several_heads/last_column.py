"""The one column of every W that queries near a single x see badly, from x all over the space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.learners.several_heads.isolation import (
    Isolation,
    add_row_columns,
    measure_boundary_columns,
)
from keyhole.learners.several_heads.pairs import (
    Pairs,
    Unresolved,
    is_readable,
    normalise_rows,
    read_own_logits,
)
from keyhole.learners.several_heads.rows import (
    Rows,
    apply_readouts,
    choose_steepness,
    draw_clear_directions,
    measure_head_margins,
)

_REDRAWN = 8  # times that a y is held back before W is doubted
_REFINED = 3  # rounds: each begins with a better W and holds fewer y back
_BASES = 3  # of x to choose from
_LIMIT = 10.0  # logits that are still read


def measure_heads(pairs: Pairs, rows: Rows, D: Stack, rng: np.random.Generator) -> Stack:
    """W of every head whose row and read-out are known, r(2d - r) + 2d queries and a few each."""
    near = Isolation.near(pairs, rows, D)
    W = add_row_columns(near, measure_boundary_columns(near, rng), rng)
    return refine_row_columns(near, W, rng)


def refine_row_columns(
    near: Isolation, W: Stack, rng: np.random.Generator, *, heads: tuple[int, ...] | None = None
) -> Stack:
    """W with its columns W_h w_h, or those of some heads, measured again from d other x.

    Raises:
        Unresolved: a logit foretold as small is not, so W is not what it seemed.
    """
    W = W.copy()
    for _ in range(_REFINED):
        which = range(len(W)) if heads is None else heads
        held = [_refine_row_column(near, W, h, rng) for h in which]
        if not any(held):
            break
    return W


def _refine_row_column(near: Isolation, W: Stack, h: int, rng: np.random.Generator) -> bool:
    """Correct one column in place; whether a y was held back, so that another round does better."""
    u = near.rows.w[h] / np.linalg.norm(near.rows.w[h])
    points = _choose_precise_pairs(near, W, h, u, rng)
    X = np.array([p.x for p in points])
    reach = np.ones(len(points))
    misfit = np.full(len(points), np.nan)
    for _ in range(_REDRAWN):
        left = np.flatnonzero(np.isnan(misfit))
        if len(left) == 0:
            break
        x = X[left]
        Y = np.array([points[i].y for i in left])
        tau = np.array([points[i].tau for i in left])
        forms = np.einsum("kd,hde,ke->kh", x, W, Y)
        G = near.pairs.ask(x, Y, tau)
        own = np.full(len(left), h)
        b = apply_readouts(x, near.D)
        logits = read_own_logits(G, x @ near.pairs.B, b, forms > 0, own)
        off = np.where(is_readable(logits, _LIMIT), logits / tau - forms[:, h], np.nan)
        misfit[left] = off / (Y @ u)
        # Nearer to the boundary that x shows, errors of the column count for less.
        for i in np.flatnonzero(np.isnan(misfit)):
            reach[i] /= 16
            points[i] = _place_pair(near, W, h, u, X[i], float(reach[i]), rng)
    if np.isnan(misfit).any():
        raise Unresolved
    W[h] += np.outer(np.linalg.solve(X, misfit), u)
    return bool((reach < 1).any())


@dataclass(frozen=True, eq=False, slots=True)
class Placed:
    """A pair (x, y) at which one head is soft, and the error to expect of its form over y . u."""

    x: Vector
    y: Vector
    tau: float
    error: float


def _choose_precise_pairs(
    near: Isolation, W: Stack, h: int, u: Vector, rng: np.random.Generator
) -> list[Placed]:
    """Of several bases of x the d most precise vectors that are independent, by pivoting."""
    from scipy.linalg import qr

    X = np.concatenate([_draw_tilted_basis(near.D[h], rng) for _ in range(_BASES)])
    points = [_place_pair(near, W, h, u, x, 1.0, rng) for x in X]
    weighted = X.T / np.array([p.error for p in points])
    order = qr(weighted, mode="r", pivoting=True)[1]
    return [points[i] for i in order[: len(u)]]


def _draw_tilted_basis(D: Matrix, rng: np.random.Generator) -> Matrix:
    """Unit vectors that are a basis and all see the read-out D."""
    top = np.linalg.svd(D)[0][:, 0]
    Q = np.linalg.qr(rng.normal(size=(len(D), len(D))))[0]
    return normalise_rows(Q + np.outer(np.where(Q @ top < 0, -1.0, 1.0), top))


def _place_pair(
    near: Isolation, W: Stack, h: int, u: Vector, x: Vector, reach: float, rng: np.random.Generator
) -> Placed:
    """For x a y, far along u, at which head h is soft and others hard; `reach` holds it back."""
    rows = x @ W
    norm = float(np.linalg.norm(rows[h]))
    own = rows[h] / norm
    Y = draw_clear_directions(rows, h, own, rng)[0]
    along = u - (u @ own) * own
    side = float(np.linalg.norm(along))
    # Where u is the row itself, no y on the boundary goes along it.
    if side > 1e-6:
        Y = normalise_rows(Y - (1 - reach) * np.outer(Y @ along, along) / side**2)
    margin = measure_head_margins(Y @ rows.T, np.full(len(Y), h))
    tau = choose_steepness(near.pairs, margin, norm / np.sqrt(len(u)))
    toward = np.where((Y @ u) * (own @ u) < 0, -1.0, 1.0)
    Y = Y + (toward * near.rows.own / (tau * norm))[:, None] * own
    faint = np.abs(near.D).max() / np.abs(x @ near.D[h]).max()
    error = (norm + faint / tau) / np.abs(Y @ u)
    best = int(np.argmin(error))
    return Placed(x, Y[best], float(tau[best]), float(error[best]))
