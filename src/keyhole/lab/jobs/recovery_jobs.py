"""Jobs that ask a black box, or look at what was recovered from one."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from keyhole.lab.jobs.job_parts import (
    LATER,
    Comparing,
    Declaring,
    Hinting,
    Job,
    Layering,
    MaybeTargeting,
    RandomModel,
    Reaching,
    Targeting,
    Wired,
)


@dataclass(frozen=True)
class LearnJob(Reaching, Wired, Hinting, Layering, Targeting):
    """Recover what is behind TARGET from queries.

    Args:
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        simulate: what to do to the target's answers, as NAME=VALUE: noise, tolerance, decimals,
            answers, token-bound, or labels; may be given several times.
        tokens_in: the target takes token ids and answers a logit for each.
        vocabulary: how many ids it has, where the target does not say.
        learner: auto, or one of exact, low-rank, nystrom, nuclear-norm, grid, restricted, noisy,
            balanced, labels, several-heads, heads-in-ball, restricted-heads, layer, wired-layer,
            orthogonal, repetition, network, network-in-ball, noisy-network, smooth-network,
            gated-network, third-order, one-layer, smooth-layer, several-heads-layer,
            pre-norm-block, post-norm-block, gated-block, antisymmetric and tolerant.
        until: of a block, the stage after which to end: norm, values or network.
        budget: never ask more sequences than this, verification included.
        max_seconds: stop after so many seconds of own work; waiting for the target is none.
        seed: seed of every random choice.
        out: run directory; runs/TIME-NAME when absent.
        resume: go on with the run in `out`, replaying what was answered.
        force: overwrite the run in `out`.
        record: keep a transcript, so that the run can be resumed.
    """

    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    simulate: tuple[str, ...] = ()
    tokens_in: bool = field(default=False, metadata=LATER)
    vocabulary: int | None = field(default=None, metadata=LATER)
    learner: str = "auto"
    until: str | None = field(default=None, metadata=LATER)
    budget: int | None = None
    max_seconds: float = field(default=3600.0, metadata=LATER)
    seed: int = 0
    out: str | None = None
    resume: bool = False
    force: bool = False
    record: bool = True


@dataclass(frozen=True)
class PlanJob(Wired, Hinting, Layering, MaybeTargeting):
    """What a recovery would cost, before a single query.

    Args:
        width: size of a token.
        outputs: numbers per answer.
        accuracy: error of W that is wanted; the largest tolerance that guarantees it is printed.
        learner: auto, or one of exact, low-rank, nystrom, nuclear-norm, grid, restricted, noisy,
            balanced, labels, several-heads, heads-in-ball, restricted-heads, layer, wired-layer,
            orthogonal, repetition, network, network-in-ball, noisy-network, smooth-network,
            gated-network, third-order, one-layer, smooth-layer, several-heads-layer,
            pre-norm-block, post-norm-block, gated-block, antisymmetric and tolerant.
        latency: seconds that one request takes; measured on the metadata of a service when absent.
        in_flight: how many requests may be under way at once.
        tokens_in: the target takes token ids and answers a logit for each.
        vocabulary: how many ids it has, where the target does not say.
    """

    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    accuracy: float | None = None
    learner: str = "auto"
    latency: float | None = field(default=None, metadata=LATER)
    in_flight: int = field(default=4, metadata=LATER)
    tokens_in: bool = field(default=False, metadata=LATER)
    vocabulary: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class VerifyJob(Reaching, Declaring, Layering, Comparing):
    """Ask TARGET fresh queries and compare the answers with a saved model, or ask a witness again.

    Args:
        witness: the directory of a run that ended with CLASS_REFUTED, instead of a model.
        width: size of a token; the model's, or the witness's, when absent.
        simulate: what to do to the target's answers, as NAME=VALUE: noise, tolerance, decimals,
            answers, token-bound, or labels; may be given several times.
        tokens_in: the target takes token ids and answers a logit for each.
        vocabulary: how many ids it has; as many as the model when absent.
        budget: never ask more sequences than this.
        seed: seed of the fresh queries.
    """

    _: KW_ONLY
    witness: str | None = field(default=None, metadata=LATER)
    width: int | None = None
    simulate: tuple[str, ...] = ()
    tokens_in: bool = field(default=False, metadata=LATER)
    vocabulary: int | None = field(default=None, metadata=LATER)
    budget: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class AuditJob(Reaching, Wired, Declaring, Layering, Targeting):
    """Which output policy keeps how much back, measured by an extractor against each of them.

    Args:
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        ball: the bound on tokens that policies with one impose; the square root of the width when
            absent.
        tokens_in: the target takes token ids and answers a logit for each.
        vocabulary: how many ids it has, where the target does not say.
        against: another snapshot of a target on token ids, to compare output projections with.
        prompts: the most prompts of token ids that are asked to see a hidden size; a quarter more
            confirm it.
        budget: never ask more sequences than this in all attempts together; policies that it does
            not reach are not tried.
        max_seconds: stop an attempt after so many seconds of own work; waiting for the target is
            none.
        fail_above: for CI: end with exit code 3 unless the error of every copy of the target as it
            stands is above this.
        seed: seed of every random choice.
        out: run directory; runs/TIME-NAME when absent.
        resume: go on with the audit in `out`; nothing answered is asked again.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    ball: float | None = None
    tokens_in: bool = field(default=False, metadata=LATER)
    vocabulary: int | None = field(default=None, metadata=LATER)
    against: str | None = field(default=None, metadata=LATER)
    prompts: int = field(default=1024, metadata=LATER)
    budget: int | None = field(default=None, metadata=LATER)
    max_seconds: float = field(default=3600.0, metadata=LATER)
    fail_above: float | None = field(default=None, metadata=LATER)
    seed: int = 0
    out: str | None = None
    resume: bool = False
    force: bool = False


