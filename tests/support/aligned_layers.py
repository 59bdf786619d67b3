"""A layer in the coordinates of another one: maps that no answer shows, chosen so that it is near.

For layers of one wiring, without groups, whose truth has neither gain nor shift.
"""

from dataclasses import replace

import numpy as np


def align_layer(truth, model):
    """The truth with the order of heads, values, queries and keys of a model that is nearly it."""
    order = [
        int(
            np.argmin(
                [np.linalg.norm(Wo @ Wv - made) for Wo, Wv in zip(truth.Wo, truth.Wv, strict=True)]
            )
        )
        for made in model.Wo @ model.Wv
    ]
    names = ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bv", "table")
    known = {name: getattr(truth, name) for name in names}
    truth = replace(
        truth, **{name: part[order] for name, part in known.items() if part is not None}
    )
    parts = {name: getattr(truth, name).copy() for name in ("Wq", "Wk", "Wv", "Wo")}
    rotary = truth.wiring.positions == "rope"
    for h in range(truth.heads):
        values = _list_all(truth.rank)
        for _ in range(4):
            E = _find_push(model.Wv[h], parts["Wv"][h], model.Wo[h].T, parts["Wo"][h].T, values)
            parts["Wv"][h] = E @ parts["Wv"][h]
            parts["Wo"][h] = parts["Wo"][h] @ np.linalg.inv(E)
            moves = _list_pairs(truth.rank) if rotary else values
            E = _find_push(model.Wk[h], parts["Wk"][h], model.Wq[h], parts["Wq"][h], moves)
            parts["Wk"][h] = E @ parts["Wk"][h]
            parts["Wq"][h] = np.linalg.inv(E).T @ parts["Wq"][h]
    if truth.table is not None and truth.wiring.positions == "table":
        parts["table"] = truth.table - truth.table[:, :1]
    return replace(truth, **parts)


def list_shares(truth, found):
    """Errors of all tensors that have error bars, in standard errors."""
    near = align_layer(truth, found.model)
    return np.concatenate(
        [
            ((getattr(found.model, name) - getattr(near, name))[bar > 0] / bar[bar > 0]).ravel()
            for name, bar in found.bars.items()
        ]
    )


def _list_all(rank):
    return np.eye(rank * rank).reshape(-1, rank, rank)


def _list_pairs(rank):
    """Complex numbers by which pairs are multiplied."""
    pairs, moves = rank // 2, []
    for f in range(pairs):
        grow, turn = np.zeros((2, rank, rank))
        grow[f, f] = grow[f + pairs, f + pairs] = 1.0
        turn[f, f + pairs], turn[f + pairs, f] = -1.0, 1.0
        moves += [grow, turn]
    return moves


def _find_push(wanted, own, wanted_back, own_back, moves):
    """The map that brings one side nearest, and its inverse the other; first the one side alone."""
    far = np.linalg.norm(wanted - own) > 1e-2 * np.linalg.norm(wanted)
    A = [(E @ own).ravel() for E in moves]
    if far:
        found = np.linalg.lstsq(np.stack(A, 1), wanted.ravel(), rcond=None)[0]
        return np.tensordot(found, np.stack(moves), 1)
    A = [np.concatenate([a, (-E.T @ own_back).ravel()]) for a, E in zip(A, moves, strict=True)]
    b = np.concatenate([(wanted - own).ravel(), (wanted_back - own_back).ravel()])
    found = np.linalg.lstsq(np.stack(A, 1), b, rcond=None)[0]
    return np.eye(len(own)) + np.tensordot(found, np.stack(moves), 1)
