"""Which learner for which oracle: recognise, learn, examine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Required, TypedDict, Unpack, overload

import numpy as np

from keyhole._arrays import Rng, as_generator
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput, OutOfTime
from keyhole.learners.base import Learner, LearnerOf, M, Plan, Recovery, Status
from keyhole.learners.planning import (
    bound_block_search,
    list_block_learners,
    plan_named_learner,
    plan_search,
)
from keyhole.learners.recognising.formats import describe_seen
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.recognising.witnesses import find_witness_among, recognise_afterwards
from keyhole.learners.recording import Settings, keep_record, show_progress
from keyhole.learners.registry import (
    BALL,
    LEARNERS,
    NO_HINTS,
    Hints,
    find_entry,
    list_imperfections,
    make_learner,
)
from keyhole.learners.searching import Search, learn_as_seen, run_within_plan, search_further
from keyhole.learners.verifying.ending import (
    Account,
    Ending,
    conclude,
    refute,
    tell_cause,
)
from keyhole.learners.verifying.own_answers import Remembered
from keyhole.learners.verifying.saved_model import as_oracle
from keyhole.models import (
    AbsAffine,
    AttentionLayer,
    Gated,
    Head,
    MultiHead,
    OneLayer,
    ReluNet,
    TransformerBlock,
    Wiring,
)
from keyhole.models.layers.heads_before_network import HeadsBeforeNetwork
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.oracles import Counted, Imperfection, Ledger, Oracle, read_imperfection
from keyhole.oracles.own_time import Paced, Stopwatch, bound_own_work
from keyhole.oracles.wrappers import Told

# Learners where only given tokens may be asked, in the order in which `auto` tries them.
_AMONG_TOKENS = ("restricted", "restricted-heads")
# A model that is right but for its digits, and answers that tell too little, deny no class.
_SAY_NOTHING = (
    Status.INCONSISTENT,
    Status.HIDDEN,
    Status.IMPRECISE,
    Status.ROUGH,
    Status.VEILED,
    Status.EMPTY_GUARANTEE,
    Status.NO_ZERO_TOKENS,
    Status.UNCHECKED,
    Status.STAGE_FOUND,
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
    if hints.tokens is not None and name not in ("auto", *_AMONG_TOKENS):
        raise InvalidInput(
            f"--tokens goes with the learners {' and '.join(_AMONG_TOKENS)} (or auto); got {name}."
        )
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
            f"the learner {name} cannot work with {' and '.join(beyond)}, which is declared;"
            f" {instead}."
        )
    return make_learner(name, hints)


def _choose_name(hints: Hints, stated: Imperfection) -> str:
    """The learner for what is known of a target without a question."""
    if hints.tokens is not None:
        return _AMONG_TOKENS[0]
    if stated.levels is not None:
        return "labels"
    if hints.wiring is not None and stated.token_bound is None and np.isfinite(stated.noise):
        return "wired-layer"
    if stated.absolute or stated.token_bound is not None:
        return "noisy"
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
    plan = plan_named_learner(chosen, width, outputs=outputs)
    if name == "auto" and _may_be_block(hints, stated):
        further = bound_block_search(hints, width, outputs=outputs)
        return replace(plan, at_most=plan.at_most + further)
    if name != "auto" or not _goes_on_to_heads(hints, stated):
        return plan
    further = make_learner(_AMONG_TOKENS[1], hints).plan(width, outputs=outputs)
    return replace(plan, at_most=plan.at_most + further.at_most)


def _goes_on_to_heads(hints: Hints, stated: Imperfection) -> bool:
    """Whether several heads are tried where one is not enough and only given tokens are asked."""
    if hints.tokens is None or list_imperfections(stated) - {BALL}:
        return False
    return len(np.unique(hints.tokens, axis=0)) > 1


def _may_be_block(hints: Hints, stated: Imperfection) -> bool:
    """Whether what was told of a wiring may be that of a block."""
    return hints.wiring is not None and _choose_name(hints, stated) == "wired-layer"


def _can_recognise(hints: Hints, stated: Imperfection) -> bool:
    # Tokens of a vocabulary and labels show too little to tell other classes apart.
    return hints.tokens is None and hints.wiring is None and stated.levels is None


Target = Oracle | Callable[[Any], Any]
# Learners by name and by what they hand out, so that an editor knows the model; a test holds them
# against the learners themselves.
_Heads = Literal[
    "exact",
    "low-rank",
    "nystrom",
    "nuclear-norm",
    "grid",
    "restricted",
    "noisy",
    "balanced",
    "labels",
    "tolerant",
]
_SumsOfHeads = Literal[
    "several-heads", "heads-in-ball", "restricted-heads", "layer", "orthogonal", "repetition"
]
_Networks = Literal["network", "network-in-ball", "noisy-network"]
_OneLayers = Literal["one-layer", "smooth-layer", "antisymmetric"]


class _Options(TypedDict, total=False):
    """What `learn` takes beside a target and a learner."""

    rng: Required[Rng]
    hints: Hints
    wiring: Wiring | None
    budget: int | None
    max_seconds: float | None
    record: str | Path | None
    progress: bool | Told


@overload
def learn(oracle: Target, *, learner: LearnerOf[M], **options: Unpack[_Options]) -> Recovery[M]: ...
@overload
def learn(oracle: Target, *, learner: _Heads, **options: Unpack[_Options]) -> Recovery[Head]: ...
@overload
def learn(
    oracle: Target, *, learner: _SumsOfHeads, **options: Unpack[_Options]
) -> Recovery[MultiHead]: ...
@overload
def learn(
    oracle: Target, *, learner: _Networks, **options: Unpack[_Options]
) -> Recovery[AbsAffine]: ...
@overload
def learn(
    oracle: Target, *, learner: _OneLayers, **options: Unpack[_Options]
) -> Recovery[OneLayer]: ...
@overload
def learn(
    oracle: Target, *, learner: Literal["wired-layer"], **options: Unpack[_Options]
) -> Recovery[AttentionLayer]: ...
@overload
def learn(
    oracle: Target,
    *,
    learner: Literal["pre-norm-block", "post-norm-block", "gated-block"],
    **options: Unpack[_Options],
) -> Recovery[TransformerBlock]: ...
@overload
def learn(
    oracle: Target, *, learner: Literal["several-heads-layer"], **options: Unpack[_Options]
) -> Recovery[HeadsBeforeNetwork]: ...
@overload
def learn(
    oracle: Target, *, learner: Literal["smooth-network"], **options: Unpack[_Options]
) -> Recovery[ReluNet]: ...
@overload
def learn(
    oracle: Target, *, learner: Literal["gated-network"], **options: Unpack[_Options]
) -> Recovery[Gated | AbsAffine]: ...
@overload
def learn(
    oracle: Target, *, learner: Literal["third-order"], **options: Unpack[_Options]
) -> Recovery[TensorRow]: ...
@overload
def learn(
    oracle: Target, *, learner: str | Learner = "auto", **options: Unpack[_Options]
) -> Recovery[Any]: ...
def learn(
    oracle: Target,
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
    if learner == "auto" and _goes_on_to_heads(hints, stated) and _is_open(found):
        chosen = make_learner(_AMONG_TOKENS[1], hints)
        found = _try_further(target, found, chosen, rng)
    blocks = (
        list_block_learners(hints) if learner == "auto" and _may_be_block(hints, stated) else []
    )
    return _look_for_witness(target, chosen, found, hints, rng, instead=blocks)


def _is_open(found: Recovery[Any]) -> bool:
    """Whether a learner that did not succeed leaves room for others."""
    return found.verdict is Verdict.UNVERIFIED and found.status not in _SAY_NOTHING


def _try_further(
    target: Remembered, first: Recovery[Any], learner: Learner, rng: np.random.Generator
) -> Recovery[Any]:
    """What another learner makes of the target; questions to the first are counted as `before`."""
    found = target.check(run_within_plan(learner, target, rng=rng), rng=rng)
    ledger = Ledger({"before": first.ledger.total()}).plus(found.ledger)
    before = "" if found.verdict.verified else f"One head was tried first: {first.status.value}"
    return replace(found, ledger=ledger, detail=f"{found.detail} {before}".strip())


def _look_for_witness(
    target: Remembered,
    learner: Learner,
    found: Recovery[Any],
    hints: Hints,
    rng: np.random.Generator,
    *,
    instead: Sequence[str] = (),
) -> Recovery[Any]:
    """The recovery; CLASS_REFUTED where it failed and answers show that it had to.

    Learners that are tried `instead`, where answers suggest them, come before a refutation.
    """
    entry = find_entry(learner)
    silent = found.verdict is not Verdict.UNVERIFIED or found.status in _SAY_NOTHING
    if entry is None or silent or read_imperfection(target).levels is not None:
        return found
    asking = Counted(target)
    if hints.tokens is None:
        seen = recognise_afterwards(asking, rng=rng)
        witness = None if seen is None else seen.excluded.get(entry.finds)
    else:
        one = entry.finds == "head"
        seen, witness = None, find_witness_among(asking, hints.tokens, one=one, rng=rng)
    if seen is not None and set(instead) & set(seen.suggested):
        return search_further(target, found, seen, hints, learners=instead, rng=rng)
    found = replace(found, ledger=found.ledger.plus(asking.ledger), recognised=seen)
    if seen is not None and witness is None and entry.finds == "wired":
        return learn_as_seen(target, learner, found, seen, rng)
    return found if witness is None else refute(found, witness)


def _recognise_and_learn(
    target: Remembered, hints: Hints, rng: np.random.Generator
) -> Recovery[Any]:
    """Learners that the first answers suggest, one after the other, until one succeeds."""
    asking, trying = rng.spawn(2)
    seen = recognise(target, rng=asking)
    stated = read_imperfection(target)
    search = Search(target.declare(describe_seen(seen)), seen, stated, hints)
    for name in seen.suggested:
        if search.is_worth_trying():
            search.run_learner(name, trying)
    return search.conclude()
