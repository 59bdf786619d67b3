"""Torch nets: equal to numpy models, seeds side by side as if alone."""

import numpy as np
import pytest
import torch

import keyhole
from keyhole.constructions.shared.coded_tokens import CodedTokens, Perceptron
from keyhole.lab.jobs import TrainJob
from keyhole.lab.running import run_job
from keyhole.lab.targets.tasks import pose_task
from keyhole.lab.training.choosing import choose_net
from keyhole.lab.training.inputs.labelling import choose_lesson
from support.training_jobs import MATCH, TINY, job

AVERAGE = {"task": "sparse-average", "length": 8, "q": 3, "width": 2}
CASES = [
    *[
        {**AVERAGE, "model": m}
        for m in ("attention", "linear-attention", "third-order", "mlp", "gru", "lstm", "layers")
    ],
    {**AVERAGE, "model": "attention", "heads": 2, "codes": "random"},
    {**AVERAGE, "model": "gru", "passes": 1},
    {**AVERAGE, "model": "gru", "passes": 1, "state_bits": 1},
    {**AVERAGE, "model": "lstm", "layers": 2, "state_bits": 3},
    {**AVERAGE, "model": "attention", "temperature": 0.1},
    *[
        {**AVERAGE, "model": m, "tied": True, "codes": codes}
        for m, codes in (
            ("attention", "learned"),
            ("attention", "random"),
            ("linear-attention", "learned"),
        )
    ],
    *[
        {**AVERAGE, "at_most": True, "codes": "random", "model": m}
        for m in ("attention", "mlp", "gru")
    ],
    *[{**MATCH, "model": m} for m in ("attention", "third-order", "mlp", "gru", "layers")],
    {
        **MATCH,
        "task": "match3-bigram",
        "model": "layers",
        "layers": 2,
        "heads": 2,
        "embed": 8,
        "places": True,
    },
    {"task": "triangles", "nodes": 5, "model": "third-order"},
    {"task": "four-cycles", "nodes": 5, "model": "attention"},
]


def named(case):
    return "-".join(str(value) for value in case.values())


def perturbed(net, rng):
    """Weights of one seed with nothing at zero."""
    held = net.initial(rng)
    return {k: a if k in net.fixed else a + 0.1 * rng.normal(size=a.shape) for k, a in held.items()}


def answers_of(net, weights, X):
    stacked = {name: torch.from_numpy(np.stack([w[name] for w in weights])) for name in weights[0]}
    return net(stacked, torch.from_numpy(np.stack([X] * len(weights)))).numpy()


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_net_answers_like_its_numpy_model_after_a_round_trip_through_a_file(case, tmp_path):
    asked, rng = TrainJob(**case), np.random.default_rng(0)
    lesson = choose_lesson(pose_task(asked.task, asked))
    net = choose_net(asked, lesson).net
    weights, X = [perturbed(net, rng) for _ in range(2)], lesson.draw(4, rng=rng)
    odds = answers_of(net, weights, X)
    for k, w in enumerate(weights):
        keyhole.save(net.exported(w), tmp_path / "model.safetensors")
        said = keyhole.load(tmp_path / "model.safetensors")(X)
        right = odds[k] if not lesson.labels else _probability(asked.model, odds[k])
        np.testing.assert_allclose(said, right, atol=1e-12)


def _probability(model, odds):
    """Networks answer log-odds shifted to a threshold of 1/2, attention probabilities."""
    return odds + 0.5 if model in ("mlp", "gru", "lstm") else 1 / (1 + np.exp(-odds))


def test_a_seed_learns_beside_others_what_it_learns_alone():
    both = run_job(TINY).data
    for k, seed in enumerate((0, 1)):
        alone = run_job(job(seed=seed, seeds=1)).data
        np.testing.assert_allclose(alone.errors, both.errors[k : k + 1], rtol=1e-3)
        np.testing.assert_allclose(alone.curve.errors[0], both.curve.errors[k], rtol=1e-3)


def test_linear_attention_is_the_product_it_is_written_as():
    rng = np.random.default_rng(0)
    Q, K, V = rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 4, 2))
    X = rng.normal(size=(1, 5, 4))
    right = sum(X[0] @ q @ k.T @ X[0].T @ X[0] @ v for q, k, v in zip(Q, K, V, strict=True))
    np.testing.assert_allclose(keyhole.LinearAttention(Q, K, V)(X)[0], right, atol=1e-12)


@pytest.mark.parametrize(
    ("maker", "said"),
    [
        (lambda: CodedTokens(np.eye(3), -1, 1), "plain and coded columns"),
        (lambda: CodedTokens(np.eye(3), 0, 1, 1, places=np.eye(3)), "flagged or have places"),
        (lambda: CodedTokens(np.eye(3), 0, 1)(np.full((1, 2, 1), 3.0)), "whole numbers below 3"),
        (
            lambda: Perceptron(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), np.eye(2)),
            "Wo and bo",
        ),
        (
            lambda: Perceptron(np.eye(2), np.zeros(2), np.eye(2), np.zeros(2), squash="tanh"),
            "squash is none or sigmoid",
        ),
    ],
)
def test_token_maps_of_trained_models_refuse_what_makes_no_sense(maker, said):
    with pytest.raises(keyhole.InvalidInput, match=said):
        maker()


def test_a_temperature_divides_the_scores_at_the_start(rng):
    lesson = choose_lesson(keyhole.SparseAverage(5, 2, 2))
    for tied in (False, True):
        cold, usual = (
            choose_net(
                TrainJob("sparse-average", length=5, q=2, width=2, tied=tied, temperature=t), lesson
            ).net.initial(np.random.default_rng(3))
            for t in (0.25, 1.0)
        )
        scores = [held["Q"] @ np.swapaxes(held["K"], -1, -2) for held in (cold, usual)]
        np.testing.assert_allclose(scores[0], 4.0 * scores[1], atol=1e-12)
