"""What a recovery costs before a single question: of a named learner, and of `auto` by class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate

from keyhole.errors import InvalidInput
from keyhole.learners.base import ClassPlan, Learner, Plan
from keyhole.learners.recognising.decisions import LABELS, choose_terms, list_learners
from keyhole.learners.recognising.recognition import MOST_QUESTIONS, USUAL_QUESTIONS
from keyhole.learners.registry import LEARNERS, NO_HINTS, Hints, make_learner
from keyhole.oracles import Imperfection

_ROOM = 2000
_TIMES = 24


def bound_trial(plan: Plan) -> int:
    """The most that `auto` gives a learner, which a named one may exceed.

    Targets of no class of ours would be searched for thousands of units.
    """
    return min(plan.at_most, _ROOM + _TIMES * plan.queries)


def plan_named_learner(learner: Learner, width: int, *, outputs: int = 1) -> Plan:
    """The plan of a learner, with the questions for a witness where it finds no model."""
    plan = learner.plan(width, outputs=outputs)
    return replace(plan, at_most=plan.at_most + MOST_QUESTIONS)


def list_block_learners(hints: Hints) -> list[str]:
    """Learners of blocks that a told wiring does not exclude."""
    return [
        name for name, entry in LEARNERS.items() if entry.finds == "block" and _fits(name, hints)
    ]


def _fits(name: str, hints: Hints) -> bool:
    try:
        make_learner(name, hints)
    except InvalidInput:
        return False
    return True


def bound_block_search(hints: Hints, width: int, *, outputs: int = 1) -> int:
    """The most that is asked for blocks after a layer of the wiring that was told."""
    learners = [make_learner(name, hints) for name in list_block_learners(hints)]
    return sum(bound_trial(each.plan(width, outputs=outputs)) for each in learners)


def plan_search(
    width: int,
    *,
    outputs: int = 1,
    hints: Hints = NO_HINTS,
    stated: Imperfection = Imperfection(),  # noqa: B008
) -> Plan:
    """What `auto` asks: of the class that needs least, of every class, and of any target at most.

    Args:
        width: size of a token.
        outputs: numbers per answer.
        hints: what is known of the target beforehand.
        stated: what is declared of its answers.
    """
    plans: dict[str, Plan] = {}
    before: dict[str, int] = {}
    for names in _list_searches(stated, outputs):
        tried = [substitute_learner(name, hints) for name in names]
        for name in tried:
            if name not in plans:
                plans[name] = make_learner(name, hints).plan(width, outputs=outputs)
        sums = accumulate((bound_trial(plans[name]) for name in tried), initial=MOST_QUESTIONS)
        for name, spent in zip(tried, list(sums)[1:], strict=True):
            before[name] = max(spent, before.get(name, 0))
    classes = tuple(
        ClassPlan(
            finds=LEARNERS[name].finds,
            learner=name,
            expected=USUAL_QUESTIONS + plan.queries,
            at_most=before[name],
        )
        for name, plan in plans.items()
    )
    first = next(iter(plans.values()))
    return replace(
        first,
        by_phase={"recognise": USUAL_QUESTIONS, **first.by_phase},
        at_most=max(before.values()),
        classes=classes,
    )


def substitute_learner(name: str, hints: Hints) -> str:
    """Weights on a grid take fewer questions than weights of a rank."""
    return "grid" if name == "low-rank" and hints.grid is not None else name


def _list_searches(stated: Imperfection, outputs: int) -> Iterator[tuple[str, ...]]:
    """Learners in the order in which they may be tried, one head first."""
    terms = choose_terms(stated)
    # Answers that nobody declared to be rounded may turn out to be.
    seen = (terms, "cast") if terms == "plain" else (terms,)
    rows = sorted(LABELS, key=lambda row: row.suggests[:1] != ("one head",))
    for each in seen:
        for row in rows:
            yield list_learners(row.suggests, each, outputs)
