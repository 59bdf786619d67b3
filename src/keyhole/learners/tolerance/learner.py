"""Theorem 6.1 of [BSHK26] as its authors state it: one head from answers that are wrong by up to
tau.

What is asked, and why the errors have the bounds they have, stands in `guarantees`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Matrix, Sequences, Stack, Vector
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.tolerance.answer_ranges import Box
from keyhole.learners.tolerance.guarantees import (
    LEAST_SHARE,
    Guarantee,
    check_positive,
    evaluate_entry_constant,
    guarantee,
)
from keyhole.learners.verifying.ending import (
    DECLARED_ERRORS,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import EXACT, Examination
from keyhole.learners.verifying.questions import QUERIES, draw_fresh_sequences
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import Imperfection, read_imperfection

_A = 0.5  # length of y; that of x is 1/B
_ROUNDING = 8.0  # roundings of the largest value that an answer and its inversion may carry
_BATCH = 512
_AGAIN = 2  # how often a sequence that refutes is asked again


@dataclass(frozen=True, slots=True)
class Tolerant:
    """Recovers a head from answers within a declared tolerance, the way Theorem 6.1 is proved.

    Args:
        norm_bound: B, with |W|_F <= B.
        margin: mu, with |v_i| >= mu for every entry.
    """

    norm_bound: float
    margin: float

    def __post_init__(self) -> None:
        check_positive("a norm bound", self.norm_bound)
        check_positive("a margin", self.margin)

    @property
    def longest(self) -> float:
        """Norm of the longest token the theorem asks: max(1, 1/2 + 1/B)."""
        return max(1.0, _A + 1.0 / self.norm_bound)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """D queries for v and d^2 for W, then verification; two more where the bounds turn out
        wrong.
        """
        _check_outputs(outputs)
        by_phase = {"read": width, "measure": width * width, "verify": QUERIES}
        most = sum(by_phase.values()) + _AGAIN
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=head_freedom(width))

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head of one output without biases; certificate BSHK26/6.1.

        Raises:
            InvalidInput: errors have no bound (noise, labels), there are several outputs, or the
                theorem's tokens are longer than the target takes.
        """
        stated = read_imperfection(oracle)
        _check_outputs(oracle.outputs)
        self._check_stated(stated)
        session = _ToleranceSession(self, Counted(oracle), stated, rng)
        try:
            session.read()
            if session.suspect is None:
                session.measure()
        except BudgetSpent:
            return session.conclude(SPENT)
        return session.judge()

    def _check_stated(self, stated: Imperfection) -> None:
        if stated.noise != 0 or stated.levels is not None:
            what = "labels" if stated.levels is not None else "random noise"
            raise InvalidInput(
                f"Theorem 6.1 is for answers whose error has a bound; the target declares {what}. "
                "Declare a tolerance instead, or choose another learner."
            )
        bound = stated.token_bound
        if bound is None or self.longest <= bound * (1 + 1e-12):
            return
        enough = (
            f"A norm bound of {1.0 / (bound - _A):.4g} or more keeps"
            if bound >= 1.0
            else "No norm bound keeps"
        )
        raise InvalidInput(
            f"Theorem 6.1 asks tokens of norm {self.longest:.4g}; the target takes them up to"
            f" {bound:.4g}. {enough} its tokens that short; otherwise choose another learner."
        )

    def effective(self, stated: Imperfection, readout: Vector) -> float:
        """The declared tolerance, and what rounding adds to it in answers to the theorem's
        queries.
        """
        size = self.longest * float(np.abs(readout).max(initial=0.0))
        return stated.tolerance + _ROUNDING * stated.roundoff * size

    def confront(self, truth: Head, found: Head, stated: Imperfection) -> Certificate:
        """Theorem 6.1 with the truth in hand: its assumptions on the head itself, the errors
        against the bounds.
        """
        v, W = truth.V[:, 0], np.asarray(truth.W)
        tau = self.effective(stated, v)
        promised = guarantee(truth.width, self.norm_bound, self.margin, tau)
        return Certificate(
            "BSHK26/6.1",
            assumptions=(
                _compare_with_margin(tau, self.margin),
                Check("|W|_F", float(np.linalg.norm(W)), self.norm_bound),
                Check("margin against the least |v_i|", self.margin, float(np.abs(v).min())),
            ),
            conclusion=(
                Check("error of W", float(np.linalg.norm(np.asarray(found.W) - W)), promised.eps_W),
                Check("error of v", float(np.linalg.norm(found.V[:, 0] - v)), promised.eps_v),
            ),
        )


