"""Parts that records share: costs, agreement on fresh queries, certificates, sizes, policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

# JSON has no infinity and no NaN: a number that is not finite is read back as nothing.
Number = float | None
Numbers = Sequence[Number]
# What a person can give an option, or a task a size.
Given = bool | int | float | str | list[str] | None
# A value that stands in one cell of a table.
Cell = bool | int | float | str | list[Any] | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a record, by named fields."""


class Seconds(Part, frozen=True, kw_only=True, omit_defaults=True):
    """How long it took, and how much of that the target did."""

    total: float
    oracle: Number = None


class Queries(Part, frozen=True, kw_only=True):
    """What was asked: sequences in all, their tokens, and sequences by phase."""

    total: int
    tokens: int | None = None
    by_phase: dict[str, int] = {}


class FreshError(Part, frozen=True, kw_only=True):
    """Agreement on sequences the model was not fitted on; `relative` is to the token values."""

    max: Number
    relative: Number
    sequences: int


class KindRecord(Part, frozen=True, kw_only=True):
    """Fresh questions of one kind: how many, the worst gap, and the worst relative gap."""

    name: str
    count: int
    worst: Number
    relative: Number


class ExaminedRecord(Part, frozen=True, kw_only=True):
    """What a model was held against.

    Args:
        kinds: of fresh questions.
        sequences: in all.
        independent: of these, permuted copies and repeats left out.
        longest: the longest sequence asked.
        not_asked: kinds that could not be asked.
        wrong_share: of such sequences a model that agreed on all is wrong on less than this, with
            95 % confidence.
        explained: answers given before that were held against the model too.
        sentence: the same in words.
    """

    kinds: list[KindRecord]
    sequences: int
    independent: int
    longest: int
    not_asked: list[str]
    wrong_share: Number
    explained: int = 0
    sentence: str = ""


class WitnessRecord(Part, frozen=True, kw_only=True):
    """A few answers that no member of a class gives.

    Args:
        rule: what every member of the class keeps, by name.
        questions: sequences, in the order of the rule.
        answers: what the target said to each.
        gap: by how much they break the rule.
        allowed: what rounding explains.
    """

    rule: str
    questions: list[list[Numbers]]
    answers: list[Numbers]
    gap: Number
    allowed: Number


