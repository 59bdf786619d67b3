r"""Which tokens are asked together, so that one answer tells the shares of all heads.

An answer to $[a y + b x_1; \dots; a y + b x_\tau; a y]$ is, past what y answers alone, $b \sum_h
\sum_k \alpha_{hk} V_h^\top x_k$: o equations for $H\tau$ shares. The orthonormal basis that the x
are taken from is free, and so is balanced (see balanced_tokens.py). Where heads write into
independent spaces, with rows $S_h$ and $V_h = C_h S_h$, the equations fall apart into those of
single heads, whose rows are $x_k^\top C_h$.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, pin_one_thread
from keyhole.learners.joint_heads.balanced_tokens import (
    balance_basis,
    cut_evenly,
    list_rows,
    measure_condition,
)
from keyhole.learners.joint_heads.hard_pairs import Dependent

_CONDITION = 1e3  # of the solve for shares: what is lost of sixteen digits
_COARSE_CONDITION = 100.0  # the same of seven digits
_SPACES = 1e9  # of the spaces side by side, from which on they count as dependent
_RANK = 1e-9  # of the largest singular value of a read-out: what is below is rounding
_STEPS = 60
_MANY = 16  # tokens of a full group, which in wide layers is conditioned badly
_WORST = 1e4  # a condition beyond which even single tokens are not told apart


@dataclass(frozen=True, eq=False, slots=True)
class Group:
    """Tokens asked together, and the map from answers to shares."""

    X: Matrix
    rows: Matrix
    reader: Matrix


@dataclass(frozen=True, eq=False, slots=True)
class TokenGroups:
    """An orthonormal basis of tokens x, cut into groups.

    Args:
        basis: the tokens.
        groups: of them.
        blocks: what they are read by.
        most: tokens that one answer may tell the shares of, whatever the condition.
    """

    basis: Matrix
    groups: tuple[Group, ...]
    blocks: list[Stack]
    most: int


def choose_token_groups(V: Stack, rng: np.random.Generator, *, coarse: bool = False) -> TokenGroups:
    """Groups as large as can be read from exact answers, or from coarse ones.

    Raises:
        Dependent: not even one token at a time tells the shares of all heads.
    """
    heads, width, outputs = V.shape
    with pin_one_thread():
        ranks, blocks = list_reading_blocks(V)
        size = most = max(1, min(outputs // heads, min(ranks), width))
        if coarse and size >= _MANY:
            size -= size // 8
        basis = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        while True:
            basis = balance_basis(basis, size, blocks, _STEPS)
            condition = max(measure_condition(X, [V]) for X in cut_evenly(basis, size))
            if condition <= (_WORST if size == 1 else _COARSE_CONDITION if coarse else _CONDITION):
                break
            if size == 1:
                raise Dependent("The answers do not tell the shares of all heads apart.")
            size -= max(1, size // (8 if coarse else 16))
    groups = tuple(make_group(V, X) for X in cut_evenly(basis, size))
    # Spaces that nearly depend spoil full groups of any tokens where digits are few.
    return TokenGroups(basis, groups, blocks, size if coarse else most)


def list_reading_blocks(V: Stack) -> tuple[list[int], list[Stack]]:
    """Ranks of the read-outs, and what tokens are read by: heads one by one, or all together."""
    ranks: list[int] = []
    left: list[Stack] = []
    right: list[Matrix] = []
    for part in V:
        U, values, Z = np.linalg.svd(part, full_matrices=False)
        rank = int((values > _RANK * values[0]).sum())
        ranks.append(rank)
        left.append((U[:, :rank] * values[:rank])[None])
        right.append(Z[:rank])
    spaces = np.concatenate(right)
    if len(spaces) > V.shape[2] or np.linalg.cond(spaces) > _SPACES:
        return ranks, [V]
    return ranks, left


def make_group(V: Stack, X: Matrix) -> Group:
    """Tokens asked together, the rows of X."""
    rows = list_rows(X, V)
    square = rows.shape[0] == rows.shape[1]
    with pin_one_thread():
        # Groups are well conditioned before they are made.
        reader = np.linalg.inv(rows) if square else np.linalg.pinv(rows)
    return Group(X, rows, np.asarray(reader, dtype=np.float64))
