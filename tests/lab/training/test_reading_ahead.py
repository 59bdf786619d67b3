"""Tokens that are read once before a training, and attention whose gradients are written out."""

import numpy as np
import pytest
import torch

import keyhole
from keyhole.lab.training.choosing import choose_net
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.streams import Purpose, open_stream
from keyhole.lab.training.loop import Course, Trainer
from keyhole.lab.training.nets.attending import attend_by_softmax
from keyhole.lab.training.supply import Supply
from support.training_jobs import job

TASK = keyhole.SparseAverage(6, 2, 3)
ONE_STEP = Course(1, 0.1, 0, 1, None, checks=2)


def train_on(samples, **asked):
    lesson = choose_lesson(TASK)
    net = choose_net(job(length=6, q=2, width=3, **asked), lesson).net
    return Trainer(net, Supply(lesson, net.reading, (4, 5), 3, samples), ONE_STEP)


@pytest.mark.parametrize("codes", ["one-hot", "random", "orthonormal"])
@pytest.mark.parametrize(
    "asked",
    [
        {"embed": 2},
        {"embed": 20},
        {"embed": 3, "heads": 2},
        {"model": "linear-attention"},
        {"model": "third-order", "embed": 2},
        {"model": "mlp", "hidden": 3},
        {"model": "gru", "hidden": 2},
        {"model": "layers", "embed": 4},
    ],
)
def test_a_model_learns_the_same_from_tokens_that_were_read_before(asked, codes):
    trainer = train_on(20, codes=codes, **asked)
    assert trainer.taught is not trainer.net
    # What the steps see is what a seed's own draws say, read by the net itself.
    known = [choose_lesson(TASK).draw(20, rng=open_stream(s, Purpose.SAMPLE)) for s in (4, 5)]
    chosen = [
        open_stream(s, Purpose.BATCHES, 0).integers(20, size=64 * 3).reshape(64, 3) for s in (4, 5)
    ]
    for step in (0, 7):
        X = np.stack([x[rows[step]] for x, rows in zip(known, chosen, strict=True)])
        Y = torch.tensor(np.stack([TASK.target(x) for x in X]))
        answers = trainer.net(trainer.weights, torch.tensor(X).float()).double()
        expected = (answers - Y).square().sum(dim=-1).mean(dim=(1, 2))
        losses = trainer._losses(trainer.supply.at(step))
        torch.testing.assert_close(losses.double(), expected, rtol=1e-4, atol=1e-5)
        slopes, wanted = (
            torch.autograd.grad(one.sum(), [trainer.weights[name] for name in trainer.trained])
            for one in (losses, expected)
        )
        for slope, want in zip(slopes, wanted, strict=True):
            torch.testing.assert_close(slope, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "asked", [{"codes": "learned"}, {"codes": "resampled"}, {"codes": "one-hot", "tied": True}]
)
def test_what_changes_from_step_to_step_is_not_read_ahead(asked):
    trainer = train_on(20, **asked)
    assert trainer.taught is trainer.net
    assert train_on(None, codes="random").taught.reading.columns.coded == 3


def test_the_gradients_of_attention_are_those_of_its_formula():
    draw = torch.Generator().manual_seed(0)
    parts = [
        torch.randn(2, 2, 5, width, generator=draw, dtype=torch.float64, requires_grad=True)
        for width in (3, 3, 2)
    ]
    assert torch.autograd.gradcheck(attend_by_softmax, parts)
    tokens = parts[1].detach()
    assert torch.autograd.gradcheck(
        lambda queries, values: attend_by_softmax(queries, tokens, values), [parts[0], parts[2]]
    )
