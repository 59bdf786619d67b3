r"""The learner of networks with one hidden layer of smooth units: GELU, SiLU, softplus.

$\phi(z) = z\,\sigma(z)$ is max(z, 0) to the last digit once |z| is large. Asked points of size 1e12
the network is a ReLU network without biases, which the learner of those recovers: normals, jumps,
the linear part. These are kept. Points far from every hyperplane give all offsets by one linear
solve (offsets), places near the hyperplanes of many units at once give their widths and kind
(unit_widths), and a fit of these alone to answers near the units makes them exact (offset_fit). All
parameters are fitted only where that leaves too much (value_fit).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.found_units import FoundUnits
from keyhole.learners.networks.learner import Network, list_hyperplanes
from keyhole.learners.networks.tangent import allow_line_queries, fit_tangent
from keyhole.learners.smooth_network.all_units import (
    KINDS,
    LearnedUnits,
    count_fitted_answers,
    learn_smooth_units,
)
from keyhole.learners.smooth_network.offset_fit import count_fitted_points, measure_unit
from keyhole.learners.smooth_network.offsets import RADII as RAY
from keyhole.learners.smooth_network.offsets import count_offset_points
from keyhole.learners.smooth_network.unit_widths import ROUNDS, count_readings
from keyhole.learners.smooth_network.value_fit import SEARCHED
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
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.swelling import is_swollen
from keyhole.models import ReluNet
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_IMPRECISE = 1e-5  # what a network of the right kind leaves near its units, at most


def smooth_freedom(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that the values of such a network determine, $k(d + 1 + m) + m(d + 1)$."""
    return hidden * (width + 1 + outputs) + outputs * (width + 1)


