r"""ReLU networks whose answers carry errors: noise, a tolerance, few decimals, float32.

Where tokens may be of any length, absolute errors vanish beside long ones (far_units). Where they
are bounded, or where errors grow with the answers, a network is grown inside a ball (growth). The
verdict is statistical: the mean square of what the model leaves at 2,000 fresh points, and the
largest of them, must be what the declared errors and the uncertainty of the fit explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Matrix
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.network_under_noise.allowances import FreshComparison, Scatter, UncertainFit
from keyhole.learners.network_under_noise.far_units import find_offsets, settle_offsets
from keyhole.learners.network_under_noise.growth import Growing, estimate_covariance, fit_affine_map
from keyhole.learners.network_under_noise.listening import (
    measure_noise,
    measure_rounding,
    measure_scale,
)
from keyhole.learners.network_under_noise.network_account import (
    certify_grown_network,
    describe_determined_network,
    describe_errors,
    describe_scatter,
    describe_shortfall,
    explain_network_found,
)
from keyhole.learners.networks.chords import draw_in_ball
from keyhole.learners.networks.learner import Network
from keyhole.learners.networks.lines import learn_network, measure_typical_distance
from keyhole.learners.verifying.ending import (
    COARSE_ANSWERS,
    NO_ROOM,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_gap,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Asked, Examination, list_examined
from keyhole.learners.verifying.questions import QUERIES, Batch, draw_questions, read_limits
from keyhole.models import AbsAffine
from keyhole.models.relu import network_freedom
from keyhole.oracles import Counted, Imperfection, Oracle
from keyhole.oracles.base import read_imperfection

POINTS = 2_000  # fresh points
_OUTSIDE = "points beyond"
_EACH = 16  # of every radius beyond
_AGAIN = 16  # times a doubtful question is asked again
_FAR = 2.0**40  # where answers are mostly slopes: offsets and errors are small beside them
_BEYOND = (1e3, 1e6)  # radii of some further fresh points, where tokens may be of any length
_NEARBY = (3.0, 10.0, 100.0)  # the same where the network was grown inside a ball
_ALIKE = 1e-6  # a larger relative error far away is none of such a network
_PER_OFFSET = 12  # answers from which each offset is settled
_ATTEMPTS = 4
_WIDER = 3.0  # factor by which a ball grows when only points beyond it disagree


@dataclass(frozen=True, slots=True)
class NetworkUnderNoise:
    """Learner of a network with one hidden ReLU layer from answers whose errors are declared.

    Args:
        hidden: hidden units expected, for the plan only; twice the width when absent.
        most: hidden units allowed for.
        points: fresh points asked for the verdict.
    """

    hidden: int | None = None
    most: int = 2048
    points: int = POINTS

    def __post_init__(self) -> None:
        if min(self.most, self.points, 1 if self.hidden is None else self.hidden + 1) < 1:
            raise InvalidInput(
                "most and points are at least 1, hidden at least 0; got"
                f" {(self.most, self.points, self.hidden)}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """About twelve answers per parameter to grow a network from, and 2,000 fresh ones."""
        k = 2 * width if self.hidden is None else self.hidden
        count = network_freedom(width, hidden=k, outputs=outputs)
        fresh = self.points + QUERIES
        by_phase = {"read": 200, "grow": 1000 + 12 * count // outputs, "verify": fresh + _AGAIN}
        far = Network(k, self.most).plan(width, outputs=outputs)
        offsets = _PER_OFFSET * (self.most + outputs)
        worst = far.at_most + 60_000 + 64 * self.most + offsets + 2 * fresh
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[AbsAffine]:
        """Recover the network as far as errors allow; certificate keyhole/grown-network."""
        measuring, checking = rng.spawn(2)
        stated = read_imperfection(oracle)
        run = _NoisyNetworkRun(self, Counted(oracle), stated, measuring, checking)
        try:
            return run.learn()
        except BudgetSpent:
            return run.conclude(SPENT)


@dataclass(slots=True)
class _NoisyNetworkRun:
    """One recovery under way."""

    options: NetworkUnderNoise
    oracle: Counted
    stated: Imperfection
    rng: np.random.Generator
    checking: np.random.Generator
    sigma: float = field(default=0.0, init=False)  # standard deviation of an answer
    noise: float = field(default=0.0, init=False)  # the random part of it
    radius: float = field(default=1.0, init=False)  # of the ball that was looked at
    found: UncertainFit | None = field(default=None, init=False)
    far: bool = field(default=False, init=False)  # whether tokens of any length were asked
    asked: tuple[Matrix, Matrix] = field(init=False)  # the last fresh points with their answers
    outside: bool = field(default=False, init=False)  # only points beyond the ball disagreed

    @property
    def width(self) -> int:
        """Coordinates of a token."""
        return self.oracle.width

    def ask(self, x: Matrix) -> Matrix:
        """Answers to lone tokens."""
        return self.oracle.ask(np.ascontiguousarray(x)[:, None])

    def learn(self) -> Recovery[AbsAffine]:
        """Far away where that helps, inside a ball otherwise."""
        bound = self.stated.token_bound
        with self.oracle.phase("read"):
            if bound is None:
                self.radius = measure_scale(self.ask, self.width, self.stated, rng=self.rng)
            else:
                self.radius = bound
            self._listen()
        # Relative errors grow with the answers, so that nothing is gained far away.
        if bound is None and self.stated.roundoff <= EPS:
            ended = self._outside()
            if ended is not None:
                return ended
        return self._inside()

    def _listen(self) -> None:
        """Measure how much answers scatter, where it is not declared."""
        stated = self.stated
        self.noise = stated.noise
        if np.isnan(self.noise):
            self.noise = measure_noise(self.ask, self.width, self.radius, rng=self.rng)
        rounding = 0.0
        if stated.roundoff > EPS:
            rounding = measure_rounding(
                self.ask, self.width, self.radius, stated.roundoff, rng=self.rng
            )
        self.sigma = float(np.hypot(np.hypot(self.noise, stated.tolerance), rounding))

    def _outside(self) -> Recovery[AbsAffine] | None:
        """Normals and jumps far away, offsets near the origin; None where that is not verified."""
        units = self._far_units()
        if units is None:
            return None
        k, m, d = units.hidden, units.outputs, units.width
        with self.oracle.phase("offsets"):
            t = find_offsets(self.ask, units, repeats=2, rng=self.rng)
            units = replace(units, t=t)
            scale = measure_typical_distance(units) if k else self.radius
            x = scale * self.rng.normal(size=(_PER_OFFSET * (k + m) + 200, d))
            # Half of the points lie farther out, for hyperplanes beyond the typical distance.
            x[::2] *= 3.0
            y = self.ask(x)
        model, C = settle_offsets(units, x, y)
        before = self.radius
        self.found = UncertainFit(model, C, offsets=True)
        self.far = True
        self.radius = scale
        ended = self.judge()
        if ended.verdict.verified or ended.status in (Status.UNCHECKED, Status.INCONSISTENT):
            return ended
        self.found = None
        self.far = False
        # Offsets found so, right or wrong, say how far out a ball must reach.
        self.radius = max(before, 3.0 * float(np.abs(t).max(initial=0.0)))
        return None

    def _far_units(self) -> AbsAffine | None:
        """The network that the target is far away, without offsets; None where it is none."""
        d = self.width
        probe = self.rng.normal(size=(4, d))
        with self.oracle.phase("kinks"):
            values = self.ask(_FAR * probe)
            slope = float(np.abs(values).max()) / _FAR
            # So far out that errors are below the last digit of an answer.
            hidden = max(1.0, 1e16 * self.sigma / (_FAR * slope or 1.0))
            S = _FAR * 2.0 ** min(200.0, float(np.ceil(np.log2(hidden))))
        learned = learn_network(
            lambda x: self.ask(S * x) / S,
            d,
            values.shape[1],
            rng=self.rng,
            roundoff=self.stated.roundoff,
            most=self.options.most,
            phase=self.oracle.phase,
        )
        if learned.spent:
            raise BudgetSpent("the budget ran out far away.")
        model = learned.model
        if model is None or not learned.gap <= _ALIKE:
            return None
        return replace(model, t=np.zeros(model.hidden), q=self.ask(np.zeros((1, d)))[0])

    def _inside(self) -> Recovery[AbsAffine]:
        """Grow a network inside the ball; fresh points that disagree become points to grow from."""
        x, y = self._more(1000 + 120 * self.oracle.width, None)
        growing = Growing(self._more, self.sigma, self.options.most, self.rng, x, y)
        start = fit_affine_map(x, y)[0]
        ended = None
        for _ in range(_ATTEMPTS):
            start = growing.run(start)
            self.found = UncertainFit(
                start, estimate_covariance(start, growing.x, growing.y), offsets=False
            )
            if not growing.is_explained(start, growing.left):
                return self._unexplained(growing)
            ended = self.judge()
            if ended.status is not Status.UNGROWN:
                return ended
            self._learn_from_fresh(growing, start)
        return ended or self.conclude(Ending(status=Status.UNGROWN))

    def _learn_from_fresh(self, growing: Growing, model: AbsAffine) -> None:
        """Grow from fresh points that were not met."""
        # Where they are all beyond the ball it was too small, and others are drawn.
        if self.outside:
            self.radius *= _WIDER
            growing.x, growing.y = self._more(len(growing.x), None)
        else:
            growing.x = np.concatenate([growing.x, self.asked[0]])
            growing.y = np.concatenate([growing.y, self.asked[1]])
            growing.look(model)

    def _unexplained(self, growing: Growing) -> Recovery[AbsAffine]:
        """No network was found, unless the target scatters more than was declared."""
        with self.oracle.phase("verify"):
            again = self.ask(np.repeat(growing.x[:1], _AGAIN, axis=0))
        excess = self.scatter.measure_excess(again)
        if excess:
            scattered = describe_scatter(excess)
            return self.conclude(Ending(status=Status.INCONSISTENT, detail=scattered))
        return self.conclude(self._ungrown(growing.left))

    @property
    def scatter(self) -> Scatter:
        """Errors of an answer."""
        return Scatter(self.sigma, self.noise, self.stated.tolerance)

    def _more(self, count: int, near: Matrix | None) -> tuple[Matrix, Matrix]:
        """New points of the ball, some of them near given ones."""
        d, R = self.width, self.radius
        x = draw_in_ball(count, d, R, rng=self.rng)
        if near is not None:
            aside = 0.15 * R * self.rng.normal(size=(count, d)) / np.sqrt(d)
            x = near[np.arange(count) % len(near)] + aside
            # A declared bound holds for rounded norms, too.
            x *= np.minimum(1.0, (1.0 - 1e-12) * R / np.linalg.norm(x, axis=1, keepdims=True))
        with self.oracle.phase("grow"):
            return x, self.ask(x)

    def judge(self) -> Recovery[AbsAffine]:
        """What fresh points and a few longer sequences say."""
        found = self.found
        if found is None:
            return self.conclude(Ending(status=Status.UNGROWN))
        batches = self._draw_fresh(found.model)
        answers: list[Matrix] = []
        with self.oracle.phase("verify"):
            try:
                for batch in batches:
                    answers.append(self.oracle.ask(batch.X.copy()))
            except BudgetSpent:
                return self.conclude(Ending(status=Status.UNCHECKED))
        pairs = zip(batches, answers, strict=True)
        seen = [FreshComparison.of(found, b.X, y, self.scatter, self.radius) for b, y in pairs]
        self.asked = batches[0].X[:, 0], answers[0]
        outside = [batch.has_kind((_OUTSIDE,)) for batch in batches]
        beyond = [s for s, far in zip(seen, outside, strict=True) if far] or seen[:1]
        self.outside = seen[0].excess <= 1.0 and max(s.excess for s in beyond) > 1.0
        count = sum(len(s.gap) for s in seen)
        fresh = Fresh(count, max(float(s.gap.max()) for s in seen), seen[0].relative)
        worst = max(seen, key=lambda s: s.excess)
        ending = settle(
            self.oracle,
            Examination(
                fresh=fresh,
                worst=None,
                passed=worst.excess <= 1.0,
                complete=True,
                examined=list_examined(
                    [
                        Asked(kind, batch.length, float(gap), float(gap) / (one.spread or 1.0))
                        for batch, one in zip(batches, seen, strict=True)
                        for kind, gap in zip(batch.kinds, one.gap, strict=True)
                    ]
                ),
            ),
            lines=COARSE_ANSWERS,
            refuse=lambda: self._refuse(worst),
            reservation=self._reservation(seen[0]),
            words=f"Answers carry {describe_errors(self.stated, self.noise)}.",
        )
        return self.conclude(ending, seen[0].mean_square if ending.verdict.verified else 0.0)

    def _reservation(self, seen: FreshComparison) -> Ending | None:
        """Why agreement within the allowed errors is not enough, where it is not."""
        # Every gap may be allowed while all together are more than errors explain.
        if seen.mean_square > 1.0 + 4.0 * (2.0 / seen.gap.size) ** 0.5:
            return self._ungrown(seen.rms)
        # Where errors are larger than the function varies, a constant would agree as well.
        if self.scatter.hides > seen.spread:
            return Ending(status=Status.VEILED)
        return None

    def _draw_fresh(self, model: AbsAffine) -> list[Batch]:
        """Fresh points, longer sequences and, where tokens are not bounded, points far away."""
        rng = self.checking
        d, R, count = self.width, self.radius, self.options.points
        x = draw_in_ball(count, d, R, rng=rng)
        if self.far:
            x = R * rng.normal(size=(count, d)) * 3.0 ** rng.integers(-1, 2, size=(count, 1))
        radii = _BEYOND if self.far else _NEARBY
        if self.stated.token_bound is not None:
            radii = ()
        limits = read_limits(self.oracle, bound=R)
        longer = [batch for batch in draw_questions(model, limits, rng=rng) if batch.length > 1]
        scale = 1.0 if self.far else d**-0.5
        beyond = [scale * R * r * rng.normal(size=(_EACH, 1, d)) for r in radii]
        return [
            Batch(x[:, None], ("points",) * len(x)),
            *longer,
            *(Batch(X, (_OUTSIDE,) * len(X)) for X in beyond),
        ]

    def _refuse(self, seen: FreshComparison) -> Ending:
        """Refuse where tokens before the last act, unless answers scatter more than declared."""
        tokens = seen.X[seen.worst]
        try:
            with self.oracle.phase("verify"):
                again = self.oracle.ask(np.repeat(tokens[None], _AGAIN, axis=0))
                lone = self.oracle.ask(np.repeat(tokens[None, -1:], _AGAIN, axis=0))
        except BudgetSpent:
            return Ending(status=Status.UNCHECKED, detail=NO_ROOM)
        case = Counterexample(tokens, again.mean(axis=0), lone.mean(axis=0))
        doubt = Doubt(Status.NO_NETWORK, case, describe_gap(case))
        # A lone token that disagrees may be a unit that was not found.
        if len(tokens) == 1 or case.gap <= float(seen.allowed[seen.worst]):
            left = float(seen.gap[seen.worst])
            doubt = Doubt(Status.UNGROWN, detail=describe_shortfall(left, self.sigma))
        excess = self.scatter.measure_excess(again)
        scattered = describe_scatter(excess) if excess else ""
        return resolve_doubt(self.oracle, doubt, repeat=lambda: scattered)

    def _ungrown(self, left: float) -> Ending:
        return Ending(status=Status.UNGROWN, detail=describe_shortfall(left, self.sigma))

    def conclude(self, ending: Ending, excess: float = 0.0) -> Recovery[AbsAffine]:
        """The recovery; `excess` is the mean square of fresh errors beside the declared ones."""
        model = None if self.found is None else self.found.model
        verdict = ending.verdict
        certificate = None
        if ending.fresh is not None:
            count = self.options.points * max(1, 1 if model is None else model.outputs)
            certificate = certify_grown_network(
                verdict, excess, count, sigma=self.sigma, radius=self.radius
            )
        radius = None if self.far else self.radius
        # What two standard deviations of the mean square would hide of the model's own errors.
        hidden = max(0.0, excess - 1.0 + 2.0 * (2.0 / self.options.points) ** 0.5)
        off = self.sigma * hidden**0.5
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=explain_network_found(model, radius),
                determined=describe_determined_network(model, verdict, radius, off),
                degrees_of_freedom=None if model is None else model.degrees_of_freedom,
                certificate=certificate,
                bars={} if self.found is None else self.found.bars(self.sigma),
            ),
        )
