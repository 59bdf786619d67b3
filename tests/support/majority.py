"""A task of the tests: whether most tokens are 1; with all parts declared, and with none."""

from dataclasses import dataclass
from math import log2
from typing import ClassVar

import numpy as np

from keyhole.bounds.formulas import Inequality
from keyhole.claims import Certificate, Check
from keyhole.constructions import Built, Size, check_model
from keyhole.constructions.shared.coded_tokens import CodedTokens
from keyhole.drawing.html import element
from keyhole.models import SelfAttention
from keyhole.models.stack import Block, Transformer
from keyhole.tasks import TaskKind
from keyhole.tasks.base import Columns, batch_rows, check_kind, list_tuples, measure_wrong_labels


@dataclass(frozen=True, slots=True)
class Majority:
    """Whether more than half of the tokens, 0 or 1 each, are 1; the length is odd."""

    name: ClassVar[str] = "majority"

    length: int

    @property
    def width(self):
        return 1

    @property
    def outputs(self):
        return 1

    @property
    def columns(self):
        return Columns(0, 1, 2)

    @property
    def accuracy(self):
        return 0.0

    @property
    def count(self):
        return 2**self.length

    @property
    def kinds(self):
        return ("random",)

    def sample(self, size, *, rng, kind="random"):
        check_kind(self, kind)
        return rng.integers(2, size=(size, self.length, 1)).astype(np.float64)

    def exhaustive(self):
        return (batch[..., None] for batch in batch_rows(iter(list_tuples(2, self.length))))

    def target(self, X):
        most = X.sum(axis=1, keepdims=True) > self.length / 2
        return np.broadcast_to(most, X.shape).astype(np.float64)

    def error(self, Y, X):
        return measure_wrong_labels(self, Y, X)


class Count:
    """Equal scores: every token answers the mean of all."""

    name = "count"
    theorem = "keyhole/gather"

    def suits(self, task):
        return True

    def embed(self, task, accuracy):
        return 1

    def build(self, task, *, accuracy, number_format, embed, rng):
        none = np.zeros((1, 1, 1))
        layer = SelfAttention(none, none, np.ones((1, 1, 1)))
        model = Transformer((Block(CodedTokens(np.zeros((1, 1)), 1, 0), layer),))
        checked = check_model(task, model, allowed=0.0, rng=rng)
        conclusion = (Check("sequences answered wrongly", checked.errors, 0),)
        certificate = Certificate(self.theorem, (), conclusion)
        size = Size(1, 1, 1, 1, 64)
        margin, bound = 1.0, 0.0
        return Built(
            task, self.name, model, size, number_format, margin, bound, certificate, checked
        )


COUNTING = (Count(),)


def list_majority_bounds(task, sizes):
    """The answers 0 and 1 are two: one bit must come out, and log2 of the length must go in."""
    return (
        Inequality(
            "counted ones",
            "keyhole/gather",
            log2(task.length + 1),
            sizes.heads * sizes.value_width * sizes.bits,
            "bits",
            (),
            ("one layer",),
            "log2(N + 1) <= H v p",
            "none in the sources",
            "one layer of attention",
        ),
    )


def draw_majority(shown):
    """How many ones there are, in words."""
    return element("p", f"{int(shown.X[:, 0].sum())} of {len(shown.X)} tokens are 1")


_HERE = "support.majority"
WHOLE = TaskKind(
    task=Majority,
    title="majority",
    recipes=f"{_HERE}:COUNTING",
    inequalities=f"{_HERE}:list_majority_bounds",
    lesson="keyhole.lab.training.inputs.labelling:Labelling",
    picture=f"{_HERE}:draw_majority",
)
BARE = TaskKind(task=Majority, title="majority")
