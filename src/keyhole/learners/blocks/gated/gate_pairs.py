r"""All pairs (g, u) for which a space of symmetric matrices holds $g g^\top$ and $u g^\top + g
u^\top$.

$w \mapsto P(w w^\top) w$, P the projection on the space, climbs to $w w^\top$ in the space. Along u
the climb is flat up to the fourth order, so that it only comes near g. Gauss-Newton on what both
matrices leave outside of the space ends it: there u moves the second matrix, and nothing is flat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import unflatten_symmetric
from keyhole.oracles.own_time import check_own_time

_CLIMBS = 300  # steps of one climb
_ROUNDS = 30
_SHARPENED = 12
_THERE = 1e-3  # of both matrices, what may lie outside of the space
_SAME = 0.03  # of the sine between two that are one
_LARGEST = 0.5  # of a step


@dataclass(frozen=True, eq=False, slots=True)
class GatePairs:
    """Directions of gated units on a subspace.

    Args:
        g: of the gates, of unit length (units x m).
        u: of what they are multiplied by, as far as it is orthogonal to g, of unit length.
    """

    g: Matrix
    u: Matrix

    def __len__(self) -> int:
        return len(self.g)


def find_gate_pairs(
    basis: Matrix, m: int, count: int, *, rng: np.random.Generator
) -> GatePairs | None:
    """So many pairs in the span of the rows; None where they hide."""
    space = unflatten_symmetric(basis, m)
    outside = unflatten_symmetric(linalg.svd(basis, full_matrices=True)[2][len(basis) :], m)
    found = GatePairs(np.zeros((0, m)), np.zeros((0, m)))
    for turn in range(_ROUNDS):
        check_own_time()
        known = found if turn % 2 else GatePairs(found.g[:0], found.u[:0])
        w = _climb_to_pairs(space, _draw_climbs(space, known, 2 * (count - len(found)) + 16, rng))
        pairs, left = _sharpen_pairs(outside, w, _draw_second(outside, w))
        order = np.argsort(left)
        order = order[left[order] < _THERE]
        found = _add_new_pairs(found, GatePairs(pairs.g[order], pairs.u[order]))
        if len(found) >= count:
            break
    return found if len(found) == count else None


def _draw_climbs(space: Array, known: GatePairs, count: int, rng: np.random.Generator) -> Matrix:
    """Leading eigenvectors of random matrices of the space, what was found taken out."""
    m = space.shape[-1]
    drawn = rng.normal(size=(count, len(space))) @ space.reshape(len(space), -1)
    if len(known):
        crossed = np.einsum("ki,kj->kij", known.g, known.u)
        held = [np.einsum("ki,kj->kij", known.g, known.g), crossed + crossed.swapaxes(1, 2)]
        taken = linalg.qr(np.concatenate(held).reshape(-1, m * m).T)[0]
        drawn -= (drawn @ taken) @ taken.T
    values, vectors = linalg.eigh(drawn.reshape(-1, m, m))
    at = np.argmax(np.abs(values), axis=1)
    return vectors[np.arange(count), :, at]


def _climb_to_pairs(space: Array, w: Matrix) -> Matrix:
    m = space.shape[-1]
    flat = space.reshape(len(space), -1)
    for _ in range(_CLIMBS):
        shares = np.einsum("bi,bj->bij", w, w).reshape(len(w), -1) @ flat.T
        moved = np.einsum("bij,bj->bi", (shares @ flat).reshape(-1, m, m), w)
        w = moved / linalg.norm(moved, axis=1, keepdims=True)
    return w


def _draw_second(outside: Array, w: Matrix) -> Matrix:
    """Of what is orthogonal to each w the vector that is most nearly its u."""
    J = np.einsum("kij,bj->bki", outside, w, optimize=True)
    own = w[:, :, None] * w[:, None, :]
    vectors = linalg.eigh(J.swapaxes(1, 2) @ J + 10.0 * own)[1]
    return _take_off(vectors[:, :, 0], w)


def _take_off(u: Matrix, g: Matrix) -> Matrix:
    """Vectors less what they have of others, of unit length."""
    u = u - np.sum(u * g, axis=1, keepdims=True) * g
    return u / np.maximum(linalg.norm(u, axis=1, keepdims=True), 1e-300)


def _sharpen_pairs(outside: Array, g: Matrix, u: Matrix) -> tuple[GatePairs, Vector]:
    """Gauss-Newton steps of both directions, and what they leave."""
    m = g.shape[1]
    left: Vector = np.zeros(len(g))
    for _ in range(_SHARPENED):
        by_g = np.einsum("kij,bj->bki", outside, g, optimize=True)
        by_u = np.einsum("kij,bj->bki", outside, u, optimize=True)
        first = np.einsum("bki,bi->bk", by_g, g)
        rest = np.concatenate([first, np.einsum("bki,bi->bk", by_u, g)], axis=1)
        left = linalg.norm(rest, axis=1)
        across = np.eye(m) - g[:, :, None] * g[:, None, :]
        apart = across - u[:, :, None] * u[:, None, :]
        upper = np.concatenate([2 * by_g @ across, np.zeros_like(by_g)], axis=2)
        lower = np.concatenate([by_u @ across, by_g @ apart], axis=2)
        J = np.concatenate([upper, lower], axis=1)
        step = -(linalg.pinv(J, rcond=1e-7) @ rest[..., None])[..., 0]
        size = np.maximum(linalg.norm(step, axis=1, keepdims=True), 1e-300)
        step *= np.minimum(1.0, _LARGEST / size)
        g = g + step[:, :m]
        g /= linalg.norm(g, axis=1, keepdims=True)
        u = _take_off(u + step[:, m:], g)
    return GatePairs(g, u), left


def _add_new_pairs(found: GatePairs, more: GatePairs) -> GatePairs:
    g, u = list(found.g), list(found.u)
    for one, other in zip(more.g, more.u, strict=True):
        if not g or np.abs(np.array(g) @ one).max() < 1.0 - _SAME**2 / 2:
            g.append(one)
            u.append(other)
    m = found.g.shape[1]
    return GatePairs(np.array(g).reshape(-1, m), np.array(u).reshape(-1, m))
