"""Training: torch nets equal to numpy models, seeds side by side as if alone, runs that go on, stop and are refused."""

import sys

import numpy as np
import pytest
import torch

import keyhole
from keyhole.lab.jobs import TrainJob
from keyhole.lab.posing import posed
from keyhole.lab.running import run
from keyhole.lab.training.choosing import chosen
from keyhole.lab.training.labelling import lesson_of

AVERAGE = {"task": "sparse-average", "length": 8, "q": 3, "width": 2}
MATCH = {"task": "match2", "length": 6, "modulus": 7}
CASES = [
    *[
        {**AVERAGE, "model": m}
        for m in ("attention", "linear-attention", "third-order", "mlp", "gru", "lstm", "layers")
    ],
    {**AVERAGE, "model": "attention", "heads": 2, "codes": "random"},
    *[
        {**AVERAGE, "model": m, "tied": True, "codes": codes}
        for m, codes in (("attention", "learned"), ("attention", "random"), ("linear-attention", "learned"))
    ],
    *[{**AVERAGE, "at_most": True, "codes": "random", "model": m} for m in ("attention", "mlp", "gru")],
    *[{**MATCH, "model": m} for m in ("attention", "third-order", "mlp", "gru", "layers")],
    {**MATCH, "task": "match3-bigram", "model": "layers", "layers": 2, "heads": 2, "embed": 8, "places": True},
    {"task": "triangles", "nodes": 5, "model": "third-order"},
    {"task": "four-cycles", "nodes": 5, "model": "attention"},
]
TINY = TrainJob("sparse-average", length=6, q=2, width=2, steps=60, seeds=2, tests=50, samples=100, keep=False)


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
    job, rng = TrainJob(**case), np.random.default_rng(0)
    lesson = lesson_of(posed(job.task, job))
    net = chosen(job, lesson).net
    weights, X = [perturbed(net, rng) for _ in range(2)], lesson.draw(4, rng=rng)
    odds = answers_of(net, weights, X)
    for k, w in enumerate(weights):
        keyhole.save(net.exported(w), tmp_path / "model.safetensors")
        said = keyhole.load(tmp_path / "model.safetensors")(X)
        right = odds[k] if not lesson.labels else _probability(job.model, odds[k])
        np.testing.assert_allclose(said, right, atol=1e-12)


def _probability(model, odds):
    """Networks answer log-odds shifted to a threshold of 1/2, attention probabilities."""
    return odds + 0.5 if model in ("mlp", "gru", "lstm") else 1 / (1 + np.exp(-odds))


def test_a_seed_learns_beside_others_what_it_learns_alone():
    both = run(TINY).data
    for k, seed in enumerate((0, 1)):
        alone = run(TrainJob(**{**vars(TINY), "seed": seed, "seeds": 1})).data
        np.testing.assert_allclose(alone["errors"], both["errors"][k : k + 1], rtol=1e-3)
        np.testing.assert_allclose(alone["curve"]["errors"][0], both["curve"]["errors"][k], rtol=1e-3)


def test_a_model_that_is_unknown_is_refused_with_the_names_of_those_that_are_known():
    with pytest.raises(keyhole.InvalidInput, match="attention, linear-attention, third-order, mlp, gru, lstm, layers"):
        run(TrainJob(**{**vars(TINY), "model": "perceptron"}))


def test_training_without_torch_says_how_to_get_it(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("keyhole.lab.training") or n.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(keyhole.InvalidInput, match=r"needs the torch extra: pip install 'keyhole\[torch\]'"):
        run(TINY)
