"""Tries to find two nearly equal heads with opposite read-outs, and their fit to answers.

Answers at small scores tell only the product of V and G; long tokens tell how it is shared out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector
from keyhole.learners.base import Jumps
from keyhole.learners.joint_heads.hard_pairs import LoneTokens, Unseparated
from keyhole.learners.joint_heads.road import recover_heads_jointly
from keyhole.learners.several_heads.heads_fit import (
    ask_soft_sequences,
    fit_heads_jointly,
    is_small_model,
)
from keyhole.learners.several_heads.opposed_pair import (
    add_opposed_pair,
    put_pair,
    split_directions,
)
from keyhole.learners.several_heads.pairs import Unresolved, logistic
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_TRIES = 3
_SHARES = (1e-4, 1e-2, 0.2, 1.0, 5.0)  # of V, from which a share is looked for
_UNLIKELY = 16.0  # the logarithm of a share
_FINE = 1e-15
_TELLS = 1e-2  # of what is missed with V as it is
_SCORES = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_LEAN = 1.0  # c at which the two lean well apart
_APART = 0.5  # of that: how V and G are shared out is told
_FIRST = 1e4  # a score of long tokens, were they not in the middle of both heads
_LONGER = 30.0
_PER_ENTRY = 1.3  # long pairs for every entry of W
_LENGTHS = 6
_BESIDE = 0.02  # of answers, what such a pair may act beside the others


def find_opposed_pairs(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator
) -> Iterator[tuple[MultiHead, Jumps | None]]:
    """Sums of heads with such a pair, one for every try that shows it, and steps of the others.

    None where answers are coarser than float64, which hide it.
    """
    for _ in range(0 if lone.coarse else _TRIES):
        others, jumps = _read_others(oracle, lone, rng)
        with suppress(Unresolved):
            yield _find_pair(oracle, lone, others, rng), jumps


def find_lone_pair(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator
) -> Iterator[tuple[MultiHead, None]]:
    """Such a pair and no other head, if one try of float64 answers shows it."""
    if lone.coarse:
        return
    with suppress(Unresolved):
        yield _find_pair(oracle, lone, _build_lone_model(lone), rng), None


def _read_others(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator
) -> tuple[MultiHead, Jumps | None]:
    """The heads that switch; none where they are not told apart."""
    with suppress(Unseparated):
        return recover_heads_jointly(oracle, lone, rng, misfit=_BESIDE)
    return _build_lone_model(lone), None


def _build_lone_model(lone: LoneTokens) -> MultiHead:
    """No head, a constant and a residual."""
    d, outputs = lone.B.shape
    U = lone.B if lone.B.any() else None
    return MultiHead(np.zeros((0, d, d)), np.zeros((0, d, outputs)), None, lone.c, U)


def _find_pair(
    oracle: Counted, lone: LoneTokens, others: MultiHead, rng: np.random.Generator
) -> MultiHead:
    """The known heads and the two, all fitted to soft answers.

    Raises:
        Unresolved: no such pair shows, or there are too many parameters to fit.
    """
    V = np.zeros_like(lone.B)
    if not is_small_model(put_pair(others, np.eye(len(V)), V, np.eye(len(V)))):
        raise Unresolved
    with oracle.phase("apart"):
        rough = add_opposed_pair(oracle, lone, others, rng)
    with oracle.phase("polish"):
        asked = ask_soft_sequences(oracle, rough, rng)
    model = fit_heads_jointly(_refit_others(rough, asked), asked, EPS)
    line = _choose_line(others, model, rng)
    longest = _FIRST
    for _ in range(_LENGTHS):
        tokens = line.place_tokens(model, longest)
        with oracle.phase("apart"):
            answers = oracle.ask(tokens.X)
        share = _solve_share(tokens, model, answers - lone.answer(tokens.X[:, -1]))
        # These tell scores along the line more closely than all before: longer ones need it.
        asked.append((tokens.X, answers))
        model = fit_heads_jointly(_share_out(model, share), asked, EPS)
        if abs(tokens.c) >= _APART * share:
            break
        longest *= _LONGER
    with oracle.phase("polish"):
        X = _draw_long_pairs(model, rng)
        asked.append((X, oracle.ask(X)))
    return fit_heads_jointly(model, asked, EPS)


def _draw_long_pairs(model: MultiHead, rng: np.random.Generator) -> Stack:
    """Long pairs at which the two are soft, more than W has entries.

    Short ones show W beside rounding only as far as the two differ.
    """
    W = _split_pair(model)[1].W.mean(axis=0)
    size = (round(_PER_ENTRY * W.size), len(W))
    x, y = rng.normal(size=size), rng.normal(size=size)
    scores = rng.uniform(_SCORES[0], _SCORES[-1], size=len(x))
    return _place_pairs(x, y, x @ W, scores, np.full(len(x), _FIRST))


def _place_pairs(x: Matrix, y: Matrix, rows: Matrix, scores: Vector, longest: Vector) -> Stack:
    """Pairs along x and y, their scores `longest` were they not brought to these.

    Raises:
        Unresolved: a row of scores came out as nothing, or as no number.
    """
    squares = (rows**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        middle = y - ((y * rows).sum(axis=1) / squares)[:, None] * rows
        lengths = np.sqrt(longest / np.linalg.norm(rows, axis=1) / np.linalg.norm(middle, axis=1))
        last = lengths[:, None] * middle + (scores / (lengths * squares))[:, None] * rows
        X = np.stack([last + lengths[:, None] * x, last], axis=1)
    if not np.isfinite(X).all():
        raise Unresolved
    return X


@dataclass(frozen=True, eq=False, slots=True)
class _LongPairs:
    r"""Pairs of tokens along a line, so long that both heads lean apart.

    At $x^\top W y = a$ and $4 c = x^\top G y$ the two answer
    $$V^\top x\, \sinh 2c / (\cosh a + \cosh 2c).$$

    Args:
        X: the pairs, one for each of the scores a.
        x: the first tokens less the last.
        c: how far the heads lean.
    """

    X: Stack
    x: Vector
    c: float


@dataclass(frozen=True, eq=False, slots=True)
class _PairLine:
    """First tokens that no other head reads, and a direction of the last.

    Args:
        x: first token less the last.
        y: the last.
    """

    x: Vector
    y: Vector

    def place_tokens(self, model: MultiHead, longest: float) -> _LongPairs:
        """Tokens whose scores would be so large, were they not in the middle of both heads."""
        pair = _split_pair(model)[1]
        row = self.x @ pair.W.mean(axis=0)
        if not row.any():
            raise Unresolved
        y = self.y - (self.y @ row) / (row @ row) * row
        lean = float(self.x @ (pair.W[0] - pair.W[1]) @ y) / 4.0
        if lean == 0.0:
            raise Unresolved
        # Beyond that the two answer as steps do.
        reach = float(np.linalg.norm(row) * np.linalg.norm(y))
        squared = min(_LEAN / abs(lean), longest / reach)
        x, y, rows = (np.tile(part, (len(_SCORES), 1)) for part in (self.x, y, row))
        X = _place_pairs(x, y, rows, _SCORES, np.full(len(x), squared * reach))
        return _LongPairs(X, np.sqrt(squared) * self.x, squared * lean)


def _choose_line(others: MultiHead, model: MultiHead, rng: np.random.Generator) -> _PairLine:
    pair = _split_pair(model)[1]
    silent = split_directions(others)[0]
    x = silent[int(((silent @ pair.V[0]) ** 2).sum(axis=1).argmax())]
    return _PairLine(x, rng.normal(size=len(x)))


def _solve_share(tokens: _LongPairs, model: MultiHead, answers: Matrix) -> float:
    """By how much V is to be larger, and G smaller; 1 where answers do not tell.

    Raises:
        Unresolved: they are not those of such a pair.
    """
    from scipy.optimize import least_squares

    V = tokens.x @ model.V[-2]
    size = float(np.abs(answers @ V).max())
    if not 0.0 < size < np.inf:
        raise Unresolved
    seen = answers @ V / size
    known = float(V @ V) / size

    def miss(guess: Vector) -> Vector:
        share, c = known * np.exp(guess[0]), tokens.c * np.exp(-guess[0])
        return share * _lean_apart(_SCORES + guess[1], c) - seen

    most = np.array([_UNLIKELY, np.ptp(_SCORES)])
    found = [
        least_squares(
            miss, (np.log(share), 0.0), bounds=(-most, most), xtol=_FINE, ftol=_FINE, gtol=_FINE
        )
        for share in _SHARES
    ]
    best = min(found, key=lambda each: each.cost)
    # A fit that is still wrong shows as a pair of which one part is nothing.
    if abs(best.x[0]) > 0.9 * _UNLIKELY:
        raise Unresolved
    kept = least_squares(lambda a: miss(np.array([0.0, a[0]])), (0.0,))
    return float(np.exp(best.x[0])) if best.cost < _TELLS * kept.cost else 1.0


def _lean_apart(scores: Vector, c: float) -> Vector:
    """The difference of the weights of both heads; small ones keep their digits."""
    apart = logistic(scores + 2.0 * c) - logistic(scores - 2.0 * c)
    small = min(max(c, -1.0), 1.0)
    return np.where(
        abs(c) < 1.0, np.sinh(2.0 * small) / (np.cosh(scores) + np.cosh(2.0 * small)), apart
    )


def _split_pair(model: MultiHead) -> tuple[MultiHead, MultiHead]:
    """All heads but the last two, and these."""
    W, V, h = model.W, model.V, model.h
    others = MultiHead(W[:-2], V[:-2], None if h is None else h[:-2], model.c, model.U)
    return others, MultiHead(W[-2:], V[-2:])


def _refit_others(model: MultiHead, asked: list[tuple[Stack, Matrix]]) -> MultiHead:
    """The model, its other heads fitted to what the two leave: they were read beside these."""
    others, pair = _split_pair(model)
    if len(others.W) == 0:
        return model
    left = [(X, answers - pair(X)) for X, answers in asked]
    others = fit_heads_jointly(others, left, EPS)
    return put_pair(others, pair.W.mean(axis=0), pair.V[0], pair.W[0] - pair.W[1])


def _share_out(model: MultiHead, share: float) -> MultiHead:
    """The model with V of its last two heads so many times as large, and G smaller."""
    others, pair = _split_pair(model)
    G = pair.W[0] - pair.W[1]
    return put_pair(others, pair.W.mean(axis=0), share * pair.V[0], G / share)
