"""A kind of model of the tests: one answer to every question; with all parts declared, and bare."""

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import freeze_array
from keyhole.drawing.html import element
from keyhole.models.registry import ModelKind


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """Answers c, whatever is asked."""

    c: np.ndarray
    width: int

    def __post_init__(self):
        object.__setattr__(self, "c", freeze_array(self.c))

    @property
    def outputs(self):
        return len(self.c)

    def __call__(self, X):
        return np.broadcast_to(self.c, (len(X), len(self.c)))


@dataclass(frozen=True)
class ConstantGap:
    c: float

    @property
    def largest(self):
        return self.c


def describe(model):
    return {"width": str(model.width)}, {"c": model.c}


def restore(words, tensors):
    return Constant(tensors["c"], int(words["width"]))


def measure_gap(a, b):
    return ConstantGap(float(np.abs(a.c - b.c).max()))


def draw(described, rng):
    return Constant(rng.normal(size=described.outputs), described.width)


def draw_portrait(data, model):
    return element("p", f"always {model.c[0]:g}")


def add_constant(graph, last, model):
    return graph.affine(last, np.zeros((model.width, model.outputs)), model.c)


_HERE = "support.constant"
WHOLE = ModelKind(
    name="constant",
    model=Constant,
    describe=describe,
    restore=restore,
    called="still",
    distance=f"{_HERE}:measure_gap",
    sample=f"{_HERE}:draw",
    portrait=f"{_HERE}:draw_portrait",
    export=f"{_HERE}:add_constant",
)
BARE = ModelKind(name="constant", model=Constant, describe=describe, restore=restore)
