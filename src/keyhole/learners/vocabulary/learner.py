r"""A head from queries whose tokens are rows of a given matrix E, and nothing else.

Single tokens give the affine read-out. Comparisons under one query token b give the column $W z_b +
h$ on the differences of tokens, b running over an affine basis; once the columns of several tokens
span no more than those before, the others are measured only along that span. What the affine hull
of E leaves open is chosen small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import (
    Matrix,
    Sequences,
    Vector,
    check_finite,
    check_shape,
    freeze_array,
    pin_one_thread,
)
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Counterexample, Plan, Recovery, Status
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.verifying.ending import (
    SPENT,
    VOCABULARY,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import LENGTHS, LOGITS, QUERIES
from keyhole.learners.vocabulary.comparisons import (
    GOAL,
    SPARE,
    Asker,
    Column,
    Comparer,
    Values,
    count_readable_tokens,
)
from keyhole.learners.vocabulary.hull import Rows, Vocabulary, append_one, least_squares
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_EXTRA_TOKENS = 4  # single tokens beyond the basis, to check that answers are affine
_PAIRS = 4  # pairs asked at once, in both orders, to see whether attention and a residual act
_CLEAR = 0.05  # the same where a residual hides the values, which pairs then have to give
_SEEN = 1e-3  # least share at which a pair tells the value of its first token
_TRIES = 8  # rounds of pairs when a residual hides the values
_RESIDUAL = 1e-7  # gap, relative to the values, from which a residual acts
_BLOCK = 6  # columns measured at once are at most this part of those known
_KNOWN = 1e3 * GOAL  # share of the tolerance to which a column must be known to count as known
_JOINT = 700  # unknowns up to which columns that are not known one by one are solved together


@dataclass(frozen=True, eq=False, slots=True)
class Restricted:
    """Recovers a head on the tokens it may ask: (m + 1) ceil(m/o) comparisons at most, m the
    dimension of their hull.

    Args:
        tokens: the vocabulary E, one token per row; every token of every query is one of them, bit
            by bit.
    """

    tokens: Matrix

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", freeze_array(self.tokens))
        check_shape("tokens", self.tokens, (None, None))
        check_finite("tokens", self.tokens)
        if self.tokens.size == 0:
            raise InvalidInput(
                f"a vocabulary needs at least one token; got shape {self.tokens.shape}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """One query per basis token, pairs to see what acts, comparisons as for W of full rank,
        then verification.
        """
        self._fits(width)
        m = Vocabulary.of(self.tokens).size
        many = count_readable_tokens(min(m, outputs))
        by_phase = {
            "read": m + 1 + _EXTRA_TOKENS,
            "scale": 4 * _PAIRS,
            "measure": (m + 1) * -(-m // many),
            "verify": QUERIES,
        }
        pairs = 4 * _PAIRS * _TRIES + 2 * _TRIES * (m + 1)
        most = by_phase["read"] + pairs + 4 * (m + 1) * m + SPARE + QUERIES + 4
        freedom = head_freedom(m, outputs=outputs, score_bias=m, constant=True)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover what the vocabulary determines of a head; every way to stop ends in a
        Recovery.
        """
        self._fits(oracle.width)
        measuring, checking = rng.spawn(2)
        session = _VocabularySession(
            Counted(oracle),
            Vocabulary.of(self.tokens),
            read_imperfection(oracle).roundoff,
            measuring,
        )
        try:
            session.measure()
        except BudgetSpent:
            return session.conclude(SPENT)
        except Saturated:
            return session.conclude(session.refuse(Status.SATURATED))
        except NotAHead as refusal:
            return session.conclude(session.refuse(Status.NOT_A_HEAD, refusal.counterexample))
        return _judge(session, checking)

    def _fits(self, width: int) -> None:
        if self.tokens.shape[1] != width:
            raise InvalidInput(
                f"the vocabulary's tokens have width {self.tokens.shape[1]}, the target's {width}."
            )


