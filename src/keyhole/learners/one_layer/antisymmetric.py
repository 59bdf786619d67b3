r"""The paper's reduction of a bias-free one-layer Transformer to a single head, BSHK26/one-layer.

Scores are quadratic in the tokens, so X and -X have the same weights; and $\max(t, 0) - \max(-t, 0)
= t$, as it is for GELU and SiLU. So without biases

$$f(X) - f(-X) = w_o^\top A^\top z = \sum_i \alpha_i\, x_i \cdot v, \qquad v = V A w_o :$$

a single head with the same W, learned as one, at two questions each. Lone tokens give the network.
Where the network has biases the difference is no head, and where v = 0 it is zero: both are found
and said.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from keyhole._arrays import EPS, Answers, Matrix, Sequences
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent
from keyhole.identify import matrix_rank, one_layer_freedom
from keyhole.learners.base import Learner, Plan, Recovery, Status
from keyhole.learners.networks.learner import Network
from keyhole.learners.one_head.exact import Exact, measure_every_column
from keyhole.learners.one_head.learner import HeadSession
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead, Scattered
from keyhole.learners.one_layer.attention import Attention
from keyhole.learners.one_layer.layer_account import OneLayerSession, conclude_layer
from keyhole.learners.one_layer.learner import (
    end_without_network,
    examine_one_layer,
    judge_layer,
    learn_lone_network,
)
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import SPENT, Doubt, Ending, repeat_case, resolve_doubt
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AbsAffine, Gated, OneLayer, ReluNet
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.wrappers import Wrapper

_ATTEMPTS = 4  # at the network
_ROUNDINGS = 64.0  # of both answers, within which their difference is nothing
_BIASED = (
    "The answer of the counterexample is f(X) - f(-X), which is a head's where no bias acts; "
    "the general learner allows for biases."
)


@dataclass(slots=True)
class Odd(Wrapper):
    """The odd part of an oracle, f(X) - f(-X), at two questions each."""

    def ask(self, X: Sequences) -> Answers:
        """Differences of answers; `BudgetSpent` carries those of whole pairs."""
        pairs = np.stack([X, -X], axis=1).reshape(-1, *X.shape[1:])
        try:
            answers = self.inner.ask(pairs)
        except BudgetSpent as spent:
            whole = None
            if spent.answers is not None:
                whole = _subtract_pairs(spent.answers[: spent.answered // 2 * 2])
            raise BudgetSpent(str(spent), whole) from spent
        return _subtract_pairs(answers)


@dataclass(slots=True)
class LoneTokens(Wrapper):
    """An oracle that is asked the last token of every sequence alone."""

    def ask(self, X: Sequences) -> Answers:
        """Answers to last tokens."""
        return self.inner.ask(X[:, -1:])


def _subtract_pairs(answers: Matrix) -> Matrix:
    """Even rows minus odd rows, zero where that is no more than rounding of both."""
    plus, minus = answers[::2], answers[1::2]
    rounding = _ROUNDINGS * EPS * np.maximum(np.abs(plus), np.abs(minus))
    return np.where(np.abs(plus - minus) > rounding, plus - minus, 0.0)


@dataclass(frozen=True, slots=True)
class Antisymmetric:
    """The paper's mode for layers without biases: the odd part as a head, then lone tokens.

    Args:
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        network: the learner of the network that lone tokens meet; `Network` when absent.
    """

    hidden: int | None = None
    network: Learner | None = None

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Two queries for each of a head's, those of the network learner, then verification."""
        head = Exact().plan(width, outputs=outputs)
        network = (self.network or Network(self.hidden)).plan(width, outputs=outputs)
        odd = 2 * (head.queries - head.by_phase["verify"])
        hidden = 4 * width if self.hidden is None else self.hidden
        return Plan(
            by_phase={**network.by_phase, "odd": odd, "verify": QUERIES},
            at_most=_ATTEMPTS * network.at_most + 2 * head.at_most + QUERIES,
            degrees_of_freedom=one_layer_freedom(width, hidden=hidden, outputs=outputs),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[OneLayer]:
        """Recover a layer without biases; certificate BSHK26/one-layer."""
        recovery = self._recover(oracle, rng)
        return replace(recovery, certificate=certify_antisymmetric(recovery, oracle.width))

    def _recover(self, oracle: Oracle, rng: np.random.Generator) -> Recovery[OneLayer]:
        measuring, learning, checking = rng.spawn(3)
        session = OneLayerSession.open(oracle)
        odd = HeadSession(Counted(Odd(session.oracle)), session.roundoff, measuring)
        try:
            with session.oracle.phase("odd"):
                head = odd.measure(measure_every_column)
            if not head.V.any():
                return conclude_layer(session, Ending(status=Status.NO_ODD_PART))
            if self.network is None:
                dead_end = learn_lone_network(session, learning)
            else:
                dead_end = _run_network_learner(self.network, session, learning)
        except BudgetSpent:
            return conclude_layer(session, SPENT)
        except Saturated:
            return conclude_layer(session, Ending(status=Status.SATURATED))
        except Scattered:
            return conclude_layer(session, Ending(status=Status.INCONSISTENT))
        except NotAHead as refusal:
            return _refuse_odd_part(session, odd.oracle, refusal)
        if dead_end is not None:
            return end_without_network(session, dead_end, checking)
        rank = matrix_rank(head.W)
        session.found = Attention(head.W, None, None, rank, rank)
        return judge_layer(session, examine_one_layer(session, checking))


def _run_network_learner(
    learner: Learner, session: OneLayerSession, rng: np.random.Generator
) -> Status | None:
    """Learn what lone tokens meet with the given learner; a status where it finds no network."""
    status = Status.NO_NETWORK
    # Units without biases all bend at the origin, and an unlucky line passes close by.
    for child in rng.spawn(_ATTEMPTS):
        with session.oracle.phase("network"):
            found = learner.run(LoneTokens(session.oracle), rng=child)
        if found.verdict is Verdict.BUDGET_SPENT:
            return Status.BUDGET_SPENT
        status = found.status
        if isinstance(found.model, ReluNet | AbsAffine | Gated):
            session.G = found.model
            if found.verdict.verified:
                return None
    return status


def _refuse_odd_part(
    session: OneLayerSession, odd: Counted, refusal: NotAHead
) -> Recovery[OneLayer]:
    """Refuse a target whose odd part is no head, if asked again it answers the same."""
    case = refusal.counterexample
    repeat = partial(repeat_case, odd, case)
    ending = resolve_doubt(session.oracle, Doubt(Status.NOT_A_HEAD, case, _BIASED), repeat=repeat)
    return conclude_layer(session, ending)


def certify_antisymmetric(recovery: Recovery[OneLayer], width: int) -> Certificate:
    """The paper's reduction confronted with one run."""
    silent = float(recovery.status is Status.NO_ODD_PART)
    asked = recovery.ledger["odd"].sequences
    return Certificate(
        "BSHK26/one-layer",
        assumptions=(
            Check("odd part that shows no attention", silent, 0.0, judged=True),
            assume_class("answers that were not explained", recovery.verdict),
            Check("queries for W", asked, 2.2 * (width * width + width) + 60),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )
