"""What every oracle and every wrapper promises. A new oracle is one row of the table."""

import numpy as np
import pytest

from keyhole.lab.serving.server import Black, Server
from keyhole.models import Head, MultiHead, SelfAttention
from keyhole.oracles import Budgeted, Chunked, Counted, Local, Oracle, Recorded, Watched
from keyhole.oracles.http.service import HttpService
from keyhole.oracles.torch_module import TorchModule

WIDTH, OUTPUTS = 3, 2
HEAD = Head.random(WIDTH, outputs=OUTPUTS, biases=True, rng=np.random.default_rng(5))
HEADS = MultiHead.random(WIDTH, heads=2, outputs=OUTPUTS, rng=np.random.default_rng(6))
LAYER = SelfAttention(
    *np.random.default_rng(7).normal(size=(2, 2, WIDTH, 2)), np.ones((2, WIDTH, OUTPUTS))
)


def plain(X):
    """A target that says nothing of itself and answers single precision."""
    return HEAD(np.asarray(X, dtype=np.float64)).astype(np.float32)


@pytest.fixture(scope="module")
def address():
    """The head, served on this machine."""
    with Server(Black(Local(HEAD), "head"), "127.0.0.1", 0).beside() as place:
        yield place


def in_torch():
    """The head as a callable on tensors."""
    import torch

    return TorchModule(lambda X: torch.from_numpy(HEAD(X.numpy())), WIDTH, numbers=100)


def recorded(folder, run="a"):
    return Recorded(Local(HEAD), folder / f"{run}.sqlite", {"run": run})


ORACLES = {
    "head": lambda folder: Local(HEAD),
    "several heads": lambda folder: Local(HEADS),
    "last row of a layer": lambda folder: Local(LAYER.read_last()),
    "plain callable": lambda folder: Local(plain, WIDTH),
    "plain callable with outputs": lambda folder: Local(plain, WIDTH, OUTPUTS),
    "torch": lambda folder: in_torch(),
    "counted": lambda folder: Counted(Local(HEAD)),
    "budgeted": lambda folder: Budgeted(Local(HEAD), 1000),
    "one sequence a call": lambda folder: Chunked(Local(HEAD), 1),
    "small chunks": lambda folder: Chunked(Local(HEAD), 30),
    "watched": lambda folder: Watched(Local(HEAD), 10),
    "recorded": recorded,
    "everything": lambda folder: Watched(Budgeted(Chunked(Counted(recorded(folder))), 1000), 10),
}


SERVED = {"bytes over HTTP": "?binary=true", "JSON over HTTP": "?binary=false"}


@pytest.fixture(params=[*ORACLES, *SERVED])
def oracle(request, tmp_path):
    if request.param in SERVED:
        made = HttpService(request.getfixturevalue("address") + SERVED[request.param])
    else:
        made = ORACLES[request.param](tmp_path)
    yield made
    while made is not None:
        if isinstance(made, Recorded | HttpService):
            made.close()
        made = getattr(made, "inner", None)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_batch_answers_as_its_rows_do(oracle, length, rng):
    X = rng.normal(size=(7, length, WIDTH))
    whole = oracle.ask(X)
    one_by_one = np.concatenate([oracle.ask(x[None]) for x in X])
    np.testing.assert_allclose(whole, one_by_one, rtol=1e-12, atol=1e-12)


def test_answers_follow_the_order_of_the_questions(oracle, rng):
    X, order = rng.normal(size=(7, 4, WIDTH)), rng.permutation(7)
    np.testing.assert_allclose(oracle.ask(X[order]), oracle.ask(X)[order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 9])
def test_there_is_one_row_of_finite_float64_answers_per_sequence(oracle, size, rng):
    answers = oracle.ask(rng.normal(size=(size, 3, WIDTH)))
    assert answers.shape == (size, OUTPUTS)
    assert answers.dtype == np.float64
    assert np.isfinite(answers).all()


def test_width_is_known_at_once_and_outputs_after_the_first_answer(oracle, rng):
    assert oracle.width == WIDTH
    oracle.ask(rng.normal(size=(1, 1, WIDTH)))
    assert oracle.outputs == OUTPUTS


def test_it_keeps_the_protocol_before_and_after_its_first_answer(oracle, rng):
    assert isinstance(oracle, Oracle)
    oracle.ask(rng.normal(size=(1, 1, WIDTH)))
    assert isinstance(oracle, Oracle)


def test_the_question_is_left_as_it_was(oracle, rng):
    X = rng.normal(size=(4, 3, WIDTH))
    before = X.copy()
    oracle.ask(X)
    np.testing.assert_array_equal(X, before)


def test_a_question_that_cannot_be_written_on_is_answered(oracle, rng):
    X = rng.normal(size=(4, 3, WIDTH))
    X.setflags(write=False)
    assert oracle.ask(X).shape == (4, OUTPUTS)


def test_a_view_is_answered_as_a_copy_is(oracle, rng):
    wide = rng.normal(size=(4, 3, 2 * WIDTH))
    view = wide[::2, :, ::2]
    np.testing.assert_allclose(oracle.ask(view), oracle.ask(view.copy()), rtol=1e-12, atol=1e-12)


def test_an_empty_batch_has_no_answers_and_costs_nothing(oracle, rng):
    oracle.ask(rng.normal(size=(1, 1, WIDTH)))
    assert oracle.ask(np.zeros((0, 2, WIDTH))).shape == (0, OUTPUTS)


def test_a_replayed_transcript_answers_as_the_target_did(tmp_path, rng):
    questions = [rng.normal(size=(size, 3, WIDTH)) for size in (4, 1, 6)]
    for _ in range(2):
        oracle = recorded(tmp_path)
        for X in questions:
            np.testing.assert_array_equal(oracle.ask(X), HEAD(X))
        oracle.close()
