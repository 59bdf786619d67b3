"""One recovery under way: every answer is confronted with what heads within the bounds can give."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from keyhole._arrays import Matrix, Sequences, Stack, Vector
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Fresh, Recovery, Status
from keyhole.learners.tolerance.answer_ranges import Box
from keyhole.learners.tolerance.guarantees import (
    LEAST_SHARE,
    PAIR_LENGTH,
    ROUNDING,
    Guarantee,
    HeadBounds,
    compare_with_margin,
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
from keyhole.learners.verifying.examination import EXACT, Asked, Examination, list_examined
from keyhole.learners.verifying.questions import draw_questions, read_limits
from keyhole.models import Head
from keyhole.oracles import Counted
from keyhole.oracles.base import Imperfection

AGAIN = 2  # how often a sequence that refutes is asked again
_BATCH = 512
_NOTHING = Fresh(0, 0.0, 0.0)


def check_outputs(outputs: int | None) -> None:
    """Raise unless there is one output, or it is not known yet."""
    if outputs not in (None, 1):
        raise InvalidInput(
            f"Theorem 6.1 is for one output; the target answers {outputs} numbers. Let it answer"
            " one of them."
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Case:
    """An answer outside the interval that heads within the bounds can give, slack included."""

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
class ToleranceSession:
    """One recovery under way."""

    bounds: HeadBounds
    oracle: Counted
    stated: Imperfection
    rng: np.random.Generator
    v: Vector | None = field(default=None, init=False)
    Y: Matrix = field(init=False)  # answers to pairs, NaN where not asked
    suspect: _Case | None = field(default=None, init=False)
    fresh: Fresh | None = field(default=None, init=False)
    asked: list[Asked] = field(default_factory=list[Asked], init=False)
    # The largest part of what the bounds allow that an answer needed.
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
        return self.bounds.effective(self.stated, self.readout)

    @property
    def promised(self) -> Guarantee:
        """The theorem's bounds."""
        return guarantee(self.oracle.width, self.bounds.norm_bound, self.bounds.margin, self.tau)

    @property
    def W(self) -> Matrix:
        """Scores by the theorem's formula, zero where not measured."""
        v = self.readout
        B = self.bounds.norm_bound
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            share = (self.Y - PAIR_LENGTH * v) * B / v[:, None]
        share = np.clip(np.where(np.isnan(share), 0.5, share), LEAST_SHARE, 1.0 - LEAST_SHARE)
        return np.log(share / (1.0 - share)) * (B / PAIR_LENGTH)

    @property
    def bars(self) -> Matrix:
        """Bounds on the error of each entry of W, none above B + |W_ij|, which needs no answer."""
        B = self.bounds.norm_bound
        v = np.abs(self.readout)
        error = evaluate_entry_constant(B) * self.tau
        rows = np.divide(error, v, out=np.full_like(v, np.inf), where=v > 0)
        return np.minimum(np.where(np.isnan(self.Y), np.inf, rows[:, None]), B + np.abs(self.W))

    @property
    def head(self) -> Head | None:
        """The head as far as it is known."""
        return None if self.v is None else Head(self.W, self.v[:, None])

    def box(self, W: Matrix, E: Matrix) -> Box:
        """Heads near W whose read-out is what the answers allow."""
        return Box(W, E, self.readout, np.full(self.oracle.width, self.tau))

    def read(self) -> None:
        """Read v from single tokens; an entry that cannot reach the margin is kept in mind."""
        tokens = np.eye(self.oracle.width)[:, None]
        with self.oracle.phase("read"):
            answers = self.oracle.ask(tokens.copy())
        check_outputs(answers.shape[1])
        self.v = answers[:, 0]
        i = int(np.abs(self.v).argmin())
        least = self.bounds.margin - self.tau
        if abs(self.v[i]) < least:
            ends = (least, math.inf) if self.v[i] >= 0 else (-math.inf, -least)
            self.suspect = _Case(tokens[i], float(self.v[i]), *ends, self.tau)

    def measure(self) -> None:
        """Ask all pairs; an answer that no |W_ij| <= B explains is kept in mind."""
        d = self.oracle.width
        known = self.box(np.zeros((d, d)), np.full((d, d), self.bounds.norm_bound))
        # Batches of whole rows, so that a spent budget leaves rows that are known.
        for rows in np.array_split(np.arange(d), math.ceil(d * d / max(_BATCH, d))):
            X = self._pairs(rows)
            answers, spent = self._ask(X, "measure")
            self.Y[rows] = np.append(answers, np.full(len(X) - len(answers), np.nan)).reshape(-1, d)
            self._confront(known, X[: len(answers)], answers)
            if spent is not None:
                raise spent

    def _pairs(self, rows: NDArray[np.intp]) -> Stack:
        """[b e_i + a e_j; a e_j] for these i and all j."""
        d = self.oracle.width
        at = np.arange(d)
        X = np.zeros((len(rows), d, 2, d))
        X[:, at, :, at] = PAIR_LENGTH
        X[np.arange(len(rows)), :, 0, rows] += 1.0 / self.bounds.norm_bound
        return X.reshape(-1, 2, d)

    def _ask(self, X: Sequences, phase: str) -> tuple[Vector, BudgetSpent | None]:
        """Answers, fewer where the budget ran out, and then the error that says so."""
        try:
            with self.oracle.phase(phase):
                return self.oracle.ask(X.copy())[:, 0], None
        except BudgetSpent as spent:
            return np.zeros(0) if spent.answers is None else spent.answers[:, 0], spent

    def _confront(self, box: Box, X: Sequences, answers: Vector) -> tuple[Vector, Vector]:
        """The least and greatest answer that the box explains; the one farthest outside is kept."""
        size = (np.abs(X) @ np.abs(box.v)).max(axis=1)
        slack = self.stated.tolerance + ROUNDING * self.stated.roundoff * size
        least, greatest = box.answers(X)
        least -= slack
        greatest += slack
        excess = np.maximum(least - answers, answers - greatest)
        if excess.max(initial=0.0) > (0.0 if self.suspect is None else self.suspect.excess):
            i = int(excess.argmax())
            numbers = (float(row[i]) for row in (answers, least, greatest, slack))
            self.suspect = _Case(X[i], *numbers)
        return least, greatest

    def judge(self) -> Recovery[Head]:
        """The verdict: by what was measured where that refutes the bounds, else by fresh ones."""
        head = self.head
        complete = self.suspect is None and head is not None and self._examine(head)
        complete = complete and self.fresh is not None
        suspect = self.suspect
        ending = settle(
            self.oracle,
            Examination(
                fresh=self.fresh or _NOTHING,
                worst=None,
                passed=suspect is None,
                complete=complete,
                examined=list_examined(self.asked),
            ),
            lines=DECLARED_ERRORS,
            refuse=lambda: SPENT if suspect is None else self._refuse(suspect),
            reservation=self._find_reservation(),
            words=self._describe_promise(),
        )
        return self.conclude(ending)

    def _find_reservation(self) -> Ending | None:
        """Why agreement is not worth the theorem's word, where it is not."""
        # W = 0 alone is within B of every head that is allowed.
        if self.tau >= self.bounds.margin or np.linalg.norm(self.bars) >= self.bounds.norm_bound:
            return Ending(status=Status.EMPTY_GUARANTEE, detail=self._describe_promise())
        if self.stated.perfect and (self.fresh or _NOTHING).relative > EXACT:
            return Ending(status=Status.IMPRECISE, detail=self._describe_promise())
        return None

    def _examine(self, head: Head) -> bool:
        """Ask fresh sequences; whether the budget allowed all of them."""
        box = self.box(self.W, self.bars)
        seen = [np.zeros((3, 0))]
        spent = None
        for batch in draw_questions(head, read_limits(self.oracle), rng=self.rng):
            answers, spent = self._ask(batch.X, "verify")
            X = batch.X[: len(answers)]
            least, greatest = self._confront(box, X, answers)
            predicted = head(X)[:, 0]
            gap = answers - predicted
            room = np.where(answers < predicted, least, greatest) - predicted
            # Where no token has a value an answer is within the tolerance or not, and no share.
            values = head.magnitude(X)
            relative = np.divide(gap, values, out=np.zeros_like(gap), where=values > 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                shares = np.nan_to_num(np.abs([gap, relative, gap / room]))
            seen.append(shares)
            self.asked += [
                Asked(kind, batch.length, float(off), float(share))
                for kind, off, share in zip(batch.kinds, shares[0], shares[1], strict=False)
            ]
            if spent is not None:
                break
        worst = np.concatenate(seen, axis=1)
        largest, relative, self.used = (float(row.max(initial=0.0)) for row in worst)
        self.fresh = Fresh(worst.shape[1], largest, relative) if worst.shape[1] else None
        return spent is None

    def _refuse(self, case: _Case) -> Ending:
        """Refuse the bounds, unless the target does not stand by the answer that refutes them."""
        detail = (
            f"On a sequence of length {len(case.tokens)} the target is {case.excess:.1e} away from"
            f" what a head with {self._describe_bounds()} can answer within {case.slack:.1e};"
            " raise the norm bound or lower the margin if it may be one."
        )
        doubt = Doubt(Status.BEYOND_BOUNDS, case.counterexample, detail)
        return resolve_doubt(self.oracle, doubt, repeat=lambda: self._repeat(case))

    def _repeat(self, case: _Case) -> str:
        """How the target contradicts the answer that refutes the bounds, where it does."""
        again = self.oracle.ask(np.repeat(case.tokens[None], AGAIN, axis=0))[:, 0]
        gap = float(np.abs(again - case.answer).max())
        # Two answers within the tolerance of one number differ by twice the slack at most.
        if gap > 2 * case.slack or case.explains(again):
            return (
                f"Two answers to one sequence differ by {gap:.1e}, and not all of them speak"
                " against such a head."
            )
        return ""

    def _describe_bounds(self) -> str:
        return f"|W|_F <= {self.bounds.norm_bound:g} and |v_i| >= {self.bounds.margin:g}"

    def _describe_promise(self) -> str:
        return (
            f"Answers are within {self.tau:.1e}, so v is within {self.promised.eps_v:.1e}, and W,"
            f" if no entry of it exceeds {self.bounds.norm_bound:g}, within"
            f" {np.linalg.norm(self.bars):.1e} in Frobenius norm."
        )

    def conclude(self, ending: Ending) -> Recovery[Head]:
        """The recovery as it stands."""
        known = self.v is not None
        # Where the budget ended early, there is nothing to confront the theorem with.
        certified = ending.status not in (Status.BUDGET_SPENT, Status.UNCHECKED)
        return conclude(
            self.oracle,
            replace(ending, fresh=self.fresh),
            Account(
                model=self.head,
                reason=(
                    "Theorem 6.1 was asked for: one head without biases,"
                    f" {self._describe_bounds()}."
                ),
                determined=self._describe_determined(ending.verdict),
                degrees_of_freedom=head_freedom(self.oracle.width) if known else None,
                certificate=self._certify(ending.status) if certified else None,
                bars={"W": np.array([self.bars.max()]), "V": np.array([self.tau])} if known else {},
            ),
        )

    def _describe_determined(self, verdict: Verdict) -> str:
        if self.v is None:
            return "Nothing was determined."
        if verdict is Verdict.UNVERIFIED:
            return "The model is the nearest one found; nothing of it is certain."
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

    def _certify(self, status: Status) -> Certificate:
        """Theorem 6.1 confronted with one run, as far as answers allow."""
        d = self.oracle.width
        margin = self.bounds.margin
        asked = self.oracle.ledger["read"].sequences + self.oracle.ledger["measure"].sequences
        error = float(np.linalg.norm(self.bars))
        seen = float(np.abs(self.readout).min())
        promised = self.promised.eps_W * (1 + 1e-12)
        least = float(np.linalg.norm(np.maximum(np.abs(self.W) - self.bars, 0.0)))
        refused = status not in (Status.RECOVERED, Status.IMPRECISE, Status.EMPTY_GUARANTEE)
        return Certificate(
            "BSHK26/6.1",
            assumptions=(
                compare_with_margin(self.tau, margin),
                Check(
                    "margin less tolerance against the least |v_i| seen", margin - self.tau, seen
                ),
                Check("least |W|_F that the answers allow", least, self.bounds.norm_bound),
                Check(
                    "answers that no head within the bounds gives", float(refused), 0.0, judged=True
                ),
                Check("queries to measure, d^2 + d", asked, d * d + d),
            ),
            conclusion=(
                Check("bound on the error of W from these answers", error, promised),
                Check(
                    "worst fresh disagreement over what the bounds allow",
                    self.used,
                    1.0,
                    judged=True,
                ),
            ),
            given={
                "tolerance": self.tau,
                "margin": margin,
                "norm bound": self.bounds.norm_bound,
            },
        )
