"""Records of the commands about tasks: build, bound, limits, talk, attack, train."""

from __future__ import annotations

from keyhole.lab.runs.record_parts import (
    CertificateRecord,
    Given,
    Number,
    Numbers,
    Part,
    RoundTrip,
)
from keyhole.lab.runs.records import RunRecord


class BuiltSize(Part, frozen=True, kw_only=True):
    """What weights cost: m, v, H, D and p."""

    embed: int
    value_width: int
    heads: int
    layers: int
    bits: int


class CheckedInputs(Part, frozen=True, kw_only=True):
    """Weights against brute force."""

    inputs: int
    errors: int
    worst: Number = None
    exhaustive: bool


class FrontierPoint(Part, frozen=True, kw_only=True):
    """A size that was built."""

    construction: str
    embed: int
    bits: int
    format: str
    proved: bool = False


class Frontier(Part, frozen=True, kw_only=True):
    """Sizes that no other beats, proved ones first, and the bits that any weights need."""

    points: list[FrontierPoint]
    limit_bits: Number
    limit: str


class BuildRecord(RunRecord, frozen=True, kw_only=True, tag="build"):
    """Weights for a task; where nothing fits, why not."""

    status: str
    task: str
    sizes: dict[str, Given]
    accuracy: Number
    construction: str | None = None
    size: BuiltSize | None = None
    format: str | None = None
    margin: Number = None
    error_bound: Number = None
    checked: CheckedInputs | None = None
    certificate: CertificateRecord | None = None
    model: str | None = None
    frontier: Frontier
    refused: dict[str, str]
    round_trip: RoundTrip | None = None


class AskedSizes(Part, frozen=True, kw_only=True):
    """Sizes a bound is asked for; bits are none for real numbers."""

    embed: int
    bits: Number
    heads: int
    value_width: int
    layers: int
    fixed: tuple[int, int] | None
    accuracy: Number
    residual: bool
    positional: bool
    format: str | None
    token_width: int | None = None


class InequalityRecord(Part, frozen=True, kw_only=True):
    """What a task needs of some resource, and what is available of it."""

    name: str
    needed: Number
    available: Number
    unit: str
    formula: str
    theorem: str
    assumptions: list[str]
    applies: bool
    violated: bool
    growth: str
    excludes: str = ""


class GapRecord(Part, frozen=True, kw_only=True):
    """Between the largest size that is too small and the least that is enough."""

    axis: str
    too_small: int
    asked: int
    enough: int | None


class BuiltRecord(Part, frozen=True, kw_only=True):
    """Weights behind a bound."""

    construction: str
    size: BuiltSize
    format: str
    margin: Number
    error_bound: Number
    checked: CheckedInputs


class ProvenRecord(Part, frozen=True, kw_only=True):
    """A construction that a formula proves for every input."""

    construction: str
    theorem: str
    size: BuiltSize
    argument: str
    order: int


class Plane(Part, frozen=True, kw_only=True):
    """For numbers of so many bits the least size that is not too small; what is asked, enough."""

    axis: str
    lower: list[tuple[int, int | None]]
    asked: tuple[Number, Number]
    enough: tuple[Number, Number] | None


class MessageRecord(Part, frozen=True, kw_only=True):
    """What one person says in one layer."""

    layer: int
    sender: str
    receiver: str
    content: str
    numbers: int
    bits: int


class ConversationRecord(Part, frozen=True, kw_only=True):
    """A model run by several people."""

    messages: list[MessageRecord]
    bits: int
    each: int
    needed: int
    deviation: Number


class BoundRecord(RunRecord, frozen=True, kw_only=True, tag="bound"):
    """Too small, open or enough, and what that rests on."""

    task: str
    task_sizes: dict[str, Given]
    sizes: AskedSizes | None
    verdict: str
    inequality: InequalityRecord | None
    construction: str | None
    assumptions: list[str]
    inequalities: list[InequalityRecord]
    reason: str | None
    gap: GapRecord | None
    built: BuiltRecord | None
    sampled: BuiltRecord | None
    proven: ProvenRecord | None = None
    plane: Plane | None = None
    conversation: ConversationRecord | None = None
    conjecture: str | None = None


