r"""Learned absolute positions: the vectors that a layer adds to tokens, one after the other.

Asked tokens less these vectors the layer has no positions at all (`Unplaced`). The first vector
comes from lone tokens, $F(x) - x = b' + M\,n(x + p_1)$ with $b' = b + p_1$: M and b' are linear and
eliminated, $p_1$ (and eps where it is not told) takes Gauss-Newton steps. Without a norm $p_1$ is
taken to be 0: a shift of all vectors is lost in the biases.

Where all tokens are read as one y but for the last, which is off by $e = p_N - \hat p_N$,

$$F - b - M y = e + \tfrac1N M\,n'(y)\,e + O(|n'(y) e|^2),$$

because equal tokens have equal weights and weights multiply differences of tokens only; without a
residual the first e is missing. Far tokens, $|y|$ large, tell e roughly whatever its size; tokens
that are read as 0 tell it to the last digit, $n'(0) = 1/\sqrt\epsilon$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Answers, Array, Matrix, Sequences, Vector
from keyhole.errors import BadAnswer, InvalidInput, TargetFailed
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.found_wiring import draw_direction, find_eps
from keyhole.learners.positions.placed import LinearPart
from keyhole.models import Wiring
from keyhole.models.layers.norms import normalise
from keyhole.oracles import Oracle
from keyhole.oracles.wrappers import Wrapper

_REACH = 30.0  # of lone tokens along a frame
_NEARER = (30.0, 3.0, 1.0, 0.5)  # sizes of further lone tokens, which are near enough to see p
_STEPS = 40
_LEFT = 1e-9  # of answers, where lone tokens are explained
_NO_CONSTANT = 1e-10  # of M: p and with it b are read to about 1e-13
_FAR = 1e5
_SMALL = 1e-4
_SURE = 1e-6  # a correction, as the layer reads it, whose square is rounding
_CORRECTIONS = 25
_RANK = 1e-13  # of singular values, below which they are rounding
LONE_EXTRA = 12  # lone tokens beyond one per direction: what tells p, eps and the middle


def estimate_position_queries(wiring: Wiring, count: int) -> int:
    """Questions for the vectors of so many places, beyond lone tokens."""
    each = 4 if wiring.norm == "none" or not wiring.residual else 2
    return each * (count - 1)


def limit_position_queries(count: int) -> int:
    """The most that these ever take."""
    return (_CORRECTIONS + 3) * (count - 1)


class Unplaceable(Exception):
    """Lone tokens are not those of a layer with a position vector."""


@dataclass(slots=True)
class Unplaced(Wrapper):
    """A layer without its positions: tokens are asked less the vectors that it adds."""

    positions: Matrix

    def ask(self, X: Sequences) -> Answers:
        """Answers to tokens that stand nowhere."""
        return self.inner.ask(X - self.positions[: X.shape[1]])


@dataclass(frozen=True, eq=False, slots=True)
class FirstPosition:
    """What lone tokens tell: the first vector, eps, and the linear part behind the norm."""

    vector: Vector
    eps: float
    linear: LinearPart


@dataclass(frozen=True, eq=False, slots=True)
class _AnsweredAlone:
    """Lone tokens with their answers, less the residual.

    Args:
        x: the tokens.
        answers: to them.
        basis: of what the norm leaves.
        norm: rms or layer.
        told: eps, where it is told.
    """

    x: Matrix
    answers: Matrix
    basis: Matrix
    norm: str
    told: float | None

    def list_features(self, vector: Vector, eps: float) -> Matrix:
        """Tokens as they are read, and a 1 for the constant."""
        n = normalise(self.x + vector, self.norm, eps) @ self.basis
        return np.column_stack([n, np.ones(len(n))])

    def solve(self, vector: Vector, eps: float) -> tuple[Matrix, Matrix]:
        """M and the constant for a vector, and what they leave."""
        features = self.list_features(vector, eps)
        maps = solve_least(features, self.answers)
        return maps, self.answers - features @ maps

    def choose_step(self, vector: Vector, eps: float, maps: Matrix, left: Matrix) -> Vector:
        """A Gauss-Newton step of the vector, and of eps where it is not told."""
        M = maps[:-1].T @ self.basis.T
        moves = [derive_norm(x + vector, self.norm, eps) @ self.basis for x in self.x]
        J = np.stack([-M @ move for move in moves])
        if self.told is None:
            J = np.concatenate([J, self._derive_by_eps(vector, eps, M)[..., None]], axis=2)
        Q = np.linalg.qr(self.list_features(vector, eps))[0]
        flat = J.reshape(len(J), -1)
        J = (flat - Q @ (Q.T @ flat)).reshape(-1, J.shape[2])
        scale = np.linalg.norm(J, axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        return solve_least(J / scale, left.ravel()) / scale

    def _derive_by_eps(self, vector: Vector, eps: float, M: Matrix) -> Matrix:
        """By the logarithm of eps: n falls as half of eps beside the mean square."""
        n = normalise(self.x + vector, self.norm, eps)
        share = 1.0 - np.mean(n**2, axis=1)
        return 0.5 * share[:, None] * (n @ M.T)


def derive_norm(x: Vector, norm: str, eps: float) -> Matrix:
    r"""Derivative of a norm, $n'(x) = (C - n n^\top/d)/\sqrt{\mathrm{mean}\,(Cx)^2 + \epsilon}$."""
    if norm == "none":
        return np.eye(len(x))
    centre = np.eye(len(x)) - (1.0 / len(x) if norm == "layer" else 0.0)
    spread = np.sqrt(np.mean((centre @ x) ** 2) + eps)
    n = centre @ x / spread
    return (centre - np.outer(n, n) / len(x)) / spread


