"""The one ending of every recovery: what was seen of a model becomes a verdict.

A learner hands over what fresh answers showed (an `Examination`) and what it makes of a
disagreement (a `Doubt`). `settle` asks its questions in one order and gives an `Ending`; `conclude`
adds what the learner knows of its model (an `Account`) and gives the Recovery. No verdict is
spoken, and no Recovery made, anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from keyhole._arrays import EPS, Array, Matrix, Stack
from keyhole.claims import Certificate, Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Counterexample, Examined, Fresh, Jumps, Recovery, Status
from keyhole.learners.findings import Witness
from keyhole.learners.found_units import FoundUnits
from keyhole.learners.verifying.examination import EXACT, Examination, Ruler, measure_scatter
from keyhole.learners.verifying.rules import describe_witness
from keyhole.models import Model
from keyhole.oracles import Counted, Imperfection, Oracle, read_imperfection

M = TypeVar("M", bound=Model)
Probe = tuple[Stack, Matrix]

UNRESOLVED_DIGITS = (
    "Entries below 1e-15 of the largest are not resolved; ask those coordinates alone to see them."
)
NO_ROOM = "A sequence disagrees, but the budget left no room to ask it again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Where one class of models draws its lines.

    Args:
        roundings: of the declared rounding, which explain a relative disagreement.
        near: a relative disagreement up to this is a lack of precision, not a refutation.
        room_first: a spent budget is told before it is looked whether rounding hides the answers.
        looks_hidden: whether it is looked at all whether rounding hides the answers.
        says_exact: whether agreement with exact answers is called exact; a label or a cast never
            shows that much.
    """

    roundings: float = 1e4
    near: float = 0.0
    room_first: bool = False
    looks_hidden: bool = True
    says_exact: bool = True

    def tolerance(self, oracle: Oracle) -> float:
        """The relative disagreement that is explained by what the oracle declares."""
        stated = read_imperfection(oracle)
        return EXACT if stated.perfect else self.roundings * stated.roundoff

    def ruler(self, oracle: Oracle) -> Ruler:
        """What explains a gap, by what the oracle declares."""
        return Ruler(self.tolerance(oracle), read_imperfection(oracle).roundoff)


# One line for each class; (*) marks where they differ without a reason in the mathematics. An
# inversion costs four decimal digits at the sizes that scores are probed at, hence 1e4 roundings;
# lines of networks lose one more (*). A sum of heads is read twice where answers are coarse, and
# dropped weights are not to pass for rounding; off by less than 1e-3 it was told apart and measured
# badly. A network is off by more than 1e-5 only where a hyperplane is missing, a layer by
# more than 1e-4 only where its attention is another's (*).
ONE_HEAD = Lines()
SUM_OF_HEADS = Lines(roundings=3e2, near=1e-3)
NETWORK = Lines(roundings=1e5, near=1e-5, room_first=True)  # (*) the order
NETWORK_IN_BALL = Lines(room_first=True)  # (*) the order
SMOOTH_NETWORK = Lines(roundings=1e5, near=1e-5, looks_hidden=False)  # (*) does not look
ONE_LAYER = Lines(near=1e-4)
# All heads are fitted to all answers together: that costs two digits, and five would let soft caps
# and windows pass for rounding of float32. (*) does not look
WIRED_LAYER = Lines(roundings=1e2, looks_hidden=False)
BLOCK = Lines(roundings=1e5, looks_hidden=False)
# Scores of third order are extrapolated from few of them, which costs five digits as a layer's do.
THIRD_ORDER = Lines(roundings=1e5, near=1e-6, looks_hidden=False)
VOCABULARY = Lines(near=1e5)  # in tolerances: on badly spread tokens so much may be rounding
# Where answers carry declared errors, the examination itself says what these hide.
DECLARED_ERRORS = Lines(looks_hidden=False)
COARSE_ANSWERS = Lines(looks_hidden=False, says_exact=False)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Ending:
    """How a recovery ended: the parts of it that do not depend on the learner."""

    status: Status
    verdict: Verdict = Verdict.UNVERIFIED
    fresh: Fresh | None = None
    counterexample: Counterexample | Witness | None = None
    detail: str = ""
    examined: Examined | None = None


SPENT = Ending(status=Status.BUDGET_SPENT, verdict=Verdict.BUDGET_SPENT)
NO_READOUT = Ending(status=Status.NO_READOUT, verdict=Verdict.NOT_IDENTIFIABLE)


