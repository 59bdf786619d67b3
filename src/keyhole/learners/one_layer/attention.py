r"""Attention behind a known network: W, h and M from spots inside its linear regions.

Columns $W z_j + h$ at d + 1 spots give W and h by one linear solve. The spots lie along an
orthonormal basis and against its sum, each at the length where it is worth most; of a few random
bases the one with the least error to be expected is taken. Once a column adds nothing to the span
of those before, the range Q is complete, and at the spots left only the coordinates along Q are
asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, pin_one_thread
from keyhole.identify import matrix_rank
from keyhole.learners.networks.lines import measure_typical_distance
from keyhole.learners.one_head.designs import choose_span_design
from keyhole.learners.one_layer.pilots import BLIND, Outlook, Pilots
from keyhole.learners.one_layer.regions import (
    Sizes,
    Spot,
    find_best_spot,
    locate_spot,
)
from keyhole.learners.one_layer.scores import CUT, Reader
from keyhole.learners.one_layer.value_mixing import (
    choose_spanning_spots,
    find_seen_directions,
    measure_mixing,
    measure_slope_spread,
)
from keyhole.models import AbsAffine, Factored
from keyhole.oracles import Counted

_BASES = 4  # random bases looked at, without asking
_NOTHING = 1e-6  # share of a column that must be new for the range to grow
_ALIKE = 1e-4  # least singular value of the slopes at which spots do not tell M
_MORE = 8  # spots to choose from, per spot
_NO_BIAS = 1e-8  # size of h, relative to the columns, that counts as none


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """What is known of the attention.

    Args:
        W: score matrix.
        h: score bias, or None where none shows.
        M: mixing map, or None for the identity.
        rank: rank of W.
        joint: rank of [W | h].
        lost: forms that no step could read.
        short: whether coordinates along a range were asked instead of whole columns.
    """

    W: Matrix | Factored
    h: Vector | None
    M: Matrix | None
    rank: int
    joint: int
    lost: int = 0
    short: bool = False


def measure_attention(
    oracle: Counted,
    G: AbsAffine,
    *,
    roundoff: float = EPS,
    whole: bool = False,
    rng: np.random.Generator,
) -> Attention:
    """Measure the attention behind G.

    Args:
        oracle: the black box, counting.
        G: the network a lone token meets.
        roundoff: relative rounding of the answers.
        whole: whether to measure whole columns even where W seems to have low rank.
        rng: source of every random choice.
    """
    reader = Reader(oracle, G, Sizes(0.0, 0.0), roundoff)
    with oracle.phase("scale"):
        seen = Pilots.random(reader, rng).outlook()
    d = oracle.width
    if seen.sizes is None:
        with oracle.phase("measure"):
            M = _measure_mixing_alone(reader, seen, rng)
            return Attention(np.zeros((d, d)), None, M, 0, 0, reader.lost)
    reader.sizes = seen.sizes
    spots = _choose_spots(G, seen.sizes, rng)
    with oracle.phase("measure"):
        columns = _measure_spot_columns(reader, spots, seen, whole, rng)
    return _assemble_attention(reader, spots, *columns)


def _choose_spots(G: AbsAffine, sizes: Sizes, rng: np.random.Generator) -> list[Spot]:
    """The spots of the random basis that promises the least error of W."""
    draws = [_draw_basis_spots(G, sizes, rng) for _ in range(_BASES)]
    return min(draws, key=lambda pair: pair[1])[0]


def _draw_basis_spots(
    G: AbsAffine, sizes: Sizes, rng: np.random.Generator
) -> tuple[list[Spot], float]:
    d = G.width
    with pin_one_thread():
        U = np.linalg.qr(rng.normal(size=(d, d)))[0]
        found = [find_best_spot(G, u, sizes) for u in U]
        # h is told from W by a spot on the other side of the origin from all of these.
        units = [place.z / np.linalg.norm(place.z) for place, _ in found]
        against = -np.sum(units, axis=0) / np.sqrt(d)
        found.append(_find_last_spot(G, against, sizes, rng))
        spots = [place for place, _ in found]
        bars = np.array([np.linalg.norm(place.z) / max(worth, 1e-300) for place, worth in found])
        inverse = np.linalg.pinv(_build_spot_system(spots)[0], rcond=0.0)
        return spots, float(np.linalg.norm(inverse[:-1] * bars))


def _find_last_spot(
    G: AbsAffine, against: Vector, sizes: Sizes, rng: np.random.Generator
) -> tuple[Spot, float]:
    """A spot ahead of `against`, or where the network is flat there a shorter one anywhere."""
    ahead = find_best_spot(G, against, sizes, backwards=False)
    u = rng.normal(size=len(against))
    if ahead[1] > 0.0:
        return ahead
    return find_best_spot(G, u / np.linalg.norm(u), Sizes(4.0 * sizes.W, sizes.h))


def _build_spot_system(spots: list[Spot]) -> tuple[Matrix, float]:
    """Rows (z, L) with L the typical length of z, for the unknowns W and h / L."""
    Z = np.array([place.z for place in spots])
    L = float(np.median(np.linalg.norm(Z, axis=1)))
    return np.hstack([Z, np.full((len(Z), 1), L)]), L


def _measure_spot_columns(
    reader: Reader, spots: list[Spot], seen: Outlook, whole: bool, rng: np.random.Generator
) -> tuple[Matrix, Matrix | None]:
    """Columns W z + h at all spots, as rows, and a basis of their range where one was used."""
    directions = find_seen_directions(reader.G)
    first = choose_spanning_spots(spots, directions, rng=rng) if seen.residual else []
    if seen.residual and measure_slope_spread([spots[i] for i in first], directions) < _ALIKE:
        first = []
        _measure_mixing_elsewhere(reader, seen, rng)
    bases = reader.bases(spots)
    C = np.zeros((len(spots), reader.G.width))
    if first:
        chosen = [spots[i] for i in first]
        C[first] = measure_mixing(reader, chosen, bases[first], seen.mixing, rng=rng)
    done = list(first)
    Q = None
    for i in (i for i in range(len(spots)) if i not in first):
        if Q is None and not whole:
            Q = _find_complete_range(C[done])
        C[i] = _measure_spot_column(reader, spots[i], bases[i], Q)
        done.append(i)
    return C, Q


def _measure_mixing_alone(reader: Reader, seen: Outlook, rng: np.random.Generator) -> Matrix | None:
    """M where no score acts: zero where nothing before the last token does."""
    if seen.residual and seen.mixing < BLIND:
        return np.zeros((reader.G.width,) * 2)
    if seen.residual:
        _measure_mixing_elsewhere(reader, seen, rng)
    return reader.M


def _measure_mixing_elsewhere(reader: Reader, seen: Outlook, rng: np.random.Generator) -> None:
    """Measure M where regions differ, when scores are best read where they do not."""
    G = reader.G
    d = G.width
    own = measure_typical_distance(G)
    octaves = 1.0 + np.log2(max(1.0, float(np.abs(G.t).max(initial=0.0)) / own))
    lengths = own * 2.0 ** rng.uniform(0.0, octaves + 1.0, size=_MORE * (d + 1))
    spots = [locate_spot(G, z) for z in rng.normal(size=(len(lengths), d)) * lengths[:, None]]
    chosen = [spots[i] for i in choose_spanning_spots(spots, find_seen_directions(G), rng=rng)]
    # Slopes that are all alike leave a part of M open, which counts as lost.
    reader.lost += int(measure_slope_spread(chosen, find_seen_directions(G)) < _ALIKE)
    measure_mixing(reader, chosen, reader.bases(chosen), seen.mixing, scores=False, rng=rng)


def _measure_spot_column(reader: Reader, place: Spot, base: Vector, Q: Matrix | None) -> Vector:
    if Q is None:
        design = reader.design(place)
    else:
        V = reader.readout(place)
        design = choose_span_design(V, Q, most=V.shape[1], cut=CUT)
    forms = reader.forms(place, base, design)
    with pin_one_thread():
        column = design.solve(forms[None])[0]
        return column if Q is None else Q @ column


def _find_complete_range(C: Matrix) -> Matrix | None:
    """An orthonormal basis of the span of the rows, once the last of them adds nothing to it."""
    if len(C) < 2 or len(C) > C.shape[1]:
        return None
    with pin_one_thread():
        size = np.linalg.norm(C, axis=1, keepdims=True)
        _, S, Z = np.linalg.svd(C / np.where(size > 0, size, 1.0), full_matrices=False)
        rank = int((_NOTHING * S[0] < S).sum())
        return Z[:rank].T if rank < len(C) and rank > 0 else None


def _assemble_attention(
    reader: Reader, spots: list[Spot], C: Matrix, Q: Matrix | None
) -> Attention:
    """W and h from their columns."""
    A, L = _build_spot_system(spots)
    with pin_one_thread():
        joint = min(C.shape) if Q is None else Q.shape[1]
        if reader.sizes.W == 0.0:
            nothing = np.zeros((len(C[0]),) * 2)
            return Attention(nothing, C.mean(axis=0), reader.M, 0, 1, reader.lost)
        solved: Matrix = np.asarray(np.linalg.lstsq(A, C, rcond=None)[0].T, dtype=np.float64)
        W = solved[:, :-1]
        h = L * solved[:, -1]
        # A bias no larger than its error is none, and W is better known without it.
        if np.linalg.norm(h) <= _NO_BIAS * np.linalg.norm(C) / np.sqrt(len(C)):
            W = np.asarray(np.linalg.lstsq(A[:, :-1], C, rcond=None)[0].T, dtype=np.float64)
            h = None
        rank = matrix_rank(W, _NOTHING)
        if Q is not None and 2 * Q.shape[1] < len(Q):
            W = Factored(Q, W.T @ Q)
    joint = min(joint, rank + (h is not None))
    return Attention(W, h, reader.M, rank, joint, reader.lost, short=Q is not None)
