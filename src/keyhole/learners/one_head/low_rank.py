r"""Theorem 5.1 of [BSHK26] and beyond: a head of rank r from as many queries as parameters.

Two rounds. Round one measures columns $C = M Y$ along random directions until no direction x
orthogonal to them is seen by a fresh one; then range(C) = range(M) with probability one. Round two
measures $Q^\top M$ on the remaining directions only, Q an orthonormal basis of range(C), since $M =
Q Q^\top M$. With k = r columns that is $r d + r(d - r) = r(2d - r)$ forms, the number of parameters
of a matrix of rank r.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, find_power_of_two, pin_one_thread
from keyhole.claims import Certificate, Check
from keyhole.errors import InvalidInput
from keyhole.identify import matrix_rank
from keyhole.learners.base import Plan, Recovery
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.designs import build_lone_design, choose_span_design
from keyhole.learners.one_head.exact import check_assumptions
from keyhole.learners.one_head.learner import Measured, plan_head, recover_head
from keyhole.learners.one_head.rank_steps import SPARE_ROWS, RankSteps
from keyhole.learners.verifying.certifying import conclude_agreement
from keyhole.models import Factored, Head
from keyhole.oracles import Oracle

_SPARE = 15.0  # queries that finding the rank may cost, above a share of all forms
_COLUMN = 512.0  # roundings of the largest column below which what a column adds counts as zero
_FORM = 4096.0  # roundings of the typical form below which a check counts as zero
# The same in units of the measured noise of a column, for answers coarser than float64.
_SIGMAS = 6.0
_LEAK = 100.0  # how much a badly conditioned basis may raise both
_POOR, _BAD = 5e-4, 1e-5  # reciprocal condition of the columns below which more are asked
_WIDE = 256  # width from which vectors have two entries, so that few rows tell little
_VISIBLE = 0.1  # least part of the read-out outside a basis that makes it visible there


@dataclass(frozen=True, slots=True)
class LowRank:
    """Recovers W of low rank, or of full rank at no extra cost worth naming.

    Args:
        rank: the rank of W where it is known; found with about one query per rank otherwise.
    """

    rank: int | None = None

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 0:
            raise InvalidInput(f"a rank is a whole number >= 0; got {self.rank}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Queries to measure: r(2d - r)/o, and one check per rank where that is not known."""
        together = min(width, outputs)
        r = width if self.rank is None else min(self.rank, width)
        measure = r * -(-width // together) + (width - r) * -(-r // together)
        checks = 0 if self.rank is not None else min(r, width - 1) + 1
        return plan_head(width, outputs, measure, rank=r, checks=checks)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head; certificate BSHK26/5.1."""
        if self.rank is not None and self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        recovery = recover_head(oracle, self._measure, rng=rng)
        return replace(recovery, certificate=certify_low_rank(recovery, oracle.width))

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        steps = RankSteps(columns, rng.permutation(len(columns.design.X)))
        return _assemble_weights(columns, _find_range_basis(columns, steps, self.rank, rng), steps)


class _Basis:
    """An orthonormal basis grown column by column, by what each adds beyond rounding."""

    def __init__(self, width: int, roundoff: float, floor: float = 0.0) -> None:
        self.floor = floor
        self.roundoff = roundoff
        self.size = 0
        self.typical = 0.0
        self.least = 1.0
        self._Q = np.zeros((width, min(width, 64)))

    @property
    def Q(self) -> Matrix:
        """The basis, one column per vector."""
        return self._Q[:, : self.size]

    def add(self, columns: Matrix, readable: float) -> int:
        """Take what is new in `columns`, given as rows, and return how many were.

        Args:
            columns: what was measured.
            readable: norm of a column that is read well.
        """
        before = self.size
        self.typical = max(self.typical, readable)
        with pin_one_thread():
            rest = self.outside(columns)
            for column, part in zip(columns, rest, strict=True):
                self.typical = max(self.typical, float(np.linalg.norm(column)))
                new = self._Q[:, before : self.size]
                self._take(part - new @ (part @ new))
        return self.size - before

    def _take(self, part: Vector) -> None:
        # Once more: what is left of a column nearly inside is full of rounding along the basis.
        part = self.outside(part[None])[0]
        size = float(np.linalg.norm(part))
        zero = self.floor or _COLUMN * self.noise * self.typical
        if size > zero and self.size < len(part):
            if self.size == self._Q.shape[1]:
                room = np.zeros((len(part), min(self.size, len(part) - self.size)))
                self._Q = np.hstack([self._Q, room])
            self._Q[:, self.size] = part / size
            self.size += 1
            self.least = min(self.least, size / self.typical)

    @property
    def noise(self) -> float:
        """Relative error of the basis: rounding, raised where a small remainder was taken."""
        return self.roundoff * min(1.0 / self.least, _LEAK)

    def outside(self, rows: Matrix) -> Matrix:
        """The parts of `rows` orthogonal to the basis."""
        return rows - (rows @ self.Q) @ self.Q.T


def _find_range_basis(
    columns: Columns, steps: RankSteps, rank: int | None, rng: np.random.Generator
) -> Matrix:
    """Round one: an orthonormal basis of the range of M."""
    d = columns.design.X.shape[2]
    roundoff = columns.prober.roundoff
    # Measuring the noise costs queries; that of float64 is known.
    floor = 0.0 if roundoff <= EPS else _SIGMAS * columns.noise()
    basis = _Basis(d, roundoff, floor)
    if rank is not None:
        basis.add(columns.measure(1), 0.0)
        basis.add(columns.measure(rank - 1), 0.0)
        return basis.Q
    checks = 0
    # Coarse answers and vectors of few entries do not tell from few rows what is new.
    if floor == 0.0 and d < _WIDE:
        _climb(columns, basis, steps)
        checks = 1
        if _is_complete(columns, basis, rng):
            return _reinforce_basis(columns, basis, checks)
    while columns.left and basis.size < d:
        block = _count_affordable_columns(columns, checks) if columns.known else 1
        # A check costs one query, a superfluous column many: check once columns are dear.
        if block == 0:
            checks += 1
            if _is_complete(columns, basis, rng):
                break
        asked = columns.measure(max(1, block))
        if basis.add(asked, columns.readable) < len(asked):
            break
    return _reinforce_basis(columns, basis, checks)


def _climb(columns: Columns, basis: _Basis, steps: RankSteps) -> None:
    """Measure columns in steps, as long as all that were opened are new."""
    basis.add(columns.measure(1), columns.readable)
    new = 0
    while basis.size == columns.known and columns.left:
        following = _count_next_columns(columns, new)
        done = steps.take(new, following)
        if basis.add(done, columns.readable) < new or following == 0:
            return
        new = steps.count_new()
        # Those that are not new are left as they are, and with them all that follow.
        if new < following:
            if new:
                basis.add(steps.leave(new), columns.readable)
            return


def _count_next_columns(columns: Columns, new: int) -> int:
    """How many columns to open beyond `new` ones: if none were new, their spare rows waste little.

    n columns that are not new have n + 4 rows each that round two does not need.
    """
    groups, together = columns.design.X.shape[:2]
    k = columns.known + new
    along = -(-k // together)
    left = len(columns.directions.Y) - k
    # No more columns than the width are new, whatever a score bias adds to their number.
    most = min(left, columns.design.X.shape[2] - k)
    spare = together * (_SPARE + 0.018 * (k * groups + left * along))
    return min(most, max(1, int(np.sqrt(spare + SPARE_ROWS) - 2.0)))


def _count_affordable_columns(columns: Columns, checks: int) -> int:
    """How many columns may be measured unchecked: all of them superfluous, they waste little.

    If the rank is k, the number known, the whole costs k columns and the other directions along k
    vectors; a superfluous column costs what it does above those.
    """
    groups, together, width = columns.design.X.shape
    k = columns.known
    along = -(-k // together)
    # The larger the matrix, the smaller a share of its forms is worth saving checks.
    waste = 0.018 if width <= 256 else 0.009
    spare = _SPARE + waste * (k * groups + columns.left * along) - checks
    return min(max(1, k // 8), max(0, int(spare / max(1, groups - along))))


def _reinforce_basis(columns: Columns, basis: _Basis, checks: int) -> Matrix:
    """The basis, after one or two columns more where the measured ones are nearly dependent.

    Errors of the range grow with the condition of the measured columns; a few superfluous ones cure
    it. They are asked when that is cheap or the condition is bad.
    """
    d, rank = basis.Q.shape
    for extra in range(3):
        if rank == 0 or rank == d or not columns.left:
            break
        with pin_one_thread():
            U, S, _ = np.linalg.svd(np.concatenate(columns.C).T, full_matrices=False)
        cheap = columns.known == rank and _count_affordable_columns(columns, checks) > 0
        if extra == 2 or S[rank - 1] > (_POOR if cheap else _BAD) * S[0]:
            return U[:, :rank]
        columns.measure(1)
    return basis.Q


def _is_complete(columns: Columns, basis: _Basis, rng: np.random.Generator) -> bool:
    """Whether two fresh directions see nothing outside the basis."""
    fresh = columns.directions.Y[columns.known : columns.known + 2]
    if basis.size == len(basis.Q):
        return False
    with columns.prober.oracle.phase("rank"):
        return len(fresh) > 0 and all(_sees_nothing(columns, basis, y, rng) for y in fresh)


def _sees_nothing(columns: Columns, basis: _Basis, y: Vector, rng: np.random.Generator) -> bool:
    """Whether z . (W y + h) vanishes for a random z orthogonal to the basis.

    z is tilted towards the part of the read-out outside the basis, which it must have to be seen at
    all. Where there is hardly such a part, q inside the basis is seen instead, and z is read as (q
    + z) - q.
    """
    V = columns.prober.readout.V
    with pin_one_thread():
        seen = np.linalg.svd(V, full_matrices=False)[0][:, 0]
        inside = basis.Q @ (basis.Q.T @ seen)
        tilt = seen - inside
        g = basis.outside(rng.normal(size=(1, len(seen))))[0]

    def measure(x: Vector) -> float:
        return float(columns.prober.forms(build_lone_design(V, x), y[None])[0, 0])

    z = g / np.linalg.norm(g)
    length = float(np.linalg.norm(tilt))
    if length > _VISIBLE:
        size = measure(z * np.copysign(1.0, z @ tilt) + tilt / length)
    else:
        size = measure(inside + z) - measure(inside)
    weight = columns.directions.weight
    typical = basis.typical * weight / np.sqrt(len(seen))
    floor = basis.floor / np.sqrt(len(seen)) * weight
    return bool(abs(size) <= (floor or _FORM * basis.noise * typical))


def _assemble_weights(columns: Columns, Q: Matrix, steps: RankSteps) -> Measured:
    """Round two, where columns are left, and the product of both."""
    rank = Q.shape[1]
    if not columns.left:
        W, h = columns.split(columns.matrix())
        return _attach_rank(W, h, rank)
    if rank == 0:
        return Measured(np.zeros((len(Q), len(Q))), None, 0)
    design = choose_span_design(
        columns.prober.readout.V,
        Q,
        most=columns.design.X.shape[1],
        cut=columns.prober.roundoff**0.25,
    )
    # Along Q forms are larger than along arbitrary vectors, by the square root of d over the rank.
    columns.prober.sx = find_power_of_two(columns.prober.sx * np.sqrt(max(1, rank) / len(Q)))
    G = columns.measure_along(design, Q, _solve_opened(columns, Q, steps))
    with pin_one_thread():
        return multiply_factors(columns, Q, G)


def _solve_opened(columns: Columns, Q: Matrix, steps: RankSteps) -> Matrix:
    """Q^T M on the directions that were opened and not completed, as far as their rows tell it."""
    start = columns.known - steps.first
    rank = Q.shape[1]
    if start < 0 or start >= len(steps.forms) or not steps.tells(rank):
        return np.zeros((0, rank))
    return steps.solve_along(Q, start)


def multiply_factors(columns: Columns, A: Matrix, G: Matrix) -> Measured:
    """The scores of M = A G, held as factors where these are smaller."""
    width, rank = A.shape
    B, h = columns.split(G)
    W = Factored(A, B.T) if 2 * rank < width else A @ B
    return _attach_rank(W, None if h is None else A @ h, rank)


def _attach_rank(W: Matrix | Factored, h: Vector | None, joint: int) -> Measured:
    """The rank of W alone, from that of [W | h]."""
    if h is None:
        return Measured(W, h, joint)
    rank = matrix_rank(W)
    return Measured(W, h, rank, bias_free=rank < joint)


def certify_low_rank(
    recovery: Recovery[Head], width: int, allowed: float | None = None
) -> Certificate | None:
    """Theorem 5.1 confronted with one run, by default with the count of the range finder."""
    head = recovery.model
    rank = recovery.rank
    if head is None or rank is None or recovery.fresh is None:
        return None
    together = max(1, min(width, int(np.linalg.matrix_rank(head.V))))
    directions = width + (head.h is not None)
    k = min(rank + (head.h is not None), width)
    limit = k * -(-width // together) + (directions - k) * -(-k // together)
    if allowed is None:
        allowed = 1.02 * limit + 30 + width
    return Certificate(
        "BSHK26/5.1",
        assumptions=(
            *check_assumptions(recovery, head),
            Check("rank of W", rank, width),
            Check("queries that measure W", recovery.ledger["measure"].sequences, allowed),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )
