"""From measured identities to facts: what the decision table goes by."""

from __future__ import annotations

import numpy as np

from keyhole.learners.findings import Witness
from keyhole.learners.recognising.identities import Evidence
from keyhole.learners.recognising.scale import Scale
from keyhole.learners.recognising.table import FINDINGS

_LINE = 0.1  # of a far answer, by which it grows where a residual is added
_GROWTH = 10.0**2.6  # of an answer to a token that grows a hundredfold
_TURNS_EVENLY = 0.5
_LONE = ("x", "-x", "y", "x+y", "far x", "far y")
_EVEN = 1e-3  # a weight that differs from 1/2 by less


def list_findings(evidence: Evidence, *, saturated: bool) -> dict[str, str]:
    """Findings of the table that the answers show, each with the identity that shows it most."""
    found: dict[str, str] = {}
    for name, row in FINDINGS.items():
        broken = evidence.differ(row.identities)
        # Without affine lone tokens pairs say nothing of scores, nor where all weight is on one.
        if broken and not (row.pairs and (saturated or "lone tokens bend" in found)):
            found[name] = max(broken, key=lambda one: _measure_excess(evidence, one))
    return found


def _measure_excess(evidence: Evidence, identity: str) -> float:
    measured = evidence.measure(identity)
    return measured.gap / measured.allowed if measured and measured.allowed > 0 else np.inf


def list_facts(evidence: Evidence, found: dict[str, str], scale: Scale) -> set[str]:
    """Everything the decision table asks for."""
    facts = set(found)
    if scale.acts or "earlier tokens act" in facts:
        facts.add("context acts")
    told = {
        "labels": evidence.format == "labels",
        "neighbours": "order" in facts and _is_of_neighbours(evidence),
        "constant": _is_constant(evidence),
        "scores show": scale.shows,
        "even weights": _are_weights_even(evidence, scale.value),
        "straight": any(_is_straight(evidence, place) for place in ("x", "y")),
        "norm": _turns_far_out(evidence) and not _grows(evidence),
        "grows": _grows(evidence),
        "levels off": _vanishes(evidence, {"2z": 1.0, "4z": -1.0}),
        "far line": _is_far_line(evidence),
        "unmoved by a shift": _vanishes(evidence, {"2z": 1.0, "2z+1": -1.0}),
        "copies and odds hold": evidence.agree("copies") and evidence.agree("odds"),
        "average": _is_average(evidence),
    }
    facts.update(name for name, yes in told.items() if yes)
    if "constant" in facts and "context acts" not in facts and evidence.coarseness.absolute > 0:
        facts.add("hidden")
    return facts


def list_witnesses(
    evidence: Evidence, found: dict[str, str], *, far_asked: bool
) -> dict[str, Witness]:
    """A witness for every class that a finding excludes."""
    excluded: dict[str, Witness] = {}
    for name, identity in found.items():
        row = FINDINGS[name]
        # Scores that are read from coarse answers only suggest.
        if row.pairs and evidence.coarseness.coarse:
            continue
        # A network that was not asked far out may bend where only pairs reach.
        spared = {"onelayer"} if row.pairs and not far_asked else set[str]()
        further = [one for one in row.excludes if one not in spared and one not in excluded]
        if further:
            excluded |= dict.fromkeys(further, evidence.make_witness(identity))
    return excluded


def _are_answered(evidence: Evidence, names: dict[str, float]) -> bool:
    return evidence.answers.keys() >= names.keys()


def _vanishes(evidence: Evidence, weights: dict[str, float]) -> bool:
    if not _are_answered(evidence, weights):
        return False
    value, band = evidence.add(weights)
    return bool((np.abs(value) <= band.tolerance).all())


def _differs(evidence: Evidence, weights: dict[str, float]) -> bool:
    if not _are_answered(evidence, weights):
        return False
    value, band = evidence.add(weights)
    return bool((np.abs(value) > band.allowed).any())


def _is_constant(evidence: Evidence) -> bool:
    asked = [name for name in _LONE if name in evidence.answers]
    return all(_vanishes(evidence, {name: 1.0, "0": -1.0}) for name in asked)


def _is_average(evidence: Evidence) -> bool:
    """Whether the identity of averages holds, and not because all weight lies on one token."""
    shown = {"*[x;y]": 1.0, evidence.lone: -1.0}, {"*[w;y]": 1.0, evidence.lone: -1.0}
    return evidence.agree("average") and not any(_vanishes(evidence, pair) for pair in shown)


def _is_of_neighbours(evidence: Evidence) -> bool:
    """Whether only [x;w;x;y], which parts equal tokens, is answered otherwise."""
    parted = evidence.differ(("neighbours parted", "neighbours joined"))
    same = evidence.agree("neighbours moved") and evidence.agree("context permuted")
    return len(parted) == 2 and same


def _are_weights_even(evidence: Evidence, scale: float) -> bool:
    """Whether x and its opposite have the same weight: g(1) + g(-1) = 0."""
    sides = {"*[x;y]": 1.0, "*g(-1)": 1.0, "y": -2.0 * scale, "0": 2.0 * scale - 2.0}
    if not _are_answered(evidence, sides):
        return False
    value, band = evidence.add(sides)
    whole, _ = evidence.add({"*[x;y]": 1.0, "*g(-1)": -1.0})
    return bool((np.abs(value) <= band.allowed + _EVEN * np.abs(whole).max()).all())


def _is_straight(evidence: Evidence, place: str) -> bool:
    """Whether both second differences near a token are 0."""
    before, after, beyond = (f"{place}{step}v" for step in ("-1", "+1", "+2"))
    inner = _vanishes(evidence, {before: 1.0, place: -2.0, after: 1.0})
    return inner and _vanishes(evidence, {place: 1.0, after: -2.0, beyond: 1.0})


# A network grows linearly far out, so that 2 f(u) - f(2u) is a constant; behind a norm it is a
# function of the direction, and turns as evenly as that. What grows there is a residual, linear in
# u; where units of a network switch between the directions, it is not.
_GROWTH_BESIDE = {"4z+": 1.0, "2z+": -1.0, "4z-": 1.0, "2z-": -1.0, "4z": -2.0, "2z": 2.0}


def _turns_far_out(evidence: Evidence) -> bool:
    sides = {"2z+": 2.0, "4z+": -1.0}, {"2z-": 2.0, "4z-": -1.0}
    middle = {"2z": 2.0, "4z": -1.0}
    if not _are_answered(evidence, _GROWTH_BESIDE) or _differs(evidence, _GROWTH_BESIDE):
        return False
    at, band = evidence.add(middle)
    (one, _), (other, _) = (evidence.add(side) for side in sides)
    first, second = np.abs(one - at).max(), np.abs(other - at).max()
    seen = min(first, second) > 2 * float(band.allowed.max())
    return bool(seen and np.abs(one + other - 2 * at).max() < _TURNS_EVENLY * (first + second))


def _is_far_line(evidence: Evidence) -> bool:
    """Whether far answers grow with the token, not only by what is left of a constant."""
    if not _differs(evidence, {"2z": 1.0, "4z": -1.0}):
        return False
    near, far = (evidence.answers[name] for name in ("2z", "4z"))
    return bool(np.abs(far - near).max() > _LINE * np.abs(far).max())


def _grows(evidence: Evidence) -> bool:
    """Whether answers to y grow much faster than y does, far out."""
    if not _are_answered(evidence, {"far y": 1.0, "10000 y": 1.0}):
        return False
    far, near = (np.abs(evidence.answers[name]).max() for name in ("far y", "10000 y"))
    return bool(far > _GROWTH * near)
