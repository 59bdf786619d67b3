r"""Two nearly equal heads with opposite read-outs, beside heads that are known.

With $W_\pm = W \pm G/2$ and $V_\pm = \pm V$ they switch together on hard pairs of tokens, and no
plateau shows them. On $[y + x; y]$ they answer, up to $G^3$, $V^\top x\,(x^\top G y)\,\sigma'(a)$
with $a = x^\top W y$. A second copy of the first token makes that $\sigma'(a + \log 2)$, and
$$\sqrt{\sigma'(a + \log 2) / (2\,\sigma'(a))} = (1 + e^a) / (1 + 2 e^a)$$
tells a, hence $V^\top x\,(x^\top G y)$. The known heads are kept out in two ways: by x that none of
them reads, and, along the directions left, by last tokens at which all of them are hard. Only the
product of V and G acts to first order; how it is shared out is for a fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.joint_heads.hard_pairs import LoneTokens
from keyhole.learners.several_heads.heads_fit import (
    ask_soft_sequences,
    fit_heads_jointly,
    is_small_model,
)
from keyhole.learners.several_heads.pairs import Unresolved, logistic
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_ZERO = 1e-9  # of the largest read-out: directions that no head reads
_SEEN = 1e-12  # of what lone tokens answer: a part that is no rounding
_MOVE = 0.3  # of the last token
_HARD = 45.0  # a score at which the other token weighs nothing
_STILL_HARD = 38.0
_SOFT = 8.0  # scores that two answers tell
_LONG = 400.0  # last tokens over usual ones
_DRAWS = 60
_SIZED = (0.3, 3.0)
_SCALES = 4
_SHIFTS = (0.02, -0.02, 0.05, -0.05, 0.1, -0.1)
_SHARES = (1e-2, 50.0)  # of V, between which a share is looked for
_LEAN = 1.0  # c at which the two lean well apart
_LONGEST = 1e4  # a score of such tokens, were they not orthogonal
_SHARED = 4  # times that V and G are shared out anew
_SETTLED = 1e-6  # a change of V that answers at small scores do not tell


@dataclass(frozen=True, eq=False, slots=True)
class Products:
    """What pairs of tokens told of the two heads.

    Args:
        scores: x . W y, rows x by columns y.
        acts: V^T x (x . G y), rows x by columns y by outputs.
    """

    scores: Matrix
    acts: Stack


@dataclass(frozen=True, eq=False, slots=True)
class PairReader:
    """Reads the two heads on pairs of tokens.

    Args:
        oracle: the black box, counting.
        lone: what lone tokens told.
        others: the heads that are known.
    """

    oracle: Counted
    lone: LoneTokens
    others: MultiHead

    def measure_past_last(self, x: Matrix, last: Matrix, copies: int) -> Matrix:
        """Answers past what the last tokens do alone."""
        X = np.stack([*[last + x] * copies, last], axis=1)
        return self.oracle.ask(X) - self.lone.answer(last)

    def measure(self, x: Matrix, last: Matrix, scores: Vector) -> Matrix:
        """V^T x (x . G y) where the scores are known already."""
        return self.measure_past_last(x, last, 1) / _lean(scores)[:, None]

    def read(self, x: Matrix, last: Matrix, others: Vector | float = 0.0) -> tuple[Vector, Matrix]:
        """Scores, and V^T x (x . G y), of every row.

        Args:
            x: first tokens less the last.
            last: last tokens.
            others: what the known heads add.
        """
        once, twice = (self.measure_past_last(x, last, copies) - others for copies in (1, 2))
        rows, largest = np.arange(len(x)), np.abs(once).argmax(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            root = np.sqrt(twice[rows, largest] / once[rows, largest] / 2.0)
            scores = np.log((1.0 - root) / (2.0 * root - 1.0))
            return scores, once / _lean(scores)[:, None]


def _lean(scores: Vector) -> Vector:
    """The slope of the logistic function."""
    return logistic(scores) * logistic(-scores)


def add_opposed_pair(
    oracle: Counted, lone: LoneTokens, others: MultiHead, rng: np.random.Generator
) -> MultiHead:
    """The known heads and the two, roughly.

    Raises:
        Unresolved: no such pair shows.
    """
    reader = PairReader(oracle, lone, others)
    with pin_one_thread():
        silent, loud = _split_directions(others)
        Y = np.linalg.qr(rng.normal(size=(others.width, others.width)))[0].T
        size, seen = _read_silent(reader, silent, Y)
        V, G = _share_products(reader, silent, Y, size, seen)
        basis = _SilentParts(silent, Y, size, seen.scores, V, G)
        rows = [_read_loud(reader, basis, n, rng) for n in loud]
    return _add_heads(others, basis, loud, rows)


def _split_directions(others: MultiHead) -> tuple[Matrix, Matrix]:
    """Orthonormal directions that none of the heads reads, and the others."""
    left, values, _ = np.linalg.svd(np.concatenate(list(others.V), axis=1))
    rank = int((values > _ZERO * values[0]).sum())
    if others.width - rank < 2:
        raise Unresolved
    return left[:, rank:].T, left[:, :rank].T


def _read_silent(reader: PairReader, X: Matrix, Y: Matrix) -> tuple[float, Products]:
    """What pairs along directions that no other head reads tell, and the length of their tokens."""
    others = reader.others
    size = float(np.sqrt(others.width / np.linalg.norm(others.W, axis=(1, 2)).max()))
    for _ in range(_SCALES):
        x, y = size * np.repeat(X, len(Y), axis=0), size * np.tile(Y, (len(X), 1))
        scores, acts = reader.read(x, y)
        if (
            not np.abs(acts[np.isfinite(scores)]).max(initial=0.0)
            > _SEEN * np.abs(reader.lone.answer(size * Y)).max()
        ):
            raise Unresolved
        typical = rms(scores[np.isfinite(scores)])
        if _SIZED[0] <= typical <= _SIZED[1] and np.isfinite(scores).all():
            table = scores.reshape(len(X), len(Y)) / size**2
            return size, Products(table, acts.reshape(len(X), len(Y), -1) / size**3)
        size /= np.sqrt(np.clip(typical, 0.05, 20.0)) if np.isfinite(scores).all() else 2.0
    raise Unresolved


def _share_products(
    reader: PairReader, X: Matrix, Y: Matrix, size: float, seen: Products
) -> tuple[Matrix, Matrix]:
    """V^T x and x . G y of every x, shared out as at the x that acts most.

    What sums x_i + x_0 answer beyond both is $V^T x_i (x_0 G y) + V^T x_0 (x_i G y)$.
    """
    most = int((seen.acts**2).sum(axis=(1, 2)).argmax())
    parts = [_split_rank_one(each) for each in seen.acts]
    G0, V0 = parts[most]
    shares = np.ones(len(X))
    for i in np.delete(np.arange(len(X)), most):
        x = size * np.broadcast_to(X[i] + X[most], Y.shape)
        scores = size**2 * (seen.scores[i] + seen.scores[most])
        both = reader.measure(x, size * Y, scores) / size**3
        crossed = both - seen.acts[i] - seen.acts[most]
        shares[i] = _find_share(crossed, _multiply(G0, parts[i][1]), _multiply(parts[i][0], V0))
    V = np.stack([s * V for s, (_, V) in zip(shares, parts, strict=True)])
    return V, np.stack([G / s for s, (G, _) in zip(shares, parts, strict=True)])


def _split_rank_one(table: Matrix) -> tuple[Vector, Vector]:
    """Two vectors whose product the table nearly is, the second of length one."""
    left, values, right = np.linalg.svd(table, full_matrices=False)
    long: Vector = values[0] * left[:, 0]
    unit: Vector = right[0]
    return long, unit


def _multiply(G: Vector, V: Vector) -> Matrix:
    return G[:, None] * V


def _find_share(wanted: Matrix, first: Matrix, second: Matrix) -> float:
    """The s with s first + second / s nearly as wanted."""
    terms = np.stack([first.ravel(), second.ravel()], axis=1)
    one, other = np.linalg.lstsq(terms, wanted.ravel(), rcond=None)[0].tolist()
    sizes = np.linalg.norm(terms, axis=0)
    # The larger of both terms tells it better.
    share = one if abs(one) * sizes[0] > abs(other) * sizes[1] else 1.0 / (other or np.inf)
    if share == 0.0 or not np.isfinite(share):
        raise Unresolved
    return share


@dataclass(frozen=True, eq=False, slots=True)
class _SilentParts:
    """What is known along silent directions: x . W y, V^T x and x . G y."""

    X: Matrix
    Y: Matrix
    size: float
    scores: Matrix
    V: Matrix
    G: Matrix


def _read_loud(
    reader: PairReader, basis: _SilentParts, n: Vector, rng: np.random.Generator
) -> tuple[Vector, Vector, Vector]:
    """What is known of silent directions, along one that other heads read.

    Raises:
        Unresolved: at no last token these are all hard and the two are not.
    """
    for _ in range(_DRAWS):
        along = 1.5 * rng.normal(size=len(basis.X))
        z, last = n + along @ basis.X, rng.normal(size=len(n))
        last *= _HARD / np.abs(_score_others(reader.others, z, last)).min()
        if np.linalg.norm(last) > _LONG * basis.size:
            continue
        if _read_hard(reader, basis, z, last[None]) is None:
            continue
        found = _read_around(reader, basis, z, last, along)
        if found is not None:
            return found
    raise Unresolved


def _score_others(others: MultiHead, x: Vector, last: Vector) -> Vector:
    return np.einsum("d,hde,e->h", x, others.W, last)


def _read_hard(
    reader: PairReader, basis: _SilentParts, x: Vector, last: Matrix
) -> tuple[Vector, Matrix] | None:
    """Scores and products at last tokens near one at which the other heads are hard; or None."""
    others = reader.others
    own = _score_others(others, x, last[0])
    if np.abs(own).min() < _STILL_HARD:
        return None
    on = np.einsum("h,d,hdo->o", (own > 0).astype(np.float64), x, others.V)
    scores, acts = reader.read(np.broadcast_to(x, last.shape), last, on)
    if not (np.abs(scores) < _SOFT).all():
        return None
    acting = np.abs(acts * _lean(scores)[:, None]).max()
    seen = acting > _SEEN * np.abs(reader.lone.answer(last)).max()
    return (scores, acts) if seen else None


def _read_around(
    reader: PairReader, basis: _SilentParts, z: Vector, last: Vector, along: Vector
) -> tuple[Vector, Vector, Vector] | None:
    """The same from moves of one last token, and of z along the x that acts most; or None."""
    step = _MOVE * basis.size
    nearby = last + np.concatenate([np.zeros_like(basis.Y[:1]), step * basis.Y])
    first = _read_hard(reader, basis, z, nearby)
    if first is None:
        return None
    table = (first[1][1:] - first[1][0]) / step
    most = int((basis.V**2).sum(axis=1).argmax())
    for shift in _SHIFTS:
        second = _read_hard(reader, basis, z + shift * basis.X[most], nearby)
        if second is None:
            continue
        G, V = _split_rank_one(table)
        moved: Matrix = (second[1][1:] - second[1][0]) / step
        crossed = moved - table - shift**2 * _multiply(basis.G[most], basis.V[most])
        one, other = _multiply(G, basis.V[most]), _multiply(basis.G[most], V)
        share = _find_share(crossed / shift, one, other)
        row = (first[0][1:] - first[0][0]) / step - along @ basis.scores
        return row, V / share - along @ basis.V, share * G - along @ basis.G
    return None


def _add_heads(
    others: MultiHead, basis: _SilentParts, loud: Matrix, rows: list[tuple[Vector, Vector, Vector]]
) -> MultiHead:
    """The known heads and the two, their read-outs as large as the largest of the others."""
    X = np.concatenate([basis.X, loud])
    known = basis.scores, basis.V, basis.G
    found = [
        np.concatenate([part, *(row[i][None] for row in rows)]) for i, part in enumerate(known)
    ]
    W, V, G = X.T @ found[0] @ basis.Y, X.T @ found[1], X.T @ found[2] @ basis.Y
    share = float(np.abs(others.V).max() / np.abs(V).max())
    return put_pair(others, W, share * V, G / share)


def put_pair(others: MultiHead, W: Matrix, V: Matrix, G: Matrix) -> MultiHead:
    """The heads and two more, W + G/2 with V and W - G/2 with -V."""
    both = np.stack([W + G / 2, W - G / 2]), np.stack([V, -V])
    h = None if others.h is None else np.concatenate([others.h, np.zeros((2, others.width))])
    return MultiHead(
        np.concatenate([others.W, both[0]]),
        np.concatenate([others.V, both[1]]),
        h,
        others.c,
        others.U,
    )


def find_opposed_pair(
    oracle: Counted, lone: LoneTokens, others: MultiHead, rng: np.random.Generator
) -> MultiHead:
    """The known heads and the two, all fitted to soft answers.

    Raises:
        Unresolved: no such pair shows, or there are too many parameters to fit.
    """
    if not is_small_model(put_pair(others, others.W[0], others.V[0], others.W[0])):
        raise Unresolved
    with oracle.phase("apart"):
        rough = add_opposed_pair(oracle, lone, others, rng)
    with oracle.phase("polish"):
        asked = ask_soft_sequences(oracle, rough, rng)
    model = fit_heads_jointly(_refit_others(rough, asked), asked, EPS)
    for _ in range(_SHARED):
        with oracle.phase("apart"):
            share = _measure_share(PairReader(oracle, lone, others), model, rng)
        model = _share_out(model, share)
        if abs(share - 1.0) <= _SETTLED:
            break
        model = fit_heads_jointly(model, asked, EPS)
    return model


def _measure_share(reader: PairReader, model: MultiHead, rng: np.random.Generator) -> float:
    r"""By how much V is to be larger, and G smaller.

    At $x^\top W y = 0$ the two answer $s\,V^\top x \tanh(c / s)$ with $4 c = x^\top G y$: for y so
    long that c is of order one that tells s.
    """
    others, pair = _split_pair(model)
    silent = _split_directions(others)[0]
    x = silent[int(((silent @ pair.V[0]) ** 2).sum(axis=1).argmax())]
    row = x @ pair.W.mean(axis=0)
    y = rng.normal(size=len(x))
    y -= (y @ row) / (row @ row) * row
    lean = float(x @ (pair.W[0] - pair.W[1]) @ y) / 4.0
    # Weights that are off by 1e-9 move longer tokens away from the middle of both heads.
    squared = min(_LEAN / abs(lean), _LONGEST / float(np.linalg.norm(row) * np.linalg.norm(y)))
    long, c = np.sqrt(squared), squared * abs(lean)
    seen = reader.measure_past_last(long * x[None], long * y[None], 1)[0] / long
    V = x @ pair.V[0]
    return _solve_share(float(seen @ V / (V @ V) * np.sign(lean)), c)


def _solve_share(seen: float, c: float) -> float:
    """The s with s tanh(c / s) = seen; 1 where that tells none."""
    from scipy.optimize import brentq

    def miss(share: float) -> float:
        return share * float(np.tanh(c / share)) - seen

    # It rises with s, from 0 to c.
    if not miss(_SHARES[0]) < 0.0 < miss(_SHARES[1]):
        return 1.0
    return float(brentq(miss, *_SHARES, xtol=1e-15, rtol=4.0 * EPS))


def _split_pair(model: MultiHead) -> tuple[MultiHead, MultiHead]:
    """All heads but the last two, and these."""
    W, V, h = model.W, model.V, model.h
    others = MultiHead(W[:-2], V[:-2], None if h is None else h[:-2], model.c, model.U)
    return others, MultiHead(W[-2:], V[-2:])


def _refit_others(model: MultiHead, asked: list[tuple[Stack, Matrix]]) -> MultiHead:
    """The model, its other heads fitted to what the two leave: they were read beside these."""
    others, pair = _split_pair(model)
    left = [(X, answers - pair(X)) for X, answers in asked]
    others = fit_heads_jointly(others, left, EPS)
    return put_pair(others, pair.W.mean(axis=0), pair.V[0], pair.W[0] - pair.W[1])


def _share_out(model: MultiHead, share: float) -> MultiHead:
    """The model with V of its last two heads so many times as large, and G smaller."""
    others, pair = _split_pair(model)
    G = pair.W[0] - pair.W[1]
    return put_pair(others, pair.W.mean(axis=0), share * pair.V[0], G / share)
