"""Model files: what is written comes back, and whatever else is found is refused with advice."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from keyhole._files import write_atomically
from keyhole.errors import InvalidInput, StorageFailed
from keyhole.models import Factored, Head, MultiHead, SelfAttention, TensorAttention, load, save
from keyhole.models.files import load_bars

OURS = {"kind": "head", "format": "1"}
NUMBERS = np.random.default_rng(7)


def draw(*shape):
    return NUMBERS.normal(size=shape)


MODELS = {
    "head": Head(draw(3, 3), draw(3, 1)),
    "head with everything": Head(draw(3, 3), draw(3, 2), draw(3), draw(2), draw(3, 2)),
    "head with a score bias": Head(draw(3, 3), draw(3, 1), draw(3)),
    "head with a residual": Head(draw(3, 3), draw(3, 1), U=draw(3, 1)),
    "factored head": Head(Factored(draw(4, 2), draw(4, 2)), draw(4, 2)),
    "factored head with everything": Head(
        Factored(draw(4, 2), draw(4, 2)), draw(4, 2), draw(4), draw(2), draw(4, 2)
    ),
    "factored head of rank zero": Head(Factored(np.zeros((4, 0)), np.zeros((4, 0))), draw(4, 2)),
    "several heads": MultiHead(draw(2, 3, 3), draw(2, 3, 2)),
    "several heads with biases": MultiHead(draw(2, 3, 3), draw(2, 3, 2), draw(2, 3), draw(2)),
    "several heads with everything": MultiHead(
        draw(2, 3, 3), draw(2, 3, 2), draw(2, 3), draw(2), draw(3, 2)
    ),
    "layer": SelfAttention(draw(2, 3, 1), draw(2, 3, 1), draw(2, 3, 4)),
}


def parts(model):
    """Weights by name; factors apart."""
    named = {name: getattr(model, name, None) for name in ("W", "V", "h", "c", "U", "Q", "K")}
    W = named.pop("W")
    named |= {"A": W.A, "B": W.B} if isinstance(W, Factored) else {"W": W}
    return {name: array for name, array in named.items() if array is not None}


@pytest.mark.parametrize("order", [2, 3, 5])
def test_a_unit_of_any_order_comes_back_bit_for_bit(order, tmp_path):
    unit = TensorAttention.random(3, order=order, embed=4, outputs=2, rng=NUMBERS)
    save(unit, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert (type(again), again.order) == (TensorAttention, order)
    for mine, theirs in zip((unit.Q, *unit.K, *unit.V), (again.Q, *again.K, *again.V), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_unit_with_a_gap_in_its_numbering_is_refused(tmp_path):
    one = np.ones((2, 1))
    names = ("Q", "K1", "V1", "K3", "V2")
    save_file(
        dict.fromkeys(names, one), tmp_path / "m.safetensors", {"kind": "tensor", "format": "1"}
    )
    with pytest.raises(
        InvalidInput, match=r"numbers its K and V from 1 without a gap; missing \['K2'\]"
    ):
        load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_bit_for_bit(name, tmp_path):
    model = MODELS[name]
    save(model, tmp_path / "m.safetensors")
    again = load(tmp_path / "m.safetensors")
    assert type(again) is type(model)
    assert parts(again).keys() == parts(model).keys()
    for part, array in parts(model).items():
        np.testing.assert_array_equal(parts(again)[part], array)


def test_a_file_names_its_kind_and_format(tmp_path):
    from safetensors import safe_open

    save(MODELS["factored head with everything"], tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="np") as file:
        assert file.metadata() == OURS
        assert set(file.keys()) == {"A", "B", "V", "h", "c", "U"}


def test_error_bars_are_kept_beside_the_weights(tmp_path):
    path = tmp_path / "m.safetensors"
    save(MODELS["head"], path, bars={"W": np.array([1e-12]), "V": np.full((3, 1), 2e-15)})
    bars = load_bars(path)
    assert {name: bar.tolist() for name, bar in bars.items()} == {"W": [1e-12], "V": [[2e-15]] * 3}
    np.testing.assert_array_equal(load(path).W, MODELS["head"].W)


def test_a_transposed_view_is_written_as_it_reads(tmp_path):
    W = draw(3, 3)
    save(Head(W.T, draw(3, 1)), tmp_path / "m.safetensors")
    np.testing.assert_array_equal(load(tmp_path / "m.safetensors").W, W.T)


def test_float32_files_load_as_float64(tmp_path):
    W, V = draw(3, 3).astype(np.float32), draw(3, 1).astype(np.float32)
    save_file({"W": W, "V": V}, tmp_path / "m.safetensors", OURS)
    head = load(tmp_path / "m.safetensors")
    assert head.W.dtype == head.V.dtype == np.float64
    np.testing.assert_array_equal(head.W, W.astype(np.float64))


# --- refusals on the way in -----------------------------------------------------------------------


def refusal(path):
    with pytest.raises(InvalidInput) as error:
        load(path)
    assert str(path) in str(error.value)
    return str(error.value)


def written(path, tensors, metadata):
    save_file(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()}, path, metadata
    )
    return path


def test_a_path_to_nothing_says_how_to_make_a_file(tmp_path):
    assert "no model file" in refusal(tmp_path / "none.safetensors")
    assert "keyhole sample" in refusal(tmp_path / "none.safetensors")


def test_a_directory_is_not_a_model(tmp_path):
    assert "no model file" in refusal(tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        {},
        {"kind": "head"},
        {"format": "1"},
        {"kind": "head", "format": "2"},
        {"kind": "boat"},
    ],
)
def test_wrong_metadata_is_refused_with_the_kinds_that_are_known(metadata, tmp_path):
    path = written(tmp_path / "m.safetensors", {"W": draw(3, 3), "V": draw(3, 1)}, metadata)
    said = refusal(path)
    assert "head, multihead, unit" in said
    assert "format 1" in said
    assert all(repr(value) in said for value in (metadata or {}).values())


def test_a_missing_tensor_is_named(tmp_path):
    said = refusal(written(tmp_path / "m.safetensors", {"W": draw(3, 3)}, OURS))
    assert "missing ['V']" in said
    assert "holds ['V', 'W']" in said


def test_half_a_factorisation_is_refused(tmp_path):
    said = refusal(written(tmp_path / "m.safetensors", {"A": draw(3, 1), "V": draw(3, 1)}, OURS))
    assert "missing ['B']" in said
    said = refusal(written(tmp_path / "m.safetensors", {"B": draw(3, 1), "V": draw(3, 1)}, OURS))
    assert "missing" in said


def test_a_dense_matrix_and_factors_at_once_are_refused(tmp_path):
    tensors = {"W": draw(3, 3), "A": draw(3, 1), "B": draw(3, 1), "V": draw(3, 1)}
    assert "unknown ['W']" in refusal(written(tmp_path / "m.safetensors", tensors, OURS))


def test_factors_have_no_place_in_a_sum_of_heads(tmp_path):
    tensors = {"A": draw(2, 3, 1), "B": draw(2, 3, 1), "V": draw(2, 3, 1)}
    metadata = {"kind": "multihead", "format": "1"}
    said = refusal(written(tmp_path / "m.safetensors", tensors, metadata))
    assert "missing ['W']" in said


def test_an_unknown_tensor_is_named(tmp_path):
    tensors = {"W": draw(3, 3), "V": draw(3, 1), "sail": draw(2)}
    said = refusal(written(tmp_path / "m.safetensors", tensors, OURS))
    assert "unknown ['sail']" in said
    assert "may hold ['U', 'c', 'h']" in said


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("tensor", "shape", "needed"),
    [
        ("W", (3, 2), "W must have shape (3, 3)"),
        ("W", (9,), "W must have shape (3, 3)"),
        ("V", (3,), "V must have shape (any, any)"),
        ("h", (2,), "h must have shape (3"),
        ("c", (3,), "c must have shape (1"),
        ("U", (1, 3), "U must have shape (3, 1)"),
    ],
)
def test_a_wrong_shape_is_refused_with_both_shapes(tensor, shape, needed, tmp_path):
    tensors = {"W": draw(3, 3), "V": draw(3, 1)} | {tensor: draw(*shape)}
    said = refusal(written(tmp_path / "m.safetensors", tensors, OURS))
    assert needed in said
    assert f"got {shape}" in said


@pytest.mark.parametrize("tensor", ["W", "V"])
def test_weights_that_are_no_numbers_are_refused(tensor, tmp_path):
    tensors = {"W": draw(3, 3), "V": draw(3, 1)}
    tensors[tensor][0, 0] = np.nan
    assert f"{tensor} must be finite" in refusal(written(tmp_path / "m.safetensors", tensors, OURS))


@pytest.mark.parametrize("kept", [0, 7, 40, -1])
def test_a_truncated_file_is_refused(kept, tmp_path):
    path = tmp_path / "m.safetensors"
    save(MODELS["head"], path)
    path.write_bytes(path.read_bytes()[:kept])
    assert "not a readable safetensors file" in refusal(path)


def test_a_file_of_another_format_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_text("W = 1, V = 2\n" * 40)
    assert "not a readable safetensors file" in refusal(path)


def test_a_pickle_is_never_opened(tmp_path):
    import pickle

    path, trace = tmp_path / "m.safetensors", tmp_path / "trace"

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(trace),))

    path.write_bytes(pickle.dumps(Trap()))
    assert "not a readable safetensors file" in refusal(path)
    assert not trace.exists()


def test_bars_of_a_missing_file_are_refused_too(tmp_path):
    with pytest.raises(InvalidInput, match="no model file"):
        load_bars(tmp_path / "none.safetensors")


# --- refusals on the way out ----------------------------------------------------------------------


def test_a_directory_is_made_where_there_is_none(tmp_path):
    save(MODELS["head"], tmp_path / "a" / "b" / "m.safetensors")
    assert isinstance(load(tmp_path / "a" / "b" / "m.safetensors"), Head)


def test_a_place_that_cannot_hold_a_file_is_refused_with_advice(tmp_path):
    (tmp_path / "file").write_text("here first")
    with pytest.raises(InvalidInput, match=r"cannot write .* Choose another place"):
        save(MODELS["head"], tmp_path / "file" / "m.safetensors")


def test_a_directory_in_the_way_is_refused_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "m.safetensors").mkdir()
    with pytest.raises(InvalidInput, match=r"cannot write .* Choose another place"):
        save(MODELS["head"], tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_failed_write_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = tmp_path / "m.safetensors"
    save(MODELS["head"], path)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFailed, match="make room"):
        save(MODELS["layer"], path)
    assert path.read_bytes() == before
    assert [found.name for found in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_written_file_can_be_read_by_others(tmp_path):
    write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
