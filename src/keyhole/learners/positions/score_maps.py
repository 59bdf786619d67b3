r"""Keys and queries of a head from the weights its rows read.

$z = V_h(F - b) = \sum_i \alpha_i W_v n_i$ is solved for the weights of all but zero tokens. Then
$\ell_i - \ell_N = \log \alpha_i/\alpha_N$ is linear in the keys at a fixed last token, and in the
queries once keys are known. Every equation is weighed by how surely its logarithm is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Indices, Mask, Matrix, Vector
from keyhole.learners.fitting import solve_by_factor
from keyhole.learners.positions.placed import Placed
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.oracles.own_time import work_apart

_MANY = 1024  # unknowns, whose singular values take long
_DAMPING = 1e-13  # of these
_FAINT = 1e-9  # directions that scores tell worse are left at zero: noise would fill them


@dataclass(frozen=True, eq=False, slots=True)
class ReadScores:
    """Scores less that of the last token, with the weight of each."""

    values: Float[Array, "questions tokens"]
    weights: Float[Array, "questions tokens"]


def read_scores(V: Matrix, M: Matrix, placed: Placed, form: ScoreForm) -> ReadScores:
    """Score differences that one head shows; those that cannot be read weigh nothing."""
    tokens = np.einsum("rd,qtd->qrt", V @ M, placed.n)
    inverse = np.asarray(np.linalg.pinv(tokens), dtype=np.float64)
    shares = np.einsum("qtr,qr->qt", inverse, placed.answers @ V.T)
    read = weigh_logarithms(shares, np.linalg.norm(inverse, axis=2))
    zeros = placed.length - placed.n.shape[1]
    # Zero tokens score 0 where nothing but products of queries and keys scores.
    if form.cap is not None and zeros and not form.biased and form.columns.shape[1] == 0:
        logs = np.log(np.where(shares > 0, shares, 1.0))
        rest = np.maximum(1.0 - shares.sum(axis=1, keepdims=True), 1e-300)
        whole = form.uncap(logs - np.log(rest / zeros))
        values = whole[:, :-1] - whole[:, -1:]
        return ReadScores(np.where(read.weights > 0, values, 0.0), read.weights)
    return read


def weigh_logarithms(shares: Matrix, blurred: Matrix) -> ReadScores:
    """Score differences from weights of tokens, and how rounding blurs these."""
    doubt = blurred / np.maximum(np.abs(shares), 1e-140)
    readable = (shares[:, :-1] > 0) & (shares[:, -1:] > 0)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    certain = 1.0 / np.sqrt(doubt[:, :-1] ** 2 + doubt[:, -1:] ** 2)
    values = logs[:, :-1] - logs[:, -1:]
    return ReadScores(np.where(readable, values, 0.0), np.where(readable, certain, 0.0))


def _solve_weighted(A: Matrix, read: ReadScores, less: Array | float = 0.0) -> Vector:
    weights = read.weights.ravel()
    rows = A * weights[:, None]
    wanted = (read.values - less).ravel() * weights
    if rows.shape[1] > _MANY:
        return work_apart(lambda: solve_by_factor(rows, wanted, _DAMPING))
    scale = np.linalg.norm(rows, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    rows /= scale
    return work_apart(lambda: np.linalg.lstsq(rows, wanted, rcond=_FAINT)[0]) / scale


def _append_one(vectors: Array, form: ScoreForm) -> Array:
    """Vectors with a 1 behind them, which a bias acts on."""
    if not form.biased:
        return vectors
    return np.concatenate([vectors, np.ones((*vectors.shape[:-1], 1))], axis=-1)


def find_slopes(read: ReadScores, placed: Placed) -> Vector:
    """The vector that scores at one fixed last token are products with."""
    apart = placed.n[:, :-1] - placed.n[:, -1:]
    return _solve_weighted(apart.reshape(-1, apart.shape[2]), read)


@dataclass(frozen=True, eq=False, slots=True)
class Keys:
    """Key map, key bias, and what displacement adds."""

    Wk: Matrix
    bk: Vector
    tau: Vector


def solve_plain_keys(
    read: ReadScores,
    placed: Placed,
    group: Indices,
    rank: int,
    form: ScoreForm,
    known: Matrix | None = None,
) -> Keys:
    """Keys without rotary positions: the row space of the slopes at several last tokens.

    Args:
        read: score differences.
        placed: the questions they were read from.
        group: which last token each question has.
        rank: size of the head.
        form: of its scores.
        known: slopes at further last tokens.
    """
    apart = placed.n[:, :-1] - placed.n[:, -1:]
    count, tokens, D = apart.shape
    groups = int(group.max()) + 1
    A = np.zeros((count, tokens, groups, D))
    A[np.arange(count), :, group] = apart
    added = form.columns[placed.at[:, :-1]] - form.columns[0]
    whole = np.concatenate([A.reshape(count, tokens, -1), added], axis=2)
    found = _solve_weighted(whole.reshape(count * tokens, -1), read)
    slopes = found[: groups * D].reshape(groups, D)
    slopes = slopes if known is None else np.concatenate([slopes, known])
    rows = np.linalg.svd(slopes, full_matrices=False)[2][:rank]
    # Keys of tokens in the ball then have the size that scores of 1 are made of.
    return Keys(rows * np.sqrt(rank), np.zeros(rank), found[groups * D :])


def solve_rotary_keys(
    read: ReadScores, placed: Placed, group: Indices, rank: int, form: ScoreForm
) -> Keys:
    r"""Keys of rotary positions, in the gauge where the query of the first last token is (1, 0).

    What is not turned shows as one slope per last token, whose row space is that of its keys.
    """
    first = group == 0
    turned = 2 * len(form.frequencies)
    K, slope = _solve_turned(_pick(read, first), placed.pick(first), rank, form)
    Wk, bk = np.zeros((rank, placed.n.shape[2])), np.zeros(rank)
    Wk[:turned] = K[:, : Wk.shape[1]]
    bk[:turned] = K[:, Wk.shape[1]] if form.biased else 0.0
    if turned == rank:
        return Keys(Wk, bk, np.zeros(int(form.sinks)))
    slopes = [slope]
    for g in range(1, int(group.max()) + 1):
        chosen = group == g
        slopes.append(_solve_rest(_pick(read, chosen), placed.pick(chosen), Wk, bk, form, turned))
    rows = np.linalg.svd(np.stack(slopes), full_matrices=False)[2][: rank - turned]
    Wk[turned:] = rows * np.sqrt(rank)
    return Keys(Wk, bk, np.zeros(int(form.sinks)))


def _pick(read: ReadScores, chosen: Mask) -> ReadScores:
    return ReadScores(read.values[chosen], read.weights[chosen])


def _solve_turned(
    read: ReadScores, placed: Placed, rank: int, form: ScoreForm
) -> tuple[Matrix, Vector]:
    vectors = _append_one(placed.n, form)
    angles = placed.at[..., None] * form.frequencies
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
    features = np.einsum("qtw,qtd->qtwd", waves, vectors)
    features = (features[:, :-1] - features[:, -1:]).reshape(read.values.size, -1)
    turned = waves.shape[-1]
    if turned < rank:
        apart = (placed.n[:, :-1] - placed.n[:, -1:]).reshape(read.values.size, -1)
        features = np.concatenate([features, apart], axis=1)
    found = _solve_weighted(features, read)
    K = found[: turned * vectors.shape[2]].reshape(turned, -1)
    return K, found[K.size :]


def _solve_rest(
    read: ReadScores, placed: Placed, Wk: Matrix, bk: Vector, form: ScoreForm, turned: int
) -> Vector:
    """The slope of what is not turned at another last token, beside its turned query."""
    keys = form.turn(placed.n @ Wk.T + bk, placed.at)[..., :turned]
    apart = placed.n[:, :-1] - placed.n[:, -1:]
    features = np.concatenate([keys[:, :-1] - keys[:, -1:], apart], axis=2)
    return _solve_weighted(features.reshape(read.values.size, -1), read)[turned:]


def solve_queries(read: ReadScores, placed: Placed, keys: Keys, form: ScoreForm) -> HeadScores:
    """Query map and bias, linear once keys are known."""
    rank, D = keys.Wk.shape
    seen = form.turn(placed.n @ keys.Wk.T + keys.bk, placed.at) / np.sqrt(rank)
    apart = seen[:, :-1] - seen[:, -1:]
    last = _append_one(placed.n[:, -1], form)
    features = np.einsum("qtr,qd->qtrd", apart, last).reshape(read.values.size, -1)
    added = (form.columns[placed.at[:, :-1]] - form.columns[0]) @ keys.tau[: form.columns.shape[1]]
    found = _solve_weighted(features, read, added).reshape(rank, -1)
    bq = found[:, D] if form.biased else np.zeros(rank)
    return HeadScores(found[:, :D], bq, keys.Wk, keys.bk, keys.tau)
