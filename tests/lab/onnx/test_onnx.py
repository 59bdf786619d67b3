"""ONNX files: our models written out answer as they do here, and files are learned as black
boxes.
"""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, save_model
from onnxruntime import InferenceSession

import keyhole
from keyhole import Match2, SparseAverage, build
from keyhole.constructions.shared.base import list_recipes
from keyhole.constructions.shared.coded_tokens import CodedTokens, Perceptron
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.errors import InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.onnx.export import export_onnx
from keyhole.lab.running import run_job
from keyhole.models import AbsAffine, Head, MultiHead, OneLayer, ReluNet, SelfAttention
from keyhole.models.baselines import Mlp, Recurrent
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.causal_attention import CausalAttention
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.models.linear import LinearAttention
from keyhole.models.stack import Block, Transformer
from keyhole.models.tensor import TensorAttention, TensorHeads
from keyhole.oracles.onnx_file import OnnxFile
from keyhole.tasks.registry import TASKS, find_kind, task_named

WIDTH = 4
rng = np.random.default_rng(8)
FULL = Head(
    *rng.normal(size=(2, WIDTH, WIDTH)),
    rng.normal(size=WIDTH),
    rng.normal(size=WIDTH),
    np.eye(WIDTH),
)
LAYER = SelfAttention(*rng.normal(size=(2, 2, WIDTH, 3)), rng.normal(size=(2, WIDTH, 3)))
MODELS = {
    "head": Head.random(WIDTH, rng=rng),
    "head with everything": FULL,
    "head in factors": Head.random(WIDTH, rank=2, outputs=3, biases=True, rng=rng),
    "several heads": MultiHead.random(WIDTH, heads=3, outputs=2, rng=rng),
    "heads with biases": MultiHead(
        *rng.normal(size=(2, 2, WIDTH, WIDTH)), np.ones((2, WIDTH)), np.ones(WIDTH)
    ),
    "heads with a residual": MultiHead(*rng.normal(size=(2, 2, WIDTH, WIDTH)), U=np.eye(WIDTH)),
    "layer": LAYER,
    "relu network": ReluNet.random(WIDTH, hidden=5, outputs=2, rng=rng),
    "tanh-GELU network": ReluNet.random(
        WIDTH, hidden=5, outputs=2, activation="gelu_tanh", rng=rng
    ),
    "softplus network": ReluNet.random(WIDTH, hidden=5, outputs=2, activation="softplus", rng=rng),
    "silu network": ReluNet(
        *rng.normal(size=(1, 5, WIDTH)), np.ones(5), rng.normal(size=(2, 5)), np.ones(2), "silu"
    ),
    "normal form": AbsAffine.random(WIDTH, hidden=5, outputs=2, rng=rng),
    "one layer": OneLayer.random(WIDTH, hidden=6, outputs=2, biases=True, rng=rng),
    "one layer with a residual": OneLayer.random(WIDTH, hidden=6, residual=True, rng=rng),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_from_its_file_as_it_does_here(name, tmp_path, rng):
    model = MODELS[name]
    export_onnx(model, tmp_path / "model.onnx")
    oracle = OnnxFile(tmp_path / "model.onnx")
    here = model.read_last() if isinstance(model, SelfAttention) else model
    assert (oracle.width, oracle.outputs) == (here.width, here.outputs)
    for batch, length in ((1, 1), (7, 3), (2, 20)):
        X = rng.normal(size=(batch, length, WIDTH))
        np.testing.assert_allclose(oracle.ask(X), here(X), rtol=1e-12, atol=1e-12)


CODES = np.random.default_rng(2).normal(size=(5, 3))
SEQUENCES = {
    "third order": TensorAttention.random(WIDTH, order=3, embed=3, outputs=2, rng=rng),
    "fourth order": TensorAttention.random(WIDTH, order=4, embed=2, outputs=3, rng=rng),
    "three heads of third order": TensorHeads.random(
        WIDTH, heads=3, order=3, embed=2, outputs=2, rng=rng
    ),
    "second order": TensorAttention.random(WIDTH, order=2, embed=3, rng=rng),
    "mlp": Mlp.random(5, q=2, dimension=1, hidden=7, rng=rng),
    "gru": Recurrent.random("gru", q=2, dimension=1, units=3, layers=2, rng=rng),
    "lstm": Recurrent.random("lstm", q=2, dimension=1, units=3, layers=2, rng=rng),
    "gru that reads twice": replace(
        Recurrent.random("gru", q=2, dimension=1, units=3, rng=rng), passes=2
    ),
    "lstm with a rounded state": Recurrent.random(
        "lstm", q=2, dimension=1, units=3, state_bits=6, rng=rng
    ),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_sequence_model_answers_from_its_file_as_it_does_here_at_the_last_token(
    name, tmp_path, rng
):
    model = SEQUENCES[name]
    export_onnx(model, tmp_path / "model.onnx")
    oracle = OnnxFile(tmp_path / "model.onnx")
    assert (oracle.width, oracle.outputs) == (model.width, model.outputs)
    for batch, length in ((1, 5), (7, 5)) if name == "mlp" else ((1, 1), (7, 3), (2, 8)):
        X = rng.normal(size=(batch, length, model.width))
        np.testing.assert_allclose(oracle.ask(X), model(X)[:, -1], rtol=1e-12, atol=1e-12)


def test_the_last_row_of_a_unit_is_written_as_the_unit_is(tmp_path, rng):
    unit = SEQUENCES["third order"]
    export_onnx(TensorRow(unit), tmp_path / "row.onnx")
    X = rng.normal(size=(3, 6, WIDTH))
    told = OnnxFile(tmp_path / "row.onnx").ask(X)
    np.testing.assert_allclose(told, unit.dense(X)[:, -1], rtol=1e-12, atol=1e-12)


def test_positions_read_as_codes_are_looked_up_in_the_file(tmp_path, rng):
    coded = Recurrent.random(
        "gru", q=8, dimension=1, units=3, rng=rng
    )  # 1 + 9 inputs: three positions of three numbers
    model = replace(coded, codes=CODES)
    assert model.width == 4
    export_onnx(model, tmp_path / "model.onnx")
    X = np.concatenate([rng.normal(size=(6, 4, 1)), rng.integers(-1, 5, size=(6, 4, 3))], axis=2)
    np.testing.assert_allclose(
        OnnxFile(tmp_path / "model.onnx").ask(X), model(X)[:, -1], rtol=1e-12, atol=1e-12
    )


def test_what_a_file_was_not_made_for_is_refused_when_asked(tmp_path, rng):
    export_onnx(SEQUENCES["mlp"], tmp_path / "model.onnx")
    with pytest.raises(TargetFailed, match="dimension mismatch, when asked a batch of shape"):
        OnnxFile(tmp_path / "model.onnx").ask(rng.normal(size=(2, 3, WIDTH)))


def test_learn_recovers_a_head_from_an_onnx_file(tmp_path):
    export_onnx(MODELS["head"], tmp_path / "head.onnx")
    data = run_job(LearnJob(str(tmp_path / "head.onnx"), out=str(tmp_path / "run"))).data
    assert (data.verdict, data.width) == ("EXACT", WIDTH)


def written(path, kind, shape, outputs=("y",)):
    """A file that takes `shape` of `kind` and answers the mean of the tokens."""
    taken = helper.make_tensor_value_info("x", kind, shape)
    given = [helper.make_tensor_value_info(name, kind, ["batch", None]) for name in outputs]
    nodes = [
        helper.make_node("ReduceMean", ["x"], [name], axes=[1], keepdims=0) for name in outputs
    ]
    graph = helper.make_graph(nodes, "g", [taken], given)
    save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        str(path),
    )
    return path


def test_single_precision_is_read_from_the_file_and_declared(tmp_path, rng):
    oracle = OnnxFile(written(tmp_path / "m.onnx", TensorProto.FLOAT, ["batch", "length", 3]))
    X = rng.normal(size=(5, 2, 3))
    np.testing.assert_allclose(oracle.ask(X), X.mean(axis=1), atol=1e-6)
    assert oracle.imperfection.format == "f32"
    assert oracle.outputs == 3


@pytest.mark.parametrize(
    ("kind", "shape", "outputs", "sentence"),
    [
        (TensorProto.FLOAT, [1, "length", 3], ("y",), "export it with dynamic batch and length"),
        (TensorProto.FLOAT, ["batch", "length"], ("y",), "keyhole asks \\(batch, length, width\\)"),
        (TensorProto.INT64, ["batch", "length", 3], ("y",), "takes tensor\\(int64\\)"),
        (TensorProto.FLOAT, ["batch", "length", 3], ("y", "z"), "has 2 outputs \\(y, z\\)"),
        (TensorProto.FLOAT, ["batch", "length", None], ("y",), "the width of a token"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused(kind, shape, outputs, sentence, tmp_path):
    with pytest.raises(InvalidInput, match=sentence):
        OnnxFile(written(tmp_path / "m.onnx", kind, shape, outputs))


def test_what_is_no_file_or_no_model_is_refused(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"hello")
    for name, sentence in (("m.onnx", "cannot be loaded as ONNX"), ("n.onnx", "no ONNX file at")):
        with pytest.raises(InvalidInput, match=sentence):
            run_job(LearnJob(str(tmp_path / name), out=str(tmp_path / "run")))


@pytest.mark.parametrize("name", [*MODELS, "gated network", "one layer of normal form"])
def test_a_model_answers_as_a_torch_module_as_it_does_here(name, tmp_path, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    model = {
        **MODELS,
        "gated network": Gated.random(WIDTH, hidden=5, outputs=2, rng=rng),
        "one layer of normal form": OneLayer(
            Head.random(WIDTH, outputs=WIDTH, rng=rng),
            AbsAffine.random(WIDTH, hidden=5, outputs=2, rng=rng),
        ),
    }[name]
    here = model.read_last() if isinstance(model, SelfAttention) else model
    module = keyhole.export_torch(model)
    assert (module.width, module.outputs) == (here.width, here.outputs)
    for length in (1, 5):
        X = rng.normal(size=(6, length, WIDTH))
        said = module(torch.tensor(X))
        np.testing.assert_allclose(said.detach().numpy(), here(X), rtol=1e-12, atol=1e-12)
    # The names are those of the file, and every parameter is reached by gradients.
    keyhole.save(here, tmp_path / "model.safetensors")
    from safetensors.torch import load_file

    module.load_state_dict(load_file(tmp_path / "model.safetensors"))
    module(torch.tensor(X)).sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())


@pytest.mark.parametrize("outputs", [1, 3])
def test_gelu_is_written_to_the_last_digits_whatever_its_argument(tmp_path, rng, outputs):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    net = ReluNet.random(4, hidden=9, outputs=outputs, activation="gelu", rng=rng)
    export_onnx(net, tmp_path / "m.onnx")
    # Arguments from far below zero, where the share of the normal is tiny, to far above.
    X = rng.normal(size=(400, 1, 4)) * 10.0 ** rng.uniform(-6, 1.3, size=(400, 1, 1))
    x = torch.from_numpy(X[:, -1])
    W1, b1, W2, b2 = map(torch.tensor, (net.W1, net.b1, net.W2, net.b2))
    expected = torch.nn.functional.gelu(x @ W1.T + b1) @ W2.T + b2
    said = OnnxFile(tmp_path / "m.onnx").ask(X)
    np.testing.assert_allclose(said, expected.numpy(), rtol=1e-12, atol=1e-12)


def draw_stack(layer, width, codes, rng):
    """Two blocks: coded tokens behind a blank one, then a network beside a residual."""
    inner = 5
    heads = [
        layer(*rng.normal(size=(2, 2, size, 3)), rng.normal(size=(2, size, inner)))
        for size in (width, inner)
    ]
    sizes = [(inner, 7), (7,), (7, inner), (inner,), (inner, 2), (2,)]
    out = Perceptron(*(rng.normal(size=size) for size in sizes), squash="sigmoid")
    middle = Perceptron(*(rng.normal(size=size) for size in sizes[:4]))
    blank = rng.normal(size=width)
    return Transformer((Block(codes, heads[0], blank), Block(middle, heads[1], None, True)), out)


@pytest.mark.parametrize("layer", [SelfAttention, CausalAttention, LinearAttention])
@pytest.mark.parametrize("reading", ["flagged", "mixed", "placed", "plain"])
def test_a_stack_of_coded_tokens_and_networks_answers_from_its_file(layer, reading, tmp_path, rng):
    length, values = 6, 4
    codes = rng.normal(size=(values, 3))
    reads, width = {
        "flagged": (CodedTokens(codes, 2, 2, 1), 10),
        "mixed": (CodedTokens(codes, 0, 2, mixing=rng.normal(size=(6, 4))), 4),
        "placed": (CodedTokens(codes, 2, 2, places=rng.normal(size=(length, 8))), 8),
        "plain": (CodedTokens(codes, 2, 0), 2),
    }[reading]
    model = draw_stack(layer, width, reads, rng)
    export_onnx(model, tmp_path / "m.onnx")
    oracle = OnnxFile(tmp_path / "m.onnx")
    assert (oracle.width, oracle.outputs) == (reads.plain + reads.coded, 2)
    for size in (length,) if reading == "placed" else (1, 2, length):
        z = rng.normal(size=(9, size, reads.plain))
        named = rng.integers(-1, values, size=(9, size, reads.coded))
        X = np.concatenate([z, named], axis=-1)
        np.testing.assert_allclose(oracle.ask(X), model(X)[:, -1], rtol=1e-10, atol=1e-10)


def test_a_built_match2_answers_from_its_file(tmp_path, rng):
    task = Match2(length=7, modulus=11)
    model = build(task, rng=rng).model
    export_onnx(model, tmp_path / "m.onnx")
    X = task.sample(40, rng=rng)
    said = OnnxFile(tmp_path / "m.onnx").ask(X)
    np.testing.assert_allclose(said, model(X)[:, -1], rtol=1e-9, atol=1e-9)
    assert set(np.rint(said).ravel()) == {0.0, 1.0}
    # Numbers stand for their residues.
    np.testing.assert_allclose(OnnxFile(tmp_path / "m.onnx").ask(X - 22.0), said, atol=1e-12)


SMALL = {
    "sparse-average": {"length": 7, "q": 2, "dimension": 2},
    "match2": {"length": 5, "modulus": 9},
    "match3": {"length": 5, "modulus": 9},
    "match3-bigram": {"length": 6, "modulus": 9},
    "match3-local": {"length": 7, "modulus": 9, "radius": 1},
    "match4": {"length": 4, "modulus": 7},
    "triangles": {"nodes": 5},
    "closed-walks": {"nodes": 3, "length": 5, "hops": 4},
    "four-cycles": {"nodes": 5},
    "index-lookup": {"length": 6, "symbols": 5},
    "composition": {"symbols": 3},
    "induction-heads": {"length": 7, "symbols": 3},
    "k-hop": {"length": 8, "symbols": 3, "hops": 3},
}


@pytest.mark.parametrize("name", TASKS)
def test_every_construction_answers_from_its_file(name, tmp_path):
    """At its last token, for inputs the task draws; the runtime is not ours."""
    task = task_named(name, **SMALL[name])
    split = find_kind(task).load("split_recipes")
    recipes = [*list_recipes(task), *(split(task, 2) if split else ())]
    tried = [one for one in recipes if one.suits(task)]
    assert tried
    for recipe in tried:
        accuracy = getattr(task, "accuracy", 1e-3) or 1e-3
        options = {"number_format": "f64", "embed": None, "rng": np.random.default_rng(1)}
        model = recipe.build(task, accuracy=accuracy, **options).model
        export_onnx(model, tmp_path / "m.onnx")
        X = task.sample(12, rng=np.random.default_rng(2))
        said = OnnxFile(tmp_path / "m.onnx").ask(X)
        np.testing.assert_allclose(said, model(X)[:, -1], rtol=1e-9, atol=1e-9, err_msg=recipe.name)


def test_a_language_model_of_heads_answers_ids_from_its_file(tmp_path, rng):
    model = TokenHeads(*rng.normal(size=(2, 2, 9, 9)))
    export_onnx(model, tmp_path / "m.onnx")
    ids = rng.integers(0, 9, size=(6, 5))
    (said,) = InferenceSession(tmp_path / "m.onnx").run(None, {"tokens": ids})
    np.testing.assert_allclose(said, model(ids[..., None].astype(float)), rtol=1e-12)


def test_a_table_that_is_too_large_is_refused_and_a_layer_is_not(tmp_path, rng):
    small = build(SparseAverage(length=6, q=2), rng=rng).model
    many = SetQueries(rng.normal(size=(40, 10)), "least-squares", 1e-3, 5)
    model = Transformer((Block(many, small.blocks[0].layer, None),), None)
    with pytest.raises(InvalidInput, match=r"a table of all 5 of 40 positions"):
        export_onnx(model, tmp_path / "m.onnx")
    layer = model.blocks[0].layer
    export_onnx(layer, tmp_path / "m.onnx")
    X = rng.normal(size=(3, 4, layer.width)) / 10
    expected = layer(X)[:, -1]
    np.testing.assert_allclose(OnnxFile(tmp_path / "m.onnx").ask(X), expected, rtol=1e-9, atol=1e-9)
