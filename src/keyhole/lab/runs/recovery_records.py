"""Records of the commands that ask a black box, or look at what was recovered from one."""

from __future__ import annotations

import msgspec

from keyhole.lab.runs.record_parts import (
    CertificateRecord,
    CounterexampleRecord,
    ExaminedRecord,
    FreshError,
    Given,
    JumpsRecord,
    Number,
    Part,
    Queries,
    RecognitionRecord,
    ReplayRecord,
    Seconds,
    TokenAudit,
    UnitsRecord,
    WiringRecord,
)
from keyhole.lab.runs.records import Envelope, RunRecord


class RecoveryRecord(RunRecord, frozen=True, kw_only=True):
    """What every record of a recovery has, that of a run which the target ended included.

    Args:
        status: why it stopped, by name.
        verdict: what fresh queries say, by name.
        model_class: the class of model that was decided on; `class` in JSON.
        reason: why this class.
        determined: what the answers do and do not determine.
        counterexample: the witness against a class, or a sequence on which the model differs.
        recognised: what the first questions told.
        width: of a token.
        outputs: numbers per answer.
        heads: how many.
        rank: of W.
        queries: what was asked.
        degrees_of_freedom: numbers the answers determine.
        fresh_error: agreement on fresh queries.
        examined: the fresh questions by kind, and what their agreement says.
        error_bar: standard errors of W, relative to W.
        certificate: the theorem this run instantiates.
        jumps: the steps that told several heads apart.
        units: the hidden units of a network, one by one.
        model: the file of the model.
        parts: the file of what stages found, where a block was not verified.
        asked: sequences that were asked of the target itself in this run.
        budget: the most that may be asked.
        max_seconds: the most that it may work by itself.
        options: hints and declarations that were given, as the command line names them.
        target: what was asked.
        learner: auto, or the name of a learner.
    """

    verdict: str
    queries: Queries
    status: str | None = None
    model_class: str | None = msgspec.field(default=None, name="class")
    reason: str | None = None
    determined: str | None = None
    counterexample: CounterexampleRecord | None = None
    recognised: RecognitionRecord | None = None
    wiring: WiringRecord | None = None
    width: int | None = None
    outputs: int | None = None
    heads: int | None = None
    rank: int | None = None
    degrees_of_freedom: int | None = None
    fresh_error: FreshError | None = None
    examined: ExaminedRecord | None = None
    error_bar: Number = None
    certificate: CertificateRecord | None = None
    jumps: JumpsRecord | None = None
    units: UnitsRecord | None = None
    model: str | None = None
    parts: str | None = None
    asked: int | None = None
    budget: int | None = None
    max_seconds: Number = None
    options: dict[str, Given] = {}
    target: str | None = None
    learner: str | None = None


class LearnRecord(RecoveryRecord, frozen=True, kw_only=True, tag="learn"):
    """What was recovered, how surely, and at what cost."""


class Stop(Part, frozen=True, kw_only=True):
    """A stop of the tour, with what its page needs of it.

    Args:
        name: what it is called.
        verdict: what came.
        sentence: the same with its figure and its limit.
        queries: what was asked, verification apart.
        limit: the fewest queries any learner can ask.
        error: how far the model is from the truth.
        truth: the file of the hidden model.
        model: that of the recovered one.
        distance: between both, modulo symmetry.
        jumps: the steps that told several heads apart.
        run: the directory of a stop that is a run of its own.
        certificate: its theorem, confronted with the truth.
        errors: how far each part of a block is from the truth.
    """

    name: str
    verdict: str | None
    sentence: str
    queries: int | None = None
    limit: int | None = None
    error: Number = None
    truth: str | None = None
    model: str | None = None
    distance: Number = None
    jumps: JumpsRecord | None = None
    run: str | None = None
    certificate: CertificateRecord | None = None
    errors: dict[str, Number] = {}


class CurvePoint(Part, frozen=True, kw_only=True):
    """The error of W after so many queries."""

    queries: int
    error: Number
    status: str


class DemoRecord(RecoveryRecord, frozen=True, kw_only=True, tag="demo"):
    """The tour: its first recovery, measured against the truth, and its further stops."""

    stops: list[Stop] = []
    distance: Number = None
    curve: list[CurvePoint] = []


class VerifyRecord(Envelope, frozen=True, kw_only=True, tag="verify"):
    """A saved model against fresh answers, or the witness of a run asked again."""

    verdict: str
    queries: Queries
    fresh_error: FreshError | None = None
    examined: ExaminedRecord | None = None
    counterexample: CounterexampleRecord | None = None
    seconds: Seconds | None = None
    target: str
    model: str | None = None
    witness: ReplayRecord | None = None