def find_first_position(
    oracle: Oracle, wiring: Wiring, *, eps: float | None, rng: np.random.Generator
) -> FirstPosition:
    """The vector of the first place and the linear part, from d + 6 lone tokens behind a norm.

    Args:
        oracle: the target.
        wiring: its norm, and whether it has a residual.
        eps: of the norm, None where it is to be found.
        rng: source of all tokens.

    Raises:
        Unplaceable: no vector explains the answers.
    """
    norm, residual = wiring.norm or "none", bool(wiring.residual)
    lone = _ask_lone_tokens(oracle, norm, residual, eps, rng)
    vector, found = _fit_lone_tokens(lone)
    if eps is None:
        # Near the middle of the ball eps shows to the last digit.
        view = Unplaced(oracle, vector[None])
        found = find_eps(view, draw_direction(oracle.width, rng=rng), residual=residual)
        vector, found = _fit_lone_tokens(
            _AnsweredAlone(lone.x, lone.answers, lone.basis, norm, found), vector
        )
    maps = lone.solve(vector, found)[0]
    vector, constant = _centre(oracle, lone, vector, found, residual)
    return FirstPosition(vector, found, LinearPart(constant, maps[:-1].T))


def _ask_lone_tokens(
    oracle: Oracle, norm: str, residual: bool, eps: float | None, rng: np.random.Generator
) -> _AnsweredAlone:
    basis = NormBall.of(oracle.width, norm, 0.0).basis
    D = basis.shape[1]
    frame = np.linalg.qr(rng.normal(size=(D, D)))[0] @ basis.T * np.sqrt(oracle.width)
    sizes = np.array(_NEARER if eps is not None else (*_NEARER, 0.2))
    near = sizes[:, None] * rng.normal(size=(len(sizes), oracle.width))
    x = np.concatenate([_REACH * frame, -_REACH * frame[:1], near])
    answers = oracle.ask(x[:, None])
    return _AnsweredAlone(x, answers - x if residual else answers, basis, norm, eps)


def _fit_lone_tokens(lone: _AnsweredAlone, start: Vector | None = None) -> tuple[Vector, float]:
    """Gauss-Newton with halved steps; from no position at all, it has always arrived."""
    vector = np.zeros(lone.x.shape[1]) if start is None else start
    eps = 1e-5 if lone.told is None else lone.told
    maps, left = lone.solve(vector, eps)
    D = lone.basis.shape[1]
    for _ in range(_STEPS):
        step = lone.choose_step(vector, eps, maps, left)
        for share in 0.5 ** np.arange(12):
            # A factor of at most e, so that eps stays a positive number.
            factor = np.exp(np.clip(-share * step[D:].sum(), -1.0, 1.0))
            moved = vector - share * lone.basis @ step[:D]
            found = lone.solve(moved, eps * factor)
            if np.linalg.norm(found[1]) < np.linalg.norm(left):
                break
        else:
            break
        vector, eps, (maps, left) = moved, eps * factor, found
    if np.linalg.norm(left) > _LEFT * np.linalg.norm(lone.answers):
        raise Unplaceable
    return vector, float(eps)


def _centre(
    oracle: Oracle, lone: _AnsweredAlone, vector: Vector, eps: float, residual: bool
) -> tuple[Vector, Vector]:
    """The vector to the last digit, from the token that is read as 0, and the constant."""
    maps = lone.solve(vector, eps)[0]
    answer = oracle.ask(-vector[None, None])[0] + (vector if residual else 0.0)
    n = solve_least(maps[:-1].T, answer - maps[-1])
    vector = vector + np.sqrt(eps) * lone.basis @ n
    constant = maps[-1]
    if residual:
        # Equal entries of the vectors are lost in a LayerNorm: b has none.
        lost = float(constant.mean()) if lone.norm == "layer" else 0.0
        vector = vector + lost
        constant = constant - vector
    small = np.abs(constant).max() <= _NO_CONSTANT * np.abs(maps[:-1]).max()
    return vector, np.zeros_like(constant) if small else constant


