r"""Heads under one query token, from copies of two tokens at a time.

Before a last token b, n copies of a beside k of b get the share $\rho z_h / (1 + \rho z_h)$ of head
h, $\rho = n/k$: the multiplicities are the only handle there is. Nine ratios give the odds $z_h =
e^{(a - b)^\top(W_h b + h_h)}$ and the changes $V_h^\top(a - b)$ of every head (tokens/ratios.py); a
triple [a'; a; b] tells which head of one pair is which of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.learners.tokens.decoding import match_heads
from keyhole.learners.tokens.ratios import COPIES, Pair, fit_pair
from keyhole.learners.vocabulary.hull import Rows, Table
from keyhole.learners.vocabulary.token_values import Asker, Values
from keyhole.oracles.own_time import check_own_time

MOST_HEADS = 4  # ratios of more heads lose too many digits
LONGEST_COPIES = max(a + b for a, b in COPIES)
_EXPLAINED = 1e-10  # of the largest answer: what too few heads leave


@dataclass(frozen=True, eq=False, slots=True)
class PairedHeads:
    """What copies told of all heads under one query token.

    Args:
        b: the query token, a row of the vocabulary.
        others: the tokens it was paired with.
        logits: their scores over that of b, heads by tokens.
        changes: their values less that of b, heads by tokens by outputs.
    """

    b: int
    others: Rows
    logits: Matrix
    changes: Stack

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return len(self.logits)


def read_paired_heads(asker: Asker, values: Values, b: int, least: int) -> PairedHeads | None:
    """The heads under a query token, `least` or more; None where too few explain the answers.

    Args:
        asker: of vocabulary rows.
        values: what single tokens answer.
        b: the query token.
        least: fewer heads are not tried.
    """
    vocabulary = asker.vocabulary
    others = vocabulary.basis[vocabulary.basis != b]
    alone = values.alone(vocabulary.Z[[b]])
    copies = [asker.ask(_repeat_tokens(others, b, *each)) - alone for each in COPIES]
    pairs = _fit_fewest_heads(np.stack(copies, axis=1), least)
    if pairs is None:
        return None
    if len(pairs) > 1:
        table = [[others[0], other, b] for other in others[1:]]
        pairs = match_heads(pairs, asker.ask(np.array(table)) - alone)
    logits = np.log([pair.odds for pair in pairs]).T
    return PairedHeads(b, others, logits, np.stack([pair.changes for pair in pairs], axis=1))


def _repeat_tokens(others: Rows, b: int, many: int, few: int) -> Table:
    return np.column_stack(
        [np.repeat(others[:, None], many, axis=1), np.full((len(others), few), b)]
    )


def _fit_fewest_heads(answers: Stack, least: int) -> list[Pair] | None:
    """The heads of every pair, as few as explain the answers to all: pairs by ratios by outputs."""
    allowed = _EXPLAINED * float(np.abs(answers).max())
    for heads in range(least, min(MOST_HEADS, answers.shape[2]) + 1):
        pairs = _fit_pairs(answers, heads, allowed)
        if pairs is not None:
            return pairs
    return None


def _fit_pairs(answers: Stack, heads: int, allowed: float) -> list[Pair] | None:
    pairs: list[Pair] = []
    for G in answers:
        check_own_time()
        pairs.append(fit_pair(G, heads))
        # One pair that is left unexplained is enough: there are more heads.
        if not pairs[-1].residual * np.abs(G).max() <= allowed:
            return None
    return pairs
