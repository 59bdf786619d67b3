"""Which learner for which oracle: recognise, learn, examine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.claims import Verdict
from keyhole.errors import BadAnswer, InvalidInput, OutOfTime
from keyhole.learners.base import Learner, Plan, Recovery, Status
from keyhole.learners.findings import Recognition, Witness
from keyhole.learners.planning import (
    bound_trial,
    plan_named_learner,
    plan_search,
    substitute_learner,
)
from keyhole.learners.recognising.formats import describe_seen
from keyhole.learners.recognising.known import Recognised
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.recognising.table import CLASSES
from keyhole.learners.recognising.witnesses import find_witness_among, recognise_afterwards
from keyhole.learners.recording import Settings, keep_record, show_progress
from keyhole.learners.registry import (
    LEARNERS,
    NO_HINTS,
    Hints,
    find_entry,
    list_imperfections,
    make_learner,
)
from keyhole.learners.verifying.ending import (
    SPENT,
    Account,
    Ending,
    conclude,
    end_refuted,
    refute,
    reopen,
    tell_cause,
)
from keyhole.learners.verifying.own_answers import Remembered
from keyhole.learners.verifying.saved_model import as_oracle
from keyhole.models import Wiring
from keyhole.oracles import Budgeted, Counted, Imperfection, Ledger, Oracle, read_imperfection
from keyhole.oracles.base import walk_wrapped
from keyhole.oracles.own_time import Paced, Stopwatch, bound_own_work
from keyhole.oracles.wrappers import Told

_NEAR = 1e-3  # a relative gap that a further, faint head may explain
# A model that is right but for its digits, and answers that tell too little, deny no class.
_SAY_NOTHING = (
    Status.INCONSISTENT,
    Status.HIDDEN,
    Status.IMPRECISE,
    Status.ROUGH,
    Status.VEILED,
    Status.EMPTY_GUARANTEE,
    Status.UNCHECKED,
)


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


def _choose_name(hints: Hints, stated: Imperfection) -> str:
    """The learner for what is known of a target without a question."""
    if hints.tokens is not None:
        return "restricted"
    if stated.levels is not None:
        return "labels"
    if stated.absolute or stated.token_bound is not None:
        return "noisy"
    if hints.wiring is not None:
        return "wired-layer"
    if hints.grid is not None:
        return "grid"
    return "low-rank" if stated.format == "f64" else "balanced"


def plan_recovery(
    name: str = "auto",
    *,
    width: int,
    outputs: int = 1,
    hints: Hints = NO_HINTS,
    stated: Imperfection = Imperfection(),  # noqa: B008
) -> Plan:
    """What `learn` asks with the learner of that name, and the most it ever does.

    Raises:
        InvalidInput: as `choose_learner` does.
    """
    chosen = choose_learner(name, hints, stated)
    if name == "auto" and _can_recognise(hints, stated):
        return plan_search(width, outputs=outputs, hints=hints, stated=stated)
    return plan_named_learner(chosen, width, outputs=outputs)


def _can_recognise(hints: Hints, stated: Imperfection) -> bool:
    # Tokens of a vocabulary and labels show too little to tell other classes apart.
    return hints.tokens is None and hints.wiring is None and stated.levels is None


def learn(
    oracle: Oracle | Callable[[Any], Any],
    *,
    rng: Rng,
    learner: str | Learner = "auto",
    hints: Hints = NO_HINTS,
    wiring: Wiring | None = None,
    budget: int | None = None,
    max_seconds: float | None = None,
    record: str | Path | None = None,
    progress: bool | Told = False,
) -> Recovery[Any]:
    """Recover the model behind `oracle` from queries, and verify it on fresh ones.

    Args:
        oracle: a black box, or a callable with a `width` attribute.
        rng: source of every random choice, or a number that seeds one.
        learner: a learner or its name; `auto` recognises the target first, and tries the learners
            that its answers suggest.
        hints: what is known of the target beforehand.
        wiring: how an attention layer is wired, as far as that is known; beside `hints`.
        budget: never ask more sequences than this, verification included.
        max_seconds: stop after so many seconds of own work, in which the target is not waited for.
        record: a file that keeps questions and answers; the same call goes on in it after whatever
            ended it, and asks nothing again. It needs the same rng as the first time.
        progress: True for a bar in a terminal or notebook, or what is told of every batch: the
            phase, and how many sequences were answered.

    Returns:
        The recovery; `unwrap()` hands out its model only when verified.

    Raises:
        InvalidInput: hints, budget or record do not fit.
    """
    target = as_oracle(oracle)
    hints = hints if wiring is None else replace(hints, wiring=wiring)
    settings = Settings(learner, hints, as_generator(rng))
    watch = Stopwatch() if max_seconds is None else Stopwatch(max_seconds)
    with ExitStack() as stack:
        kept = stack.enter_context(keep_record(target, settings, record, budget))
        foresee = partial(_foresee_queries, target, settings)
        watched = stack.enter_context(show_progress(kept, foresee, progress))
        return _learn_in_time(Paced(watched, watch=watch), settings, watch)


def _foresee_queries(target: Oracle, settings: Settings) -> int:
    """How many questions the first learner plans, for a bar."""
    chosen = settings.learner
    if isinstance(chosen, str):
        chosen = choose_learner(chosen, settings.hints, read_imperfection(target))
    return chosen.plan(target.width, outputs=target.outputs or 1).queries


def _learn_in_time(paced: Paced, settings: Settings, watch: Stopwatch) -> Recovery[Any]:
    try:
        with bound_own_work(watch):
            found = _learn(Remembered(paced), settings.learner, settings.hints, settings.rng)
            return tell_cause(found, read_imperfection(paced).cause)
    except OutOfTime:
        return _end_undecided(paced, Status.OUT_OF_TIME, f"It was {watch.limit:g} s.")
    # Whatever a target answers, no learner ends in a traceback: 1e308 here and there is enough.
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        return _end_undecided(paced, Status.NOT_COMPUTED, f"What failed is: {error}.")


def _end_undecided(paced: Paced, status: Status, detail: str) -> Recovery[Any]:
    """The end of a recovery that was stopped before any class was decided on."""
    account: Account[Any] = Account(
        model=None, reason="No class was decided on.", determined="Nothing was determined."
    )
    return conclude(paced, Ending(status=status, detail=detail), account)


def _learn(
    target: Remembered, learner: str | Learner, hints: Hints, rng: np.random.Generator
) -> Recovery[Any]:
    stated = read_imperfection(target)
    chosen = choose_learner(learner, hints, stated) if isinstance(learner, str) else learner
    if learner == "auto" and _can_recognise(hints, stated):
        return _recognise_and_learn(target, hints, rng)
    found = target.check(run_within_plan(chosen, target, rng=rng), rng=rng)
    return _look_for_witness(target, chosen, found, hints, rng)


def _look_for_witness(
    target: Oracle,
    learner: Learner,
    found: Recovery[Any],
    hints: Hints,
    rng: np.random.Generator,
) -> Recovery[Any]:
    """The recovery; CLASS_REFUTED where it failed and answers show that it had to."""
    entry = find_entry(learner)
    silent = found.verdict is not Verdict.UNVERIFIED or found.status in _SAY_NOTHING
    if entry is None or silent or read_imperfection(target).levels is not None:
        return found
    asking = Counted(target)
    if hints.tokens is None:
        seen = recognise_afterwards(asking, rng=rng)
        witness = None if seen is None else seen.excluded.get(entry.finds)
    else:
        seen, witness = None, find_witness_among(asking, hints.tokens, rng=rng)
    found = replace(found, ledger=found.ledger.plus(asking.ledger), recognised=seen)
    return found if witness is None else refute(found, witness)


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
    if ended and cap.spent >= cap.budget and not _is_budget_spent(oracle):
        return reopen(found, Status.OUT_OF_PLAN, f"They were {cap.budget:,}.")
    return found


def _is_budget_spent(oracle: Oracle) -> bool:
    guards = (part for part in walk_wrapped(oracle) if isinstance(part, Budgeted))
    return any(guard.spent >= guard.budget for guard in guards)


def _recognise_and_learn(
    target: Remembered, hints: Hints, rng: np.random.Generator
) -> Recovery[Any]:
    """Learners that the first answers suggest, one after the other, until one succeeds."""
    asking, trying = rng.spawn(2)
    seen = recognise(target, rng=asking)
    stated = read_imperfection(target)
    search = _Search(target.declare(describe_seen(seen)), seen, stated, hints)
    for name in seen.suggested:
        if search.is_worth_trying():
            search.run_learner(name, trying)
    return search.conclude()


@dataclass(slots=True)
class _Search:
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
        if _is_budget_spent(self.target) or any(map(_is_decided, self.ends.values())):
            return False
        # Where copies and odds of exact answers act as in one head, further heads are faint.
        if self.seen.label == "one head" and self.seen.format == "f64" and self.ends:
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
        others += [f"{other}: The target does not bear its questions." for other in self.refused]
        parts = [best.detail, self._describe_seen()]
        if not _is_decided(best):
            parts += [f"It was tried as {name}.", *others, self.seen.advice]
            # What a learner of steady answers says of scattered ones is no reason.
            if self.seen.label == "non-deterministic":
                best = reopen(best, Status.INCONSISTENT, "")
        detail = " ".join(part for part in parts if part)
        seen = self._hedge_seen() if best.verdict.verified else self.seen
        return replace(best, detail=detail, ledger=self._add_costs(name), recognised=seen)

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
        # Attention layers behind norms or with positions are too many for a witness.
        return CLASSES.keys() - {"wired"} <= self.seen.excluded.keys()

    def _conclude_untried(self) -> Recovery[Any]:
        """The end where no learner was suggested, or what was suggested is none of its class."""
        counted = Counted(self.target, self._add_costs(None))
        account: Account[Any] = Account(
            model=None, reason=self.seen.sentence, determined="Nothing was determined."
        )
        return replace(conclude(counted, self._end_untried(), account), recognised=self.seen)

    def _end_untried(self) -> Ending:
        if self.seen.label == "not finished" and _is_budget_spent(self.target):
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

    def _add_costs(self, name: str | None) -> Ledger:
        """What all questions cost; those of learners but the named one as the phase `before`."""
        spent = self.seen.ledger
        failed = {other: end.ledger for other, end in self.ends.items() if other != name}
        for ledger in (*failed.values(), *self.refused.values()):
            spent = spent.plus(Ledger({"before": ledger.total()}))
        return spent if name is None else spent.plus(self.ends[name].ledger)


def _is_decided(end: Recovery[Any]) -> bool:
    """Whether a learner succeeded, as far as anyone can."""
    return end.verdict.verified or end.verdict is Verdict.NOT_IDENTIFIABLE


def _rank_end(end: Recovery[Any]) -> tuple[bool, float]:
    """Decided ends first, then the nearest model."""
    return not _is_decided(end), _measure_distance(end)


def _measure_distance(end: Recovery[Any]) -> float:
    """How far fresh answers are from a model, relatively; infinite where there is none."""
    return np.inf if end.fresh is None else end.fresh.relative


def _choose_witness(excluded: Mapping[str, Witness]) -> Witness:
    """The witness that excludes most classes."""
    return max(excluded.values(), key=list(excluded.values()).count)
