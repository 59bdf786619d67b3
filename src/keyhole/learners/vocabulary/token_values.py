"""What single tokens answer, and what of it attention averages."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Sequences, Vector, pin_one_thread
from keyhole.learners.base import Counterexample
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.vocabulary.hull import Rows, Table, Vocabulary, append_one, least_squares
from keyhole.oracles import Counted

EXTRA_TOKENS = 4  # single tokens beyond the basis, to check that answers are affine
PAIRS = 4  # pairs asked at once, in both orders, to see whether attention and a residual act
TRIES = 8  # rounds of pairs when a residual hides the values
_NUMBERS = 2_000_000  # numbers in one batch
_SEEN = 1e-3  # least share at which a pair tells the value of its first token
_CLEAR = 0.05  # the same where a residual hides the values, which pairs then have to give
_RESIDUAL = 1e-7  # gap, relative to the values, from which a residual acts


class Asker:
    """Asks sequences of vocabulary rows, and remembers which rows were asked."""

    def __init__(self, oracle: Counted, vocabulary: Vocabulary) -> None:
        self.oracle = oracle
        self.vocabulary = vocabulary
        self.used: set[int] = set()

    def ask(self, table: Table) -> Matrix:
        """Answers to the sequences of rows that `table` lists, one per line."""
        self.used.update(table.ravel().tolist())
        E = self.vocabulary.E
        many = max(1, _NUMBERS // (table.shape[1] * E.shape[1]))
        return np.concatenate(
            [self.oracle.ask(E[table[at : at + many]]) for at in range(0, len(table), many)]
        )


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """What single tokens answer, and what of it attention averages.

    Args:
        total: V + U on coordinates.
        V: what attention averages.
        c: the constant, at the mean token.
        loss: roundings by which V is known less well than the answers.
    """

    total: Matrix
    V: Matrix
    c: Vector
    loss: float = 1.0

    @property
    def U(self) -> Matrix | None:
        """The residual, where one acts."""
        return None if self.V is self.total else self.total - self.V

    def alone(self, z: Matrix) -> Matrix:
        """What tokens answer alone."""
        return z @ self.total + self.c


@dataclass(eq=False, slots=True)
class ValueReader:
    """Reads the values of tokens; `probe` is one sequence asked on the way, with its answer."""

    asker: Asker
    roundoff: float
    rng: np.random.Generator
    probe: tuple[Sequences, Matrix] | None = field(default=None, init=False)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens that may be asked."""
        return self.asker.vocabulary

    def read(self) -> Values:
        """The affine map that single tokens answer with.

        Raises:
            NotAHead: they are not answered by one.
        """
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        others = self.rng.permutation(np.setdiff1d(np.arange(len(Z)), basis))[:EXTRA_TOKENS]
        rows = np.concatenate([basis, others])
        answers = self.asker.ask(rows[:, None])
        self.probe = self.vocabulary.E[rows[:1], None], answers[:1]
        with pin_one_thread():
            map_ = least_squares(append_one(Z[basis]), answers[: len(basis)], 1e-15)
        total, c = map_[:-1], map_[-1]
        # Of a single token nothing can be averaged.
        values = Values(total, total if total.size else np.zeros_like(total), c)
        predicted = values.alone(Z[rows])
        gaps = np.abs(answers - predicted).max(axis=1)
        if (gaps > max(1e-9, 1e3 * self.roundoff) * np.abs(answers).max()).any():
            at = int(gaps.argmax())
            tokens = self.vocabulary.E[rows[at : at + 1]]
            raise NotAHead(Counterexample(tokens, answers[at], predicted[at]))
        return values

    # [a; b] answers f(b) + s w and [a; a; b] f(b) + 2s/(1+s) w, with w = V^T(a - b) and s the share
    # of a in [a; b]. So their quotient q gives s = 2/q - 1 and w = (first)/s, whether or not a
    # residual acts.
    def _measure_pairs(self, values: Values, a: Rows, b: Rows) -> tuple[Vector, Matrix]:
        """Shares of a in [a; b], zero where unreadable, and the values V^T(a - b)."""
        alone = values.alone(self.vocabulary.Z[b])
        once = self.asker.ask(np.stack([a, b], axis=1)) - alone
        twice = self.asker.ask(np.stack([a, a, b], axis=1)) - alone
        size = np.einsum("qo,qo->q", once, once)
        seen = np.abs(once).max(axis=1) > 1e4 * self.roundoff * float(np.abs(alone).max())
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(seen, 2.0 * size / np.einsum("qo,qo->q", once, twice) - 1.0, 0.0)
        share = np.where(share > _SEEN, share, 0.0)
        return share, once / np.where(share > 0, share, 1.0)[:, None]

    def separate(self, values: Values) -> Values:
        """What of the read-out attention averages: all of it, unless pairs show a residual."""
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        for _ in range(TRIES):
            first, second = np.array([self.rng.permutation(basis)[:2] for _ in range(PAIRS)]).T
            a = np.concatenate([first, second])
            b = np.concatenate([second, first])
            share, w = self._measure_pairs(values, a, b)
            if share.any():
                break
        else:
            return Values(values.total, np.zeros_like(values.total), values.c)
        expected = (Z[a] - Z[b]) @ values.total
        # A small share magnifies errors of w twice: by its own error, and by dividing by it.
        gap = np.abs(w - expected).max(axis=1) * share**2
        size = max(float(np.abs(w[share > 0]).max()), float(np.abs(expected).max()))
        floor = _RESIDUAL * size + 1e3 * self.roundoff * (size + float(np.abs(values.c).max()))
        if not (gap > floor).any():
            return values
        return self._separate_residual(values, Z[a] - Z[b], share, w)

    def _separate_residual(self, values: Values, D: Matrix, weight: Vector, T: Matrix) -> Values:
        """V apart from U: values T of differences D until these span the hull.

        Raises:
            Saturated: they do not, since in too many pairs one token has all of the attention.
        """
        Z, basis = self.vocabulary.Z, self.vocabulary.basis
        for _ in range(TRIES):
            clear = weight > _CLEAR
            if np.linalg.matrix_rank(D[clear], tol=1e-6 * float(np.abs(Z).max())) == Z.shape[1]:
                with pin_one_thread():
                    scaled = weight[clear, None] ** 2
                    V = least_squares(scaled * D[clear], scaled * T[clear], 1e-12)
                return Values(values.total, V, values.c, loss=1.0 / _CLEAR)
            a = self.rng.permutation(basis)
            b = np.roll(a, 1)
            share, w = self._measure_pairs(values, a, b)
            D = np.concatenate([D, Z[a] - Z[b]])
            T = np.concatenate([T, w])
            weight = np.concatenate([weight, share])
        raise Saturated
