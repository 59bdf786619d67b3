"""One small measured certificate for every theorem that has any: what the pages of theorems
show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import keyhole
from keyhole.bounds.formulas import Inequality
from keyhole.bounds.protocol import converse
from keyhole.bounds.verdicts import bound_network
from keyhole.claims import Basis, Certificate, Check
from keyhole.constructions import Room, survey_recipes
from keyhole.constructions.sparse_averages.sparse_average import LEAST_SQUARES
from keyhole.constructions.split_sets.split_heads import SplitHeads
from keyhole.learners.confronting import confront
from keyhole.learners.one_layer.antisymmetric import Antisymmetric
from keyhole.models import AttentionLayer, Head, MultiHead, OneLayer, ReluNet
from keyhole.oracles import Bounded, Cast, Local, Noisy, Rounded, Signs
from keyhole.tasks import (
    Composition,
    FourCycles,
    IndexLookup,
    InductionHeads,
    KHop,
    Match2,
    Match3,
    Match3Bigram,
    Match3Local,
    Match4,
    SparseAverage,
    Triangles,
)

Example = tuple[str, Certificate | Inequality]


def examples() -> Iterator[Example]:
    """What was done, and the certificate or the inequality that comes of it, for each theorem
    once.
    """
    seen: set[str] = set()
    for source in (recoveries, twins, built, bounded, conversations):
        for said, held in source():
            if held.theorem not in seen:
                seen.add(held.theorem)
                yield said, held


def recoveries() -> Iterator[Example]:
    """A recovery for each theorem about learning."""
    for said, make in _RECOVERIES.items():
        oracle, options = make(np.random.default_rng(7))
        found = keyhole.learn(oracle, rng=np.random.default_rng(8), **options)
        held = confront(_find_truth(oracle), found, rng=np.random.default_rng(9))
        if held is not None:
            yield said, held


def _find_truth(oracle: Any) -> Any:
    """The model behind wrappers."""
    while not isinstance(oracle, Local):
        oracle = oracle.inner
    return oracle.answer


def _gelu(rng: np.random.Generator) -> ReluNet:
    net = ReluNet.random(3, hidden=3, rng=rng)
    return ReluNet(net.W1, net.b1, net.W2, net.b2, activation="gelu")


def _bias_free(rng: np.random.Generator) -> OneLayer:
    net = ReluNet(rng.normal(size=(4, 3)), np.zeros(4), rng.normal(size=(1, 4)), np.zeros(1))
    return OneLayer(Head.random(3, outputs=3, rng=rng), net)


def _layer(rng: np.random.Generator) -> MultiHead:
    """Two heads that write into independent spaces of three dimensions each."""
    W = rng.normal(size=(2, 6, 3)) @ rng.normal(size=(2, 3, 6)) / 6
    return MultiHead(W, rng.normal(size=(2, 6, 3)) @ rng.normal(size=(2, 3, 6)) / 3)


_WIRING = keyhole.Wiring(norm="rms", eps=1e-5, residual=True, positions="rope")


def _wired_layer(rng: np.random.Generator) -> AttentionLayer:
    return keyhole.random_layer(8, heads=2, wiring=_WIRING, rng=rng)


def _bases() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    bases = (Q[:, :2], Q[:, 2:])
    heads = [basis @ rng.normal(size=(2, 2)) @ basis.T for basis in bases]
    V = [basis @ rng.normal(size=(2, 1)) for basis in bases]
    return bases, MultiHead(np.stack(heads), np.stack(V))


_Make = Callable[[np.random.Generator], tuple[Any, dict[str, Any]]]
_RECOVERIES: dict[str, _Make] = {
    "a head of width 6, learner exact": lambda rng: (
        Local(Head.random(6, rng=rng)),
        {"learner": "exact"},
    ),
    "a head of width 12 and rank 2": lambda rng: (Local(Head.random(12, rank=2, rng=rng)), {}),
    "a head of width 3, answers rounded to 7 decimals": lambda rng: (
        Rounded(Local(Head(0.2 * rng.normal(size=(3, 3)), np.ones((3, 1)))), 7),
        {"learner": keyhole.Tolerant(norm_bound=1.0, margin=0.5)},
    ),
    "a head of width 3, labels only": lambda rng: (Signs(Local(Head.random(3, rng=rng))), {}),
    "a head of width 4, answers in bf16": lambda rng: (
        Cast(Local(Head.random(4, rng=rng)), "bf16"),
        {},
    ),
    "a network of width 4 with 5 hidden units": lambda rng: (
        Local(ReluNet.random(4, hidden=5, rng=rng)),
        {},
    ),
    "the same, tokens up to norm 3": lambda rng: (
        Bounded(Local(ReluNet.random(4, hidden=5, rng=rng)), 3.0),
        {},
    ),
    "a network of width 3 with 3 hidden units, noise 1e-6": lambda rng: (
        Noisy(Local(ReluNet.random(3, hidden=3, rng=rng)), 1e-6, 0),
        {},
    ),
    "a network of width 3 with 3 GELU units": lambda rng: (Local(_gelu(rng)), {}),
    "a one-layer Transformer without biases, learner of the paper": lambda rng: (
        Local(_bias_free(rng)),
        {"learner": Antisymmetric()},
    ),
    "a one-layer Transformer of width 3": lambda rng: (
        Local(OneLayer.random(3, hidden=4, biases=True, rng=rng)),
        {},
    ),
    "two heads of width 4": lambda rng: (Local(MultiHead.random(4, heads=2, rng=rng)), {}),
    "five heads of width 4": lambda rng: (Local(MultiHead.random(4, heads=5, rng=rng)), {}),
    "two heads of width 4, tokens up to norm 3": lambda rng: (
        Bounded(Local(MultiHead.random(4, heads=2, rng=rng)), 3.0),
        {},
    ),
    "two heads in orthogonal planes of width 4": lambda _: (
        Local(_bases()[1]),
        {"learner": keyhole.Orthogonal(_bases()[0])},
    ),
    "two heads of width 3, learner repetition": lambda rng: (
        Local(MultiHead.random(3, heads=2, rng=rng)),
        {"learner": keyhole.Repetition(2)},
    ),
    "a layer of two heads, width and outputs 6": lambda rng: (
        Local(_layer(rng)),
        {"learner": "layer"},
    ),
    "an attention layer of width 8 with rotary positions behind RMSNorm": lambda rng: (
        Local(_wired_layer(rng)),
        {"wiring": _WIRING},
    ),
}


def twins() -> Iterator[Example]:
    """Two heads, a layer, and other parameters with their answers."""
    for twin in keyhole.twins(
        MultiHead.random(4, heads=2, rng=np.random.default_rng(1)), rng=np.random.default_rng(2)
    ):
        yield f"two heads of width 4, {twin.symmetry.name.lower()}", twin.certificate
    layer = _wired_layer(np.random.default_rng(1))
    for twin in keyhole.twins(layer, rng=np.random.default_rng(2)):
        yield f"a layer of width 8, {twin.symmetry.name.lower()}", twin.certificate


def built() -> Iterator[Example]:
    """Weights for every task; each recipe carries its own theorem."""
    tasks = {
        "sparse averages of 2 of 10 tokens": SparseAverage(10, 2),
        "Match2 of 8 tokens modulo 12": Match2(8, 12),
        "Match3 of 6 tokens modulo 8": Match3(6, 8),
        "Match3Bigram of 6 tokens modulo 8": Match3Bigram(6, 8),
        "Match3Local of 8 tokens modulo 5, radius 1": Match3Local(8, 5, 1),
        "triangles on 5 nodes": Triangles(8, 5),
        "4-cycles on 4 nodes": FourCycles(4),
        "look-up of 8 tokens": IndexLookup(8, 4),
        "composition on 4 elements": Composition(4),
        "8 hops over 16 tokens of 4 symbols": KHop(16, 4, 8),
    }
    for said, task in tasks.items():
        found = survey_recipes(
            task, accuracy=1e-3, number_format="f64", room=Room(), rng=np.random.default_rng(0)
        )
        for one in found.built:
            yield f"{said}, {one.construction}", one.certificate
    split = SplitHeads(2).build(
        SparseAverage(16, 4),
        accuracy=1e-2,
        number_format="f32",
        embed=None,
        rng=np.random.default_rng(0),
    )
    yield "averages of 4 of 16 tokens, two heads of key width 4 in f32", split.certificate
    paper = LEAST_SQUARES.build(
        SparseAverage(10, 1),
        accuracy=1e-3,
        number_format="f64",
        embed=None,
        rng=np.random.default_rng(0),
    )
    yield "averages of 1 of 10 tokens, least-squares keys", paper.certificate


def bounded() -> Iterator[Example]:
    """Sizes confronted with every inequality that is known for a task."""
    asked = {
        "sparse averages of 16 of 1,024 tokens, m = 3, 16 bits": (SparseAverage(1024, 16), 3),
        "Match3 of 101 tokens modulo 500, m = 5, 8 bits": (Match3(101, 500), 5),
        "Match4 of 101 tokens modulo 700, m = 5, 8 bits": (Match4(101, 700), 5),
        "4-cycles on 64 nodes, m = 2, 8 bits": (FourCycles(64), 2),
        "composition on 64 elements, m = 2, 8 bits": (Composition(64), 2),
        "induction heads on 257 tokens of 9 symbols, m = 2, 8 bits": (InductionHeads(257, 9), 2),
    }
    for said, (task, embed) in asked.items():
        bits = 16 if embed == 3 else 8
        for one in keyhole.bound(task, embed=embed, bits=bits).inequalities:
            yield said, one
    narrow, forgetful = (
        bound_network(SparseAverage(24, 3), hidden=11),
        bound_network(SparseAverage(24, 3), state_bits=8),
    )
    yield "sparse averages of 3 of 24 tokens, 11 hidden units", narrow.inequalities[0]
    yield "sparse averages of 3 of 24 tokens, 8 bits of state", forgetful.inequalities[0]


def conversations() -> Iterator[Example]:
    """A built unit run by two people, its deviation against the promise."""
    task = SparseAverage(8, 2)
    unit = keyhole.build(task, rng=np.random.default_rng(0))
    talk = converse(unit.model, task.sample(1, rng=np.random.default_rng(1)), bits=24)
    check = Check(
        "deviation of the answers when numbers are sent with 24 bits", talk.deviation, talk.promised
    )
    yield (
        "sparse averages of 2 of 8 tokens, two people",
        Certificate("keyhole/conversation", (), (check,), basis=Basis.CONFRONTED),
    )
