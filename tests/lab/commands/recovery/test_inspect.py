"""`keyhole inspect`, and `--layer` on the commands that ask."""

import functools
import json
import re
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from keyhole.errors import InvalidInput
from keyhole.lab.commands.recovery.inspect import run_inspect
from keyhole.lab.jobs import InspectJob

pytest.importorskip("torch", reason="torch is not installed")

MODEL = """
import torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
model = torch.nn.TransformerEncoder(layer, 2)
empty = torch.nn.Linear(3, 3)
"""
LAYER = "layers.1.self_attn"


@pytest.fixture
def keyhole(torch_commands, tmp_path):
    return functools.partial(torch_commands, tmp_path)


@pytest.fixture
def my_model(tmp_path):
    (tmp_path / "my_model.py").write_text(MODEL)
    return "my_model:model"


def test_inspect_lists_every_part_with_the_command_that_recovers_it(keyhole, my_model):
    done = keyhole("inspect", my_model, "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert (told["record"], told["source"]) == ("inspect", "torch")
    kinds = [part["kind"] for part in told["parts"]]
    assert [kinds.count(kind) for kind in ("attention", "network", "norm")] == [2, 2, 4]
    attention = next(part for part in told["parts"] if part["name"] == LAYER)
    assert (attention["width"], attention["heads"], attention["head_size"]) == (8, 2, 4)
    assert attention["command"] == f"keyhole learn {my_model} --layer {LAYER}"
    assert f"open_layer(model, '{LAYER}')" in attention["call"]
    network = next(part for part in told["parts"] if part["kind"] == "network")
    assert (network["hidden"], network["activation"]) == (16, "relu")


def test_a_person_reads_one_row_for_layers_that_are_alike(keyhole, my_model):
    said = keyhole("inspect", my_model).out
    assert "layers.*.self_attn (2)" in said
    assert said.count("keyhole learn") == 2
    assert said.splitlines()[0].endswith("keyhole recovers 4 of them.")


def test_the_printed_command_recovers_the_layer_and_others_take_it_up(keyhole, my_model):
    parts = json.loads(keyhole("inspect", my_model, "--json").out)["parts"]
    line = next(part["command"] for part in parts if part["name"] == LAYER)
    done = keyhole(*line.split()[1:], "--out", "run", "--json")
    told = json.loads(done.out)
    assert (told["verdict"], told["heads"]) == ("EXACT", 2)
    assert f"--layer {LAYER}" in told["command"]
    model = "run/model.safetensors"
    verified = json.loads(keyhole("verify", my_model, model, "--layer", LAYER, "--json").out)
    assert verified["verdict"] == "EXACT"
    # The other layer holds the same weights, but for its own copy: torch copies them.
    apart = json.loads(keyhole("compare", my_model, model, "--layer", LAYER, "--json").out)
    assert apart["largest"] < 1e-9
    plan = json.loads(keyhole("plan", my_model, "--layer", LAYER, "--json").out)
    assert (plan["width"], plan["outputs"]) == (8, 8)
    resumed = keyhole(
        "learn", my_model, "--out", "run", "--resume", "--layer", "layers.0.self_attn"
    )
    assert resumed.code == 2


def test_a_whole_model_as_target_names_the_layers_inside(keyhole, my_model):
    done = keyhole("learn", my_model)
    assert done.code == 2
    assert "It holds 2 attention layers: --layer layers.0.self_attn asks one" in done.err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nothing.safetensors", "no weight file at nothing.safetensors"),
        ("nothing", "no file at nothing: MODEL is a torch module"),
        ("nothing:model", "cannot import nothing"),
        ("my_model:nothing", "my_model has no 'nothing'"),
        ("my_model:empty", "holds no attention layer"),
        ("nothing.pt", "no file at nothing.pt"),
        ("pickled.pt", "opening it can run code"),
        ("my_model.py", "is a file of another kind"),
    ],
)
def test_what_cannot_be_inspected_is_refused_in_a_sentence(
    my_model, tmp_path, monkeypatch, model, said
):
    (tmp_path / "pickled.pt").write_bytes(b"\x80\x04.")
    monkeypatch.chdir(tmp_path)
    # Modules of one name are imported once in a process.
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidInput, match=re.escape(said)):
        run_inspect(InspectJob(model))


def test_a_pickle_as_target_is_never_opened(keyhole, tmp_path):
    # Unpickling it would write a file.
    code = b"cos\nsystem\n(S'touch opened'\ntR."
    (tmp_path / "model.pt").write_bytes(code)
    for command in ("inspect", "learn"):
        assert keyhole(command, "model.pt").code == 2
    assert not (tmp_path / "opened").exists()


def test_a_layer_of_a_service_or_a_weight_file_is_refused(keyhole, head):
    for target, said in (
        ("http://127.0.0.1:9/v2/models/x", "is a service"),
        ("head.safetensors", "holds weights"),
    ):
        done = keyhole("learn", target, "--layer", "a")
        assert done.code == 2
        assert said in done.err


def write_llama(directory, **config):
    rng = np.random.default_rng(0)
    sizes = {"q": (16, 16), "k": (8, 16), "v": (8, 16), "o": (16, 16)}
    tensors = {
        f"model.layers.{i}.self_attn.{n}_proj.weight": s
        for i in (0, 10, 2)
        for n, s in sizes.items()
    }
    nets = {"gate": (24, 16), "up": (24, 16), "down": (16, 24)}
    tensors |= {f"model.layers.0.mlp.{n}_proj.weight": s for n, s in nets.items()}
    tensors["model.norm.weight"] = (16,)
    arrays = {name: rng.normal(size=size).astype(np.float32) for name, size in tensors.items()}
    save_file(arrays, directory / "model.safetensors")
    if config:
        (directory / "config.json").write_text(json.dumps(config))


def test_a_weight_file_is_read_by_its_names_and_the_configuration_beside_it(keyhole, tmp_path):
    write_llama(
        tmp_path, num_attention_heads=4, rope_theta=5e5, hidden_act="silu", rms_norm_eps=1e-6
    )
    parts = json.loads(keyhole("inspect", "model.safetensors", "--json").out)["parts"]
    attention = [part for part in parts if part["kind"] == "attention"]
    # Layer 10 comes after layer 2.
    assert [part["name"].split(".")[2] for part in attention] == ["0", "2", "10"]
    first = attention[0]
    assert (first["width"], first["heads"], first["head_size"], first["groups"]) == (16, 4, 4, 2)
    assert (first["positions"], first["rope_base"], first["dtype"]) == ("rope", 5e5, "f32")
    (net,) = (part for part in parts if part["kind"] == "network")
    assert (net["hidden"], net["width"], net["activation"], net["gated"]) == (24, 16, "silu", True)
    (norm,) = (part for part in parts if part["kind"] == "norm")
    assert (norm["norm"], norm["eps"]) == ("rms", 1e-6)


def test_without_a_configuration_heads_and_positions_stay_open(keyhole, tmp_path):
    write_llama(tmp_path)
    parts = json.loads(keyhole("inspect", "model.safetensors", "--json").out)["parts"]
    part = next(part for part in parts if part["kind"] == "attention")
    assert (part["heads"], part["positions"], part["recoverable"]) == (None, "unknown", False)
    assert "it may tell positions, and nothing says how" in part["reason"]


def test_a_model_of_keyhole_is_no_model_of_others(keyhole, head):
    done = keyhole("inspect", "head.safetensors")
    assert done.code == 2
    assert "saved model of keyhole" in done.err
