r"""Heads that one isolation does not tell apart: a rough search, families, signs, a fit.

Steps that coincide are taken for one, read at small logits where any sum of sigmoids is straight,
and taken apart afterwards. Signs then follow from soft answers $f = \sum_h (V_h^+ A(W_h) + V_h^-
A(-W_h)) + V_0 A(0)$, which are linear in V: a head is turned round, or has a mirror image, as
$V_h^-$ says. The fit of all parameters starts there.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, softmax
from keyhole.learners.several_heads.coinciding import (
    Family,
    Look,
    look_at_heads,
    split_merged_heads,
)
from keyhole.learners.several_heads.heads_fit import (
    LARGEST,
    ask_soft_sequences,
    fit_heads_jointly,
    fit_heads_near_readouts,
)
from keyhole.learners.several_heads.isolation import (
    Isolation,
    add_row_columns,
    measure_boundary_columns,
)
from keyhole.learners.several_heads.last_column import refine_row_columns
from keyhole.learners.several_heads.pairs import Pairs, Unresolved
from keyhole.learners.several_heads.rows import Rows, RowSearch, find_rows, measure_readouts
from keyhole.models import MultiHead

_FAINT = 1e-3  # of the largest read-out: no smaller one is told from zero before the fit
_ALIKE = 0.05  # of a read-out, within which another is the same: signs are guessed, then fitted
_VIEWS = 6  # x that are tried


def recover_coinciding_heads(
    pairs: Pairs, search: RowSearch, rng: np.random.Generator
) -> tuple[MultiHead, Rows]:
    """A model whose heads may coincide in their boundaries, and the rows it began with.

    Raises:
        Unresolved: no rough search succeeds, or there are too many parameters to fit.
    """
    near, looks = _find_clear_view(pairs, search, rng)
    with pairs.oracle.phase("measure"):
        W = add_row_columns(near, measure_boundary_columns(near, rng), rng)
        W = _refine_merged_heads(near, W, looks, rng)
    with pairs.oracle.phase("apart"):
        found = split_merged_heads(near, W, looks)
    return fit_families(pairs, found, rng), near.rows


def fit_families(pairs: Pairs, found: list[Family], rng: np.random.Generator) -> MultiHead:
    """Heads known up to their signs, given signs and fitted to soft answers.

    Raises:
        Unresolved: there are too many parameters, or no signs fit.
    """
    W, D = (np.concatenate([getattr(family, name) for family in found]) for name in ("W", "D"))
    if W.size + D.size > LARGEST:
        raise Unresolved
    with pairs.oracle.phase("polish"):
        asked = ask_soft_sequences(pairs.oracle, MultiHead(W, D), rng)
    signed = _sign_families(pairs, found, asked)
    if any(family.near for family in found):
        return fit_heads_near_readouts(signed, asked, pairs.roundoff)
    return fit_heads_jointly(signed, asked, pairs.roundoff)


def _find_clear_view(
    pairs: Pairs, search: RowSearch, rng: np.random.Generator
) -> tuple[Isolation, list[Look]]:
    """Rows at an x that shows how many heads every step is made of.

    Raises:
        Unresolved: none of a few x does.
    """
    for _ in range(_VIEWS):
        try:
            with pairs.oracle.phase("rows"):
                rows = find_rows(pairs, search, rng)
                # More than the fit can hold, whatever another x shows.
                if rows.w.size * (pairs.B.size // len(rows.x) + len(rows.x)) > LARGEST:
                    break
                near = Isolation.near(pairs, rows, measure_readouts(pairs, rows, rng))
            with pairs.oracle.phase("apart"):
                return near, look_at_heads(near, rng)
        except Unresolved:
            continue
    raise Unresolved


def _refine_merged_heads(
    near: Isolation, W: Stack, looks: list[Look], rng: np.random.Generator
) -> Stack:
    """W with its worst columns measured again where that succeeds."""
    # Parallel heads have one merged W only near x, and not at the x all over the space asked here.
    if any(look.parallel for look in looks):
        return W
    for h in range(len(W)):
        with suppress(Unresolved):
            W = refine_row_columns(near, W, rng, heads=(h,))
    return W


def _sign_families(
    pairs: Pairs, found: list[Family], asked: list[tuple[Stack, Matrix]]
) -> MultiHead:
    """Heads with their signs, mirror images and the mean."""
    # Heads of nearly equal W answer as one here, and are told apart by the fit alone.
    W = np.concatenate([family.W[:1] if family.near else family.W for family in found])
    turned = iter(_fit_mirror_readouts(pairs, W, asked))
    heads: list[tuple[Matrix, Matrix]] = []
    for family in found:
        if family.near:
            heads += _sign_near_heads(family, next(turned))
        else:
            for U, D in zip(family.W, family.D, strict=True):
                heads += _sign_head(U, D, next(turned))
    mean = pairs.B - sum((V for _, V in heads), np.zeros_like(pairs.B))
    largest = max(float(np.abs(V).max()) for _, V in heads)
    if np.abs(mean).max() > _FAINT * largest:
        heads.append((np.zeros_like(W[0]), mean))
    W, V = (np.stack([head[i] for head in heads]) for i in (0, 1))
    return MultiHead(W, V * pairs.units, None, pairs.c if pairs.c.any() else None)


def _fit_mirror_readouts(pairs: Pairs, W: Stack, asked: list[tuple[Stack, Matrix]]) -> Stack:
    """The read-outs of -W, from a linear fit over the dictionary {W, -W, 0}."""
    every = np.concatenate([W, -W, np.zeros_like(W[:1])])
    rows = [
        (average_tokens_by_head(every, X).reshape(len(X), -1), (answers - pairs.c) / pairs.units)
        for X, answers in asked
    ]
    sizes = np.concatenate([np.abs(means).max(axis=1) for means, _ in rows])[:, None]
    means, answers = (np.concatenate([row[i] for row in rows]) / sizes for i in (0, 1))
    V: Matrix = np.linalg.lstsq(means, answers, rcond=1e-12)[0].astype(np.float64)
    return V.reshape(len(every), len(pairs.B), -1)[len(W) : 2 * len(W)]


def average_tokens_by_head(W: Stack, X: Stack) -> Array:
    """The mean of the tokens under every head, (batch, heads, width)."""
    scores = np.einsum("bnd,hde,be->bhn", X, W, X[:, -1])
    return softmax(scores) @ X


def _sign_head(W: Matrix, D: Matrix, M: Matrix) -> list[tuple[Matrix, Matrix]]:
    """One head, turned round or not, or with its mirror image."""
    size = float(np.abs(D).max())
    if np.abs(M).max() <= _ALIKE * size:
        return [(W, D)]
    if np.abs(M + D).max() <= _ALIKE * size:
        return [(-W, -D)]
    return [(W, D + M), (-W, M)]


def _sign_near_heads(family: Family, M: Matrix) -> list[tuple[Matrix, Matrix]]:
    """Heads of nearly equal W, some of them turned round: those whose read-outs add up to -M.

    Raises:
        Unresolved: no choice does.
    """
    choices = np.array(list(product((0.0, 1.0), repeat=len(family.D))))
    gaps = np.abs(np.einsum("cj,jdo->cdo", choices, family.D) + M).max(axis=(1, 2))
    best = int(np.argmin(gaps))
    if gaps[best] > _ALIKE * np.abs(family.D).max():
        raise Unresolved
    signs = 1.0 - 2.0 * choices[best]
    return [(s * W, s * D) for s, W, D in zip(signs, family.W, family.D, strict=True)]
