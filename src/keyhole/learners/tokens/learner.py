r"""A one-layer language model of attention alone, without norm and positions, from token ids.

Copies of two ids give the heads between each id and id 0; prompts (1, s, 0) tell which head is
which; all other scores are decoded from prompts of several ids. The number of heads is the smallest
that explains the copies. Single ids answer the sum of their values: what they answer beside it goes
past the heads, as a residual stream does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.tokens.decoding import decode_scores, find_unread_pair, match_heads
from keyhole.learners.tokens.ratios import COPIES, Pair, fit_pair
from keyhole.learners.verifying.ending import (
    SPENT,
    SUM_OF_HEADS,
    Account,
    Doubt,
    Ending,
    conclude,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import examine_model
from keyhole.learners.verifying.questions import QUERIES, read_limits
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.oracles import Counted, Oracle, read_imperfection
from keyhole.oracles.own_time import check_own_time
from keyhole.oracles.tokens.ids import pack_ids

MOST_HEADS = 4  # Cauchy matrices of more heads lose too many digits
_EXPLAINED = 1e-9  # of the largest answer, left where the number of heads is right
_DECLARED = 6.0  # times the declared errors of an answer, left likewise


@dataclass(frozen=True, slots=True)
class TokenLayer:
    """Recovers the function of an attention-only one-layer model with up to four heads.

    Args:
        heads: how many, where that is known.
    """

    heads: int | None = None

    def __post_init__(self) -> None:
        if self.heads is not None and not 1 <= self.heads <= MOST_HEADS:
            raise InvalidInput(f"1 to {MOST_HEADS} heads are learned from ids; got {self.heads}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Singles, copies, matches, and one prompt for every score that is decoded alone."""
        heads, V = self.heads or 1, outputs
        by_phase = {
            "read": V,
            "copies": len(COPIES) * (V - 1),
            "match": V - 2,
            "scores": -(-V * V * heads // max(1, V // 2)),
            "verify": QUERIES,
        }
        most = sum(by_phase.values()) - by_phase["scores"] + V * V + QUERIES
        # Values up to a gauge, and scores up to a constant per query.
        freedom = heads * V * V - (heads - 1) * V + heads * V * (V - 1)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=V)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[TokenHeads]:
        """Recover the layer, or say why not."""
        if oracle.width != 1 or (oracle.outputs or 0) < 3:
            raise InvalidInput(
                "a model on token ids has tokens of width 1 and answers 3 ids or more; got width"
                f" {oracle.width} and {oracle.outputs} numbers. Wrap it in keyhole.TokenIds."
            )
        measuring, checking = rng.spawn(2)
        session = _Session(Counted(oracle), self.heads, measuring)
        try:
            model = session.measure()
        except BudgetSpent:
            return session.conclude(None, SPENT)
        if model is None:
            return session.conclude(None, session.refuse(Status.UNSEPARATED))
        pair = find_unread_pair(model.values)
        if pair is not None:
            return session.conclude(model, session.refuse(Status.UNSEPARATED, pair))
        return _judge(session, model, checking)


