r"""Which head is which, and all scores, once the values of ids are known up to their gauge.

A prompt of ids b_1 .. b_m before q answers $f(q) + \sum_h \sum_i p_h(b_i)(A_h[b_i] - A_h[q])$,
linear in the weights p, which are read for several ids at once as long as H m of these differences
are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, permutations

import numpy as np

from keyhole._arrays import Indices, Matrix, Stack, Vector
from keyhole.learners.tokens.ratios import Pair
from keyhole.oracles.own_time import check_own_time

Ask = Callable[[list[list[int]]], Matrix]
_SHARE = 0.6  # of the rank of values, that is read at once
_RANK = 1e-6  # of the largest value, below which a direction is none
_LEAST = 1e-12  # weight below which an id is not read


def match_heads(pairs: list[Pair], answers: Matrix) -> list[Pair]:
    """Pairs with their heads in the order of the first one.

    Args:
        pairs: of ids 1 to V - 1 with id 0.
        answers: to the prompts (1, s, 0) for s from 2 on, less that to 0.
    """
    first = pairs[0]
    others = zip(pairs[1:], answers, strict=True)
    return [first, *(_reorder_heads(first, pair, answer) for pair, answer in others)]


def _reorder_heads(first: Pair, pair: Pair, answer: Vector) -> Pair:
    orders = [list(order) for order in permutations(range(len(first.odds)))]
    best = min(orders, key=lambda order: _measure_mismatch(first, pair, order, answer))
    return Pair(pair.odds[best], pair.changes[best], pair.residual)


def _measure_mismatch(first: Pair, pair: Pair, order: list[int], answer: Vector) -> float:
    odds = pair.odds[order]
    read = first.odds[:, None] * first.changes + odds[:, None] * pair.changes[order]
    predicted = (read / (1.0 + first.odds + odds)[:, None]).sum(axis=0)
    return float(np.abs(predicted - answer).max())


def count_read_at_once(changes: Stack) -> int:
    """How many ids are decoded from one prompt."""
    heads, vocabulary = changes.shape[:2]
    flat = changes.reshape(heads * vocabulary, -1)
    rank = int(np.linalg.matrix_rank(flat, tol=_RANK * max(float(np.abs(flat).max()), 1e-300)))
    return max(1, int(_SHARE * rank / heads))


def find_unread_pair(values: Stack) -> tuple[int, int] | None:
    """Two ids of the same values in a head: what one weighs beside the other moves no such answer.

    Where a head has the same values for all ids, no weight moves anything.
    """
    least = _RANK * float(np.abs(values).max())
    for own in values:
        spread = float(np.abs(own - own[0]).max())
        apart = np.abs(own[:, None] - own[None]).max(axis=2)
        np.fill_diagonal(apart, np.inf)
        first, second = np.unravel_index(int(apart.argmin()), apart.shape)
        if spread > least and apart[first, second] <= _RANK * spread:
            return int(first), int(second)
    return None


def decode_scores(
    ask: Ask, changes: Stack, lone: Matrix, rng: np.random.Generator, first: Matrix
) -> Stack:
    """Scores of every id for every query id, that of the query itself 0.

    Args:
        ask: answers to prompts of one length.
        changes: values less those of id 0, H x V x V.
        lone: answers to single ids.
        rng: draws which ids are read together.
        first: scores for the query id 0, H x V, which are known already.
    """
    heads, vocabulary = changes.shape[:2]
    many = count_read_at_once(changes)
    scores = np.zeros((heads, vocabulary, vocabulary))
    scores[:, :, 0] = first
    blocks: list[tuple[Indices, int]] = []
    for query in range(1, vocabulary):
        others = rng.permutation(np.array([t for t in range(vocabulary) if t != query]))
        blocks += [(others[i : i + many], query) for i in range(0, len(others), many)]
    # Prompts of one length are asked together.
    for _, group in groupby(sorted(blocks, key=_measure_block), key=_measure_block):
        asked = list(group)
        answers = ask([[*block.tolist(), query] for block, query in asked])
        for (block, query), answer in zip(asked, answers, strict=True):
            check_own_time()
            decoded = _decode_block(changes, block, query, answer - lone[query])
            scores[:, block, query] = decoded
    return scores


def _measure_block(block: tuple[Indices, int]) -> int:
    return len(block[0])


def _decode_block(changes: Stack, block: Indices, query: int, answer: Vector) -> Matrix:
    heads, vocabulary = changes.shape[:2]
    differences = (changes[:, block] - changes[:, [query]]).reshape(-1, vocabulary)
    weights = np.linalg.lstsq(differences.T, answer, rcond=None)[0].reshape(heads, len(block))
    own = np.maximum(1.0 - weights.sum(axis=1, keepdims=True), _LEAST)
    return np.log(np.maximum(weights, _LEAST) / own)
