"""What every learner takes and returns: Plan, Status, Recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from keyhole._arrays import Array
from keyhole.claims import Certificate, Verdict
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput, RecoveryFailed
from keyhole.learners.findings import Recognition, Witness
from keyhole.learners.found_units import FoundUnits
from keyhole.models import Model
from keyhole.oracles import Ledger, Oracle

M = TypeVar("M", bound=Model)


class Status(StrEnum):
    """Why a learner stopped. The value is the sentence shown to a person."""

    RECOVERED = "The model was recovered."
    NO_READOUT = (
        "The read-out is zero to working precision, so the attention weights have no effect on any"
        " answer and cannot be recovered."
    )
    SATURATED = (
        "Not all attention weights could be read: probes answered as if the softmax were at 0 or 1,"
        " and no other tokens that may be asked helped."
    )
    BEYOND_BOUNDS = "An answer was given that no head within the assumed bounds gives."
    NOT_A_HEAD = "An answer does not fit a single softmax head."
    DISAGREES = "Fresh queries disagree with the best single head."
    UNRESOLVED = (
        "The heads could not be told apart: their boundaries coincide, a head acts too weakly, or"
        " more act than were looked for."
    )
    INCONSISTENT = "The target answered the same question differently when asked again."
    NO_CLASS = (
        "The first answers are such as no class that is learned here gives, and grow faster than"
        " tokens, as those of no attention layer and no block do."
    )
    NOT_SUGGESTED = "The first answers suggest no class that is learned here."
    OUT_OF_PLAN = (
        "The questions that the plan of this class allows were asked, and did not suffice."
    )
    CONTRADICTED = (
        "The model agrees with fresh queries, but not with answers that were given before."
    )
    HIDDEN = (
        "The rounding of the answers hides the attention: a constant far larger than the token"
        " values is added."
    )
    VACUOUS = (
        "The parts of the model are so much larger than the answers that it agrees with most"
        " fresh answers whatever they are."
    )
    IMPRECISE = (
        "The head was measured as closely as the answers and the tokens that can be asked allow, "
        "which is not close enough to be called exact."
    )
    EMPTY_GUARANTEE = (
        "The answers are too coarse for the guarantee to say more of W than the assumed bounds do."
    )
    BUDGET_SPENT = "The query budget ran out before every parameter was measured."
    UNCHECKED = "The query budget left no room for verification."
    OUT_OF_TIME = (
        "The time for own work (--max-seconds) ended. What was answered is kept: give more, and go"
        " on with --resume."
    )
    NOT_COMPUTED = (
        "The answers cannot be computed with: some are so far from the others that sums, powers or"
        " systems of equations overflow. Check the target, and bound the tokens it is asked."
    )
    NOT_ONE_LAYER = "Fresh queries disagree with the best one-layer Transformer."
    NO_ODD_PART = (
        "The odd part of the answers, f(X) - f(-X), shows no attention, so that this reduction"
        " cannot read W; the general learner of one-layer Transformers may."
    )
    DEEPER = (
        "Hyperplanes along which the answers bend do not go on, as in a network with several hidden"
        " layers; networks with one are recovered."
    )
    NO_NETWORK = "Fresh queries disagree with the best network with one hidden ReLU layer."
    NO_SMOOTH_NETWORK = (
        "Fresh queries disagree with the best network with one hidden layer of smooth units."
    )
    NO_GATED_NETWORK = "Fresh queries disagree with the best gated network."
    NO_THIRD_ORDER = "Fresh queries disagree with the best unit of third order."
    NO_ZERO_TOKENS = (
        "The target does not answer zero tokens, beside which every score of a unit of third order"
        " is measured. Let it answer them."
    )
    CROWDED = "Along a line the answers jump, or bend more often than the hidden units allowed for."
    SMOOTH = (
        "Along a line the answers bend everywhere, as those of a piecewise linear network do not."
    )
    UNPEELED = (
        "Not all of the network was found: at some points the answers disagree with it, and chords"
        " to them showed no hyperplane, or too many."
    )
    UNGROWN = "No network was found that explains the answers within the declared errors."
    VEILED = (
        "The declared errors are as large as what the answers vary by: many networks would agree as"
        " well."
    )
    ROUGH = (
        "The network was measured as closely as its answers allow, which is not close enough to be"
        " called exact."
    )
    DEPENDENT = (
        "The heads write into spaces of the outputs that are not independent, so that one answer"
        " does not tell them apart: recovering a whole layer takes at least as many outputs as the"
        " read-out ranks of its heads add up to."
    )
    STILL = (
        "A part of the answers does not move with the last token, which a head with W = 0 explains."
    )
    UNSEPARATED = "The heads of the layer could not be told apart."
    NO_LAYER = (
        "No attention layer without sinks answers single tokens so: its answers are an"
        " affine map of"
        " the token or, behind a norm, depend on the direction alone of a long one."
    )
    LAYER_DISAGREES = (
        "Fresh queries disagree with the best attention layer of the wiring that was told or found."
    )
    BLOCK_DISAGREES = "The answers are not those of the Transformer block that was looked for."
    UNITS_UNSEPARATED = "The units of the network behind the attention could not be told apart."
    STAGE_FOUND = "The stage that was asked for was found, and nothing beyond it was asked."
    HEADS_DISAGREE = "Fresh queries disagree with the best sum of heads of the kind that was tried."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPlan:
    """What a class of targets costs.

    Args:
        finds: the class, as `recognising.table.CLASSES` names it.
        learner: who learns it.
        expected: sequences, recognition and verification included.
        at_most: the most that is asked by the end of this learner, others before it included.
    """

    finds: str
    learner: str
    expected: int
    at_most: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Face):
    """What a recovery costs, before a single query.

    Args:
        by_phase: expected sequences by phase, verification included.
        at_most: the most that will ever be asked.
        degrees_of_freedom: numbers that answers determine.
        outputs: numbers per answer, so that the counting limit is degrees_of_freedom / outputs.
        classes: what each class costs, where it is not known yet which it is.
    """

    by_phase: Mapping[str, int]
    at_most: int
    degrees_of_freedom: int
    outputs: int = 1
    classes: tuple[ClassPlan, ...] = ()

    @property
    def queries(self) -> int:
        """Expected sequences in all."""
        return sum(self.by_phase.values())

    @property
    def limit(self) -> int:
        """No learner of this class can ask fewer."""
        return -(-self.degrees_of_freedom // self.outputs)


def bound_queries(by_phase: Mapping[str, int]) -> int:
    """The most a learner of one head ever asks.

    Biases triple the read-out and add a column, probes are asked twice. Finding scales takes at
    most 600 queries, re-asking 1000 above one per query, doubts 8.
    """
    read = by_phase["read"]
    measured = by_phase["measure"] + 2 * read
    return 3 * read + 2 * (measured + by_phase.get("rank", 0)) + by_phase["verify"] + 1608


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
    """Agreement on sequences the model was not fitted on.

    `relative` is to the values that an answer is made of, or to 1e9 times what rounding explains
    where that is more: a model is exact where it is at most 1e-9.
    """

    sequences: int
    max: float
    relative: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSeen:
    """Fresh questions of one kind: how many, and the worst gap."""

    name: str
    count: int
    worst: float
    relative: float


_BESIDE = 1e-8  # of how answers vary: a gap that is told beside its share of the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What fresh questions a model was held against.

    Args:
        kinds: how many of each kind, with the worst gap.
        sequences: in all.
        independent: of these, permuted copies and repeats left out.
        longest: the longest sequence that was asked.
        not_asked: kinds that were not, because such a model or target cannot be asked them.
        beside: the worst gap beside how answers to questions of its kind vary.
    """

    kinds: tuple[KindSeen, ...]
    sequences: int
    independent: int
    longest: int
    not_asked: tuple[str, ...]
    beside: float = 0.0

    def find_relative_gap(self, kind: str) -> float:
        """The worst relative gap of a kind, 0 where it was not asked."""
        return max((seen.relative for seen in self.kinds if seen.name == kind), default=0.0)

    @property
    def wrong_share(self) -> float:
        """The share of such sequences that a model which agreed on all may still be wrong on.

        With 95 % confidence, by the rule of three.
        """
        return min(1.0, 3.0 / self.independent) if self.independent else 1.0

    @property
    def sentence(self) -> str:
        """Of what the model is right, and how surely."""
        share = np.ceil(1e3 * self.wrong_share) / 10
        said = (
            f"It agrees on all {self.sequences} fresh sequences of {len(self.kinds)} kinds"
            f" ({self.independent} of them independent), up to {self.longest} tokens long; so with"
            f" 95 % confidence it is wrong on less than {share:.1f} % of such sequences."
        )
        if self.beside <= _BESIDE:
            return said
        return (
            f"{said} Where parts exceed what they add up to, or magnify rounding, it is off"
            f" by up to {self.beside:.1g} beside how answers vary."
        )


