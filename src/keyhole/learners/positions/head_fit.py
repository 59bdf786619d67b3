r"""The fit of one head to all answers, which no other head takes part in.

$V_h[F_q - b - M m_q(\theta)] = 0$ with $m_q = \sum_i \alpha_i n_i$ holds for the rows of one head
and its own scores $\theta$ alone. Of the matrix in brackets, one row per question, rank many
singular values vanish at the truth; their sum of squares is made small by Gauss-Newton in $\theta$,
the rows eliminated (variable projection, Kaufman's form). How far the vanishing values fall below
the next is a verdict on the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Indices, Mask, Matrix, Stack, Vector
from keyhole.learners.fitting import solve_by_factor
from keyhole.learners.positions.placed import Placed, join_placed
from keyhole.learners.positions.question_design import is_fitted_in_stages
from keyhole.learners.positions.score_form import HeadScores, ScoreForm
from keyhole.learners.positions.score_maps import (
    Keys,
    find_slopes,
    read_scores,
    solve_plain_keys,
    solve_queries,
    solve_rotary_keys,
)
from keyhole.oracles.own_time import check_own_time, work_apart

_STEPS = 25
DAMPING = 1e-11
_DONE = 1e-15
_SLOW = 0.7  # a step that leaves more than this, below the next line, is rounding
_NEAR = 1e-9
_NEAR_ROUNDINGS = 1e3  # the same line in roundings of coarse answers
PATIENCE = 6  # steps in which what is left must halve
_GAP = 1e6  # between vanishing and other singular values of a head that is right
_COARSE_GAP = 1e-3  # the same over the rounding
_WRONG_GAP = 200.0  # no head that is wrong was seen to show more than 100
_BLUNT = 3e-13  # what a fit that went to its end does not leave
_FINE = 1e-13  # of answers in float64
_TOGETHER = 64  # questions


@dataclass(frozen=True, eq=False, slots=True)
class FittedHead:
    """A head that was fitted: scores, rows, gap of singular values, what is left, gap wanted."""

    scores: HeadScores
    V: Matrix
    gap: float
    left: float
    wanted: float = _GAP

    @property
    def found(self) -> bool:
        """Whether the head explains all answers."""
        return self.gap > self.wanted


def is_coarse(roundoff: float) -> bool:
    """Whether answers are rounded to less than float64."""
    return roundoff > _FINE


def needs_more(head: FittedHead | None, form: ScoreForm, roundoff: float) -> bool:
    """Whether further questions are asked about a head.

    Where biases of keys are large few weights are read, and a fit to these ends before the last
    digits do.
    """
    blunt = form.key_biased and not is_coarse(roundoff)
    return head is None or not head.found or (blunt and head.left > _BLUNT)


@dataclass(frozen=True, eq=False, slots=True)
class _PlacedWeights:
    """Weights of the tokens of placed questions, and what they came from."""

    raw_queries: Matrix
    raw_keys: Stack
    queries: Matrix
    keys: Stack
    shares: Matrix
    slopes: Matrix
    zero_keys: Matrix
    zero_shares: Matrix
    zero_slopes: Matrix


def fit_head(
    start: HeadScores,
    questions: list[Placed],
    M: Matrix,
    form: ScoreForm,
    *,
    rank: int | None = None,
    roundoff: float = EPS,
    steps: int = _STEPS,
) -> FittedHead:
    """Gauss-Newton from a start.

    Args:
        start: scores to begin with.
        questions: with their answers.
        M: the sum of all value maps.
        form: of the scores.
        rank: number of rows that read the head; the size of its keys when absent.
        roundoff: of the answers.
        steps: how many are taken at most.
    """
    rank = len(start.Wk) if rank is None else rank
    fit = _HeadFit(questions, M, form, rank)
    scores, parts = start, fit.decompose(start)
    left = fit.measure(parts[1])
    trail = [left]
    near = max(_NEAR, _NEAR_ROUNDINGS * roundoff)
    for _ in range(steps):
        check_own_time()
        step = fit.choose_step(scores, *parts)
        moved = fit.find_lower(scores, step, left)
        if moved is None:
            break
        scores, parts, lower = moved
        slow, left = lower > _SLOW * left and lower < near, lower
        trail.append(left)
        # A right start falls faster and faster; a wrong wiring creeps.
        creeps = len(trail) > PATIENCE and left > 0.5 * trail[-PATIENCE]
        if slow or creeps or left < _DONE:
            break
    gap = float(parts[1][-rank - 1] / max(parts[1][-rank], 1e-300))
    wanted = _GAP
    if is_coarse(roundoff):
        wanted = min(_GAP, max(_WRONG_GAP, _COARSE_GAP / roundoff))
    return FittedHead(scores, parts[2][-rank:], gap, left, wanted)


@dataclass(frozen=True, eq=False, slots=True)
class AskedHead:
    """Questions that tell keys and queries of every head.

    Args:
        keys: at a few fixed last tokens.
        groups: which last token each of them has.
        queries: with a last token each.
        first: at one last token, asked before rows were known; None where there are none.
    """

    keys: list[Placed]
    groups: list[Indices]
    queries: list[Placed]
    first: Placed | None = None

    @property
    def all(self) -> list[Placed]:
        """All questions."""
        return [*self.keys, *self.queries, *([] if self.first is None else [self.first])]

    @property
    def largest_weight(self) -> float:
        """Of all questions: one over the smallest usual size of answers."""
        return max(float(placed.weight.max()) for placed in self.all)


def measure_head(
    V: Matrix,
    asked: AskedHead,
    M: Matrix,
    form: ScoreForm,
    *,
    roundoff: float,
    deviation: float = 0.0,
) -> FittedHead:
    """Keys, then queries by linear equations, then a fit of both and of the rows.

    Errors that do not shrink with answers, of some standard deviation, blur small ones more.
    """
    roundoff = max(roundoff, deviation * asked.largest_weight)
    placed, group = join_placed(asked.keys), np.concatenate(asked.groups)
    read = read_scores(V, M, placed, form)
    staged = is_fitted_in_stages(form, M.shape[1], len(V))
    if form.rotary:
        found = solve_rotary_keys(read, placed, group, len(V), form)
        if staged:
            V, found = _fit_keys(found, asked.keys, M, form, roundoff=roundoff)
    else:
        known = None
        if asked.first is not None:
            known = find_slopes(read_scores(V, M, asked.first, form), asked.first)[None]
        found = solve_plain_keys(read, placed, group, len(V), form, known)
    own = join_placed(asked.queries)
    start = solve_queries(read_scores(V, M, own, form), own, found, form)
    # Nearly as good as a fit of all would be, and that takes eight times as long.
    steps = 0 if staged else _STEPS
    return fit_head(start, asked.all, M, form, roundoff=roundoff, steps=steps)


def _fit_keys(
    start: Keys, questions: list[Placed], M: Matrix, form: ScoreForm, *, roundoff: float
) -> tuple[Matrix, Keys]:
    """Rows and keys of a head with rotary positions, from questions at one last token.

    Its query is the one that the keys to begin with are solved for.
    """
    rank, D = start.Wk.shape
    known = np.sqrt(rank) * np.repeat([1.0, 0.0], rank // 2)
    scores = HeadScores(np.zeros((rank, D)), known, start.Wk, start.bk, start.tau)
    head = fit_head(scores, questions, M, replace(form, still=True), roundoff=roundoff)
    return head.V, Keys(head.scores.Wk, head.scores.bk, head.scores.tau)


@dataclass(frozen=True, eq=False, slots=True)
class _HeadFit:
    questions: list[Placed]
    M: Matrix
    form: ScoreForm
    rank: int

    def measure(self, values: Vector) -> float:
        """Root mean square of the values that should vanish."""
        return float(np.sqrt(np.mean(values[-self.rank :] ** 2)))

    def decompose(self, scores: HeadScores) -> tuple[Matrix, Vector, Matrix]:
        """Singular values and vectors of what a head with these scores leaves."""
        left: list[Matrix] = []
        for placed in self.questions:
            shares = attend_placed(scores, placed, self.form).shares
            mean = np.einsum("qt,qtd->qd", shares, placed.n)
            left.append((placed.answers - mean @ self.M.T) * placed.weight[:, None])
        return np.linalg.svd(np.concatenate(left), full_matrices=False)

    def find_lower(
        self, scores: HeadScores, step: Vector, left: float
    ) -> tuple[HeadScores, tuple[Matrix, Vector, Matrix], float] | None:
        """The first point along a step that leaves less."""
        values, free = scores.flatten(), list_free(scores, self.form)
        for share in 0.4 ** np.arange(10):
            moved = values.copy()
            moved[free] -= share * step
            found = scores.refill(moved)
            try:
                parts = self.decompose(found)
            # A step far out of range has scores that are no numbers.
            except np.linalg.LinAlgError:
                continue
            if self.measure(parts[1]) < left:
                return found, parts, self.measure(parts[1])
        return None

    def choose_step(self, scores: HeadScores, U: Matrix, s: Vector, Vt: Matrix) -> Vector:
        """A Gauss-Newton step of the free parameters."""
        Wv = Vt[-self.rank :] @ self.M
        J = np.concatenate(
            [derive_left(scores, part, Wv, self.form) for part in self._list_parts()]
        )
        fixed = U[:, : -self.rank]
        # Row by row: all at once would be as large as the table again.
        for row in range(self.rank):
            J[:, row] -= fixed @ (fixed.T @ J[:, row])
        left = U[:, -self.rank :] * s[-self.rank :]
        table = J.reshape(-1, J.shape[2])
        return work_apart(lambda: solve_by_factor(table, left.ravel(), DAMPING))

    def _list_parts(self) -> list[Placed]:
        """The questions, few at a time: derivatives take many times their room."""
        return [
            placed.pick(slice(start, start + _TOGETHER))
            for placed in self.questions
            for start in range(0, len(placed.n), _TOGETHER)
        ]


def list_free(scores: HeadScores, form: ScoreForm) -> Mask:
    """Which parameters are fitted."""
    free = (
        np.full(scores.Wq.size, not form.still),
        np.full(scores.bq.size, form.biased and not form.still),
        np.full(scores.Wk.size, True),
        np.full(scores.bk.size, form.key_biased),
        np.full(scores.tau.size + scores.q_gain.size + scores.k_gain.size, True),
    )
    return np.concatenate(free)


def derive_left(scores: HeadScores, placed: Placed, Wv: Matrix, form: ScoreForm) -> Stack:
    """Derivatives of what a head leaves by its free parameters (questions x rows of Wv x free)."""
    count, rows = len(placed.n), len(Wv)
    seen = attend_placed(scores, placed, form)
    mean = np.einsum("qt,qtd->qd", seen.shares, placed.n)
    values, middle = placed.n @ Wv.T, mean @ Wv.T
    by_score = -(seen.shares * placed.weight[:, None])[..., None] * (values - middle[:, None])
    by_zero = (seen.zero_shares * placed.weight[:, None])[..., None] * middle[:, None]
    capped, zero_capped = (
        by_score * seen.slopes[..., None],
        by_zero * seen.zero_slopes[..., None],
    )
    root = np.sqrt(len(scores.Wk))
    parts: list[Stack] = []
    by_gain: Stack = np.zeros((count, rows, 0))
    if not form.still:
        by_query = np.einsum("qte,qta->qea", capped, seen.keys)
        if form.key_biased:
            by_query += np.einsum("qne,na->qea", zero_capped, seen.zero_keys)
        by_query, by_gain = form.derive_norm(
            by_query / root, seen.raw_queries[:, None], scores.q_gain
        )
        parts += [np.einsum("qea,qd->qead", by_query, placed.n[:, -1]).reshape(count, rows, -1)]
        parts += [by_query] if form.biased else []
    turned = form.turn(seen.queries[:, None] + np.zeros((1, placed.at.shape[1], 1)), -placed.at)
    to_key, to_gain = form.derive_norm(turned / root, seen.raw_keys, scores.k_gain)
    each = (to_key[..., None] * placed.n[:, :, None]).reshape(count, placed.n.shape[1], -1)
    parts.append(capped.swapaxes(1, 2) @ each)
    if form.key_biased:
        far = np.arange(placed.length)
        back = form.turn(seen.queries[:, None] + np.zeros((1, len(far), 1)), -far[None])
        by_bias = np.einsum("qte,qta->qea", capped, turned)
        by_bias += np.einsum("qne,qna->qea", zero_capped, back)
        parts.append(by_bias / root)
    if scores.tau.size:
        np.add.at(by_zero, (np.arange(count)[:, None], placed.at), by_score)
        parts.append(np.einsum("qne,nk->qek", by_zero, form.list_columns(placed.length)))
    parts += [by_gain, capped.swapaxes(1, 2) @ to_gain]
    return np.concatenate(parts, axis=2)


def attend_placed(scores: HeadScores, placed: Placed, form: ScoreForm) -> _PlacedWeights:
    """The weights that a head gives to the tokens of placed questions."""
    root = np.sqrt(len(scores.Wk))
    raw_queries = placed.n[:, -1] @ scores.Wq.T + scores.bq
    raw_keys = placed.n @ scores.Wk.T + scores.bk
    queries = form.norm_head(raw_queries, scores.q_gain)
    keys = form.turn(form.norm_head(raw_keys, scores.k_gain), placed.at)
    own, slopes = form.limit(np.einsum("qr,qtr->qt", queries, keys) / root)
    columns = form.list_columns(placed.length)
    far = np.arange(len(columns))
    zero_keys = form.turn(np.tile(scores.bk, (len(far), 1)), far)
    zero, zero_slopes = form.limit(queries @ zero_keys.T / root)
    added = columns @ scores.tau
    own, zero = own + added[placed.at], zero + added
    zero[np.arange(len(zero))[:, None], placed.at] = -np.inf
    top = np.maximum(own.max(axis=1), zero.max(axis=1))[:, None]
    own, zero = np.exp(own - top), np.exp(zero - top)
    total = (own.sum(axis=1) + zero.sum(axis=1))[:, None]
    return _PlacedWeights(
        raw_queries,
        raw_keys,
        queries,
        keys,
        own / total,
        slopes,
        zero_keys,
        zero / total,
        zero_slopes,
    )
