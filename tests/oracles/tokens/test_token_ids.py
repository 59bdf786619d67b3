"""Language models as oracles: ids in, numbers for every id of the vocabulary out."""

from types import SimpleNamespace

import numpy as np
import pytest

from keyhole import (
    BadAnswer,
    Budgeted,
    BudgetSpent,
    Chunked,
    Counted,
    InvalidInput,
    Recorded,
    Rounded,
    TargetFailed,
)
from keyhole.oracles import Oracle
from keyhole.oracles.tokens.answer_policies import LogProbabilities, TopAnswers
from keyhole.oracles.tokens.ids import TokenIds, pack_ids

V = 11
TABLE = np.random.default_rng(3).normal(size=(V, V))


def bigram(ids):
    """Logits by the last two ids."""
    return TABLE[ids[:, -1]] + 0.5 * TABLE[ids[:, 0]]


def prompts(count=6, length=3, *, seed=0):
    return np.random.default_rng(seed).integers(V, size=(count, length))


def test_a_callable_on_ids_is_an_oracle_of_tokens_of_width_one():
    oracle = TokenIds(bigram, V)
    assert isinstance(oracle, Oracle)
    assert (oracle.width, oracle.outputs) == (1, V)
    ids = prompts()
    np.testing.assert_array_equal(oracle.ask(pack_ids(ids)), bigram(ids))


def test_the_last_position_is_taken_of_answers_to_every_position_and_of_objects_with_logits():
    ids = prompts()

    def every_position(ids):
        return np.stack([bigram(ids[:, : k + 1]) for k in range(ids.shape[1])], axis=1)

    for answer in (every_position, lambda ids: SimpleNamespace(logits=every_position(ids))):
        np.testing.assert_array_equal(TokenIds(answer, V).ask(pack_ids(ids)), bigram(ids))


def test_a_torch_module_is_asked_in_evaluation_mode_without_gradients():
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(
        torch.nn.Embedding(V, 4), torch.nn.Dropout(0.9), torch.nn.Linear(4, V)
    )
    ids = prompts()
    first, second = (TokenIds(net, V).ask(pack_ids(ids)) for _ in range(2))
    E, W, b = (p.detach().double().numpy() for p in net.parameters())
    np.testing.assert_allclose(first, E[ids[:, -1]] @ W.T + b, atol=1e-5)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("wrong", [-1, V, 0.5, np.nan])
def test_what_is_no_id_is_refused_before_the_target_is_asked(wrong):
    asked = []
    oracle = TokenIds(lambda ids: asked.append(ids), V)
    X = pack_ids(prompts())
    X[2, 1, 0] = wrong
    with pytest.raises(InvalidInput, match=r"from 0 to 10; got .*Is --vocabulary 11 right"):
        oracle.ask(X)
    assert not asked


def test_misuse_and_failures_of_the_target_are_told_apart():
    X = pack_ids(prompts())
    with pytest.raises(InvalidInput, match=r"shape \(batch, length >= 1, 1\)"):
        TokenIds(bigram, V).ask(np.zeros((2, 3, 2)))
    with pytest.raises(InvalidInput, match=r"\(6, 11\) or \(6, 3, 11\) numbers; got \(6, 4\)"):
        TokenIds(lambda ids: np.zeros((len(ids), 4)), V).ask(X)
    with pytest.raises(TargetFailed, match="raised IndexError"):
        TokenIds(lambda ids: TABLE[ids[:, -1] + V], V).ask(X)
    with pytest.raises(BadAnswer, match="must be finite"):
        TokenIds(lambda ids: np.full((len(ids), V), np.nan), V).ask(X)
    for size in (None, 1, True, "many"):
        with pytest.raises(InvalidInput, match="a vocabulary has 2 to"):
            TokenIds(bigram, size)


def test_a_shape_that_changes_later_is_a_bad_answer():
    sizes = iter([V, V - 1])
    oracle = TokenIds(lambda ids: np.zeros((len(ids), next(sizes))), V)
    oracle.ask(pack_ids(prompts()))
    with pytest.raises(BadAnswer, match="got"):
        oracle.ask(pack_ids(prompts()))


def test_wrappers_count_cut_keep_and_round_prompts_as_any_question(tmp_path):
    ids = prompts(6)
    counted = Counted(TokenIds(bigram, V))
    recorded = Recorded(counted, tmp_path / "asked.sqlite", {"run": "a"})
    oracle = Budgeted(Rounded(Chunked(recorded, 6), 2), 5)
    with pytest.raises(BudgetSpent) as spent:
        oracle.ask(pack_ids(ids))
    recorded.close()
    np.testing.assert_array_equal(spent.value.answers, np.round(bigram(ids[:5]), 2))
    total = counted.ledger.total()
    assert (total.sequences, total.tokens, total.calls) == (5, 15, 3)
    again = Recorded(TokenIds(lambda ids: 1 / 0, V), tmp_path / "asked.sqlite", {"run": "a"})
    np.testing.assert_array_equal(again.ask(pack_ids(ids[:2])), bigram(ids[:2]))
    again.close()