@dataclass(slots=True)
class _VocabularySession:
    """One recovery under way."""

    oracle: Counted
    vocabulary: Vocabulary
    roundoff: float
    rng: np.random.Generator
    asker: Asker = field(init=False)
    values: Values | None = field(default=None, init=False)
    columns: list[Column] = field(default_factory=list[Column], init=False)
    rank: int | None = field(default=None, init=False)
    error: float = field(default=0.0, init=False)
    uncertain: int = field(default=0, init=False)
    W: Matrix = field(init=False)
    h: Vector = field(init=False)
    probe: tuple[Sequences, Matrix] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        m = self.vocabulary.size
        self.asker = Asker(self.oracle, self.vocabulary)
        self.W, self.h = np.zeros((m, m)), np.zeros(m)

    @property
    def tolerance(self) -> float:
        """What fresh answers may differ by, relative to the token values."""
        return VOCABULARY.tolerance(self.oracle)

    @property
    def blind(self) -> bool:
        """Whether attention shows in no answer."""
        return self.values is None or not self.values.V.any()

    @property
    def head(self) -> Head | None:
        """The head as far as it is known."""
        values = self.values
        return (
            None
            if values is None
            else self.vocabulary.lift(self.W, self.h, values.V, values.c, values.U)
        )

    def measure(self) -> None:
        """Read out, see what acts, and measure the scores."""
        with self.oracle.phase("read"):
            self.values = self._read()
        if self.vocabulary.size == 0:
            return
        with self.oracle.phase("scale"):
            self.values = self._attended(self.values)
        if self.blind:
            return
        comparer = Comparer(
            self.asker, self.values, roundoff=self.roundoff, tolerance=self.tolerance, rng=self.rng
        )
        with self.oracle.phase("measure"):
            self._scores(comparer)

    def _read(self) -> Values:
        """The affine map that single tokens answer with."""
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        others = self.rng.permutation(np.setdiff1d(np.arange(len(Z)), basis))[:_EXTRA_TOKENS]
        rows = np.concatenate([basis, others])
        answers = self.asker.ask(rows[:, None])
        self.probe = self.vocabulary.E[rows[:1], None], answers[:1]
        with pin_one_thread():
            map_ = least_squares(append_one(Z[basis]), answers[: len(basis)], 1e-15)
        total, c = map_[:-1], map_[-1]
        values = Values(total, total, c) if total.size else Values(total, np.zeros_like(total), c)
        gaps = np.abs(answers - values.alone(Z[rows])).max(axis=1)
        if (gaps > max(1e-9, 1e3 * self.roundoff) * np.abs(answers).max()).any():
            at = int(gaps.argmax())
            predicted = values.alone(Z[rows[at : at + 1]])[0]
            raise NotAHead(
                Counterexample(self.vocabulary.E[rows[at : at + 1]], answers[at], predicted)
            )
        return values

    # [a; b] answers f(b) + s w and [a; a; b] f(b) + 2s/(1+s) w, with w = V^T(a - b) and s the share
    # of a in [a; b]. So their quotient q gives s = 2/q - 1 and w = (first)/s, whether or not a
    # residual acts.
    def _pairs(self, a: Rows, b: Rows) -> tuple[Vector, Matrix]:
        """Shares of a in [a; b], zero where unreadable, and the values V^T(a - b)."""
        alone = self.values.alone(self.vocabulary.Z[b]) if self.values is not None else 0.0
        once = self.asker.ask(np.stack([a, b], axis=1)) - alone
        twice = self.asker.ask(np.stack([a, a, b], axis=1)) - alone
        size = np.einsum("qo,qo->q", once, once)
        seen = np.abs(once).max(axis=1) > 1e4 * self.roundoff * float(np.abs(alone).max())
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(seen, 2.0 * size / np.einsum("qo,qo->q", once, twice) - 1.0, 0.0)
        share = np.where(share > _SEEN, share, 0.0)
        return share, once / np.where(share > 0, share, 1.0)[:, None]

    def _attended(self, values: Values) -> Values:
        """What of the read-out attention averages: all of it, unless pairs show a residual."""
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        for _ in range(_TRIES):
            a, b = np.array([self.rng.permutation(basis)[:2] for _ in range(_PAIRS)]).T
            a, b = np.concatenate([a, b]), np.concatenate([b, a])
            share, w = self._pairs(a, b)
            if share.any():
                break
        else:
            return Values(values.total, np.zeros_like(values.total), values.c)
        expected = (Z[a] - Z[b]) @ values.total
        gap = np.abs(w - expected).max(axis=1) * share**2
        size = max(float(np.abs(w[share > 0]).max()), float(np.abs(expected).max()))
        floor = _RESIDUAL * size + 1e3 * self.roundoff * (size + float(np.abs(values.c).max()))
        return values if not (gap > floor).any() else self._residual(values, a, b, share, w)

    def _residual(self, values: Values, a: Rows, b: Rows, share: Vector, w: Matrix) -> Values:
        """V apart from U: values of pairs until their differences span the hull.

        Raises:
            Saturated: they do not, since in too many pairs one token has all of the attention.
        """
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        D, T, weight = Z[a] - Z[b], w, share
        for _ in range(_TRIES):
            clear = weight > _CLEAR
            if np.linalg.matrix_rank(D[clear], tol=1e-6 * float(np.abs(Z).max())) == Z.shape[1]:
                with pin_one_thread():
                    scaled = weight[clear, None] ** 2
                    V = least_squares(scaled * D[clear], scaled * T[clear], 1e-12)
                return Values(values.total, V, values.c, loss=1.0 / _CLEAR)
            a = self.rng.permutation(basis)
            b = np.roll(a, 1)
            share, w = self._pairs(a, b)
            D, T, weight = (
                np.concatenate([D, Z[a] - Z[b]]),
                np.concatenate([T, w]),
                np.concatenate([weight, share]),
            )
        raise Saturated

    def _scores(self, comparer: Comparer) -> None:
        """Columns in growing blocks; once they span nothing new, the others along that span
        only.
        """
        basis, Q = self.vocabulary.basis, np.eye(self.vocabulary.size)
        order = self.rng.permutation(basis)
        rank = 0
        while len(self.columns) < len(order) and len(Q) == Q.shape[1]:
            at = len(self.columns)
            self.columns += comparer.measure(order[at : at + max(1, at // _BLOCK)], Q)
            self._assemble(comparer, Q)
            found = _find_span_basis(*self._solved(comparer, Q), cut=5e4 * self.roundoff)
            if found.shape[1] == rank < at and self.error <= _KNOWN * self.tolerance:
                Q = found
            rank = found.shape[1]
        if Q.shape[1] == 0:
            self.W, self.h, self.rank = np.zeros_like(self.W), np.zeros_like(self.h), 0
            return
        if len(self.columns) < len(order):
            self.columns += comparer.measure(order[len(self.columns) :], Q)
            self._assemble(comparer, Q)
        if self.uncertain:
            others = self.rng.permutation(np.setdiff1d(np.arange(len(self.vocabulary.Z)), basis))
            self.columns += comparer.measure(others[: min(2 * self.uncertain, len(basis))], Q)
            self._assemble(comparer, Q)

    def _solved(self, comparer: Comparer, Q: Matrix) -> tuple[Matrix, Vector]:
        errors = [comparer.uncertainty(column, Q) for column in self.columns]
        return np.array([column.solve(Q)[0] for column in self.columns]), np.array(errors)

    def _assemble(self, comparer: Comparer, Q: Matrix) -> None:
        """W and h from the columns: one by one where they are known well, together where they are
        not.
        """
        U, error = self._solved(comparer, Q)
        m, Y = (
            self.vocabulary.size,
            append_one(self.vocabulary.Z[[column.b for column in self.columns]]),
        )
        weight = 1.0 / np.maximum(error, self.roundoff)[:, None]
        with pin_one_thread():
            inverse = np.asarray(
                np.linalg.pinv(weight / weight.max() * Y, rcond=1e-14), dtype=np.float64
            )
            doubt = (
                np.linalg.norm(
                    append_one(self.vocabulary.Z[self.vocabulary.basis]) @ inverse, axis=1
                )
                / weight.max()
            )
            complete = (
                len(self.columns) > m
                and np.linalg.matrix_rank(weight / weight.max() * Y, tol=1e-14) > m
            )
            self.error = float(doubt.max()) if complete else float(error.max())
            self.uncertain = int(((doubt if complete else error) > _KNOWN * self.tolerance).sum())
            M = (
                self._joint(Y)
                if self.uncertain and m * (m + 1) <= _JOINT
                else inverse @ (weight / weight.max() * U)
            )
            self.W, self.h = M[:-1].T, M[-1]
            self.rank = matrix_rank(self.W, 1e-9) if len(self.columns) > m else None

    def _joint(self, Y: Matrix) -> Matrix:
        """Least squares over all equations (z_a - z_p) . (W z_b + h) = t, each by its standard
        error.
        """
        size = self.vocabulary.size
        counts, parts = (
            [len(c.t) for c in self.columns],
            [np.array(c.D).reshape(-1, size) for c in self.columns],
        )
        weight = 1.0 / np.concatenate([np.array(c.error) for c in self.columns])
        t = weight * np.concatenate([np.array(c.t) for c in self.columns])
        rows = np.einsum(
            "q,qy,qd->qyd", weight, np.repeat(Y, counts, axis=0), np.concatenate(parts)
        )
        if len(t) == 0:
            return np.zeros((size + 1, size))
        return least_squares(rows.reshape(len(t), -1), t[:, None], 1e-14).reshape(size + 1, size)

    def sequences(self, rng: np.random.Generator) -> Iterator[Sequences]:
        """Fresh sequences of lengths 1 to 32: half of tokens not asked before, where there are any,
        half of any.
        """
        E = self.vocabulary.E
        held = self.vocabulary.outside(np.array(sorted(self.asker.used), dtype=np.int64))
        held = held if len(held) else np.arange(len(E))
        half = (len(LOGITS) + 1) // 2
        for length in LENGTHS:
            rows = [
                rng.choice(held, (half, length)),
                rng.integers(len(E), size=(len(LOGITS) + 1 - half, length)),
            ]
            yield E[np.concatenate(rows)]

    def refuse(self, status: Status, case: Counterexample | None = None) -> Ending:
        """Refuse, unless the target turns out to answer the same question differently."""
        far = "Only tokens of the vocabulary may be asked, and their scores are too far apart."
        detail = (
            far
            if status is Status.SATURATED
            else describe_case(case, "what such a head can answer")
        )
        return resolve_doubt(self.oracle, Doubt(status, case, detail), probe=self.probe)

    def conclude(self, ending: Ending) -> Recovery[Head]:
        """The recovery as it stands."""
        return conclude(
            self.oracle,
            ending,
            Account(
                model=self.head,
                reason="Only rows of the vocabulary were asked; one head was tried.",
                determined=self._determined(ending.verdict),
                degrees_of_freedom=self._freedom(),
                rank=0 if self.blind and self.values is not None else self.rank,
            ),
        )

    def _freedom(self) -> int | None:
        if self.values is None or (self.rank is None and not self.blind):
            return None
        m, o = self.values.V.shape
        bias = 0 if self.blind else m
        v = 0 if self.blind else int(np.linalg.matrix_rank(self.values.V))
        return head_freedom(
            m, outputs=o, rank=self.rank or 0, value_rank=v, score_bias=bias, constant=True,
            residual=self.values.U is not None,
        )  # fmt: skip

    def _determined(self, verdict: Verdict) -> str:
        v = self.vocabulary
        where = (
            f"The tokens span {v.span} of {len(v.mean)} dimensions, their affine hull has dimension"
            f" {v.size}"
        )
        if self.values is None or verdict is Verdict.CLASS_REFUTED:
            return (
                f"{where}. Nothing is determined."
                if self.values is None
                else f"{where}. No single head fits."
            )
        if verdict is Verdict.BUDGET_SPENT:
            return (
                f"{where}. Of {v.size + 1} query tokens {len(self.columns)} had their scores"
                " measured."
            )
        if self.blind:
            return (
                f"{where}. What single tokens answer is determined; attention shows nowhere, so W,"
                " h and V are not."
            )
        mixed = (
            "the hull does not contain 0, so h acts as part of W and c as part of V (U where there"
            " is one): they are determined together only, and h = c = 0 was chosen"
            if v.aside.any()
            else "the hull contains 0, so h and c are determined apart from W and V"
        )
        known = (
            "W is determined between differences of tokens (keys) and tokens (queries), V on tokens"
        )
        parts = [
            f"{where}; {mixed}.",
            f"{known}; elsewhere they are chosen small, and nothing asked can tell.",
        ]
        parts += ["A residual acts, so V is determined along differences of tokens only."] * (
            self.values.U is not None
        )
        if self.uncertain:
            parts.append(
                f"For {self.uncertain} of {v.size + 1} query tokens scores are too far apart to be"
                " read in full."
            )
        return " ".join(parts)


def _find_span_basis(U: Matrix, error: Vector, *, cut: float) -> Matrix:
    """Orthonormal basis, as columns, of what columns (rows of U) span beyond their errors."""
    with pin_one_thread():
        _, S, Z = np.linalg.svd(U, full_matrices=False)
    return Z[: int((max(cut * S.max(initial=0.0), float(error.max()) * len(U) ** 0.5) < S).sum())].T


def _judge(session: _VocabularySession, rng: np.random.Generator) -> Recovery[Head]:
    head = session.head
    if head is None:
        return session.conclude(SPENT)
    with session.oracle.phase("verify"):
        batches = session.sequences(rng)
        seen = examine_model(
            session.oracle,
            head,
            tolerance=session.tolerance,
            roundoff=session.roundoff,
            rng=rng,
            batches=batches,
        )
    ending = settle(
        session.oracle,
        seen,
        lines=VOCABULARY,
        refuse=lambda: session.refuse(*_doubt(session, seen)),
        blind=session.blind,
    )
    return session.conclude(ending)


def _doubt(session: _VocabularySession, seen: Examination) -> tuple[Status, Counterexample | None]:
    """Why fresh answers disagree, with the case against the class where nothing else explains
    it.
    """
    if session.blind or seen.fresh.relative <= 1e3 * session.error:
        return Status.SATURATED, None
    if seen.fresh.relative <= VOCABULARY.near * session.tolerance:
        return Status.IMPRECISE, None
    return Status.DISAGREES, seen.worst