@dataclass(slots=True)
class _Session:
    """One recovery under way."""

    oracle: Counted
    known: int | None
    rng: np.random.Generator
    found: int | None = field(default=None, init=False)

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.oracle.outputs or 0

    def ask(self, ids: list[list[int]]) -> Matrix:
        """Answers to prompts of one length."""
        return self.oracle.ask(pack_ids(ids))

    def measure(self) -> TokenHeads | None:
        """The layer; None where no number of heads explains the copies."""
        with self.oracle.phase("read"):
            lone = self.ask([[token] for token in range(self.vocabulary)])
        with self.oracle.phase("copies"):
            moved = self._ask_copies() - lone[0]
        pairs = self._fit_pairs(moved)
        if pairs is None:
            return None
        with self.oracle.phase("match"):
            answers = self.ask([[1, token, 0] for token in range(2, self.vocabulary)]) - lone[0]
        pairs = match_heads(pairs, answers)
        changes = np.zeros((len(pairs[0].odds), self.vocabulary, self.vocabulary))
        first = np.zeros(changes.shape[:2])
        for token, pair in enumerate(pairs, start=1):
            changes[:, token], first[:, token] = pair.changes, np.log(pair.odds)
        with self.oracle.phase("scores"):
            scores = decode_scores(self.ask, changes, lone, self.rng, first)
        # How values of id 0 are split among heads shows nowhere: alike.
        values = changes + lone[0] / len(changes)
        beside = lone - values.sum(axis=0)
        largest = max(float(np.abs(lone).max()), float(np.abs(values).max()))
        acts = float(np.abs(beside).max()) > self.allow_unexplained(largest)
        return TokenHeads(values, scores, beside if acts else None)

    def allow_unexplained(self, largest: float) -> float:
        """What may be left of answers as large as that."""
        stated = read_imperfection(self.oracle)
        return max(_EXPLAINED * largest, _DECLARED * (stated.tolerance + stated.noise))

    def _ask_copies(self) -> Stack:
        """Answers by id from 1 on, and by ratio."""
        answers = [
            self.ask([[token] * many + [0] * few for token in range(1, self.vocabulary)])
            for many, few in COPIES
        ]
        return np.stack(answers, axis=1)

    def _fit_pairs(self, moved: Stack) -> list[Pair] | None:
        tried = range(1, MOST_HEADS + 1) if self.known is None else (self.known,)
        largest = max(float(np.abs(moved).max()), 1e-300)
        allowed = self.allow_unexplained(largest)
        for heads in tried:
            pairs = list[Pair]()
            for G in moved:
                check_own_time()
                pair = fit_pair(G, heads)
                # One pair that is left unexplained is enough: there are more heads.
                if pair.residual * float(np.abs(G).max()) > allowed:
                    break
                pairs.append(pair)
            if len(pairs) == len(moved):
                self.found = heads
                return pairs
        return None

    def refuse(self, status: Status, pair: tuple[int, int] | None = None) -> Ending:
        """Refuse, unless the target answers the same question differently."""
        probe = pack_ids([[1, 0]])
        try:
            with self.oracle.phase("verify"):
                answer = self.oracle.ask(probe.copy())
        except BudgetSpent:
            return SPENT
        detail = (
            "Up to four heads of attention alone, without norm, positions or network, were tried."
        )
        if pair is not None:
            detail = (
                f"Ids {pair[0]} and {pair[1]} have the same values in a head, so that what one"
                " weighs where the other comes last is not read."
            )
        return resolve_doubt(self.oracle, Doubt(status, None, detail), probe=(probe, answer))

    def conclude(self, model: TokenHeads | None, ending: Ending) -> Recovery[TokenHeads]:
        """The recovery as it stands."""
        determined = "Nothing was determined."
        if model is not None:
            determined = _DETERMINED if ending.verdict.verified else _UNCERTAIN
        plan = TokenLayer(self.found).plan(1, outputs=self.vocabulary)
        account = Account(
            model=model,
            reason="Ids were asked, of which nothing but how often they come can be chosen.",
            determined=determined,
            degrees_of_freedom=_count_freedom(model, plan),
        )
        return conclude(self.oracle, ending, account)


def _count_freedom(model: TokenHeads | None, plan: Plan) -> int | None:
    """Numbers of the layer, of what goes past its heads too."""
    if model is None:
        return None
    # One more vector is free, where something goes past the heads.
    beside = 0 if model.direct is None else model.outputs * (model.outputs - 1)
    return plan.degrees_of_freedom + beside


_DETERMINED = (
    "Values of ids are determined up to vectors that sum to zero over the heads (and what goes past"
    " them, where something does), scores up to a constant for every head and query id, heads up to"
    " their order; embeddings and the weights behind these products are not."
)
_UNCERTAIN = "The model is the nearest one found; nothing of it is certain."


def _judge(session: _Session, model: TokenHeads, rng: np.random.Generator) -> Recovery[TokenHeads]:
    ids = np.arange(session.vocabulary, dtype=np.float64)[:, None]
    with session.oracle.phase("verify"):
        seen = examine_model(
            session.oracle,
            model,
            ruler=SUM_OF_HEADS.ruler(session.oracle),
            rng=rng,
            limits=read_limits(session.oracle, tokens=ids),
        )
    near = seen.fresh.relative <= SUM_OF_HEADS.near
    status = Status.IMPRECISE if near else Status.HEADS_DISAGREE
    ending = settle(session.oracle, seen, lines=SUM_OF_HEADS, refuse=lambda: session.refuse(status))
    return session.conclude(model, ending)
