"""Keys that fail on a few sets, mended: a key that many of these sets hold is drawn again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.constructions.sparse_averages.choosing_sets import Groups
from keyhole.constructions.sparse_averages.directions import Sets
from keyhole.constructions.sparse_averages.key_families import draw_spread_key
from keyhole.constructions.sparse_averages.set_queries import SetQueries

# Times keys are mended before a width is given up.
ROUNDS = 100
# Times without fewer failing sets than ever before.
PATIENCE = 10
# Failing sets, and their share of those looked at: where there are more, mending would not end.
HOPELESS = 24
SHARE = 1 / 100
# Sets solved at a time; the first of them tell hopeless keys.
BLOCK = 1_024
# Blocks between two words on how far it is: seconds.
TELLING = 16


@dataclass(slots=True)
class _Held:
    """Sets of one size with queries that were found, and margins against keys as they are now."""

    sets: Sets
    w: Matrix
    margin: Vector


def mend_keys(
    phi: SetQueries,
    groups: Groups,
    *,
    least: float,
    rng: np.random.Generator,
    tell: Callable[[str], None],
) -> SetQueries | None:
    """Keys mended until sets are singled out by a margin; None where that does not come about.

    Args:
        phi: the map whose keys are mended.
        groups: the sets in question.
        least: the margin that queries of largest entry 1 need.
        rng: draws keys, and the order in which sets are looked at.
        tell: is told how far it is.
    """
    held: list[_Held] = []
    for sets in groups:
        # In random order the first sets already tell how many fail.
        found = _solve_until_hopeless(phi, sets[rng.permutation(len(sets))], least, tell)
        if found is None:
            return None
        held.append(found)
    fewest = np.inf
    patience = PATIENCE
    for _ in range(ROUNDS):
        failing = _count_failing(held, phi.length, least)
        patience = PATIENCE if failing.sum() < fewest else patience - 1
        fewest = min(fewest, int(failing.sum()))
        if not fewest or not patience:
            break
        place = int(rng.choice(np.flatnonzero(failing == failing.max())))
        tell(f"key {place} is drawn again")
        phi = _redraw_key(phi, place, rng)
        for part in held:
            _solve_again(phi, part, place, least)
    return None if fewest else phi


def _solve_until_hopeless(
    phi: SetQueries, sets: Sets, least: float, tell: Callable[[str], None]
) -> _Held | None:
    parts: list[_Held] = []
    failing = 0
    for start in range(0, len(sets), BLOCK):
        if start and start % (TELLING * BLOCK) == 0:
            tell(f"{start:,} of {len(sets):,} sets, {failing:,} not singled out yet")
        block = sets[start : start + BLOCK]
        w, margin, _ = phi.find_directions(block)
        failing += int((margin < least).sum() + (margin <= 0).sum())
        parts.append(_Held(block, w, margin))
        if failing > max(HOPELESS, SHARE * (start + len(block))):
            return None
    return _Held(
        np.concatenate([part.sets for part in parts]),
        np.concatenate([part.w for part in parts]),
        np.concatenate([part.margin for part in parts]),
    )


def _count_failing(held: list[_Held], length: int, least: float) -> Sets:
    """How many failing sets hold each position."""
    total = np.zeros(length, dtype=np.int64)
    for part in held:
        failing = part.sets[(part.margin < least) | (part.margin <= 0)]
        total += np.bincount(failing.ravel(), minlength=length)
    return total


def _redraw_key(phi: SetQueries, place: int, rng: np.random.Generator) -> SetQueries:
    keys = phi.keys.copy()
    # Opposite, so that the key in question is not the best candidate for its own place.
    keys[place] = -keys[place]
    keys[place] = draw_spread_key(keys, place, rng)
    return replace(phi, keys=keys)


# A set that does not hold the new key keeps its query where the new key scores low enough.
def _solve_again(phi: SetQueries, held: _Held, place: int, least: float) -> None:
    inside = (held.sets == place).any(axis=1)
    on = np.einsum("bm,bm->b", held.w, phi.keys[held.sets[:, 0]])
    margin = np.minimum(held.margin, on - held.w @ phi.keys[place])
    again = np.flatnonzero(inside | (margin < least) | (margin <= 0))
    held.margin = margin
    if len(again):
        w, found, _ = phi.find_directions(held.sets[again])
        held.w[again] = w
        held.margin[again] = found
