r"""A one-layer Transformer from queries: the network from lone tokens, then the attention behind it.

A sequence of one token has nothing to attend to, so lone tokens are answered by a network G and any learner of
networks finds it. Inside each linear region of G the target is a single head, whose scores are read as such a head's
are: no oddness is needed, so biases anywhere and a residual are no obstacle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from keyhole._arrays import Sequences, rms
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import one_layer_freedom
from keyhole.learners.base import Counterexample, Plan, Recovery, Status
from keyhole.learners.behind import Attention, attention
from keyhole.learners.network import Network, why_not
from keyhole.learners.probes import Saturated
from keyhole.learners.relu import learn_network
from keyhole.learners.scores import TOGETHER
from keyhole.learners.spots import own_length
from keyhole.learners.verify import EXACT, NO_ROOM, QUERIES, Examination, asked_again, examine, fresh_sequences
from keyhole.learners.witnesses import find_uneven_attention
from keyhole.models import AbsAffine, Head, OneLayer
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import declared

_NEARLY = 1e-4  # relative disagreement up to which a model is imprecise rather than of the wrong class
_CLOSE = 1e-6  # relative error of a network up to which attention is looked for behind it
_ATTEMPTS = 2  # at the network: one line in a hundred is an unlucky one
_MIXED = 8  # times that a mixing may be measured
BENDING = 16  # fresh pairs at the lengths at which the network bends
_UNEVEN = "Copies of tokens, or their order, change answers, which no attention without positions does."
_COARSE = 1e4  # roundings of coarse answers that the inversion explains


@dataclass(slots=True)
class Session:
    """One recovery under way: what is known so far, so that a spent budget leaves a partial model."""

    oracle: Counted
    roundoff: float
    G: AbsAffine | None = field(default=None, init=False)
    found: Attention | None = field(default=None, init=False)

    @property
    def unseen(self) -> bool:
        """Whether nothing that comes before the last token acts on any answer."""
        return self.flat or (self.found is not None and self.found.M is not None and not self.found.M.any())

    @property
    def flat(self) -> bool:
        """Whether all lone tokens are answered alike."""
        G = self.G
        return G is not None and max(rms(G.D), rms(G.P)) <= 1e-13 * rms(G.q)

    def model(self) -> OneLayer | None:
        """What is known of the layer; W is zero where it was not measured."""
        if self.G is None:
            return None
        d = self.G.width
        found = self.found or Attention(np.zeros((d, d)), None, None, 0, 0)
        if found.M is None:
            return OneLayer(Head(found.W, np.eye(d), found.h), self.G)
        return OneLayer(Head(found.W, found.M.T, found.h, U=-found.M.T), self.G, residual=True)


@dataclass(frozen=True, slots=True)
class OneLayerTransformer:
    """Recovers softmax attention followed by a network with one hidden ReLU layer, biases and a residual included.

    Args:
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
    """

    hidden: int | None = None

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries of the network learner, d + 1 columns of scores as with a head, then verification."""
        network = Network(self.hidden).plan(width, outputs=outputs)
        together = min(width, outputs, TOGETHER)
        measure = (width + 1) * (1 + -(-width // together))
        by_phase = {**network.by_phase, "scale": 24, "measure": measure, "verify": QUERIES + BENDING}
        hidden = 4 * width if self.hidden is None else self.hidden
        mixing = 2 * width * (1 + -(-width // min(width, outputs)))
        return Plan(
            by_phase=by_phase,
            at_most=_ATTEMPTS * network.at_most + 4 * measure + _MIXED * mixing + QUERIES + 2048,
            degrees_of_freedom=one_layer_freedom(width, hidden=hidden, outputs=outputs),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[OneLayer]:
        """Recover a layer; certificate keyhole/local-affine."""
        recovery = self._recovered(oracle, rng)
        return replace(recovery, certificate=certificate(recovery, oracle.width))

    def _recovered(self, oracle: Oracle, rng: np.random.Generator) -> Recovery[OneLayer]:
        learning, measuring, checking = rng.spawn(3)
        session = Session(Counted(oracle), declared(oracle).roundoff)
        try:
            dead_end = network(session, learning)
            if dead_end is not None:
                return without_network(session, dead_end, checking)
            if session.G is not None and not session.flat:
                session.found = attention(session.oracle, session.G, roundoff=session.roundoff, rng=measuring)
        except BudgetSpent:
            return ended(session, Status.BUDGET_SPENT, Verdict.BUDGET_SPENT)
        except Saturated:
            return ended(session, Status.SATURATED, Verdict.UNVERIFIED)
        return _verified(session, checking, measuring)


def without_network(session: Session, status: Status, rng: np.random.Generator) -> Recovery[OneLayer]:
    """End where lone tokens were not explained: refused only for answers that no attention gives."""
    if status is Status.BUDGET_SPENT:
        return ended(session, status, Verdict.BUDGET_SPENT)
    case = find_uneven_attention(session.oracle, session.roundoff, rng=rng)
    if case is not None and asked_again(session.oracle, None, case, session.roundoff) == 0.0:
        return ended(session, Status.NOT_ONE_LAYER, Verdict.CLASS_REFUTED, counterexample=case, detail=_UNEVEN)
    if session.G is None:
        return ended(session, status, Verdict.UNVERIFIED)
    return doubted(session, fresh(session, rng), status)


def network(session: Session, rng: np.random.Generator) -> Status | None:
    """Learn what lone tokens meet; a status where that is too far off to look for attention behind it."""
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
        status = why_not(learned)
        if learned.smooth:
            break
    return status


def _verified(session: Session, checking: np.random.Generator, measuring: np.random.Generator) -> Recovery[OneLayer]:
    """Judge the model by fresh sequences; where W was taken for one of low rank, whole columns are measured first."""
    seen = fresh(session, checking)
    if not seen.passed and seen.complete and session.G and session.found and session.found.short:
        short = session.found
        try:
            session.found = attention(session.oracle, session.G, roundoff=session.roundoff, whole=True, rng=measuring)
            seen = fresh(session, checking)
        except (BudgetSpent, Saturated):
            session.found = short
    return judged(session, seen)


def fresh(session: Session, rng: np.random.Generator) -> Examination:
    """The model of the session on sequences it was not fitted on."""
    model = session.model()
    if model is None:
        raise InvalidInput("there is no model to verify.")
    with session.oracle.phase("verify"):
        tolerance = EXACT if declared(session.oracle).perfect else _COARSE * session.roundoff
        batches = chain([bending(model, rng=rng)], fresh_sequences(model, rng=rng))
        return examine(session.oracle, model, tolerance=tolerance, roundoff=session.roundoff, rng=rng, batches=batches)


def bending(model: OneLayer, *, rng: np.random.Generator) -> Sequences:
    r"""Pairs [z + x; z] of the lengths at which the network bends, where scores may be too large for other tests.

    x is tilted towards $Wz + h$, so that the first token has the larger score: what a large one leaves of the other
    share is nothing, and no error of W is magnified.
    """
    unit, farthest = 1.0, 1.0
    if isinstance(model.net, AbsAffine):
        unit, farthest = own_length(model.net), float(np.abs(model.net.t).max(initial=0.0))
    lengths = np.geomspace(unit, 4.0 * max(unit, farthest), BENDING)[:, None]
    z, x = rng.normal(size=(2, BENDING, model.width))
    towards = model.head.queries(lengths * z)
    size = np.linalg.norm(towards, axis=1, keepdims=True)
    x = x * np.sign((x * towards).sum(axis=1, keepdims=True) + 1e-300) + towards / np.where(size > 0, size, 1.0)
    return np.stack([lengths * (z + x), lengths * z], axis=1)


def judged(session: Session, seen: Examination) -> Recovery[OneLayer]:
    """The recovery that fresh sequences allow."""
    if seen.hidden:
        return ended(session, Status.HIDDEN, Verdict.UNVERIFIED, seen)
    if not seen.passed:
        return doubted(session, seen)
    if not seen.complete:
        return ended(session, Status.UNCHECKED, Verdict.UNVERIFIED, seen)
    if session.unseen:
        return ended(session, Status.NO_READOUT, Verdict.NOT_IDENTIFIABLE, seen)
    if declared(session.oracle).perfect:
        return ended(session, Status.RECOVERED, Verdict.EXACT, seen)
    detail = f"Answers are declared to be rounded to {session.roundoff:.1e}."
    return ended(session, Status.RECOVERED, Verdict.WITHIN_TOLERANCE, seen, detail=detail)


def doubted(session: Session, seen: Examination, status: Status = Status.NOT_ONE_LAYER) -> Recovery[OneLayer]:
    """Refuse, unless the model is nearly right, its network was not found, or the target answers differently."""
    gap = asked_again(session.oracle, None, seen.worst, session.roundoff)
    if gap is None:
        return ended(session, Status.UNCHECKED, Verdict.UNVERIFIED, seen, detail=NO_ROOM)
    if gap > 0.0:
        detail = f"Two answers to one sequence differ by {gap:.1e}."
        return ended(session, Status.INCONSISTENT, Verdict.UNVERIFIED, seen, detail=detail)
    if session.found is not None and session.found.lost:
        return ended(session, Status.SATURATED, Verdict.UNVERIFIED, seen)
    if (
        _rounded(session.G, seen.worst)
        or seen.fresh.relative <= _NEARLY
        or (session.found is not None and session.found.rank < session.found.joint == 1)
    ):
        return ended(session, Status.IMPRECISE, Verdict.UNVERIFIED, seen)
    # behind a network that explains lone tokens attention is read, not searched for: then a longer one refutes it
    refuted = status is Status.NOT_ONE_LAYER and seen.worst is not None and len(seen.worst.tokens) > 1
    verdict = Verdict.CLASS_REFUTED if refuted else Verdict.UNVERIFIED
    return ended(session, status, verdict, seen, counterexample=seen.worst)


def _rounded(G: AbsAffine | None, case: Counterexample | None) -> bool:
    """Whether a gap is small beside what a token's answer is a sum of: far hyperplanes cancel, their errors do not."""
    return G is not None and case is not None and case.gap <= _CLOSE * float(G.terms(case.tokens).max())


def ended(
    session: Session,
    status: Status,
    verdict: Verdict,
    seen: Examination | None = None,
    *,
    counterexample: Counterexample | None = None,
    detail: str = "",
) -> Recovery[OneLayer]:
    """A recovery that says what is known."""
    return Recovery(
        model=session.model(),
        status=status,
        verdict=verdict,
        reason=_reason(session),
        determined=_determined(session, verdict),
        ledger=session.oracle.ledger,
        degrees_of_freedom=_freedom(session),
        rank=session.found.rank if session.found is not None else None,
        fresh=seen.fresh if seen is not None and seen.fresh.sequences else None,
        counterexample=counterexample,
        detail=detail,
    )


def _reason(session: Session) -> str:
    G, found = session.G, session.found
    if G is None:
        return "A one-layer Transformer was tried: lone tokens were to show its network."
    bends = f"Lone tokens are answered by a network with {G.hidden} hyperplanes"
    parts = [bends if G.hidden else "Lone tokens are answered by an affine map, so that this is a single head"]
    if session.unseen and not session.flat:
        parts += ["tokens before the last act on no answer: it is that network alone"]
    elif found is not None:
        parts += ["a residual acts" if found.M is not None else "no residual acts"]
        parts += ["a score bias acts" if found.h is not None else "no sign of a score bias"]
        parts += [f"W has rank {found.rank}"]
    return "; ".join(parts) + "."


def _determined(session: Session, verdict: Verdict) -> str:
    if session.G is None:
        return "Nothing was determined."
    if session.flat:
        return "Every lone token has the same answer; the network is constant, and W and h are not determined."
    if session.unseen:
        return "The network is determined, and that only the last token meets it; W and h are not: any values fit."
    if verdict is Verdict.CLASS_REFUTED:
        return "No one-layer Transformer that was found has these answers; nothing of the model is determined."
    if session.found is None:
        return "The network a lone token meets is determined; W is not, and zero in the model."
    parts = {"h": session.found.h, "the mixing M": session.found.M}
    names = ", ".join(["W", *(name for name, part in parts.items() if part is not None)])
    return (
        f"{names} and the network G(x) = g(Tx + c) that a lone token meets are determined; how G splits into values "
        "and network, a key bias, and how W splits into queries and keys are not."
    )


def _freedom(session: Session) -> int | None:
    G, found = session.G, session.found
    if G is None or found is None:
        return None
    bias = 0 if found.h is None else G.width if found.joint > found.rank else found.rank
    return one_layer_freedom(
        G.width,
        hidden=G.hidden,
        outputs=G.outputs,
        rank=found.rank,
        score_bias=bias,
        residual=found.M is not None,
    )


def certificate(recovery: Recovery[OneLayer], width: int) -> Certificate:
    """The general reduction confronted with one run: scores cost what a head's do, and a mixing as much again."""
    model, outputs = recovery.model, 1 if recovery.model is None else min(width, recovery.model.outputs)
    residual = model is not None and model.residual
    full = (width + 1) * (1 + -(-width // min(outputs, TOGETHER))) + residual * 2 * width * (1 + -(-width // outputs))
    return Certificate(
        "keyhole/local-affine",
        assumptions=(
            Check("network that is constant", float(recovery.status is Status.NO_READOUT), 0.0),
            Check("answers that were not explained", float(recovery.status is not Status.RECOVERED), 0.0),
        ),
        conclusion=(
            Check("queries that measure scores and mixing", recovery.ledger["measure"].sequences, 3 * full + 1000),
            Check("worst relative disagreement on fresh queries", worst(recovery), EXACT),
        ),
    )


def worst(recovery: Recovery[OneLayer]) -> float:
    """The largest relative disagreement seen; infinite where nothing was asked."""
    return np.inf if recovery.fresh is None else recovery.fresh.relative
