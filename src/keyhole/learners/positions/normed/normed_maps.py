r"""Keys, queries and gains of a head with normed queries and keys.

Scores are $\ell = \hat q^\top R(\Delta) \hat k$ with $\hat k = Bn/\rho(n)$, $\rho$ the size of
what is normed, and $\hat q$ likewise.

Zero tokens score 0, so that scores are read absolutely. A token n that is asked in several
situations (displacements, or last tokens without positions) has one $\rho$: $\ell_g \rho = u_g n$
is linear and homogeneous in the $u_g$ and $\rho$, which is eliminated. $\rho^2$ is a quadratic form
of $Bn$ then, and tokens of the size of $\sqrt\epsilon$ tell its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Indices, Matrix, Stack, Vector
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.placed import Placed
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.learners.positions.score_maps import ReadScores
from keyhole.oracles.own_time import work_apart

_POSITIVE = 0.9  # share of tokens whose sizes a right solution makes positive
_FAINT = 1e-9
_LEAST = 1e-3  # of the largest entry of a form: what is read roughly may be negative


@dataclass(frozen=True, eq=False, slots=True)
class NormedMap:
    r"""Queries or keys up to what their gains are.

    Args:
        B: the map before the size is divided by.
        S: the form that the size is made of, $\rho^2 = (Bn)^\top S (Bn) + \epsilon$.
    """

    B: Matrix
    S: Matrix

    def apply(self, n: Array, eps: float) -> Array:
        """What tokens are read as."""
        made = n @ self.B.T
        square = ((made @ self.S) * made).sum(axis=-1, keepdims=True)
        return made / np.sqrt(np.maximum(square, 0.0) + eps)


def read_absolute_scores(V: Matrix, M: Matrix, placed: Placed) -> ReadScores:
    """Scores of all tokens that one head shows, those of zero tokens being 0."""
    tokens = np.einsum("rd,qtd->qrt", V @ M, placed.n)
    inverse = np.asarray(np.linalg.pinv(tokens), dtype=np.float64)
    shares = np.einsum("qtr,qr->qt", inverse, placed.answers @ V.T)
    rest = 1.0 - shares.sum(axis=1, keepdims=True)
    readable = (shares > 0) & (rest > 0)
    blurred = np.linalg.norm(inverse, axis=2)
    doubt = (blurred / np.where(readable, shares, 1.0)) ** 2
    doubt += (blurred**2).sum(axis=1, keepdims=True) / np.where(rest > 0, rest, 1.0) ** 2
    zeros = placed.length - placed.n.shape[1]
    odds = np.where(readable, shares, 1.0) * zeros / np.where(rest > 0, rest, 1.0)
    return ReadScores(np.log(odds), np.where(readable, 1.0 / np.sqrt(doubt), 0.0))


@dataclass(frozen=True, eq=False, slots=True)
class Situations:
    """Tokens, each asked in several situations.

    Args:
        n: tokens.
        features: what scores times sizes are linear in (tokens x situations x unknowns).
        scores: of every token in every situation.
        weights: how surely each is read.
    """

    n: Matrix
    features: Float[Array, "tokens situations unknowns"]
    scores: Matrix
    weights: Matrix

    def solve(self) -> tuple[Vector, Vector]:
        """The unknowns, and the size of every token; both up to one positive number.

        Raises:
            Unsplit: sizes would be negative.
        """
        scores = self.scores * self.weights
        features = self.features * self.weights[..., None]
        length = np.maximum((scores**2).sum(axis=1), 1e-300)
        along = np.einsum("jg,jgu->ju", scores, features) / length[:, None]
        left = (features - scores[..., None] * along[:, None]).reshape(-1, features.shape[2])
        found = work_apart(lambda: np.linalg.svd(left, full_matrices=False)[2][-1])
        sizes = along @ found
        sign = np.sign(np.median(sizes))
        if (sign * sizes > 0).mean() < _POSITIVE:
            raise Unsplit
        return sign * found, sign * sizes


@dataclass(frozen=True, eq=False, slots=True)
class Shrunk:
    """Scores of tokens, and of the same tokens made smaller by a share (tokens x readings)."""

    full: Matrix
    small: Matrix
    share: float

    def read_eps(self, sizes: Vector) -> float:
        """The eps that sizes have in them.

        Raises:
            Unsplit: scores grow faster than tokens.
        """
        ratio = (self.full * self.small).sum(axis=1) / (self.small**2).sum(axis=1)
        eps = self.share**2 * sizes**2 * (ratio**2 - 1.0) / (1.0 - self.share**2)
        found = float(np.median(eps))
        if not found > 0:
            raise Unsplit
        return found


def solve_key_map(asked: Situations, shrunk: Shrunk, form: ScoreForm, rank: int) -> NormedMap:
    """Keys from tokens in several situations."""
    found, sizes = asked.solve()
    rows = found.reshape(-1, asked.n.shape[1])
    if not form.rotary:
        rows = np.linalg.svd(rows, full_matrices=False)[2][:rank]
    return _find_form(rows, asked.n, sizes, shrunk, form)


def solve_query_map(
    scores: ReadScores, keys: Stack, last: Matrix, shrunk: Shrunk, form: ScoreForm
) -> NormedMap:
    """Queries from scores of tokens whose keys are known, as last tokens see them."""
    features = np.einsum("qta,qd->qtad", keys, last).reshape(*scores.values.shape, -1)
    found, sizes = Situations(last, features, scores.values, scores.weights).solve()
    return _find_form(found.reshape(keys.shape[2], -1), last, sizes, shrunk, form)


def _find_form(B: Matrix, n: Matrix, sizes: Vector, shrunk: Shrunk, form: ScoreForm) -> NormedMap:
    """The form of the sizes, scaled so that its eps is that of the norm."""
    eps = shrunk.read_eps(sizes[: len(shrunk.full)])
    square = np.maximum(sizes**2 - eps, 1e-9 * sizes**2)
    made, rank = n @ B.T, len(B)
    rows, columns = _list_entries(rank, form)
    twice = np.where(rows == columns, 1.0, 2.0)
    features = twice * made[:, rows] * made[:, columns] / square[:, None]
    entries = np.linalg.lstsq(features, np.ones(len(n)), rcond=_FAINT)[0]
    S = np.zeros((rank, rank))
    S[rows, columns] = S[columns, rows] = entries
    return NormedMap(B * np.sqrt((form.head_eps or 0.0) / eps), S)


def count_entries(rank: int, form: ScoreForm) -> int:
    """How many numbers such a form has."""
    return len(_list_entries(rank, form)[0])


def _list_entries(rank: int, form: ScoreForm) -> tuple[Indices, Indices]:
    """Entries of a form: all, or those of single pairs where these are turned."""
    if not form.rotary:
        return np.triu_indices(rank)
    first = np.arange(rank // 2)
    second = first + rank // 2
    return np.concatenate([first, first, second]), np.concatenate([first, second, second])


def join_maps(queries: NormedMap, keys: NormedMap, form: ScoreForm) -> HeadScores:
    """Maps and gains that score so."""
    rank = len(keys.B)
    pairs = len(form.frequencies)
    if pairs:
        Q, K = queries.B.copy(), keys.B.copy()
        gains = np.ones((2, rank))
        for f in range(pairs):
            at = [f, f + pairs]
            forms = [rank * part.S[np.ix_(at, at)] for part in (queries, keys)]
            turn = _find_axes(forms)
            sizes = [_take_positive(np.diag(turn @ one @ turn.T)) for one in forms]
            Q[at] = np.sqrt(sizes[0])[:, None] * (turn @ Q[at])
            K[at] = np.sqrt(sizes[1])[:, None] * (turn @ K[at])
            gains[0, at] = np.sqrt(rank / sizes[0])
            gains[1, at] = 1.0 / np.sqrt(sizes[1])
    else:
        roots = [_find_root(rank * part.S) for part in (queries, keys)]
        core = np.sqrt(rank) * np.linalg.inv(roots[0]).T @ np.linalg.inv(roots[1])
        first, g, second = np.linalg.svd(core)
        Q, K = first.T @ roots[0] @ queries.B, second @ roots[1] @ keys.B
        gains = np.stack([np.sqrt(g)] * 2)
    none = np.zeros(rank)
    return HeadScores(Q, none, K, none, np.zeros(0), gains[0], gains[1])


def _find_axes(forms: list[Matrix]) -> Matrix:
    """The turn that makes two forms of a pair diagonal; the longer one tells it."""
    longest = max(forms, key=lambda one: abs(_measure_length(one)))
    axes = np.linalg.eigh(longest)[1].T
    return axes * np.array([[1.0], [np.sign(np.linalg.det(axes))]])


def _measure_length(form: Matrix) -> float:
    return float(np.hypot(form[0, 0] - form[1, 1], 2.0 * form[0, 1]) / np.trace(form))


def _take_positive(sizes: Vector) -> Vector:
    return np.maximum(sizes, _LEAST * np.abs(sizes).max())


def _find_root(form: Matrix) -> Matrix:
    r"""C with $C^\top C$ the form."""
    sizes, axes = np.linalg.eigh(form)
    return np.sqrt(_take_positive(sizes))[:, None] * axes.T
