"""Layers of ONNX files: found by how nodes are joined, cut out, and held against torch."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput
from keyhole.lab.targets.advising import advise

torch = pytest.importorskip("torch", reason="torch is not installed")
onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

nn = torch.nn
WIDTH, HEADS = 8, 2


class Attention(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        split = (batch, length, HEADS, WIDTH // HEADS)
        q, k, v = (
            p(x).view(split).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(-1, -2) * 0.5
        if self.slope:
            scores = scores + self.slope * torch.arange(length, dtype=x.dtype)
        mixed = torch.softmax(scores, -1) @ v
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention(slope)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 12), nn.ReLU(), nn.Linear(12, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class Whole(nn.Module):
    """The second block tells positions."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList([Block(0.0), Block(0.3)])

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    model = Whole().double().eval()
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    free = {0: "batch", 1: "length"}
    torch.onnx.export(
        model,
        (torch.zeros(2, 3, dtype=torch.long),),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["ids"],
        output_names=["out"],
        dynamic_axes={"ids": free, "out": free},
    )
    return model, str(path)


def test_attention_networks_and_norms_are_found_in_a_graph(exported):
    inside = keyhole.inspect(exported[1])
    assert [part.name for part in inside.attention] == ["blocks.0.attn", "blocks.1.attn"]
    assert {(part.width, part.heads, part.head_size) for part in inside.attention} == {(8, 2, 4)}
    assert [(net.name, net.hidden, net.activation) for net in inside.networks] == [
        ("blocks.0.mlp", 12, "relu"),
        ("blocks.1.mlp", 12, "relu"),
    ]
    assert {(norm.norm, norm.width) for norm in inside.norms} == {("layer", WIDTH)}


def test_a_layer_whose_answers_depend_on_order_is_not_called_recoverable(exported):
    inside = keyhole.inspect(exported[1])
    plain, tilted = (advise(part, exported[1], inside) for part in inside.attention)
    assert plain.recoverable
    assert not tilted.recoverable
    assert "may tell positions" in tilted.reason


@pytest.mark.parametrize("name", ["blocks.0.attn", "blocks.1.attn", "blocks.1.mlp"])
def test_a_layer_that_is_cut_out_answers_as_its_module(exported, name, rng):
    X = rng.normal(size=(3, 5, WIDTH))
    with torch.no_grad():
        truth = exported[0].get_submodule(name)(torch.from_numpy(X))[:, -1].numpy()
    np.testing.assert_allclose(keyhole.open_layer(exported[1], name).ask(X), truth, atol=1e-12)


def test_a_layer_that_is_cut_out_comes_back_exactly(exported, rng):
    recovery = keyhole.learn(keyhole.open_layer(exported[1], "blocks.0.attn"), rng=0)
    assert recovery.verdict is keyhole.Verdict.EXACT
    X = rng.normal(size=(3, 9, WIDTH))
    with torch.no_grad():
        truth = exported[0].blocks[0].attn(torch.from_numpy(X))[:, -1].numpy()
    np.testing.assert_allclose(recovery.model(X), truth, atol=1e-9)


def test_a_whole_file_as_target_names_its_layers(exported):
    from keyhole.lab.targets.opening import open_target

    with pytest.raises(InvalidInput, match=r"It holds 2 attention layers: --layer blocks\.0\.attn"):
        open_target(exported[1])


def test_near_names_are_suggested(exported):
    with pytest.raises(InvalidInput, match=r"near it: blocks\.0\.attn"):
        keyhole.open_layer(exported[1], "blocks.0.atn")


def test_an_attention_operator_is_read_by_its_heads_and_asked(tmp_path, rng):
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for name in "QKVO"}
    nodes = [helper.make_node("MatMul", ["x", name], [name.lower()]) for name in "QKV"]
    own = {"domain": "com.microsoft", "num_heads": HEADS}
    nodes.append(helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["mixed"], **own))
    nodes.append(helper.make_node("MatMul", ["mixed", "O"], ["y"]))
    ends = [helper.make_tensor_value_info(name, kind, ["b", "l", WIDTH]) for name in "xy"]
    held = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "one", ends[:1], ends[1:], held)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)
    (part,) = keyhole.inspect(path).attention
    assert (part.name, part.heads, part.head_size, part.dtype) == ("attention.0", 2, 4, "f32")
    X = 0.3 * rng.normal(size=(2, 5, WIDTH))
    q, k, v = ((X @ weights[name]).reshape(2, 5, HEADS, 4).transpose(0, 2, 1, 3) for name in "QKV")
    scores = np.exp(q[:, :, -1:] @ k.transpose(0, 1, 3, 2) / 2.0)
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    truth = mixed.reshape(2, WIDTH) @ weights["O"]
    np.testing.assert_allclose(keyhole.open_layer(path, "attention.0").ask(X), truth, atol=1e-4)


def test_what_is_no_onnx_is_refused(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a graph")
    with pytest.raises(InvalidInput, match="cannot be read as ONNX"):
        keyhole.inspect(tmp_path / "bad.onnx")
    with pytest.raises(InvalidInput, match="no ONNX file at"):
        keyhole.inspect(tmp_path / "none.onnx")
