r"""Read-outs of all outputs from what was asked to measure scores along a combination of them.

With every $W_h$ and $h_h$ known, so are the weights $\alpha^h$ of a sequence, and all its answers
are linear in what is left:
$$F(X) - c = \sum_h \Big(\sum_i \alpha_i^h x_i\Big)^\top V_h + x_N^\top U, \qquad
U + \sum_h V_h = B.$$
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Matrix, Sequences, Stack, Vector, softmax
from keyhole.learners.base import Jumps
from keyhole.learners.joint_heads.hard_pairs import LoneTokens, Unseparated
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_ROOM = 1 << 23  # numbers in the questions that are kept
_SOFT = 30.0  # a score difference at which the fainter token still shows
_ENOUGH = 1e-9  # of the largest singular value: read-outs that show less are not told


@dataclass(slots=True)
class Combination(Counted):
    """One combination of the outputs, counted where the whole is; all of an answer is kept.

    Args:
        direction: the weights of the outputs.
    """

    direction: Vector = field(kw_only=True)
    kept: list[tuple[Stack, Matrix]] = field(default_factory=list[tuple[Stack, Matrix]], init=False)
    _size: int = field(default=0, init=False)

    @property
    def outputs(self) -> int:
        """One number per answer."""
        return 1

    def ask(self, X: Sequences) -> Answers:
        """The combination of every answer."""
        answers = Counted.ask(self, X)
        if self._size < _ROOM:
            self.kept.append((X.copy(), answers))
            self._size += X.size
        return answers @ self.direction[:, None]

    def combine(self, lone: LoneTokens) -> LoneTokens:
        """What lone tokens tell of the combination."""
        along = self.direction[:, None]
        return LoneTokens(lone.c @ along, lone.B @ along)

    def spread_jumps(self, jumps: Jumps, x: Vector, model: MultiHead) -> Jumps:
        """Jumps along the combination as jumps of all outputs: those of x, with their signs."""
        steps = np.einsum("d,hdo->ho", x, model.V)
        switching, idle = steps[: len(jumps.angles)], steps[len(jumps.angles) :]
        signs = np.sign(jumps.sizes[:, 0] * (switching @ self.direction))
        # A head that is switched off was on before; one that never switches counts half.
        start = switching[signs < 0].sum(axis=0) + 0.5 * idle.sum(axis=0)
        return Jumps(jumps.angles, signs[:, None] * switching, start)


def combine_outputs(oracle: Counted, outputs: int, rng: np.random.Generator) -> Combination:
    """A random combination of the outputs."""
    direction = rng.normal(size=outputs)
    direction /= np.linalg.norm(direction)
    return Combination(oracle.inner, oracle.ledger, direction=direction)


def pick_soft_questions(
    model: MultiHead, asked: list[tuple[Stack, Matrix]]
) -> list[tuple[Stack, Matrix]]:
    """The questions no head is hard on, with their answers."""
    chosen: list[tuple[Stack, Matrix]] = []
    for X, answers in asked:
        scores = _take_scores(model, X)
        soft = (scores.max(axis=2) - scores.min(axis=2) <= _SOFT).all(axis=0)
        if soft.any():
            chosen.append((X[soft], answers[soft]))
    return chosen


def solve_all_readouts(
    soft: list[tuple[Stack, Matrix]], lone: LoneTokens, model: MultiHead
) -> MultiHead:
    """The heads with their read-outs into every output, and the residual if there is one.

    Args:
        soft: questions no head is hard on, with all of their answers.
        lone: what lone tokens tell of all outputs.
        model: the heads along the combination.

    Raises:
        Unseparated: the answers that were kept do not tell all read-outs.
    """
    heads, d = model.W.shape[:2]
    parts = heads + (model.U is not None)
    rows, wanted = [np.tile(np.eye(d), parts)], [lone.B]
    for X, answers in soft:
        size = np.linalg.norm(X, axis=2).max(axis=1)[:, None]
        rows.append(_take_means(model, X) / size)
        wanted.append((answers - lone.c) / size)
    A, b = np.concatenate(rows), np.concatenate(wanted)
    found, _, rank, _ = np.linalg.lstsq(A, b, rcond=_ENOUGH)
    if int(rank) < A.shape[1]:
        raise Unseparated("What was asked does not tell the read-outs into all outputs.")
    blocks: Stack = np.asarray(found, dtype=np.float64).reshape(parts, d, -1)
    c = lone.c if lone.c.any() else None
    U = blocks[heads] if model.U is not None else None
    return MultiHead(model.W, blocks[:heads], model.h, c, U)


def _take_scores(model: MultiHead, X: Stack) -> Stack:
    scores = np.einsum("bnd,hde,be->hbn", X, model.W, X[:, -1], optimize=True)
    return scores if model.h is None else scores + np.einsum("bnd,hd->hbn", X, model.h)


def _take_means(model: MultiHead, X: Stack) -> Matrix:
    """The token means of all heads side by side, then the last token where there is a residual."""
    means = np.einsum("hbn,bnd->bhd", softmax(_take_scores(model, X)), X)
    if model.U is not None:
        means = np.concatenate([means, X[:, -1:]], axis=1)
    return means.reshape(len(X), -1)
