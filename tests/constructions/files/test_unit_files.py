"""Built Transformers as files, and weights written by blocks."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

import keyhole
from keyhole import InvalidInput, SelfAttention, SparseAverage, Transformer
from keyhole.constructions.shared.layout import Layout, Weights
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.constructions.sparse_averages.sparse_average import ONE_HOT, build_set_unit
from keyhole.models import files
from keyhole.models.stack import Block
from keyhole.models.tensor import TensorAttention, TensorHeads

TASK = SparseAverage(6, 2, 2)


def one_hot():
    return build_set_unit(SetQueries(np.eye(6), "indicator", 1e-3, 2, 2))


def described(path):
    metadata, tensors = files.read_tensors(path)
    return dict(metadata), dict(tensors)


def test_a_unit_comes_back_and_answers_alike(tmp_path):
    model, path = one_hot(), tmp_path / "unit.safetensors"
    keyhole.save(model, path)
    back = keyhole.load(path)
    X = TASK.sample(3, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(back(X), model(X))
    metadata, tensors = described(path)
    assert (metadata["kind"], metadata["layers"], metadata["map.0"]) == ("unit", "1", "set-queries")
    assert set(tensors) == {"layer.0.Q", "layer.0.K", "layer.0.V", "map.0.keys"}


def test_stacks_blanks_residuals_orders_and_last_maps_come_back(tmp_path):
    rng = np.random.default_rng(0)
    phi = one_hot().blocks[0].map
    wide = TensorAttention.random(14, order=3, embed=5, outputs=14, rng=rng)
    first = Block(phi, wide, blank=rng.normal(size=14), residual=True)
    Q, K = rng.normal(size=(2, 1, 14, 3))
    last = Block(phi, SelfAttention(Q, K, rng.normal(size=(1, 14, 5))))
    model = Transformer((first, last), phi)
    keyhole.save(model, tmp_path / "stack.safetensors")
    back = keyhole.load(tmp_path / "stack.safetensors")
    assert [block.residual for block in back.blocks] == [True, False]
    np.testing.assert_array_equal(back.blocks[0].blank, first.blank)
    X = TASK.sample(2, rng=rng)
    np.testing.assert_array_equal(back.blocks[0](X), first(X))
    np.testing.assert_array_equal(back.blocks[1].layer.V, last.layer.V)
    assert back.out.settings == phi.settings


def test_a_layer_of_several_heads_of_higher_order_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    phi = one_hot().blocks[0].map
    layer = TensorHeads.random(14, heads=2, order=3, embed=5, outputs=2, rng=rng)
    keyhole.save(Transformer((Block(phi, layer),)), tmp_path / "heads.safetensors")
    back = keyhole.load(tmp_path / "heads.safetensors")
    X = TASK.sample(2, rng=rng)
    np.testing.assert_array_equal(back(X), layer(phi(X)))
    assert len(back.blocks[0].layer.heads) == 2


def test_plain_units_and_heads_are_read_as_before(tmp_path):
    head = keyhole.Head(np.eye(2), np.ones((2, 1)))
    keyhole.save(head, tmp_path / "head.safetensors")
    assert isinstance(keyhole.load(tmp_path / "head.safetensors"), keyhole.Head)
    keyhole.save(one_hot().blocks[0].layer, tmp_path / "plain.safetensors")
    assert isinstance(keyhole.load(tmp_path / "plain.safetensors"), SelfAttention)


HOSTILE = {
    "layers": ({"layers": "2000000"}, {}, "1 to 64 layers"),
    "no layers": ({"layers": "none"}, {}, "1 to 64 layers"),
    "unknown map": ({"map.0": "os.system"}, {}, "names one of"),
    "settings": ({"map.0.settings": "{"}, {}, "not JSON"),
    "list": ({"map.0.settings": "[1]"}, {}, "numbers and words"),
    "nested": ({"map.0.settings": '{"q": {"a": 1}}'}, {}, "numbers and words"),
    "infinite": ({"map.0.settings": '{"q": Infinity}'}, {}, "numbers and words"),
    "words for numbers": ({"map.0.settings": json.dumps({"q": "2"})}, {}, "no set-queries map"),
    "unknown setting": ({"map.0.settings": json.dumps({"depth": 2})}, {}, "no set-queries map"),
    "solver": ({}, {}, "computed by"),
    "residual": ({"layer.0.residual": "maybe"}, {}, "true or false"),
    "extra": ({}, {"other": np.ones(2)}, "unknown"),
    "axes": ({}, {"layer.0.Q": np.ones(3)}, "axes"),
    "not finite": ({}, {"map.0.keys": np.full((6, 6), np.nan)}, "finite"),
    "one key": ({}, {"map.0.keys": np.eye(1)}, "1 <= q"),
    "shapes": ({}, {"layer.0.V": np.ones((1, 9, 2))}, "shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_sentence(name, tmp_path):
    path = tmp_path / "unit.safetensors"
    keyhole.save(one_hot(), path)
    metadata, tensors = described(path)
    changed, arrays, words = HOSTILE[name]
    settings = json.loads(metadata["map.0.settings"])
    if name == "solver":
        changed = {"map.0.settings": json.dumps(settings | {"solver": "guess"})}
    if name in ("words for numbers", "unknown setting"):
        changed = {"map.0.settings": json.dumps(settings | json.loads(changed["map.0.settings"]))}
    files.write_tensors(path, metadata | changed, tensors | arrays)
    with pytest.raises(InvalidInput, match=words):
        keyhole.load(path)


def test_missing_arrays_are_named(tmp_path):
    path = tmp_path / "unit.safetensors"
    keyhole.save(one_hot(), path)
    metadata, tensors = described(path)
    del tensors["layer.0.K"]
    files.write_tensors(path, metadata, tensors)
    with pytest.raises(InvalidInput, match=r"layer\.0 holds Q, K and V"):
        keyhole.load(path)


@dataclass(frozen=True)
class Stranger:
    name = "stranger"
    settings = {}  # noqa: RUF012
    tensors = {}  # noqa: RUF012

    def __call__(self, X):
        return X


def test_maps_that_files_do_not_know_are_not_saved(tmp_path):
    model = Transformer((Block(Stranger(), one_hot().blocks[0].layer),))
    with pytest.raises(InvalidInput, match="stranger"):
        keyhole.save(model, tmp_path / "unit.safetensors")
    assert not list(tmp_path.iterdir())


def test_positions_and_sets_outside_the_keys_are_refused():
    model = one_hot()
    X = TASK.sample(1, rng=np.random.default_rng(0))
    for column, value, words in (
        (2, 6.0, "below 6"),
        (2, 0.5, "whole numbers"),
        (4, -1.0, "position lies"),
    ):
        wrong = X.copy()
        wrong[0, 0, column] = value
        with pytest.raises(InvalidInput, match=words):
            model(wrong)
    nobody = X.copy()
    nobody[0, 0, 2:4] = -1.0
    with pytest.raises(InvalidInput, match="at least one position"):
        model(nobody)


def test_weights_are_written_by_named_blocks():
    layout, embed = Layout.of(value=1, key=2), Layout.of(embed=2)
    written = (
        Weights.zeros(layout, embed)
        .place("key", "embed", 3.0)
        .place("value", "embed", [[1.0, 2.0]])
    )
    np.testing.assert_array_equal(written.array, [[1, 2], [3, 0], [0, 3]])
    assert (layout.width, layout["key"], layout.size("key")) == (3, slice(1, 3), 2)
    with pytest.raises(InvalidInput, match="there are value, key"):
        layout["query"]
    with pytest.raises(InvalidInput, match=r"shape \(2, 2\)"):
        written.place("key", "embed", np.ones((2, 3)))


def test_a_built_model_survives_the_file_with_its_certificate(tmp_path):
    rng = np.random.default_rng(0)
    built = ONE_HOT.build(TASK, accuracy=1e-3, number_format="f64", embed=None, rng=rng)
    keyhole.save(built.model, tmp_path / "unit.safetensors")
    back = keyhole.load(tmp_path / "unit.safetensors")
    seen = ONE_HOT.certify(TASK, back, accuracy=1e-3, number_format="f64", rng=rng)
    assert seen.outcome is keyhole.Outcome.HOLDS
