r"""Moves of the numbers of all heads that no answer shows, to first order.

Values: $W_v \to (1 + E) W_v$ and $W_o \to W_o (1 - E)$. Queries and keys likewise where nothing is
turned; of a turned pair, as complex numbers, $k \to (1 + \epsilon) k$ and $q \to (1 - \bar\epsilon)
q$. A bias of keys that are not turned adds the same to every score, unless there is a cap.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.positions.grouped.sharing import HeadMaps
from keyhole.learners.positions.head_fit import list_free
from keyhole.learners.positions.score_form import HeadScores, ScoreForm


def list_gauge_directions(heads: list[HeadMaps], form: ScoreForm, biased: bool) -> Matrix:
    """An orthonormal basis, one row each, over outputs, values and scores of every head."""
    blocks = [_list_of_head(head, form) for head in heads]
    outputs = len(heads[0].Wo) if biased else 0
    width = sum(block.shape[1] for block in blocks) + outputs
    whole = np.zeros((sum(len(block) for block in blocks), width))
    row = column = 0
    for block in blocks:
        whole[row : row + len(block), column : column + block.shape[1]] = block
        row, column = row + len(block), column + block.shape[1]
    return whole


def _list_of_head(head: HeadMaps, form: ScoreForm) -> Matrix:
    free = list_free(head.scores, form)
    none = np.zeros(int(free.sum()))
    rows = [np.concatenate([*move, none]) for move in _list_value_moves(head)]
    still = np.zeros(head.Wo.size + head.Wv.size)
    moves = _list_score_moves(head.scores, form)
    rows += [np.concatenate([still, move.flatten()[free]]) for move in moves]
    found = np.stack(rows)
    return np.linalg.qr(found[np.abs(found).max(axis=1) > 0].T)[0].T


def _list_value_moves(head: HeadMaps) -> list[tuple[Vector, Vector]]:
    rank = len(head.Wv)
    moves: list[tuple[Vector, Vector]] = []
    for E in np.eye(rank * rank).reshape(-1, rank, rank):
        moves.append(((-head.Wo @ E).ravel(), (E @ head.Wv).ravel()))
    return moves


def _list_score_moves(scores: HeadScores, form: ScoreForm) -> list[HeadScores]:
    rank, pairs = len(scores.Wk), len(form.frequencies)
    pushes: list[Matrix] = []
    for f in range(pairs):
        turn, grow = np.zeros((2, rank, rank))
        grow[f, f] = grow[f + pairs, f + pairs] = 1.0
        turn[f, f + pairs], turn[f + pairs, f] = -1.0, 1.0
        pushes += [grow, turn]
    rest = rank - 2 * pairs
    for E in np.eye(rest * rest).reshape(rest**2, rest, rest):
        push = np.zeros((rank, rank))
        push[2 * pairs :, 2 * pairs :] = E
        pushes.append(push)
    moves = [_push(scores, push) for push in pushes]
    if pairs and form.cap is None:
        nothing = _push(scores, np.zeros((rank, rank)))
        moves += [
            HeadScores(nothing.Wq, nothing.bq, nothing.Wk, unit, nothing.tau)
            for unit in np.eye(rank)[2 * pairs :]
        ]
    return moves


def _push(scores: HeadScores, push: Matrix) -> HeadScores:
    """Keys pushed by a map, queries by less its transpose."""
    return HeadScores(
        -push.T @ scores.Wq,
        -push.T @ scores.bq,
        push @ scores.Wk,
        push @ scores.bk,
        0.0 * scores.tau,
    )
