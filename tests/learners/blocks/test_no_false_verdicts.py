"""Blocks with something else inside: never EXACT, never refuted as a class."""

from dataclasses import replace

import numpy as np
import pytest

import keyhole
from keyhole import Local, ReluNet, Wiring, random_block
from keyhole.claims import Verdict
from support.blocks import stack_blocks

WIDTH = 8


def run_with(block, added):
    """A block with something added to what its network gives."""

    def ask(X):
        inner = block.front(X)
        if block.style == "pre":
            seen = block.norm2(inner)
            return inner + block.network.points(seen) + added(seen)
        seen = block.norm1(inner)
        return block.norm2(seen + block.network.points(seen) + added(seen))

    return ask


def mix_units(activation):
    """Half of the units with another activation."""

    def change(block, rng):
        net, half = block.network, block.network.hidden // 2
        first = replace(net, W1=net.W1[:half], b1=net.b1[:half], W2=net.W2[:, :half])
        rest = ReluNet(net.W1[half:], net.b1[half:], net.W2[:, half:], 0 * net.b2, activation)
        return run_with(replace(block, network=first), rest.points)

    return change


def change_network(activation):
    return lambda block, rng: replace(block, network=replace(block.network, activation=activation))


def change_wiring(**wiring):
    return lambda block, rng: replace(
        block, attention=replace(block.attention, wiring=Wiring(**wiring))
    )


def change_norm(name, **parts):
    return lambda block, rng: replace(block, **{name: replace(getattr(block, name), **parts)})


def draw_another(block, rng):
    style = "gpt2" if block.style == "pre" else "bert"
    return random_block(WIDTH, style=style, heads=2, hidden=8, rng=rng)


def add_positions(block, rng):
    placed = 1e-3 * rng.normal(size=(4096, WIDTH))
    return lambda X: block(X + placed[: X.shape[1]])


def change_answers(change):
    return lambda block, rng: lambda X: change(block(X), X, rng)


def average_two(block, rng):
    other = draw_another(block, rng)
    return lambda X: (block(X) + other(X)) / 2


OTHERS = {
    "ReLU units": change_network("relu"),
    "softplus units": change_network("softplus"),
    "half ReLU units": mix_units("relu"),
    "both forms of GELU": mix_units("gelu_tanh"),
    **{f"scores capped at {cap}": change_wiring(softcap=float(cap)) for cap in (1, 2, 5, 10, 30)},
    "rotary positions": change_wiring(positions="rope"),
    "small positions": add_positions,
    "RMSNorm first": change_norm("norm1", kind="rms"),
    "RMSNorm second": change_norm("norm2", kind="rms"),
    "another eps": change_norm("norm2", eps=1e-3),
    "dropout": change_answers(lambda y, X, rng: y * (1 + 1e-3 * rng.normal(size=(len(y), 1)))),
    "noise": change_answers(lambda y, X, rng: y + 1e-7 * rng.normal(size=y.shape)),
    "nine decimals": change_answers(lambda y, X, rng: np.round(y, 9)),
    "float32": change_answers(lambda y, X, rng: y.astype(np.float32).astype(np.float64)),
    "longer contexts": change_answers(lambda y, X, rng: y * (1 + 1e-6 * (X.shape[1] > 40))),
    "a window": lambda block, rng: lambda X: block(X[:, -33:]),
    "a mean of two": average_two,
    "two layers": lambda block, rng: stack_blocks([draw_another(block, rng), block], causal=False),
    "two causal layers": lambda block, rng: stack_blocks(
        [draw_another(block, rng), block], causal=True
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("style", ["gpt2", "bert"])
@pytest.mark.parametrize("name", OTHERS)
def test_something_else_inside_is_neither_exact_nor_refuted(name, style, seed):
    rng = np.random.default_rng(seed)
    block = random_block(WIDTH, style=style, heads=2, hidden=8, rng=rng)
    found = keyhole.learn(Local(OTHERS[name](block, rng), WIDTH), rng=100 + seed)
    assert found.verdict is Verdict.UNVERIFIED, found.sentence
