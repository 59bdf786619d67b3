"""What a run's own answers tell of a head, against the head that gave them."""

import numpy as np
import pytest

from keyhole.models import Head, MultiHead
from keyhole.web.reading import HeadReader
from support.seeds import few

WIDTH = 5


def head(rng, outputs=1, biased=False):
    more = (rng.normal(size=WIDTH), rng.normal(size=outputs)) if biased else ()
    return Head(rng.normal(size=(WIDTH, WIDTH)) / 2, rng.normal(size=(WIDTH, outputs)), *more)


def ask(reader, model, X):
    reader.hear(X, model(X))


def off(reader, truth):
    return np.linalg.norm(reader.read().W - truth.W) / np.linalg.norm(truth.W)


@pytest.mark.parametrize(("outputs", "biased"), [(1, False), (1, True), (3, False), (3, True)])
def test_pairs_of_tokens_fill_in_the_matrix_to_the_last_digits(outputs, biased):
    for seed in few(8):
        rng = np.random.default_rng(seed)
        truth, reader = head(rng, outputs, biased), HeadReader(WIDTH)
        ask(reader, truth, rng.normal(size=(WIDTH + 1, 1, WIDTH)))
        errors = []
        for _ in range(6):
            ask(reader, truth, rng.normal(size=(8, 2, WIDTH)))
            errors.append(off(reader, truth))
        assert errors[0] > 0.1
        assert errors[-1] < 1e-7


def test_a_least_solution_is_never_larger_than_the_truth(rng):
    truth, reader = head(rng), HeadReader(WIDTH)
    ask(reader, truth, rng.normal(size=(WIDTH + 1, 1, WIDTH)))
    for _ in range(5):
        ask(reader, truth, rng.normal(size=(3, 2, WIDTH)))
        assert np.linalg.norm(reader.read().W) <= np.linalg.norm(truth.W) * (1 + 1e-9)


def test_several_outputs_tell_several_scores_at_once(rng):
    truth, reader = head(rng, outputs=4), HeadReader(WIDTH)
    ask(reader, truth, rng.normal(size=(WIDTH + 1, 1, WIDTH)))
    # Fewer answers than W has entries.
    ask(reader, truth, rng.normal(size=(24, 4, WIDTH)))
    assert reader.read().equations > 25
    assert off(reader, truth) < 1e-7


def test_repeated_tokens_count_as_often_as_they_stand_there(rng):
    truth, reader = head(rng), HeadReader(WIDTH)
    ask(reader, truth, rng.normal(size=(WIDTH + 1, 1, WIDTH)).repeat(3, axis=1))
    for count in (1, 2, 5):
        pairs = rng.normal(size=(12, 2, WIDTH))
        ask(reader, truth, np.concatenate([pairs[:, :1]] * count + [pairs[:, 1:]] * 2, axis=1))
    assert off(reader, truth) < 1e-7


def test_nothing_is_read_before_the_readout_is_known(rng):
    truth, reader = head(rng), HeadReader(WIDTH)
    ask(reader, truth, rng.normal(size=(WIDTH - 1, 1, WIDTH)))
    ask(reader, truth, rng.normal(size=(9, 2, WIDTH)))
    assert reader.read() is None


def test_two_heads_are_not_read_as_one():
    for seed in few(8):
        rng = np.random.default_rng(seed)
        both = MultiHead.random(WIDTH, heads=2, rng=rng)
        reader = HeadReader(WIDTH)
        ask(reader, both, rng.normal(size=(WIDTH + 1, 1, WIDTH)))
        ask(reader, both, rng.normal(size=(60, 2, WIDTH)))
        assert reader.read() is None


def test_what_is_no_attention_is_not_read(rng):
    reader = HeadReader(WIDTH)
    ask(reader, lambda X: np.abs(X).sum(axis=(1, 2))[:, None], rng.normal(size=(20, 1, WIDTH)))
    ask(reader, lambda X: np.abs(X).sum(axis=(1, 2))[:, None], rng.normal(size=(20, 2, WIDTH)))
    assert reader.read() is None