@dataclass(frozen=True, eq=False, slots=True)
class PositionSearch:
    """The vectors of all places, once what lone tokens are answered is known.

    Args:
        oracle: the target.
        wiring: norm, eps and residual.
        linear: the constant and M, in coordinates of the ball.
        rng: source of far directions.
    """

    oracle: Oracle
    wiring: Wiring
    linear: LinearPart
    rng: np.random.Generator

    def find_residual(self) -> bool:
        r"""Whether the last token is added, where lone tokens do not tell: there is no norm.

        Lone tokens are answered by $\rho + M$ together; the last of a pair of tokens that are read
        as 0, moved a little, by $\rho + M/2$.
        """
        first = np.zeros((1, self.oracle.width))
        # The zero of what is left is the same with a residual and without.
        vector = self._correct(first, np.zeros(self.oracle.width))
        move = _SMALL * self.rng.normal(size=self.oracle.width)
        left = [self._ask(first, vector - sign * move, first) for sign in (1.0, -1.0)]
        seen = (left[0] - left[1]) / 2.0 - self._M @ move / 2.0
        return len(seen) == len(move) and float(seen @ move) > 0.25 * float(move @ move)

    def find_all(self, first: Vector, most: int) -> Matrix:
        """Vectors of the first `most` places, or of as many as the target answers."""
        known = first[None]
        while len(known) < most:
            try:
                known = np.concatenate([known, self._find_next(known)[None]])
            except (BadAnswer, InvalidInput, TargetFailed):
                # What answers pairs refuses longer sequences because it knows no more places.
                if len(known) < 2:
                    raise
                break
        return known

    def _find_next(self, known: Matrix) -> Vector:
        """The vector of the next place."""
        width = known.shape[1]
        vector = np.zeros(width)
        if self._norm != "none":
            # Without a residual one direction does not show what lies along it.
            directions = self.rng.normal(size=(1 if self.wiring.residual else 2, width))
            far = _FAR * directions
            vector = solve_least(self._derive(far, len(known) + 1), self._ask(known, vector, far))
        return self._correct(known, vector)

    def _correct(self, known: Matrix, vector: Vector) -> Vector:
        r"""A vector to the last digit, from tokens that are read as 0.

        The derivative is that at the end of the way, where all weights are 1/N. Farther off, where
        there is no norm, a weight is $\alpha$ instead, and a share of the step below $2/(N\alpha)$
        leads nearer all the same.
        """
        zero = np.zeros((1, len(vector)))
        scale = np.sqrt((self.wiring.eps or 0.0) if self._norm != "none" else 1.0)
        rows, share = self._derive(zero, len(known) + 1), 1.0
        step = solve_least(rows, self._ask(known, vector, zero))
        for _ in range(_CORRECTIONS):
            if np.linalg.norm(step) < _SURE * scale * np.sqrt(len(vector)):
                return vector + step
            then = solve_least(rows, self._ask(known, vector + share * step, zero))
            nearer = np.linalg.norm(then) < np.linalg.norm(step)
            # A weight that was small may be large here: the way may still be right.
            vector, step = vector + share * step, then
            share = min(1.0, 1.5 * share) if nearer else 0.5 * share
        return vector

    @property
    def _norm(self) -> str:
        return self.wiring.norm or "none"

    def _ask(self, known: Matrix, vector: Vector, tokens: Matrix) -> Vector:
        """What is left of answers to sequences of equal tokens, the last place off by a vector."""
        view = Unplaced(self.oracle, np.concatenate([known, vector[None]]))
        answers = view.ask(np.repeat(tokens[:, None], len(known) + 1, axis=1))
        n = normalise(tokens, self._norm, self.wiring.eps or 0.0)
        bypass = tokens if self.wiring.residual else 0.0
        return (answers - bypass - self.linear.constant - n @ self._M.T).ravel()

    @property
    def _M(self) -> Matrix:
        return self.linear.M @ NormBall.of(self.oracle.width, self._norm, 0.0).basis.T

    def _derive(self, tokens: Matrix, length: int) -> Matrix:
        """Derivative of these answers by the vector of the last place."""
        M, eps = self._M, self.wiring.eps or 0.0
        moves = [M @ derive_norm(token, self._norm, eps) / length for token in tokens]
        bypass = np.eye(self.oracle.width) if self.wiring.residual else 0.0
        return np.concatenate([move + bypass for move in moves])


def solve_least(rows: Matrix, wanted: Array) -> Array:
    """The shortest solution of least squares."""
    return np.asarray(np.linalg.lstsq(rows, wanted, rcond=_RANK)[0], dtype=np.float64)
