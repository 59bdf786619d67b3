"""What answers show of a target before any model is fitted: witnesses, findings, a recognition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyhole._arrays import Matrix, Vector
from keyhole.errors import InvalidInput
from keyhole.oracles import Ledger


@dataclass(frozen=True, eq=False, slots=True)
class Witness:
    """Answers that no member of a class gives.

    Args:
        rule: name in `verifying.rules.RULES`.
        questions: one array (length, width) each, in the order of the rule.
        answers: what the target said.
        gap: by how much they break the rule.
        allowed: what rounding explains, with room to spare.
    """

    rule: str
    questions: tuple[Matrix, ...]
    answers: tuple[Vector, ...]
    gap: float
    allowed: float

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.answers) or not self.questions:
            raise InvalidInput(
                "a witness has one answer for each of its questions; got"
                f" {len(self.questions)} questions and {len(self.answers)} answers."
            )


@dataclass(frozen=True, slots=True)
class Finding:
    """What the answers show: a name, its sentence, and by how much beyond what is allowed."""

    name: str
    sentence: str
    gap: float
    allowed: float


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Recognition:
    """What the first questions tell of a target.

    Args:
        label: what the target looks like.
        sentence: the same for a person.
        advice: what to try next where no learner is suggested, or none of them succeeds.
        findings: what led there.
        excluded: classes that cannot answer so, each with a witness.
        suggested: names of learners worth trying, the likeliest first.
        format: the format of answers, as seen.
        not_examined: what could not be asked, in words.
        scale: by how much tokens of pairs were scaled.
        residual: whether the last token is added to the answer; None where that was not seen.
        bias: whether scores have a bias; None where that was not seen.
        steep: whether far tokens are answered by far more than their length.
        constant: the answer to the zero token, which heads add to every answer.
        questions: everything that was asked, by name.
        answers: what was answered to it.
        ledger: what it cost.
    """

    label: str
    sentence: str
    advice: str
    findings: tuple[Finding, ...]
    excluded: Mapping[str, Witness]
    suggested: tuple[str, ...]
    format: str
    not_examined: tuple[str, ...]
    scale: float
    residual: bool | None
    bias: bool | None
    steep: bool
    constant: Vector | None
    questions: Mapping[str, Matrix]
    answers: Mapping[str, Vector]
    ledger: Ledger
