"""Exports, quantised and converted copies: told from their originals, by how much, and where."""

import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import CompareJob, ReportJob, VerifyJob
from keyhole.lab.running import run_job
from keyhole.lab.targets.answer_gaps import Side, allow_declared_errors, measure_answer_gap
from keyhole.models import Head, save
from keyhole.oracles import Declared, Imperfection, Local, Noisy
from support.seeds import few

torch = pytest.importorskip("torch", reason="torch is not installed")
# The exporter of traced modules needs no further library, and says that it is not the newest.
pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH, HEADS = 16, 4
SOURCE = """
import copy, torch
from pathlib import Path
from safetensors.torch import load_file
class Attention(torch.nn.Module):
    num_heads = HEADS
    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH))
    def forward(self, x):
        q, k, v = (
            project(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        return self.out_proj((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))
class Layer(torch.nn.Module):
    width = WIDTH
    def __init__(self):
        super().__init__()
        self.attention = Attention()
    def forward(self, x):
        return self.attention(x)
def quantised(bits):
    made = copy.deepcopy(model)
    with torch.no_grad():
        for weights in made.parameters():
            step = weights.abs().max() / (2 ** (bits - 1) - 1)
            weights.copy_(torch.round(weights / step) * step)
    return made
class LengthFirst(torch.nn.Module):
    width = WIDTH
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
    def forward(self, x):
        return self.layer(x.transpose(0, 1)).transpose(0, 1)
model = Layer().double().eval()
if Path("w.safetensors").exists():
    model.load_state_dict(load_file("w.safetensors"))
    four, six, eight = (quantised(bits) for bits in (4, 6, 8))
    narrow = copy.deepcopy(model).float()
    turned = LengthFirst(model)
"""
SOURCE = SOURCE.replace("WIDTH", str(WIDTH)).replace("HEADS", str(HEADS))


