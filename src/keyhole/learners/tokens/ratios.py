r"""Heads between two ids, from how often each comes: multiplicities are the only handle there is.

The prompt of a copies of s before b copies of t, u = a/b, answers $f(t) + G(u)$ with $G(u) = \sum_h
c_h u z_h/(1 + u z_h)$, $c_h = A_h[s] - A_h[t]$ and $z_h = e^{S_h[s,t] - S_h[t,t]}$. From $(1/u +
z_h)$ times a summand being constant in u follows, on the column space of G, $T G +
G\,\mathrm{diag}(1/u) = w 1^T$: T and w by least squares, the z_h as eigenvalues of T, then a fit of
$\log z$ in which the $c_h$ are solved for (variable projection).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, Vector

# How often each of the two ids comes: prompts of at most 49 ids.
COPIES = ((1, 48), (1, 16), (1, 6), (1, 3), (1, 1), (3, 1), (6, 1), (16, 1), (48, 1))
_RATIOS = np.array([a / b for a, b in COPIES])
_ODDS = (1e-4, 1e4)  # what ratios up to 48 can tell apart
_REACH = (-40.0, 40.0)  # logarithms of odds beyond which nothing changes
_ROUNDS = 100
_TIGHT = 1e-15
_APART = 1e-3  # logarithms of odds nearer than this are moved apart before they are fitted
_SPREAD = 0.3


@dataclass(frozen=True, eq=False, slots=True)
class Pair:
    """The heads between two ids.

    Args:
        odds: z, of the first id against the second, one per head.
        changes: c, how values differ, one row per head.
        residual: the largest entry that is not explained, relative to the largest.
    """

    odds: Vector
    changes: Matrix
    residual: float


def fit_pair(G: Matrix, heads: int) -> Pair:
    """The heads behind answers G, one row per ratio."""
    from scipy.optimize import least_squares

    space = np.linalg.svd(G, full_matrices=False)[2][:heads]
    Y = G @ space.T
    size = max(float(np.abs(Y).max()), 1e-300)

    def miss(logs: Any) -> Any:
        # A step beyond what ratios tell apart would overflow; there a head is on or off for good.
        shapes = _weigh_ratios(np.exp(np.clip(logs, *_REACH)))
        return ((Y - shapes @ (np.linalg.pinv(shapes) @ Y)) / size).ravel()

    start = np.log(_guess_odds(Y, heads))
    found: Any = least_squares(miss, start, max_nfev=_ROUNDS, xtol=_TIGHT, ftol=_TIGHT, gtol=_TIGHT)
    odds = np.exp(np.clip(found.x, *np.log(_ODDS)))
    shapes = _weigh_ratios(odds)
    changes = np.linalg.pinv(shapes) @ G
    left = float(np.abs(G - shapes @ changes).max()) / max(float(np.abs(G).max()), 1e-300)
    return Pair(odds, changes, left)


def _weigh_ratios(odds: Vector) -> Matrix:
    """What a head reads of the first id, ratios x heads."""
    scaled = np.outer(_RATIOS, odds)
    return scaled / (1.0 + scaled)


def _guess_odds(Y: Matrix, heads: int) -> Vector:
    """Eigenvalues of T."""
    # Small ratios would weigh most though their answers are smallest.
    weight = (_RATIOS / (1.0 + _RATIOS))[:, None]
    unknowns = np.concatenate([Y, -np.ones((len(Y), 1))], axis=1)
    wanted = -weight * Y / _RATIOS[:, None]
    solved = np.linalg.lstsq(weight * unknowns, wanted, rcond=None)[0].astype(np.float64)
    # Noise may make two equal odds a complex pair, of which the sizes are as good a start.
    odds: Vector = np.clip(np.abs(np.linalg.eigvals(solved[:heads])).astype(np.float64), *_ODDS)
    if heads > 1 and np.diff(np.sort(np.log(odds))).min() < _APART:
        odds = odds * np.exp(np.linspace(-_SPREAD, _SPREAD, heads))
    return odds
