"""SHT23/conjecture: quoted beside open sizes, never a verdict; the inputs it is about."""

import json
from itertools import combinations

import numpy as np
import pytest

import keyhole
from keyhole import BoundVerdict, Composition, InvalidInput, KHop, Match2, Match3
from keyhole.cli import _run_command_line
from keyhole.tasks import draw_planted_triples

pytestmark = pytest.mark.theorem("SHT23/conjecture", "CPW24/composition")


@pytest.mark.parametrize("layers", [2, 5])
def test_several_small_layers_are_open_and_the_conjecture_is_quoted(layers):
    found = keyhole.bound(Match3(4001, 10_007), embed=3, bits=16, layers=layers)
    assert found.verdict is BoundVerdict.OPEN
    assert "Conjectured: no Transformer of several layers" in found.conjecture
    assert "proved nowhere" in found.sentence


def test_what_is_decided_or_of_another_task_quotes_nothing():
    one = keyhole.bound(Match3(4001, 10_007), embed=3, bits=16, layers=1)
    assert (one.verdict, one.conjecture) == (BoundVerdict.TOO_SMALL, "")
    third = keyhole.bound(Match3(40, 101), embed=5, order=3, layers=2)
    assert third.conjecture == ""
    assert keyhole.bound(Match2(40, 101), embed=2, bits=3, layers=2).conjecture == ""


def test_the_command_tells_it_in_its_record(capsys):
    words = "bound match3 --length 4001 --modulus 10007 --embed 3 --bits 16 --layers 2 --json"
    assert _run_command_line(words.split()) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"] == "OPEN"
    assert "SHT23/conjecture" in data["conjecture"]
    assert data["conjecture"] in data["sentence"]


@pytest.mark.parametrize("task", [Composition(32), KHop(65, 9, 8)], ids=str)
def test_what_is_published_of_several_layers_is_quoted_with_its_value(task):
    found = keyhole.bound(task, embed=1, bits=4, layers=2)
    assert found.verdict is BoundVerdict.OPEN
    # 65 tokens, two layers: 65^(1/256).
    assert "CPW24/composition; for 2 layers and 65 tokens that is H d p of at most 1.016" in (
        found.sentence
    )
    assert "CPW24" not in keyhole.bound(task, embed=1, bits=4).sentence
    assert "CPW24" not in keyhole.bound(Match3(65, 101), embed=1, bits=4, layers=2).sentence


def has_triple(row, modulus):
    return any(sum(three) % modulus == 0 for three in combinations(row.tolist(), 3))


def test_planted_sequences_hold_a_triple_and_uniform_ones_hardly_ever(rng):
    drawn = draw_planted_triples(12, 400, rng=rng)
    assert drawn.task == Match3(12, 12**4)
    held = np.array([has_triple(row, 12**4) for row in drawn.X[..., 0].astype(int)])
    assert held[drawn.planted].all()
    assert drawn.planted.sum() == 200
    # 220 triples, each of sum 0 with chance 1/20736: 2.1 of 200 uniform sequences expected.
    assert held[~drawn.planted].sum() <= 10


def test_every_token_of_a_planted_sequence_is_uniform_by_itself(rng):
    drawn = draw_planted_triples(6, 8000, rng=rng)
    low = (drawn.X[drawn.planted, :, 0] < 6**4 / 2).mean(axis=0)
    # 4,000 draws each: five standard deviations are 0.04.
    np.testing.assert_allclose(low, 0.5, atol=0.04)


def test_two_tokens_hold_no_triple(rng):
    with pytest.raises(InvalidInput, match=">= 3"):
        draw_planted_triples(2, 4, rng=rng)