def train_layer(layer, steps=60):
    """Tokens are averaged by how near they are to the last one: attention has this to learn."""
    torch.manual_seed(1)
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64))[0]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(steps):
        X = torch.randn(64, 6, WIDTH, dtype=torch.float64)
        near = torch.softmax(X @ X[:, -1:].transpose(1, 2), dim=1)
        loss = ((layer(X)[:, -1] - (near * X).sum(dim=1) @ turn) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a trained layer as a module, a weight file and an ONNX file; and the module."""
    folder = tmp_path_factory.mktemp("copies")
    (folder / "mine.py").write_text(SOURCE)
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made: dict = {}
        exec(SOURCE, made)  # noqa: S102
        train_layer(made["model"])
        save_file(
            {name: part.detach().numpy() for name, part in made["model"].state_dict().items()},
            folder / "w.safetensors",
        )
        exec(SOURCE, made)  # noqa: S102
        free = {0: "batch", 1: "length"}
        torch.onnx.export(
            made["model"],
            (torch.zeros(2, 3, WIDTH, dtype=torch.float64),),
            "layer.onnx",
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": free, "y": free},
        )
        yield folder, made
    sys.modules.pop("mine", None)


def true_error(made, name):
    """The relative error of a copy, by torch, on many more sequences of the same lengths."""
    torch.manual_seed(7)
    gap = size = 0.0
    with torch.no_grad():
        for length in (1, 2, 3, 5, 8, 13, 21, 34):
            X = torch.randn(2000, length, WIDTH, dtype=torch.float64)
            truth = made["model"](X)[:, -1]
            gap += float(((made[name](X)[:, -1] - truth) ** 2).mean())
            size += float((truth**2).mean())
    return (gap / size) ** 0.5


@pytest.mark.parametrize("name", ["four", "six", "eight"])
def test_a_quantised_copy_is_told_from_its_original_and_its_error_is_stated(trained, name):
    told = run_job(CompareJob("mine:model", f"mine:{name}", seed=5)).data
    assert not told.answers.same
    assert "does not answer as mine:model does" in told.sentence
    assert told.answers.relative == pytest.approx(true_error(trained[1], name), rel=0.1)
    refused = run_job(VerifyJob("mine:model", f"mine:{name}"))
    assert (refused.code, refused.data.verdict) == (3, "CLASS_REFUTED")


@pytest.mark.parametrize(
    ("copy", "options", "within"),
    [
        ("mine:narrow", {}, 1e-5),
        ("layer.onnx", {}, 1e-12),
        ("w.safetensors", {"other_layer": "attention", "heads": HEADS}, 1e-12),
    ],
)
def test_a_faithful_copy_is_called_one(trained, copy, options, within):
    told = run_job(CompareJob("mine:model", copy, **options)).data.answers
    assert told.same
    assert told.relative < within


def test_a_layer_of_a_torch_model_and_of_its_weight_file_are_one_function(trained):
    job = CompareJob("mine:model", "w.safetensors", layer="attention", heads=HEADS)
    told = run_job(job).data
    assert told.answers.same
    assert told.answers.read_last == []


def test_a_sequence_answer_is_read_at_its_last_position_and_that_is_said(trained):
    done = run_job(VerifyJob("mine:model", "layer.onnx"))
    assert (done.code, done.data.verdict) == (0, "WITHIN_TOLERANCE")
    said = "mine:model, layer.onnx: sequence answers are read at their last position"
    assert said in done.data.sentence


def test_a_page_shows_where_they_differ_and_is_drawn_again_from_its_record(trained):
    run_job(CompareJob("mine:model", "mine:four", out="apart", force=True))
    page = (trained[0] / "apart" / "report.html").read_text()
    assert "Where they differ" in page
    assert page.count("data-cells=") == 1
    run_job(ReportJob(("apart",)))
    assert (trained[0] / "apart" / "report.html").read_text() == page


def test_a_module_that_takes_the_length_first_is_refused(trained):
    with pytest.raises(InvalidInput, match="batch_first"):
        run_job(CompareJob("mine:turned", "mine:turned"))


def test_a_weight_file_says_what_it_needs_to_be_asked(trained):
    with pytest.raises(InvalidInput, match="such as attention"):
        run_job(CompareJob("mine:model", "w.safetensors"))
    with pytest.raises(InvalidInput, match="--heads"):
        run_job(CompareJob("mine:model", "w.safetensors", other_layer="attention"))


def test_saved_models_are_compared_by_weights_and_by_answers(keyhole, tmp_path, rng):
    head = Head.random(3, rng=rng)
    other = Head(head.W * 1.01, head.V)
    save(head, tmp_path / "a.safetensors")
    save(other, tmp_path / "b.safetensors")
    told = keyhole("compare", "a.safetensors", "b.safetensors", "--json").json
    assert told["distance"]["W"] == pytest.approx(0.01, rel=0.02)
    X = np.random.default_rng(9).normal(size=(2000, 5, 3))
    truth = head(X)
    gap = np.sqrt(np.mean((truth - other(X)) ** 2) / np.mean(truth**2))
    # Lengths differ, and with them the error: of one order it is.
    assert gap / 3 < told["answers"]["relative"] < 3 * gap


def test_widths_that_differ_cannot_be_compared(keyhole, tmp_path, rng):
    for name, width in (("a", 3), ("b", 4)):
        save(Head.random(width, rng=rng), tmp_path / f"{name}.safetensors")
    done = keyhole("compare", "a.safetensors", "b.safetensors")
    assert done.code == 2
    assert "width" in done.err


class OnceWrong:
    """A head whose copy is wrong on one sequence in a hundred, by a millionth."""

    width, outputs = 3, 1

    def __init__(self, head, off):
        self.head, self.off = head, off

    def __call__(self, X):
        strange = X[:, 0, 0] > 2.3
        return self.head(X) + self.off * strange[:, None]


def test_a_copy_that_is_wrong_on_few_sequences_is_not_the_same(rng):
    head = Head.random(3, rng=rng)
    gap = measure_answer_gap(
        Side("a", Local(head)), Side("b", Local(OnceWrong(head, 5e-9))), rng=rng
    )
    assert gap.relative < gap.allowed < gap.worst
    assert not gap.same
    assert gap.worst * gap.size <= 5e-9 * (1 + 1e-6)


def test_an_outlying_answer_is_judged_by_its_own_size(rng):
    def far(X, factor=1.0):
        return 1e4 * factor * (X[:, 0, :1] > 2) + X[:, -1, :1]

    near = measure_answer_gap(
        Side("a", Local(far, 3)), Side("b", Local(lambda X: far(X, 1 + 1e-10), 3)), rng=rng
    )
    assert near.same


def test_a_narrow_copy_of_a_layer_with_large_scores_is_one(rng):
    """Scores of hundreds swell a rounding far beyond 64 of them; the layer itself shows by how
    much."""
    head = Head(40.0 * rng.normal(size=(16, 16)), rng.normal(size=(16, 4)))

    def narrow(X):
        X = X.astype(np.float32)
        W, V = head.W.astype(np.float32), head.V.astype(np.float32)
        scores = np.einsum("nld,de,ne->nl", X, W, X[:, -1])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return np.einsum("nl,nld->nd", weights, X) @ V

    declared = Declared(Local(narrow, 16), Imperfection.cast("f32"))
    gap = measure_answer_gap(Side("a", Local(head)), Side("b", declared), rng=rng)
    assert gap.worst > 64 * 2**-24
    assert gap.same
    other = Side("c", Local(Head(1.01 * head.W, head.V)))
    assert not measure_answer_gap(other, Side("b", declared), rng=rng).same


def test_noise_that_is_declared_is_no_other_function_and_a_bound_on_tokens_is_kept(rng):
    head = Head.random(3, rng=rng)
    norms = []

    def asked(X):
        norms.append(np.linalg.norm(X, axis=2).max())
        return head(X)

    for seed in few(20):
        noisy = Noisy(Local(asked, 3), 1e-3, seed)
        stated = Imperfection(noise=1e-3, token_bound=1.5)
        target = Side("a", Declared(noisy, stated))
        gap = measure_answer_gap(target, Side("b", Local(head)), rng=rng)
        worst, typical = allow_declared_errors(gap, stated)
        assert gap.worst <= worst
        assert gap.relative <= typical
        other = measure_answer_gap(target, Side("b", Local(Head(head.W, 1.1 * head.V))), rng=rng)
        assert other.relative > allow_declared_errors(other, stated)[1]
    assert max(norms) <= 1.5


def test_a_graph_that_does_not_say_its_axes_is_read_at_its_last_position(trained):
    onnx = pytest.importorskip("onnx")
    graph = onnx.load("layer.onnx")
    graph.graph.output[0].type.tensor_type.ClearField("shape")
    # An operation that onnxruntime cannot see through: the shape is known when it runs, not before.
    last = graph.graph.output[0].name
    row = onnx.helper.make_tensor("row", onnx.TensorProto.INT64, [1], [0])
    graph.graph.initializer.append(row)
    for kind, taken, given in (
        ("Shape", [last], "axes"),
        ("NonZero", ["axes"], "places"),
        ("Squeeze", ["places", "row"], "which"),
        ("Gather", ["axes", "which"], "shape"),
        ("Reshape", [last, "shape"], "kept"),
    ):
        graph.graph.node.append(onnx.helper.make_node(kind, taken, [given]))
    graph.graph.output[0].name = "kept"
    onnx.save(graph, "cut.onnx")
    told = run_job(CompareJob("mine:model", "cut.onnx")).data
    assert told.answers.same
    assert told.answers.read_last == ["mine:model", "cut.onnx"]
    assert "mine:model and cut.onnx read at the last position" in told.sentence


class Integers:
    """A head whose tokens are rounded to 255 steps of the largest number of their batch."""

    width, outputs = 4, 2

    def __init__(self, head):
        self.head = head

    def __call__(self, X):
        step = np.abs(X).max() / 127
        return self.head(np.round(X / step) * step)


def test_a_copy_whose_steps_fit_its_batch_is_asked_one_sequence_at_a_time(rng):
    head = Head(rng.normal(size=(4, 4)), rng.normal(size=(4, 2)))
    copied = Integers(head)
    gap = measure_answer_gap(Side("a", Local(head)), Side("b", Local(copied)), rng=rng)
    assert gap.singly == ("b",)
    assert not gap.same
    asked = [rng.normal(size=(n, 4)) for n in gap.lengths for _ in range(500)]
    truth, answers = (np.concatenate([f(X[None]) for X in asked]) for f in (head, copied))
    error = np.sqrt(np.mean((truth - answers) ** 2) / np.mean(truth**2))
    assert gap.relative == pytest.approx(error, rel=0.2)
