"""Sums of heads where every token stays in a ball: a pencil of Hessians, then least squares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import pin_one_thread
from keyhole.claims import Check
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.heads_in_ball.slices import (
    Ball,
    measure_heads_in_ball,
    read_ball,
    sign_heads,
    soften_ball,
)
from keyhole.learners.several_heads.pairs import Unresolved
from keyhole.learners.several_heads.session import SeveralHeadsSession
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import read_imperfection

_ATTEMPTS = 8
_PER_PARAMETER = 10  # queries that the claim allows


@dataclass(frozen=True, slots=True)
class HeadsInBall:
    """Recovers up to d heads from two to six queries per parameter, no token beyond the bound.

    Args:
        bound: largest norm of a token; None for what the oracle declares.
        queries: never ask more than this in all; None for `plan(...).at_most`.
    """

    bound: float | None = None
    queries: int | None = None

    def __post_init__(self) -> None:
        if self.bound is not None and not (self.bound > 0 and np.isfinite(self.bound)):
            raise InvalidInput(
                f"a bound on the norm of tokens is a finite number > 0; got {self.bound}."
            )
        if self.queries is not None and self.queries < 1:
            raise InvalidInput(f"queries must be at least 1; got {self.queries}.")

    def plan(self, width: int, *, outputs: int = 1, heads: int | None = None) -> Plan:
        """What `heads` heads cost, d when not given; their number is found, not asked for."""
        count = width if heads is None else heads
        per_x = int(1.5 * count * (width + outputs) / outputs) + 8
        by_phase = {
            "read": width + 1,
            "scale": 12,
            "pencil": 2 * width * (count + 2) + 4 * (2 * count * count + 1),
            "measure": width * per_x + width * per_x // 4,
            "signs": count + 8,
            "verify": QUERIES,
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
        stated = read_imperfection(oracle)
        # What was given may be narrower than what the target bears, and not wider.
        bounds = [bound for bound in (self.bound, stated.token_bound) if bound is not None]
        if not bounds:
            raise InvalidInput("heads in a ball need a bound on tokens, given or declared.")
        cap = Budgeted(oracle, self.plan(oracle.width).at_most)
        session = BallSession(Counted(cap), oracle.width, stated.roundoff, cap, float(min(bounds)))
        with pin_one_thread():
            return session.recover(rng)


@dataclass(slots=True)
class BallSession(SeveralHeadsSession):
    """One recovery under way, all of whose tokens keep the bound."""

    @property
    def radius(self) -> float:
        """The bound."""
        return float("inf") if self.bound is None else self.bound

    def recover(self, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Attempts until fresh queries agree; every way to stop ends in a Recovery."""
        measuring, checking = rng.spawn(2)
        try:
            with self.oracle.phase("read"):
                ball = read_ball(self.oracle, self.radius, self.roundoff)
            for _ in range(_ATTEMPTS):
                if any(
                    self._confirm_model(model, checking) for model in self._models(ball, measuring)
                ):
                    return self._conclude_examined()
                self.failed += 1
            return self._conclude_refused()
        except BudgetSpent:
            return self._end_spent()

    def _models(self, ball: Ball, rng: np.random.Generator) -> Iterator[MultiHead]:
        """The model of one attempt; then, where fresh queries almost confirm it, one fitted."""
        with suppress(Unresolved):
            with self.oracle.phase("scale"):
                ball = soften_ball(ball, rng)
            W, D = measure_heads_in_ball(ball, rng)
            with self.oracle.phase("signs"):
                model = sign_heads(ball, W, D, rng)
            yield model
            if self.almost:
                yield self.polish_model(rng)

    def _promise(self, model: MultiHead) -> tuple[str, Check, float]:
        heads, d = model.W.shape[:2]
        few = Check("heads found, which must not outnumber the width", float(heads), float(d))
        return "keyhole/hessian-pencil", few, _PER_PARAMETER * heads * (d * d + d) + 200
