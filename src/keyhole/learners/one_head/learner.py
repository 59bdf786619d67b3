"""The road every learner of a single head takes: read out, find scales, measure, verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.errors import BudgetSpent
from keyhole.identify import head_freedom
from keyhole.learners.base import (
    Counterexample,
    Examined,
    Plan,
    Recovery,
    Status,
    bound_queries,
)
from keyhole.learners.one_head.columns import Columns, Directions
from keyhole.learners.one_head.designs import choose_full_design, draw_scattered_design
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead, Readout, Scattered, measure_readout
from keyhole.learners.one_head.scales import calibrate_prober
from keyhole.learners.verifying.ending import (
    ONE_HEAD,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    describe_rounding,
    end_scattered,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import EXACT, Ruler, examine_model, hint_at_rounding
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Factored, Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection


@dataclass(frozen=True, eq=False, slots=True)
class Measured:
    """Attention weights as a strategy returns them."""

    W: Matrix | Factored
    h: Vector | None
    rank: int
    bias_free: bool = False  # whether h lies outside the column space of W


Strategy = Callable[[Columns, np.random.Generator], Measured]


def plan_head(
    width: int,
    outputs: int,
    measure: int,
    *,
    rank: int | None = None,
    checks: int | None = None,
    most: int | None = None,
) -> Plan:
    """What a head costs: d + 5 queries to read out, a few for the scale, and what a strategy asks.

    Args:
        width: of a token.
        outputs: numbers per answer.
        measure: queries that measure W.
        rank: the rank of W, where it is known.
        checks: queries that find the rank, where it is looked for.
        most: queries that measure W where more are needed than expected.
    """
    by_phase = {"read": width + 5, "scale": 6, "measure": measure}
    if checks is not None:
        by_phase["rank"] = checks
    by_phase["verify"] = QUERIES
    return Plan(
        by_phase=by_phase,
        at_most=bound_queries(by_phase | {"measure": most or measure}),
        degrees_of_freedom=head_freedom(
            width, outputs=outputs, rank=width if rank is None else min(rank, width)
        ),
        outputs=outputs,
    )


@dataclass(slots=True)
class HeadSession:
    """One recovery under way; what is known so far makes a partial model when the budget ends."""

    oracle: Counted
    roundoff: float
    rng: np.random.Generator
    readout: Readout | None = field(default=None, init=False)
    columns: Columns | None = field(default=None, init=False)
    rank: int | None = field(default=None, init=False)
    bias_freedom: int = field(default=0, init=False)

    def measure(self, strategy: Strategy) -> Head:
        """The head, fitted and not yet verified."""
        with self.oracle.phase("read"):
            readout = measure_readout(self.oracle, roundoff=self.roundoff, rng=self.rng)
        self.readout = readout
        if readout.blind:
            self.rank = 0
            return self.head(np.zeros((self.oracle.width,) * 2), None)
        self.columns = self._prepare_columns(readout)
        # A scale of zero says that no length of tokens made W act.
        if self.columns.prober.sy == 0.0:
            measured = self._measure_bias_alone(self.columns)
        else:
            measured = strategy(self.columns, self.rng)
        self.rank = measured.rank
        if measured.h is not None:
            self.bias_freedom = self.oracle.width if measured.bias_free else measured.rank
        return self.head(measured.W, measured.h)

    def _prepare_columns(self, readout: Readout) -> Columns:
        """Find the scale, and draw the directions to be measured."""
        roundoff = self.roundoff
        design = probes = choose_full_design(readout.V, roundoff=roundoff)
        # Vectors of two entries may all miss the few entries of W that are not small.
        if design.sparse is not None:
            probes = draw_scattered_design(readout.V, 8, rng=self.rng)
        with self.oracle.phase("scale"):
            prober = calibrate_prober(self.oracle, readout, probes, roundoff=roundoff, rng=self.rng)
        directions = Directions.random(self.oracle.width, biased=readout.biased, rng=self.rng)
        return Columns(prober, design, directions)

    def _measure_bias_alone(self, columns: Columns) -> Measured:
        """W = 0; a score bias is still measured, with y = 0."""
        d = self.oracle.width
        h = None
        if columns.directions.weight != 1.0:
            with self.oracle.phase("measure"):
                h = columns.design.solve(columns.prober.forms(columns.design, np.zeros((1, d))))[0]
        return Measured(np.zeros((d, d)), h, 0, bias_free=True)

    def head(self, W: Matrix | Factored, h: Vector | None) -> Head:
        """A head from measured scores and what was read out."""
        readout = self.readout
        if readout is None:
            raise BudgetSpent("nothing was read yet.")
        return Head(W, readout.V, h, readout.c if readout.c.any() else None, readout.U)

    def partial(self) -> Head | None:
        """What is known of the head so far; W is zero along directions that were not measured."""
        if self.readout is None:
            return None
        d = self.oracle.width
        if self.columns is None or not self.columns.C:
            return self.head(np.zeros((d, d)), None)
        return self.head(*self.columns.split(self.columns.matrix()))


def recover_head(oracle: Oracle, strategy: Strategy, *, rng: np.random.Generator) -> Recovery[Head]:
    """Run one strategy and verify its head on fresh queries."""
    measuring, checking = rng.spawn(2)
    session = HeadSession(Counted(oracle), read_imperfection(oracle).roundoff, measuring)
    try:
        head = session.measure(strategy)
    except BudgetSpent:
        return _conclude_head(session, session.partial(), SPENT)
    except Saturated:
        return _conclude_head(session, None, _refuse_head(session, Status.SATURATED, None))
    except Scattered as found:
        return _conclude_head(session, None, end_scattered(found.gap))
    except NotAHead as refusal:
        ending = _refuse_head(session, Status.NOT_A_HEAD, refusal.counterexample)
        return _conclude_head(session, None, ending)
    return _conclude_head(session, head, _judge_head(session, head, checking))


def _judge_head(session: HeadSession, head: Head, rng: np.random.Generator) -> Ending:
    tolerance = EXACT
    if not read_imperfection(session.oracle).perfect:
        tolerance = _allow_declared_rounding(session, head)
    with session.oracle.phase("verify"):
        ruler = Ruler(tolerance, session.roundoff)
        seen = examine_model(session.oracle, head, ruler=ruler, rng=rng)
    near = seen.fresh.relative <= _bound_weak_error(session, head)
    return settle(
        session.oracle,
        seen,
        lines=ONE_HEAD,
        refuse=lambda: _refuse_head(session, Status.DISAGREES, seen.worst, near=near),
        blind=not head.V.any(),
        words=describe_rounding(session.oracle, tolerance),
    )


def _measure_probe_scores(session: HeadSession, head: Head) -> float:
    """Size of the scores that W gave the probes: a large score bias keeps it small."""
    if session.columns is None or head.h is None:
        return 1.0
    prober = session.columns.prober
    return prober.sx * prober.sy * float(np.linalg.norm(np.asarray(head.W))) / head.width**0.5


def _allow_declared_rounding(session: HeadSession, head: Head) -> float:
    """What a declared rounding explains: four decimal digits, more where W acted weakly."""
    acted = max(_measure_probe_scores(session, head), 1e-6)
    return 1e4 * session.roundoff * float(np.clip(0.25 / acted, 1.0, 30.0))


def _bound_weak_error(session: HeadSession, head: Head) -> float:
    """Relative error that rounding alone explains where W acts weakly; 0 where it acts well."""
    acted = _measure_probe_scores(session, head)
    return 1e4 * session.roundoff / acted if 0 < acted < 1e-2 else 0.0


def _refuse_head(
    session: HeadSession, status: Status, case: Counterexample | None, *, near: bool = False
) -> Ending:
    """Refuse, unless the target turns out to answer the same question differently."""
    # Where rounding explains the gap, the class is not in doubt.
    if near:
        detail = "A score bias far larger than the scores keeps tokens short."
        return Ending(status=Status.IMPRECISE, detail=detail)
    probe = session.readout.probe if session.readout is not None else None
    answers = [a for a in (probe and probe[1], case and case.answer[None]) if a is not None]
    words = (describe_case(case, "what such a head can answer"), hint_at_rounding(answers))
    detail = " ".join(part for part in words if part)
    return resolve_doubt(session.oracle, Doubt(status, case, detail), probe=probe)


def _conclude_head(session: HeadSession, head: Head | None, ending: Ending) -> Recovery[Head]:
    disagrees = ending.status in (Status.DISAGREES, Status.NOT_A_HEAD)
    return conclude(
        session.oracle,
        ending,
        Account(
            model=head,
            reason=_explain_why_head(session),
            determined=_describe_determined_head(session, head, disagrees),
            degrees_of_freedom=_count_head_freedom(session),
            rank=session.rank,
            bars=_estimate_head_bars(session, ending.examined) if session.rank is not None else {},
        ),
    )


def _count_head_freedom(session: HeadSession) -> int | None:
    if session.readout is None or session.rank is None:
        return None
    readout = session.readout
    d, o = readout.V.shape
    return head_freedom(
        d,
        outputs=o,
        rank=session.rank,
        value_rank=int(np.linalg.matrix_rank(readout.V)),
        score_bias=session.bias_freedom,
        constant=bool(readout.c.any()),
        residual=readout.U is not None,
    )


def _explain_why_head(session: HeadSession) -> str:
    readout = session.readout
    if readout is None:
        return "One head was tried first."
    acts = {
        "a score bias": readout.biased,
        "a constant": bool(readout.c.any()),
        "a residual": readout.U is not None,
    }
    there = [name for name, yes in acts.items() if yes]
    absent = [name for name, yes in acts.items() if not yes]
    parts = ["Single tokens are answered by an affine map"]
    if there:
        parts.append(f"{' and '.join(there)} {'acts' if len(there) == 1 else 'act'}")
    if absent:
        parts.append(f"no sign of {' or '.join(absent)}")
    if session.rank is not None:
        parts.append(f"W has rank {session.rank}")
    return "; ".join(parts) + "."


def _describe_determined_head(session: HeadSession, head: Head | None, disagrees: bool) -> str:
    readout = session.readout
    if readout is None or head is None:
        return "Nothing was determined."
    if not head.V.any():
        known = "c + x_N U" if readout.U is not None else f"the constant {readout.c.tolist()}"
        return (
            f"The answers are {known} for every sequence; V = 0 is determined, W and h are not: any"
            " values fit."
        )
    if disagrees:
        return "The model is the nearest one found; nothing of it is certain."
    if session.rank is None:
        columns = session.columns.known if session.columns is not None else 0
        return (
            f"V is determined; W along {columns} of {session.oracle.width} directions, zero"
            " elsewhere."
        )
    tensors = {"W": head.W, "V": head.V, "h": head.h, "c": head.c, "U": head.U}
    names = ", ".join(name for name, tensor in tensors.items() if tensor is not None)
    return (
        f"{names} are determined; a key bias, and how W splits into queries and keys, change"
        " no answer."
    )


def _estimate_head_bars(session: HeadSession, examined: Examined | None) -> dict[str, Array]:
    """One standard error per tensor, holding for each of its entries.

    A share is read to about the noise of an answer, a logit to four times that at the target size,
    a form to that over sx, and an entry of W to that over sx sy, with a factor of three for the
    inversion.
    """
    readout = session.readout
    columns = session.columns
    if readout is None or readout.blind:
        return {}
    # Scores of order one tell how far off the weights are; larger ones magnify it.
    seen = 0.0 if examined is None else examined.find_relative_gap("neighbours")
    noise = max(4 * session.roundoff, seen)
    bars = {"V": np.array([noise * (np.abs(readout.V).max() + np.abs(readout.c).max())])}
    if columns is not None and columns.prober.sy > 0:
        bars["W"] = np.array([6 * noise / (columns.prober.sx * columns.prober.sy)])
    if columns is not None and readout.biased:
        bars["h"] = np.array([6 * noise / columns.prober.sx])
    return bars
