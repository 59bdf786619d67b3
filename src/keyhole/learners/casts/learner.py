r"""Heads behind answers cast to f32, f16 or bf16: null balance.

One answer has 8 to 24 binary digits, but answers near 0 have them where they matter. The read-out
is refined by single tokens that almost cancel (`cast_readout`), the score matrix by queries whose
answer would be 0 if what is believed of W were true (`null_balance`), and the result is checked
where the recovered model answers 0 (`cast_examination`). This takes arithmetic inside that is finer
than the answers. How fine it is shows in the first stage; where it is no finer, the answers hold no
more than they say, and the learner for one-shot readings is used instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, FORMATS, Array, Format, pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.casts.cast_examination import (
    Agreement,
    compare_cast_answers,
    measure_cast_scatter,
)
from keyhole.learners.casts.cast_readout import CastReading, Unsuited
from keyhole.learners.casts.null_balance import CastForms
from keyhole.learners.one_head.columns import Directions
from keyhole.learners.one_head.designs import build_frame_design
from keyhole.learners.one_head.low_rank import LowRank
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.verifying.certifying import assume_class
from keyhole.learners.verifying.ending import (
    COARSE_ANSWERS,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    describe_scatter,
    resolve_doubt,
    settle,
    withdraw,
)
from keyhole.learners.verifying.examination import (
    Examination,
    Ruler,
    add_fresh_points,
    examine_model,
)
from keyhole.learners.verifying.questions import QUERIES, read_limits
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

THEOREM = "keyhole/null-balance"
ACCURACY = 1e-12  # relative error of W and V the theorem promises
_ROUNDS = 8  # of balancing
# Arithmetic inside counts as finer than the answers below this share of their rounding.
_FINER = 2.0**-4
_USUAL = 8.0  # roundings of a token value, by which a usual answer may be off
_NULLS = 8  # questions near nulls and boundaries, at least
_SIZES = (80, 40, 28)  # of an examination by the usual kinds
_EXPLAINED = 32.0  # roundings of the answers that explain what a one-shot reading is off by
_FINE = 3e2  # of finer formats, whose errors are magnified by scores
_SHARP = 1e-3  # errors above which a one-shot reading refutes nothing
_CLOSE = 1e-11  # agreement asked for near nulls, relative to the token values


def count_most_queries(width: int, outputs: int = 1) -> int:
    """Queries a recovery takes at most, verification included: 6 d^2 + 6 d + 60 for one output."""
    return 6 * width * width + 6 * width * outputs + 60 * outputs


@dataclass(frozen=True, slots=True)
class Balanced:
    """Recovers a head to about 1e-14 from answers of any format, if arithmetic inside is float64.

    Answers must be cast and nothing else. Where a constant, a score bias or a residual acts, or the
    arithmetic inside is as coarse as the answers, it says so and hands over to `LowRank`.
    """

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """About 5 queries per number and 45 for the scale of V (bf16; fewer for f32, f16)."""
        limit = count_most_queries(width, outputs)
        read = 46 * outputs + 5 * width * outputs
        measure = 5 * width * width + width * width // 4
        verify = max(8, min(QUERIES, limit - read - measure - 4))
        by_phase = {"read": read, "scale": 4, "measure": measure, "verify": verify}
        # Where null balance does not apply, a one-shot reading follows.
        most = limit + width * width + 1500 + LowRank().plan(width, outputs=outputs).at_most
        freedom = head_freedom(width, outputs=outputs)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head from cast answers; certificate keyhole/null-balance.

        Raises:
            InvalidInput: the answers are declared to carry other errors than those of a cast.
        """
        stated = read_imperfection(oracle)
        if stated.absolute or stated.levels is not None or stated.token_bound is not None:
            raise InvalidInput(
                "null balance is for answers that are cast and nothing else; these are declared"
                " noisy, rounded, labels only or of bounded tokens. Use another learner."
            )
        measuring, checking = rng.spawn(2)
        session = _CastSession(Counted(oracle), FORMATS[stated.format], measuring)
        try:
            head = session.measure()
        except BudgetSpent:
            return session.conclude(session.partial(), SPENT)
        except Unsuited as found:
            reason = str(found)
            return _recover_one_shot(oracle, session, reason, checking)
        except Saturated:
            reason = "No scale was found at which answers can be balanced."
            return _recover_one_shot(oracle, session, reason, checking)
        except BadAnswer:
            reason = "An answer that should have been small was not finite."
            return _recover_one_shot(oracle, session, reason, checking)
        except NotAHead as refusal:
            return session.conclude(None, _refuse(session, None, refusal.counterexample))
        return _judge(session, head, checking)


