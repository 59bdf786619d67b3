"""The scale at which pairs of tokens show scores: neither even weights nor all on one token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole.learners.recognising.design import Range, name_rung
from keyhole.learners.recognising.identities import Evidence

_SEEN = 1e-4  # relative change of the answer per length of token by which scores show
_CLEAR = 1e-6
_WANTED = 0.7  # the score difference that is aimed at
_SATURATED = 6.0
_HOPELESS = 30.0
_CUT = 300.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Where pairs are asked.

    Args:
        value: by how much x and y are scaled.
        acts: whether an earlier token was seen to act at all.
        shows: whether scores were seen to change with the scale.
    """

    value: float
    acts: bool
    shows: bool


UNSEEN = Scale(1.0, acts=False, shows=False)


@dataclass(frozen=True, slots=True)
class _Rung:
    """The share of an earlier token in the answer, per length of token, at one scale."""

    scale: float
    share: float
    noise: float


def choose_scale(evidence: Evidence, limits: Range) -> Scale:
    """The scale for heads, whose lone tokens are affine, from the ladder of pairs.

    With even weights the share of an earlier token does not depend on the scale; the first rung
    that departs from that tells the scores, which grow as its square.
    """
    rungs = _measure_rungs(evidence, [c for c in limits.rungs if name_rung(c) in evidence.answers])
    sure = [rung for rung in rungs if rung.share > rung.noise]
    if not sure:
        return UNSEEN
    value, shows = _read_ladder(rungs, sure)
    return Scale(min(value, limits.longest), acts=True, shows=shows)


def _measure_rungs(evidence: Evidence, scales: list[float]) -> list[_Rung]:
    if not scales:
        return []
    seen = [evidence.add({name_rung(c): 1.0, "y": -c, "0": c - 1.0}) for c in scales]
    values = np.abs([value for value, _ in seen])
    noises = np.array([band.allowed for _, band in seen])
    # One output for all scales, that of which most is seen: shares of two are not comparable.
    place = int(np.argmax(np.log1p(values / np.maximum(noises, 1e-300)).sum(axis=0)))
    shares, allowed = values[:, place] / scales, noises[:, place] / scales
    return [_Rung(*rung) for rung in zip(scales, shares.tolist(), allowed.tolist(), strict=True)]


def _read_ladder(rungs: list[_Rung], sure: list[_Rung]) -> tuple[float, bool]:
    even = sure[0]
    # Read-outs that cancel show only once weights differ: at smaller scales there was nothing.
    faded = any(rung.noise < 0.5 * even.share for rung in rungs if rung.scale < even.scale)
    before = 0.0 if faded else even.share
    # Half of what a token of all weight would show, of one head and of several that cancel.
    half = max(even.share, 0.5 * max(rung.share for rung in sure))
    for rung in rungs:
        if rung.scale > even.scale or (faded and rung is even):
            change = abs(rung.share - before) / half
            if change > _SEEN + (rung.noise + even.noise) / half:
                return _aim(rung.scale, 2.0 * change), True
    # Weaker or sharper than the ladder reaches: only the sharp ones need another scale.
    clear = [rung for rung in sure if rung.noise < _CLEAR * rung.share]
    return (clear or [min(sure, key=lambda rung: rung.noise / rung.share)])[0].scale, False


def _aim(scale: float, score: float) -> float:
    if score < 0.9:
        return scale * float(np.sqrt(_WANTED / score))
    return scale if score < 1.6 else scale / 3.0


def choose_asked_scale(evidence: Evidence, limits: Range) -> float:
    """The scale for targets that are not affine: one at which y was asked alone."""
    asked = [1.0, *limits.lone_rungs]
    acting = [c for c in asked if evidence.differ([f"earlier {c:g}"])]
    # All on x: smaller tokens have smaller scores.
    swayed = evidence.answers.keys() >= {"[x;y]", "x"} and not _differ(evidence, "[x;y]", "x")
    if swayed and acting[:1] == [1.0]:
        acting = [c for c in acting if c < 1.0] or acting
    return acting[0] if acting else 1.0


def _differ(evidence: Evidence, one: str, other: str) -> bool:
    value, band = evidence.add({one: 1.0, other: -1.0})
    return bool((np.abs(value) > band.tolerance).any())


def measure_saturation(evidence: Evidence, scale: float) -> float:
    """By how much a pair's scale has to be cut, 1 where the weights are read well.

    The weight of x is p = g(1)/(g(1) - g(-1)).
    """
    total, wide = evidence.add({"*[x;y]": 1.0, "*g(-1)": -1.0})
    place = int(np.argmax(np.abs(total) / np.maximum(wide.allowed, 1e-300)))
    # Read-outs that cancel leave no weight to be read, nor do answers that overflow in the sum.
    if not abs(total[place]) > wide.allowed[place]:
        return 1.0
    shares: list[float] = []
    hidden = False
    for name in ("*[x;y]", "*g(-1)"):
        rise, band = evidence.add({name: 1.0, "y": -scale, "0": scale - 1.0})
        # Of what rounding hides, only the most that it may be is known.
        seen = max(abs(float(rise[place])), float(band.allowed[place]))
        shares.append(seen / abs(float(total[place])))
        hidden |= abs(rise[place]) <= band.allowed[place]
    logit = abs(float(np.log(shares[0] / shares[1])))
    if logit <= _SATURATED or max(shares) > 1.0 + 1e-3:
        return 1.0
    return _CUT if hidden or logit > _HOPELESS else float(np.sqrt(logit / _WANTED))