def softmax(z):
    e = np.exp(z)
    return e / e.sum(axis=1, keepdims=True)


def test_log_probabilities_are_the_logarithms_of_a_softmax():
    ids = prompts()
    said = LogProbabilities(TokenIds(bigram, V)).ask(pack_ids(ids))
    np.testing.assert_allclose(said, np.log(softmax(bigram(ids))), atol=1e-14)


@pytest.mark.parametrize("bias", [0.7, 3.0, 50.0])
def test_the_likeliest_ids_come_with_their_log_probabilities_after_raising(bias):
    k, ids = 3, prompts(40)
    raised = np.stack([np.random.default_rng(i).permutation(V)[:k] for i in range(len(ids))])
    lifted = bigram(ids)
    np.put_along_axis(lifted, raised, np.take_along_axis(lifted, raised, axis=1) + bias, axis=1)
    truth = np.log(softmax(lifted))
    question = pack_ids(np.concatenate([ids, raised], axis=1))
    said = TopAnswers(TokenIds(bigram, V), k, bias).ask(question)
    order = np.argsort(-truth, axis=1)[:, :k]
    np.testing.assert_array_equal(said[:, :k], order)
    np.testing.assert_allclose(said[:, k:], np.take_along_axis(truth, order, axis=1), atol=1e-12)


def test_without_a_bias_the_likeliest_ids_are_those_of_the_prompt():
    ids = prompts(20)
    said = TopAnswers(TokenIds(bigram, V), 2).ask(pack_ids(ids))
    truth = np.log(softmax(bigram(ids)))
    np.testing.assert_array_equal(said[:, 0], truth.argmax(axis=1))
    np.testing.assert_allclose(said[:, 2:], -np.sort(-truth, axis=1)[:, :2], atol=1e-12)


def test_a_prompt_with_many_sets_of_raised_ids_is_worked_out_once_and_counted_each_time():
    inner = Counted(TokenIds(bigram, V))
    outer = Counted(TopAnswers(inner, 2, 10.0))
    question = np.array([[4, 7, 0, other] for other in range(1, V)])
    outer.ask(pack_ids(question))
    assert inner.ledger.total().sequences == 1
    assert outer.ledger.total().sequences == V - 1


def test_questions_that_raise_nonsense_are_refused():
    oracle = TopAnswers(TokenIds(bigram, V), 2, 10.0)
    with pytest.raises(InvalidInput, match="followed by 2 ids to raise"):
        oracle.ask(pack_ids([[1, 2]]))
    with pytest.raises(InvalidInput, match="one came twice"):
        oracle.ask(pack_ids([[1, 2, 2]]))
    with pytest.raises(InvalidInput, match="1 to 11 ids; got 12"):
        TopAnswers(TokenIds(bigram, V), 12)
    with pytest.raises(InvalidInput, match="a bias is a finite number"):
        TopAnswers(TokenIds(bigram, V), 2, -1.0)


def test_a_budget_inside_cuts_what_comes_after_it():
    ids = np.array([[1, 2], [3, 4], [5, 6]])
    oracle = TopAnswers(Budgeted(TokenIds(bigram, V), 2), 1)
    with pytest.raises(BudgetSpent) as spent:
        oracle.ask(pack_ids(ids))
    assert spent.value.answers.shape == (2, 2)
    np.testing.assert_array_equal(spent.value.answers[:, 0], bigram(ids[:2]).argmax(axis=1))


def test_an_onnx_file_on_ids_answers_as_its_graph(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from keyhole.oracles.tokens.onnx_ids import open_onnx_ids

    helper, kinds = onnx.helper, onnx.TensorProto
    table = onnx.numpy_helper.from_array(TABLE, "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["logits"], axis=0)],
        "bigram",
        [helper.make_tensor_value_info("ids", kinds.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", kinds.DOUBLE, ["batch", "length", V])],
        [table],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "bigram.onnx"
    onnx.save(model, path)
    ids = prompts()
    oracle = open_onnx_ids(path)
    assert oracle.outputs == V
    np.testing.assert_array_equal(oracle.ask(pack_ids(ids)), TABLE[ids[:, -1]])


def test_masked_ids_are_told_and_what_to_answer_for_them():
    def answer(ids):
        out = np.zeros((len(ids), 5))
        out[:, 2] = out[0, 4] = -np.inf
        return out

    with pytest.raises(BadAnswer, match="-inf for 2 of 5 ids, the first of which is 2") as told:
        TokenIds(answer, 5).ask(pack_ids([[1, 2], [3, 4]]))
    assert "such as -1e4" in str(told.value)
