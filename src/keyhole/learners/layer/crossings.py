r"""Spaces of heads to rounding, from jumps at fresh tokens, where answers are coarse.

A jump of G between two neighbouring plateaus is $\pm V_h^\top x$ to the rounding of the answers
(see flips.py); only its change with x is not, since there rounding is divided by a small move. So
every new x gives one such vector for every head that flips alone in its interval of the half
circle. Which head that is the rough spaces tell: the vector lies almost inside one of them, and far
from the others.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread
from keyhole.learners.layer.flips import HalfCircle, Long, find_jumps

_SPARE = 1.25  # vectors per rank
_HALVINGS = 3  # of an interval of the first grid with a jump in it
_OWN = 0.15  # largest part of a jump outside the space of its head
_TRIES = 3  # half circles per vector wanted


def renew_spaces(
    pairs: Long, rough: tuple[Matrix, ...], *, roundoff: float, rng: np.random.Generator
) -> tuple[Matrix, ...]:
    """The spaces anew, of the same ranks; a head that hardly flips alone keeps its rough one."""
    wanted = [int(np.ceil(_SPARE * basis.shape[1])) + 1 for basis in rough]
    found: list[list[Vector]] = [[] for _ in rough]
    for _ in range(_TRIES * max(wanted)):
        circle = HalfCircle.random(pairs.oracle.width, rng)
        jumps = find_jumps(pairs, circle, roundoff=roundoff, halvings=_HALVINGS)
        for which, jump in _assign_jumps(jumps, rough):
            found[which].append(jump)
        if all(len(jumps) >= many for jumps, many in zip(found, wanted, strict=True)):
            break
    return tuple(_span_jumps(jumps, basis) for jumps, basis in zip(found, rough, strict=True))


def _assign_jumps(jumps: Matrix, rough: tuple[Matrix, ...]) -> list[tuple[int, Vector]]:
    """Jumps of single heads, each with the number of its head."""
    sizes = np.linalg.norm(jumps, axis=1)
    with pin_one_thread():
        inside = np.stack([np.linalg.norm(jumps @ basis, axis=1) for basis in rough])
    outside = np.sqrt(np.maximum(0.0, sizes**2 - inside**2))
    heads = outside.argmin(axis=0)
    # Two heads that flip in one interval leave a jump outside both their spaces.
    clear = outside.min(axis=0, initial=np.inf) <= _OWN * sizes
    return [(int(head), jump) for head, jump, own in zip(heads, jumps, clear, strict=True) if own]


def _span_jumps(jumps: list[Vector], rough: Matrix) -> Matrix:
    rank = rough.shape[1]
    if len(jumps) <= rank:
        return rough
    with pin_one_thread():
        return np.linalg.svd(np.stack(jumps).T, full_matrices=False)[0][:, :rank]
