"""Jobs about tasks: build weights, train them, bound sizes, attack models, talk about them."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field

from keyhole.lab.jobs.job_parts import LATER, Attacking, Job, Naming, TaskSizing


@dataclass(frozen=True)
class BuildJob(TaskSizing, Naming):
    """Explicit weights for a task, with a certificate.

    Args:
        accuracy: largest error of an answer that is a vector.
        bits: hold every number in fixed point of so many bits.
        dtype: hold every number in this format: f64, f32, f16, bf16 or fixed:I.F.
        embed: largest width of queries and keys.
        value_width: largest width of values.
        heads: most heads of a layer.
        layers: most attention layers.
        round_trip: hide the unit behind an oracle, recover it, and score what was recovered on the
            task.
        seed: seed of every random choice.
        out: run directory; runs/TIME-build-TASK when absent.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
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
class BoundJob(TaskSizing, Naming):
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
        token_width: numbers of a token behind the token map, of p bits each; any when absent.
        residual: tokens are carried past attention layers.
        positional: keys depend on positions alone, values on the vectors alone, nothing stands
            behind the head.
        hidden: units of the first layer of a fully connected network, instead of attention.
        state_bits: bits of the state of a recurrent network, instead of attention.
        build: build and check weights too, where formulas leave the sizes open.
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
    token_width: int | None = None
    residual: bool = False
    positional: bool = False
    hidden: int | None = None
    state_bits: int | None = None
    build: bool = False
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class AttackJob(TaskSizing, Attacking):
    """An input on which a MODEL that is too small for TASK fails.

    Args:
        dtype: the number format an attention model is evaluated in: f64, f32, f16, bf16 or
            fixed:I.F.
        accuracy: largest error of an answer that is allowed; 1/(4q) when absent.
        seed: seed of every random choice.
    """

    _: KW_ONLY
    dtype: str | None = None
    accuracy: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class LimitsJob(Job):
    """What is known of every task: smallest weights against largest size excluded.

    Args:
        task: one task; every one when absent.
        length: tokens of an input, about.
        bits: of a number, for what is excluded; what is known says how many it takes.
        trained: what training found, drawn beside: the directory of a sweep of trainings, or a JSON
            list of points with task, length, size (heads times width) and error.
        seed: seed of what is built for the picture of heads.
        out: run directory with a page: a plane of size against length for each task; none when
            absent.
        force: overwrite the run in `out`.
    """

    task: str | None = None
    _: KW_ONLY
    length: int = 256
    bits: int = 8
    trained: str | None = None
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class TalkJob(TaskSizing, Attacking):
    """People who each own some tokens run a MODEL of TASK, every bit they send counted.

    Args:
        bits: b, bits of every number that is sent.
        people: two or three, who own neighbouring tokens.
        seed: seed of the inputs.
        out: run directory, with a page; none is written when absent.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    bits: int = 16
    people: int = 2
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True)
class TrainJob(TaskSizing, Naming):
    """Train models of TASK by gradient descent, several seeds side by side, and measure them on
    fresh inputs.

    Args:
        model: attention, linear-attention, third-order, mlp, gru, lstm or layers (a multi-layer
            Transformer); or constructed, the smallest weights that are known, measured beside them.
        embed: width of queries and keys; of a token between layers for layers.
        heads: heads of an attention layer.
        layers: attention layers, or hidden layers of an mlp, gru or lstm.
        hidden: hidden units of a network.
        passes: how often a gru or lstm reads the input, answering the last time; twice when absent.
        state_bits: bits of a number of the state of a gru or lstm, which is rounded between two
            tokens.
        temperature: scores of attention units are divided by this at the start.
        codes: how positions or values are read: one-hot, orthonormal (in a random basis), random,
            learned or resampled (random anew for every sequence); one-hot when absent.
        code_width: numbers of a code.
        tied: the query is the sum of the codes of the positions named, the key the own code, the
            value the vector.
        places: layers read the position in the sequence too.
        inputs: how inputs of tasks with labels are drawn: one of their kinds (random, planted,
            balanced, near-miss), mixed, or strict (match2 and match3 modulo a prime: no 0, and no
            match of three that a pair shows) or one-triple (match3 modulo length^4: uniform, or
            with one planted triple), the default where there is one.
        samples: sequences to train on; fresh ones every step when absent.
        steps: steps of Adam.
        batch: sequences of a step.
        rate: the largest learning rate; when absent 0.01 for units (on labels 0.3, and 0.02 for
            third-order) and 0.001 for others.
        warm_up: steps in which it is reached; it then falls to zero along a cosine.
        seeds: how many models, with the seeds SEED, SEED + 1 and so on.
        seed: seed of every random choice of the first model.
        tests: fresh sequences the models are measured on.
        check_every: steps between two checks; a twentieth of all when absent.
        patience: checks without a better one after which a seed stops; never when absent.
        checkpoint_every: steps between two checkpoints, from which --resume goes on.
        lengths: measure on inputs of these lengths too, with fresh codes (random or resampled
            ones).
        round_trip: hide the best model behind an oracle, recover it, and score what was recovered
            on the task.
        effective_bits: round the numbers people would send to run each model until it fails the
            task.
        keep: write a run directory with the models and a page; jobs of a sweep write none when
            absent.
        out: run directory; runs/TIME-train-TASK when absent.
        resume: go on with the run in `out`.
        force: overwrite the run in `out`.
    """

    _: KW_ONLY
    model: str = "attention"
    embed: int | None = None
    heads: int = 1
    layers: int = 1
    hidden: int | None = None
    codes: str | None = None
    code_width: int | None = None
    tied: bool = False
    places: bool = False
    inputs: str | None = None
    samples: int | None = None
    steps: int = 2000
    batch: int = 32
    rate: float | None = None
    warm_up: int = 50
    seeds: int = 5
    seed: int = 0
    tests: int = 1000
    check_every: int | None = None
    patience: int | None = None
    checkpoint_every: int = 500
    lengths: tuple[int, ...] = ()
    round_trip: bool = False
    effective_bits: bool = False
    passes: int | None = field(default=None, metadata=LATER)
    state_bits: int | None = field(default=None, metadata=LATER)
    temperature: float = field(default=1.0, metadata=LATER)
    keep: bool | None = None
    out: str | None = None
    resume: bool = False
    force: bool = False
