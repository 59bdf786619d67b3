r"""The learner of gated networks, $g(x) = C\,(\phi(A x + a) \circ (B x + b)) + c$."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.found_units import FoundUnits, list_found_units
from keyhole.learners.gated_network.across import BLOCK, TELLING, count_apart
from keyhole.learners.gated_network.all_gates import (
    KINDS,
    LearnedGates,
    count_new_answers,
    learn_gated_units,
)
from keyhole.learners.gated_network.gate_offsets import RAY, count_pairs
from keyhole.learners.networks.learner import Network
from keyhole.learners.networks.parallel import find_parallel_groups
from keyhole.learners.networks.tangent import fit_tangent
from keyhole.learners.smooth_network.unit_widths import ROUNDS, count_readings
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
from keyhole.models import AbsAffine, Gated
from keyhole.models.last_token.gated import gated_freedom
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_PER_KINK, _PER_SINGLE_KINK = 4.6, 11.0  # queries on the circle, and with one output or two


@dataclass(frozen=True, slots=True)
class GatedNetwork:
    """Learner of a gated network that reads the last token.

    Args:
        activation: of the gates: silu (SwiGLU), gelu (GEGLU), gelu_tanh or softplus; found when
            absent.
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        most: hidden units allowed for.
        rounds: circles tried, at most.
    """

    activation: str | None = None
    hidden: int | None = None
    most: int = 2048
    rounds: int = 3

    def __post_init__(self) -> None:
        if self.activation not in (None, *KINDS):
            raise InvalidInput(
                f"the activation of a gate is {', '.join(KINDS)}; got {self.activation!r}."
            )
        Network(self.hidden, self.most, self.rounds)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """A half circle far away, steps across it, offsets, widths, and a fit of everything."""
        k = 4 * width if self.hidden is None else self.hidden
        by_phase = self._count_phases(width, k, outputs)
        worst = sum(self._count_phases(width, self.most, outputs).values())
        count = gated_freedom(width, hidden=k, outputs=outputs)
        at_most = 8 * (self.rounds + ROUNDS) * worst
        return Plan(by_phase=by_phase, at_most=at_most, degrees_of_freedom=count, outputs=outputs)

    def _count_phases(self, width: int, hidden: int, outputs: int) -> dict[str, int]:
        if outputs < TELLING:
            kinks, slopes = _PER_SINGLE_KINK * hidden, 3 * (hidden + 1)
        else:
            kinks, slopes = _PER_KINK * hidden, 3 + 2 * -(-hidden // int(BLOCK * outputs))
        return {
            "kinks": 21 + int(kinks),
            "slopes": max(0, width - 2) * slopes + count_apart(width, hidden, outputs),
            "check": 6,
            "offsets": len(RAY) + 2 * count_pairs(hidden, outputs),
            "widths": count_readings(width, hidden, outputs),
            "fit": count_new_answers(width, hidden, outputs),
            "verify": QUERIES,
        }

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Gated | AbsAffine]:
        """Recover the network behind the oracle; certificate keyhole/gated-units."""
        measuring, checking = rng.spawn(2)
        run = _GatedRun(Counted(oracle), read_imperfection(oracle).roundoff)
        try:
            run.learn(self, measuring)
        except BudgetSpent:
            return run.conclude(SPENT)
        return run.judge(checking)


@dataclass(slots=True)
class _GatedRun:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    learned: LearnedGates = field(default=LearnedGates(), init=False)
    model: Gated | AbsAffine | None = field(default=None, init=False)
    outputs: int = field(default=0, init=False)

    def ask(self, x: Matrix) -> Matrix:
        return self.oracle.ask(x[:, None])

    def learn(self, options: GatedNetwork, rng: np.random.Generator) -> None:
        """The network, not yet verified; where there is none, an affine map to compare with."""
        width = self.oracle.width
        with self.oracle.phase("kinks"):
            self.outputs = self.oracle.outputs or self.ask(np.zeros((1, width))).shape[1]
        self.learned = learn_gated_units(
            self.ask,
            width,
            self.outputs,
            rng=rng,
            roundoff=self.roundoff,
            most=options.most,
            rounds=options.rounds,
            kinds=KINDS if options.activation is None else (options.activation,),
            phase=self.oracle.phase,
        )
        if self.learned.spent:
            raise BudgetSpent("the budget ran out near the gates.")
        if self.learned.form is not None:
            self.model = self.learned.form.network()
        else:
            with self.oracle.phase("fit"):
                self.model = fit_tangent(self.ask, width, rng=rng)

    def judge(self, rng: np.random.Generator) -> Recovery[Gated | AbsAffine]:
        """What fresh queries say of the model."""
        model = self.model
        if model is None:
            return self.conclude(SPENT)
        with self.oracle.phase("verify"):
            ruler = SMOOTH_NETWORK.ruler(self.oracle)
            seen = examine_model(self.oracle, model, ruler=ruler, rng=rng)
        length = _find_distance(model) if isinstance(model, Gated) else 1.0
        ending = settle(
            self.oracle,
            seen,
            lines=SMOOTH_NETWORK,
            refuse=partial(self._refuse, seen),
            reservation=Ending(status=Status.ROUGH) if is_swollen(model, length, seen) else None,
        )
        return self.conclude(ending, seen)

    def _refuse(self, seen: Examination) -> Ending:
        if self.learned.form is not None and seen.fresh.relative <= SMOOTH_NETWORK.near:
            return Ending(status=Status.ROUGH)
        doubt = Doubt(Status.NO_GATED_NETWORK, seen.worst, describe_gap(seen.worst))
        return resolve_doubt(self.oracle, doubt)

    def conclude(
        self, ending: Ending, seen: Examination | None = None
    ) -> Recovery[Gated | AbsAffine]:
        """The recovery."""
        model = self.model if isinstance(self.model, Gated) else None
        units = list_gates(self.learned)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=self.model,
                reason=_explain_gates_found(model),
                determined=_describe_determined_gates(model, self.learned, ending.verdict, units),
                degrees_of_freedom=None if model is None else model.degrees_of_freedom,
                certificate=None if seen is None else self._certify(model, ending.verdict, seen),
                units=units,
            ),
        )

    def _certify(
        self, model: Gated | None, verdict: Verdict, seen: Examination
    ) -> Certificate | None:
        """The claim of gated units, confronted with one run."""
        if model is None:
            return None
        plan = GatedNetwork(hidden=model.hidden).plan(model.width, outputs=model.outputs)
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/gated-units",
            assumptions=(
                assume_class("answers that no such network gives", verdict),
                Check("queries used", asked, 2 * plan.queries),
            ),
            conclusion=(conclude_agreement(seen.fresh),),
        )


def list_gates(learned: LearnedGates) -> FoundUnits | None:
    """The gates, where they were told apart."""
    form = learned.form
    if form is None:
        return None
    sizes: Vector = np.linalg.norm(form.C, axis=1)
    return list_found_units(
        form.kind or "",
        sizes,
        learned.bars,
        unread=learned.unread,
        parallel=find_parallel_groups(form.n),
    )


def _find_distance(model: Gated) -> float:
    """How far from the origin gates are, 1 where they all go through it."""
    sizes = np.linalg.norm(model.A, axis=1)
    distances = np.abs(model.a)[sizes > 0] / sizes[sizes > 0]
    return float(np.median(distances[distances > 0])) if distances.any() else 1.0


def _explain_gates_found(model: Gated | None) -> str:
    if model is None:
        return "A gated network was tried."
    return (
        f"Far away the answers are piecewise quadratic, with a kink for each of {model.hidden}"
        f" gates, near the origin gated by {model.activation}."
    )


def _describe_determined_gates(
    model: Gated | None, learned: LearnedGates, verdict: Verdict, units: FoundUnits | None
) -> str:
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        unread = len(learned.unread)
        gates = f" The width of {unread} of {model.hidden} gates was not read." if unread else ""
        return f"The model is the best one found; nothing of it is certain.{gates}"
    return (
        f"Gates A, a of {model.hidden} units are determined up to order; the other factors B, b and"
        " the output weights C up to one number for each unit, which they share."
        f" {'' if units is None else units.sentence}".rstrip()
    )
