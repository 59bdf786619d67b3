"""Weights of all heads read out of one answer together, where no rows read one of them alone."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Stack
from keyhole.learners.positions.placed import Placed
from keyhole.learners.positions.score_maps import ReadScores, weigh_logarithms

ROOM = 0.8  # of the outputs, that weights to be read may fill


def count_read_tokens(outputs: int, heads: int, rank: int) -> int:
    """Tokens beside the last, whose weights of all heads an answer tells."""
    return max(1, min(rank - 1, int(ROOM * outputs / heads) - 1))


def read_joint_scores(A: Stack, placed: Placed) -> list[ReadScores]:
    """Score differences of every head; those that cannot be read weigh nothing."""
    count, tokens, _ = placed.n.shape
    made = np.einsum("hod,qtd->qoht", A, placed.n).reshape(count, A.shape[1], -1)
    inverse = np.asarray(np.linalg.pinv(made), dtype=np.float64)
    shares = np.einsum("qxo,qo->qx", inverse, placed.answers).reshape(count, len(A), tokens)
    blurred = np.linalg.norm(inverse, axis=2).reshape(count, len(A), tokens)
    return [weigh_logarithms(shares[:, h], blurred[:, h]) for h in range(len(A))]