@dataclass(slots=True)
class _CastSession:
    """One recovery under way; what is known so far makes a partial model when the budget ends."""

    oracle: Counted
    stated: Format
    rng: np.random.Generator
    reading: CastReading = field(init=False)
    forms: CastForms | None = field(default=None, init=False)
    rank: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.reading = CastReading(self.oracle, self.stated, self.rng)

    @property
    def form(self) -> Format:
        """The format of the answers, as far as it has shown."""
        return self.reading.form

    @property
    def shows_readout(self) -> bool:
        """Whether some token was seen to be answered with anything but 0."""
        return self.reading.V is not None and bool(self.reading.V.any())

    @property
    def asked(self) -> int:
        """Queries so far."""
        return self.oracle.ledger.total().sequences

    @property
    def left(self) -> int:
        """Queries that the limit leaves."""
        return count_most_queries(self.oracle.width, self.oracle.outputs or 1) - self.asked

    def measure(self) -> Head:
        """The head, fitted and not yet verified."""
        with self.oracle.phase("read"):
            V = self.reading.run()
        if self.reading.inner > _FINER * self.form.roundoff:
            raise Unsuited(
                f"The arithmetic inside rounds to about {self.reading.inner:.0e}, as coarsely as"
                f" the answers ({self.form.roundoff:.0e}), so that answers near 0 hold no further"
                " digits."
            )
        with pin_one_thread():
            design = build_frame_design(V, most=1, cut=1.0)
        Y = Directions.random(len(V), biased=False, rng=self.rng).Y
        forms = CastForms(self.oracle, self.form, V, self.reading.inner, design, Y)
        with self.oracle.phase("scale"):
            acts = forms.calibrate(self.rng)
        # Without an effect at any scale W is zero, and no form need be measured.
        if acts:
            self.forms = forms
            with self.oracle.phase("measure"):
                forms.first()
                forms.refine(lambda: self.left - min(QUERIES, 8 + len(V) ** 2 // 2), _ROUNDS)
        W = forms.matrix()
        with pin_one_thread():
            self.rank = matrix_rank(W) if acts else 0
        return Head(W, V)

    def partial(self) -> Head | None:
        """What is known so far; W is zero where nothing is."""
        V = self.reading.V
        if V is None:
            return None
        return Head(np.zeros((len(V), len(V))) if self.forms is None else self.forms.matrix(), V)

    def bars(self, head: Head | None) -> dict[str, Array]:
        """Errors of W and V, one number for all entries of each."""
        if head is None or self.rank is None:
            return {}
        of_V = self.reading.bar.max() + 2 * self.reading.inner * np.abs(head.V).max()
        bars = {"V": np.array([of_V])}
        if self.forms is not None:
            norm = float(np.linalg.norm(np.asarray(head.W)))
            bars["W"] = np.array([3 * self.forms.bar * norm / head.width])
        return bars

    def conclude(
        self, head: Head | None, ending: Ending, seen: Agreement | None = None
    ) -> Recovery[Head]:
        """The recovery."""
        freedom = None
        if head is not None and self.rank is not None:
            freedom = head_freedom(
                head.width,
                outputs=head.outputs,
                rank=self.rank,
                value_rank=int(np.linalg.matrix_rank(head.V)),
            )
        linear = (
            "Single tokens are answered linearly; no sign of a constant, a score bias or a"
            " residual."
        )
        return conclude(
            self.oracle,
            ending,
            Account(
                model=head,
                reason=linear if self.rank is not None else "One head was tried first.",
                determined=_describe_cast_head(head, self.rank, ending.status),
                degrees_of_freedom=freedom,
                rank=self.rank,
                certificate=_certify_null_balance(self, ending.verdict, seen),
                bars=self.bars(head),
            ),
        )


def _describe_cast_head(head: Head | None, rank: int | None, status: Status) -> str:
    if head is None:
        return "Nothing was determined."
    if status in (Status.DISAGREES, Status.NOT_A_HEAD):
        return "The model is the nearest one found; nothing of it is certain."
    if rank is None:
        return "V is determined as far as it was measured; of W only what was measured whole."
    return (
        "W, V are determined; a key bias, and how W splits into queries and keys, change no answer."
    )


def _certify_null_balance(
    session: _CastSession, verdict: Verdict, seen: Agreement | None
) -> Certificate | None:
    """The count and the accuracy of null balance confronted with one run."""
    if seen is None or session.reading.V is None:
        return None
    d, o = session.reading.V.shape
    error = session.forms.bar if session.forms is not None else 0.0
    return Certificate(
        THEOREM,
        assumptions=(
            assume_class("answers that no single head gives", verdict),
            Check("rounding of the arithmetic inside", session.reading.inner, 64 * EPS),
            Check("queries in all", session.asked, count_most_queries(d, o)),
        ),
        conclusion=(Check("relative error of W", error, ACCURACY),),
    )


def _judge(session: _CastSession, head: Head, rng: np.random.Generator) -> Recovery[Head]:
    count = max(_NULLS, min(QUERIES, session.left))
    # In the smallest widths the count leaves no room for some of each kind.
    usual = next((size for size in _SIZES if size + _NULLS <= count), 0)
    inner = session.reading.inner
    bar = session.forms.bar if session.forms is not None else 0.0
    # No gap below the rounding of an answer shows, and none that errors of W explain counts.
    tolerance = min(max(_CLOSE, 256 * inner, 64 * bar), session.form.roundoff)
    with session.oracle.phase("verify"):
        seen = compare_cast_answers(
            session.oracle, head, session.form, count=count - usual, tolerance=tolerance, rng=rng
        )
        examined = _examine_usual_kinds(session, head, seen, usual, rng)
    words = (
        f"Answers are cast. Of the fresh ones beside a rounding boundary {seen.equal:.0%} are the"
        f" model's bit for bit, and where it answers 0 the target agrees to {tolerance:.0e} of the"
        " token values."
    )
    if inner > 64 * EPS:
        words += (
            f" The arithmetic inside rounds to about {inner:.0e}, which ends the refinement at"
            f" {bar:.0e}."
        )
    ending = settle(
        session.oracle,
        examined,
        lines=COARSE_ANSWERS,
        refuse=lambda: _refuse(session, head, examined.worst),
        words=words,
    )
    return session.conclude(head, ending, replace(seen, fresh=examined.fresh))


def _examine_usual_kinds(
    session: _CastSession, head: Head, seen: Agreement, count: int, rng: np.random.Generator
) -> Examination:
    """Questions of every usual kind too: those near a null have small scores and short sequences.

    Answers away from a null are the model's to a few roundings.
    """
    roundoff = max(session.form.roundoff, session.reading.inner)
    if count == 0:
        passed = seen.passed or seen.worst is None
        return Examination(
            fresh=seen.fresh,
            worst=seen.worst,
            passed=passed,
            complete=seen.complete,
            examined=seen.examined,
        )
    usual = examine_model(
        session.oracle,
        head,
        ruler=Ruler(_USUAL * roundoff, roundoff),
        rng=rng,
        limits=replace(read_limits(session.oracle), size=count),
    )
    for kind in seen.examined.kinds:
        points = Fresh(kind.count, kind.worst, kind.relative)
        usual = add_fresh_points(usual, points, kind.name)
    failed = seen.worst if not seen.passed and seen.worst is not None else None
    return replace(
        usual,
        worst=failed if failed is not None else usual.worst,
        passed=usual.passed and failed is None,
        complete=usual.complete and seen.complete,
    )


def _refuse(session: _CastSession, head: Head | None, case: Counterexample | None) -> Ending:
    """Refuse, unless the target turns out to answer the same question differently."""

    def repeat() -> str:
        if case is None:
            return ""
        gap = measure_cast_scatter(session.oracle, case, head, session.form, session.reading.inner)
        return describe_scatter(gap) if gap > 0.0 else ""

    status = Status.DISAGREES if head is not None else Status.NOT_A_HEAD
    doubt = Doubt(status, case, describe_case(case, "what such a head answers"))
    return resolve_doubt(session.oracle, doubt, repeat=repeat)


def _recover_one_shot(
    oracle: Oracle, session: _CastSession, reason: str, rng: np.random.Generator
) -> Recovery[Head]:
    """The learner for one-shot readings, its verdict held to what rounding explains."""
    try:
        recovery = LowRank().run(oracle, rng=rng)
    # Its tokens are of ordinary size; the format may be too narrow for what they are answered.
    except BadAnswer as error:
        detail = f"{reason} Reading every number once failed as well: {error}"
        return session.conclude(None, Ending(status=Status.IMPRECISE, detail=detail))
    once = "Null balance does not apply, and every number was read once."
    detail = f"{reason} {once} {recovery.detail}".strip()
    roundoff = session.form.roundoff
    explained = max(_EXPLAINED * roundoff, min(_FINE * roundoff, _SHARP))
    off = recovery.fresh.relative if recovery.fresh is not None else 0.0
    blunt = explained > _SHARP or session.reading.inner > 4 * roundoff
    if recovery.verdict.verified and off > explained:
        detail += f" Fresh answers are off by {off:.1e} of the token values, which is too much."
        recovery = withdraw(recovery, Status.IMPRECISE, detail)
    # What errors of such a size explain is no witness against the class.
    elif recovery.status in (Status.DISAGREES, Status.NOT_A_HEAD) and blunt:
        detail += " Answers as coarse as these do not rule one head out."
        recovery = withdraw(recovery, Status.IMPRECISE, detail)
    # Tokens of ordinary size vanish in the format, longer ones were answered before.
    elif recovery.verdict is Verdict.NOT_IDENTIFIABLE and session.shows_readout:
        detail += " Only tokens longer than it asks are answered with anything but 0."
        recovery = withdraw(recovery, Status.IMPRECISE, detail)
    ledger = session.oracle.ledger.plus(recovery.ledger)
    return replace(recovery, ledger=ledger, detail=detail)
