"""One class after the other: a learner within its plan, and the most informed of all ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from keyhole.claims import Verdict
from keyhole.errors import BadAnswer
from keyhole.learners.base import Learner, Plan, Recovery, Status
from keyhole.learners.findings import Recognition, Witness
from keyhole.learners.planning import bound_trial, substitute_learner
from keyhole.learners.recognising.formats import describe_seen
from keyhole.learners.recognising.known import Recognised
from keyhole.learners.recognising.table import CLASSES
from keyhole.learners.registry import Hints, make_learner
from keyhole.learners.verifying.ending import (
    SPENT,
    Account,
    Ending,
    conclude,
    end_refuted,
    reopen,
)
from keyhole.learners.verifying.own_answers import Remembered
from keyhole.oracles import Budgeted, Counted, Imperfection, Ledger, Oracle
from keyhole.oracles.base import read_imperfection, walk_wrapped

_TOLD = "wired-layer"  # the learner of what was told
_NEAR = 1e-3  # a relative gap that a further, faint head may explain


def run_within_plan(
    learner: Learner,
    oracle: Oracle,
    *,
    rng: np.random.Generator,
    bound: Callable[[Plan], int] = lambda plan: plan.at_most,
) -> Recovery[Any]:
    """What a learner makes of a target, with no more questions than its plan allows.

    Args:
        learner: what is run.
        oracle: what it asks.
        rng: source of its random choices.
        bound: how many questions a plan allows.
    """
    cap = Budgeted(oracle, bound(learner.plan(oracle.width, outputs=oracle.outputs or 1)))
    found = learner.run(cap, rng=rng)
    ended = found.verdict is Verdict.BUDGET_SPENT or found.status is Status.UNCHECKED
    if ended and cap.spent >= cap.budget and not is_budget_spent(oracle):
        return reopen(found, Status.OUT_OF_PLAN, f"They were {cap.budget:,}.")
    return found


def learn_as_seen(
    target: Remembered,
    learner: Learner,
    first: Recovery[Any],
    seen: Recognition,
    rng: np.random.Generator,
) -> Recovery[Any]:
    """The first end, unless the learner succeeds once answers are taken for the floats they seem.

    Learners that expect float64 fail at answers of servers and modules in float32, which hold
    enough digits for those that know of it.
    """
    if seen.format != "f32" or not read_imperfection(target).perfect:
        return first
    coarse = target.declare(describe_seen(seen))
    found = coarse.check(run_within_plan(learner, coarse, rng=rng), rng=rng)
    ledger = first.ledger.plus(Ledger({"before": found.ledger.total()}))
    if not _is_decided(found):
        return replace(first, ledger=ledger)
    ledger = Ledger({"before": first.ledger.total()}).plus(found.ledger)
    detail = f"{found.detail} Answers were seen to be f32 numbers, which was not declared.".strip()
    return replace(found, ledger=ledger, detail=detail, recognised=seen)


def search_further(
    target: Remembered,
    first: Recovery[Any],
    seen: Recognition,
    hints: Hints,
    *,
    learners: Sequence[str],
    rng: np.random.Generator,
) -> Recovery[Any]:
    """The first end, of the class that was told, unless others that answers suggest succeed."""
    search = Search(target.declare(describe_seen(seen)), seen, read_imperfection(target), hints)
    search.ends[_TOLD] = first
    for name in learners:
        if name in seen.suggested and search.is_worth_trying():
            search.run_learner(name, rng)
    found = search.conclude()
    if _is_decided(found):
        return found
    tried = [f"{name}: {end.status.value}" for name, end in search.ends.items() if name != _TOLD]
    detail = " ".join([first.detail, *tried])
    return replace(first, detail=detail, ledger=search.add_costs(_TOLD), recognised=seen)


def is_budget_spent(oracle: Oracle) -> bool:
    """Whether nothing more may be asked."""
    guards = (part for part in walk_wrapped(oracle) if isinstance(part, Budgeted))
    return any(guard.spent >= guard.budget for guard in guards)


@dataclass(slots=True)
class Search:
    """Classes tried so far, after a recognition.

    Args:
        target: with what was seen of its answers declared.
        seen: the recognition.
        stated: what was declared before.
        hints: what is known of the target beforehand.
    """

    target: Remembered
    seen: Recognition
    stated: Imperfection
    hints: Hints
    ends: dict[str, Recovery[Any]] = field(default_factory=dict[str, Recovery[Any]], init=False)
    refused: dict[str, Ledger] = field(default_factory=dict[str, Ledger], init=False)
    error: BadAnswer | None = field(default=None, init=False)

    def is_worth_trying(self) -> bool:
        """Whether another learner may succeed after those before it did not."""
        if is_budget_spent(self.target) or any(map(_is_decided, self.ends.values())):
            return False
        # Where copies and odds of exact answers act as in one head, further heads are faint.
        exact = self.seen.format == "f64" and self.stated.perfect
        if self.seen.label == "one head" and exact and self.ends:
            return min(map(_measure_distance, self.ends.values())) <= _NEAR
        return True

    def run_learner(self, name: str, rng: np.random.Generator) -> None:
        """Keep what a learner makes of the target, or that the target has no answer for it."""
        oracle = Counted(Recognised(self.target, self.seen))
        name = substitute_learner(name, self.hints)
        learner = make_learner(name, self.hints)
        try:
            found = run_within_plan(learner, oracle, rng=rng, bound=bound_trial)
        # A target may be undefined where another class has to be asked (tokens far away).
        except BadAnswer as error:
            self.refused[name], self.error = oracle.ledger, error
        else:
            self.ends[name] = self.target.check(found, rng=rng)

    def conclude(self) -> Recovery[Any]:
        """The most informed verdict of all that were reached."""
        if not self.ends and self.error is not None:
            raise self.error
        name = min(self.ends, key=lambda name: _rank_end(self.ends[name]), default=None)
        if name is None or self._is_refused_by_lone_tokens():
            return self._conclude_untried()
        best = self.ends[name]
        others = [
            f"{other}: {end.status.value}" for other, end in self.ends.items() if other != name
        ]
        others += [
            f"{other}: The target gives no answer to its questions." for other in self.refused
        ]
        parts = [best.detail, self._describe_seen()]
        if not _is_decided(best):
            parts += [f"It was tried as {name}.", *others, self._advise(name, best)]
            # What a learner of steady answers says of scattered ones is no reason.
            if self.seen.label == "non-deterministic":
                best = reopen(best, Status.INCONSISTENT, "")
        detail = " ".join(part for part in parts if part)
        seen = self._hedge_seen() if best.verdict.verified else self.seen
        return replace(best, detail=detail, ledger=self.add_costs(name), recognised=seen)

    def _advise(self, name: str, best: Recovery[Any]) -> str:
        """What to try next; of a budget that ran out, how large it should be."""
        if best.verdict is not Verdict.BUDGET_SPENT:
            return self.seen.advice
        plan = make_learner(name, self.hints).plan(
            self.target.width, outputs=self.target.outputs or 1
        )
        foreseen = plan.queries + self.seen.ledger.total().sequences
        return f"About {foreseen:,} queries are foreseen; a run that was kept goes on where it was."

    def _hedge_seen(self) -> Recognition:
        """The recognition; what errors let a few answers look like is not said as a fact."""
        if not self.stated.absolute:
            return self.seen
        said = self.seen.sentence
        told = f"At first sight, errors included: {said[:1].lower()}{said[1:]}"
        return replace(self.seen, sentence=told)

    def _is_refused_by_lone_tokens(self) -> bool:
        """Whether witnesses exclude every class but attention layers, and lone tokens those."""
        statuses = [end.status for end in self.ends.values()]
        return statuses == [Status.NO_LAYER] and self._is_nothing_left()

    def _is_nothing_left(self) -> bool:
        # No few answers exclude every layer as it is built, and every block; but none of them
        # answers far tokens by more than their length.
        return self.seen.steep and CLASSES.keys() - {"wired", "block"} <= self.seen.excluded.keys()

    def _conclude_untried(self) -> Recovery[Any]:
        """The end where no learner was suggested, or what was suggested is none of its class."""
        counted = Counted(self.target, self.add_costs(None))
        account: Account[Any] = Account(
            model=None, reason=self.seen.sentence, determined="Nothing was determined."
        )
        return replace(conclude(counted, self._end_untried(), account), recognised=self.seen)

    def _end_untried(self) -> Ending:
        if self.seen.label == "not finished" and is_budget_spent(self.target):
            return SPENT
        if self._is_nothing_left():
            witness = _choose_witness(self.seen.excluded)
            return end_refuted(Status.NO_CLASS, witness, self.seen.advice)
        return Ending(status=Status.NOT_SUGGESTED, detail=self.seen.advice)

    def _describe_seen(self) -> str:
        """What was seen of answers that nobody had declared."""
        form = self.seen.format
        if form == "f64" or not self.stated.perfect:
            return ""
        return f"Answers were seen to be {form} numbers, which was not declared."

    def add_costs(self, name: str | None) -> Ledger:
        """What all questions cost; those of learners but the named one as the phase `before`."""
        spent = self.seen.ledger
        failed = {other: end.ledger for other, end in self.ends.items() if other != name}
        for ledger in (*failed.values(), *self.refused.values()):
            spent = spent.plus(Ledger({"before": ledger.total()}))
        return spent if name is None else spent.plus(self.ends[name].ledger)


def _is_decided(end: Recovery[Any]) -> bool:
    """Whether a learner succeeded, as far as anyone can."""
    return end.verdict.verified or end.verdict is Verdict.NOT_IDENTIFIABLE


def _rank_end(end: Recovery[Any]) -> tuple[bool, float, bool]:
    """Decided ends first, then the nearest model, then stages of a block before the last."""
    partial = end.status is Status.UNITS_UNSEPARATED
    return not _is_decided(end), _measure_distance(end), not partial


def _measure_distance(end: Recovery[Any]) -> float:
    """How far fresh answers are from a model, relatively; infinite where there is none."""
    return np.inf if end.fresh is None else end.fresh.relative


def _choose_witness(excluded: Mapping[str, Witness]) -> Witness:
    """The witness that excludes most classes."""
    return max(excluded.values(), key=list(excluded.values()).count)
