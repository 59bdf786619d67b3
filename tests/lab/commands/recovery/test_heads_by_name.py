"""`keyhole learn --learner NAME` for every learner of several heads."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from keyhole.cli import _run_command_line
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.models import MultiHead, load, save


def orthogonal_heads(rng):
    """Two heads of width 5 in orthogonal subspaces, and bases of those."""
    Q = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    bases = (Q[:, :2], Q[:, 2:])
    W = np.stack([B @ rng.normal(size=(B.shape[1], B.shape[1])) @ B.T for B in bases])
    V = np.stack([B @ rng.normal(size=(B.shape[1], 1)) for B in bases])
    return MultiHead(W, V), bases


def learned(model, tmp_path, **options):
    save(model, tmp_path / "m.safetensors")
    job = LearnJob(str(tmp_path / "m.safetensors"), out=str(tmp_path / "run"), **options)
    record = run_job(job)
    assert record.code == 0
    return record.data, load(tmp_path / "run" / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("several-heads", {}),
        ("heads-in-ball", {"token_bound": 2.5}),
        ("repetition", {"heads": 2}),
    ],
)
def test_heads_come_back_by_every_learner(name, options, tmp_path, rng):
    hidden = MultiHead.random(5, heads=2, rng=rng)
    data, found = learned(hidden, tmp_path, learner=name, **options)
    assert (data.model_class, data.heads, data.verdict) == ("multihead", 2, "EXACT")
    X = rng.normal(size=(20, 4, 5))
    np.testing.assert_allclose(found(X), hidden(X), atol=1e-8)


def test_a_whole_layer_comes_back_by_name(tmp_path, rng):
    hidden = MultiHead.random(6, heads=2, outputs=12, rank=2, rng=rng)
    data, found = learned(hidden, tmp_path, learner="layer")
    assert data.verdict == "EXACT"
    X = rng.normal(size=(20, 4, 6))
    np.testing.assert_allclose(found(X), hidden(X), atol=1e-7)


@pytest.mark.parametrize("suffix", [".safetensors", ".npy"])
def test_orthogonal_heads_come_back_from_a_file_of_bases(suffix, tmp_path, rng):
    hidden, bases = orthogonal_heads(rng)
    path = tmp_path / f"bases{suffix}"
    if suffix == ".npy":
        Q = np.linalg.qr(rng.normal(size=(4, 4)))[0]
        bases = (Q[:, :2], Q[:, 2:])
        W = np.stack([B @ rng.normal(size=(2, 2)) @ B.T for B in bases])
        hidden = MultiHead(W, np.stack([B @ rng.normal(size=(2, 1)) for B in bases]))
        np.save(path, np.stack(bases))
    else:
        save_file({"1": np.ascontiguousarray(bases[0]), "2": np.ascontiguousarray(bases[1])}, path)
    data, found = learned(hidden, tmp_path, learner="orthogonal", bases=str(path))
    assert data.verdict == "EXACT"
    X = rng.normal(size=(20, 4, hidden.width))
    np.testing.assert_allclose(found(X), hidden(X), atol=1e-9)


def test_missing_or_unreadable_bases_are_misuse(tmp_path, rng, capsys):
    save(MultiHead.random(4, heads=2, rng=rng), tmp_path / "m.safetensors")
    (tmp_path / "flat.npy").write_bytes(b"nothing")
    np.save(tmp_path / "line.npy", np.ones(4))
    for bases in (
        [],
        ["--bases", "none.npy"],
        ["--bases", tmp_path / "flat.npy"],
        ["--bases", tmp_path / "line.npy"],
    ):
        arguments = [
            "learn",
            tmp_path / "m.safetensors",
            "--learner",
            "orthogonal",
            "--out",
            tmp_path / "r",
            *bases,
        ]
        assert _run_command_line(list(map(str, arguments))) == 2, bases
        assert "bases" in capsys.readouterr().err
