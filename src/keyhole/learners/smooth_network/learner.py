r"""The learner of networks with one hidden layer of GELU or SiLU units.

$\phi(z) = z\,\sigma(z)$ is max(z, 0) to the last digit once |z| is large. Asked points of size 1e12
the network is a ReLU network without biases, which the learner of those recovers: normals, jumps,
the linear part. Each unit is then looked at near its own hyperplane, 2e3 from the origin, for its
offset and its width (unit_widths), and all parameters are fitted to answers near the origin
(value_fit).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Matrix, pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Counterexample, Plan, Recovery, Status
from keyhole.learners.networks.fresh_cases import (
    Row,
    allow_line_queries,
    ask_fresh_cases,
    compare_fresh_cases,
    fit_tangent,
    summarise_fresh_rows,
)
from keyhole.learners.networks.learner import Network
from keyhole.learners.networks.lines import learn_network
from keyhole.learners.smooth_network.unit_widths import PER_UNIT, ROUNDS, UnitShapes, look_at_units
from keyhole.learners.smooth_network.value_fit import SEARCHED, Smooth, fit_smooth_units
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    SMOOTH_NETWORK,
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
from keyhole.learners.verifying.witnesses import refute_by_earlier_tokens
from keyhole.models import AbsAffine, ReluNet
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

KINDS = ("gelu", "silu")
LENGTHS = (1, 2, 3, 9)
_PER_LENGTH = (9, 1, 1, 1)
RADII = (0.3, 1.0, 3.0, 10.0, 1000.0)  # in units of the typical distance and width of the units
QUERIES = len(RADII) * sum(_PER_LENGTH)
_FAR = 2.0**40  # where GELU and SiLU are ReLU to the last digit
_ALIKE = 1e-6  # a larger relative error far away is none of such a network
_FITS = 1e-9  # relative residual of the right kind of unit
_SHARE = 1.35  # answers fitted per parameter


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
            raise InvalidInput(
                f"a smooth activation is {' or '.join(KINDS)}; got {self.activation!r}."
            )
        Network(self.hidden, self.most, self.rounds)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """A ReLU network far away, six queries per unit, 1.35 answers per parameter."""
        k = 4 * width if self.hidden is None else self.hidden
        far = Network(k, self.most, self.rounds).plan(width, outputs=outputs)
        by_phase = {name: count for name, count in far.by_phase.items() if name != "verify"}
        by_phase |= {
            "widths": PER_UNIT * k,
            "fit": _count_fitted_answers(width, k, outputs),
            "verify": QUERIES,
        }
        fitted = _count_fitted_answers(width, self.most, outputs)
        worst = far.at_most + ROUNDS * PER_UNIT * self.most + fitted + QUERIES
        count = smooth_freedom(width, hidden=k, outputs=outputs)
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[ReluNet]:
        """Recover the network behind the oracle; certificate keyhole/smooth-units."""
        measuring, checking = rng.spawn(2)
        run = _SmoothRun(Counted(oracle), read_imperfection(oracle).roundoff)
        try:
            run.learn(self, measuring)
        except BudgetSpent:
            return run.conclude(SPENT)
        return run.judge(checking)


def _count_fitted_answers(width: int, hidden: int, outputs: int) -> int:
    freedom = smooth_freedom(width, hidden=hidden, outputs=outputs)
    return int(np.ceil(_SHARE * freedom / outputs)) + 8


@dataclass(slots=True)
class _SmoothRun:
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
        """The network, not yet verified; where there is none, what was found far away."""
        far = self._far(options, rng)
        if far is None:
            with self.oracle.phase("fit"):
                self.model = fit_tangent(self.ask, self.oracle.width, rng=rng).unfold().net
            return
        self.units = far.hidden
        self.model = far.unfold().net
        with self.oracle.phase("widths"):
            seen = look_at_units(self.ask, far, rng=rng)
        if not seen.resolved:
            return
        kinds = KINDS if options.activation is None else (options.activation,)
        likeliest = sorted(kinds, key=lambda kind: seen.widths(kind)[1])
        # A fit that breaks down leaves the network found far away, for fresh queries to judge.
        with (
            pin_one_thread(),
            np.errstate(all="ignore"),
            suppress(np.linalg.LinAlgError, InvalidInput),
        ):
            self.model = self._fit(far, seen, likeliest, rng).network()

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

    def _fit(
        self, far: AbsAffine, seen: UnitShapes, kinds: list[str], rng: np.random.Generator
    ) -> Smooth:
        """The kind of unit that fits answers near the origin, the likeliest first."""
        d, m = far.width, far.outputs
        s = seen.widths(kinds[0])[0]
        self.unit = float(np.median(np.hypot(seen.t, 1 / s))) if len(s) else 1.0
        x = self.unit * rng.normal(size=(_count_fitted_answers(d, far.hidden, m), d))
        # Half of the points lie where units are nearly straight, and tell their slopes.
        x[::2] *= 2.0
        with self.oracle.phase("fit"):
            y = self.ask(x.copy())
        fits: list[tuple[float, Smooth]] = []
        for kind in kinds:
            s = seen.widths(kind)[0]
            model, size = fit_smooth_units(kind, s[:, None] * far.n, -s * seen.t, x, y)
            fits.append((size, model))
            if size <= max(_FITS, 1e4 * self.roundoff):
                break
        return min(fits, key=lambda pair: pair[0])[1]

    def judge(self, rng: np.random.Generator) -> Recovery[ReluNet]:
        """What fresh queries say of the model."""
        model = self.model
        if model is None:
            return self.conclude(SPENT)
        with self.oracle.phase("verify"):
            seen = self.examine(model, SMOOTH_NETWORK.tolerance(self.oracle), rng)
        refuse = partial(self._refuse, model, seen)
        ending = settle(self.oracle, seen, lines=SMOOTH_NETWORK, refuse=refuse)
        return self.conclude(ending, seen)

    def _refuse(self, model: ReluNet, seen: Examination) -> Ending:
        large = self.units * (model.width + 1) > SEARCHED
        if (large or seen.fresh.relative <= SMOOTH_NETWORK.near) and model.activation in KINDS:
            return Ending(status=Status.ROUGH)
        # Far away such units are straight to the last digit: answers that bend everywhere there are
        # not theirs.
        doubt = Doubt(
            Status.NO_SMOOTH_NETWORK, seen.worst, describe_gap(seen.worst), refutes=self.bends_far
        )
        return resolve_doubt(
            self.oracle, doubt, weigh=partial(refute_by_earlier_tokens, self.oracle)
        )

    def examine(self, model: ReluNet, tolerance: float, rng: np.random.Generator) -> Examination:
        """Ask fresh sequences at every radius; errors are relative to how answers vary there."""
        rows: list[Row] = []
        complete = True
        for radius in RADII:
            cases: list[Counterexample] = []
            for length, count in zip(LENGTHS, _PER_LENGTH, strict=True):
                X = self.unit * radius * rng.normal(size=(count, length, model.width))
                found, complete = ask_fresh_cases(self.oracle, model, X)
                cases += found
                if not complete:
                    break
            if cases:
                rows += compare_fresh_cases(cases, tolerance, self.roundoff)[0]
            if not complete:
                break
        return summarise_fresh_rows(rows, tolerance, hidden=False, complete=complete)

    def conclude(self, ending: Ending, seen: Examination | None = None) -> Recovery[ReluNet]:
        """The recovery."""
        model = self.model
        certificate = None
        if seen is not None and model is not None:
            certificate = self._certify(model, ending.verdict, seen)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=_explain_smooth_found(model, self.units),
                determined=_describe_determined_units(model, self.units, ending.verdict),
                degrees_of_freedom=None if model is None else self.freedom(model),
                certificate=certificate,
            ),
        )

    def freedom(self, model: ReluNet) -> int:
        """Numbers that values determine."""
        return smooth_freedom(model.width, hidden=self.units, outputs=model.outputs)

    def _certify(self, model: ReluNet, verdict: Verdict, seen: Examination) -> Certificate:
        """The claim of smooth units, confronted with one run."""
        k, m, d = self.units, model.outputs, model.width
        far = allow_line_queries(d, hidden=k, outputs=m)
        allowed = far + 12 * k + _count_fitted_answers(d, k, m)
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/smooth-units",
            assumptions=(
                assume_class("answers that no such network gives", verdict),
                Check("queries used", asked, allowed),
            ),
            conclusion=(conclude_agreement(seen.fresh),),
        )


def _explain_smooth_found(model: ReluNet | None, units: int) -> str:
    if model is None or model.activation not in KINDS:
        return "A network with one hidden layer of GELU or SiLU units was tried."
    return (
        f"Far away the answers bend along {units} hyperplanes, near the origin as"
        f" {model.activation} units do."
    )


def _describe_determined_units(model: ReluNet | None, units: int, verdict: Verdict) -> str:
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    added = model.hidden - units
    sides = f"does not; {added} units in pairs carry a linear part" if added else "follows"
    return (
        f"Weights, biases and output weights of {units} units, and an affine part, are determined"
        f" up to order and the side each unit is active on, which {sides}. Units whose output"
        " weight is below rounding are not seen."
    )
