r"""What kind of relative positions a layer has, and its cap, read by rows that tell heads apart.

All tokens are y but one at displacement k, which is moved a little: $V_h(F - b - My) = \alpha_h(k)
W_v \delta$, so the rows of a head read its weights of equal tokens. Their logarithms are $-mk$ for
ALiBi, waves $\sum_f c_f \cos\theta_f k + s_f \sin\theta_f k$ for rotary positions, anything for a
table, each but for a constant.

Of a pair $(tn, y)$ the logarithm of odds is linear in t without a cap, and $c\tanh((ta + a_0)/c)$
but for a constant with one. Where queries and keys have a norm of their own, weights are the same
for all t > 0: the answer is a straight line in t there, up to the eps of that norm, and another
one where t < 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Float, Mask, Matrix, Stack, Vector
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.models.layers.turning import count_turned, list_frequencies

# What rotary layers are built with; bases between these would need many more questions.
BASES = (1e4, 5e5, 1e6, 1e5, 1e3, 2e4, 5e4, 1.5e5, 1e7, 500.0, 100.0)
USUAL_BASE = BASES[0]
SHARES = (1.0, 0.5, 0.25, 0.4, 0.75)
LENGTHS = (65, 33, 17, 9, 5)
MOST = 40  # displacements asked
FURTHER = 4  # displacements beside the size of a head
COMPARED = 8  # questions that tell turns from what displacement adds by itself
_SIZE = 0.8
_MOVE = 1e-5
_FITS = 5e-4  # of logarithms, which moves of that size blur
_AS_GOOD = 6.0  # times the smallest misfit, which rounding makes of equal ones
_SEEN = np.log(3e-6)  # weights below are blurred by rounding
STEPS = (-0.9, -0.6, -0.3, 0.3, 0.6, 0.9)
_CAPS = np.geomspace(0.5, 200.0, 8)  # to start from
_NORM_STEPS = np.array([0.2, 0.14, 0.08, -0.2])  # small, so that large scores bend too
_PAIRS = 2
_STRAIGHT = 1e-2  # of how far the line is missed behind zero


@dataclass(frozen=True, slots=True)
class RelativeKind:
    """Positions by displacement: rope, alibi or table, with base and share of rope."""

    positions: str
    rope_base: float | None = None
    rotary_share: float | None = None


def find_relative_kind(
    asking: Asking,
    linear: LinearPart,
    V: Stack,
    *,
    longest: int | None,
    rng: np.random.Generator,
) -> RelativeKind:
    """Which kind explains the weights of equal tokens; a table explains any."""
    for length in LENGTHS:
        if longest is not None and length > longest:
            continue
        at = _choose_displacements(length, V.shape[1] + FURTHER)
        reader = _WeightReader(asking, linear, V, length, rng)
        try:
            return _read_kind(reader, at)
        except (BadAnswer, InvalidInput, TargetFailed):
            continue
    return RelativeKind("table")


def _read_kind(reader: _WeightReader, at: Vector) -> RelativeKind:
    few = at[:: max(1, len(at) // 3)][: COMPARED // 2]
    here, there = reader.read(few), reader.read(few)
    apart = np.abs((here - here[:, :1]) - (there - there[:, :1]))
    # What displacement adds by itself is the same whatever the tokens are.
    turns = float(apart[(here > _SEEN) & (there > _SEEN)].max(initial=0.0)) > _FITS
    logs = reader.read(at)
    seen = logs > _SEEN
    if turns:
        return _choose_rotation(logs, seen, at, reader.V.shape[1])
    line = np.column_stack([np.ones(len(at)), at])
    return RelativeKind("alibi" if _measure_left_logs(line, logs, seen) < _FITS else "table")


def _choose_displacements(length: int, wanted: int) -> Vector:
    """Displacements from 1 on, the near ones all, the far ones sparsely."""
    count = min(wanted, MOST, length - 1)
    spread = np.unique(np.round(np.geomspace(1, length - 1, count)))
    rest = np.setdiff1d(np.arange(1.0, length), spread)
    return np.sort(np.concatenate([spread, rest[: count - len(spread)]]))


@dataclass(frozen=True, eq=False, slots=True)
class _WeightReader:
    """Reads the weights that heads give to one of several equal tokens.

    Args:
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        V: rows that read the heads.
        length: number of tokens.
        rng: source of the tokens.
    """

    asking: Asking
    linear: LinearPart
    V: Stack
    length: int
    rng: np.random.Generator

    def read(self, at: Vector) -> Float[Array, "heads displacements"]:
        """Logarithms of the weights at some displacements, for tokens that are drawn anew."""
        ball, M = self.asking.ball, self.linear.M
        y = ball.draw(size=_SIZE, rng=self.rng)
        delta = _MOVE * ball.draw(size=1.0, rng=self.rng)
        n = np.tile(y, (len(at), self.length, 1))
        n[np.arange(len(at)), self.length - 1 - at.astype(np.intp)] += delta
        moved = self.asking.ask(n) - self.linear.constant - M @ y
        values = self.V @ (M @ delta)
        shares = np.einsum("hro,qo,hr->hq", self.V, moved, values)
        return np.log(np.maximum(shares / (values**2).sum(axis=1)[:, None], 1e-12))


def _choose_rotation(logs: Matrix, seen: Mask, at: Vector, rank: int) -> RelativeKind:
    fits = [
        (_measure_left_logs(_list_waves(at, rank, base, share), logs, seen), base, share)
        for share in SHARES
        for base in BASES
        if falls_into_pairs(rank, share)
    ]
    # Others come near by chance, an order of magnitude behind the right one.
    line = min(_FITS, _AS_GOOD * min((fit for fit, _, _ in fits), default=0.0))
    fitting = [one for one in fits if one[0] < line and len(at) > rank + 2]
    # A slow wave is as good as a constant: of those that fit, the fewest waves are meant. Capped
    # scores are no waves at all: then base and share are taken as usual.
    usual = (0.0, USUAL_BASE, 1.0)
    _, base, share = min(fitting, key=lambda one: (one[2], one[0]), default=usual)
    return RelativeKind("rope", base, share)


def falls_into_pairs(rank: int, share: float) -> bool:
    """Whether rotary positions can turn that share of a head."""
    try:
        count_turned(rank, share)
    except InvalidInput:
        return False
    return True


def _list_waves(at: Vector, rank: int, base: float, share: float) -> Matrix:
    angles = np.outer(at, list_frequencies(rank, base, share))
    return np.column_stack([np.ones(len(at)), np.cos(angles), np.sin(angles)])


def _measure_left_logs(features: Matrix, logs: Matrix, seen: Mask) -> float:
    """The largest logarithm that features leave, over the heads."""
    worst = 0.0
    for head, shown in zip(logs, seen, strict=True):
        A, b = features[shown], head[shown]
        if len(b) > 2:
            found: Vector = np.asarray(np.linalg.lstsq(A, b, rcond=1e-9)[0], dtype=np.float64)
            worst = max(worst, float(np.abs(A @ found - b).max()))
    return worst


def find_cap(
    asking: Asking, linear: LinearPart, V: Stack, *, sure: float, rng: np.random.Generator
) -> float | None:
    """The cap of the scores, None where odds are linear.

    Args:
        asking: the target in coordinates of the ball.
        linear: what lone tokens are answered.
        V: rows that read the heads, all of them or some.
        sure: how well they do: what heads may depart from a line by.
        rng: source of the tokens.
    """
    y, token = asking.ball.draw(2, size=1.0, rng=rng)
    y, t = _SIZE * y, np.array(STEPS)
    n = np.stack([t[:, None] * token, np.tile(y, (len(t), 1))], axis=1)
    moved = asking.ask(n) - linear.constant - linear.M @ y
    apart = np.einsum("hro,qo->hqr", V, (n[:, 0] - y) @ linear.M.T)
    shares = np.einsum("hro,qo,hqr->hq", V, moved, apart) / (apart**2).sum(axis=2)
    shares = np.clip(shares, 1e-12, 1.0 - 1e-12)
    odds = np.log(shares / (1.0 - shares))
    line = np.column_stack([np.ones(len(t)), t])
    if _measure_left_logs(line, odds, np.isfinite(odds)) < sure:
        return None
    return _fit_cap(odds, t, blur=max(1e-5, 6.0 * sure))


def _fit_cap(odds: Matrix, t: Vector, *, blur: float) -> float:
    """The cap that all heads share: the best of a ladder, refined, and rounded where that is near.

    Caps are round numbers where people choose them, and rows may read odds only roughly.
    """
    from scipy.optimize import least_squares

    def leave(parameters: Vector) -> Vector:
        c, free = np.exp(parameters[0]), parameters[1:].reshape(3, -1, 1)
        return (c * np.tanh((t * free[0] + free[1]) / c) + free[2] - odds).ravel()

    slopes, ends = np.polyfit(t, odds.T, 1)
    starts = [np.concatenate([[np.log(c)], slopes, 0 * ends, ends]) for c in _CAPS]
    found = min((least_squares(leave, start) for start in starts), key=lambda fit: fit.cost)
    cap = float(np.exp(found.x[0]))
    near = [float(f"{cap:.{digits}g}") for digits in (1, 2)]
    return next((one for one in near if abs(one / cap - 1.0) < blur), cap)


def are_scores_normed(asking: Asking, *, rng: np.random.Generator) -> bool:
    """Whether two pairs of tokens are answered along straight lines that break at zero."""
    token, y = asking.ball.draw(2, _PAIRS, size=1.0, rng=rng)
    n = np.stack(
        [
            _NORM_STEPS[:, None, None] * token,
            np.broadcast_to(0.9 * y, (len(_NORM_STEPS), *y.shape)),
        ],
        axis=2,
    )
    answers = asking.ask(n.reshape(-1, 2, n.shape[-1])).reshape(len(_NORM_STEPS), _PAIRS, -1)
    far, middle, near, behind = answers
    bent = np.linalg.norm(far - 2.0 * middle + near, axis=1)
    steps = (_NORM_STEPS[3] - _NORM_STEPS[2]) / (_NORM_STEPS[1] - _NORM_STEPS[2])
    missed = np.linalg.norm(behind - (near + steps * (middle - near)), axis=1)
    return bool((bent < _STRAIGHT * missed).all())
