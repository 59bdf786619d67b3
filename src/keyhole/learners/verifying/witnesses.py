"""Witnesses: a few answers that no member of a class can give, which alone refute a class."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Stack
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Status
from keyhole.learners.verifying.ending import Doubt, describe_gap
from keyhole.oracles import Counted, read_imperfection

_SCALES = (1.0, 30.0)  # attention that is even at the first may show at the second
_EACH = 3
_APART = 1e-7  # a relative difference that is none of rounding
_ROUNDINGS = 2.0**14  # of the declared size, up to which a difference says nothing


def refute_by_earlier_tokens(
    oracle: Counted, doubt: Doubt, *, status: Status | None = None
) -> Doubt:
    """The doubt; where tokens before the last act, a case against every network of the last."""
    roundoff = read_imperfection(oracle).roundoff
    acting = find_earlier_tokens_acting(oracle, doubt.case, roundoff)
    return doubt if acting is None else Doubt(status or doubt.status, acting, describe_gap(acting))


def find_earlier_tokens_acting(
    oracle: Counted, case: Counterexample | None, roundoff: float
) -> Counterexample | None:
    """A sequence answered otherwise than its last token, as by no network of that token."""
    if case is None or len(case.tokens) == 1:
        return None
    X = case.tokens[None]
    return _find_difference(oracle, X, X[:, -1:], roundoff)


def find_uneven_attention(
    oracle: Counted, roundoff: float, *, rng: np.random.Generator
) -> Counterexample | None:
    """A sequence that no softmax attention without positions answers, whatever follows it.

    Copies of one token are answered as that token, tokens before the last may change places, and
    a sequence is answered as the same with every token doubled.
    """
    for scale in _SCALES:
        X = scale * rng.normal(size=(_EACH, 3, oracle.width))
        lone = X[:, -1:]
        copies = np.repeat(lone, 3, axis=1)
        same = ((copies, lone), (X[:, [1, 0, 2]], X), (np.repeat(X, 2, axis=1), X))
        for asked, equal in same:
            case = _find_difference(oracle, asked, equal, roundoff)
            if case is not None:
                return case
    return None


def _find_difference(
    oracle: Counted, X: Stack, equal: Stack, roundoff: float
) -> Counterexample | None:
    """The sequence of X answered otherwise than its equal, by more than rounding, or None."""
    try:
        with oracle.phase("verify"):
            answers, others = (oracle.ask(Z.copy()) for Z in (X, equal))
    # Without room to look there is no witness, and the doubt stays a doubt.
    except BudgetSpent:
        return None
    gap = np.abs(answers - others).max(axis=1)
    worst = int(np.argmax(gap))
    size = float(max(np.abs(answers).max(), np.abs(others).max()))
    if gap[worst] <= max(_APART, _ROUNDINGS * roundoff) * size:
        return None
    return Counterexample(X[worst], answers[worst], others[worst])
