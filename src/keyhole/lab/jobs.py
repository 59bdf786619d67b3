"""Jobs: plain frozen data, the only thing the command line, the sweep engine and the page hand to `lab.run`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import KW_ONLY, asdict, dataclass


@dataclass(frozen=True, slots=True)
class _Job:
    """What every job has: a key made of its fields."""

    @property
    def key(self) -> str:
        """A short hash of the job's kind and fields."""
        text = json.dumps({"job": type(self).__name__, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class LearnJob(_Job):
    """Recover what is behind TARGET from queries.

    Args:
        target: a .safetensors file, or package.module:callable.
        width: size of a token, where the target does not say.
        outputs: numbers per answer, where the target does not say.
        rank: the rank of W, where it is known.
        grid: W has entries that are whole multiples of this step.
        tokens: a file of the only tokens that may be asked, one per row (.npy, .csv or .safetensors).
        answers: the number format of the target's arithmetic and answers: f64, f32, f16 or bf16.
        learner: auto, or the name of a learner.
        budget: never ask more sequences than this, verification included.
        seed: seed of every random choice.
        out: run directory; runs/TIME-NAME when absent.
        resume: go on with the run in `out`, replaying what was answered.
        force: overwrite the run in `out`.
        record: keep a transcript, so that the run can be resumed.
    """

    target: str
    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    rank: int | None = None
    grid: float | None = None
    tokens: str | None = None
    answers: str = "f64"
    learner: str = "auto"
    budget: int | None = None
    seed: int = 0
    out: str | None = None
    resume: bool = False
    force: bool = False
    record: bool = True


@dataclass(frozen=True, slots=True)
class PlanJob(_Job):
    """What a recovery would cost, before a single query.

    Args:
        target: where the width and outputs are read from, when given; nothing is asked.
        width: size of a token.
        outputs: numbers per answer.
        rank: the rank of W, where it is known.
        grid: W has entries that are whole multiples of this step.
        tokens: a file of the only tokens that may be asked.
        learner: auto, or the name of a learner.
    """

    target: str | None = None
    _: KW_ONLY
    width: int | None = None
    outputs: int | None = None
    rank: int | None = None
    grid: float | None = None
    tokens: str | None = None
    learner: str = "auto"


@dataclass(frozen=True, slots=True)
class VerifyJob(_Job):
    """Ask TARGET fresh queries and compare the answers with a saved model.

    Args:
        target: a .safetensors file, or package.module:callable.
        model: a saved model.
        width: size of a token; the model's when absent.
        answers: the number format of the target's arithmetic and answers: f64, f32, f16 or bf16.
        budget: never ask more sequences than this.
        seed: seed of the fresh queries.
    """

    target: str
    model: str
    _: KW_ONLY
    width: int | None = None
    answers: str = "f64"
    budget: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class CompareJob(_Job):
    """Distance of two saved models modulo what answers do not determine.

    Args:
        a: a saved model.
        b: another.
    """

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class SampleJob(_Job):
    """Write a random model file to play with.

    Args:
        kind: head or multihead.
        width: size of a token.
        rank: rank of W; full when absent.
        heads: number of heads of a multihead.
        outputs: numbers per answer.
        scale: entries of W have standard deviation scale / sqrt(width).
        biases: give a head a score bias and a constant.
        seed: seed of the weights.
        out: file to write; KIND.safetensors when absent.
        force: overwrite an existing file.
    """

    kind: str
    _: KW_ONLY
    width: int = 16
    rank: int | None = None
    heads: int = 2
    outputs: int = 1
    scale: float = 1.0
    biases: bool = False
    seed: int = 0
    out: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class DemoJob(_Job):
    """The tour: every capability on embedded defaults.

    Args:
        seed: seed of the hidden models.
        out: where to write the page; runs/TIME-demo when absent.
    """

    _: KW_ONLY
    seed: int = 0
    out: str | None = None


Job = LearnJob | PlanJob | VerifyJob | CompareJob | SampleJob | DemoJob
