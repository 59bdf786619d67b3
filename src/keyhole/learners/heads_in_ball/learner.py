"""Sums of heads where every token stays in a ball: a pencil of Hessians, then least squares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import pin_one_thread
from keyhole.errors import InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.heads_in_ball.ball_session import (
    ANSWERS,
    ATTEMPTS,
    BallSession,
    NoisyBallSession,
)
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import read_imperfection


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
        mended = max(3, ANSWERS) * count * width * (width + outputs)
        attempt = 3 * sum(by_phase.values()) + mended + 800
        return Plan(
            by_phase=by_phase,
            at_most=self.queries or ATTEMPTS * attempt,
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
        bound = float(min(bounds))
        kind = NoisyBallSession if stated.absolute else BallSession
        session = kind(Counted(cap), oracle.width, stated.roundoff, cap, bound)
        with pin_one_thread():
            return session.recover(rng)
