r"""The learner of ReLU networks whose answers carry errors: noise, a tolerance, few decimals,
float32.

Where tokens may be of any length, absolute errors vanish beside long ones (far_units). Where they
are bounded, or where errors grow with the answers, a network is grown inside a ball (growth). The
verdict is statistical: the mean square of what the model leaves at 2,000 fresh points, and the
largest of them, must be what the declared errors and the uncertainty of the fit explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import EPS, Array, Matrix
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.network_under_noise.allowances import FreshComparison, Scatter, UncertainFit
from keyhole.learners.network_under_noise.far_units import find_offsets, settle_offsets
from keyhole.learners.network_under_noise.growth import Growing, covariance, fit_affine_map
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
from keyhole.learners.verifying.examination import Examination
from keyhole.models import AbsAffine
from keyhole.models.relu import network_freedom
from keyhole.oracles import Counted, Imperfection, Oracle
from keyhole.oracles.base import read_imperfection

POINTS = 2_000  # fresh points
_LENGTHS, _EACH = (2, 3, 9), 16
_AGAIN = 16  # times a doubtful question is asked again
_FAR = 2.0**40
_BEYOND = (1e3, 1e6)  # radii of some further fresh points, where tokens may be of any length
_NEARBY = (3.0, 10.0, 100.0)  # the same where the network was grown inside a ball
_ALIKE = 1e-6  # a larger relative error far away is none of such a network
_PLACES, _WINDOW = 24, 7  # where rounding is listened to
_DIRECTIONS = 4
_PER_OFFSET = 12
_ATTEMPTS = 4
_WIDER = 3.0


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
        fresh = self.points + _EACH * len(_LENGTHS)
        by_phase = {"read": 200, "grow": 1000 + 12 * count // outputs, "verify": fresh + _AGAIN}
        far = Network(k, self.most).plan(width, outputs=outputs)
        worst = (
            far.at_most + 60_000 + 64 * self.most + _PER_OFFSET * (self.most + outputs) + 2 * fresh
        )
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[AbsAffine]:
        """Recover the network as far as errors allow; certificate keyhole/grown-network."""
        measuring, checking = rng.spawn(2)
        run = _NoisyNetworkRun(
            self, Counted(oracle), read_imperfection(oracle), measuring, checking
        )
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
    # whether only points beyond the ball disagreed
    outside: bool = field(default=False, init=False)

    def ask(self, x: Matrix) -> Matrix:
        return self.oracle.ask(np.ascontiguousarray(x)[:, None])

    def learn(self) -> Recovery[AbsAffine]:
        """Far away where that helps, inside a ball otherwise."""
        bound = self.stated.token_bound
        with self.oracle.phase("read"):
            self.radius = self._scale() if bound is None else bound
            self._listen()
        if bound is None and self.stated.roundoff <= EPS:
            ended = self._outside()
            if ended is not None:
                return ended
        return self._inside()

    def _listen(self) -> None:
        """How much answers scatter: as declared, or as two answers to one question do, and by
        rounding.
        """
        self.noise = self.stated.noise
        if np.isnan(self.noise):
            x = draw_in_ball(2 * _PLACES, self.oracle.width, self.radius, rng=self.rng)
            self.noise = float(np.sqrt(((self.ask(x) - self.ask(x)) ** 2).mean() / 2))
        rounding = self._rounding() if self.stated.roundoff > EPS else 0.0
        self.sigma = float(np.hypot(np.hypot(self.noise, self.stated.tolerance), rounding))

    def _rounding(self) -> float:
        """Standard deviation of rounding: second differences along short lines, few of which meet a
        hyperplane.
        """
        d = self.oracle.width
        x = draw_in_ball(_PLACES, d, 0.9 * self.radius, rng=self.rng)
        u = self.rng.normal(size=(_PLACES, d))
        u *= 1e-3 * self.radius / np.linalg.norm(u, axis=1, keepdims=True)
        line = x[:, None] + np.arange(_WINDOW)[:, None] * u[:, None]
        y = self.ask(line.reshape(-1, d)).reshape(_PLACES, _WINDOW, -1)
        rough = np.sqrt((np.diff(y, 2, axis=1) ** 2).mean(axis=(1, 2)) / 6)
        size = float(np.abs(y).max())
        least, most = 0.3 * self.stated.roundoff * size, 16 * self.stated.roundoff * size
        return float(np.clip(np.median(rough), least, most))

    def _scale(self) -> float:
        """Three times the distance at which |f(ru) + f(-ru) - 2 f(0)| / r is half of the most it
        gets.
        """
        d = self.oracle.width
        radii = 10.0 ** np.arange(-8.0, 8.5, 0.5)
        u = self.rng.normal(size=(_DIRECTIONS, d))
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        x = (radii[:, None, None] * u).reshape(-1, d)
        zero, ahead, back = self.ask(np.zeros((1, d))), self.ask(x), self.ask(-x)
        even = np.abs(ahead + back - 2 * zero).max(axis=1).reshape(len(radii), -1)
        size = (
            np.maximum(np.abs(ahead), np.abs(back)).max(axis=1).reshape(len(radii), -1)
            + np.abs(zero).max()
        )
        errors = (
            10 * (np.nan_to_num(self.stated.noise) + self.stated.tolerance)
            + 100 * self.stated.roundoff * size
        )
        share = np.where(even > errors, even, 0.0) / radii[:, None]
        half = (share >= 0.5 * share.max(axis=0)) & (share > 0)
        seen = half.any(axis=0)
        return 3.0 * float(np.median(radii[half.argmax(axis=0)[seen]])) if seen.any() else 1.0

    def _outside(self) -> Recovery[AbsAffine] | None:
        """Normals and jumps far away, offsets near the origin; None where that does not lead to a
        verified model.
        """
        units = self._far_units()
        if units is None:
            return None
        k, m, d = units.hidden, units.outputs, units.width
        with self.oracle.phase("offsets"):
            t = find_offsets(self.ask, units, repeats=2, rng=self.rng)
            units = replace(units, t=t)
            scale = measure_typical_distance(units) if k else self.radius
            x = scale * self.rng.normal(size=(_PER_OFFSET * (k + m) + 200, d))
            x[::2] *= 3.0
            y = self.ask(x)
        model, C = settle_offsets(units, x, y)
        self.found, self.far, before = UncertainFit(model, C, offsets=True), True, self.radius
        self.radius = scale
        ended = self.judge()
        if ended.verdict.verified or ended.status in (Status.UNCHECKED, Status.INCONSISTENT):
            return ended
        self.found, self.far, self.radius = (
            None,
            False,
            max(before, 3.0 * float(np.abs(t).max(initial=0.0))),
        )
        return None

    def _far_units(self) -> AbsAffine | None:
        """The network that the target is far away, without offsets; None where it is none."""
        d, probe = self.oracle.width, self.rng.normal(size=(4, self.oracle.width))
        with self.oracle.phase("kinks"):
            values = self.ask(_FAR * probe)
            slope = float(np.abs(values).max()) / _FAR
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
        start, ended = fit_affine_map(x, y)[0], None
        for _ in range(_ATTEMPTS):
            start = growing.run(start)
            self.found = UncertainFit(start, covariance(start, growing.x, growing.y), offsets=False)
            if not growing.explained(start, growing.left):
                return self._unexplained(growing)
            ended = self.judge()
            if ended.status is not Status.UNGROWN:
                return ended
            self._learn_from_fresh(growing, start)
        return ended or self.conclude(Ending(status=Status.UNGROWN))

    def _learn_from_fresh(self, growing: Growing, model: AbsAffine) -> None:
        """Fresh points were not met: where they are beyond the ball it must be larger, else they
        are grown from.
        """
        if self.outside:
            self.radius *= _WIDER
            growing.x, growing.y = self._more(len(growing.x), None)
        else:
            growing.x, growing.y = (
                np.concatenate([growing.x, self.asked[0]]),
                np.concatenate([growing.y, self.asked[1]]),
            )
            growing.look(model)

    def _unexplained(self, growing: Growing) -> Recovery[AbsAffine]:
        """No network was found, unless the target scatters more than was declared."""
        with self.oracle.phase("verify"):
            lied = self.scatter.lied(self.ask(np.repeat(growing.x[:1], _AGAIN, axis=0)))
        if lied:
            return self.conclude(Ending(status=Status.INCONSISTENT, detail=_describe_scatter(lied)))
        return self.conclude(Ending(status=Status.UNGROWN, detail=self._short(growing.left)))

    @property
    def scatter(self) -> Scatter:
        """Errors of an answer."""
        return Scatter(self.sigma, self.noise, self.stated.tolerance)

    def _more(self, count: int, near: Matrix | None) -> tuple[Matrix, Matrix]:
        """New points of the ball, some of them near given ones."""
        d, R = self.oracle.width, self.radius
        x = draw_in_ball(count, d, R, rng=self.rng)
        if near is not None:
            x = near[np.arange(count) % len(near)] + 0.15 * R * self.rng.normal(
                size=(count, d)
            ) / np.sqrt(d)
            x *= np.minimum(1.0, (1.0 - 1e-12) * R / np.linalg.norm(x, axis=1, keepdims=True))
        with self.oracle.phase("grow"):
            return x, self.ask(x)

    # --- fresh queries ---------------------------------------------------------------------------------------------

    def judge(self) -> Recovery[AbsAffine]:
        """What fresh points and a few longer sequences say."""
        found = self.found
        if found is None:
            return self.conclude(Ending(status=Status.UNGROWN))
        cases: list[tuple[Array, Matrix]] = []
        with self.oracle.phase("verify"):
            try:
                for X in self._fresh():
                    cases.append((X, self.oracle.ask(X.copy())))
            except BudgetSpent:
                return self.conclude(Ending(status=Status.UNCHECKED))
        seen = [FreshComparison.of(found, X, y, self.scatter, self.radius) for X, y in cases]
        self.asked = cases[0][0][:, 0], cases[0][1]
        self.outside = (
            seen[0].excess <= 1.0
            and max(s.excess for s in seen[1 + len(_LENGTHS) :] or seen[:1]) > 1.0
        )
        fresh = Fresh(
            sum(len(s.gap) for s in seen), max(float(s.gap.max()) for s in seen), seen[0].relative
        )
        worst = max(seen, key=lambda s: s.excess)
        ending = settle(
            self.oracle,
            Examination(fresh, None, worst.excess <= 1.0, False, complete=True),
            lines=COARSE_ANSWERS,
            refuse=lambda: self._refuse(worst),
            reservation=self._reservation(seen[0]),
            words=f"Answers carry {self._errors()}.",
        )
        return self.conclude(ending, seen[0].mean_square if ending.verdict.verified else 0.0)

    def _reservation(self, seen: FreshComparison) -> Ending | None:
        """Why agreement within the allowed errors is not enough, where it is not."""
        if seen.mean_square > 1.0 + 4.0 * (2.0 / seen.gap.size) ** 0.5:
            return Ending(status=Status.UNGROWN, detail=self._short(seen.rms))
        if self.scatter.hides > seen.spread:
            return Ending(status=Status.VEILED)
        return None

    def _fresh(self) -> list[Array]:
        """Fresh points first, then longer sequences and, where tokens may be of any length, points
        far away.
        """
        d, rng, R = self.oracle.width, self.checking, self.radius
        x = draw_in_ball(self.options.points, d, R, rng=rng)
        if self.far:
            x = (
                R
                * rng.normal(size=(self.options.points, d))
                * 3.0 ** rng.integers(-1, 2, size=(self.options.points, 1))
            )
        bounded = self.stated.token_bound is not None
        radii = () if bounded else _BEYOND if self.far else _NEARBY
        longer = [draw_in_ball(_EACH * n, d, R, rng=rng).reshape(_EACH, n, d) for n in _LENGTHS]
        scale = 1.0 if self.far else d**-0.5
        return [
            x[:, None],
            *longer,
            *(scale * R * r * rng.normal(size=(2 * _EACH, 1, d)) for r in radii),
        ]

    def _refuse(self, seen: FreshComparison) -> Ending:
        """Refuse where tokens before the last act, unless the target scatters more than was
        declared.
        """
        i = seen.worst
        tokens, allowed = seen.X[i], float(seen.allowed[i])
        try:
            with self.oracle.phase("verify"):
                again, lone = (
                    self.oracle.ask(np.repeat(X[None], _AGAIN, axis=0))
                    for X in (tokens, tokens[-1:])
                )
        except BudgetSpent:
            return Ending(status=Status.UNCHECKED, detail=NO_ROOM)
        case = Counterexample(tokens, again.mean(axis=0), lone.mean(axis=0))
        doubt = Doubt(Status.NO_NETWORK, case, describe_gap(case))
        # A lone token that disagrees may be a unit that was not found.
        if len(tokens) == 1 or case.gap <= allowed:
            doubt = Doubt(Status.UNGROWN, detail=self._short(float(seen.gap[i])))
        lied = self.scatter.lied(again)
        return resolve_doubt(
            self.oracle, doubt, repeat=lambda: _describe_scatter(lied) if lied else ""
        )

    def _short(self, left: float) -> str:
        return f"It leaves {left:.1e}, and the errors explain {self.sigma:.1e}."

    # --- the recovery ----------------------------------------------------------------------------------------------

    def conclude(self, ending: Ending, excess: float = 0.0) -> Recovery[AbsAffine]:
        """The recovery; `excess` is the mean square of fresh errors beside the declared ones."""
        model = None if self.found is None else self.found.model
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=self._reason(model),
                determined=self._determined(model, ending.verdict, excess),
                degrees_of_freedom=None if model is None else model.degrees_of_freedom,
                certificate=(
                    None if ending.fresh is None else self._certificate(ending.verdict, excess)
                ),
                bars=self._bars(),
            ),
        )

    def _errors(self) -> str:
        guessed = " (estimated)" if np.isnan(self.stated.noise) else ""
        parts = (
            [f"random errors of standard deviation {self.noise:.1e}{guessed}"] if self.noise else []
        )
        parts += [f"errors up to {self.stated.tolerance:.1e}"] if self.stated.tolerance else []
        parts += (
            [f"relative rounding of {self.stated.roundoff:.1e}"]
            if self.stated.roundoff > EPS
            else []
        )
        return " and ".join(parts) or "no errors"

    def _reason(self, model: AbsAffine | None) -> str:
        if model is None:
            return "A network with one hidden ReLU layer was tried."
        where = (
            "far away, and near the origin,"
            if self.far
            else f"in the ball of radius {self.radius:.3g}"
        )
        return (
            f"A network with {model.hidden} hidden units explains the answers {where} within their"
            " errors."
        )

    def _determined(self, model: AbsAffine | None, verdict: Verdict, excess: float) -> str:
        if model is None:
            return "Nothing was determined."
        if not verdict.verified:
            return "The model is the best one found; nothing of it is certain."
        off = self.sigma * max(0.0, excess - 1.0 + 2.0 * (2.0 / self.options.points) ** 0.5) ** 0.5
        where = (
            ""
            if self.far
            else f" inside the ball of radius {self.radius:.3g}, and nothing outside,"
        )
        return (
            f"{model.hidden} hyperplanes n, t, their jumps D and the affine part are"
            f" determined{where} within error bars, up to order and signs of (n, t). On average"
            f" over fresh points the model may be off by {off:.1e}, root mean square, beyond its"
            " error bars; units that act less than that are not seen."
        )

    def _bars(self) -> dict[str, Array]:
        """One standard error by hyperplane: of its normal, of its offset, of its jump."""
        if self.found is None or not self.found.model.hidden:
            return {}
        model = self.found.model
        k, d, m = model.hidden, model.width, model.outputs
        spread = self.sigma * np.sqrt(np.maximum(np.diag(self.found.C), 0.0))
        if self.found.offsets:
            return {
                "n": np.full(k, 1e-9),
                "t": spread[:k],
                "D": 1e-9 * np.linalg.norm(model.D, axis=1),
            }
        rows = spread[: k * (d + 1 + m)].reshape(k, d + 1 + m)
        return {
            "n": np.linalg.norm(rows[:, :d], axis=1),
            "t": rows[:, d],
            "D": np.linalg.norm(rows[:, d + 1 :], axis=1),
        }

    def _certificate(self, verdict: Verdict, excess: float) -> Certificate:
        """The claim of grown networks, confronted with one run."""
        count = self.options.points * max(1, self.found.model.outputs if self.found else 1)
        return Certificate(
            "keyhole/grown-network",
            assumptions=(
                Check("answers that were not explained", float(not verdict.verified), 0.0),
            ),
            conclusion=(
                Check(
                    "mean square of fresh errors beside the declared ones",
                    excess,
                    1.0 + 4.0 * (2.0 / count) ** 0.5,
                ),
            ),
        )


def _describe_scatter(by: float) -> str:
    return f"Answers to one sequence scatter by {by:.1e}, which is more than was declared."
