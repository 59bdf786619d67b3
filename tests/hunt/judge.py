"""Runs `keyhole.learn` on a generated target and says what is false in its verdict."""

import time
import warnings
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

import keyhole
from hunt.base import Kind, Recording, Target, Truth
from hunt.targets import KINDS, make_target
from keyhole import OracleError, Recovery, Verdict
from keyhole._arrays import EPS
from keyhole.learners.choosing import plan_recovery

BUDGET = 60_000


class Fault(StrEnum):
    """What must not happen; the value heads a column of the table."""

    CRASHED = "crash"
    AGAINST_OWN_ANSWERS = "own"
    WRONG = "wrong"
    REFUTED = "refuted"
    FREE = "free"
    UNVERIFIED = "open"
    OVER_PLAN = "over"


@dataclass(frozen=True)
class Row:
    """What came of one target.

    Args:
        kind: its name.
        number: the how-manieth of the kind.
        verdict: name of the verdict, or of the exception.
        status: name of the status, or what an exception said.
        faults: what was false.
        queries: sequences asked.
        seconds: processor time taken, judging included.
    """

    kind: str
    number: int
    verdict: str
    status: str
    faults: tuple[Fault, ...]
    queries: int
    seconds: float


def judge_target(name: str, number: int, *, seed: int, budget: int = BUDGET) -> Row:
    """Learn one target, and find the faults."""
    target, rng = make_target(name, number, seed)
    recording = Recording(target)
    start = time.process_time()
    # Warnings are errors here as in a test run: what overflows in silence is a crash.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        verdict, status, faults = learn_target(KINDS[name], recording, rng, budget)
    queries = sum(len(X) for X, _ in recording.kept)
    if queries > plan_recovery(width=target.width, outputs=target.outputs or 1).at_most:
        faults = (*faults, Fault.OVER_PLAN)
    return Row(name, number, verdict, status, faults, queries, time.process_time() - start)


def learn_target(
    kind: Kind, recording: Recording, rng, budget: int = BUDGET
) -> tuple[str, str, tuple[Fault, ...]]:
    """Verdict, status and faults; of an exception, its name and what it said."""
    judging = rng.spawn(1)[0]
    try:
        found = keyhole.learn(recording, rng=rng, budget=budget)
    except OracleError as error:
        return type(error).__name__, str(error), ()
    except Exception as error:
        return type(error).__name__, str(error), (Fault.CRASHED,)
    return found.verdict.name, found.status.name, find_faults(kind, recording, found, judging)


def find_faults(kind: Kind, recording: Recording, found: Recovery, rng) -> tuple[Fault, ...]:
    """Every fault of a recovery."""
    if found.verdict.verified:
        return tuple(find_wrong_model(recording, found, rng))
    ours = kind.truth is Truth.OURS
    faults = {
        Verdict.CLASS_REFUTED: (Fault.REFUTED, ours or kind.scatters),
        Verdict.NOT_IDENTIFIABLE: (Fault.FREE, ours and not kind.free),
    }
    fault, counts = faults.get(found.verdict, (Fault.UNVERIFIED, ours))
    return (fault,) if counts else ()


def find_wrong_model(recording: Recording, found: Recovery, rng):
    """Whether a model that is called right differs from answers of the run, or from later ones."""
    target = recording.target
    asked = np.concatenate([np.abs(y).max(axis=1) for _, y in recording.kept])
    # Weights come from answers of this size: at zero tokens their rounding is all that is left.
    asked = asked[np.isfinite(asked)]
    asked = asked[asked > 1e-12 * np.quantile(asked, 0.75)]
    floor = 1e-10 * float(np.quantile(asked, 0.25)) if len(asked) else 0.0
    if any(differs(target, found, X, y, floor) for X, y in recording.kept):
        yield Fault.AGAINST_OWN_ANSWERS
    if any(differs(target, found, X, target(X), floor) for X in target.draw(rng)):
        yield Fault.WRONG


def differs(target: Target, found: Recovery, X, answers, floor: float) -> bool:
    """Whether a model is further from any of the answers than rounding explains."""
    predicted = found.model(X)
    # A verdict that speaks of a tolerance may leave as much as the answers are truly off.
    within = found.verdict is Verdict.WITHIN_TOLERANCE
    eps = max(EPS, target.relative) if within else EPS
    allowed = np.maximum(floor, measure_allowance(found.model, X, predicted, eps))
    allowed = allowed + 8.0 * target.absolute * within
    # An answer that overflowed its format says nothing.
    gap = np.where(np.isfinite(answers), np.abs(answers - predicted), 0.0).max(axis=1)
    return bool((gap > allowed).any())


def measure_allowance(model, X, predicted, eps: float = EPS):
    """The largest gap that is rounding: max(1e-9 size, 16 E, 16 D)."""
    share = max(1e-9, 16.0 * eps)
    # A model without a yardstick of its own goes by its values, and by how tokens' rounding acts.
    if not hasattr(model, "yardstick"):
        sizes = np.maximum(model.magnitude(X), np.abs(predicted).max(axis=1))
        return np.maximum(share * sizes, 4096.0 * measure_shake(model, X, predicted, eps))
    by = model.yardstick(X, eps)
    return np.maximum(share * by.size, 16.0 * np.maximum(by.rounding, by.coarse))


def measure_shake(model, X, predicted, eps: float):
    """How far answers move when every number of the tokens is rounded otherwise."""
    signs = np.random.default_rng(0).choice([-eps, eps], size=(4, *X.shape))
    return np.max([np.abs(model(X + X * s) - predicted).max(axis=1) for s in signs], axis=0)
