r"""Sharpening what is known of the read-outs: make one head look at x and all others away from it.

With columns $M_h o_j$ of all heads known roughly, scores along $y = \sum_j \beta_j y_j$ are known
for every x. H linear equations for $\beta$ ask for the score $+m$ of head h and $-m$ of all others.
At m = 60 no softmax differs from 0 or 1 in float64, though the scores are known to a few digits
only: $F - c - V^\top y = V_h^\top x$ to rounding.

Where a score bias acts, one more equation, $\sum_j \beta_j = 1$, makes $\sum_j \beta_j (W y_j + h)
= W y + h$.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Sequences, Vector, pin_one_thread
from keyhole.learners.layer.joint_scores import Scores, Spaces

_MARGIN = 60.0  # score of the one head, and of all others with the other sign
_LEAST = 40.0  # a margin that still makes every softmax hard
_SPARE = 1.25  # vectors per rank
_LONGER = 4.0  # |x| / |y|


def route_heads(scores: Scores, *, rng: np.random.Generator) -> Spaces | None:
    """Spaces of all heads anew, each from answers in which that head alone looked at x.

    None where no last token routes so: there are more heads than directions, or scores of two heads
    that depend.
    """
    ranks = [basis.shape[1] for basis in scores.spaces.bases]
    x = rng.normal(size=(int(np.ceil(_SPARE * max(ranks))) + 1, len(scores.readout.V)))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    with pin_one_thread():
        X, lengths = _plan_routes(scores, x)
        if X is None:
            return None
        seen = scores.oracle.ask(X.copy()) - scores.readout.base(X[:, 1])
        heads = (seen / lengths[:, None]).reshape(len(ranks), len(x), -1)
        bases = [
            np.linalg.svd(E.T, full_matrices=False)[0][:, :rank]
            for E, rank in zip(heads, ranks, strict=True)
        ]
    return Spaces.of(tuple(bases), scores.readout.V, cut=0.0, roundoff=scores.roundoff)


def _plan_routes(scores: Scores, x: Matrix) -> tuple[Sequences | None, Vector]:
    r"""Pairs $[y + \ell x; y]$ in which one head alone looks at x, heads by x, and the $\ell$.

    With P the inverse of the equations at length one, $\beta = P m / \ell + p$, p what the bias
    asks for. The length balances |x| and |y|; it settles in a few steps, since |y| falls as it
    grows.
    """
    columns = scores.columns()
    Y = scores.sy * scores.directions.Y[: scores.known]
    margins = _MARGIN * (2.0 * np.eye(len(columns)) - 1.0)
    forms = scores.directions.weight * np.einsum("nd,hdk->nhk", x, columns)
    whole = np.ones((len(x), int(scores.readout.biased), len(Y)))
    equations = np.concatenate([forms, whole], axis=1)
    P = np.linalg.pinv(equations, rcond=1e-10)
    moving = np.einsum("nkh,eh->enk", P[:, :, : len(columns)], margins)
    still = P[:, :, len(columns) :].sum(axis=2)
    reached = np.einsum("nhk,enk->enh", forms, moving) - margins[:, None]
    biases = np.einsum("nhk,nk->nh", forms, still)
    # Dependent scores leave equations unmet: no last token routes so.
    if np.abs(reached).max() > _MARGIN - _LEAST or np.abs(biases).max() > 1.0:
        return None, np.zeros(0)
    lengths = np.ones(moving.shape[:2])
    y = moving @ Y
    for _ in range(6):
        lengths = np.sqrt(_LONGER * np.linalg.norm(y, axis=2) * lengths)
        y = (moving / lengths[:, :, None] + still) @ Y
    pairs = np.stack([y + lengths[:, :, None] * x, y], axis=2)
    return pairs.reshape(-1, 2, x.shape[1]), lengths.ravel()