@dataclass(frozen=True, eq=False, slots=True)
class Jumps:
    """Steps of answers as y goes half round a circle with a hard softmax, from a start."""

    angles: Array
    sizes: Array
    start: Array


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class Recovery(Face, Generic[M]):
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
        counterexample: of a refuted class the witness, of a model that is not verified a sequence
            on which it differs, or None.
        certificate: the theorem this run instantiates, with measured sides.
        bars: error bars by tensor name.
        detail: a sentence on this run in particular, added to the status.
        jumps: the steps that told several heads apart, where there were any.
        recognised: what the first questions told, where they were asked.
        examined: the fresh questions by kind, where any were asked.
        explained: how many answers of the run were held against the model.
        units: the hidden units of a network, one by one.
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
    counterexample: Counterexample | Witness | None = None
    certificate: Certificate | None = None
    bars: Mapping[str, Array] = field(default_factory=dict[str, Array])
    detail: str = ""
    jumps: Jumps | None = None
    recognised: Recognition | None = None
    examined: Examined | None = None
    explained: int = 0
    units: FoundUnits | None = None

    @property
    def sentence(self) -> str:
        """Status and verdict in words, and what was recognised."""
        seen = "" if self.recognised is None else self.recognised.sentence
        # Both say of a spent budget that it is spent.
        verdict = "" if self.status.name == self.verdict.name else self.verdict.value
        parts = (self.status.value, verdict, self.detail, seen)
        return " ".join(part for part in parts if part)

    def unwrap(self) -> M:
        """The model, if it was verified.

        Raises:
            RecoveryFailed: it was not; the message says why.
        """
        if self.model is None or not self.verdict.verified:
            raise RecoveryFailed(self.sentence)
        return self.model

    def interval(self, name: str, level: float = 0.95) -> tuple[Array, Array]:
        """Ends of the confidence intervals of a tensor's entries, by normal quantiles.

        Raises:
            InvalidInput: that tensor has no error bar, or the level is not between 0 and 1.
        """
        if not 0.0 < level < 1.0:
            raise InvalidInput(f"a confidence level is between 0 and 1; got {level}.")
        # A bar may be kept for a tensor that the model turned out not to have.
        if self.model is None or name not in self.bars or getattr(self.model, name, None) is None:
            raise InvalidInput(
                f"there are error bars for {', '.join(self.bars) or 'no tensor'}; got {name!r}."
            )
        half = NormalDist().inv_cdf((1.0 + level) / 2.0) * self.bars[name]
        middle = np.asarray(getattr(self.model, name), dtype=np.float64)
        return middle - half, middle + half


@runtime_checkable
class Learner(Protocol):
    """A frozen set of options with one method that recovers a model."""

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """What `run` will cost."""
        ...

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Any]:
        """Recover what is behind the oracle."""
        ...


@runtime_checkable
class LearnerOf(Protocol[M]):
    """A learner of which it is known what models it hands out."""

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """What `run` will cost."""
        ...

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[M]:
        """Recover what is behind the oracle."""
        ...
