"""The smallest number format that holds, and proofs in ball arithmetic."""

import importlib.util
import math
import sys

import numpy as np
import pytest

from keyhole.constructions.matching.recipes import MATCHING
from keyhole.constructions.matching.waves import draw_frequencies
from keyhole.constructions.proofs.match2_balls import prove_gap, prove_match2
from keyhole.constructions.shared.holding import check_in_format, find_smallest_format
from keyhole.errors import DoesNotFit
from keyhole.tasks import Match2

needs_flint = pytest.mark.skipif(
    importlib.util.find_spec("flint") is None,
    reason="python-flint is not installed; rigorous proofs are not tried",
)


def unit(task):
    rng = np.random.default_rng(0)
    return MATCHING[0].build(task, accuracy=0.0, number_format="f64", embed=None, rng=rng).model


def test_the_smallest_format_grows_with_the_modulus():
    rng = np.random.default_rng(1)
    held = [find_smallest_format(Match2(8, M), unit(Match2(8, M)), rng=rng) for M in (7, 2000)]
    assert [one.checked.errors for one in held] == [0, 0]
    assert held[0].bits < 16 < held[1].bits <= 32


def test_a_format_that_is_too_coarse_has_errors():
    task = Match2(8, 5000)
    rng = np.random.default_rng(2)
    assert check_in_format(task, unit(task), "bf16", rng=rng).errors > 0
    assert check_in_format(task, unit(task), "f16", rng=rng).errors > 0
    assert check_in_format(task, unit(task), "f64", rng=rng).errors == 0


@needs_flint
def test_ball_arithmetic_proves_every_input_of_a_size():
    task = Match2(20, 60)
    proof = prove_match2(task, unit(task))
    assert proof.separates
    assert proof.matched >= 1 - 1 / 161
    assert proof.unmatched <= 1 / 9
    assert proof.lowest >= math.log(160)


@needs_flint
def test_gaps_are_proven_over_all_residues():
    assert prove_gap(100, [1]) == pytest.approx(2 * math.sin(math.pi / 100) ** 2, rel=1e-12)
    found = draw_frequencies(500, 3, wanted=2.0, rng=np.random.default_rng(0))
    assert prove_gap(500, [int(f) for f in found.values]) == pytest.approx(found.gap, rel=1e-9)


@needs_flint
def test_too_many_pairs_are_refused():
    with pytest.raises(DoesNotFit, match="up to 2000"):
        prove_match2(Match2(3, 5000), unit(Match2(3, 5)))


def test_without_the_library_proofs_are_refused_with_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(DoesNotFit, match="python-flint"):
        prove_gap(5, [1])
