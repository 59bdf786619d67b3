"""Sums of heads from noisy answers inside a ball: within tolerance, with error bars that hold."""

import numpy as np
import pytest

from keyhole import Bounded, HeadsInBall, Local, MultiHead, Noisy, Verdict, learn
from keyhole.claims import Outcome
from keyhole.learners.confronting import confront
from support.seeds import few

NOISE = 1e-6


def hide_heads(heads, width, seed):
    hiding, learning = np.random.default_rng([47, seed]).spawn(2)
    model = MultiHead.random(width, heads=heads, rng=hiding)
    return model, Bounded(Noisy(Local(model), NOISE, seed), width**0.5), learning


def count_covered(model, found):
    """How many entries of W and V lie within 1.96 error bars, and how many there are."""
    inside, every = 0, 0
    for k, W in enumerate(found.model.W):
        own = int(np.argmin([np.linalg.norm(W - other) for other in model.W]))
        for name in ("W", "V"):
            off = getattr(found.model, name)[k] - getattr(model, name)[own]
            covered = np.abs(off) <= 1.96 * found.bars[name][k]
            inside += int(covered.sum())
            every += covered.size
    return inside, every


@pytest.mark.parametrize(("heads", "width", "seeds"), [(2, 8, 24), (3, 6, 12)])
def test_error_bars_of_all_entries_hold_in_19_cases_of_20(heads, width, seeds):
    counts, verified = [], 0
    for seed in few(seeds):
        model, target, rng = hide_heads(heads, width, seed)
        found = HeadsInBall().run(target, rng=rng)
        assert found.verdict in (Verdict.WITHIN_TOLERANCE, Verdict.UNVERIFIED), found.sentence
        if found.verdict is Verdict.WITHIN_TOLERANCE and len(found.model.W) == heads:
            verified += 1
            counts.append(count_covered(model, found))
    assert verified >= 0.8 * len(few(seeds))
    inside, every = np.sum(counts, axis=0)
    assert 0.90 <= inside / every <= 0.98


def test_auto_goes_on_to_several_heads_beside_noise():
    model, target, rng = hide_heads(2, 8, 100)
    found = learn(target, rng=rng)
    assert found.verdict is Verdict.WITHIN_TOLERANCE, found.sentence
    assert len(found.model.W) == 2
    # The theorem is of exact answers: errors as large as the noise explains refute nothing.
    assert found.certificate.outcome is Outcome.SILENT
    assert confront(model, found, rng=rng).outcome is Outcome.SILENT


def test_a_network_is_no_noisy_sum_of_heads(rng):
    def waves(X):
        return np.sin(3.0 * X[:, -1, :1]) + X.mean(axis=1)[:, 1:2]

    target = Bounded(Noisy(Local(waves, size=4), NOISE, 3), 2.0)
    assert HeadsInBall().run(target, rng=rng).verdict is Verdict.UNVERIFIED


@pytest.mark.slow
def test_four_heads_of_width_16_hold_theirs():
    counts = []
    for seed in few(8):
        model, target, rng = hide_heads(4, 16, seed)
        found = HeadsInBall().run(target, rng=rng)
        assert found.verdict is Verdict.WITHIN_TOLERANCE, found.sentence
        counts.append(count_covered(model, found))
    inside, every = np.sum(counts, axis=0)
    assert 0.93 <= inside / every <= 0.97
