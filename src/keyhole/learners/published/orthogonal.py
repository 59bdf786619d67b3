r"""The positive case of [BSHK26]: several heads in orthogonal subspaces with known bases.

Head h lives in span($B_h$): $W_h = B_h W' B_h^\top$, $V_h = B_h V'$. Tokens $z B_h^\top$ inside its
subspace silence all others, whose scores and values vanish there, so the target restricted to them
is the single head $(W', V')$ of width $r_h$. The learner of single heads measures it with $r_h^2 +
r_h$ queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import (
    Answers,
    Matrix,
    Sequences,
    check_finite,
    check_shape,
    freeze_array,
    pin_one_thread,
)
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Plan, Recovery, Status, bound_queries
from keyhole.learners.one_head.exact import measure_every_column
from keyhole.learners.one_head.learner import HeadSession
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead, Scattered
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import SPENT, Ending, end_scattered, resolve_doubt
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.sums_of_heads import conclude_sum, doubt_class, judge_sum
from keyhole.models import Head, MultiHead
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_REASON = "Tokens inside one subspace were asked, where all heads but one are silent."
_ORTHOGONAL = 1e-8  # largest cosine between subspaces that counts as zero


@dataclass(frozen=True, eq=False, slots=True)
class Embedded:
    """The target on tokens inside one subspace: token z there is the token B z here."""

    inner: Oracle
    basis: Matrix

    @property
    def width(self) -> int:
        """Dimension of the subspace."""
        return self.basis.shape[1]

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch of short tokens."""
        return self.inner.ask(X @ self.basis.T)


@dataclass(frozen=True, eq=False, slots=True)
class Orthogonal:
    """Recovers heads in pairwise orthogonal subspaces, one by one: about r_h^2 + r_h queries each.

    Args:
        bases: one matrix per head, whose columns span its subspace.
    """

    bases: Sequence[Matrix]

    def __post_init__(self) -> None:
        if not self.bases:
            raise InvalidInput("heads in orthogonal subspaces need one basis per head; got none.")
        bases = tuple(_orthonormalise_basis(basis) for basis in self.bases)
        object.__setattr__(self, "bases", bases)
        for at, A in enumerate(self.bases):
            for B in self.bases[:at]:
                check_shape("every basis", A, (len(B), None))
                if np.abs(A.T @ B).max() > _ORTHOGONAL:
                    raise InvalidInput(
                        "the subspaces of two heads must be orthogonal; take WholeLayer if they are"
                        " not."
                    )

    @property
    def ranks(self) -> list[int]:
        """Dimensions of the subspaces."""
        return [basis.shape[1] for basis in self.bases]

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """For every head r + 5 queries to read out, a few to scale, r ceil(r/o) to measure."""
        self._check_width(width)
        measure = sum(rank * -(-rank // min(rank, outputs)) for rank in self.ranks)
        by_phase = {
            "read": sum(self.ranks) + 5 * len(self.ranks),
            "scale": 6 * len(self.ranks),
            "measure": measure,
            "verify": QUERIES,
        }
        total = sum(head_freedom(rank, outputs=outputs) for rank in self.ranks)
        most = bound_queries(by_phase) + 1608 * (len(self.ranks) - 1)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=total, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover all heads; certificate BSHK26/orthogonal-heads."""
        self._check_width(oracle.width)
        measuring, checking = rng.spawn(2)
        counted = Counted(oracle)
        found: list[Head] = []
        try:
            for basis, source in zip(self.bases, measuring.spawn(len(self.bases)), strict=True):
                found.append(_measure_subspace_head(counted, basis, source))
            ending = self._judge(counted, found, checking)
        except BudgetSpent:
            ending = SPENT
        except Saturated:
            ending = Ending(status=Status.SATURATED)
        except Scattered as found_out:
            ending = end_scattered(found_out.gap)
        except _Refusal as refusal:
            ending = resolve_doubt(counted, doubt_class(Status.NOT_A_HEAD, refusal.counterexample))
        model = _assemble_subspace_heads(self.bases, found)
        recovery = conclude_sum(counted, model, ending, _REASON)
        return replace(recovery, certificate=self._certificate(recovery))

    def _judge(self, counted: Counted, found: Sequence[Head], rng: np.random.Generator) -> Ending:
        model = _assemble_subspace_heads(self.bases, found)
        if model is None or any(head.U is not None for head in found):
            return Ending(
                status=Status.UNSEPARATED,
                detail="A residual acts, which a sum of heads does not hold.",
            )
        return judge_sum(counted, model, probe=None, rng=rng)

    def _check_width(self, width: int) -> None:
        if len(self.bases[0]) != width:
            raise InvalidInput(
                f"bases of subspaces need {width} rows, the width of a token; got"
                f" {len(self.bases[0])}."
            )

    def _certificate(self, recovery: Recovery[MultiHead]) -> Certificate | None:
        model = recovery.model
        if model is None or recovery.fresh is None:
            return None
        # Five questions for every head recognise it, and are not counted as measurements.
        spare = 5 * len(self.ranks)
        asked = sum(recovery.ledger[phase].sequences for phase in ("read", "measure")) - spare
        allowed = sum(rank * rank + rank * (1 + (model.h is not None)) for rank in self.ranks)
        return Certificate(
            "BSHK26/orthogonal-heads",
            assumptions=(
                assume_class("answers that no such heads give", recovery.verdict),
                Check("measurements used", asked, allowed),
            ),
            conclusion=(conclude_agreement(recovery.fresh),),
        )


class _Refusal(Exception):
    """An answer no single head gives, in the tokens of the target."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__()
        self.counterexample = counterexample


def _orthonormalise_basis(basis: Matrix) -> Matrix:
    columns = freeze_array(basis)
    check_shape("a basis", columns, (None, None))
    check_finite("a basis", columns)
    if columns.shape[1] == 0 or np.linalg.matrix_rank(columns) < columns.shape[1]:
        raise InvalidInput(
            f"the columns of a basis must be independent, at least one; got shape {columns.shape}."
        )
    with pin_one_thread():
        return freeze_array(np.linalg.qr(columns)[0])


def _measure_subspace_head(counted: Counted, basis: Matrix, rng: np.random.Generator) -> Head:
    """The head of one subspace, in its coordinates, booked with the others."""
    inside = Counted(Embedded(counted.inner, basis), counted.ledger)
    session = HeadSession(inside, read_imperfection(counted).roundoff, rng)
    try:
        return session.measure(measure_every_column)
    except NotAHead as refusal:
        case = refusal.counterexample
        raise _Refusal(replace(case, tokens=case.tokens @ basis.T)) from refusal


def _assemble_subspace_heads(bases: Sequence[Matrix], heads: Sequence[Head]) -> MultiHead | None:
    """The sum of the heads found so far."""
    if not heads:
        return None
    with pin_one_thread():
        pairs = list(zip(bases, heads, strict=False))
        W = np.stack([B @ np.asarray(head.W) @ B.T for B, head in pairs])
        V = np.stack([B @ head.V for B, head in pairs])
        h = np.stack([np.zeros(len(B)) if head.h is None else B @ head.h for B, head in pairs])
    return MultiHead(W, V, h if h.any() else None, heads[0].c)