@dataclass(frozen=True, eq=False, slots=True)
class Doubt:
    """What a learner makes of answers that disagree with its model.

    Args:
        status: why it stops.
        case: the sequence that shows it.
        detail: a sentence on this run in particular.
        again: whether the target is asked again before it is said, lest it answers differently.
        refutes: whether the case alone refutes, as where the class is one saved model; of a class
            only a witness does.
    """

    status: Status
    case: Counterexample | None = None
    detail: str = ""
    again: bool = True
    refutes: bool = False


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Account(Generic[M]):
    """What a learner knows of its model when it stops; see `Recovery` for the fields."""

    model: M | None
    reason: str
    determined: str
    degrees_of_freedom: int | None = None
    rank: int | None = None
    certificate: Certificate | None = None
    bars: Mapping[str, Array] = field(default_factory=dict[str, Array])
    jumps: Jumps | None = None
    units: FoundUnits | None = None


def settle(
    oracle: Counted,
    seen: Examination,
    *,
    lines: Lines,
    refuse: Callable[[], Ending],
    blind: bool = False,
    reservation: Ending | None = None,
    words: str = "",
) -> Ending:
    """What fresh answers make of a model: the order of these questions is the policy.

    Args:
        oracle: the target, with what it declares.
        seen: what fresh answers showed.
        lines: where this class of models draws its lines.
        refuse: called where answers disagree.
        blind: whether the model shows no attention, so that none of its weights are determined.
        reservation: why agreement is worth nothing here, where something is.
        words: added to the sentence of a verified model.
    """
    ending = _settle(oracle, seen, lines, refuse, blind, reservation, words)
    fresh = seen.fresh if seen.fresh.sequences else None
    return replace(ending, fresh=fresh, examined=seen.examined)


def _settle(
    oracle: Counted,
    seen: Examination,
    lines: Lines,
    refuse: Callable[[], Ending],
    blind: bool,
    reservation: Ending | None,
    words: str,
) -> Ending:
    # A target that answers one question in two ways is not a function, whatever else agrees.
    if seen.changed > 0.0:
        return end_scattered(seen.changed)
    # Part of the questions shows a disagreement as surely as all of them, but no agreement.
    if lines.room_first and seen.passed and not seen.complete:
        return Ending(status=Status.UNCHECKED)
    # Answers that rounding hides agree or disagree by accident.
    if lines.looks_hidden and seen.hidden:
        return Ending(status=Status.HIDDEN)
    if not seen.passed:
        return refuse()
    if not seen.complete:
        return Ending(status=Status.UNCHECKED)
    # Parts that are far larger than what they add up to agree with anything.
    if seen.vacuous:
        return Ending(status=Status.VACUOUS)
    # With V = 0 every W agrees with every answer.
    if blind:
        return NO_READOUT
    if reservation is not None:
        return reservation
    exact = lines.says_exact and read_imperfection(oracle).perfect
    verdict = Verdict.EXACT if exact else Verdict.WITHIN_TOLERANCE
    return Ending(status=Status.RECOVERED, verdict=verdict, detail=_describe_agreement(seen, words))


def _describe_agreement(seen: Examination, words: str) -> str:
    """Of what a model is right, and what of it is not resolved."""
    parts = [words, "" if seen.examined is None else seen.examined.sentence]
    parts += [UNRESOLVED_DIGITS] if seen.unresolved else []
    return " ".join(part for part in parts if part)


def resolve_doubt(
    oracle: Counted,
    doubt: Doubt,
    *,
    probe: Probe | None = None,
    repeat: Callable[[], str] | None = None,
) -> Ending:
    """The ending of a doubt, unless the target turns out to answer the same question differently.

    Args:
        oracle: the target.
        doubt: what is to be said if the target stands by its answers.
        probe: a sequence asked before, with its answer, to be asked again as well.
        repeat: asks again in another way, and says how the target contradicted itself, or nothing.
    """
    asking = repeat or (lambda: repeat_case(oracle, doubt.case, probe=probe))
    try:
        with oracle.phase("verify"):
            contradiction = asking() if doubt.again else ""
    except BudgetSpent:
        return Ending(status=Status.UNCHECKED, detail=NO_ROOM)
    if contradiction:
        return Ending(status=Status.INCONSISTENT, detail=contradiction)
    refuted = doubt.refutes and doubt.case is not None
    verdict = Verdict.CLASS_REFUTED if refuted else Verdict.UNVERIFIED
    return Ending(
        status=doubt.status, verdict=verdict, counterexample=doubt.case, detail=doubt.detail
    )


def repeat_case(oracle: Counted, case: Counterexample | None, *, probe: Probe | None = None) -> str:
    """Ask doubtful sequences again; a sentence where answers differ by more than rounding."""
    cases = [] if probe is None else [probe]
    cases += [] if case is None else [(case.tokens[None], case.answer[None])]
    gap = measure_scatter(oracle, cases, read_imperfection(oracle).roundoff)
    return describe_scatter(gap) if gap > 0.0 else ""


