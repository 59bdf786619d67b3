"""Transformers of token maps and layers."""

from dataclasses import dataclass

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.stack import Block, TokenMap, Transformer


@dataclass(frozen=True)
class Times:
    factor: float

    name = "times"

    @property
    def settings(self):
        return {"factor": self.factor}

    @property
    def tensors(self):
        return {}

    def __call__(self, X):
        return self.factor * X


def layer(width, rng):
    return SelfAttention(*rng.normal(size=(3, 1, width, width)))


def test_blocks_follow_one_another():
    rng = np.random.default_rng(0)
    first, second = layer(3, rng), layer(3, rng)
    X = rng.normal(size=(4, 5, 3))
    stack = Transformer(
        (Block(Times(2.0), first), Block(Times(3.0), second, residual=True)), Times(0.5)
    )
    middle = 3.0 * first(2.0 * X)
    np.testing.assert_allclose(stack(X), 0.5 * (second(middle) + middle), rtol=1e-14)


def test_a_blank_token_is_seen_and_then_dropped():
    rng = np.random.default_rng(1)
    unit, X, blank = layer(2, rng), rng.normal(size=(3, 4, 2)), np.array([5.0, -1.0])
    whole = unit(np.concatenate([np.tile(blank, (3, 1, 1)), X], axis=1))
    np.testing.assert_allclose(
        Transformer((Block(Times(1.0), unit, blank),))(X), whole[:, 1:], rtol=1e-14
    )


def test_layers_can_be_evaluated_in_another_way():
    rng = np.random.default_rng(2)
    unit, X = layer(2, rng), rng.normal(size=(3, 4, 2))
    stack = Transformer((Block(Times(1.0), unit),))
    np.testing.assert_array_equal(stack(X, lambda f, Y: f(Y) + 1.0), unit(X) + 1.0)
    assert isinstance(Times(1.0), TokenMap)


def test_blocks_that_do_not_fit_are_refused():
    unit = layer(2, np.random.default_rng(3))
    with pytest.raises(InvalidInput, match="blank"):
        Block(Times(1.0), unit, np.zeros(3))
    with pytest.raises(InvalidInput, match="at least one block"):
        Transformer(())
    narrow = SelfAttention(np.ones((1, 2, 1)), np.ones((1, 2, 1)), np.ones((1, 2, 1)))
    with pytest.raises(InvalidInput, match="residual"):
        Block(Times(1.0), narrow, residual=True)