class StoppedVerify(RecoveryRecord, frozen=True, kw_only=True, tag="verify"):
    """A verification that the target ended."""


class PlannedQueries(Part, frozen=True, kw_only=True):
    """What is expected to be asked, and the most that ever is."""

    total: int
    at_most: int
    by_phase: dict[str, int]


class PlannedClass(Part, frozen=True, kw_only=True):
    """A class of targets: what it is expected to cost, and the most that is asked by its end."""

    finds: str
    learner: str
    expected: int
    at_most: int


class Guarantee(Part, frozen=True, kw_only=True):
    """Errors of W and v that Theorem 6.1 promises."""

    W: Number
    v: Number


class PlanRecord(Envelope, frozen=True, kw_only=True, tag="plan"):
    """What a recovery would cost, and what it promises.

    Over HTTP also the seconds of one request, and the minutes that all of them take at least.
    """

    learner: str
    width: int
    outputs: int
    queries: PlannedQueries
    degrees_of_freedom: int
    limit: int
    tolerance: Number = None
    guarantee: Guarantee | None = None
    standard_error: Number = None
    latency: Number = None
    minutes: Number = None
    classes: tuple[PlannedClass, ...] = ()


class AttemptRecord(Part, frozen=True, kw_only=True):
    """One attempt against a policy.

    Args:
        options: of the learn job.
        queries: what it asked, verification included.
        verification: what of that was for verification.
        error: of W, or of answers where there is no W.
        function_error: of answers.
        verdict: of the recovery.
        status: of the recovery.
        sentence: of the recovery.
        model: the file of its model.
        run: its directory.
        seconds: how long it took.
        behind: the policy it was made behind, where that is a coarser one whose answers can be made
            from these.
    """

    options: dict[str, int] = {}
    queries: int
    verification: int
    error: Number
    function_error: Number
    verdict: str
    status: str | None = None
    sentence: str = ""
    model: str | None = None
    run: str | None = None
    seconds: Seconds | None = None
    behind: str = ""


class PolicyRecord(Part, frozen=True, kw_only=True):
    """One output policy, and what an extractor reached behind it."""

    policy: str
    simulate: list[str]
    protects: bool | None
    verdict: str
    attempts: list[AttemptRecord]

    @property
    def nearest(self) -> AttemptRecord:
        """The attempt whose copy is nearest; the dearest where none gave a copy."""
        known = [(one.error, k) for k, one in enumerate(self.attempts) if one.error is not None]
        return self.attempts[min(known)[1] if known else -1]


class TotalQueries(Part, frozen=True, kw_only=True):
    """What was asked in all."""

    total: int


class GateRecord(Part, frozen=True, kw_only=True):
    """Whether every copy of the target as it stands is farther off than the owner demands."""

    fail_above: Number
    error: Number
    passes: bool


class AuditRecord(RunRecord, frozen=True, kw_only=True, tag="audit"):
    """How much each output policy keeps back; of a language model it stands in `tokens`."""

    target: str
    width: int
    outputs: int
    token_bound: Number
    error_of: str
    policies: list[PolicyRecord]
    queries: TotalQueries
    tokens: TokenAudit | None = None
    recommendation: str = ""
    cap: int | None = None
    gate: GateRecord | None = None


class StoppedAudit(RecoveryRecord, frozen=True, kw_only=True, tag="audit"):
    """An audit that the target ended."""


class AnswersRecord(Part, frozen=True, kw_only=True):
    """How far two models answer apart: largest gaps by length (rows) and output (columns)."""

    relative: Number
    worst: Number
    allowed: Number
    same: bool
    sequences: int
    lengths: list[int]
    size: Number
    gaps: list[list[Number]]
    read_last: list[str]
    singly: list[str] = []


class CompareRecord(Envelope, frozen=True, kw_only=True, tag="compare"):
    """How far two models are apart, part by part, and how many heads or hidden units act."""

    distance: dict[str, Number]
    largest: Number
    heads: list[int] | None = None
    hidden: list[int] | None = None
    answers: AnswersRecord | None = None
    a: str | None = None
    b: str | None = None
    command: str | None = None
    run: str | None = None


class TwinRecord(Part, frozen=True, kw_only=True):
    """Other parameters with the same answers; both distances are relative."""

    symmetry: str
    changed: str
    proof: str
    model: str
    parameters_differ: Number
    answers_differ: Number
    certificate: CertificateRecord


class TwinsRecord(RunRecord, frozen=True, kw_only=True, tag="twins"):
    """The twins of a saved model."""

    model: str
    twins: list[TwinRecord]