def describe_scatter(gap: float) -> str:
    """That a target answered one question in two ways."""
    return f"Two answers to one sequence differ by {gap:.2g}."


def end_scattered(gap: float) -> Ending:
    """The ending where a target was seen to answer one question in two ways."""
    return Ending(status=Status.INCONSISTENT, detail=describe_scatter(gap))


def end_refuted(status: Status, witness: Witness, detail: str = "") -> Ending:
    """The ending where a witness shows that no member of a class answers so."""
    return Ending(
        status=status,
        verdict=Verdict.CLASS_REFUTED,
        counterexample=witness,
        detail=f"{detail} {describe_witness(witness)}".strip(),
    )


def describe_rounding(oracle: Oracle, tolerance: float) -> str:
    """What a declared rounding explains in a model that agrees; nothing where answers are exact."""
    stated = read_imperfection(oracle)
    if stated.perfect:
        return ""
    if stated.absolute and stated.roundoff <= EPS:
        return _describe_declared(stated)
    return (
        f"Answers are declared to be rounded to {stated.roundoff:.1e}, which explains errors up to"
        f" {tolerance:.1e}."
    )


def _describe_declared(stated: Imperfection) -> str:
    parts = {
        f"a standard deviation of {stated.noise:.1e}": stated.noise,
        f"a size of at most {stated.tolerance:.1e}": stated.tolerance,
    }
    return f"Errors of answers are declared to have {' and '.join(filter(parts.get, parts))}."


def describe_case(case: Counterexample | None, of_what: str) -> str:
    """How far a target is from what a class of models can answer."""
    if case is None:
        return ""
    return (
        f"On a sequence of length {len(case.tokens)} the target is {case.gap:.2g} away from"
        f" {of_what}."
    )


def describe_gap(case: Counterexample | None) -> str:
    """How far a target and a model are apart."""
    if case is None:
        return ""
    return f"On a sequence of length {len(case.tokens)} they are {case.gap:.2g} apart."


def conclude(oracle: Counted, ending: Ending, account: Account[M]) -> Recovery[M]:
    """The recovery: how it ended, and what is known of the model."""
    return Recovery(
        model=account.model,
        status=ending.status,
        verdict=ending.verdict,
        reason=account.reason,
        determined=account.determined,
        ledger=oracle.ledger,
        degrees_of_freedom=account.degrees_of_freedom,
        rank=account.rank,
        fresh=ending.fresh,
        counterexample=ending.counterexample,
        certificate=account.certificate,
        bars=account.bars,
        detail=ending.detail,
        jumps=account.jumps,
        units=account.units,
        examined=ending.examined,
    )


def refute(recovery: Recovery[M], witness: Witness) -> Recovery[M]:
    """A recovery that did not succeed, and a witness why none can."""
    return replace(
        recovery,
        verdict=Verdict.CLASS_REFUTED,
        determined="No member of the class has these answers; nothing of the model is determined.",
        counterexample=witness,
        detail=f"{recovery.detail} {describe_witness(witness)}".strip(),
    )


def withdraw(recovery: Recovery[M], status: Status, detail: str) -> Recovery[M]:
    """A recovery whose verdict does not stand after all."""
    return replace(
        recovery,
        status=status,
        verdict=Verdict.UNVERIFIED,
        counterexample=None,
        # It was made for the verdict that does not stand.
        certificate=None,
        detail=detail,
    )


def contradict(recovery: Recovery[M], case: Counterexample, words: str = "") -> Recovery[M]:
    """A recovery whose model fresh answers bear out, and an answer given before does not."""
    return replace(
        recovery,
        status=Status.CONTRADICTED,
        verdict=Verdict.UNVERIFIED,
        determined="The model is the best one found; nothing of it is certain.",
        counterexample=case,
        # A theorem's conclusion was read off a model that is wrong somewhere.
        certificate=None,
        detail=f"{recovery.detail} {describe_gap(case)} {words}".strip(),
    )


def reopen(recovery: Recovery[M], status: Status, detail: str) -> Recovery[M]:
    """A recovery that ended otherwise than its learner could tell; its model is kept."""
    return replace(recovery, status=status, verdict=Verdict.UNVERIFIED, detail=detail)


def tell_cause(recovery: Recovery[M], cause: str) -> Recovery[M]:
    """A recovery that also says where the rounding of answers comes from."""
    return replace(recovery, detail=f"{recovery.detail} {cause}".strip()) if cause else recovery
