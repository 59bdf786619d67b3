"""`keyhole learn` on a file of every class: it finds out by itself which one it is."""

import numpy as np
import pytest

from keyhole.models import MultiHead, OneLayer, ReluNet, SelfAttention, save

MAKES = {
    "relu": (lambda rng: ReluNet.random(3, hidden=5, rng=rng), None),
    "onelayer": (lambda rng: OneLayer.random(3, hidden=5, biases=True, residual=True, rng=rng), 1),
    "multihead": (lambda rng: MultiHead.random(3, heads=2, rng=rng), 2),
    "layer": (
        lambda rng: SelfAttention(*rng.normal(size=(2, 2, 4, 2)), rng.normal(size=(2, 4, 4))),
        2,
    ),
}


@pytest.mark.parametrize("kind", MAKES)
def test_a_file_is_recognised_and_recovered(keyhole, tmp_path, kind):
    make, heads = MAKES[kind]
    save(make(np.random.default_rng(3)), tmp_path / "target.safetensors")
    ran = keyhole("learn", "target.safetensors", "--json", "--seed", 1)
    # a layer is read at its last row, as a sum of its heads
    found = "multihead" if kind == "layer" else kind
    assert (ran.code, ran.json["class"], ran.json["heads"], ran.json["verdict"]) == (
        0,
        found,
        heads,
        "EXACT",
    )
