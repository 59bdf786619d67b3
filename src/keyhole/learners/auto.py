"""Which learner for which oracle, and the two functions people call first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from keyhole._arrays import Matrix
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.balance import Balanced
from keyhole.learners.base import Counterexample, Fresh, Learner, Recovery
from keyhole.learners.exact import Exact
from keyhole.learners.grid import Grid
from keyhole.learners.low_rank import LowRank
from keyhole.learners.nuclear import NuclearNorm
from keyhole.learners.nystrom import Nystrom
from keyhole.learners.restricted import Restricted
from keyhole.learners.verify import EXACT, answers_differ, examine
from keyhole.models import Head, Model
from keyhole.oracles import Budgeted, Counted, Ledger, Local, Oracle
from keyhole.oracles.base import declared

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Hints:
    """What a person knows of a target beforehand.

    Args:
        rank: the rank of W.
        grid: W has entries that are whole multiples of this.
        tokens: the only vectors that may be asked, one per row.
    """

    rank: int | None = None
    grid: float | None = None
    tokens: Matrix | None = None


def _needed(value: T | None, name: str, learner: str) -> T:
    if value is None:
        raise InvalidInput(f"the learner {learner} needs --{name}.")
    return value


LEARNERS: dict[str, Callable[[Hints], Learner]] = {
    "balanced": lambda hints: Balanced(),
    "exact": lambda hints: Exact(),
    "low-rank": lambda hints: LowRank(hints.rank),
    "nystrom": lambda hints: Nystrom(_needed(hints.rank, "rank", "nystrom")),
    "nuclear-norm": lambda hints: NuclearNorm(_needed(hints.rank, "rank", "nuclear-norm")),
    "grid": lambda hints: Grid(_needed(hints.grid, "grid", "grid")),
    "restricted": lambda hints: Restricted(_needed(hints.tokens, "tokens", "restricted")),
}


def choose(name: str = "auto", hints: Hints = Hints()) -> Learner:  # noqa: B008
    """The learner of that name; `auto` goes by the hints, and finds out by itself what they do not say."""
    if name == "auto":
        name = "grid" if hints.grid is not None else "low-rank"
        name = "restricted" if hints.tokens is not None else name
    elif hints.tokens is not None and name != "restricted":
        raise InvalidInput(f"--tokens goes with the learner restricted (or auto); got {name}.")
    if name not in LEARNERS:
        raise InvalidInput(f"a learner is one of auto, {', '.join(LEARNERS)}; got {name!r}.")
    return LEARNERS[name](hints)


def as_oracle(target: Oracle | Callable[[Any], Any]) -> Oracle:
    """An oracle as it is; a model or any other callable with a `width` behind `Local`."""
    return target if isinstance(target, Oracle) else Local(target)


def learn(
    oracle: Oracle | Callable[[Any], Any],
    *,
    rng: np.random.Generator,
    learner: str | Learner = "auto",
    budget: int | None = None,
) -> Recovery[Head]:
    """Recover the attention head behind `oracle` from queries, and verify it on fresh ones.

    Args:
        oracle: a black box, or a callable with a `width` attribute.
        rng: source of every random choice.
        learner: a learner or its name.
        budget: never ask more sequences than this, verification included.

    Returns:
        The recovery; `unwrap()` hands out its model only when verified.
    """
    target = as_oracle(oracle)
    chosen = choose(learner) if isinstance(learner, str) else learner
    return chosen.run(target if budget is None else Budgeted(target, budget), rng=rng)


@dataclass(frozen=True, eq=False, slots=True)
class Verification:
    """What fresh queries say of a model somebody already has."""

    verdict: Verdict
    fresh: Fresh
    counterexample: Counterexample | None
    ledger: Ledger
    detail: str = ""


def verify(oracle: Oracle | Callable[[Any], Any], model: Model, *, rng: np.random.Generator) -> Verification:
    """Ask fresh sequences and compare the answers with `model`.

    Raises:
        InvalidInput: the model's width or outputs are not the target's.
    """
    counted = Counted(as_oracle(oracle))
    if counted.width != model.width:
        raise InvalidInput(f"the target's tokens have width {counted.width}, the model's {model.width}.")
    stated = declared(counted)
    with counted.phase("verify"):
        first = counted.ask(np.zeros((1, 1, model.width)))
        if first.shape[1] != model.outputs:
            raise InvalidInput(f"the target answers {first.shape[1]} numbers, the model {model.outputs}.")
        tolerance = EXACT if stated.perfect else 1e4 * stated.roundoff
        seen = examine(counted, model, tolerance=tolerance, roundoff=stated.roundoff, rng=rng)
        if seen.hidden or not seen.complete:
            detail = "The budget ran out." if not seen.complete else "Rounding of the answers hides the token values."
            return Verification(Verdict.UNVERIFIED, seen.fresh, None, counted.ledger, detail)
        if seen.passed:
            verdict = Verdict.EXACT if stated.perfect else Verdict.WITHIN_TOLERANCE
            return Verification(verdict, seen.fresh, None, counted.ledger)
        worst = seen.worst
        cases = [] if worst is None else [(worst.tokens[None], worst.answer[None])]
        gap = answers_differ(counted, cases, stated.roundoff)
    if gap > 0:
        detail = f"The target answered the same question differently (by {gap:.1e})."
        return Verification(Verdict.UNVERIFIED, seen.fresh, None, counted.ledger, detail)
    return Verification(Verdict.CLASS_REFUTED, seen.fresh, worst, counted.ledger, "The model is not the target.")
