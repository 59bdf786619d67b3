r"""The learner of networks with one hidden layer of GELU or SiLU units.

$\phi(z) = z\,\sigma(z)$ is max(z, 0) to the last digit once |z| is large. Asked points of size 1e12 the network is a
ReLU network without biases, which the learner of those recovers: normals, jumps, the linear part. Each unit is then
looked at near its own hyperplane, 2e3 from the origin, for its offset and its width (smooth_widths), and all parameters
are fitted to answers near the origin (smooth_fit).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.network import Network
from keyhole.learners.relu import learn_network
from keyhole.learners.smooth_fit import SEARCHED, Smooth, fit
from keyhole.learners.smooth_widths import PER_UNIT, ROUNDS, Seen, look
from keyhole.learners.verify import EXACT, NO_ROOM, asked_again
from keyhole.learners.witnesses import find_earlier_tokens_acting
from keyhole.models import AbsAffine, ReluNet
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import declared

KINDS = ("gelu", "silu")
LENGTHS, _PER_LENGTH = (1, 2, 3, 9), (9, 1, 1, 1)
RADII = (0.3, 1.0, 3.0, 10.0, 1000.0)  # in units of the typical distance and width of the units
QUERIES = len(RADII) * sum(_PER_LENGTH)
_FAR = 2.0**40
_ALIKE = 1e-6  # a larger relative error far away is none of such a network
_FITS = 1e-9  # relative residual of the right kind of unit
_SHARE = 1.35  # answers fitted per parameter
_REFUTED = 1e-5  # a larger relative error is no lack of precision


def smooth_freedom(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that the values of such a network determine, $k(d + 1 + m) + m(d + 1)$."""
    return hidden * (width + 1 + outputs) + outputs * (width + 1)


@dataclass(frozen=True, slots=True)
class SmoothNetwork:
    """Learner of a network with one hidden layer of GELU or SiLU units that reads the last token.

    Args:
        activation: gelu or silu; found when absent.
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        most: hidden units allowed for.
        rounds: lines tried, at most.
    """

    activation: str | None = None
    hidden: int | None = None
    most: int = 2048
    rounds: int = 4

    def __post_init__(self) -> None:
        if self.activation not in (None, *KINDS):
            raise InvalidInput(f"a smooth activation is {' or '.join(KINDS)}; got {self.activation!r}.")
        Network(self.hidden, self.most, self.rounds)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """A ReLU network far away, six queries per unit, 1.35 answers per parameter, then verification."""
        k = 4 * width if self.hidden is None else self.hidden
        far = Network(k, self.most, self.rounds).plan(width, outputs=outputs)
        by_phase = {name: count for name, count in far.by_phase.items() if name != "verify"}
        by_phase |= {"widths": PER_UNIT * k, "fit": _fitted(width, k, outputs), "verify": QUERIES}
        worst = far.at_most + ROUNDS * PER_UNIT * self.most + _fitted(width, self.most, outputs) + QUERIES
        count = smooth_freedom(width, hidden=k, outputs=outputs)
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[ReluNet]:
        """Recover the network behind the oracle; certificate keyhole/smooth-units."""
        measuring, checking = rng.spawn(2)
        run = _Run(Counted(oracle), declared(oracle).roundoff)
        try:
            run.learn(self, measuring)
        except BudgetSpent:
            return run.ended(Status.BUDGET_SPENT, Verdict.BUDGET_SPENT)
        return run.verified(checking)


def _fitted(width: int, hidden: int, outputs: int) -> int:
    return int(np.ceil(_SHARE * smooth_freedom(width, hidden=hidden, outputs=outputs) / outputs)) + 8


@dataclass(frozen=True, eq=False, slots=True)
class _Checked:
    """Fresh answers: agreement, the worst case, whether all were asked."""

    fresh: Fresh
    worst: Counterexample | None
    passed: bool
    complete: bool