_NOTHING = Fresh(0, 0.0, 0.0)


def _compare_with_margin(tau: float, margin: float) -> Check:
    return Check("tolerance against the margin", tau, math.nextafter(margin, 0.0))


def _check_outputs(outputs: int | None) -> None:
    if outputs not in (None, 1):
        raise InvalidInput(
            f"Theorem 6.1 is for one output; the target answers {outputs} numbers. Let it answer"
            " one of them."
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Case:
    """An answer outside the interval of answers, slack included, that heads within the bounds can
    give.
    """

    tokens: Matrix
    answer: float
    least: float
    greatest: float
    slack: float

    @property
    def excess(self) -> float:
        """How far outside the answer is."""
        return max(self.least - self.answer, self.answer - self.greatest)

    def explains(self, answers: Vector) -> bool:
        """Whether some of the answers are inside."""
        return bool(((answers >= self.least) & (answers <= self.greatest)).any())

    @property
    def counterexample(self) -> Counterexample:
        """The sequence with the nearest answer that could have come."""
        nearest = min(max(self.answer, self.least), self.greatest)
        return Counterexample(self.tokens, np.array([self.answer]), np.array([nearest]))


@dataclass(slots=True)
class _ToleranceSession:
    """One recovery under way."""

    learner: Tolerant
    oracle: Counted
    stated: Imperfection
    rng: np.random.Generator
    v: Vector | None = field(default=None, init=False)
    Y: Matrix = field(init=False)  # answers to pairs, NaN where not asked
    suspect: _Case | None = field(default=None, init=False)
    fresh: Fresh | None = field(default=None, init=False)
    # the largest part of what the bounds allow that an answer needed
    used: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.Y = np.full((self.oracle.width,) * 2, np.nan)

    @property
    def readout(self) -> Vector:
        """The read-out as answered, zero before."""
        return np.zeros(self.oracle.width) if self.v is None else self.v

    @property
    def tau(self) -> float:
        """Tolerance with rounding."""
        return self.learner.effective(self.stated, self.readout)

    @property
    def promised(self) -> Guarantee:
        """The theorem's bounds."""
        return guarantee(self.oracle.width, self.learner.norm_bound, self.learner.margin, self.tau)

    @property
    def W(self) -> Matrix:
        """Scores by the theorem's formula, zero where not measured."""
        v, B = self.readout, self.learner.norm_bound
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            share = (self.Y - _A * v) * B / v[:, None]
        share = np.clip(np.where(np.isnan(share), 0.5, share), LEAST_SHARE, 1.0 - LEAST_SHARE)
        return np.log(share / (1.0 - share)) * (B / _A)

    @property
    def bars(self) -> Matrix:
        """Bounds on the error of each entry of W, none above B + |W_ij|, which needs no answer."""
        B, v = self.learner.norm_bound, np.abs(self.readout)
        rows = np.divide(
            evaluate_entry_constant(B) * self.tau, v, out=np.full_like(v, np.inf), where=v > 0
        )
        return np.minimum(np.where(np.isnan(self.Y), np.inf, rows[:, None]), B + np.abs(self.W))

    @property
    def head(self) -> Head | None:
        """The head as far as it is known."""
        return None if self.v is None else Head(self.W, self.v[:, None])

    def box(self, W: Matrix, E: Matrix) -> Box:
        """Heads near W whose read-out is what the answers allow."""
        return Box(W, E, self.readout, np.full(self.oracle.width, self.tau))

    def read(self) -> None:
        """Read v from single tokens; an entry that cannot be as large as the margin is kept in
        mind.
        """
        tokens = np.eye(self.oracle.width)[:, None]
        with self.oracle.phase("read"):
            answers = self.oracle.ask(tokens.copy())
        _check_outputs(answers.shape[1])
        self.v = answers[:, 0]
        i, least = int(np.abs(self.v).argmin()), self.learner.margin - self.tau
        if abs(self.v[i]) < least:
            ends = (least, math.inf) if self.v[i] >= 0 else (-math.inf, -least)
            self.suspect = _Case(tokens[i], float(self.v[i]), *ends, self.tau)

    def measure(self) -> None:
        """Ask all pairs, in batches of whole rows; an answer that no |W_ij| <= B explains is kept
        in mind.
        """
        d, B = self.oracle.width, self.learner.norm_bound
        known = self.box(np.zeros((d, d)), np.full((d, d), B))
        for rows in np.array_split(np.arange(d), math.ceil(d * d / max(_BATCH, d))):
            X = self._pairs(rows)
            answers, spent = self._ask(X, "measure")
            self.Y[rows] = np.append(answers, np.full(len(X) - len(answers), np.nan)).reshape(-1, d)
            self._confront(known, X[: len(answers)], answers)
            if spent is not None:
                raise spent

    def _pairs(self, rows: NDArray[np.intp]) -> Stack:
        """[b e_i + a e_j; a e_j] for these i and all j."""
        d, at = self.oracle.width, np.arange(self.oracle.width)
        X = np.zeros((len(rows), d, 2, d))
        X[:, at, :, at] = _A
        X[np.arange(len(rows)), :, 0, rows] += 1.0 / self.learner.norm_bound
        return X.reshape(-1, 2, d)

    def _ask(self, X: Sequences, phase: str) -> tuple[Vector, BudgetSpent | None]:
        """Answers, fewer where the budget ran out, and then the error that says so."""
        try:
            with self.oracle.phase(phase):
                return self.oracle.ask(X.copy())[:, 0], None
        except BudgetSpent as spent:
            return np.zeros(0) if spent.answers is None else spent.answers[:, 0], spent

    def _confront(self, box: Box, X: Sequences, answers: Vector) -> tuple[Vector, Vector]:
        """The least and the greatest answer that heads of the box explain; the one farthest outside
        is kept.
        """
        slack = self.stated.tolerance + _ROUNDING * self.stated.roundoff * (
            np.abs(X) @ np.abs(box.v)
        ).max(axis=1)
        least, greatest = box.answers(X)
        least, greatest = least - slack, greatest + slack
        excess = np.maximum(least - answers, answers - greatest)
        if excess.max(initial=0.0) > (0.0 if self.suspect is None else self.suspect.excess):
            i = int(excess.argmax())
            self.suspect = _Case(
                X[i], *(float(row[i]) for row in (answers, least, greatest, slack))
            )
        return least, greatest

    def judge(self) -> Recovery[Head]:
        """The verdict: by what was measured where that refutes the bounds, by fresh queries where
        it does not.
        """
        head = self.head
        complete = self.suspect is None and head is not None and self._examined(head)
        suspect = self.suspect
        ending = settle(
            self.oracle,
            Examination(
                self.fresh or _NOTHING,
                None,
                suspect is None,
                False,
                complete and self.fresh is not None,
            ),
            lines=DECLARED_ERRORS,
            refuse=lambda: SPENT if suspect is None else self._refuse(suspect),
            reservation=self._reservation(),
            words=self._promise(),
        )
        return self.conclude(ending)

    def _reservation(self) -> Ending | None:
        """Why agreement is not worth the theorem's word, where it is not."""
        if self.tau >= self.learner.margin or np.linalg.norm(self.bars) >= self.learner.norm_bound:
            return Ending(status=Status.EMPTY_GUARANTEE, detail=self._promise())
        if self.stated.perfect and (self.fresh or _NOTHING).relative > EXACT:
            return Ending(status=Status.IMPRECISE, detail=self._promise())
        return None

    def _examined(self, head: Head) -> bool:
        """Ask fresh sequences; whether the budget allowed all of them."""
        box, seen, spent = self.box(self.W, self.bars), [np.zeros((3, 0))], None
        for X in self._fresh(head):
            answers, spent = self._ask(X, "verify")
            X = X[: len(answers)]
            least, greatest = self._confront(box, X, answers)
            predicted, values = head(X)[:, 0], head.magnitude(X)
            gap, room = (
                answers - predicted,
                np.where(answers < predicted, least, greatest) - predicted,
            )
            with np.errstate(divide="ignore", invalid="ignore"):
                seen.append(np.nan_to_num(np.abs([gap, gap / values, gap / room])))
            if spent is not None:
                break
        worst = np.concatenate(seen, axis=1)
        largest, relative, self.used = (float(row.max(initial=0.0)) for row in worst)
        self.fresh = Fresh(worst.shape[1], largest, relative) if worst.shape[1] else None
        return spent is None

    def _fresh(self, head: Head) -> Iterator[Sequences]:
        """Fresh sequences, tokens shortened to the bound where there is one."""
        bound = self.stated.token_bound
        for X in draw_fresh_sequences(head, rng=self.rng):
            if bound is not None:
                X *= np.minimum(1.0, bound / np.linalg.norm(X, axis=2, keepdims=True))
            yield X

    def _refuse(self, case: _Case) -> Ending:
        """Refuse the bounds, unless the target does not stand by the answer that refutes them."""
        detail = (
            f"On a sequence of length {len(case.tokens)} the target is {case.excess:.1e} away from"
            f" what a head with {self._bounds()} can answer within {case.slack:.1e}; raise the norm"
            " bound or lower the margin if it may be one."
        )
        doubt = Doubt(Status.BEYOND_BOUNDS, case.counterexample, detail)
        return resolve_doubt(self.oracle, doubt, repeat=lambda: self._repeat(case))

    def _repeat(self, case: _Case) -> str:
        """How the target contradicts the answer that refutes the bounds; nothing where it stands by
        it.
        """
        again = self.oracle.ask(np.repeat(case.tokens[None], _AGAIN, axis=0))[:, 0]
        gap = float(np.abs(again - case.answer).max())
        if gap > 2 * case.slack or case.explains(again):
            return (
                f"Two answers to one sequence differ by {gap:.1e}, and not all of them speak"
                " against such a head."
            )
        return ""

    def _bounds(self) -> str:
        return f"|W|_F <= {self.learner.norm_bound:g} and |v_i| >= {self.learner.margin:g}"

    def _promise(self) -> str:
        return (
            f"Answers are within {self.tau:.1e}, so v is within {self.promised.eps_v:.1e}, and W,"
            f" if no entry of it exceeds {self.learner.norm_bound:g}, within"
            f" {np.linalg.norm(self.bars):.1e} in Frobenius norm."
        )

    def conclude(self, ending: Ending) -> Recovery[Head]:
        """The recovery as it stands."""
        known = self.v is not None
        certified = ending.status not in (Status.BUDGET_SPENT, Status.UNCHECKED)
        return conclude(
            self.oracle,
            replace(ending, fresh=self.fresh),
            Account(
                model=self.head,
                reason=f"Theorem 6.1 was asked for: one head without biases, {self._bounds()}.",
                determined=self._determined(ending.verdict),
                degrees_of_freedom=head_freedom(self.oracle.width) if known else None,
                certificate=self._certificate(ending.status) if certified else None,
                bars={"W": np.array([self.bars.max()]), "V": np.array([self.tau])} if known else {},
            ),
        )

    def _determined(self, verdict: Verdict) -> str:
        if self.v is None:
            return "Nothing was determined."
        if verdict is Verdict.CLASS_REFUTED:
            return (
                "No head within the bounds has these answers, and nothing of the model is"
                " determined."
            )
        rows = int((~np.isnan(self.Y)).all(axis=1).sum())
        if rows < self.oracle.width:
            return (
                f"v is determined within its error bar; of W {rows} of {self.oracle.width} rows,"
                " the rest is zero."
            )
        return (
            "W and v are determined within their error bars, for heads within the bounds; how W"
            " splits is not."
        )

    def _certificate(self, status: Status) -> Certificate:
        """Theorem 6.1 confronted with one run, as far as answers allow."""
        d, B, margin = self.oracle.width, self.learner.norm_bound, self.learner.margin
        asked = self.oracle.ledger["read"].sequences + self.oracle.ledger["measure"].sequences
        error, seen = float(np.linalg.norm(self.bars)), float(np.abs(self.readout).min())
        least = float(np.linalg.norm(np.maximum(np.abs(self.W) - self.bars, 0.0)))
        refused = status not in (Status.RECOVERED, Status.IMPRECISE, Status.EMPTY_GUARANTEE)
        return Certificate(
            "BSHK26/6.1",
            assumptions=(
                _compare_with_margin(self.tau, margin),
                Check(
                    "margin less tolerance against the least |v_i| seen", margin - self.tau, seen
                ),
                Check("least |W|_F that the answers allow", least, B),
                Check("answers that no head within the bounds gives", float(refused), 0.0),
            ),
            conclusion=(
                Check("queries to measure, d^2 + d", asked, d * d + d),
                Check(
                    "bound on the error of W from these answers",
                    error,
                    self.promised.eps_W * (1 + 1e-12),
                ),
                Check("worst fresh disagreement over what the bounds allow", self.used, 1.0),
            ),
        )