@dataclass(frozen=True, slots=True)
class SmoothNetwork:
    """Learner of a network with one hidden layer of smooth units that reads the last token.

    Args:
        activation: gelu, gelu_tanh, silu or softplus; found when absent.
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
                f"a smooth activation is {', '.join(KINDS)}; got {self.activation!r}."
            )
        Network(self.hidden, self.most, self.rounds)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """A ReLU network far away, then offsets, widths, and a fit of these alone."""
        k = 4 * width if self.hidden is None else self.hidden
        far = Network(k, self.most, self.rounds).plan(width, outputs=outputs)
        by_phase = dict(far.by_phase) | {
            "check": 6,
            "offsets": len(RAY) + count_offset_points(k, outputs),
            "widths": count_readings(width, k, outputs),
            "fit": count_fitted_points(k, outputs),
            "verify": QUERIES,
        }
        most = self.most
        worst = far.at_most + len(RAY) + 24 * count_offset_points(most, outputs)
        worst += 2 * ROUNDS * count_readings(width, most, outputs)
        worst += count_fitted_points(most, outputs) + count_fitted_answers(width, most, outputs)
        count = smooth_freedom(width, hidden=k, outputs=outputs)
        return Plan(
            by_phase=by_phase, at_most=worst + QUERIES, degrees_of_freedom=count, outputs=outputs
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[ReluNet]:
        """Recover the network behind the oracle; certificate keyhole/smooth-units."""
        measuring, checking = rng.spawn(2)
        run = _SmoothRun(Counted(oracle), read_imperfection(oracle).roundoff)
        try:
            run.learn(self, measuring)
        except BudgetSpent:
            return run.conclude(SPENT)
        return run.judge(checking)


@dataclass(slots=True)
class _SmoothRun:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    learned: LearnedUnits = field(default=LearnedUnits(None), init=False)
    model: ReluNet | None = field(default=None, init=False)

    @property
    def units(self) -> int:
        """Units found far away."""
        return 0 if self.learned.far is None else self.learned.far.hidden

    def ask(self, x: Matrix) -> Matrix:
        return self.oracle.ask(x[:, None])

    def learn(self, options: SmoothNetwork, rng: np.random.Generator) -> None:
        """The network, not yet verified; where there is none, what was found far away."""
        width = self.oracle.width
        with self.oracle.phase("kinks"):
            outputs = self.oracle.outputs or self.ask(np.zeros((1, width))).shape[1]
        self.learned = learn_smooth_units(
            self.ask,
            width,
            outputs,
            rng=rng,
            roundoff=self.roundoff,
            most=options.most,
            rounds=options.rounds,
            kinds=KINDS if options.activation is None else (options.activation,),
            phase=self.oracle.phase,
        )
        if self.learned.form is not None:
            self.model = self.learned.form.network()
        elif self.learned.far is not None:
            self.model = self.learned.far.unfold().net
        else:
            with self.oracle.phase("fit"):
                self.model = fit_tangent(self.ask, width, rng=rng).unfold().net
        if self.learned.spent:
            raise BudgetSpent("the budget ran out near the units.")

    def judge(self, rng: np.random.Generator) -> Recovery[ReluNet]:
        """What fresh queries say of the model."""
        model = self.model
        if model is None:
            return self.conclude(SPENT)
        seen = self.examine(model, rng)
        form = self.learned.form
        length = 1.0 if form is None else measure_unit(form)
        ending = settle(
            self.oracle,
            seen,
            lines=SMOOTH_NETWORK,
            refuse=partial(self._refuse, model, seen),
            reservation=Ending(status=Status.ROUGH) if is_swollen(model, length, seen) else None,
        )
        return self.conclude(ending, seen)

    def _refuse(self, model: ReluNet, seen: Examination) -> Ending:
        large = self.units * (model.width + 1) > SEARCHED
        near = large or seen.fresh.relative <= SMOOTH_NETWORK.near
        # Units of another kind are near in places, and leave more than rounding near themselves.
        if near and model.activation in KINDS and self.learned.left <= _IMPRECISE:
            return Ending(status=Status.ROUGH)
        doubt = Doubt(Status.NO_SMOOTH_NETWORK, seen.worst, describe_gap(seen.worst))
        return resolve_doubt(self.oracle, doubt)

    def examine(self, model: ReluNet, rng: np.random.Generator) -> Examination:
        """Ask fresh sequences."""
        with self.oracle.phase("verify"):
            ruler = SMOOTH_NETWORK.ruler(self.oracle)
            return examine_model(self.oracle, model, ruler=ruler, rng=rng)

    def conclude(self, ending: Ending, seen: Examination | None = None) -> Recovery[ReluNet]:
        """The recovery."""
        model = self.model
        certificate = None
        if seen is not None and model is not None:
            certificate = self._certify(model, ending.verdict, seen)
        found = list_smooth_units(self.learned)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=_explain_smooth_found(model, self.units),
                determined=_describe_determined_units(model, self.units, ending.verdict, found),
                degrees_of_freedom=None if model is None else self.freedom(model),
                certificate=certificate,
                units=found,
            ),
        )

    def freedom(self, model: ReluNet) -> int:
        """Numbers that values determine."""
        return smooth_freedom(model.width, hidden=self.units, outputs=model.outputs)

    def _certify(self, model: ReluNet, verdict: Verdict, seen: Examination) -> Certificate:
        """The claim of smooth units, confronted with one run."""
        k, m, d = self.units, model.outputs, model.width
        allowed = allow_line_queries(d, hidden=k, outputs=m) + count_fitted_answers(d, k, m)
        allowed += len(RAY) + 4 * (count_offset_points(k, m) + count_readings(d, k, m))
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/smooth-units",
            assumptions=(
                assume_class("answers that no such network gives", verdict),
                Check("queries used", asked, allowed),
            ),
            conclusion=(conclude_agreement(seen.fresh),),
        )


def list_smooth_units(learned: LearnedUnits) -> FoundUnits | None:
    """The units, where they were told apart."""
    form = learned.form
    if form is None:
        return None
    return list_hyperplanes(form.lines, learned.bars, form.kind, learned.unread)


def _explain_smooth_found(model: ReluNet | None, units: int) -> str:
    if model is None or model.activation not in KINDS:
        return "A network with one hidden layer of smooth units was tried."
    return (
        f"Far away the answers bend along {units} hyperplanes, near the origin as"
        f" {model.activation} units do."
    )


def _describe_determined_units(
    model: ReluNet | None, units: int, verdict: Verdict, found: FoundUnits | None
) -> str:
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    added = model.hidden - units
    sides = f"does not; {added} units in pairs carry a linear part" if added else "follows"
    return (
        f"Weights, biases and output weights of {units} units, and an affine part, are determined"
        f" up to order and the side each unit is active on, which {sides}."
        f" {'' if found is None else found.sentence}".rstrip()
    )
