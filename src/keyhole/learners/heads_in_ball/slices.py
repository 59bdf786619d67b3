r"""Sums of heads on two tokens inside a ball: for fixed x a sum of ridge functions of y.

With $B = \sum_h V_h$, constant c and $[y + x;\, y]$ both inside,
$$T_x(y) = 2 (f - c - B \cdot y) - B \cdot x = \sum_h (D_h \cdot x) \tanh(u_h \cdot y / 2),
\qquad u_h = W_h^\top x,$$
where $D_h = V_h$; a head with W = 0 is not seen, and a mirror pair W, -W counts as one with D = V -
V'. Both $D_h \cdot x$ and $u_h$ are linear in x: they are fitted at one x from the pencil of
Hessians, then at d - 1 others from there.

On three tokens a head of the wrong sign differs: let $M_h$ be the read-out of $-W_h$ and A(W) the
mean of the tokens under W. Then
$$f - c = \sum_h [A(W_h) \cdot (D_h + M_h) + A(-W_h) \cdot M_h]
+ A(0) \cdot (B - \sum_h (D_h + 2 M_h))$$
is linear in M, which is 0 for the right sign, $-D_h$ for the wrong one, and anything else for a
mirror pair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, rms
from keyhole.learners.heads_in_ball.ridges import (
    Ridges,
    find_longest_step,
    fit_ridges,
    start_ridges,
)
from keyhole.learners.several_heads.families import average_tokens_by_head
from keyhole.learners.several_heads.pairs import Pairs, Unresolved
from keyhole.learners.several_heads.signs import assemble_heads
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_LENGTH = 0.7  # of x, over the radius
_INSIDE = 0.999  # of the ball, so that short steps stay in it
_NOISES = 8.0  # standard errors that explain a misfit
_MAGNIFIED = 1e3  # noise in a sum of all read-outs, over that of one answer
_COARSEST = 1e-2  # noise over the size of T that steps are chosen for
_TURN = 0.35  # angle between the first x and the others
_SHORTER = (0.12, 0.04)  # angles to go by where that turn was too far
_ENOUGH = 1.5  # answers per unknown
_MORE = 8  # answers beside
_FIT = 1e-9  # misfit that is explained by rounding and what it is amplified by
_SOFT = 1.4  # ratio of T at y and y / 2, below which heads are saturated
_SHRINK = 0.7  # of the radius, as long as they are
_SHRINKINGS = 60
_PROBES = 6
_SEEN = 64  # roundings
_SIGN = 1e-3  # distance of a share from 0 or 1 at which it is one of them
_EVENED = 8  # times as many sequences for signs, where answers are noisy
_NOISY_SIGN = 0.05  # the same where answers are noisy
_NOTHING = 1e-9  # read-outs below that count as zero


@dataclass(frozen=True, eq=False, slots=True)
class Ball:
    """Queries of tokens no longer than the radius.

    Args:
        oracle: what is asked.
        radius: largest norm of a token.
        B: sum of all read-outs.
        c: constant of the answers.
        roundoff: relative rounding of answers.
        noise: standard error of answers.
    """

    oracle: Counted
    radius: float
    B: Matrix
    c: Vector
    roundoff: float
    noise: float = 0.0

    def ask(self, x: Vector, Y: Matrix) -> Matrix:
        """T_x at every row of Y."""
        answers = self.oracle.ask(np.stack([Y + x, Y], axis=1))
        return 2 * (answers - self.c - Y @ self.B) - x @ self.B

    def points(self, x: Vector, count: int, rng: np.random.Generator, spare: float = 0.0) -> Matrix:
        """Points y with y and y + x inside the ball, half to all of the way out from -x/2.

        A step of `spare` radii from any of them stays in the ball.
        """
        z = rng.normal(size=(count, len(x)))
        z /= np.sqrt((z * z).sum(axis=1, keepdims=True))
        reach = (self.radius * (_INSIDE - spare)) ** 2 - x @ x / 4
        slant = np.abs(z @ x) / 2
        out = np.sqrt(slant**2 + reach) - slant
        return z * (out * rng.uniform(0.5, 1.0, size=count))[:, None] - x / 2

    def direction(self, rng: np.random.Generator) -> Vector:
        """A random x."""
        x = rng.normal(size=len(self.B))
        return x * (_LENGTH * self.radius / np.sqrt(x @ x))

    def answers(self, x: Vector, like: Ridges, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
        """Fresh points and T_x there, enough to fit as many ridges."""
        unknowns = like.b.size + like.u.size
        Y = self.points(x, int(_ENOUGH * unknowns / self.B.shape[1]) + _MORE, rng)
        return Y, self.ask(x, Y)

    def explains(self, misfit: float, T: Matrix) -> bool:
        """Whether a misfit, over the size of T, is rounding or noise."""
        # T holds twice the error of an answer, and those of B and c.
        noise = _NOISES * 2.0 * self.noise / max(rms(T), 1e-300)
        return misfit <= max(_FIT, 2.0**12 * self.roundoff, noise)


def read_ball(oracle: Counted, radius: float, roundoff: float, noise: float = 0.0) -> Ball:
    """The constant and the sum of all read-outs, from single tokens."""
    d = oracle.width
    answers = oracle.ask(np.concatenate([np.zeros((1, d)), radius * np.eye(d)])[:, None])
    return Ball(oracle, radius, (answers[1:] - answers[0]) / radius, answers[0], roundoff, noise)


def soften_ball(ball: Ball, rng: np.random.Generator) -> Ball:
    """The same with a radius, no longer, at which heads are not all saturated."""
    for _ in range(_SHRINKINGS):
        x = ball.direction(rng)
        Y = ball.points(x, _PROBES, rng) + x / 2
        Y *= 0.3 * ball.radius / np.sqrt((Y * Y).sum(axis=1, keepdims=True))
        far, near = np.split(ball.ask(x, np.concatenate([Y, Y / 2])), 2)
        if rms(far) >= _SOFT * rms(near):
            break
        ball = replace(ball, radius=ball.radius * _SHRINK)
    return ball


def measure_heads_in_ball(ball: Ball, rng: np.random.Generator) -> tuple[Stack, Stack]:
    """W and D of every head, up to a common sign, from d values of x.

    Raises:
        Unresolved: a fit did not explain its answers.
    """
    x = ball.direction(rng)
    with ball.oracle.phase("pencil"):
        if _is_silent(ball, x, rng):
            return np.zeros((0, len(x), len(x))), np.zeros((0, *ball.B.shape))
        start = _start_ridges_at(ball, x, rng)
    with ball.oracle.phase("measure"):
        Y, T = ball.answers(x, start, rng)
        first, misfit = fit_ridges(start, Y, T)
        if not ball.explains(misfit, T):
            raise Unresolved
        turns = [_turn_ridges(ball, x, q, first, rng) for q in _draw_turn_directions(x, rng)]
        turns = [(x, first), *turns]
    X = np.stack([x for x, _ in turns])
    rows = np.stack([found.u for _, found in turns])
    outs = np.stack([found.b for _, found in turns])
    return _solve_head_matrices(X, rows), _solve_head_matrices(X, outs)


def _start_ridges_at(ball: Ball, x: Vector, rng: np.random.Generator) -> Ridges:
    def ask(Y: Matrix) -> Matrix:
        return ball.ask(x, Y)

    noise = 0.0
    if ball.noise > 0.0:
        size = rms(ask(ball.points(x, _PROBES, rng)))
        noise = min(2.0 * ball.noise / max(size, 1e-300), _COARSEST)
    spare = find_longest_step(noise)

    def points(count: int) -> Matrix:
        return ball.points(x, count, rng, spare)

    room = (1 - _LENGTH) * ball.radius
    return start_ridges(ask, points, ball.radius, room, rng, noise=noise)


def _draw_turn_directions(x: Vector, rng: np.random.Generator) -> Matrix:
    """Vectors orthogonal to x and to each other, as long as x."""
    basis = np.linalg.qr(np.column_stack([x, rng.normal(size=(len(x), len(x) - 1))]))[0].T[1:]
    return np.asarray(basis * np.sqrt(x @ x), dtype=np.float64)


def _solve_head_matrices(X: Matrix, parts: Stack) -> Stack:
    """One matrix A per head from its rows x A, given as (x, head, row)."""
    return np.asarray(np.linalg.solve(X, parts.swapaxes(0, 1)), dtype=np.float64)


def _is_silent(ball: Ball, x: Vector, rng: np.random.Generator) -> bool:
    """Whether y has no effect beyond rounding."""
    size = np.abs(ball.B).max() * ball.radius * len(x) + np.abs(ball.c).max()
    nothing = _SEEN * ball.roundoff * float(size) + _NOISES * ball.noise
    return rms(ball.ask(x, ball.points(x, _PROBES, rng))) <= nothing


def _turn_ridges(
    ball: Ball, x: Vector, q: Vector, first: Ridges, rng: np.random.Generator
) -> tuple[Vector, Ridges]:
    """The ridges at an x turned towards q, by way of a shorter turn where the fit needs one.

    Ridges are linear in x, so that those of a short turn say where those of the whole turn are.
    """
    there = np.cos(_TURN) * x + np.sin(_TURN) * q
    Y, T = ball.answers(there, first, rng)
    found, misfit = fit_ridges(first, Y, T)
    for angle in _SHORTER:
        if ball.explains(misfit, T):
            break
        aside = np.cos(angle) * x + np.sin(angle) * q
        beside = ball.answers(aside, first, rng)
        near, misfit = fit_ridges(first, *beside)
        if ball.explains(misfit, beside[1]):
            found, misfit = fit_ridges(_extrapolate_ridges(first, near, angle), Y, T)
    if not ball.explains(misfit, T):
        raise Unresolved
    return there, found.match_order(first)


def _extrapolate_ridges(first: Ridges, near: Ridges, angle: float) -> Ridges:
    """What the ridges of a short turn and those of none make of the whole turn."""
    share = float(np.sin(_TURN) / np.sin(angle))
    rest = float(np.cos(_TURN) - share * np.cos(angle))
    return Ridges(rest * first.b + share * near.b, rest * first.u + share * near.u)


def sign_heads(ball: Ball, W: Stack, D: Stack, rng: np.random.Generator) -> MultiHead:
    """Heads with their signs, mirror pairs taken apart, from sequences of three tokens."""
    noise = _NOISES * ball.noise / (ball.radius * max(float(np.abs(ball.B).max()), 1e-300))
    floor = max(_NOTHING, 2.0**12 * ball.roundoff, _MAGNIFIED * noise) / 2.0**15
    pairs = Pairs(ball.oracle, ball.B, ball.c, np.ones_like(ball.c), floor, 0.0)
    M = _solve_mirror_readouts(ball, W, D, rng) if len(W) else D
    return assemble_heads(pairs, W, D, M)


def _solve_mirror_readouts(ball: Ball, W: Stack, D: Stack, rng: np.random.Generator) -> Stack:
    """Read-outs of -W: nothing or all where signs explain the answers, else by least squares."""
    count = (len(W) + _MORE) * (1 if ball.noise == 0.0 else _EVENED)
    bends, left = _measure_mirror_bends(ball, W, D, count, rng)
    effect = np.asarray(-np.einsum("nhd,hdo->noh", bends, D), dtype=np.float64)
    solved = np.linalg.lstsq(effect.reshape(-1, len(W)), left.ravel(), rcond=None)[0]
    share = np.asarray(solved, dtype=np.float64)
    turned = np.round(share)
    # One number per head is enough where every head is turned round or not.
    sign = _SIGN if ball.noise == 0.0 else _NOISY_SIGN
    if np.abs(share - turned).max() <= sign and np.isin(turned, (0, 1)).all():
        return -turned[:, None, None] * D
    enough = int(_ENOUGH * W.shape[0] * W.shape[1]) + _MORE
    bends, left = _measure_mirror_bends(ball, W, D, enough, rng)
    solved = np.linalg.lstsq(bends.reshape(len(left), -1), left, rcond=None)[0]
    M = np.asarray(solved, dtype=np.float64).reshape(D.shape)
    M[np.abs(M).max(axis=(1, 2)) <= sign * np.abs(D).max()] = 0.0
    return M


def _measure_mirror_bends(
    ball: Ball, W: Stack, D: Stack, count: int, rng: np.random.Generator
) -> tuple[Stack, Matrix]:
    """A(W) + A(-W) - 2 A(0) of every head, and what D leaves of the answers."""
    X = rng.normal(size=(count, 3, len(ball.B)))
    X *= _INSIDE * ball.radius / np.sqrt((X * X).sum(axis=2, keepdims=True))
    even = X.mean(axis=1)
    plus = average_tokens_by_head(W, X)
    minus = average_tokens_by_head(-W, X)
    known = np.einsum("nhd,hdo->no", plus, D) + even @ (ball.B - D.sum(axis=0))
    return plus + minus - 2 * even[:, None], ball.oracle.ask(X.copy()) - ball.c - known
