"""Finding, with no prior knowledge, the token lengths at which logits are of order one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from keyhole._arrays import EPS, Matrix, Vector, find_power_of_two
from keyhole.errors import BadAnswer
from keyhole.learners.one_head.designs import Design
from keyhole.learners.one_head.probes import TARGET, Indices, Prober, Saturated
from keyhole.learners.one_head.readout import NotAHead, Readout
from keyhole.oracles import Counted

_PROBES = 40
_AIM = TARGET  # for the largest of the logits looked at
_LOGITS = 6  # logits to look at: of a matrix of rank one, a few may all be small by chance
_RATIO = 2.0**-13  # |y| / |x|: a short y costs no digits in y.V nor in the scores of y itself
_READABLE = 20.0  # a larger logit is at the edge of rounding
_LARGEST = 1e40  # a product |x||y| at which no effect means W = 0
_SMALLEST = 1e-60  # a product at which saturation means that no finite W is behind it

Probe = Callable[[float], Vector]


def find_scale(probe: Probe, *, largest: float, floor: float = 1e-9) -> float | None:
    """The scale at which the largest logit of `probe` is TARGET, or None when nothing acts.

    A logit is proportional to the scale; a saturated probe is a step of 1e-12 down, an invisible
    one 1e12 up, and between a saturated and an invisible scale the search bisects geometrically.

    Raises:
        Saturated: every scale is, or none between a saturated and an invisible one is readable.
    """
    scale = min(1.0, largest)
    low, high = 0.0, np.inf
    for _ in range(_PROBES):
        size = float(np.abs(probe(scale)).max())
        if floor <= size <= _READABLE:
            return scale * TARGET / size
        if size < floor:
            if scale >= largest:
                return None
            low = scale
            scale = float(np.sqrt(low * high)) if high < np.inf else min(scale * 1e12, largest)
        else:
            high = scale
            scale = float(np.sqrt(low * high)) if low > 0 else scale * 1e-12
        if scale < _SMALLEST:
            break
    raise Saturated


class _Calibration:
    """Probes of random groups of one design along random directions."""

    def __init__(self, prober: Prober, design: Design, rng: np.random.Generator) -> None:
        self.prober = prober
        self.design = design
        self.rng = rng
        self.enough = -(-_LOGITS // design.X.shape[1])
        self.tried = (0, np.zeros(design.X.shape[2]), 1.0)

    def draw(self, count: int) -> tuple[Indices, Matrix]:
        """Random groups of vectors and random unit directions."""
        groups = self.rng.integers(len(self.design.X), size=count)
        Y = self.rng.normal(size=(count, self.design.X.shape[2]))
        return groups.astype(np.intp), Y / np.linalg.norm(Y, axis=1, keepdims=True)

    def logits(self, groups: Indices, Y: Matrix, sx: float, sy: float) -> Vector:
        """Logits of single queries; a query the target cannot bear counts as saturated."""
        self.tried = (int(groups[0]), sy * Y[0], sx)
        try:
            t = self.prober.single(self.design, groups, sy * Y, np.full(len(groups), sx))
        except BadAnswer:
            return np.array([np.inf])
        return np.where(np.isfinite(t), t, np.inf).ravel()

    def refuse_class(self) -> NotAHead:
        """The last query as a counterexample: tokens so short every head weighs evenly."""
        group, y, sx = self.tried
        return self.prober.even(self.design, group, y, sx)


def calibrate_prober(
    oracle: Counted,
    readout: Readout,
    design: Design,
    *,
    roundoff: float = EPS,
    rng: np.random.Generator,
) -> Prober:
    """A prober whose logits are of about the size TARGET; sy = 0 when W acts at no scale."""
    prober = Prober(oracle, readout, 1.0, 1.0, roundoff)
    search = _Calibration(prober, design, rng)
    try:
        sx, sy = _find_biased_lengths(search) if readout.biased else _find_plain_lengths(search)
    except Saturated:
        raise search.refuse_class() from None
    # Powers of two, so that scaling tokens rounds nothing.
    prober.sx = find_power_of_two(sx)
    prober.sy = find_power_of_two(sy)
    return prober


def _find_plain_lengths(search: _Calibration) -> tuple[float, float]:
    """Lengths for a head without score bias: only the product matters to the logits."""
    readout = search.prober.readout
    V, total, c = (float(np.abs(a).max()) for a in (readout.V, readout.total, readout.c))
    ratio = _RATIO * V / max(V, total)

    def lengths(product: float) -> tuple[float, float]:
        sx = max(float(np.sqrt(product / ratio)), 2.0**10 * c / V)
        return sx, product / sx

    # Two probes find the scale; the others are asked once, near it.
    first = min(2, search.enough)
    groups, Y = search.draw(first)
    product = find_scale(lambda s: search.logits(groups, Y, *lengths(s)), largest=_LARGEST)
    if product is not None and search.enough > first:
        groups, Y = search.draw(search.enough - first)
        product = _confirm_scale(lambda s: search.logits(groups, Y, *lengths(s)), product)
    return (1.0, 0.0) if product is None else lengths(product)


def _confirm_scale(probe: Probe, scale: float) -> float:
    """The smaller of `scale` and what further probes ask for."""
    for _ in range(_PROBES):
        size = float(np.abs(probe(scale)).max())
        if size <= _READABLE:
            return scale * _AIM / max(size, TARGET)
        scale /= 64.0
    return scale


def _find_biased_lengths(search: _Calibration) -> tuple[float, float]:
    """Lengths for a head with a score bias: first x so that x.h is of order one, then y."""
    readout = search.prober.readout
    V, total = (float(np.abs(a).max()) for a in (readout.V, readout.total))
    groups, Y = search.draw(search.enough)
    sx = find_scale(lambda s: search.logits(groups, Y, s, 0.0), largest=_LARGEST)
    if sx is None:
        raise Saturated
    still = search.logits(groups, Y, sx, 0.0)
    # y itself is answered too: rounding of y.(V + U) hides x.V when y is much longer than x.
    level = sx * V / total
    floor = max(1e-9, 1e7 * search.prober.roundoff)
    sy = find_scale(
        lambda s: search.logits(groups, Y, sx, s) - still, largest=1e4 * level, floor=floor
    )
    return (sx, 0.0) if sy is None else (sx, min(sy, level))
