r"""All heads fitted to all answers together, each answer weighted by how it was rounded.

Heads that were fitted one by one take what lone tokens are answered for exact. Here everything is
free: one Gauss-Newton step or two from there give the likeliest numbers, whose covariance is
$s^2 (J^\top J)^+$ with J the derivatives over the size of a rounding and s what is left of that.
The pseudo-inverse leaves out what no answer shows: invertible maps of values, and of queries and
keys, which move numbers as little as they can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Array, Indices, Matrix, Vector
from keyhole.learners.positions.coarse.gauge_directions import list_gauge_directions
from keyhole.learners.positions.grouped.sharing import HeadMaps
from keyhole.learners.positions.head_fit import attend_placed, derive_left, list_free
from keyhole.learners.positions.placed import Logged, Placed
from keyhole.learners.positions.score_form import ScoreForm
from keyhole.oracles.own_time import check_own_time, work_apart

_STEPS = 3
_SETTLED = 0.999  # of what is left, after a step that changed nothing
_TOGETHER = 32  # questions whose derivatives are held at once
_SMALLEST = 1e-3  # of the usual answer: smaller ones lie near a rounding of what was added up
_RAISED = 1e-9  # of the mean variance: what no answer shows has none
_MANY = 6000  # numbers, whose covariance takes minutes


@dataclass(frozen=True, eq=False, slots=True)
class JointHeads:
    """Heads fitted together.

    Args:
        heads: their maps.
        constant: of all answers.
        spread: covariance of all numbers, those of a head after those of another: outputs, values,
            scores; the constant last.
    """

    heads: list[HeadMaps]
    constant: Vector
    spread: Matrix


def fit_jointly(
    heads: list[HeadMaps],
    constant: Vector,
    log: list[Logged],
    form: ScoreForm,
    *,
    roundoff: float,
    deviation: float = 0.0,
) -> JointHeads | None:
    """The likeliest heads near those given; None where no step leaves less.

    Args:
        heads: to begin with.
        constant: of all answers.
        log: all questions.
        form: of the scores.
        roundoff: of the answers.
        deviation: of errors that do not shrink with answers.
    """
    form = _reach_longest(form, max(one.placed.length for one in log))
    known = [one for one in log if one.placed.length <= form.longest]
    fit = _JointFit(known, form, roundoff, deviation, bool(constant.any()))
    if fit.count_numbers(heads) > _MANY:
        return None
    left = fit.measure(heads, constant)
    best: JointHeads | None = None
    for _ in range(_STEPS):
        moved = fit.step(heads, constant)
        after = fit.measure(moved.heads, moved.constant)
        if not after < left and best is not None:
            break
        if not after <= left:
            return None
        best, settled = moved, after > _SETTLED * left
        heads, constant, left = moved.heads, moved.constant, after
        if settled:
            break
    return None if best is None else replace(best, spread=best.spread * fit.judge(best, left))


def _reach_longest(form: ScoreForm, length: int) -> ScoreForm:
    """The form for sequences of that length, unless only a table knows what they score."""
    columns = form.columns
    slopes = -np.arange(float(max(length, len(columns))))[:, None]
    for longer in (slopes[:, :0], slopes):
        if np.array_equal(longer[: len(columns)], columns):
            return replace(form, columns=longer)
    return form


@dataclass(frozen=True, eq=False, slots=True)
class _JointFit:
    log: list[Logged]
    form: ScoreForm
    roundoff: float
    deviation: float
    biased: bool

    def count_numbers(self, heads: list[HeadMaps]) -> int:
        """Numbers that are fitted."""
        each = [
            head.Wo.size + head.Wv.size + int(list_free(head.scores, self.form).sum())
            for head in heads
        ]
        return sum(each) + self.biased * len(heads[0].Wo)

    def measure(self, heads: list[HeadMaps], constant: Vector) -> float:
        """Sum of squares of what is left, in roundings."""
        left = [self._leave(one.placed, heads, constant) / self._size(one) for one in self.log]
        return float(sum((part**2).sum() for part in left))

    def judge(self, found: JointHeads, left: float) -> float:
        """The variance of a rounding beside that of an evenly spread one."""
        answers = sum(one.raw.size for one in self.log)
        free = len(found.spread) - len(list_gauge_directions(found.heads, self.form, self.biased))
        return left / max(1, answers - free)

    def step(self, heads: list[HeadMaps], constant: Vector) -> JointHeads:
        """Heads after a Gauss-Newton step, with the covariance there."""
        count = self.count_numbers(heads)
        normal, pull = np.zeros((count, count)), np.zeros(count)
        for one in self.log:
            for start in range(0, len(one.raw), _TOGETHER):
                check_own_time()
                some = slice(start, start + _TOGETHER)
                placed, size = one.placed.pick(some), self._size(one)[some]
                J = self._derive(placed, heads) / size[..., None]
                J = J.reshape(-1, count)
                left = (self._leave(placed, heads, constant) / size).ravel()
                normal += J.T @ J
                pull += J.T @ left
        hidden = list_gauge_directions(heads, self.form, self.biased)
        weight = float(np.trace(normal)) / count
        spread = work_apart(lambda: _invert(normal + weight * hidden.T @ hidden))
        spread -= hidden.T @ hidden / weight
        moved, constant = _move_heads(heads, constant, spread @ pull, self.form)
        return JointHeads(moved, constant, spread)

    def _size(self, one: Logged) -> Matrix:
        """Standard deviation of a rounding: even over the space between neighbours."""
        usual = float(np.sqrt(np.mean(one.raw**2)))
        binary = np.exp2(np.floor(np.log2(np.maximum(np.abs(one.raw), _SMALLEST * usual))))
        return np.hypot(2.0 * self.roundoff * binary / np.sqrt(12.0), self.deviation)

    def _leave(self, placed: Placed, heads: list[HeadMaps], constant: Vector) -> Matrix:
        left = placed.answers - constant
        for head in heads:
            shares = attend_placed(head.scores, placed, self.form).shares
            left = left - np.einsum("qt,qtd->qd", shares, placed.n) @ (head.Wo @ head.Wv).T
        return left

    def _derive(self, placed: Placed, heads: list[HeadMaps]) -> Array:
        """Derivatives of answers by all numbers (questions x outputs x numbers)."""
        questions, outputs = placed.answers.shape
        parts: list[Array] = []
        for head in heads:
            shares = attend_placed(head.scores, placed, self.form).shares
            mean = np.einsum("qt,qtd->qd", shares, placed.n)
            by_out = np.einsum("oc,qr->qocr", np.eye(outputs), mean @ head.Wv.T)
            by_value = np.einsum("or,qd->qord", head.Wo, mean)
            parts += [part.reshape(questions, outputs, -1) for part in (by_out, by_value)]
            parts.append(-derive_left(head.scores, placed, head.Wo @ head.Wv, self.form))
        if self.biased:
            parts.append(np.broadcast_to(np.eye(outputs), (questions, outputs, outputs)))
        return np.concatenate(parts, axis=2)


def _move_heads(
    heads: list[HeadMaps], constant: Vector, step: Vector, form: ScoreForm
) -> tuple[list[HeadMaps], Vector]:
    """Heads and the constant after a step of all numbers."""
    moved: list[HeadMaps] = []
    for head in heads:
        free = list_free(head.scores, form)
        ends = np.cumsum([head.Wo.size, head.Wv.size, int(free.sum())])
        out, value, score, step = np.split(step, ends)
        values = head.scores.flatten()
        values[free] += score
        moved.append(
            HeadMaps(
                head.Wo + out.reshape(head.Wo.shape),
                head.Wv + value.reshape(head.Wv.shape),
                head.scores.refill(values),
            )
        )
    return moved, constant + step if len(step) else constant


def draw_likely(
    found: JointHeads, form: ScoreForm, *, count: int, rng: np.random.Generator
) -> list[tuple[list[HeadMaps], Vector]]:
    """Heads and constants that are as likely as those found, by the covariance of all numbers."""
    size = len(found.spread)
    raised = found.spread + _RAISED * np.trace(found.spread) / size * np.eye(size)
    root: Matrix = work_apart(lambda: np.asarray(np.linalg.cholesky(raised), dtype=np.float64))
    steps: Matrix = rng.normal(size=(count, size)) @ root.T
    return [_move_heads(found.heads, found.constant, step, form) for step in steps]


def _invert(matrix: Matrix) -> Matrix:
    from scipy import linalg

    solve: Any = linalg.cho_solve
    factor: Any = linalg.cho_factor
    return np.asarray(solve(factor(matrix), np.eye(len(matrix))), dtype=np.float64)


def list_bars(found: JointHeads, form: ScoreForm, basis: Matrix) -> Mapping[str, Array]:
    """Standard errors of the tensors of the layer, by name.

    Args:
        found: heads fitted together.
        form: of their scores.
        basis: of tokens, in whose coordinates keys, queries and values were fitted.
    """
    bars: dict[str, list[Array]] = {}
    start = 0
    for head in found.heads:
        scores = head.scores
        free = list_free(scores, form)
        fitted = np.concatenate([np.full(head.Wo.size + head.Wv.size, True), free])
        at = start + np.cumsum(fitted) - 1
        start += int(fitted.sum())
        slopes = form.columns.shape[1] > 1
        parts = (
            ("Wo", head.Wo, None),
            ("Wv", head.Wv, basis),
            ("Wq", scores.Wq, basis),
            ("bq", scores.bq, None),
            ("Wk", scores.Wk, basis),
            ("bk", scores.bk, None),
            ("table", scores.tau, form.columns if slopes else None),
        )
        for name, part, made in parts:
            own, at = at[: part.size].reshape(part.shape), at[part.size :]
            if part.size and fitted[len(fitted) - len(at) - part.size]:
                bars.setdefault(name, []).append(_list_deviations(found.spread, own, made))
    known = {name: np.stack(parts) for name, parts in bars.items()}
    rest = len(found.spread) - start
    return known | ({"bo": np.sqrt(np.diag(found.spread)[-rest:])} if rest else {})


def _list_deviations(spread: Matrix, at: Indices, made: Matrix | None) -> Array:
    """Standard errors of numbers, or of what a map makes of every row of them."""
    if made is None:
        return np.sqrt(np.diag(spread)[at])
    rows = [
        np.einsum("id,de,ie->i", made, spread[np.ix_(own, own)], made, optimize=True)
        for own in at.reshape(-1, made.shape[1])
    ]
    return np.sqrt(np.maximum(rows, 0.0)).reshape(*at.shape[:-1], -1)
