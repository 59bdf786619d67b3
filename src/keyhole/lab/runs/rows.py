"""What a record says, as (label, text) rows: the same on a terminal, on a page, in a summary."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.claims import Basis, Verdict
from keyhole.drawing.html import format_number, format_seconds
from keyhole.lab.runs.other_records import Landing
from keyhole.lab.runs.record_parts import (
    CertificateRecord,
    CounterexampleRecord,
    ExaminedRecord,
    FreshError,
    RecognitionRecord,
    ReplayRecord,
    RoundTrip,
    Seconds,
    TokenAudit,
)
from keyhole.lab.runs.recovery_records import (
    AuditRecord,
    CompareRecord,
    GateRecord,
    PolicyRecord,
    RecoveryRecord,
    TwinRecord,
    TwinsRecord,
)
from keyhole.lab.runs.task_records import (
    BoundRecord,
    BuildRecord,
    FrontierPoint,
    LengthErrors,
    TrainRecord,
)

Rows = Iterator[tuple[str, str]]
FLOAT64 = 64  # bits
_SHARE = 1e-3  # of token values: a gap that is no longer told as a share of them


def count_fewest_queries(record: RecoveryRecord) -> int | None:
    """Fewest queries any learner can do with."""
    freedom = record.degrees_of_freedom
    # Each query gives so many numbers; no fewer queries can settle all parameters.
    return None if freedom is None else -(-freedom // (record.outputs or 1))


def count_learning_queries(record: RecoveryRecord) -> int:
    """Queries that were asked, verification apart."""
    return record.queries.total - record.queries.by_phase.get("verify", 0)


def list_recovery_rows(record: RecoveryRecord) -> Rows:
    """The record of a recovery; what it leaves open is left out."""
    yield "verdict", record.verdict
    if record.status:
        yield "status", record.status
    yield from _list_recognition_rows(record.recognised)
    yield from _list_class_rows(record)
    if record.determined:
        yield "determined", record.determined
    if record.parts:
        yield "parts", record.parts
    spent = ", ".join(f"{name} {count:,}" for name, count in record.queries.by_phase.items())
    yield "queries", f"{record.queries.total:,}" + (f" ({spent})" if spent else "")
    if (least := count_fewest_queries(record)) is not None:
        yield (
            "limit",
            (
                f"{least:,} queries for {record.degrees_of_freedom:,} degrees of freedom;"
                f" {count_learning_queries(record):,} were asked, verification apart"
            ),
        )
    yield from list_fresh_error_rows(record.fresh_error, record.verdict)
    yield from list_examined_rows(record.examined)
    if record.error_bar is not None:
        yield "error bar", f"{format_number(record.error_bar)} of W, relative"
    yield from _list_counterexample_rows(record.counterexample)
    yield from list_certificate_rows(record.certificate)
    yield from list_time_rows(record.seconds)


def _list_recognition_rows(seen: RecognitionRecord | None) -> Rows:
    """What the first questions told: findings with their gaps, what they exclude and suggest."""
    if seen is None:
        return
    yield "recognised", f"{seen.label}; answers are {seen.format} numbers"
    for one in seen.findings:
        said = f"{format_number(one.gap)}; rounding explains {format_number(one.allowed)}"
        yield "found", f"{one.sentence} The difference is {said}."
    for group in seen.excluded:
        yield (
            "excluded",
            f"{', '.join(group.classes)}: answers break the rule {group.witness.rule!r}",
        )
    yield "to try", ", ".join(seen.suggested) or "none"
    yield "not seen at first", "; ".join(seen.not_examined)


def _list_counterexample_rows(case: CounterexampleRecord | None) -> Rows:
    """The witness against a class, or the sequence on which a model differs."""
    if case is None:
        return
    gap = f"in record.json; gap {format_number(case.gap)}"
    if case.rule is None:
        yield "differs on", f"a sequence of length {len(case.tokens)}, {gap}"
    else:
        yield (
            "refuted by",
            (
                f"{len(case.questions)} answers that break the rule {case.rule}, {gap}, of which"
                f" rounding explains {format_number(case.allowed)}"
            ),
        )


def list_replay_rows(again: ReplayRecord | None) -> Rows:
    """A witness asked again, where one was."""
    if again is not None:
        yield "rule", again.rule
        yield "gap", f"{format_number(again.gap)}, before {format_number(again.before)}"
        yield "rounding explains", format_number(again.allowed)


def _list_class_rows(record: RecoveryRecord) -> Rows:
    known = {
        "width": record.width,
        "rank": record.rank,
        "heads": record.heads,
        "outputs": record.outputs,
    }
    sizes = [f"{name} {size:,}" for name, size in known.items() if size is not None]
    if record.model_class:
        reason = f": {record.reason}" if record.reason else ""
        yield "class", ", ".join([record.model_class, *sizes]) + reason
    # A run that the target ended has no class, but often knows what it asked.
    elif sizes:
        yield "sizes", ", ".join(sizes)


def list_fresh_error_rows(fresh: FreshError | None, verdict: str) -> Rows:
    """Agreement on fresh queries, where there were any."""
    if fresh is None:
        return
    asked = f"over {fresh.sequences:,} fresh sequences"
    # Short tokens are less than declared errors, which no share of them tells.
    if verdict == Verdict.WITHIN_TOLERANCE.name and (fresh.relative or 0) >= _SHARE:
        largest = format_number(fresh.max)
        yield "fresh error", f"{largest} at most, {asked}, as declared errors and rounding explain"
    else:
        yield "fresh error", f"{format_number(fresh.relative)} of the token values, {asked}"


def list_examined_rows(examined: ExaminedRecord | None) -> Rows:
    """Which kinds of fresh questions were asked, and which could not be."""
    if examined is None:
        return
    asked = ", ".join(f"{kind.name} {kind.count}" for kind in examined.kinds)
    yield "examined", f"{asked}; up to length {examined.longest}"
    if examined.not_asked:
        yield "not asked", ", ".join(examined.not_asked)
    if examined.explained:
        yield "explained", f"{examined.explained:,} answers of the run"


def list_audit_rows(record: AuditRecord) -> Rows:
    """What an extractor reached behind each policy, and what that cost."""
    if record.tokens is not None:
        yield from list_token_audit_rows(record.tokens)
    for row in record.policies:
        yield row.policy, _describe_reached(row)
    if record.recommendation:
        yield "advice", record.recommendation
    if record.gate is not None:
        yield "gate", _describe_gate(record.gate)
    yield "cost", f"{record.queries.total:,} queries in all"
    yield from list_time_rows(record.seconds)


def list_token_audit_rows(record: TokenAudit) -> Rows:
    """The rank under each policy, and the first policy that keeps each thing back."""
    for policy in record.policies:
        known = f"rank {policy.rank}, gap {format_number(policy.gap)}"
        reached = f"no size, {policy.verdict}" if policy.rank is None else known
        yield policy.policy, f"{reached}, with {policy.questions:,} questions"
        if policy.function is not None and policy.function.error is not None:
            error = format_number(policy.function.error)
            yield f"{policy.policy}, function", f"{policy.function.verdict}, error {error}"
        if policy.signature is not None:
            yield f"{policy.policy}, snapshots", policy.signature.finding
    for what, stopping in record.stopped_by.items():
        yield f"{what} stops at", stopping or "no policy that was tried"


def list_compare_rows(record: CompareRecord) -> Rows:
    """How far two models are apart: weights part by part, then answers."""
    for name, value in record.distance.items():
        yield name, "none" if value is None else f"{value:.2e}"
    if (held := record.answers) is not None:
        yield "answers", f"{format_number(held.relative)} apart, relatively"
        yield "at worst", format_number(held.worst)
        yield "equal up to", format_number(held.allowed)
        if held.read_last:
            yield "read", f"{', '.join(held.read_last)}: sequences at their last position"
        if held.singly:
            yield "asked", f"{', '.join(held.singly)}: one by one, for a batch changes the answers"


def _describe_gate(gate: GateRecord) -> str:
    reached = "no copy" if gate.error is None else f"error {format_number(gate.error)}"
    verdict = "passes" if gate.passes else "fails"
    return f"{verdict}: {reached}, above {format_number(gate.fail_above)} was demanded"


def _describe_reached(row: PolicyRecord) -> str:
    last = row.nearest
    reached = "no model" if last.error is None else f"error {format_number(last.error)}"
    return f"{reached} with {last.queries:,} queries"


def list_build_rows(record: BuildRecord) -> Rows:
    """The record of built weights."""
    if record.construction:
        yield "construction", record.construction
    if (size := record.size) is not None:
        said = (
            f"{name.replace('_', ' ')} {getattr(size, name)}" for name in size.__struct_fields__
        )
        yield "size", ", ".join(said)
    if record.format:
        yield "format", record.format
    yield "margin", format_number(record.margin)
    yield "error bound", format_number(record.error_bound)
    if (seen := record.checked) is not None:
        yield (
            "checked",
            (f"{seen.inputs:,} inputs{', all there are' * seen.exhaustive}, {seen.errors} errors"),
        )
    yield from list_certificate_rows(record.certificate)
    for point in record.frontier.points:
        yield "frontier", f"{point.construction}: {describe_frontier_point(point)}"
    yield from list_round_trip_rows(record.round_trip)
    yield from list_time_rows(record.seconds)


def describe_frontier_point(point: FrontierPoint) -> str:
    """Its key width and bits; what is proved of the format is asked of fewer bits alone."""
    sure = "proved" if point.proved else "sampled"
    # Of numbers beyond float64 nothing is asked.
    bound = point.format == "exact" and point.bits > FLOAT64
    known = "by the bound on rounding" if bound else "on the inputs asked"
    return f"m = {point.embed}, {sure} in {point.format}; p = {point.bits} {known}"


def list_round_trip_rows(trip: RoundTrip | None) -> Rows:
    """What came of hiding weights and recovering them, where that was done."""
    if trip is not None:
        yield "round trip", trip.sentence.removeprefix("Round trip: ")


def list_bound_rows(record: BoundRecord) -> Rows:
    """The verdict on sizes, and what it rests on."""
    yield "verdict", record.verdict
    # What was built and checked assumes nothing of the class.
    if record.verdict != "ENOUGH":
        yield from (("assumes", one) for one in record.assumptions)
    if (told := record.inequality) is not None:
        sides = f"{format_number(told.needed)} needed, {format_number(told.available)} available"
        yield told.name, sides
        if told.growth:
            yield "growth", told.growth
    if record.reason:
        yield "not built" if record.sampled is None else "not proved", record.reason
    if (talk := record.conversation) is not None:
        sent, least = format_number(talk.bits), format_number(talk.needed)
        yield "conversation", f"{sent} bits; at least {least} are needed"
    for name, found in (("built", record.built), ("proved", record.proven)):
        if found is not None:
            size = f"key width {found.size.embed:,}, {found.size.bits} bits"
            yield name, f"{found.construction}, {size}"
    yield from list_time_rows(record.seconds)


def list_training_rows(record: TrainRecord) -> Rows:
    """What training reached, beside simple predictors."""
    error = record.error
    span = f"from {format_number(error.min)} to {format_number(error.max)}"
    yield "error", f"{format_number(error.median)}, {span}: {record.measure}"
    yield "errors", ", ".join(map(format_number, record.errors))
    yield "model", f"{record.model_name}, {record.parameters:,} parameters"
    # Constructed weights have nothing that was trained.
    if record.parameters:
        seeds = "one seed" if record.seeds == 1 else f"{record.seeds} seeds"
        yield "trained", f"{record.steps:,} steps, {seeds}"
    for name, value in record.lines.items():
        yield name.replace("_", " "), format_number(value)
    if record.lengths is not None:
        yield from _list_length_rows(record.lengths)
    yield from list_round_trip_rows(record.round_trip)
    if record.effective_bits is not None:
        yield "effective bits", record.effective_bits.sentence
    yield from list_time_rows(record.seconds)


def _list_length_rows(told: LengthErrors) -> Rows:
    for k, length in enumerate(told.lengths):
        said = format_number(told.median_errors[k])
        if told.median_scaled is not None:
            said += f", with scores times ln N {format_number(told.median_scaled[k])}"
        yield f"length {length}", said


def list_twin_rows(record: TwinsRecord) -> Rows:
    """What was changed in each twin, and how far it and its answers are away."""
    for row in record.twins:
        yield row.symmetry, f"{row.changed} {describe_distances(row).capitalize()}."
    yield from list_time_rows(record.seconds)


def describe_distances(row: TwinRecord) -> str:
    """How far parameters are apart, and how far answers are, in words."""
    far, gap = row.parameters_differ, row.answers_differ
    share = "100 % or more" if far is None or far >= 1 else f"{100 * far:.0f} %"
    return (
        f"the parameters differ by {share}, the answers by"
        f" {'nothing' if gap == 0 else format_number(gap)}"
    )


def list_expectation_rows(expectations: list[Landing]) -> Rows:
    """Where a sweep should have landed, and where it did."""
    for one in expectations:
        measured = describe_measured(one.measured)
        yield "met" if one.met else "MISSED", f"{one.sentence}; measured {measured}"


def describe_measured(value: float | None) -> str:
    """A number that was measured; none where no job gave one."""
    return "nothing" if value is None else format_number(value)


def list_certificate_rows(held: CertificateRecord | None) -> Rows:
    """The theorem and its outcome, where a record has a certificate."""
    if held is not None:
        yield "certificate", f"{held.theorem} {held.outcome}{describe_basis(held)}"


def describe_basis(held: CertificateRecord) -> str:
    """What a certificate rests on, to stand after its outcome; old records do not say."""
    if held.sampled:
        return f", sampled: {held.sampled}"
    if held.proof:
        return f", proved: {held.proof}"
    if held.basis is None:
        return ""
    # A record of others may hold any word.
    known = Basis.__members__.get(held.basis)
    return f", {held.basis.lower()}" + ("" if known is None else f": {known.value}")


def list_time_rows(spent: Seconds | None) -> Rows:
    """How long it took, and how much of that the target did."""
    if spent is not None:
        share = "" if spent.oracle is None else f", of which {format_seconds(spent.oracle)}"
        share += " in the target" * bool(share)
        yield "time", format_seconds(spent.total) + share
