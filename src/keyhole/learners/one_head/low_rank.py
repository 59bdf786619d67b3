r"""Theorem 5.1 of [BSHK26] and beyond: a head of rank r from exactly as many queries as it has
parameters.

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
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Plan, Recovery, Status, bound_queries
from keyhole.learners.one_head.columns import Columns
from keyhole.learners.one_head.designs import build_lone_design, choose_span_design
from keyhole.learners.one_head.learner import Measured, recover_head
from keyhole.learners.verifying.examination import EXACT
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import Factored, Head
from keyhole.oracles import Oracle

_SPARE = 15.0  # queries that finding the rank may cost, above a share of all forms


def _allow_waste(width: int) -> float:
    """Share of all forms that finding the rank may cost: the larger the matrix, the less."""
    return 0.018 if width <= 256 else 0.009


_COLUMN = 512.0  # roundings of the largest column below which what a column adds counts as zero
_FORM = 4096.0  # roundings of the typical form below which a check counts as zero
# measured noise of a column below which what one adds counts as zero, for answers coarser than
# float64
_SIGMAS = 6.0
_LEAK = 100.0  # how much a badly conditioned basis may raise both
_POOR, _BAD = 5e-4, 1e-5  # reciprocal condition of the columns below which more are asked
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
        """D + 5 queries to read out, r(2d - r)/o to measure, one check per rank, then
        verification.
        """
        together = min(width, outputs)
        r = width if self.rank is None else min(self.rank, width)
        measure = r * -(-width // together) + (width - r) * -(-r // together)
        checks = 0 if self.rank is not None else min(r, width - 1) + 1
        by_phase = {
            "read": width + 5,
            "scale": 6,
            "measure": measure,
            "rank": checks,
            "verify": QUERIES,
        }
        freedom = head_freedom(width, outputs=outputs, rank=r)
        return Plan(
            by_phase=by_phase,
            at_most=bound_queries(by_phase),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head; certificate BSHK26/5.1."""
        if self.rank is not None and self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        recovery = recover_head(oracle, self._measure, rng=rng)
        return replace(recovery, certificate=certify_low_rank(recovery, oracle.width))

    def _measure(self, columns: Columns, rng: np.random.Generator) -> Measured:
        return _assemble_weights(columns, _find_range_basis(columns, self.rank, rng))


class _Basis:
    """An orthonormal basis grown column by column; a column that adds nothing beyond rounding is
    not taken.
    """

    def __init__(self, width: int, roundoff: float, floor: float = 0.0) -> None:
        self.floor = floor
        self._Q = np.zeros((width, min(width, 64)))
        self.size, self.typical, self.roundoff, self.least = 0, 0.0, roundoff, 1.0

    @property
    def Q(self) -> Matrix:
        """The basis, one column per vector."""
        return self._Q[:, : self.size]

    def add(self, columns: Matrix, readable: float) -> int:
        """Take what is new in `columns` (given as rows, a well readable one of norm `readable`);
        return how many.
        """
        before = self.size
        self.typical = max(self.typical, readable)
        with pin_one_thread():
            rest = self.outside(columns)
            for column, part in zip(columns, rest, strict=True):
                self.typical = max(self.typical, float(np.linalg.norm(column)))
                self._take(
                    part - self._Q[:, before : self.size] @ (part @ self._Q[:, before : self.size])
                )
        return self.size - before

    def _take(self, part: Vector) -> None:
        part = self.outside(part[None])[0]
        size = float(np.linalg.norm(part))
        zero = self.floor or _COLUMN * self.noise * self.typical
        if size > zero and self.size < len(part):
            if self.size == self._Q.shape[1]:
                self._Q = np.hstack(
                    [self._Q, np.zeros((len(part), min(self.size, len(part) - self.size)))]
                )
            self._Q[:, self.size] = part / size
            self.size += 1
            self.least = min(self.least, size / self.typical)

    @property
    def noise(self) -> float:
        """Relative error of the basis: rounding, raised where a vector was taken for a small
        remainder.
        """
        return self.roundoff * min(1.0 / self.least, _LEAK)

    def outside(self, rows: Matrix) -> Matrix:
        """The parts of `rows` orthogonal to the basis."""
        return rows - (rows @ self.Q) @ self.Q.T


def _find_range_basis(columns: Columns, rank: int | None, rng: np.random.Generator) -> Matrix:
    """Round one: an orthonormal basis of the range of M."""
    d, n = columns.design.X.shape[2], len(columns.directions.Y)
    basis = _Basis(
        d,
        columns.prober.roundoff,
        0.0 if columns.prober.roundoff <= EPS else _SIGMAS * columns.noise(),
    )
    if rank is not None:
        basis.add(columns.measure(1), 0.0)
        basis.add(columns.measure(rank - 1), 0.0)
        return basis.Q
    checks = 0
    while columns.known < n and basis.size < d:
        block = _count_affordable_columns(columns, _allow_waste(d), checks) if columns.known else 1
        if block == 0:
            checks += 1
            if _is_complete(columns, basis, rng):
                break
        asked = columns.measure(max(1, block))
        if basis.add(asked, columns.readable) < len(asked):
            break
    return _reinforce_basis(columns, basis, checks)


