"""Networks with one hidden ReLU layer: plan, recovery, and what fresh queries say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.found_units import FoundUnits, list_found_units
from keyhole.learners.networks.lines import Learned, learn_network, measure_typical_distance
from keyhole.learners.networks.parallel import find_parallel_groups
from keyhole.learners.networks.rounds import FRUGAL
from keyhole.learners.networks.tangent import allow_line_queries, fit_tangent
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    NETWORK,
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
from keyhole.models import AbsAffine
from keyhole.models.relu import network_freedom
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_UNSEEN = "Units whose jump is below rounding are not seen."


@dataclass(frozen=True, slots=True)
class Network:
    """Learner of a network with one hidden ReLU layer that reads the last token.

    Args:
        hidden: hidden units expected, for the plan only; 4 per coordinate when absent.
        most: hidden units allowed for.
        rounds: lines tried, at most.
    """

    hidden: int | None = None
    most: int = 2048
    rounds: int = 4

    def __post_init__(self) -> None:
        if min(self.most, self.rounds, 1 if self.hidden is None else self.hidden + 1) < 1:
            raise InvalidInput(
                "hidden is at least 0, most and rounds at least 1; got"
                f" {(self.hidden, self.most, self.rounds)}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Five queries per kink (2.1 with several outputs), a Jacobian per 0.85 m kinks."""
        k = 4 * width if self.hidden is None else self.hidden
        block = max(1, int(0.85 * outputs))
        slopes = (-(-k // block) + 1) * (width - 1 + (outputs > 2))
        kinks = 30 + (5 * k if outputs < 2 else -(-21 * k // 10))
        polish = int(0.02 * (kinks + slopes)) if outputs < 3 else 0
        by_phase = {
            "kinks": kinks,
            "slopes": slopes,
            "polish": polish,
            "check": 12,
            "verify": QUERIES,
        }
        worst = 3 * self.rounds * (64 + 20 * self.most + 8 * (self.most + 1) * width)
        count = network_freedom(width, hidden=k, outputs=outputs)
        return Plan(by_phase=by_phase, at_most=worst, degrees_of_freedom=count, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[AbsAffine]:
        """Recover the network behind the oracle; certificate keyhole/one-line."""
        measuring, checking = rng.spawn(2)
        run = _NetworkRun(Counted(oracle), read_imperfection(oracle).roundoff)
        try:
            learned = run.learn(self, measuring)
        except BudgetSpent:
            return run.conclude(None, SPENT)
        return run.judge(learned, checking)


@dataclass(slots=True)
class _NetworkRun:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    learned: Learned | None = field(default=None, init=False)

    def ask(self, x: Matrix) -> Matrix:
        return self.oracle.ask(x[:, None])

    def learn(self, options: Network, rng: np.random.Generator) -> Learned:
        """The network, fitted and not yet verified."""
        width = self.oracle.width
        with self.oracle.phase("kinks"):
            outputs = self.oracle.outputs or self.ask(np.zeros((1, width))).shape[1]
        self.learned = learn_network(
            self.ask,
            width,
            outputs,
            rng=rng,
            roundoff=self.roundoff,
            most=options.most,
            rounds=options.rounds,
            care=FRUGAL,
            phase=self.oracle.phase,
        )
        return self.learned

    def judge(self, learned: Learned, rng: np.random.Generator) -> Recovery[AbsAffine]:
        """What fresh queries say of the network."""
        if learned.spent:
            return self.conclude(learned.model, SPENT)
        model = learned.model
        if model is None:
            try:
                with self.oracle.phase("check"):
                    model = fit_tangent(self.ask, self.oracle.width, rng=rng)
            except BudgetSpent:
                return self.conclude(None, SPENT)
        seen = self.examine(model, rng)
        swollen = is_swollen(model, measure_typical_distance(model), seen)
        ending = settle(
            self.oracle,
            seen,
            lines=NETWORK,
            refuse=partial(self._refuse, learned, seen),
            reservation=Ending(status=Status.ROUGH) if swollen else None,
        )
        return self.conclude(model, ending, seen)

    def _refuse(self, learned: Learned, seen: Examination) -> Ending:
        if learned.model is not None and seen.fresh.relative <= NETWORK.near:
            return Ending(status=Status.ROUGH)
        why = explain_missing_network(learned)
        return resolve_doubt(self.oracle, Doubt(why, seen.worst, describe_gap(seen.worst)))

    def examine(self, model: AbsAffine, rng: np.random.Generator) -> Examination:
        """Ask fresh sequences."""
        with self.oracle.phase("verify"):
            return examine_model(self.oracle, model, ruler=NETWORK.ruler(self.oracle), rng=rng)

    def conclude(
        self, model: AbsAffine | None, ending: Ending, seen: Examination | None = None
    ) -> Recovery[AbsAffine]:
        """The recovery."""
        bars = self.learned.bars if self.learned is not None else np.zeros(0)
        units = None if model is None else list_hyperplanes(model, bars)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=_explain_network_found(model),
                determined=_describe_determined_network(model, ending.verdict, units),
                degrees_of_freedom=None if model is None else model.degrees_of_freedom,
                certificate=_certify_one_line(self, model, ending.verdict, seen),
                bars=_scale_network_bars(model, bars),
                units=units,
            ),
        )


def explain_missing_network(learned: Learned) -> Status:
    """Why a network was not found."""
    if learned.smooth:
        return Status.SMOOTH
    if learned.deeper:
        return Status.DEEPER
    return Status.CROWDED if learned.crowded else Status.NO_NETWORK


def _explain_network_found(model: AbsAffine | None) -> str:
    if model is None:
        return "A network with one hidden ReLU layer was tried."
    return (
        f"Along a line the answers are piecewise linear, with a kink for each of {model.hidden}"
        " hyperplanes."
    )


def list_hyperplanes(
    model: AbsAffine, bars: Vector, activation: str = "relu", unread: Sequence[int] = ()
) -> FoundUnits | None:
    """The units of a normal form, where the errors of its normals are known."""
    sizes: Vector = np.linalg.norm(model.D, axis=1)
    parallel = find_parallel_groups(model.n)
    return list_found_units(activation, sizes, bars, unread=unread, parallel=parallel)


def _describe_determined_network(
    model: AbsAffine | None, verdict: Verdict, units: FoundUnits | None
) -> str:
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    flips = model.unfold().flips
    # Where turning units round accounts for the whole affine part, it tells their sides.
    follows = "follows" if flips else "does not"
    return (
        f"{model.hidden} hyperplanes n, t with their jumps D, and the affine part P, q, are"
        " determined up to order and signs of (n, t); the side each unit is active on"
        f" {follows}. {_UNSEEN if units is None else units.sentence}"
    )


def _scale_network_bars(model: AbsAffine | None, bars: Vector) -> dict[str, Array]:
    """Standard errors by hyperplane: of its normal, of its offset, of its jump."""
    if model is None or len(bars) != model.hidden or not len(bars):
        return {}
    return {
        "n": bars,
        "t": bars * measure_typical_distance(model),
        "D": bars * np.linalg.norm(model.D, axis=1),
    }


def _certify_one_line(
    run: _NetworkRun, model: AbsAffine | None, verdict: Verdict, seen: Examination | None
) -> Certificate | None:
    """The claim of one line, confronted with one run."""
    if model is None or seen is None:
        return None
    allowed = allow_line_queries(model.width, hidden=model.hidden, outputs=model.outputs)
    asked = run.oracle.ledger.total(without="verify").sequences
    return Certificate(
        "keyhole/one-line",
        assumptions=(
            assume_class("answers that no such network gives", verdict),
            Check("queries used", asked, allowed),
        ),
        conclusion=(conclude_agreement(seen.fresh),),
    )
