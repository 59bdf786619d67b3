"""Jobs: plain frozen data, the only thing the command line, the sweep engine and the page hand to `lab.run`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from keyhole.lab.stating import (
    Attacking,
    Comparing,
    Declaring,
    Drawn,
    Hinting,
    Keyed,
    MaybeTargeting,
    Naming,
    Posing,
    Reaching,
    Targeting,
)


@dataclass(frozen=True)
class LearnJob(Reaching, Hinting, Targeting):
    """Recover what is behind TARGET from queries.

    Args:
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        simulate: what to do to the target's answers, as NAME=VALUE: noise, tolerance, decimals, answers, token-bound,
            or labels; may be given several times.
        learner: auto, or the name of a learner.
        budget: never ask more sequences than this, verification included.
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
    learner: str = "auto"
    budget: int | None = None
    seed: int = 0
    out: str | None = None
    resume: bool = False
    force: bool = False
    record: bool = True


@dataclass(frozen=True)
class PlanJob(Hinting, MaybeTargeting):
    """What a recovery would cost, before a single query.

    Args:
        width: size of a token.
        outputs: numbers per answer.
        accuracy: error of W that is wanted; the largest tolerance that guarantees it is printed.
        learner: auto, or the name of a learner.
    """

    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    accuracy: float | None = None
    learner: str = "auto"