class CounterexampleRecord(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What speaks against a model or a class.

    Of a refuted class it is a witness (`rule`, `questions`, `answers`, `gap`, `allowed`), of a
    model that is not verified a sequence on which it differs (`tokens`, `answer`, `predicted`,
    `gap`).
    """

    gap: Number
    rule: str | None = None
    questions: list[list[Numbers]] = []
    answers: list[Numbers] = []
    allowed: Number = None
    tokens: list[Numbers] = []
    answer: Numbers = []
    predicted: Numbers = []


class ReplayRecord(Part, frozen=True, kw_only=True):
    """A witness asked again: by how much the rule fails now, by how much it did before."""

    rule: str
    gap: Number
    allowed: Number
    before: Number
    holds: bool


class FindingRecord(Part, frozen=True, kw_only=True):
    """What the first answers show, and by how much beyond what rounding explains."""

    name: str
    sentence: str
    gap: Number
    allowed: Number


class ExclusionRecord(Part, frozen=True, kw_only=True):
    """Classes that cannot answer so, and the witness that shows it."""

    classes: list[str]
    witness: WitnessRecord


class WiringRecord(Part, frozen=True, kw_only=True):
    """How a recovered layer is wired: what was told of it, and what was found or taken as usual."""

    told: dict[str, Given] = {}
    found: dict[str, Given] = {}


class RecognitionRecord(Part, frozen=True, kw_only=True):
    """What the first questions told of a target.

    Args:
        label: what it looks like.
        sentence: the same in words.
        findings: what led there.
        excluded: classes that cannot answer so.
        suggested: learners worth trying, the likeliest first.
        format: the number format of answers, as seen.
        not_examined: what could not be asked.
    """

    label: str
    sentence: str
    findings: list[FindingRecord]
    excluded: list[ExclusionRecord]
    suggested: list[str]
    format: str
    not_examined: list[str]


class JumpsRecord(Part, frozen=True, kw_only=True):
    """Steps of the answers on a half circle."""

    angles: Numbers
    sizes: list[Numbers]
    start: Numbers


class UnitsRecord(Part, frozen=True, kw_only=True):
    """The hidden units of a network, one by one, in the order of its model.

    Args:
        activation: of all of them.
        sizes: what each adds to slopes, beside the largest.
        bars: standard error of each normal, as an angle.
        faint: units smaller than this beside the largest would not have shown.
        unread: numbers of units whose width was not read alone.
        parallel: groups of units of one direction.
        sentence: the same in words.
    """

    activation: str
    sizes: Numbers
    bars: Numbers
    faint: Number
    unread: list[int] = []
    parallel: list[list[int]] = []
    sentence: str = ""


class CheckRecord(Part, frozen=True, kw_only=True):
    """One inequality, `measured <= limit`."""

    name: str
    measured: Number
    limit: Number
    holds: bool


class CertificateRecord(Part, frozen=True, kw_only=True):
    """A theorem confronted with one case; `basis` names what its word rests on."""

    theorem: str
    outcome: str
    basis: str | None = None
    sampled: str | None = None
    proof: str | None = None
    assumptions: list[CheckRecord] = []
    conclusion: list[CheckRecord] = []


class RoundTrip(Part, frozen=True, kw_only=True):
    """Weights hidden, recovered and scored on their task again."""

    verdict: str | None
    sentence: str
    queries: int | None = None
    error_before: Number = None
    error_after: Number = None
    distance: Number = None
    hidden_class: str | None = None


class RotationRecord(Part, frozen=True, kw_only=True):
    """The output projection up to a rotation.

    Args:
        verdict: WITHIN_TOLERANCE, or UNVERIFIED with the reason.
        reason: why.
        residual: of the equation of the ellipsoid, on prompts that were held out.
        questions: under this policy.
        limit: the fewest questions that settle its unknowns.
    """

    verdict: str
    reason: str
    residual: Number = None
    questions: int | None = None
    limit: int | None = None


class SignatureRecord(Part, frozen=True, kw_only=True):
    """Two snapshots compared.

    Args:
        finding: SHARED, MOVED or UNRELATED; UNVERIFIED where a space is not known.
        angle: sine of the largest angle between the spaces of their answers.
        allowed: what errors of the answers explain.
        overlap: mean of squared cosines.
        chance: what it is for unrelated models.
    """

    finding: str
    angle: Number = None
    allowed: Number = None
    overlap: Number = None
    chance: Number = None


_FOLLOWS = 0.01  # relative error up to which a copy answers as the model does


class FunctionRecord(Part, frozen=True, kw_only=True):
    """How far the function itself follows from answers.

    Args:
        verdict: of the recovery as a layer of attention alone; UNVERIFIED where none was made.
        reason: what was found, or why nothing was tried.
        error: of the answers of the copy to fresh prompts, relatively; nothing without a copy.
        questions: under this policy.
        limit: the fewest questions from which anybody can know such a function.
    """

    verdict: str
    reason: str
    error: Number = None
    questions: int | None = None
    limit: int | None = None

    @property
    def follows(self) -> bool:
        """Whether a copy answers as the model does."""
        return self.error is not None and self.error <= _FOLLOWS


class TokenPolicyRecord(Part, frozen=True, kw_only=True):
    """What one policy of answers gives away.

    Args:
        policy: its name.
        verdict: of the rank: WITHIN_TOLERANCE, or UNVERIFIED with the reason.
        rank: of the answers, without their mean.
        shift: whether one direction of them is a number that all ids of a prompt share, as in
            log-probabilities; it is none of the hidden state.
        sizes: the hidden size that the rank means behind each last norm: none, rms, layer.
        softcap: the soft cap that was found on logits and undone; nothing where there is none.
        gap: of the singular values, behind the rank or the widest.
        reason: why the rank is stated, or why not.
        spectrum: the largest singular values.
        angle: sine of the angle to which the space of the projection is known, about.
        prompts: that were asked until the rank showed, or in all.
        questions: under this policy until then.
        limit: the fewest questions from which anybody can know the space.
        rotation: the projection up to a rotation.
        function: all that the model answers, where it is a layer of attention alone.
        signature: the comparison with another snapshot, where one was given.
    """

    policy: str
    verdict: str
    rank: int | None
    shift: bool = False
    sizes: dict[str, int]
    softcap: Number = None
    gap: Number
    reason: str
    spectrum: Numbers
    angle: Number
    prompts: int
    questions: int
    limit: int | None
    rotation: RotationRecord
    function: FunctionRecord | None = None
    signature: SignatureRecord | None = None


class TokenAudit(Part, frozen=True, kw_only=True):
    """What a language model gives away.

    Args:
        vocabulary: V.
        prompt_length: tokens of every prompt.
        most_prompts: that a rank is looked for in.
        against: the other snapshot.
        policies: from the most generous one on.
        stopped_by: for each thing that full logits give away, the first policy that keeps it back;
            nothing where none does. What they do not give away, or what was not looked for, is not
            named.
        projection: the file of the projection as full logits show it.
    """

    vocabulary: int
    prompt_length: int
    most_prompts: int
    against: str | None = None
    policies: list[TokenPolicyRecord]
    stopped_by: dict[str, str | None]
    projection: str | None = None