@dataclass(frozen=True)
class InspectJob(Job):
    """What is inside a model, what keyhole can recover of it, and by which command.

    Args:
        model: a torch module as package.module:object (or what makes one when it is called), an
            .onnx file, or a .safetensors file of a common architecture.
    """

    model: str


@dataclass(frozen=True)
class Pairing(Job):
    """A job with two models.

    Args:
        a: a saved model or any TARGET; with --layer a torch, ONNX or weight file's layer.
        b: another one: an export, a quantised or converted copy, a recovered model.
    """

    a: str
    b: str


@dataclass(frozen=True)
class CompareJob(Layering, Pairing):
    """Whether two models are one function, and where they differ.

    Args:
        other_layer: the layer of B, where it has another name than that of A.
        width: size of a token, where neither says.
        heads: number of heads of a layer of a weight file without config.json.
        seed: seed of the questions.
        out: directory for the record and the page; nothing is written when absent.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    other_layer: str | None = field(default=None, metadata=LATER)
    width: int | None = field(default=None, metadata=LATER)
    heads: int | None = field(default=None, metadata=LATER)
    seed: int = field(default=0, metadata=LATER)
    out: str | None = field(default=None, metadata=LATER)
    force: bool = field(default=False, metadata=LATER)


@dataclass(frozen=True)
class TwinsJob(Job):
    """Other parameters with the function of a saved model.

    Args:
        model: a saved head, multihead, unit or attention layer.
        seed: seed of every random choice.
        out: run directory; runs/TIME-twins-NAME when absent.
        force: overwrite the run in `out`.
    """

    model: str
    _: KW_ONLY
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class TrialJob(Hinting):
    """Draw a model, hide it, recover it, measure the recovery; made for sweeps.

    Args:
        model: the model to draw.
        simulate: what to do to its answers, as NAME=VALUE.
        learner: auto, or one of exact, low-rank, nystrom, nuclear-norm, grid, restricted, noisy,
            balanced, labels, several-heads, heads-in-ball, restricted-heads, layer, wired-layer,
            orthogonal, repetition, network, network-in-ball, noisy-network, smooth-network,
            gated-network, third-order, one-layer, smooth-layer, several-heads-layer,
            pre-norm-block, post-norm-block, gated-block, antisymmetric and tolerant.
        budget: never ask more sequences than this, verification included.
        seed: seed of the learner.
    """

    model: RandomModel
    _: KW_ONLY
    simulate: tuple[str, ...] = ()
    learner: str = "auto"
    budget: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class TransitionJob(Job):
    """How often the least nuclear norm finds a random matrix; made for sweeps.

    Args:
        width: d, the matrix is d x d.
        rank: r, of the matrix.
        ratio: measurements over its degrees of freedom, r(2d - r).
        seeds: matrices that are drawn.
        seed: seed of every random choice.
    """

    width: int
    rank: int
    ratio: float
    _: KW_ONLY
    seeds: int = 10
    seed: int = 0
