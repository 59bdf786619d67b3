"""Recoveries, certificates and costs as parts of records."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from msgspec import structs

from keyhole.claims import Certificate, Check
from keyhole.lab.runs.record_parts import (
    CertificateRecord,
    CheckRecord,
    CounterexampleRecord,
    ExaminedRecord,
    ExclusionRecord,
    FindingRecord,
    FreshError,
    JumpsRecord,
    KindRecord,
    Queries,
    RecognitionRecord,
    UnitsRecord,
    WitnessRecord,
)
from keyhole.lab.runs.records import take_fields
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.learners.base import Counterexample, Examined, Fresh, Jumps, Recovery
from keyhole.learners.findings import Recognition, Witness
from keyhole.learners.found_units import FoundUnits
from keyhole.models import AttentionLayer, Head, Model, MultiHead, OneLayer, TransformerBlock
from keyhole.models.registry import name_kind
from keyhole.oracles import Ledger

T = TypeVar("T", bound=RecoveryRecord)


def record_recovery(recovery: Recovery[Any], kind: type[T], *, lost: int = 0) -> T:
    """The record of a recovery, but for what only its command knows.

    Args:
        recovery: what a learner returned.
        kind: of which command the record is.
        lost: sequences that a kill lost.
    """
    model: Model | None = recovery.model
    return kind(
        status=recovery.status.name,
        verdict=recovery.verdict.name,
        sentence=recovery.sentence,
        model_class=name_model_class(recovery),
        reason=recovery.reason,
        determined=recovery.determined,
        counterexample=record_counterexample(recovery.counterexample),
        recognised=record_recognition(recovery.recognised),
        width=None if model is None else model.width,
        outputs=None if model is None else model.outputs,
        heads=count_heads(model),
        rank=recovery.rank,
        queries=record_queries(recovery.ledger, lost),
        degrees_of_freedom=recovery.degrees_of_freedom,
        fresh_error=record_fresh_error(recovery.fresh),
        examined=record_examined(recovery.examined, recovery.explained),
        error_bar=_measure_error_bar(recovery),
        certificate=record_certificate(recovery.certificate),
        jumps=record_jumps(recovery.jumps),
        units=record_units(recovery.units),
    )


def record_queries(ledger: Ledger, lost: int = 0) -> Queries:
    """Costs as the contract names them; what a kill lost is a phase of its own."""
    phases = {name: entry.sequences for name, entry in ledger.phases.items()}
    if lost:
        phases["lost"] = lost
    return Queries(total=sum(phases.values()), tokens=ledger.total().tokens, by_phase=phases)


def record_fresh_error(fresh: Fresh | None) -> FreshError | None:
    """Agreement on fresh queries, where there were any."""
    return None if fresh is None else take_fields(fresh, FreshError)


def record_examined(examined: Examined | None, explained: int = 0) -> ExaminedRecord | None:
    """The fresh questions by kind, and how many answers of the run were explained."""
    if examined is None:
        return None
    return ExaminedRecord(
        kinds=[take_fields(kind, KindRecord) for kind in examined.kinds],
        sequences=examined.sequences,
        independent=examined.independent,
        longest=examined.longest,
        not_asked=list(examined.not_asked),
        wrong_share=examined.wrong_share,
        explained=explained,
        sentence=examined.sentence,
    )


def record_witness(witness: Witness) -> WitnessRecord:
    """A witness as data."""
    return WitnessRecord(
        rule=witness.rule,
        questions=[question.tolist() for question in witness.questions],
        answers=[answer.tolist() for answer in witness.answers],
        gap=witness.gap,
        allowed=witness.allowed,
    )


def record_recognition(seen: Recognition | None) -> RecognitionRecord | None:
    """What was recognised as data; classes that one witness excludes stand beside it."""
    if seen is None:
        return None
    groups: dict[int, list[str]] = {}
    for name, witness in seen.excluded.items():
        groups.setdefault(id(witness), []).append(name)
    return RecognitionRecord(
        label=seen.label,
        sentence=seen.sentence,
        findings=[take_fields(finding, FindingRecord) for finding in seen.findings],
        excluded=[
            ExclusionRecord(classes=names, witness=record_witness(seen.excluded[names[0]]))
            for names in groups.values()
        ],
        suggested=list(seen.suggested),
        format=seen.format,
        not_examined=list(seen.not_examined),
    )


def record_counterexample(case: Counterexample | Witness | None) -> CounterexampleRecord | None:
    """A witness, or a sequence with the target's answer and the model's."""
    if case is None:
        return None
    if isinstance(case, Witness):
        return CounterexampleRecord(**structs.asdict(record_witness(case)))
    return CounterexampleRecord(
        tokens=case.tokens.tolist(),
        answer=np.ravel(case.answer).tolist(),
        predicted=np.ravel(case.predicted).tolist(),
        gap=case.gap,
    )


def record_jumps(seen: Jumps | None) -> JumpsRecord | None:
    """Steps on a half circle as data."""
    if seen is None:
        return None
    return JumpsRecord(
        angles=seen.angles.tolist(), sizes=seen.sizes.tolist(), start=seen.start.tolist()
    )


def record_units(found: FoundUnits | None) -> UnitsRecord | None:
    """Hidden units as data, one by one."""
    if found is None:
        return None
    return UnitsRecord(
        activation=found.activation,
        sizes=found.sizes.tolist(),
        bars=found.bars.tolist(),
        faint=found.faint,
        unread=list(found.unread),
        parallel=[list(group) for group in found.parallel],
        sentence=found.sentence,
    )


def record_certificate(held: Certificate | None) -> CertificateRecord | None:
    """A certificate as data, where there is one."""
    return None if held is None else record_held_certificate(held)


def record_held_certificate(held: Certificate) -> CertificateRecord:
    """A certificate as data."""
    return CertificateRecord(
        theorem=held.theorem,
        outcome=held.outcome.name,
        basis=held.basis.name,
        sampled=held.sampled or None,
        proof=held.proof or None,
        assumptions=_record_checks(held.assumptions),
        conclusion=_record_checks(held.conclusion),
    )


def _record_checks(checks: tuple[Check, ...]) -> list[CheckRecord]:
    return [take_fields(check, CheckRecord) for check in checks]


def name_model_class(recovery: Recovery[Any]) -> str:
    """The class of model that was decided on; a single head where there is none."""
    held = recovery.certificate
    # The type of the model does not tell a whole layer from heads; its certificate does.
    if held is not None and held.theorem == "keyhole/whole-layer":
        return "layer"
    return name_kind(recovery.model) or "head"


def count_heads(model: Model | None) -> int | None:
    """How many heads a model has, where it has any."""
    if isinstance(model, MultiHead):
        return len(model.W)
    if isinstance(model, TransformerBlock):
        return model.attention.heads
    if isinstance(model, AttentionLayer):
        return model.heads
    return 1 if isinstance(model, Head | OneLayer) else None


def _measure_error_bar(recovery: Recovery[Any]) -> float | None:
    """Frobenius norm of the standard errors of W, relative to that of W."""
    bar = recovery.bars.get("W")
    W = getattr(recovery.model, "W", None)
    if bar is None or W is None or not np.asarray(W).any():
        return None
    # Error bars may be one number for all entries: it counts for each of them.
    W = np.asarray(W)
    return float(np.linalg.norm(np.broadcast_to(bar, W.shape))) / float(np.linalg.norm(W))
