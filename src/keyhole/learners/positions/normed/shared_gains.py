r"""Gains that all heads share, from heads fitted one by one.

Without turns only products of the gains of queries and keys show, in any order. With them a pair
may be turned by a quarter, and gains of its queries may grow as those of its keys fall. Signs go
into the maps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import Mask, Matrix
from keyhole.learners.positions.score_form import HeadScores, ScoreForm


def share_gains(heads: list[HeadScores], form: ScoreForm) -> list[HeadScores]:
    """The same heads with gains in common, those of the first; with the mean of all."""
    if form.rotary:
        settled = [_even_pairs(_make_positive(head)) for head in heads]
        aligned = [_align_pairs(head, settled[0]) for head in settled]
    else:
        aligned = [_sort_products(_make_positive(head)) for head in heads]
    q_gain = np.mean([head.q_gain for head in aligned], axis=0)
    k_gain = np.mean([head.k_gain for head in aligned], axis=0)
    return [replace(head, q_gain=q_gain, k_gain=k_gain) for head in aligned]


def _make_positive(head: HeadScores) -> HeadScores:
    signs = np.where(np.stack([head.q_gain, head.k_gain]) < 0, -1.0, 1.0)
    return replace(
        head,
        Wq=head.Wq * signs[0][:, None],
        Wk=head.Wk * signs[1][:, None],
        q_gain=head.q_gain * signs[0],
        k_gain=head.k_gain * signs[1],
    )


def _sort_products(head: HeadScores) -> HeadScores:
    products = head.q_gain * head.k_gain
    order = np.argsort(-products)
    even = np.sqrt(products[order])
    return replace(head, Wq=head.Wq[order], Wk=head.Wk[order], q_gain=even, k_gain=even)


def _even_pairs(head: HeadScores) -> HeadScores:
    """Gains of queries and of keys with one product in every pair."""
    q, k = (gain.reshape(2, -1) for gain in (head.q_gain, head.k_gain))
    factor = (k.prod(axis=0) / q.prod(axis=0)) ** 0.25
    return replace(head, q_gain=(q * factor).ravel(), k_gain=(k / factor).ravel())


def _align_pairs(head: HeadScores, first: HeadScores) -> HeadScores:
    """The same with those pairs turned by a quarter whose gains are then nearer to others."""
    logs, wanted = (
        np.log(np.stack([one.q_gain, one.k_gain])).reshape(2, 2, -1) for one in (head, first)
    )
    turned = logs[:, ::-1]
    swap = ((turned - wanted) ** 2).sum(axis=(0, 1)) < ((logs - wanted) ** 2).sum(axis=(0, 1))
    gains = np.exp(np.where(swap, turned, logs)).reshape(2, -1)
    return replace(
        head,
        Wq=_turn_rows(head.Wq, swap),
        Wk=_turn_rows(head.Wk, swap),
        q_gain=gains[0],
        k_gain=gains[1],
    )


def _turn_rows(W: Matrix, swap: Mask) -> Matrix:
    first, second = np.split(W, 2)
    chosen = swap[:, None]
    return np.concatenate([np.where(chosen, second, first), np.where(chosen, -first, second)])
