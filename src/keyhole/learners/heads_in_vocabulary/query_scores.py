r"""Scores of all heads under every query token, once values are known.

The sequence [a_1; ..; a_\tau; b] answers, past what b answers alone, $\sum_{h,k} \alpha_{hk}
V_h^\top(a_k - b)$: o equations for $H\tau$ shares, whose logarithms over the share of b are scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread
from keyhole.learners.heads_in_vocabulary.copied_pairs import PairedHeads
from keyhole.learners.vocabulary.equations import Column
from keyhole.learners.vocabulary.hull import Rows, Vocabulary, append_one
from keyhole.learners.vocabulary.token_values import Asker, Values
from keyhole.models import MultiHead

_SHARE = 0.6  # of the rank of values, that is read at once
_RANK = 1e-6  # of the largest value, below which a direction is none
_ROUNDINGS = 4.0  # of the largest answer, in a difference of two
_RESIDUAL = 1e-8  # of the values: what single tokens answer beyond those of all heads


def assemble_heads(
    asker: Asker, values: Values, paired: PairedHeads, roundoff: float, rng: np.random.Generator
) -> MultiHead:
    """The sum of heads on coordinates of the hull, from scores under all basis tokens.

    Args:
        asker: of vocabulary rows.
        values: what single tokens answer.
        paired: what copies told under one of them.
        roundoff: relative rounding of answers.
        rng: draws which tokens are read together.
    """
    vocabulary = asker.vocabulary
    D = vocabulary.Z[paired.others] - vocabulary.Z[paired.b]
    with pin_one_thread():
        V = np.stack([solve_square(D, each) for each in paired.changes])
        first = solve_square(D, paired.logits.T).T
        reader = _ScoreReader(asker, values, V, roundoff)
        columns = np.concatenate([first[None], reader.read(paired.others, rng)])
        at = append_one(vocabulary.Z[np.append(paired.b, paired.others)])
        solved = [solve_square(at, each) for each in columns.swapaxes(0, 1)]
    both = np.asarray(solved, dtype=np.float64)
    beyond = values.total - V.sum(axis=0)
    acts = np.abs(beyond).max() > _RESIDUAL * max(np.abs(values.total).max(), np.abs(V).max())
    W, h = both[:, :-1].swapaxes(1, 2), both[:, -1]
    return MultiHead(W, V, h, values.c, beyond if acts else None)


def solve_square(A: Matrix, B: Matrix) -> Matrix:
    """X with A X = B."""
    return np.asarray(np.linalg.solve(A, B), dtype=np.float64)


@dataclass(frozen=True, eq=False, slots=True)
class _ScoreReader:
    """Reads scores of tokens by all heads."""

    asker: Asker
    values: Values
    V: Stack
    roundoff: float

    def read(self, queries: Rows, rng: np.random.Generator) -> Stack:
        """Vectors W_h z + h_h: query tokens by heads by coordinates."""
        columns = {int(b): [Column(int(b)) for _ in self.V] for b in queries}
        basis = self.asker.vocabulary.basis
        many = self._count_read_at_once()
        groups: list[Rows] = []
        for b in queries:
            others = rng.permutation(basis[basis != b])
            groups += [np.append(others[i : i + many], b) for i in range(0, len(others), many)]
        # Sequences of one length are asked together.
        for size in sorted({len(group) for group in groups}):
            table = np.array([group for group in groups if len(group) == size])
            for rows, answer in zip(table, self.asker.ask(table), strict=True):
                self._take(columns[int(rows[-1])], rows[:-1], answer)
        whole = np.eye(self.asker.vocabulary.size)
        return np.array([[one.solve(whole)[0] for one in each] for each in columns.values()])

    def _count_read_at_once(self) -> int:
        flat = self.V.reshape(-1, self.V.shape[2])
        rank = int(np.linalg.matrix_rank(flat, tol=_RANK * max(float(np.abs(flat).max()), 1e-300)))
        return max(1, int(_SHARE * rank / len(self.V)))

    def _take(self, columns: list[Column], tokens: Rows, answer: Vector) -> None:
        """Equations of the columns of one query token, from one answer."""
        Z, b = self.asker.vocabulary.Z, columns[0].b
        D = Z[tokens] - Z[b]
        alone = self.values.alone(Z[[b]])[0]
        noise = _ROUNDINGS * self.roundoff * float(np.abs(answer).max() + np.abs(alone).max())
        logits, errors = _read_shares(D @ self.V, answer - alone, noise)
        for column, own, error in zip(columns, logits, errors, strict=True):
            for difference, t, e in zip(D, own.tolist(), error.tolist(), strict=True):
                if np.isfinite(t):
                    column.take(difference, t, e)


def _read_shares(changes: Stack, beyond: Vector, noise: float) -> tuple[Matrix, Matrix]:
    """Logs of shares over that of the last token, and their errors: heads by tokens.

    Args:
        changes: values of tokens less that of the last one, by heads.
        beyond: an answer, less what the last token answers alone.
        noise: rounding of the answer.
    """
    heads, many, outputs = changes.shape
    rows = changes.reshape(-1, outputs)
    decoder = np.asarray(np.linalg.pinv(rows.T, rcond=1e-14), dtype=np.float64)
    shares: Matrix = (decoder @ beyond).reshape(heads, many)
    rest: Matrix = 1.0 - shares.sum(axis=1, keepdims=True)
    doubt: Matrix = noise * np.abs(decoder).sum(axis=1).reshape(heads, many)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(shares / rest), doubt / shares + doubt.sum(axis=1, keepdims=True) / rest


def lift_heads(vocabulary: Vocabulary, model: MultiHead) -> MultiHead:
    """The sum of heads on tokens that acts as this one does on coordinates."""
    h = np.zeros(model.W.shape[:2]) if model.h is None else model.h
    nothing = np.zeros(model.outputs)
    c = nothing if model.c is None else model.c
    parts = zip(model.W, h, model.V, strict=True)
    # What is not averaged goes with the first head.
    lifted = [
        vocabulary.lift(*part, nothing if at else c, None if at else model.U)
        for at, part in enumerate(parts)
    ]
    W, V = (np.stack([getattr(head, name) for head in lifted]) for name in ("W", "V"))
    U = lifted[0].U
    if lifted[0].h is None:
        return MultiHead(W, V, U=U)
    biases = np.stack([head.h for head in lifted if head.h is not None])
    constant = sum((head.c for head in lifted if head.c is not None), nothing)
    return MultiHead(W, V, biases, constant, U)
