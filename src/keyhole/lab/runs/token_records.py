"""Parts of the record of an audit of a language model: what each policy gives away."""

from __future__ import annotations

from keyhole.lab.runs.record_parts import Number, Numbers, Part


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


class TokenPolicyRecord(Part, frozen=True, kw_only=True):
    """What one policy of answers gives away.

    Args:
        policy: its name.
        verdict: of the rank: WITHIN_TOLERANCE, or UNVERIFIED with the reason.
        rank: of the answers, without their mean.
        sizes: the hidden size that the rank means behind each last norm: none, rms, layer.
        gap: of the singular values, behind the rank or the widest.
        reason: why the rank is stated, or why not.
        spectrum: the largest singular values.
        angle: sine of the angle to which the space of the projection is known, about.
        prompts: that were asked until the rank showed, or in all.
        questions: under this policy until then.
        limit: the fewest questions from which anybody can know the space.
        rotation: the projection up to a rotation.
        signature: the comparison with another snapshot, where one was given.
    """

    policy: str
    verdict: str
    rank: int | None
    sizes: dict[str, int]
    gap: Number
    reason: str
    spectrum: Numbers
    angle: Number
    prompts: int
    questions: int
    limit: int | None
    rotation: RotationRecord
    signature: SignatureRecord | None = None


class TokenAudit(Part, frozen=True, kw_only=True):
    """What a language model gives away.

    Args:
        vocabulary: V.
        prompt_length: tokens of every prompt.
        most_prompts: that a rank is looked for in.
        against: the other snapshot.
        policies: from the most generous one on.
        stopped_by: for each thing given away, the first policy that keeps it back; nothing where
            none does, or where full logits do not give it away either.
        projection: the file of the projection as full logits show it.
    """

    vocabulary: int
    prompt_length: int
    most_prompts: int
    against: str | None = None
    policies: list[TokenPolicyRecord]
    stopped_by: dict[str, str | None]
    projection: str | None = None