def _count_affordable_columns(columns: Columns, waste: float, checks: int) -> int:
    """How many more columns may be measured unchecked: if they all add nothing, what they waste is
    small.

    If the rank is k, the number known, the whole costs k columns and the other directions along k
    vectors; a superfluous column costs what it does above those.
    """
    groups, together, _ = columns.design.X.shape
    k, n = columns.known, len(columns.directions.Y)
    along = -(-k // together)
    spare = _SPARE + waste * (k * groups + (n - k) * along) - checks
    return min(max(1, k // 8), max(0, int(spare / max(1, groups - along))))


def _reinforce_basis(columns: Columns, basis: _Basis, checks: int) -> Matrix:
    """The basis, after one or two columns more where the measured ones happen to be nearly
    dependent.

    Errors of the range grow with the condition of the measured columns; a few superfluous ones cure
    it. They are asked when that is cheap or the condition is bad.
    """
    (d, rank), n = basis.Q.shape, len(columns.directions.Y)
    for extra in range(3):
        if rank == 0 or rank == d or columns.known == n:
            break
        with pin_one_thread():
            U, S, _ = np.linalg.svd(np.concatenate(columns.C).T, full_matrices=False)
        none_yet = (
            columns.known == rank
            and _count_affordable_columns(columns, _allow_waste(d), checks) > 0
        )
        if extra == 2 or S[rank - 1] > (_POOR if none_yet else _BAD) * S[0]:
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
    V, prober = columns.prober.readout.V, columns.prober
    with pin_one_thread():
        seen = np.linalg.svd(V, full_matrices=False)[0][:, 0]
        inside = basis.Q @ (basis.Q.T @ seen)
        tilt, g = seen - inside, basis.outside(rng.normal(size=(1, len(seen))))[0]
    z = g / np.linalg.norm(g)
    visible = float(np.linalg.norm(tilt)) > _VISIBLE
    probes = (
        [z * np.copysign(1.0, z @ tilt) + tilt / np.linalg.norm(tilt)]
        if visible
        else [inside + z, inside]
    )
    forms = [prober.forms(build_lone_design(V, x), y[None])[0, 0] for x in probes]
    size = forms[0] if visible else forms[0] - forms[1]
    typical = basis.typical * columns.directions.weight / np.sqrt(len(seen))
    zero = (
        basis.floor / np.sqrt(len(seen)) * columns.directions.weight
        or _FORM * basis.noise * typical
    )
    return bool(abs(size) <= zero)


def _assemble_weights(columns: Columns, Q: Matrix) -> Measured:
    """Round two, where columns are left, and the product of both."""
    rank, n = Q.shape[1], len(columns.directions.Y)
    if columns.known == n:
        W, h = columns.split(columns.matrix())
        return attach_rank(W, h, rank)
    if rank == 0:
        return Measured(np.zeros((len(Q), len(Q))), None, 0)
    known = columns.known
    design = choose_span_design(
        columns.prober.readout.V,
        Q,
        most=columns.design.X.shape[1],
        cut=columns.prober.roundoff**0.25,
    )
    # along Q the forms are larger than along arbitrary vectors, by the square root of d over the
    # rank
    columns.prober.sx = find_power_of_two(columns.prober.sx * np.sqrt(max(1, rank) / len(Q)))
    with columns.prober.oracle.phase("measure"):
        T = columns.prober.forms(design, columns.directions.Y[known:])
    with pin_one_thread():
        G = np.concatenate(columns.C) @ Q
        G = (
            np.concatenate([G, design.solve(T) / columns.directions.weight]).T
            @ columns.directions.O
        )
        B, h = columns.split(G)
        W = Factored(Q, B.T) if 2 * rank < len(Q) else Q @ B
        return attach_rank(W, None if h is None else Q @ h, rank)


def attach_rank(W: Matrix | Factored, h: Vector | None, joint: int) -> Measured:
    """The rank of W alone, from that of [W | h]."""
    if h is None:
        return Measured(W, h, joint)
    rank = matrix_rank(W)
    return Measured(W, h, rank, bias_free=rank < joint)


def certify_low_rank(
    recovery: Recovery[Head], width: int, allowed: float | None = None
) -> Certificate | None:
    """Theorem 5.1 confronted with one run, by default with the count of the two-round range
    finder.
    """
    head, rank = recovery.model, recovery.rank
    if head is None or rank is None or recovery.fresh is None:
        return None
    together = max(1, min(width, int(np.linalg.matrix_rank(head.V))))
    directions = width + (head.h is not None)
    k = min(rank + (head.h is not None), width)
    limit = k * -(-width // together) + (directions - k) * -(-k // together)
    is_head = recovery.status in (Status.RECOVERED, Status.NO_READOUT)
    asked = recovery.ledger["measure"].sequences
    return Certificate(
        "BSHK26/5.1",
        assumptions=(
            Check("answers that no single head gives", float(not is_head), 0.0),
            Check("read-out that is zero", float(not head.V.any()), 0.0),
            Check(
                "answers coarser than float64",
                float(recovery.verdict is Verdict.WITHIN_TOLERANCE),
                0.0,
            ),
            Check("rank of W", rank, width),
        ),
        conclusion=(
            Check(
                "queries that measure W",
                asked,
                1.02 * limit + 30 + width if allowed is None else allowed,
            ),
            Check("worst relative disagreement on fresh queries", recovery.fresh.relative, EXACT),
        ),
    )
