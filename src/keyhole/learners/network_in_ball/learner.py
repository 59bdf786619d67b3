r"""ReLU networks whose tokens must stay inside a ball, and how much of the ball a word is worth.

The network is peeled along chords (chords). Then n fresh points are asked, half of them uniform in
the ball, half on its surface. If the model were wrong on a share v of the ball, all would agree
with probability $(1 - v)^{n/2}$ at most. When fresh points disagree, peeling goes on, and other
fresh points are asked, more of them: with $n_i = N (\ln 20 + i \ln 2)/3$ points at attempt $i = 1,
2, \dots$ a model wrong on more than $6/N$ of the ball, or of its surface, passes with probability
$0.05/2^i$ at most, which adds up to 5 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.networks.chords import Peeling, draw_in_ball
from keyhole.learners.networks.kinks import Smooth, Unresolved
from keyhole.learners.networks.normal_form_fit import MOST, count_parameters
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    NETWORK_IN_BALL,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_gap,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import (
    EXACT,
    Examination,
    add_fresh_points,
    examine_model,
)
from keyhole.learners.verifying.questions import QUERIES, read_limits
from keyhole.models import AbsAffine
from keyhole.models.relu import network_freedom
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_ATTEMPTS = 6
_CALM = 100  # points in a row that are right before fresh ones are asked
_BATCH = 60
_PRECISE = 0.2 * EXACT  # errors above this, beside how answers vary, make a fit worth its time


def count_fresh_points(points: int, attempt: int) -> int:
    """How many fresh points an attempt asks, the first one being 1."""
    return int(np.ceil(points * (np.log(20.0) + attempt * np.log(2.0)) / 3.0))


@dataclass(frozen=True, slots=True)
class NetworkInBall:
    """Learner of a network with one hidden ReLU layer where no token may be longer than a bound.

    Args:
        radius: the bound; what the oracle declares when absent.
        points: the model is wrong on less than 6 / points of the ball, at 95 %.
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        most: hidden units allowed for.
    """

    radius: float | None = None
    points: int = 300
    hidden: int | None = None
    most: int = 2048

    def __post_init__(self) -> None:
        if self.radius is not None and not (self.radius > 0 and np.isfinite(self.radius)):
            raise InvalidInput(f"the radius of the ball is a finite number > 0; got {self.radius}.")
        if min(self.points, self.most, 1 if self.hidden is None else self.hidden + 1) < 1:
            raise InvalidInput(
                "points and most are at least 1, hidden at least 0; got"
                f" {(self.points, self.most, self.hidden)}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """5.5 queries per kink, 4.5 to try each hyperplane, a Jacobian per 0.85 m kinks, fresh."""
        k = 4 * width if self.hidden is None else self.hidden
        jacobians = -(-k // max(1, int(0.85 * outputs))) + (k // 8 if outputs > 2 else 0)
        by_phase = {
            "start": width + 9,
            "search": 2 * _CALM,
            "kinks": 11 * k // 2,
            "slopes": jacobians * (width + 1),
            "try": 9 * k // 2,
            "mend": k // 8 * (2 * width + 2),
            "verify": count_fresh_points(self.points, 1) + QUERIES,
        }
        fresh = [count_fresh_points(self.points, i + 1) for i in range(_ATTEMPTS)]
        last = sum(count + QUERIES + 2 for count in fresh)
        count = network_freedom(width, hidden=k, outputs=outputs)
        worst = self.cap(width) + last
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def cap(self, width: int) -> int:
        """Queries beside the fresh ones, at most."""
        return 2000 + 24 * self.most * (width + 12)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[AbsAffine]:
        """Recover the network inside the ball; certificate keyhole/chords."""
        radius = self.radius or read_imperfection(oracle).token_bound
        if radius is None:
            raise InvalidInput(
                "a bound on the tokens is needed: declare it (--token-bound R), or give the radius."
            )
        measuring, checking = rng.spawn(2)
        run = _BallRun(self, Counted(oracle), radius, read_imperfection(oracle).roundoff)
        return run.learn(measuring, checking)


@dataclass(frozen=True, eq=False, slots=True)
class _BallAnswers:
    """Fresh answers: how they agree, lone tokens with theirs, the worst case, what hides it."""

    fresh: Fresh
    x: Matrix
    y: Matrix
    worst: Counterexample | None
    hidden: bool
    complete: bool


@dataclass(slots=True)
class _BallRun:
    """One recovery under way."""

    options: NetworkInBall
    oracle: Counted
    radius: float
    roundoff: float
    peeling: Peeling | None = field(default=None, init=False)
    attempt: int = field(default=0, init=False)

    def ask(self, x: Matrix) -> Matrix:
        asked = self.oracle.ledger.total(without="verify").sequences
        if asked + len(x) > self.options.cap(x.shape[1]):
            raise Unresolved
        return self.oracle.ask(x[:, None])

    @property
    def model(self) -> AbsAffine | None:
        """The model so far."""
        return getattr(self.peeling, "model", None)

    def learn(self, rng: np.random.Generator, checking: np.random.Generator) -> Recovery[AbsAffine]:
        """Peel and ask fresh points in turn, until these agree or nothing more is found."""
        width = self.oracle.width
        peeling = Peeling(
            self.ask, width, self.radius, self.roundoff, self.options.most, self.oracle.phase, rng
        )
        try:
            self.peeling = peeling
            peeling.begin()
            for self.attempt in range(1, _ATTEMPTS + 1):
                why = self._peel(peeling)
                seen = self._examine(peeling, checking)
                ending = self._judge(peeling, seen, why, checking)
                if ending is not None:
                    return self._conclude(ending, seen)
        except BudgetSpent:
            return self._conclude(SPENT)
        except Unresolved:
            return self._conclude(Ending(status=Status.UNPEELED))
        return self._conclude(Ending(status=Status.UNPEELED))

    def _peel(self, peeling: Peeling) -> Status | None:
        """Peel; why that came to no end, if it did not."""
        try:
            whole = peeling.search(_CALM)
        except Smooth:
            return Status.SMOOTH
        except (Unresolved, np.linalg.LinAlgError):
            return Status.UNPEELED
        if not whole:
            return Status.CROWDED if peeling.model.hidden > self.options.most else Status.UNPEELED
        return None

    def _examine(self, peeling: Peeling, rng: np.random.Generator) -> _BallAnswers:
        """Ask fresh points, no more once a hyperplane shows to be missing."""
        count = count_fresh_points(self.options.points, self.attempt)
        d = peeling.width
        lone = draw_in_ball(count + count % 2, d, self.radius, rng=rng)[:count, None]
        batches: list[Stack] = [lone[i : i + _BATCH] for i in range(0, count, _BATCH)]
        answers: list[Matrix] = []
        complete = True
        missing = peeling.missing
        with self.oracle.phase("verify"):
            for X in batches:
                try:
                    answers.append(self.oracle.ask(X.copy()))
                except BudgetSpent as spent:
                    complete = False
                    if spent.answers is not None:
                        answers.append(spent.answers)
                    break
                if np.abs(answers[-1] - peeling.model(X)).max() > missing:
                    break
            else:
                self._refine(peeling)
        return self._compare(peeling.model, batches, answers, complete)

    def _refine(self, peeling: Peeling) -> None:
        """A fit to what was answered before, where points kept from then show a lack of precision.

        Fresh answers have no part in it, nor in whether it is made: they stay fresh.
        """
        model = peeling.model
        size = count_parameters(model.width, hidden=model.hidden, outputs=model.outputs)
        if size <= MOST and peeling.errors().max() > _PRECISE * peeling.spread:
            peeling.refit()

    def _compare(
        self, model: AbsAffine, batches: list[Stack], answers: list[Matrix], complete: bool
    ) -> _BallAnswers:
        every = np.concatenate([*answers, np.zeros((0, model.outputs))])
        size = float(np.abs(every).max(initial=0.0))
        spread = float(np.abs(every - every.mean(axis=0)).max()) if len(every) else 0.0
        grain = 64 * self.roundoff * size
        cases = [
            Counterexample(x, y, z)
            for X, Y in zip(batches, answers, strict=False)
            for x, y, z in zip(X, Y, model(X[: len(Y)]), strict=False)
        ]
        largest = max((case.gap for case in cases), default=0.0)
        yard = max(spread, grain / EXACT) or largest or 1.0
        worst = max(
            cases, key=lambda c: (c.gap > EXACT * yard, -len(c.tokens), c.gap), default=None
        )
        x = np.array([case.tokens[0] for case in cases]).reshape(len(cases), model.width)
        hidden = bool(grain * 1e-4 > EXACT * spread > 0)
        fresh = Fresh(len(cases), largest, largest / yard)
        return _BallAnswers(fresh, x, every[: len(x)], worst, hidden, complete)

    def _judge(
        self, peeling: Peeling, seen: _BallAnswers, why: Status | None, rng: np.random.Generator
    ) -> Ending | None:
        """How it ended, or None where peeling should go on from what fresh points show."""
        passed = seen.fresh.relative <= EXACT
        # Points that disagree show hyperplanes still missing.
        if not passed and not seen.hidden and why is None:
            return self._search_on(peeling, seen)
        shown = Examination(
            fresh=seen.fresh,
            worst=seen.worst,
            passed=passed,
            complete=seen.complete,
            hidden=seen.hidden,
        )
        if passed and seen.complete and not seen.hidden and why is None:
            shown = self._examine_further(peeling.model, shown, rng)
        return settle(
            self.oracle,
            shown,
            lines=NETWORK_IN_BALL,
            refuse=lambda: self._refuse(shown.worst, Status.NO_NETWORK if why is None else why),
            reservation=None if why is None else Ending(status=why),
            words=self._describe_share(),
        )

    def _examine_further(
        self, model: AbsAffine, points: Examination, rng: np.random.Generator
    ) -> Examination:
        """The examination that every model has to pass, beside the points of the ball."""
        limits = read_limits(self.oracle, bound=self.radius)
        ruler = NETWORK_IN_BALL.ruler(self.oracle)
        with self.oracle.phase("verify"):
            seen = examine_model(self.oracle, model, ruler=ruler, rng=rng, limits=limits)
        return add_fresh_points(seen, points.fresh, "points of the ball")

    def _search_on(self, peeling: Peeling, seen: _BallAnswers) -> Ending | None:
        """Keep what fresh points show; an ending where a lack of precision is all they show."""
        before = peeling.missing
        peeling.keep(seen.x, seen.y)
        rough = peeling.errors().max() <= before
        # Once is enough: what a second fit of the same kind leaves, a third would leave too.
        if rough and (self.attempt > 1 or not self._sharpen(peeling)):
            return Ending(status=Status.ROUGH, fresh=seen.fresh if seen.fresh.sequences else None)
        return None

    def _sharpen(self, peeling: Peeling) -> bool:
        """Fit to all answers, fresh ones included, unless there are too many parameters."""
        model = peeling.model
        if count_parameters(model.width, hidden=model.hidden, outputs=model.outputs) > MOST:
            return False
        peeling.asked.append((peeling.x, peeling.y))
        peeling.refit()
        return True

    def _refuse(self, worst: Counterexample | None, why: Status) -> Ending:
        """Refuse, unless the target turns out to answer the same question differently."""
        return resolve_doubt(self.oracle, Doubt(why, worst, describe_gap(worst)))

    def _conclude(self, ending: Ending, seen: _BallAnswers | None = None) -> Recovery[AbsAffine]:
        model = self.model
        certificate = None
        if seen is not None and model is not None:
            certificate = self._certificate(model, ending.verdict, seen)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=self._reason(),
                determined=self._determined(ending.verdict),
                degrees_of_freedom=None if model is None else model.degrees_of_freedom,
                certificate=certificate,
                bars={} if model is None or not model.hidden else self._bars(model),
            ),
        )

    @property
    def share(self) -> float:
        """The share of the ball, and of its surface, on which a model that passed may be wrong."""
        n = count_fresh_points(self.options.points, self.attempt)
        return 2.0 * (np.log(20.0) + self.attempt * np.log(2.0)) / n

    def _describe_share(self) -> str:
        return (
            f"With 95 % confidence it is wrong on less than {100 * self.share:.2g} % of the ball of"
            f" radius {self.radius:.6g}, and of its surface."
        )

    def _reason(self) -> str:
        if self.model is None:
            return "A network with one hidden ReLU layer was tried inside the ball."
        return (
            f"Inside the ball of radius {self.radius:.6g} the answers are piecewise linear, bent"
            f" along {self.model.hidden} hyperplanes."
        )

    def _determined(self, verdict: Verdict) -> str:
        if self.model is None:
            return "Nothing was determined."
        if not verdict.verified:
            return "The model is the best one found; nothing of it is certain."
        return (
            f"{self.model.hidden} hyperplanes n, t with their jumps D, and the affine part P, q,"
            " are determined up to order and signs of (n, t), inside the ball."
            f" {self._describe_share()} Hyperplanes that cut off a smaller part, or miss the ball,"
            " are not seen, and outside nothing is determined."
        )

    def _bars(self, model: AbsAffine) -> dict[str, Vector | Matrix]:
        bars = self.peeling.bars if self.peeling is not None else np.zeros(0)
        if len(bars) != model.hidden:
            return {}
        return {
            "n": bars / self.radius,
            "t": bars,
            "D": bars / self.radius * np.linalg.norm(model.D, axis=1),
        }

    def _certificate(self, model: AbsAffine, verdict: Verdict, seen: _BallAnswers) -> Certificate:
        """The claim of chords, confronted with one run."""
        k, m, d = model.hidden, model.outputs, model.width
        # With three outputs or more one Jacobian serves a block of kinks, cut short by chords.
        stations = -(-k // max(1, int(0.85 * m))) + k // 2 if m > 2 else k
        allowed = 2 * stations * (d + 1) + 14 * k + 12 * d + 600
        wrong = 6.0 / self.options.points
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/chords",
            assumptions=(
                assume_class("answers that no such network gives", verdict),
                Check("queries used beside fresh ones", asked, allowed),
            ),
            conclusion=(
                conclude_agreement(seen.fresh),
                Check("share of the ball that may be wrong, at 95 %", self.share, wrong),
            ),
            given={"radius": self.radius},
        )
