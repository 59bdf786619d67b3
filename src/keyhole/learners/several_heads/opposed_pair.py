r"""Two nearly equal heads with opposite read-outs, alone or beside heads that are known.

With $W_\pm = W \pm G/2$ and $V_\pm = \pm V$ they switch together on hard pairs of tokens, and no
plateau shows them. On $[y + x; y]$ they answer, up to $G^3$, $V^\top x\,(x^\top G y)\,\sigma'(a)$
with $a = x^\top W y$. A second copy of the first token makes that $\sigma'(a + \log 2)$, and
$$\sqrt{\sigma'(a + \log 2) / (2\,\sigma'(a))} = (1 + e^a) / (1 + 2 e^a)$$
tells a, hence $V^\top x\,(x^\top G y)$. The known heads are kept out in two ways: by x that none of
them reads, and, along the directions left, by last tokens at which all of them are hard. Only the
product of V and G acts to first order; how it is shared out is for a fit. A third copy, whose
answer two tell beforehand, shows early whether there are two such heads at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.joint_heads.hard_pairs import LoneTokens
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
_SCALES = 8
_SIZES = 4.0 ** np.arange(-10, 11)  # of tokens, where nothing is known of scores
_FEW = 2  # pairs that are asked at each of these
_FADED = 0.1  # of what pairs act at most
_PROBES = 4  # pairs that tell the size of tokens
_FORETOLD = 1e-2  # of an answer, what a third copy may add to what two foretell
_SHIFTS = (0.02, -0.02, 0.05, -0.05, 0.1, -0.1)
_NEARLY = 1e-7  # of W, the difference of two heads at first


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
        silent, loud = split_directions(others)
        Y = np.linalg.qr(rng.normal(size=(others.width, others.width)))[0].T
        size, seen = _read_silent(reader, silent, Y)
        V, G = _share_products(reader, silent, Y, size, seen)
        basis = _SilentParts(silent, Y, size, seen.scores, V, G)
        rows = [_read_loud(reader, basis, n, rng) for n in loud]
    return _add_heads(others, basis, loud, rows)


def split_directions(others: MultiHead) -> tuple[Matrix, Matrix]:
    """Orthonormal directions that none of the heads reads, and the others."""
    readouts = np.concatenate([np.zeros((others.width, 1)), *others.V], axis=1)
    left, values, _ = np.linalg.svd(readouts)
    rank = int((values > _ZERO * values[0]).sum())
    if others.width - rank < 2:
        raise Unresolved
    return left[:, rank:].T, left[:, :rank].T


def _read_silent(reader: PairReader, X: Matrix, Y: Matrix) -> tuple[float, Products]:
    """What pairs along directions that no other head reads tell, and the length of their tokens."""
    size = _choose_size(reader, X, Y)
    for _ in range(_SCALES):
        x, y = size * np.repeat(X, len(Y), axis=0), size * np.tile(Y, (len(X), 1))
        scores, acts = reader.read(x, y)
        if np.isfinite(scores).all():
            table = scores.reshape(len(X), len(Y)) / size**2
            return size, Products(table, acts.reshape(len(X), len(Y), -1) / size**3)
        size /= np.sqrt(2.0)
    raise Unresolved


def _choose_size(reader: PairReader, X: Matrix, Y: Matrix) -> float:
    """The length of tokens at which some pairs are soft, where they act as two such heads do."""
    count = min(_PROBES, len(X), len(Y))
    X, Y = X[:count], Y[:count]
    size = _guess_size(reader, X, Y)
    for _ in range(_SCALES):
        scores, acts = reader.read(size * X, size * Y)
        clear = np.isfinite(scores)
        if clear.all():
            typical = rms(scores)
            if _SIZED[0] <= typical <= _SIZED[1]:
                _check_foretold(reader, size * X, size * Y, scores, acts)
                return size
            size /= np.sqrt(np.clip(typical, 0.05, 20.0))
        else:
            size /= 2.0
    raise Unresolved


def _guess_size(reader: PairReader, X: Matrix, Y: Matrix) -> float:
    """The length of tokens at which the known heads are soft, or at which pairs act most.

    Raises:
        Unresolved: pairs that other heads should be silent on act at every length.
    """
    if len(reader.others.W):
        largest = np.linalg.norm(reader.others.W, axis=(1, 2)).max()
        return float(np.sqrt(reader.others.width / largest))
    X, Y = X[:_FEW], Y[:_FEW]
    sizes = np.repeat(_SIZES, len(X))[:, None]
    x, y = sizes * np.tile(X, (len(_SIZES), 1)), sizes * np.tile(Y, (len(_SIZES), 1))
    answers = np.abs(reader.measure_past_last(x, y, 1)).max(axis=1) / sizes[:, 0]
    acting = answers.reshape(len(_SIZES), -1).sum(axis=1)
    # Other heads act most where they are hard.
    if not max(acting[0], acting[-1]) < _FADED * acting.max():
        raise Unresolved
    return float(_SIZES[acting.argmax()])


def _check_foretold(reader: PairReader, x: Matrix, y: Matrix, scores: Vector, acts: Matrix) -> None:
    """Raise Unresolved where nothing acts, or three copies do not act as two such heads do."""
    foretold = acts * _lean(scores + np.log(3.0))[:, None]
    size = np.abs(foretold).max()
    if not size > _SEEN * np.abs(reader.lone.answer(y)).max():
        raise Unresolved
    if np.abs(reader.measure_past_last(x, y, 3) - foretold).max() > _FORETOLD * size:
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
    """The known heads and the two, their read-outs as large as the largest of the others.

    Where there are none they are taken to be nearly equal.
    """
    X = np.concatenate([basis.X, loud])
    known = basis.scores, basis.V, basis.G
    found = [
        np.concatenate([part, *(row[i][None] for row in rows)]) for i, part in enumerate(known)
    ]
    W, V, G = X.T @ found[0] @ basis.Y, X.T @ found[1], X.T @ found[2] @ basis.Y
    nearly = float(np.linalg.norm(G) / (_NEARLY * np.linalg.norm(W)))
    share = float(np.abs(others.V).max() / np.abs(V).max()) if len(others.V) else nearly
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
