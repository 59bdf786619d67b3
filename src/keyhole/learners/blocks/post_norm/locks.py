r"""The value maps of all heads with everything behind them unknown, from locked sequences.

Tokens so large that every head's weight is on one of them: $u = x_N + \sum_h A_h x_{i(h)} + b$ is
then linear in the tokens, the last one's map the identity. Slopes of answers are $J_N = T P$ and
$J_i = T P A_h$ with one unknown T, which sends u itself to zero: $J_N^+ J_i = (1 - \hat u \hat
u^\top) P A_h$, with its true scale. Two sequences with other u give all of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import EPS, Array, Indices, Matrix, Vector
from keyhole.learners.blocks.post_norm.output_norm import OutputNorm
from keyhole.learners.blocks.post_norm.token_sphere import find_error
from keyhole.learners.blocks.solving import linalg
from keyhole.oracles import Counted
from keyhole.oracles.base import read_imperfection

_SIZE = 1e4  # of tokens
_LAST = 0.3  # of the last one beside the others
_MOVED = 1e-4  # of a token that is tried
_STILL = 1e-9  # what an answer moves by where a token has no weight
_STEP = 3e-8  # of one-sided differences, beside the tokens
_WIDE_STEP = 1e-4  # of two-sided ones, where rounding leaves more than this of the others
_ROUNDED = 1e-5
_COARSE_STEP = 0.1  # of differences of fourth order, where answers are coarse
_COARSELY_MOVED = 1e4  # of a token, in their errors
_COARSELY_STILL = 100.0  # of an answer
_COARSELY_AGREE = 1e4  # of two sequences
_GROUPS = ((5, 8), (8, 12))  # up to so many heads: groups of tokens, each of as many
_MOST_GROUPS = 16
LOCK_LENGTH = 65  # tokens that must be allowed at once
_LOOKS = 2  # sequences that are looked at, at least
_LOOKS_AT_ONE = 5  # where a single head shows
_CANDIDATES = 16  # and at most
_ROUNDS = 4  # of them whose slopes are asked, at most
_PARTINGS = 3  # times that slopes of one sequence are asked, at most, as heads are told apart
_SCANS = 64  # sequences that are looked at to tell heads apart, at most
_AGREE = 1e-3  # what two sequences may make of one head
_NARROWEST = 2  # numbers of a head: where more tokens are read, those are not heads' choices
_SHARED = 1.5  # times the rank of another head, which two heads together have
_GAP = 100.0  # between a head's singular values and what differences leave
UNLOCKED = (
    "No two sequences of huge tokens agreed on what heads read: heads whose scores do not grow with"
    " their tokens, positions, a context that acts otherwise than by softmax, or several layers."
)


@dataclass(frozen=True, eq=False, slots=True)
class FrontMaps:
    """What heads add before the first norm.

    Args:
        A: value maps (heads x dimension x width), on coordinates that sum to zero.
        U: their columns (heads x dimension x rank).
        W: their rows (heads x rank x width).
        left: what two sequences disagree by.
    """

    A: Array
    U: Array
    W: Array
    left: float

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.A)

    @property
    def rank(self) -> int:
        """Size of a head."""
        return self.W.shape[1]

    def join_residual(self, basis: Matrix) -> Matrix:
        """K, what a lone token becomes before the first norm."""
        return basis.T + self.A.sum(axis=0)


@dataclass(frozen=True, eq=False, slots=True)
class _Lock:
    """A sequence on which every head reads one token, and which tokens those are."""

    X: Matrix
    answer: Vector
    read: Indices


@dataclass(frozen=True, eq=False, slots=True)
class _Slopes:
    """What a lock shows: heads off the direction u, and that direction."""

    heads: Array
    u: Vector


def _choose_groups(heads: int) -> int:
    """Groups of tokens, so many that heads seldom read the same one."""
    return next((groups for most, groups in _GROUPS if heads <= most), _MOST_GROUPS)


def count_lock_queries(width: int, heads: int) -> int:
    """What two locks of so many heads cost."""
    groups = _choose_groups(heads)
    times = _LOOKS if heads > 1 else _LOOKS_AT_ONE
    looks = times * (groups + 2 + groups * min(heads, groups))
    return looks + 2 * _count_slopes(width, heads)


def bound_lock_queries(width: int) -> int:
    """The most that locks cost, whatever the number of heads."""
    looks = (_CANDIDATES + _SCANS) * (_MOST_GROUPS + 2 + _MOST_GROUPS**2)
    return looks + 4 * _PARTINGS * _ROUNDS * _count_slopes(width, width // _NARROWEST)


def _count_slopes(width: int, heads: int) -> int:
    return width * (heads + 1)


class LockSearch:
    """Locked sequences of one block."""

    def __init__(self, oracle: Counted, norm: OutputNorm, rng: np.random.Generator) -> None:
        self.oracle, self.norm, self.rng = oracle, norm, rng
        lengths = read_imperfection(oracle).lengths
        self.widest = _MOST_GROUPS if lengths is None else math.isqrt(lengths[1] - 1)
        self.groups = min(self.widest, _choose_groups(1))
        self.heads, self.scans = 0, _SCANS
        error = find_error(oracle)
        self.coarse = error > 0
        self.moved = max(_MOVED, _COARSELY_MOVED * error)
        self.still = max(_STILL, _COARSELY_STILL * error)
        self.agree = max(_AGREE, _COARSELY_AGREE * error)

    def find(self) -> FrontMaps | None:
        """The value maps; None where no two sequences agree on them."""
        seen: list[_Slopes] = []
        for lock in self._draw_locks():
            slopes = self._measure_apart(lock)
            if slopes is None:
                continue
            for other in seen:
                found = _join_slopes(other, slopes, self.agree)
                if found is not None:
                    return found
            seen.append(slopes)
        return None

    def _measure_apart(self, lock: _Lock) -> _Slopes | None:
        """Slopes, once more where they show that heads shared a token."""
        slopes = None
        for _ in range(_PARTINGS):
            parted = self._part(lock)
            slopes = None if parted is None else self._measure(parted)
            if parted is None or slopes is None:
                return None
            ranks = [_count_rank(one) for one in _list_singular(slopes.heads)]
            counted = sum(round(rank / min(ranks)) for rank in ranks)
            if counted <= len(ranks):
                break
            self.heads = max(self.heads, counted)
            # What several heads read is left out first.
            lock = replace(parted, read=parted.read[np.argsort([-rank for rank in ranks])])
        return slopes

    def _part(self, lock: _Lock) -> _Lock | None:
        """The sequence less such tokens that heads which shared them read different ones."""
        while len(lock.read) < self.heads:
            better = self._leave_one_out(lock)
            if better is None:
                return None
            lock = better
        return lock

    def _leave_one_out(self, lock: _Lock) -> _Lock | None:
        """The first sequence without a token on which more are read."""
        for token in lock.read:
            if self.scans == 0:
                return None
            self.scans -= 1
            tried = self._look(np.delete(lock.X, token, axis=0))
            if tried is not None and len(tried.read) > len(lock.read):
                return tried
        return None

    def _draw_locks(self) -> Iterator[_Lock]:
        """Sequences on which most tokens are read; longer ones where heads may share one."""
        waiting: list[_Lock] = []
        given = 0
        for drawn in range(_CANDIDATES):
            lock = self._draw()
            if lock is None:
                continue
            if _NARROWEST * len(lock.read) > self.oracle.width:
                return
            most = max((len(held.read) for held in waiting), default=0)
            if len(lock.read) > most:
                waiting, given = [], 0
                most = len(lock.read)
                self.groups = min(self.widest, _choose_groups(most))
            if len(lock.read) < most or not most:
                continue
            waiting.append(lock)
            # Several heads that read one token look like one head, and ranks do not tell.
            if drawn + 1 >= (_LOOKS if most > 1 else _LOOKS_AT_ONE) and len(waiting) > 1:
                for held in waiting[given:]:
                    given += 1
                    yield held
                    if given == _ROUNDS:
                        return

    def _ask(self, X: Array) -> Matrix:
        return self.norm.read(self.oracle.ask(X))

    def _draw(self) -> _Lock | None:
        """A random sequence, unless a head reads its last token."""
        count = self.groups**2
        X = _SIZE * self.rng.normal(size=(count + 1, self.oracle.width))
        X[-1] *= _LAST
        return self._look(X)

    def _look(self, X: Matrix) -> _Lock | None:
        """What heads read, unless it is the last token: groups are tried, then their tokens."""
        groups = np.array_split(np.arange(len(X) - 1), self.groups)
        # Equal numbers added to the last token show only where a head reads it.
        shifted = X.copy()
        shifted[-1] += self.moved * _SIZE
        phi = self._ask(np.concatenate([_scale(X, groups, self.moved), shifted[None], X[None]]))
        moved = linalg.norm(phi[:-1] - phi[-1], axis=1) > self.still
        if moved[-1] or not moved.any():
            return None
        members = np.concatenate([groups[i] for i in np.flatnonzero(moved[:-1])])[:, None]
        alone = (
            linalg.norm(self._ask(_scale(X, members, self.moved)) - phi[-1], axis=1) > self.still
        )
        return _Lock(X, phi[-1], members[alone, 0])

    def _measure(self, lock: _Lock) -> _Slopes | None:
        """Slopes by the last token, across equal numbers, and by every token that is read."""
        # Tokens that no head reads change nothing: sequences without them are short.
        X = lock.X[[*lock.read, len(lock.X) - 1]]
        base = self._ask(X[None])[0]
        if not linalg.norm(base - lock.answer) < self.still:
            return None
        return _read_slopes(self._ask_coarsely(X) if self.coarse else self._ask_finely(X, base))

    def _ask_finely(self, X: Matrix, base: Vector) -> Matrix:
        """Slopes where answers have all digits."""
        h = _STEP * _SIZE
        J = (self._ask_moved(X, h) - base).T / h
        s = linalg.svd(J[:, : self.oracle.width - 1], compute_uv=False)
        # Where the map behind is flat in some direction a small step is lost in rounding.
        if s[-2] == 0 or EPS / (h * s[-2]) > _ROUNDED:
            h = _WIDE_STEP * _SIZE
            J = (self._ask_moved(X, h) - self._ask_moved(X, -h)).T / (2 * h)
        return J

    def _ask_coarsely(self, X: Matrix) -> Matrix:
        """Slopes from wide steps: without the tokens that no head reads each head keeps its own."""
        h = _COARSE_STEP * _SIZE
        near, far = (self._ask_moved(X, i * h) - self._ask_moved(X, -i * h) for i in (1, 2))
        return (8 * near - far).T / (12 * h)

    def _ask_moved(self, X: Matrix, h: float) -> Matrix:
        """Answers where the last token is moved across equal numbers, then each other in turn."""
        last, eye = len(X) - 1, np.eye(X.shape[1])
        moves = [(last, self.norm.basis.T), *((i, eye) for i in range(last))]
        # One token at a time: all at once would not fit in memory where tokens are wide.
        return np.concatenate([self._ask(_move(X, at, h * along)) for at, along in moves])


def _read_slopes(J: Matrix) -> _Slopes | None:
    """What slopes by the last token, then by others, say of heads."""
    width = len(J) + 1
    own, others = J[:, : width - 1], J[:, width - 1 :].reshape(width - 1, -1, width)
    U, s, Vt = linalg.svd(own)
    if s[-2] == 0:
        return None
    inverse = (Vt[:-1].T / s[:-1]) @ U[:, :-1].T
    return _Slopes(np.einsum("ab,bhc->hac", inverse, others), Vt[-1])


def _move(X: Matrix, at: int, along: Matrix) -> Array:
    """The sequence once for each step of one token."""
    tried = np.repeat(X[None], len(along), axis=0)
    tried[:, at] += along
    return tried


def _scale(X: Matrix, groups: Sequence[Indices] | Indices, share: float) -> Array:
    """The sequence once for each group, whose tokens are longer in it."""
    tried = np.repeat(X[None], len(groups), axis=0)
    for one, group in zip(tried, groups, strict=True):
        one[group] *= 1.0 + share
    return tried


def _join_slopes(first: _Slopes, second: _Slopes, agree: float) -> FrontMaps | None:
    """Heads as both sequences show them; None where they do not agree."""
    u = np.column_stack([first.u, second.u])
    across = linalg.qr(u)[0]
    off = np.eye(len(u)) - across @ across.T
    a, b = (off @ seen.heads for seen in (first, second))
    order = _match_heads(a, b)
    sizes = np.maximum(linalg.norm(a, axis=(1, 2)), 1e-300)
    gaps = linalg.norm(a - b[order], axis=(1, 2)) / sizes
    left = float(gaps.max())
    if not left < agree:
        return None
    rows = np.concatenate([np.eye(len(u)) - np.outer(seen.u, seen.u) for seen in (first, second)])
    both = np.concatenate([first.heads, second.heads[order]], axis=1)
    A = linalg.pinv(rows) @ both
    return _factor_heads(A, left)


def _match_heads(first: Array, second: Array) -> Indices:
    from scipy.optimize import linear_sum_assignment

    gaps = linalg.norm(first[:, None] - second[None], axis=(2, 3))
    return linear_sum_assignment(gaps)[1]


def _factor_heads(A: Array, left: float) -> FrontMaps | None:
    """Maps as products, all of the rank of the largest; None where one is of two heads."""
    U, s, Vt = linalg.svd(A, full_matrices=False)
    ranks = [_count_rank(one) for one in s]
    rank = max(ranks)
    # Two sequences agree where the same two heads read one token on both.
    if rank >= _SHARED * min(ranks):
        return None
    root: Any = np.sqrt(s[:, :rank])
    return FrontMaps(A, U[:, :, :rank] * root[:, None], root[:, :, None] * Vt[:, :rank], left)


def _list_singular(A: Array) -> Matrix:
    return linalg.svd(A, compute_uv=False)


def _count_rank(s: Vector) -> int:
    ratios: Vector = s[:-1] / np.maximum(s[1:], 1e-300)
    at = int(np.argmax(ratios))
    return at + 1 if ratios[at] > _GAP else len(s)
