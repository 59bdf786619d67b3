r"""A head of low rank in one round (generalised Nystrom): no question depends on an answer.

$$M = (M Y)\,(X^\top M Y)^{+}\,(X^\top M)$$

holds when X and Y are random and at least as wide as the rank. Reading out and finding the scale
come before, as for every learner; all that measures M could be asked in one batch. It costs about
twice the range finder and is less stable, since the core in the middle is inverted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, pin_one_thread
from keyhole.errors import InvalidInput
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.designs import build_frame_design
from keyhole.learners.one_head.learner import Measured, plan_head, recover_head
from keyhole.learners.one_head.low_rank import certify_low_rank, multiply_factors
from keyhole.models import Head
from keyhole.oracles import Oracle

_CUT = 1e-11  # singular values of the core below this share of the largest are rounding


@dataclass(frozen=True, slots=True)
class Nystrom:
    """Single-round learner of a head whose rank is at most `rank`.

    Args:
        rank: an upper bound on the rank of W.
        oversampling: columns above the rank; rows are oversampled twice as much.
    """

    rank: int
    oversampling: int = 4

    def __post_init__(self) -> None:
        if self.rank < 1 or self.oversampling < 1:
            raise InvalidInput(
                f"rank and oversampling are at least 1; got {self.rank} and {self.oversampling}."
            )

    def _sizes(self, width: int) -> tuple[int, int]:
        columns = min(width, self.rank + self.oversampling)
        return columns, min(width, self.rank + 2 * self.oversampling)

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Whole columns along k directions, then l rows along all the others."""
        together = min(width, outputs)
        k, rows = self._sizes(width)
        measure = k * -(-width // together) + (width - k) * -(-rows // min(together, rows))
        return plan_head(width, outputs, measure, rank=self.rank)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head of low rank without adapting to answers."""
        recovery = recover_head(oracle, self._measure, rng=rng)
        planned = self.plan(oracle.width, outputs=oracle.outputs or 1).by_phase["measure"]
        # What is saturated is asked again: a tenth more, and a few for narrow targets.
        certificate = certify_low_rank(recovery, oracle.width, allowed=1.1 * planned + 60)
        return replace(recovery, certificate=certificate)

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        width = columns.design.X.shape[2]
        k, rows = self._sizes(width)
        with pin_one_thread():
            Q = np.linalg.qr(rng.normal(size=(width, rows)))[0]
        C = columns.measure(k).T
        design = build_frame_design(
            columns.prober.readout.V,
            Q,
            most=columns.design.X.shape[1],
            cut=columns.prober.roundoff**0.25,
        )
        R = columns.measure_along(design, Q)
        with pin_one_thread():
            return _multiply_factors(columns, C, Q.T @ C, R)


def _multiply_factors(columns: Columns, C: Matrix, core: Matrix, R: Matrix) -> Measured:
    """C core^+ R, cut where the core is rounding."""
    U, S, Z = np.linalg.svd(core, full_matrices=False)
    rank = int((_CUT * S[0] < S).sum())
    return multiply_factors(columns, C @ (Z[:rank].T / S[:rank]), U[:, :rank].T @ R)