class TaskLimits(Part, frozen=True, kw_only=True):
    """Both sides of a task at one length, each over all heads; a side that is missing says why."""

    task: str
    title: str
    task_sizes: dict[str, Given]
    length: int
    axis: str
    smallest: ProvenRecord | None
    enough: int | None
    one_layer: int | None
    excluded: int
    inequality: str | None
    missing: str | None


class HeadsLimit(Part, frozen=True, kw_only=True):
    """Key width of so many heads: certified in numbers of `bits`, excluded in numbers of `few`.

    `by_positions` is excluded where keys depend on positions alone.
    """

    heads: int
    embed: int | None
    bits: int | None
    excluded: int
    by_positions: int
    few: int


class TrainedPoint(Part, frozen=True, kw_only=True):
    """What training found at one size: heads times width, and the error of the best model."""

    task: str
    length: int
    size: float
    error: float


class LimitsRecord(RunRecord, frozen=True, kw_only=True, tag="limits"):
    """Every task, smallest known against largest excluded; planes where a page was asked for."""

    bits: int
    length: int
    rows: list[TaskLimits]
    planes: list[TaskLimits] = []
    heads: list[HeadsLimit] = []
    trained: list[TrainedPoint] = []


class TalkRecord(RunRecord, frozen=True, kw_only=True, tag="talk"):
    """A saved model run by several people, and what that does to its task."""

    task: str
    task_sizes: dict[str, Given]
    model: str
    people: int
    conversation: ConversationRecord
    inputs: int
    error: Number
    error_direct: Number


class AttackInequality(Part, frozen=True, kw_only=True):
    """The inequality that a model violates."""

    name: str
    needed: Number
    available: Number


class AttackRecord(RunRecord, frozen=True, kw_only=True, tag="attack"):
    """Two inputs a model cannot tell apart, the one that fails first."""

    task: str
    model: str
    status: str
    input: list[Numbers] | None = None
    twin: list[Numbers] | None = None
    row: int | None = None
    answers: list[Numbers] | None = None
    targets: list[Numbers] | None = None
    error: Number = None
    hidden_gap: Number = None
    gap: Number
    inequality: AttackInequality
    assumptions: list[str]


class Spread(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Least, middle and largest over the seeds; none where nothing was measured."""

    min: Number = None
    median: Number = None
    max: Number = None


class Curve(Part, frozen=True, kw_only=True):
    """What was seen at the checks of a training, one row per seed, and medians over them."""

    steps: list[int]
    errors: list[Numbers]
    aligned: list[Numbers] = []
    best_steps: list[int] = []
    stopped: list[int | None] = []
    median: Numbers = []
    alignment: Numbers = []


class LengthErrors(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Errors at other lengths by seed, and with scores that grow like ln N where that was tried."""

    lengths: list[int]
    errors: list[Numbers]
    median_errors: Numbers = []
    last_errors: Number = None
    scaled: list[Numbers] | None = None
    median_scaled: Numbers | None = None
    last_scaled: Number = None


class Coarseness(Part, frozen=True, kw_only=True):
    """Fewest bits of a number with which models do their task, and what queries then carry."""

    bits: list[int | None]
    message: list[int | None]
    median_message: Number
    needed: int
    ratio: Number
    allowed: Number
    sentence: str


class TrainRecord(RunRecord, frozen=True, kw_only=True, tag="train"):
    """What training reached, seed by seed, beside simple predictors."""

    task: str
    task_sizes: dict[str, Given]
    model_kind: str
    model_name: str
    model_sizes: dict[str, Given]
    parameters: int
    inputs: str | None = None
    samples: int | None = None
    steps: int
    batch: int | None = None
    seeds: int
    measure: str
    errors: Numbers
    last_errors: Numbers = []
    error: Spread
    accuracy: Spread | None = None
    lines: dict[str, Number]
    aligned: Spread = Spread()
    curve: Curve
    lengths: LengthErrors | None = None
    round_trip: RoundTrip | None = None
    effective_bits: Coarseness | None = None
    model: str | None = None
    models: list[str] | None = None
    torch: str | None = None
