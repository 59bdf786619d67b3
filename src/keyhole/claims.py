"""Claims as data: measured checks, certificates and verdicts, beside the registry of theorems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from keyhole.drawing.faces import Face
from keyhole.theorems import THEOREMS, Theorem

__all__ = ["THEOREMS", "Basis", "Certificate", "Check", "Outcome", "Theorem", "Verdict"]


class Outcome(Enum):
    """What a certificate says of its theorem on one measured case."""

    HOLDS = "The assumptions hold and so does the conclusion."
    SILENT = "An assumption fails, or only a sample was asked, so nothing is promised here."
    REFUTED = "The assumptions hold and the conclusion does not: this is a bug, please report it."


class Basis(StrEnum):
    """What the word of a certificate rests on; the value says it to a person."""

    PROVED = "proved for every input"
    EXHAUSTIVE = "every input was asked"
    CONFRONTED = "measured against the truth"
    EXAMINED = "fresh questions, the truth not being at hand"
    SAMPLED = "some of the inputs"


@dataclass(frozen=True, slots=True)
class Check:
    """One inequality with its two sides measured: `measured <= limit`.

    Args:
        name: what is measured.
        measured: the left side.
        limit: the right side.
        judged: whether a run measured it by its own model or verdict, so that the truth takes its
            place where it is held.
    """

    name: str
    measured: float
    limit: float
    judged: bool = False

    @property
    def holds(self) -> bool:
        """Whether the inequality holds (never for NaN)."""
        return bool(self.measured <= self.limit)


@dataclass(frozen=True, slots=True, repr=False)
class Certificate(Face):
    """A theorem confronted with one case: measured assumptions, measured conclusion.

    Args:
        theorem: its id.
        assumptions: what it assumes.
        conclusion: what it concludes.
        sampled: how much was asked, in words, where the rest is not proved; a sample may refute,
            but never holds.
        basis: what it rests on; a sample where `sampled` says so.
        given: numbers that the promise is stated in, as the radius of a ball or a tolerance.
        proof: the name of the argument that covers every input, where it is one of several.
    """

    theorem: str
    assumptions: tuple[Check, ...]
    conclusion: tuple[Check, ...]
    sampled: str = ""
    basis: Basis = Basis.EXAMINED
    given: Mapping[str, float] = field(default_factory=dict[str, float])
    proof: str = ""

    def __post_init__(self) -> None:
        if self.sampled:
            object.__setattr__(self, "basis", Basis.SAMPLED)

    @property
    def outcome(self) -> Outcome:
        """HOLDS, SILENT or REFUTED."""
        # A theorem whose assumptions fail promises nothing: it cannot be refuted there.
        if not all(check.holds for check in self.assumptions):
            return Outcome.SILENT
        if not all(check.holds for check in self.conclusion):
            return Outcome.REFUTED
        return Outcome.SILENT if self.basis is Basis.SAMPLED else Outcome.HOLDS

    def confront(self, assumptions: Iterable[Check], conclusion: Iterable[Check]) -> Certificate:
        """The same with what the truth says in the place of what the run said of itself."""
        return replace(
            self,
            assumptions=(*_keep_counted(self.assumptions), *assumptions),
            conclusion=(*_keep_counted(self.conclusion), *conclusion),
            basis=Basis.CONFRONTED,
        )


def _keep_counted(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    return tuple(check for check in checks if not check.judged)


class Verdict(StrEnum):
    """What fresh queries say of a recovered model; the value is the sentence."""

    EXACT = "Fresh queries agree with the recovered model to 1e-9 of the token values."
    WITHIN_TOLERANCE = (
        "Fresh queries agree with the recovered model within the declared imperfection."
    )
    CLASS_REFUTED = "The target is not of the class that was tried; the counterexample shows it."
    NOT_IDENTIFIABLE = (
        "The answers do not determine the parameters; what they do determine is stated."
    )
    BUDGET_SPENT = "The query budget ran out before the recovery was complete."
    UNVERIFIED = "The recovered model could not be verified; do not rely on it."

    @property
    def verified(self) -> bool:
        """Whether the model may be relied on."""
        return self in (Verdict.EXACT, Verdict.WITHIN_TOLERANCE)