@dataclass(slots=True)
class _Run:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    model: ReluNet | None = field(default=None, init=False)
    units: int = field(default=0, init=False)
    unit: float = field(default=1.0, init=False)
    bends_far: bool = field(default=False, init=False)

    def ask(self, x: Matrix) -> Matrix:
        return self.oracle.ask(x[:, None])

    def learn(self, options: SmoothNetwork, rng: np.random.Generator) -> None:
        """The network, not yet verified; what was found far away where it is none, an affine map failing that."""
        far = self._far(options, rng)
        if far is None:
            self.model = self._tangent(rng)
            return
        self.units, self.model = far.hidden, far.unfold().net
        with self.oracle.phase("widths"):
            seen = look(self.ask, far, rng=rng)
        if not seen.resolved:
            return
        kinds = KINDS if options.activation is None else (options.activation,)
        with one_thread(), np.errstate(all="ignore"), suppress(np.linalg.LinAlgError, InvalidInput):
            self.model = self._fit(far, seen, sorted(kinds, key=lambda kind: seen.widths(kind)[1]), rng).network()

    def _far(self, options: SmoothNetwork, rng: np.random.Generator) -> AbsAffine | None:
        """The ReLU network that the target is far away; None where it is not."""
        width = self.oracle.width
        with self.oracle.phase("kinks"):
            outputs = self.oracle.outputs or self.ask(np.zeros((1, width))).shape[1]
        learned = learn_network(
            lambda x: self.ask(_FAR * x) / _FAR,
            width,
            outputs,
            rng=rng,
            roundoff=self.roundoff,
            most=options.most,
            rounds=options.rounds,
            phase=self.oracle.phase,
        )
        if learned.spent:
            raise BudgetSpent("the budget ran out far away.")
        self.bends_far = learned.smooth
        return learned.model if learned.gap <= max(_ALIKE, 1e6 * self.roundoff) else None

    def _fit(self, far: AbsAffine, seen: Seen, kinds: list[str], rng: np.random.Generator) -> Smooth:
        """The kind of unit that fits answers near the origin, the likeliest first."""
        d, m = far.width, far.outputs
        s = seen.widths(kinds[0])[0]
        self.unit = float(np.median(np.hypot(seen.t, 1 / s))) if len(s) else 1.0
        x = self.unit * rng.normal(size=(_fitted(d, far.hidden, m), d))
        x[::2] *= 2.0
        with self.oracle.phase("fit"):
            y = self.ask(x.copy())
        fits: list[tuple[float, Smooth]] = []
        for kind in kinds:
            s = seen.widths(kind)[0]
            model, size = fit(kind, s[:, None] * far.n, -s * seen.t, x, y)
            fits.append((size, model))
            if size <= max(_FITS, 1e4 * self.roundoff):
                break
        return min(fits, key=lambda pair: pair[0])[1]

    def _tangent(self, rng: np.random.Generator) -> ReluNet:
        """The affine map through d + 1 points, as the model to refute."""
        d = self.oracle.width
        x = np.concatenate([np.zeros((1, d)), rng.normal(size=(d, d))])
        with self.oracle.phase("fit"):
            values = self.ask(x.copy())
        P: Matrix = (np.linalg.inv(x[1:]) @ (values[1:] - values[0])).T
        return AbsAffine(np.zeros((0, d)), np.zeros(0), np.zeros((0, values.shape[1])), P, values[0]).unfold().net

    def verified(self, rng: np.random.Generator) -> Recovery[ReluNet]:
        """What fresh queries say of the model."""
        perfect, model = declared(self.oracle).perfect, self.model
        if model is None:
            return self.ended(Status.BUDGET_SPENT, Verdict.BUDGET_SPENT)
        with self.oracle.phase("verify"):
            seen = self.examine(model, EXACT if perfect else 1e5 * self.roundoff, rng)
        if seen.passed and not seen.complete:
            return self.ended(Status.UNCHECKED, Verdict.UNVERIFIED, seen)
        if seen.passed:
            return self.ended(Status.RECOVERED, Verdict.EXACT if perfect else Verdict.WITHIN_TOLERANCE, seen)
        large = self.units * (model.width + 1) > SEARCHED
        if (large or seen.fresh.relative <= _REFUTED) and model.activation in KINDS:
            return self.ended(Status.ROUGH, Verdict.UNVERIFIED, seen)
        return self.doubted(seen)

    def examine(self, model: ReluNet, tolerance: float, rng: np.random.Generator) -> _Checked:
        """Ask fresh sequences at every radius; errors are relative to how answers vary there, rounding aside."""
        rows: list[tuple[float, Counterexample]] = []
        complete = True
        for radius in RADII:
            cases: list[Counterexample] = []
            for length, count in zip(LENGTHS, _PER_LENGTH, strict=True):
                X = self.unit * radius * rng.normal(size=(count, length, model.width))
                try:
                    answers = self.oracle.ask(X.copy())
                except BudgetSpent as spent:
                    complete, answers = False, np.zeros((0, model.outputs)) if spent.answers is None else spent.answers
                predicted = model(X[: len(answers)])
                cases += [Counterexample(*case) for case in zip(X, answers, predicted, strict=False)]
                if not complete:
                    break
            rows += _judged(cases, tolerance, self.roundoff)
            if not complete:
                break
        worst = max(rows, key=lambda row: (row[0] > tolerance, -len(row[1].tokens), row[0]), default=None)
        fresh = Fresh(len(rows), max((c.gap for _, c in rows), default=0.0), max((r for r, _ in rows), default=0.0))
        return _Checked(fresh, worst and worst[1], fresh.relative <= tolerance, complete)

    def doubted(self, seen: _Checked) -> Recovery[ReluNet]:
        """Say that the model is wrong; refuse the class only for answers that none of its members gives.

        Far away such units are straight to the last digit, so that answers that bend everywhere are not theirs.
        """
        gap = asked_again(self.oracle, None, seen.worst, self.roundoff)
        if gap is None:
            return self.ended(Status.UNCHECKED, Verdict.UNVERIFIED, seen, detail=NO_ROOM)
        if gap > 0.0:
            detail = f"Two answers to one sequence differ by {gap:.1e}."
            return self.ended(Status.INCONSISTENT, Verdict.UNVERIFIED, seen, detail=detail)
        acting = find_earlier_tokens_acting(self.oracle, seen.worst, self.roundoff)
        case = acting or seen.worst
        far = "" if case is None else f"On a sequence of length {len(case.tokens)} they are {case.gap:.1e} apart."
        refuted = acting is not None or self.bends_far
        verdict = Verdict.CLASS_REFUTED if refuted else Verdict.UNVERIFIED
        return self.ended(Status.NO_SMOOTH_NETWORK, verdict, seen, counterexample=case, detail=far)

    def ended(
        self,
        status: Status,
        verdict: Verdict,
        seen: _Checked | None = None,
        *,
        counterexample: Counterexample | None = None,
        detail: str = "",
    ) -> Recovery[ReluNet]:
        model = self.model
        return Recovery(
            model=model,
            status=status,
            verdict=verdict,
            reason=_reason(model, self.units),
            determined=_determined(model, self.units, verdict),
            ledger=self.oracle.ledger,
            degrees_of_freedom=None if model is None else self.freedom(model),
            fresh=seen.fresh if seen is not None and seen.fresh.sequences else None,
            counterexample=counterexample,
            certificate=None if seen is None or model is None else self.certificate(model, status, seen),
            detail=detail,
        )

    def freedom(self, model: ReluNet) -> int:
        """Numbers that values determine."""
        return smooth_freedom(model.width, hidden=self.units, outputs=model.outputs)

    def certificate(self, model: ReluNet, status: Status, seen: _Checked) -> Certificate:
        """The claim of smooth units, confronted with one run."""
        k, m, d = self.units, model.outputs, model.width
        jacobians = (-(-k // max(1, int(0.85 * m))) + 3) * d
        far = 1.25 * (jacobians if m > 2 else k * d) + (7 if m < 3 else 3) * k + 200
        ledger = self.oracle.ledger
        return Certificate(
            "keyhole/smooth-units",
            assumptions=(Check("answers that no such network gives", float(status is not Status.RECOVERED), 0.0),),
            conclusion=(
                Check("queries used", ledger.total(without="verify").sequences, far + 12 * k + _fitted(d, k, m)),
                Check("worst relative disagreement on fresh queries", seen.fresh.relative, EXACT),
            ),
        )


def _judged(cases: list[Counterexample], tolerance: float, roundoff: float) -> list[tuple[float, Counterexample]]:
    """Errors of the answers of one radius, beside how much these vary."""
    if not cases:
        return []
    answers = np.array([case.answer for case in cases])
    size, spread = float(np.abs(answers).max()), float(np.abs(answers - answers.mean(axis=0)).max())
    yard = max(spread, 64 * roundoff * size / tolerance) or max(case.gap for case in cases)
    return [(case.gap / yard if case.gap > 0 else 0.0, case) for case in cases]


def _reason(model: ReluNet | None, units: int) -> str:
    if model is None or model.activation not in KINDS:
        return "A network with one hidden layer of GELU or SiLU units was tried."
    return f"Far away the answers bend along {units} hyperplanes, near the origin as {model.activation} units do."


def _determined(model: ReluNet | None, units: int, verdict: Verdict) -> str:
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    added = model.hidden - units
    sides = f"does not; {added} units in pairs carry a linear part" if added else "follows"
    return (
        f"Weights, biases and output weights of {units} units, and an affine part, are determined up to order and the "
        f"side each unit is active on, which {sides}. Units whose output weight is below rounding are not seen."
    )
