"""What training learns of tasks, and what it does not: measured."""

import pytest

from keyhole.lab.jobs import TrainJob
from keyhole.lab.running import run_job
from support.training_jobs import job


def test_resampled_codes_carry_over_to_other_lengths(tmp_path):
    data = run_job(
        job(
            codes="resampled",
            code_width=32,
            tied=True,
            steps=150,
            samples=None,
            lengths=(6, 12),
            seeds=3,
        )
    ).data
    assert data.lengths.median_errors[0] == pytest.approx(data.error.median, rel=0.5)
    assert data.lengths.last_scaled < data.lengths.last_errors < 1.0
    # One row per seed, each as long as the lengths, as the figure of a sweep pairs them.
    for rows in (data.lengths.errors, data.lengths.scaled):
        assert [len(row) for row in rows] == [2] * data.seeds
    assert all(row[0] < row[1] for row in data.lengths.errors)


@pytest.mark.parametrize("model", ["attention", "third-order"])
def test_units_with_flags_learn_labels(model):
    data = run_job(
        job(
            task="match2",
            length=5,
            q=None,
            width=None,
            modulus=5,
            model=model,
            steps=200,
            rate=0.05,
            embed=5,
        )
    ).data
    assert data.accuracy.max > 1 - 0.5 * data.lines["majority"]
    assert "% of labels right" in data.sentence


@pytest.mark.slow
def test_attention_learns_averages_from_a_thousand_sequences():
    data = run_job(
        TrainJob("sparse-average", length=20, q=3, width=4, samples=1000, steps=4000, keep=False)
    ).data
    assert data.error.max <= 1e-4


@pytest.mark.slow
def test_a_network_without_attention_stays_at_the_mean_of_all():
    data = run_job(
        TrainJob(
            "sparse-average",
            length=20,
            q=3,
            width=4,
            samples=50_000,
            model="mlp",
            codes="random",
            keep=False,
        )
    ).data
    assert abs(data.error.median - data.lines["mean_of_all"]) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "embed", "usual"), [("attention", 16, 0.317), ("linear-attention", 16, 0.726)]
)
def test_softmax_needs_less_width_than_linear_attention(model, embed, usual):
    sizes = {"length": 64, "q": 3, "width": 4, "tied": True, "steps": 800, "rate": 0.03, "seeds": 3}
    data = run_job(
        TrainJob(
            "sparse-average",
            **sizes,
            model=model,
            embed=embed,
            tests=500,
            check_every=200,
            keep=False,
        )
    ).data
    assert abs(data.error.median - usual) < 0.03
