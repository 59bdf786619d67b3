"""Weights in torch files: read, never run, and refused where they are damaged."""

import os
import pickle

import numpy as np
import pytest

from keyhole.errors import InvalidInput
from keyhole.learners.layer.learner import WholeLayer
from support.torch_models import WIDTH, Llama, multihead

torch = pytest.importorskip("torch", reason="torch is not installed")
from keyhole.oracles.torch_module import torch_weights  # noqa: E402
from keyhole.oracles.torch_parts import torch_block, torch_layer  # noqa: E402

nn = torch.nn
pytestmark = pytest.mark.usefixtures("seeded")


class Evil:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


def test_weights_are_read_and_code_in_a_file_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": nn.Linear(2, 3).state_dict(), "epochs": [1, 2]}, "good.pt")
    held = torch_weights("good.pt")
    assert {name: (w.shape, w.dtype.name) for name, w in held.items()} == {
        "model.weight": ((3, 2), "float64"),
        "model.bias": ((3,), "float64"),
    }
    torch.save({"w": Evil()}, "bad.pt")
    (tmp_path / "old.bin").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text.pt").write_text("hello")
    for name, sentence in (
        ("bad.pt", "is not opened"),
        ("old.bin", "is not opened"),
        ("text.pt", "not opened"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            torch_weights(name)
    with pytest.raises(InvalidInput, match="cannot be read"):
        torch_weights("none.pt")
    assert not (tmp_path / "pwned").exists()


def test_weights_of_a_damaged_file_are_refused_wherever_the_damage_is(tmp_path, rng):
    path = tmp_path / "w.pt"
    torch.save({"w": torch.eye(3).to_sparse(), "v": torch.ones(2)}, tmp_path / "sparse.pt")
    np.testing.assert_array_equal(torch_weights(tmp_path / "sparse.pt")["w"], np.eye(3))
    torch.save({"w": torch.ones(2, 2)}, path, _use_new_zipfile_serialization=False)
    whole, refused = path.read_bytes(), 0
    for at in range(0, len(whole), 3):
        path.write_bytes(
            whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :]
        )
        try:
            torch_weights(path)
        except InvalidInput:
            refused += 1
    assert refused > 20


def test_the_widths_of_layers_are_read_from_them():
    assert WholeLayer().plan(torch_layer(multihead()).width, outputs=WIDTH).queries > 0
    assert torch_layer(Llama()).width == WIDTH
    assert torch_block(nn.TransformerEncoderLayer(12, 2, 5)).width == 12
