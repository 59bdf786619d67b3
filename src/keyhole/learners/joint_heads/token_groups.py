r"""Which tokens are asked together, so that one answer tells the shares of all heads.

An answer to $[a y + b x_1; \dots; a y + b x_\tau; a y]$ is, past what y answers alone, $b \sum_h
\sum_k \alpha_{hk} V_h^\top x_k$: o equations for $H\tau$ shares. The orthonormal basis that the x
are taken from is free, and so is chosen: of random bases the one whose worst group is conditioned
best, then plane rotations between that group and others as long as they help.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import Dependent

_CONDITION = 100.0  # of the solve for shares
_BASES = 20
_ROTATIONS = 300
_WORK = 2e9  # multiplications that choosing a basis may take
_WORST = 1e4  # a condition beyond which even single tokens are not told apart


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Tokens asked together, and the map from answers to shares."""

    X: Matrix
    rows: Matrix
    reader: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class TokenGroups:
    """An orthonormal basis of tokens x, cut into groups."""

    basis: Matrix
    groups: tuple[Group, ...]


def choose_token_groups(V: Stack, rng: np.random.Generator) -> TokenGroups:
    """Groups as large as can be read.

    Raises:
        Dependent: not even one token at a time tells the shares of all heads.
    """
    heads, width, outputs = V.shape
    with pin_one_thread():
        rank = min(int(np.linalg.matrix_rank(part, tol=1e-9 * np.abs(part).max())) for part in V)
        size = max(1, min(outputs // heads, rank, width))
        while True:
            basis, condition = _choose_basis(V, size, rng)
            if condition <= (_CONDITION if size > 1 else _WORST):
                break
            if size == 1:
                raise Dependent("The answers do not tell the shares of all heads apart.")
            size -= max(1, size // 16)
    return TokenGroups(basis, tuple(make_group(V, X) for X in _cut_basis(basis, size)))


def _cut_basis(basis: Matrix, size: int) -> list[Matrix]:
    return [basis[at : at + size] for at in range(0, len(basis), size)]


def _list_rows(V: Stack, X: Matrix) -> Matrix:
    """V_h^T x for all heads and all rows of X, as rows."""
    return (X @ V).reshape(-1, V.shape[2])


def make_group(V: Stack, X: Matrix) -> Group:
    """Tokens asked together, the rows of X."""
    rows = _list_rows(V, X)
    with pin_one_thread():
        reader = np.asarray(np.linalg.pinv(rows), dtype=np.float64)
    return Group(X, rows, reader)


def measure_condition(V: Stack, X: Matrix) -> float:
    """Condition of the solve for shares where the rows of X are asked together."""
    values = np.linalg.svd(_list_rows(V, X), compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else np.inf


def _choose_basis(V: Stack, size: int, rng: np.random.Generator) -> tuple[Matrix, float]:
    """A basis, and the condition of its worst group."""
    width = V.shape[1]
    # A singular value decomposition takes about ten times the cube of the size.
    work = 10.0 * (len(V) * size) ** 2 * V.shape[2]
    draws = int(np.clip(_WORK / (work * width / size), 1, _BASES))
    turns = int(np.clip(_WORK / (2 * work), 0, _ROTATIONS))
    tried = [np.linalg.qr(rng.normal(size=(width, width)))[0].T for _ in range(draws)]
    conditions = [[measure_condition(V, X) for X in _cut_basis(basis, size)] for basis in tried]
    best = int(np.argmin([max(each) for each in conditions]))
    return _rotate_basis(V, tried[best], conditions[best], size, turns, rng)


def _rotate_basis(
    V: Stack, basis: Matrix, each: list[float], size: int, turns: int, rng: np.random.Generator
) -> tuple[Matrix, float]:
    """Plane rotations between the worst group and another, where they help both."""
    many = len(each)
    if many == 1:
        return basis, max(each)
    for _ in range(turns):
        worst = int(np.argmax(each))
        other = int((worst + rng.integers(1, many)) % many)
        i = int(rng.integers(worst * size, min(len(basis), (worst + 1) * size)))
        j = int(rng.integers(other * size, min(len(basis), (other + 1) * size)))
        angle = rng.uniform(0.0, 2.0 * np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        trial = basis.copy()
        trial[[i, j]] = turn @ basis[[i, j]]
        cut = _cut_basis(trial, size)
        now = [measure_condition(V, cut[at]) for at in (worst, other)]
        if max(now) < each[worst]:
            basis = trial
            each[worst], each[other] = now
    return basis, max(each)