@dataclass(frozen=True)
class VerifyJob(Reaching, Declaring, Comparing):
    """Ask TARGET fresh queries and compare the answers with a saved model.

    Args:
        width: size of a token; the model's when absent.
        simulate: what to do to the target's answers, as NAME=VALUE.
        budget: never ask more sequences than this.
        seed: seed of the fresh queries.
    """

    _: KW_ONLY
    width: int | None = None
    simulate: tuple[str, ...] = ()
    budget: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class AuditJob(Reaching, Declaring, Targeting):
    """Which output policy keeps how much back, measured by an extractor against each of them.

    Args:
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        ball: the bound on tokens that policies with one impose; the square root of the width when absent.
        seed: seed of every random choice.
        out: run directory; runs/TIME-NAME when absent.
        resume: go on with the audit in `out`; nothing answered is asked again.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    ball: float | None = None
    seed: int = 0
    out: str | None = None
    resume: bool = False
    force: bool = False


@dataclass(frozen=True)
class CompareJob(Keyed):
    """Distance of two saved models modulo what answers do not determine.

    Args:
        a: a saved model.
        b: another.
    """

    a: str
    b: str


@dataclass(frozen=True)
class TwinsJob(Keyed):
    """Other parameters with the function of a saved model.

    Args:
        model: a saved head, multihead or unit.
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
class BuildJob(Keyed):
    """Explicit weights for a task, with a certificate.

    Args:
        task: sparse-average, match2, match3, match3-bigram, match3-local, match4, triangles or four-cycles.
        length: tokens of an input.
        q: positions a token names (sparse-average).
        width: size of the vectors that are averaged (sparse-average).
        modulus: the numbers are 0 .. modulus - 1 (match tasks).
        radius: how far away partners may be (match3-local).
        nodes: nodes of the graph (triangles, four-cycles).
        at_most: sets may have fewer than q members, never none (sparse-average).
        accuracy: largest error of an answer that is a vector.
        bits: hold every number in fixed point of so many bits.
        dtype: hold every number in this format: f64, f32, f16, bf16 or fixed:I.F.
        embed: largest width of queries and keys.
        value_width: largest width of values.
        heads: most heads of a layer.
        layers: most attention layers.
        round_trip: hide the unit behind an oracle, recover it, and score what was recovered on the task.
        seed: seed of every random choice.
        out: run directory; runs/TIME-build-TASK when absent.
        force: overwrite the run in `out`.
    """

    task: str
    _: KW_ONLY
    length: int | None = None
    q: int | None = None
    width: int | None = None
    modulus: int | None = None
    radius: int | None = None
    nodes: int | None = None
    at_most: bool = False
    accuracy: float = 1e-3
    bits: int | None = None
    dtype: str | None = None
    embed: int | None = None
    value_width: int | None = None
    heads: int | None = None
    layers: int | None = None
    round_trip: bool = False
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class SampleJob(Drawn):
    """Write a random model file to play with.

    Args:
        length: tokens an mlp reads.
        q: positions a token names, for an mlp, gru or lstm.
        state_bits: bits of a number of the state of a gru or lstm; 64 is not rounded.
        out: file to write; KIND.safetensors when absent.
        force: overwrite an existing file.
    """

    _: KW_ONLY
    length: int = 16
    q: int = 3
    state_bits: int = 64
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class BoundJob(Posing, Naming):
    """Whether a model of given sizes can do TASK: too small, enough or open.

    Args:
        embed: m, width of queries and keys.
        bits: p, bits of a number; real numbers when absent.
        dtype: the number format, instead of --bits: f64, f32, f16, bf16 or fixed:I.F.
        heads: H.
        value_width: v, width of values; as wide as an answer when absent.
        layers: D.
        order: order of attention; 2 is standard.
        accuracy: largest error of an answer (sparse-average); 1/(4q) when absent.
        residual: tokens are carried past attention layers.
        positional: keys depend on positions alone, values on the vectors alone, nothing stands behind the head.
        hidden: units of the first layer of a fully connected network, instead of attention.
        state_bits: bits of the state of a recurrent network, instead of attention.
        build: build and check weights, without which nothing is called enough.
        seed: seed of every random choice.
        out: run directory, with a page; none is written when absent.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    embed: int | None = None
    bits: int | None = None
    dtype: str | None = None
    heads: int = 1
    value_width: int | None = None
    layers: int = 1
    order: int = 2
    accuracy: float | None = None
    residual: bool = False
    positional: bool = False
    hidden: int | None = None
    state_bits: int | None = None
    build: bool = True
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class AttackJob(Posing, Attacking):
    """An input on which a MODEL that is too small for TASK fails.

    Args:
        dtype: the number format an attention model is evaluated in.
        accuracy: largest error of an answer that is allowed; 1/(4q) when absent.
        seed: seed of every random choice.
    """

    _: KW_ONLY
    dtype: str | None = None
    accuracy: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class TrialJob(Hinting):
    """Draw a model, hide it, recover it, and measure the recovery against the truth; made for sweeps.

    Args:
        model: the model to draw.
        simulate: what to do to its answers, as NAME=VALUE.
        learner: auto, or the name of a learner.
        budget: never ask more sequences than this, verification included.
        seed: seed of the learner.
    """

    model: Drawn
    _: KW_ONLY
    simulate: tuple[str, ...] = ()
    learner: str = "auto"
    budget: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class SweepJob(Keyed):
    """Run every job of a sweep file that has not been run yet.

    Args:
        file: grids and lists of jobs, .toml or .json.
        workers: processes on this machine; 0 runs the jobs in this one, one after another.
        cluster: address of a Dask scheduler to run on instead, such as tcp://HOST:8786.
        out: directory of the store and the page; runs/NAME when absent. What it holds is not run again.
        retry_failed: run jobs that failed again.
        export: also write the rows as csv, json or parquet; may be given several times.
    """

    file: str
    _: KW_ONLY
    workers: int = 2
    cluster: str | None = None
    out: str | None = None
    retry_failed: bool = False
    export: tuple[str, ...] = ()


@dataclass(frozen=True)
class DemoJob(Keyed):
    """The tour: every capability on embedded defaults.

    Args:
        seed: seed of the hidden models.
        out: where to write the page; runs/TIME-demo when absent.
    """

    _: KW_ONLY
    seed: int = 0
    out: str | None = None


@dataclass(frozen=True)
class ServeJob(Keyed):
    """A model as a black box over HTTP.

    Args:
        model: a saved model, or any other TARGET.
        host: address to listen on; the loopback when absent.
        port: port to listen on; 0 takes a free one.
        name: what the model is called; the name of its file when absent.
        policy: what to do to answers, as NAME=VALUE: noise, tolerance, decimals, answers, token-bound, or labels; may
            be given several times.
        budget: no client is answered more sequences than this.
        rate: no client is answered more sequences a second than this.
        request_bytes: no request may be larger than this.
        width: size of a token, where the model does not say.
        outputs: numbers per answer, where the model does not say.
        seed: seed of the noise of a policy; drawn anew when absent.
    """

    model: str
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    policy: tuple[str, ...] = ()
    budget: int | None = None
    rate: float | None = None
    request_bytes: int = 1 << 22
    width: int | None = None
    outputs: int | None = None
    seed: int | None = None


Job = (
    LearnJob
    | PlanJob
    | VerifyJob
    | AuditJob
    | CompareJob
    | TwinsJob
    | BuildJob
    | SampleJob
    | BoundJob
    | AttackJob
    | TrialJob
    | SweepJob
    | DemoJob
    | ServeJob
)

# The jobs a sweep can be made of, by name.
KINDS: dict[str, type[Job]] = {"trial": TrialJob, "learn": LearnJob, "plan": PlanJob, "audit": AuditJob}
