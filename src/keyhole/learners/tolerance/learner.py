"""Theorem 6.1 of [BSHK26] as its authors state it: a head from answers wrong by up to tau.

What is asked, and why the errors have the bounds they have, stands in `guarantees`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.tolerance.guarantees import (
    PAIR_LENGTH,
    HeadBounds,
)
from keyhole.learners.tolerance.tolerance_session import AGAIN, ToleranceSession, check_outputs
from keyhole.learners.verifying.ending import SPENT
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import Imperfection, read_imperfection


@dataclass(frozen=True, slots=True)
class Tolerant(HeadBounds):
    """Recovers a head from answers within a declared tolerance, the way Theorem 6.1 is proved.

    Args:
        norm_bound: B, with |W|_F <= B.
        margin: mu, with |v_i| >= mu for every entry.
    """

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries: d for v and d^2 for W; two more where the bounds turn out wrong."""
        check_outputs(outputs)
        by_phase = {"read": width, "measure": width * width, "verify": QUERIES}
        most = sum(by_phase.values()) + AGAIN
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=head_freedom(width))

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head of one output without biases; certificate BSHK26/6.1.

        Raises:
            InvalidInput: errors have no bound (noise, labels), there are several outputs, or the
                theorem's tokens are longer than the target takes.
        """
        stated = read_imperfection(oracle)
        check_outputs(oracle.outputs)
        self._check_stated(stated)
        session = ToleranceSession(self, Counted(oracle), stated, rng)
        try:
            session.read()
            if session.suspect is None:
                session.measure()
        except BudgetSpent:
            return session.conclude(SPENT)
        return session.judge()

    def _check_stated(self, stated: Imperfection) -> None:
        if stated.noise != 0 or stated.levels is not None:
            what = "labels" if stated.levels is not None else "random noise"
            raise InvalidInput(
                f"Theorem 6.1 is for answers whose error has a bound; the target declares {what}. "
                "Declare a tolerance instead, or choose another learner."
            )
        bound = stated.token_bound
        if bound is None or self.longest <= bound * (1 + 1e-12):
            return
        enough = "No norm bound keeps"
        # Single tokens have norm 1 whatever B is.
        if bound >= 1.0:
            enough = f"A norm bound of {1.0 / (bound - PAIR_LENGTH):.4g} or more keeps"
        raise InvalidInput(
            f"Theorem 6.1 asks tokens of norm {self.longest:.4g}; the target takes them up to"
            f" {bound:.4g}. {enough} its tokens that short; otherwise choose another learner."
        )
