r"""A one-layer Transformer: the network from lone tokens, then the attention behind it.

A sequence of one token has nothing to attend to, so lone tokens are answered by a network G and any
learner of networks finds it. Inside each linear region of G the target is a single head, whose
scores are read as such a head's are: no oddness is needed, so biases anywhere and a residual are no
obstacle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from keyhole._arrays import Sequences
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import one_layer_freedom
from keyhole.learners.base import Counterexample, Plan, Recovery, Status
from keyhole.learners.networks.learner import Network, explain_missing_network
from keyhole.learners.networks.lines import learn_network, measure_typical_distance
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_layer.attention import measure_attention
from keyhole.learners.one_layer.layer_account import OneLayerSession, conclude_layer
from keyhole.learners.one_layer.refinement import refine_scores
from keyhole.learners.one_layer.scores import TOGETHER
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    ONE_LAYER,
    SPENT,
    Doubt,
    Ending,
    repeat_case,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import QUERIES, Batch
from keyhole.learners.verifying.swelling import is_swollen
from keyhole.models import AbsAffine, OneLayer
from keyhole.models.transformer import Network as AnyNetwork
from keyhole.oracles import Oracle
from keyhole.oracles.base import read_imperfection

_CLOSE = 1e-6  # relative error of a network up to which attention is looked for behind it
_ATTEMPTS = 2  # at the network: one line in a hundred is an unlucky one
_MIXED = 8  # times that a mixing may be measured
_NEARLY = 1e-5  # relative disagreement that a fit to all answers may mend
_REFINED = 4  # times that such a fit is tried
BENDING = 16  # fresh pairs at the lengths at which the network bends


@dataclass(frozen=True, slots=True)
class OneLayerTransformer:
    """Recovers softmax attention and a network with one ReLU layer, biases and a residual included.

    Args:
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
    """

    hidden: int | None = None

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries of the network learner, d + 1 columns of scores as with a head, verification."""
        network = Network(self.hidden).plan(width, outputs=outputs)
        together = min(width, outputs, TOGETHER)
        measure = (width + 1) * (1 + -(-width // together))
        by_phase = {
            **network.by_phase,
            "scale": 24,
            "measure": measure,
            "verify": QUERIES + BENDING,
        }
        hidden = 4 * width if self.hidden is None else self.hidden
        mixing = 2 * width * (1 + -(-width // min(width, outputs)))
        return Plan(
            by_phase=by_phase,
            at_most=_ATTEMPTS * network.at_most
            + 4 * measure
            + _MIXED * mixing
            + (2 + _REFINED) * (QUERIES + BENDING)
            + 2048,
            degrees_of_freedom=one_layer_freedom(width, hidden=hidden, outputs=outputs),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[OneLayer]:
        """Recover a layer; certificate keyhole/local-affine."""
        recovery = self._recover(oracle, rng)
        return replace(recovery, certificate=certify_local_affine(recovery, oracle.width))

    def _recover(self, oracle: Oracle, rng: np.random.Generator) -> Recovery[OneLayer]:
        learning, measuring, checking = rng.spawn(3)
        session = OneLayerSession.open(oracle)
        try:
            dead_end = learn_lone_network(session, learning)
            if dead_end is not None:
                return end_without_network(session, dead_end, checking)
            if isinstance(session.G, AbsAffine) and not session.flat:
                session.found = measure_attention(
                    session.oracle, session.G, roundoff=session.roundoff, rng=measuring
                )
        except BudgetSpent:
            return conclude_layer(session, SPENT)
        except Saturated:
            return conclude_layer(session, Ending(status=Status.SATURATED))
        return _verify_one_layer(session, checking, measuring)


def end_without_network(
    session: OneLayerSession, status: Status, rng: np.random.Generator
) -> Recovery[OneLayer]:
    """End where lone tokens were not explained, with what fresh sequences say of the network."""
    if status is Status.BUDGET_SPENT:
        return conclude_layer(session, SPENT)
    if session.G is None:
        return conclude_layer(session, Ending(status=status))
    seen = examine_one_layer(session, rng)
    ending = _refuse_layer(session, seen, status)
    fresh = seen.fresh if seen.fresh.sequences else None
    return conclude_layer(session, replace(ending, fresh=fresh))


def learn_lone_network(session: OneLayerSession, rng: np.random.Generator) -> Status | None:
    """Learn what lone tokens meet; a status where it is too far off to look behind it."""
    oracle = session.oracle
    with oracle.phase("kinks"):
        outputs = oracle.outputs or oracle.ask(np.zeros((1, 1, oracle.width))).shape[1]
    status = None
    for child in rng.spawn(_ATTEMPTS):
        learned = learn_network(
            lambda x: oracle.ask(x[:, None]),
            oracle.width,
            outputs,
            rng=child,
            roundoff=session.roundoff,
            phase=oracle.phase,
        )
        session.G = learned.model
        if learned.spent:
            return Status.BUDGET_SPENT
        if learned.gap <= _CLOSE:
            return None
        status = explain_missing_network(learned)
        # A network that bends everywhere does so along any line: another would be no luckier.
        if learned.smooth:
            break
    return status


def _verify_one_layer(
    session: OneLayerSession, checking: np.random.Generator, measuring: np.random.Generator
) -> Recovery[OneLayer]:
    """Judge the model by fresh sequences."""
    seen = examine_one_layer(session, checking)
    # Where W was taken for one of low rank, that may be the error: whole columns are measured then.
    G, short = session.G, session.found
    wrong = not seen.passed and seen.complete
    if wrong and isinstance(G, AbsAffine) and short is not None and short.short:
        try:
            session.found = measure_attention(
                session.oracle, G, roundoff=session.roundoff, whole=True, rng=measuring
            )
            seen = examine_one_layer(session, checking)
        except (BudgetSpent, Saturated):
            session.found = short
    for _ in range(_REFINED):
        # Each examination asks long tokens in directions of its own, which the next fit knows.
        if not seen.passed and seen.complete and seen.fresh.relative <= _NEARLY:
            seen = _refine_layer(session, seen, checking)
    return judge_layer(session, seen)


def _refine_layer(
    session: OneLayerSession, seen: Examination, rng: np.random.Generator
) -> Examination:
    """Fit scores to all answers, those of the failed examination included, and examine anew."""
    found = session.found
    if session.G is None or found is None:
        return seen
    refine_session(session, rng)
    again = examine_one_layer(session, rng)
    if again.complete and again.fresh.relative < seen.fresh.relative:
        return again
    session.found = found
    return seen


def refine_session(session: OneLayerSession, rng: np.random.Generator) -> None:
    """Fit W, h and M to all answers of the run."""
    model, found = session.model(), session.found
    if model is None or found is None:
        return
    refined = refine_scores(model, session.remembered.by_length(), rng=rng)
    M = None if found.M is None else refined.head.V.T
    session.found = replace(found, W=np.asarray(refined.head.W), h=refined.head.h, M=M)


def examine_one_layer(session: OneLayerSession, rng: np.random.Generator) -> Examination:
    """The model of the session on sequences it was not fitted on."""
    model = session.model()
    if model is None:
        raise InvalidInput("there is no model to verify.")
    with session.oracle.phase("verify"):
        pairs = draw_bending_pairs(model, rng=rng)
        return examine_model(
            session.oracle,
            model,
            ruler=ONE_LAYER.ruler(session.oracle),
            rng=rng,
            further=[Batch(pairs, ("bending pairs",) * len(pairs))],
        )


def draw_bending_pairs(model: OneLayer, *, rng: np.random.Generator) -> Sequences:
    r"""Pairs [z + x; z] of the lengths at which the network bends, scores large or not.

    x is tilted towards $Wz + h$, so that the first token has the larger score: what a large one
    leaves of the other share is nothing, and no error of W is magnified.
    """
    unit, farthest = 1.0, 1.0
    if isinstance(model.net, AbsAffine):
        unit = measure_typical_distance(model.net)
        farthest = float(np.abs(model.net.t).max(initial=0.0))
    lengths = np.geomspace(unit, 4.0 * max(unit, farthest), BENDING)[:, None]
    z, x = rng.normal(size=(2, BENDING, model.width))
    towards = model.head.queries(lengths * z)
    size = np.linalg.norm(towards, axis=1, keepdims=True)
    sign = np.sign((x * towards).sum(axis=1, keepdims=True) + 1e-300)
    x = x * sign + towards / np.where(size > 0, size, 1.0)
    return np.stack([lengths * (z + x), lengths * z], axis=1)


def judge_layer(session: OneLayerSession, seen: Examination) -> Recovery[OneLayer]:
    """The recovery that fresh sequences allow."""
    perfect = read_imperfection(session.oracle).perfect
    swollen = _is_swollen_layer(session.model(), seen)
    ending = settle(
        session.oracle,
        seen,
        lines=ONE_LAYER,
        refuse=lambda: _refuse_layer(session, seen, Status.NOT_ONE_LAYER),
        blind=session.unseen,
        reservation=Ending(status=Status.ROUGH) if swollen else None,
        words="" if perfect else f"Answers are declared to be rounded to {session.roundoff:.1e}.",
    )
    return conclude_layer(session, ending)


def _is_swollen_layer(model: OneLayer | None, seen: Examination) -> bool:
    """Whether the parts of its network dwarf what it answers, at the lengths at which it bends."""
    net = None if model is None else model.net
    if model is None or not isinstance(net, AbsAffine):
        return False
    return is_swollen(model, measure_typical_distance(net), seen)


def _refuse_layer(session: OneLayerSession, seen: Examination, status: Status) -> Ending:
    """Refuse, unless the model is nearly right, or answers to one question differ."""
    repeat = partial(repeat_case, session.oracle, seen.worst)
    return resolve_doubt(session.oracle, _doubt_layer(session, seen, status), repeat=repeat)


def _doubt_layer(session: OneLayerSession, seen: Examination, status: Status) -> Doubt:
    found = session.found
    if found is not None and found.lost:
        return Doubt(Status.SATURATED)
    near = seen.fresh.relative <= ONE_LAYER.near
    one_column = found is not None and found.rank < found.joint == 1
    if _is_rounding_gap(session.G, seen.worst) or near or one_column:
        # A gap so small may be the target's own rounding: asking again would not tell.
        return Doubt(Status.IMPRECISE, again=False)
    return Doubt(status, seen.worst)


def _is_rounding_gap(G: AnyNetwork | None, case: Counterexample | None) -> bool:
    """Whether a gap is small beside what a token's answer is a sum of."""
    # Far hyperplanes cancel, their errors do not.
    if G is None or case is None:
        return False
    return case.gap <= _CLOSE * float(G.terms(case.tokens).max())


def certify_local_affine(recovery: Recovery[OneLayer], width: int) -> Certificate:
    """The general reduction confronted with one run.

    Scores cost what a head's do, and a mixing as much again.
    """
    model = recovery.model
    outputs = 1 if model is None else min(width, model.outputs)
    full = (width + 1) * (1 + -(-width // min(outputs, TOGETHER)))
    if model is not None and model.residual:
        full += 2 * width * (1 + -(-width // outputs))
    asked = recovery.ledger["measure"].sequences
    constant = recovery.status is Status.NO_READOUT
    return Certificate(
        "keyhole/local-affine",
        assumptions=(
            Check("network that is constant", float(constant), 0.0, judged=True),
            assume_class("answers that were not explained", recovery.verdict),
            Check("queries that measure scores and mixing", asked, 3 * full + 1000),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )
