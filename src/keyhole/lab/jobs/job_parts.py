"""What jobs have in common: a key, a target, what is stated of it, a random model, a task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from types import MappingProxyType

# Marks an option that jobs did not have when the first stores were made.
LATER: Mapping[str, bool] = MappingProxyType({"later": True})


@dataclass(frozen=True)
class Job:
    """What every job has: a key made of its fields."""

    @property
    def key(self) -> str:
        """A short hash of the job's kind and fields."""
        told = asdict(self)
        # An option that came later is told only where it is used: stores made before go on.
        for item in fields(self):
            if item.metadata.get("later") and told[item.name] == item.default:
                del told[item.name]
        # Sorted, so that the order of fields in the source does not change stored keys.
        text = json.dumps({"job": type(self).__name__, **told}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Targeting(Job):
    """A job with a target.

    Args:
        target: a .safetensors or .onnx file, package.module:callable, or
            http(s)://HOST:PORT/v2/models/NAME.
    """

    target: str


@dataclass(frozen=True)
class MaybeTargeting(Job):
    """A job that can do without a target.

    Args:
        target: where the width and outputs are read from, when given; nothing is asked.
    """

    target: str | None = None


@dataclass(frozen=True)
class Comparing(Targeting):
    """A job with a target, and a model where nothing else is compared with it.

    Args:
        model: a saved model.
    """

    model: str | None = None


@dataclass(frozen=True)
class Declaring(Job):
    """What a job states of its target's answers and tokens.

    Args:
        answers: the number format of the target's answers: f64, f32, f16 or bf16.
        noise: standard deviation of a random error in every answer; nan where there is one of
            unknown size.
        tolerance: largest absolute error of an answer.
        decimals: answers are rounded to so many decimals.
        labels: answers are labels: positive or not.
        token_bound: largest norm of a token that may be asked.
        lengths: the shortest and the longest sequence that may be asked, as MIN:MAX.
        verify: how many fresh questions a model is asked; 160 when absent.
    """

    _: KW_ONLY
    answers: str = "f64"
    noise: float = 0.0
    tolerance: float = 0.0
    decimals: int | None = None
    labels: bool = False
    token_bound: float | None = None
    lengths: str | None = field(default=None, metadata=LATER)
    verify: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Layering(Job):
    """Which part of a target is meant.

    Args:
        layer: one layer of a torch or ONNX model, as `keyhole inspect` names it; it is read at its
            last position.
    """

    _: KW_ONLY
    layer: str | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Reaching(Job):
    """How a job asks a service over HTTP.

    Args:
        rate: ask at most so many sequences a second.
        timeout: seconds one request may take in all, from connecting to the last byte of its
            answer.
        in_flight: how many requests may be under way at once.
    """

    _: KW_ONLY
    rate: float | None = None
    timeout: float = 30.0
    in_flight: int = field(default=4, metadata=LATER)


# Names of fields, for commands that pass them on one by one.
DECLARATIONS = tuple(item.name for item in fields(Declaring))


@dataclass(frozen=True)
class Hinting(Declaring):
    """What a job knows of its target's weights, and how they are to be learnt.

    Args:
        rank: the rank of W, where it is known.
        grid: W has entries that are whole multiples of this step.
        tokens: a file of the only tokens that may be asked, one per row (.npy, .csv or
            .safetensors).
        repeats: how often every question is asked where answers carry random errors.
        norm_bound: the Frobenius norm of W is at most this (learner tolerant).
        margin: no entry of the read-out is smaller than this (learner tolerant).
        bits: binary digits of W to learn from labels.
        heads: number of heads (learner repetition).
        bases: a file of one basis per head, its columns (learner orthogonal; .safetensors or .npy).
    """

    _: KW_ONLY
    rank: int | None = None
    grid: float | None = None
    tokens: str | None = None
    repeats: int = 1
    norm_bound: float | None = None
    margin: float | None = None
    bits: int = 40
    heads: int | None = None
    bases: str | None = None


HINTS = tuple(item.name for item in fields(Hinting) if item.name not in DECLARATIONS)


@dataclass(frozen=True)
class Wired(Job):
    """How an attention layer is wired, as far as it is known.

    Args:
        norm: none, rms or layer: the norm before queries, keys and values.
        eps: what the norm adds to the mean square, or to the variance.
        residual: whether the last token is added to the answer.
        positions: none, rope, alibi, table or absolute: how positions are told apart.
        rope_base: base of the frequencies of rotary positions.
        rotary_share: the share of a head that rotary positions turn.
        window: tokens at a displacement of this and more are not read.
        softcap: scores are capped by this times a hyperbolic tangent.
        groups: number of key and value maps, each shared by as many heads.
        sinks: whether every head has a score that takes weight and answers nothing.
        qk_norm: whether queries and keys of a head are normed.
    """

    _: KW_ONLY
    norm: str | None = field(default=None, metadata=LATER)
    eps: float | None = field(default=None, metadata=LATER)
    residual: bool | None = field(default=None, metadata=LATER)
    positions: str | None = field(default=None, metadata=LATER)
    rope_base: float | None = field(default=None, metadata=LATER)
    rotary_share: float | None = field(default=None, metadata=LATER)
    window: int | None = field(default=None, metadata=LATER)
    softcap: float | None = field(default=None, metadata=LATER)
    groups: int | None = field(default=None, metadata=LATER)
    sinks: bool | None = field(default=None, metadata=LATER)
    qk_norm: bool | None = field(default=None, metadata=LATER)


WIRING = tuple(item.name for item in fields(Wired))


@dataclass(frozen=True)
class RandomModel(Job):
    """A random model.

    Args:
        kind: head, multihead, relu, smooth, gated or onelayer; in a file also a layer, a
            block, a unit of third order (tensor), or a network to attack: mlp, gru or lstm.
        width: size of a token; of the vectors z for a network to attack.
        rank: rank of W, full when absent; size of a head of a layer, width / heads when absent;
            products of a tensor, as many as the width when absent.
        heads: number of heads of a multihead, a layer or a block.
        outputs: numbers per answer; 1 gives a layer as many as its width.
        hidden: hidden units of a relu, smooth, gated, onelayer, block or network to attack; four
            times the width when absent.
        scale: entries of W have standard deviation scale / sqrt(width).
        biases: give a head a score bias and a constant, a layer all its biases.
        seed: seed of the weights.
    """

    kind: str
    _: KW_ONLY
    width: int = 16
    rank: int | None = None
    heads: int = 2
    outputs: int = 1
    hidden: int | None = None
    scale: float = 1.0
    biases: bool = False
    seed: int = 0


@dataclass(frozen=True)
class TaskSizing(Job):
    """The sizes of a task, each where the task has it.

    Args:
        length: tokens of an input.
        q: positions a token names (sparse-average).
        width: size of the vectors (sparse-average).
        at_most: a token may name fewer than q positions (sparse-average).
        modulus: how many values a token can have (matching tasks).
        radius: how far a partner may be (match3-local).
        nodes: nodes of the graph (triangles, closed-walks, four-cycles).
        symbols: how many symbols there are (index-lookup, composition, induction-heads, k-hop).
        hops: how often a token is followed (k-hop); edges of a walk (closed-walks).
    """

    _: KW_ONLY
    length: int | None = None
    q: int | None = None
    width: int | None = None
    at_most: bool = False
    modulus: int | None = None
    radius: int | None = None
    nodes: int | None = None
    symbols: int | None = field(default=None, metadata=LATER)
    hops: int | None = field(default=None, metadata=LATER)


@dataclass(frozen=True)
class Naming(Job):
    """A job with a task.

    Args:
        task: one of sparse-average, match2, match3, match3-bigram, match3-local, match4, triangles,
            closed-walks, four-cycles, index-lookup, composition, induction-heads and k-hop.
    """

    task: str


@dataclass(frozen=True)
class Attacking(Job):
    """A job with a model and a task.

    Args:
        model: a saved model.
        task: one of sparse-average, match2, match3, match3-bigram, match3-local, match4, triangles,
            closed-walks, four-cycles, index-lookup, composition, induction-heads and k-hop.
    """

    model: str
    task: str
