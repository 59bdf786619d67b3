"""What every learner takes and returns: Plan, Status, Recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from keyhole._arrays import Array
from keyhole.claims import Certificate, Verdict
from keyhole.errors import RecoveryFailed
from keyhole.models import Head, Model
from keyhole.oracles import Ledger, Oracle

M = TypeVar("M", bound=Model)


class Status(StrEnum):
    """Why a learner stopped. The value is the sentence shown to a person."""

    RECOVERED = "The model was recovered."
    NO_READOUT = (
        "The read-out is zero to working precision, so the attention weights have no effect on any answer "
        "and cannot be recovered."
    )
    SATURATED = (
        "Not all attention weights could be read: probes answered as if the softmax were at 0 or 1, "
        "and no other tokens that may be asked helped."
    )
    NOT_A_HEAD = "An answer was given that no single softmax head can give."
    DISAGREES = "Fresh queries disagree with the best single head."
    INCONSISTENT = "The target answered the same question differently when asked again."
    HIDDEN = "The rounding of the answers hides the attention: a constant far larger than the token values is added."
    IMPRECISE = (
        "The head was measured as closely as the answers and the tokens that can be asked allow, "
        "which is not close enough to be called exact."
    )
    DEPENDENT = (
        "The heads write into spaces of the outputs that are not independent, so that one answer does not tell them "
        "apart: recovering a whole layer takes at least as many outputs as the read-out ranks of its heads add up to."
    )
    STILL = "A part of the answers does not move with the last token, which a head with W = 0 explains."
    UNSEPARATED = "The heads of the layer could not be told apart."
    HEADS_DISAGREE = "Fresh queries disagree with the best sum of heads of the kind that was tried."
    BUDGET_SPENT = "The query budget ran out before every parameter was measured."
    UNCHECKED = "The query budget left no room for verification."


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a recovery costs, before a single query.

    Args:
        by_phase: expected sequences by phase, verification included.
        at_most: the most that will ever be asked.
        degrees_of_freedom: numbers that answers determine.
        outputs: numbers per answer, so that the counting limit is degrees_of_freedom / outputs.
    """

    by_phase: Mapping[str, int]
    at_most: int
    degrees_of_freedom: int
    outputs: int = 1

    @property
    def queries(self) -> int:
        """Expected sequences in all."""
        return sum(self.by_phase.values())

    @property
    def limit(self) -> int:
        """No learner of this class can ask fewer."""
        return -(-self.degrees_of_freedom // self.outputs)


def at_most(by_phase: Mapping[str, int]) -> int:
    """The most a learner of one head ever asks: biases triple the read-out and add a column, probes are asked twice.

    Finding scales takes at most 600 queries, re-asking 1000 above one per query, doubts 8.
    """
    measured = by_phase["measure"] + 2 * by_phase["read"]
    return 3 * by_phase["read"] + 2 * measured + by_phase.get("rank", 0) * 2 + by_phase["verify"] + 1608


@dataclass(frozen=True, eq=False, slots=True)
class Counterexample:
    """One sequence on which the target and a model differ; replay it by asking the target again."""

    tokens: Array
    answer: Array
    predicted: Array

    @property
    def gap(self) -> float:
        """Largest difference over the outputs."""
        return float(np.abs(self.answer - self.predicted).max())


@dataclass(frozen=True, slots=True)
class Fresh:
    """Agreement on sequences the model was not fitted on; `relative` is to the token values."""

    sequences: int
    max: float
    relative: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Recovery(Generic[M]):
    """What a learner returns.

    Args:
        model: the recovered model, a partial one, or None.
        status: why the learner stopped.
        verdict: what fresh queries say.
        reason: why this class of model was decided on.
        determined: what the answers do and do not determine.
        ledger: costs by phase.
        degrees_of_freedom: numbers the answers determine, for the class that was found.
        rank: rank of W, where measured.
        fresh: agreement on fresh queries, where asked.
        counterexample: a sequence that refutes the model, or None.
        certificate: the theorem this run instantiates, with measured sides.
        bars: error bars by tensor name.
        detail: a sentence on this run in particular, added to the status.
    """

    model: M | None
    status: Status
    verdict: Verdict
    reason: str
    determined: str
    ledger: Ledger
    degrees_of_freedom: int | None = None
    rank: int | None = None
    fresh: Fresh | None = None
    counterexample: Counterexample | None = None
    certificate: Certificate | None = None
    bars: Mapping[str, Array] = field(default_factory=dict[str, Array])
    detail: str = ""

    @property
    def sentence(self) -> str:
        """Status and verdict in words."""
        return " ".join(part for part in (self.status.value, self.detail, self.verdict.value) if part)

    def unwrap(self) -> M:
        """The model, if it was verified.

        Raises:
            RecoveryFailed: it was not; the message says why.
        """
        if self.model is None or not self.verdict.verified:
            raise RecoveryFailed(self.sentence)
        return self.model


@runtime_checkable
class Learner(Protocol):
    """A frozen set of options with one method that recovers a head."""

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """What `run` will cost."""
        ...

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover what is behind the oracle."""
        ...
