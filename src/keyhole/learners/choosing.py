"""Which learner for which oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from keyhole._arrays import EPS, Rng, as_generator
from keyhole.claims import Verdict
from keyhole.errors import BadAnswer, BudgetSpent, InvalidInput
from keyhole.learners.base import Learner, Recovery, Status
from keyhole.learners.recognising.first_questions import is_curved, suggest_learners
from keyhole.learners.registry import LEARNERS, NO_HINTS, Hints, list_imperfections, make_learner
from keyhole.learners.verifying.ending import leave_open
from keyhole.learners.verifying.own_answers import Remembered
from keyhole.learners.verifying.saved_model import as_oracle
from keyhole.oracles import Budgeted, Counted, Declared, Imperfection, Oracle, read_imperfection

T = TypeVar("T")
_NOT_LOOKED = "The budget ended before other classes could be tried."


def _choose_name(hints: Hints, stated: Imperfection) -> str:
    if hints.tokens is not None:
        return "restricted"
    if stated.levels is not None:
        return "labels"
    if stated.absolute or stated.token_bound is not None:
        return "noisy"
    if hints.grid is not None:
        return "grid"
    return "low-rank" if stated.format == "f64" else "balanced"


def choose_learner(
    name: str = "auto",
    hints: Hints = NO_HINTS,
    stated: Imperfection = Imperfection(),  # noqa: B008
) -> Learner:
    """The learner of that name; `auto` goes by the hints and by what the oracle declares.

    Raises:
        InvalidInput: there is no such learner, a hint it needs is missing, or it does not bear what
            is declared.
    """
    if hints.tokens is not None and name not in ("auto", "restricted"):
        raise InvalidInput(f"--tokens goes with the learner restricted (or auto); got {name}.")
    if name == "auto":
        name = _choose_name(hints, stated)
    if name not in LEARNERS:
        raise InvalidInput(f"a learner is one of auto, {', '.join(LEARNERS)}; got {name!r}.")
    lacks = list_imperfections(stated)
    beyond = sorted(lacks.difference(LEARNERS[name].bears))
    if beyond:
        able = [other for other, entry in LEARNERS.items() if lacks.issubset(entry.bears)]
        instead = f"take --learner {' or '.join(able)}" if able else "no learner does"
        raise InvalidInput(
            f"the learner {name} does not bear {' and '.join(beyond)}, which is declared;"
            f" {instead}."
        )
    return make_learner(name, hints)


def learn(
    oracle: Oracle | Callable[[Any], Any],
    *,
    rng: Rng,
    learner: str | Learner = "auto",
    hints: Hints = NO_HINTS,
    budget: int | None = None,
) -> Recovery[Any]:
    """Recover the model behind `oracle` from queries, and verify it on fresh ones.

    Args:
        oracle: a black box, or a callable with a `width` attribute.
        rng: source of every random choice, or a number that seeds one.
        learner: a learner or its name; `auto` tries one head first, and goes on when answers
            scatter or refute it.
        hints: what is known of the target beforehand.
        budget: never ask more sequences than this, verification included.

    Returns:
        The recovery; `unwrap()` hands out its model only when verified.
    """
    rng = as_generator(rng)
    target = as_oracle(oracle)
    target = Remembered(target if budget is None else Budgeted(target, budget))
    stated = read_imperfection(target)
    chosen = choose_learner(learner, hints, stated) if isinstance(learner, str) else learner
    first = target.check(chosen.run(target, rng=rng), rng=rng)
    # Tokens of a vocabulary and labels show too little to tell other classes apart.
    if learner != "auto" or hints.tokens is not None or stated.levels is not None:
        return first
    plain = not stated.absolute and stated.token_bound is None
    # Answers that scatter are noisy, whatever was declared; how much is for the learner to find.
    if plain and first.status is Status.INCONSISTENT:
        target = Remembered(Declared(target.inner, Imperfection(noise=float("nan"))))
        noisy = make_learner("noisy", hints).run(target, rng=rng)
        first = replace(noisy, ledger=noisy.ledger.after(first.ledger, "before"))
        plain = False
    if plain:
        # Several heads whose answers are rounded look like one whose arithmetic is too coarse.
        coarse = first.status is Status.IMPRECISE and stated.format != "f64"
        beyond = first.verdict is Verdict.CLASS_REFUTED or first.status is Status.CONTRADICTED
        return _try_further_classes(target, first, rng) if beyond or coarse else first
    return _learn_beyond_heads(target, first, rng)


def _learn_beyond_heads(
    target: Remembered, first: Recovery[Any], rng: np.random.Generator
) -> Recovery[Any]:
    """Other classes where tokens are bounded or answers carry errors, once no head fits.

    Single tokens tell: heads answer them with an affine map, a network does not.
    """
    stated = read_imperfection(target)
    doubtful = first.verdict in (Verdict.CLASS_REFUTED, Verdict.UNVERIFIED)
    # A budget that left no room to verify one head leaves none for another class.
    if not doubtful or first.status is Status.UNCHECKED:
        return first
    bent, first = _look(is_curved, target, first, rng)
    if bent is None:
        return first
    if bent:
        exact = not stated.absolute and stated.roundoff <= EPS
        network = "network-in-ball" if exact else "noisy-network"
        return _try_further_classes(target, first, rng, (network,))
    # No learner of several heads bears absolute errors.
    heads = first.verdict is Verdict.CLASS_REFUTED and not stated.absolute
    return _try_further_classes(target, first, rng, ("heads-in-ball",)) if heads else first


def _look(
    recognise: Callable[..., T], target: Oracle, first: Recovery[Any], rng: np.random.Generator
) -> tuple[T | None, Recovery[Any]]:
    """What a few queries tell, None where the budget ends; and `first` with these counted."""
    looking = Counted(target)
    told = None
    with suppress(BudgetSpent), looking.phase("recognise"):
        told = recognise(looking, rng=rng)
    detail = first.detail if told is not None else f"{first.detail} {_NOT_LOOKED}".strip()
    ledger = first.ledger.after(looking.ledger, "recognise")
    return told, replace(first, ledger=ledger, detail=detail)


def _try_further_classes(
    target: Remembered,
    first: Recovery[Any],
    rng: np.random.Generator,
    candidates: tuple[str, ...] | None = None,
) -> Recovery[Any]:
    """Other classes, one after the other; the most informed verdict where none fits.

    Those that a few queries suggest, unless they are given. What was asked before counts as the
    phase `before`.
    """
    if candidates is None:
        candidates, first = _look(suggest_learners, target, first, rng)
        if candidates is None:
            return first
    spent = first.ledger
    tried = dict[str, Recovery[Any] | None]()
    for name in candidates:
        asked = Counted(target)
        try:
            found = target.check(make_learner(name).run(asked, rng=rng), rng=rng)
        # A target may be undefined where another class has to be asked (tokens far away).
        except BadAnswer:
            spent = asked.ledger.after(spent, "before")
            tried[name] = None
            continue
        spent = found.ledger.after(spent, "before")
        tried[name] = found
        if found.verdict not in (Verdict.CLASS_REFUTED, Verdict.UNVERIFIED):
            return replace(found, ledger=spent)
    return replace(_choose_most_informed(first, tried), ledger=spent)


def _choose_most_informed(
    first: Recovery[Any], tried: Mapping[str, Recovery[Any] | None]
) -> Recovery[Any]:
    """Of what classes ended with, the nearest not excluded; the first refusal where all are."""
    ends = {"one head": first, **tried}
    left = {name: end for name, end in ends.items() if end and end.verdict is Verdict.UNVERIFIED}
    nearest = min(left, key=lambda name: _measure_distance(left[name]), default="one head")
    best = left.get(nearest, first)
    others = [f"{name}: {_say_end(end)}" for name, end in ends.items() if name != nearest]
    detail = f"{best.detail} No other class was found to fit ({' '.join(others)})".strip()
    best = replace(best, detail=detail)
    # A class that could not be asked is not excluded.
    return leave_open(best) if None in tried.values() else best


def _measure_distance(recovery: Recovery[Any]) -> float:
    """How far fresh answers are from a model, relatively; infinite where there is none."""
    return np.inf if recovery.fresh is None else recovery.fresh.relative


def _say_end(recovery: Recovery[Any] | None) -> str:
    return "The target does not bear its questions." if recovery is None else recovery.status.value
