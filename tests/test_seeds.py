"""Public functions take a number where they take a generator: the same choices, and nothing else
passes.
"""

import inspect
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import keyhole
from keyhole._arrays import as_generator
from keyhole.errors import InvalidInput

HEAD = keyhole.Head(np.diag([1.0, 2.0, 3.0]), np.array([[1.0], [0.0], [-1.0]]))
AVERAGE = keyhole.SparseAverage(4, 1)
UNIT = keyhole.build(AVERAGE, rng=np.random.default_rng(5)).model
CALLS = {
    "attack": lambda rng: keyhole.attack(UNIT, AVERAGE, rng=rng),
    "bound": lambda rng: keyhole.bound(AVERAGE, embed=4, bits=32, rng=rng),
    "build": lambda rng: keyhole.build(AVERAGE, rng=rng),
    "effective_bits": lambda rng: keyhole.effective_bits(
        UNIT, AVERAGE, allowed=0.1, rng=rng, sampled=2
    ),
    "learn": lambda rng: keyhole.learn(keyhole.Local(HEAD), rng=rng),
    "random_block": lambda rng: keyhole.random_block(8, style="gpt2", rng=rng),
    "random_layer": lambda rng: keyhole.random_layer(4, heads=2, biases=True, rng=rng),
    "twins": lambda rng: keyhole.twins(HEAD, rng=rng),
    "verify": lambda rng: keyhole.verify(keyhole.Local(HEAD), HEAD, rng=rng),
    "AbsAffine.random": lambda rng: keyhole.AbsAffine.random(3, hidden=2, rng=rng),
    "Head.random": lambda rng: keyhole.Head.random(3, rng=rng),
    "Mlp.random": lambda rng: keyhole.Mlp.random(3, q=1, dimension=2, hidden=4, rng=rng),
    "MultiHead.random": lambda rng: keyhole.MultiHead.random(3, heads=2, rng=rng),
    "HeadsBeforeNetwork.random": lambda rng: keyhole.HeadsBeforeNetwork.random(
        3, heads=2, hidden=2, rng=rng
    ),
    "OneLayer.random": lambda rng: keyhole.OneLayer.random(3, hidden=2, rng=rng),
    "Recurrent.random": lambda rng: keyhole.Recurrent.random(
        "gru", q=1, dimension=2, units=3, rng=rng
    ),
    "Gated.random": lambda rng: keyhole.Gated.random(3, hidden=2, outputs=3, rng=rng),
    "ReluNet.random": lambda rng: keyhole.ReluNet.random(3, hidden=2, rng=rng),
    "TensorAttention.random": lambda rng: keyhole.TensorAttention.random(3, embed=2, rng=rng),
    "TensorRow.random": lambda rng: keyhole.TensorRow.random(3, embed=2, rng=rng),
    "TensorHeads.random": lambda rng: keyhole.TensorHeads.random(3, embed=2, rng=rng),
}


def list_numbers(value):
    """Every array and number inside a value but times, in order."""
    if is_dataclass(value):
        names = [field.name for field in fields(value) if "seconds" not in field.name]
        parts = [getattr(value, name) for name in names]
    elif isinstance(value, dict):
        parts = [*value.values()]
    elif isinstance(value, list | tuple):
        parts = value
    else:
        return [np.asarray(value)] if isinstance(value, np.ndarray | float | int) else []
    return [number for part in parts for number in list_numbers(part)]


def takes_rng(function):
    return callable(function) and "rng" in inspect.signature(function).parameters


def test_every_public_function_and_every_way_to_draw_a_model_is_called_here():
    public = {name: getattr(keyhole, name) for name in keyhole.__all__}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    functions = {name for name in public.keys() - classes.keys() if takes_rng(public[name])}
    drawn = {f"{name}.random" for name, value in classes.items() if hasattr(value, "random")}
    assert functions | drawn == set(CALLS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("seed", [7, np.int64(7)], ids=["int", "numpy"])
def test_a_number_means_the_generator_it_seeds(call, seed):
    ours, theirs = list_numbers(call(seed)), list_numbers(call(np.random.default_rng(7)))
    assert ours
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("wrong", [None, -1, True, 1.5, "7", np.random.RandomState(7)])
def test_what_seeds_nothing_is_refused_with_what_to_give_instead(wrong):
    with pytest.raises(
        InvalidInput,
        match=r"rng must be a numpy\.random\.Generator or a whole number from 0 on; got",
    ):
        as_generator(wrong)


def test_a_generator_is_used_and_not_copied():
    rng = np.random.default_rng(7)
    assert as_generator(rng) is rng


def test_hints_are_public_and_reach_the_learner():
    recovery = keyhole.learn(keyhole.Local(HEAD), rng=3, hints=keyhole.Hints(grid=1.0))
    np.testing.assert_array_equal(recovery.unwrap().W, HEAD.W)


def test_a_missing_hint_is_named_for_the_command_line_and_for_python():
    with pytest.raises(
        InvalidInput,
        match=r"tolerant needs --norm-bound, in Python hints=keyhole\.Hints\(norm_bound=",
    ):
        keyhole.learn(keyhole.Local(HEAD), rng=3, learner="tolerant")
