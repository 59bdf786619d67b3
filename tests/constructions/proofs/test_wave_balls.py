"""Matching units proved for all inputs, in balls: SHT23/match2, SHT23/third-order."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import prod

import numpy as np
import pytest

from keyhole.constructions.matching.wave_units import Waves
from keyhole.constructions.proofs.match2_balls import prove_match2
from keyhole.constructions.proofs.wave_balls import prove_wave_unit
from keyhole.errors import DoesNotFit, InvalidInput
from keyhole.models.attention import SelfAttention
from keyhole.models.numbers import number_format
from keyhole.models.stack import Transformer
from keyhole.models.tensor import TensorAttention
from keyhole.tasks import Match2, Match3, Match4

pytest.importorskip("flint")
pytestmark = pytest.mark.theorem("SHT23/match2", "SHT23/third-order", "keyhole/several-frequencies")


def unit(task, several=False):
    order = int(task.name.removeprefix("match"))
    form = number_format("f64")
    return Waves(order, several=several).draft_by_formula(task, form=form, embed=None).model


def score_exactly(model, modulus):
    """Every score of three residues above the blank's, as fractions of what float64 holds."""
    block = model.blocks[0]
    rows = block.map(np.arange(modulus, dtype=float)[None, :, None])[0]
    tokens = [[Fraction(x) for x in row] for row in rows]
    blank = [Fraction(x) for x in block.blank]
    columns = [
        [[Fraction(w) for w in column] for column in weights.T]
        for weights in (block.layer.Q, *block.layer.K)
    ]

    def project(token, weights):
        return [sum(x * w for x, w in zip(token, column, strict=True)) for column in weights]

    sides = [[project(token, weights) for token in tokens] for weights in columns]
    empty = [project(blank, weights) for weights in columns[1:]]
    for triple in product(range(modulus), repeat=3):
        chosen = [side[x] for side, x in zip(sides, triple, strict=True)]
        own = chosen[0]
        score = sum(prod(factors) for factors in zip(*chosen, strict=True))
        yield triple, score - sum(prod(factors) for factors in zip(own, *empty, strict=True))


def test_every_score_of_three_residues_lies_within_the_proof():
    task = Match3(6, 7)
    model = unit(task)
    proof = prove_wave_unit(task, model)
    scores = dict(score_exactly(model, 7))
    fitting = [score for triple, score in scores.items() if sum(triple) % 7 == 0]
    others = [score for triple, score in scores.items() if sum(triple) % 7]
    assert proof.lowest <= min(fitting)
    assert float(min(fitting)) == pytest.approx(proof.lowest, rel=1e-9)
    assert max(others) <= proof.highest
    assert float(max(others)) == pytest.approx(proof.highest, rel=1e-9)
    assert proof.separates


def test_answers_to_every_input_lie_within_the_proof():
    task = Match3(3, 5)
    proof = prove_wave_unit(task, unit(task))
    X = np.concatenate(list(task.exhaustive()))
    answers = unit(task)(X)
    matched = task.target(X) > 0.5
    assert answers[matched].min() >= proof.matched - 1e-12
    assert answers[~matched].max() <= proof.unmatched + 1e-12


def test_pairs_are_proved_as_by_enclosing_every_one():
    task = Match2(9, 40)
    ours, theirs = prove_wave_unit(task, unit(task)), prove_match2(task, unit(task))
    assert ours.lowest <= theirs.lowest
    assert ours.highest >= theirs.highest
    np.testing.assert_allclose(
        [ours.lowest, ours.highest], [theirs.lowest, theirs.highest], rtol=1e-9
    )


@pytest.mark.parametrize(
    ("task", "several"),
    [(Match3(1000, 2_000), False), (Match3(64, 1_000), True), (Match4(20, 500), False)],
    ids=str,
)
def test_large_units_of_order_three_and_four_are_proved(task, several):
    proof = prove_wave_unit(task, unit(task, several))
    assert proof.separates
    assert proof.matched > 0.95
    assert proof.unmatched < 0.15


def test_weights_of_which_one_is_another_are_not_proved():
    task = Match3(4, 9)
    model = unit(task)
    block = model.blocks[0]
    changed = block.layer.K[0].copy()
    changed[0, 0] *= 1 + 1e-9
    layer = TensorAttention(block.layer.Q, (changed, block.layer.K[1]), block.layer.V)
    with pytest.raises(InvalidInput, match="as they are built"):
        prove_wave_unit(task, Transformer((replace(block, layer=layer),)))
    with pytest.raises(InvalidInput, match="as they are built"):
        prove_wave_unit(Match2(4, 9), model)
    pairs = unit(Match2(4, 9)).blocks[0]
    doubled = SelfAttention(
        *(np.repeat(w, 2, axis=0) for w in (pairs.layer.Q, pairs.layer.K, pairs.layer.V))
    )
    with pytest.raises(InvalidInput, match="as they are built"):
        prove_wave_unit(Match2(4, 9), Transformer((replace(pairs, layer=doubled),)))
    with pytest.raises(DoesNotFit, match="of the modulus of the task"):
        prove_wave_unit(Match3(4, 10), model)
