"""Sums of heads where every token stays in a ball: a pencil of Hessians, then least squares."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from keyhole._arrays import one_thread
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.ball import Ball, measured, read_ball, signed, softened
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.joint_fit import LARGEST, polished
from keyhole.learners.pairs import Unresolved
from keyhole.learners.refute import impossible
from keyhole.learners.several_heads import Session, own_scales
from keyhole.learners.verify import QUERIES, examine, fresh_sequences, inside
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import declared

_ATTEMPTS = 8
_ALMOST = 0.1  # relative disagreement that Gauss-Newton may mend
_PER_PARAMETER = 10


@dataclass(frozen=True, slots=True)
class HeadsInBall:
    """Recovers up to d heads from two to six queries per parameter, none with a token longer than the bound.

    Args:
        bound: largest norm of a token; None for what the oracle declares.
        queries: never ask more than this in all; None for `plan(...).at_most`.
    """

    bound: float | None = None
    queries: int | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and not (self.bound > 0 and np.isfinite(self.bound)):
            raise InvalidInput(f"a bound on the norm of tokens is a finite number > 0; got {self.bound}.")
        if self.queries is not None and self.queries < 1:
            raise InvalidInput(f"queries must be at least 1; got {self.queries}.")

    def plan(self, width: int, *, outputs: int = 1, heads: int | None = None) -> Plan:
        """What `heads` heads cost, d of them when not given; their number is found and need not be known."""
        count = width if heads is None else heads
        per_x = int(1.5 * count * (width + outputs) / outputs) + 8
        by_phase = {
            "read": width + 1,
            "scale": 12,
            "pencil": 2 * width * (count + 2) + 4 * (2 * count * count + 1),
            "measure": width * per_x + width * per_x // 4,
            "signs": count + 8,
            "verify": QUERIES + 3 * count,
        }
        mended = 3 * count * width * (width + outputs)
        attempt = 3 * sum(by_phase.values()) + mended + 800
        return Plan(
            by_phase=by_phase,
            at_most=self.queries or _ATTEMPTS * attempt,
            degrees_of_freedom=count * head_freedom(width, outputs=outputs),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover a sum of heads; certificate keyhole/hessian-pencil.

        Raises:
            InvalidInput: no bound is given and none is declared.
        """
        stated = declared(oracle)
        bounds = [bound for bound in (self.bound, stated.token_bound) if bound is not None]
        if not bounds:
            raise InvalidInput("heads in a ball need a bound on tokens, given or declared.")
        cap = Budgeted(oracle, self.plan(oracle.width).at_most)
        session = BallSession(Counted(cap), oracle.width, stated.roundoff, cap, float(min(bounds)))
        with one_thread():
            return session.recover(rng)


@dataclass(slots=True)
class BallSession(Session):
    """One recovery under way, all of whose tokens keep the bound."""

    radius: float

    def recover(self, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Attempts until fresh queries agree; every way to stop ends in a Recovery."""
        measuring, checking = rng.spawn(2)
        try:
            with self.oracle.phase("read"):
                ball = read_ball(self.oracle, self.radius, self.roundoff)
            for _ in range(_ATTEMPTS):
                if self._tried(ball, measuring, checking):
                    return self._examined()
                self.failed += 1
            with self.oracle.phase("verify"):
                case = impossible(self.oracle, ball.c, ball.B, self.roundoff, checking, bound=self.radius)
            return self._judged(case)
        except BudgetSpent:
            return self._spent()

    def _tried(self, ball: Ball, measuring: np.random.Generator, checking: np.random.Generator) -> bool:
        """Whether a model was found that fresh queries do not contradict."""
        try:
            model = self._found(ball, measuring)
        except Unresolved:
            return False
        if self._confirmed(model, checking):
            return True
        if self.seen is None or self.seen.fresh.relative > _ALMOST or model.W.size + model.V.size > LARGEST:
            return False
        with self.oracle.phase("polish"):
            model = polished(self.oracle, model, self.roundoff, measuring, bound=self.radius)
        return self._confirmed(model, checking)

    def _found(self, ball: Ball, rng: np.random.Generator) -> MultiHead:
        with self.oracle.phase("scale"):
            ball = softened(ball, rng)
        W, D = measured(ball, rng)
        with self.oracle.phase("signs"):
            return signed(ball, W, D, rng)

    def _confirmed(self, model: MultiHead, rng: np.random.Generator) -> bool:
        """Whether fresh queries inside the ball agree, as far as they could be asked."""
        self.model = model
        batches = inside(chain(fresh_sequences(model, rng=rng), own_scales(model, rng)), self.radius)
        with self.oracle.phase("verify"):
            self.seen = examine(
                self.oracle, model, tolerance=self.tolerance, roundoff=self.roundoff, rng=rng, batches=batches
            )
        return self.seen.passed

    def _certificate(self, status: Status) -> Certificate | None:
        if self.model is None or self.seen is None:
            return None
        heads, d = len(self.model.W), self.oracle.width
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            "keyhole/hessian-pencil",
            assumptions=(
                Check("answers that could not be split among heads", float(status is not Status.RECOVERED), 0.0),
                Check("heads found, which must not outnumber the width", float(heads), float(d)),
                Check("attempts that did not tell the heads apart", float(self.failed), 0.0),
            ),
            conclusion=(
                Check("queries used", asked, _PER_PARAMETER * heads * (d * d + d) + 200),
                Check("worst relative disagreement on fresh queries", self.seen.fresh.relative, self.tolerance),
            ),
        )
