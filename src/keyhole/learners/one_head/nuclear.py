r"""Theorem 5.1 of [BSHK26] as its authors prove it: Gaussian forms and the least nuclear norm.

A query $[b + a; b]$ gives $t = a^\top W b$. From m of them, a and b Gaussian, W is the matrix of
least nuclear norm (the sum of its singular values) among all that fit, once m is a constant times
$r(2d - r)$. That constant is about 3; `LowRank` needs 1. The learner is here to be compared with,
and because it asks everything in one round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread
from keyhole.claims import Certificate, Check
from keyhole.errors import InvalidInput
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.learner import Measured, plan_head, recover_head
from keyhole.learners.one_head.nuclear_program import FITS, minimise_nuclear_norm
from keyhole.learners.one_head.probes import REASK_ABOVE, TARGET, Prober, Saturated
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.models import Head
from keyhole.oracles import Oracle

# In standard deviations: how far vectors a are kept from the blind directions of the read-out.
_TILT = 0.5
_BATCH = 512
_ROUNDS = 40  # of asking again what was saturated
_MORE = 1.5  # times as many measurements when the minimum is not of the rank that was named
_TRIES = 3
_MOST = 12_000  # measurements whose Gram matrix still fits into memory comfortably


@dataclass(frozen=True, slots=True)
class NuclearNorm:
    """Recovers W of a named rank by minimising the nuclear norm, the way Theorem 5.1 is proved.

    Args:
        rank: the rank of W, or more.
        oversampling: measurements over r(2d - r). Where the minimum turns out not to be of that
            rank, half as many again are asked, twice at most.
    """

    rank: int
    oversampling: float = 3.0

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise InvalidInput(f"a rank is a whole number >= 0; got {self.rank}.")
        if not 1.0 <= self.oversampling < np.inf:
            raise InvalidInput(
                "there must be at least r(2d - r) measurements: oversampling >= 1, not"
                f" {self.oversampling}."
            )

    def measurements(self, width: int, more: float = 1.0) -> int:
        """How many forms are asked: at most d^2 + d, which determine W well whatever its rank."""
        r = min(self.rank, width)
        return min(width * width + width, math.ceil(more * self.oversampling * r * (2 * width - r)))

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """One query for each measurement, whatever the outputs."""
        return plan_head(
            width,
            outputs,
            self.measurements(width),
            rank=self.rank,
            most=self.measurements(width, _MORE ** (_TRIES - 1)),
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head without score bias; certificate BSHK26/5.1.

        Raises:
            InvalidInput: the rank is above the width, the program too large, or a score bias acts.
        """
        if self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        if (m := self.measurements(oracle.width)) > _MOST:
            raise InvalidInput(
                f"{m} measurements make a program too large to solve; at most {_MOST}. Use LowRank."
            )
        recovery = recover_head(oracle, self._measure, rng=rng)
        return replace(recovery, certificate=_certify_nuclear_norm(recovery, self, oracle.width))

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        if columns.prober.readout.biased:
            raise InvalidInput(
                "nuclear norm minimisation is for heads without a score bias; use LowRank for this"
                " one."
            )
        d = columns.prober.oracle.width
        A = B = np.empty((0, d))
        t = np.empty(0)
        found = minimise_nuclear_norm(A, B, t)
        for attempt in range(_TRIES):
            count = min(_MOST, self.measurements(d, _MORE**attempt)) - len(t)
            if count <= 0:
                break
            more = _measure_gaussian_forms(columns.prober, count, rng)
            A, B, t = (np.concatenate(both) for both in zip((A, B, t), more, strict=True))
            found = minimise_nuclear_norm(A, B, t)
            # Fewer measurements than the constant asks for leave a minimum of higher rank.
            if found.rank <= self.rank and found.residual <= 10 * FITS:
                break
        return Measured(columns.split(found.W)[0], None, found.rank)


def _measure_gaussian_forms(
    prober: Prober, count: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix, Vector]:
    """Gaussian vectors a and b, and what was measured of them: a . W (sy b).

    The part of a along the direction u that the read-out sees best is |c| for a Gaussian c; it is
    raised to sqrt(c^2 + tilt^2), so that no measurement is blind. The sign of a changes nothing but
    that of t.
    """
    V = prober.readout.V
    with pin_one_thread():
        R, S, Z = np.linalg.svd(V, full_matrices=False)
        A, B = rng.normal(size=(2, count, len(V))) / np.sqrt(len(V))
        c = A @ R[:, 0]
        seen = np.hypot(c, _TILT / np.sqrt(len(V)))
        A = np.where(c < 0, -1.0, 1.0)[:, None] * A + np.outer(seen - np.abs(c), R[:, 0])
    design = Design((A / seen[:, None])[:, None], Z[:1] / S[0], lambda T: T)
    with prober.oracle.phase("measure"):
        return A, B, seen * _read_forms(prober, design, prober.sy * B, prober.sx * seen)


def _read_forms(prober: Prober, design: Design, y: Matrix, scales: Vector) -> Vector:
    """x_k . W y_k for every group k of the design; saturated ones again with a shorter x."""
    t = np.full(len(y), np.inf)
    scales = scales.copy()
    bad = np.arange(len(y), dtype=np.intp)
    for _ in range(_ROUNDS):
        for start in range(0, len(bad), _BATCH):
            now = bad[start : start + _BATCH]
            t[now] = prober.single(design, now, y[now], scales[now])[:, 0]
        bad = np.flatnonzero(np.logical_not(np.abs(t) <= REASK_ABOVE))
        if len(bad) == 0:
            return t / scales
        size = np.abs(t[bad])
        # A logit far beyond the edge of rounding says nothing of its size but that it is large.
        scales[bad] *= np.where(size < 5 * REASK_ABOVE, TARGET / size, 2.0**-10)
    raise Saturated


def _certify_nuclear_norm(
    recovery: Recovery[Head], learner: NuclearNorm, width: int
) -> Certificate | None:
    """Theorem 5.1, with the constant of the learner, confronted with one run."""
    if recovery.model is None or recovery.rank is None or recovery.fresh is None:
        return None
    limit = learner.measurements(width, _MORE ** (_TRIES - 1))
    return Certificate(
        "BSHK26/5.1",
        assumptions=(
            assume_class("answers that no single head of that rank gives", recovery.verdict),
            Check("rank of W", recovery.rank, learner.rank),
            Check(
                "forms asked, O(rd), and what re-asking adds",
                recovery.ledger["measure"].sequences,
                1.1 * limit + 30,
            ),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )
