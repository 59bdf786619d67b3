"""Attention layers as they are built, served and asked by a client."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.oracles import Local
from keyhole.oracles.http.service import HttpService
from support.served_head import command, serving
from support.wired_layers import WIRINGS, answer_in_torch, draw_wired


@pytest.mark.parametrize("name", ["rms rope residual", "absolute", "sinks"])
def test_a_served_layer_answers_a_client_at_several_lengths(name, rng):
    layer = draw_wired(name, rng, biases=True)
    with serving(Local(layer)) as (address, _):
        client = HttpService(address)
        for length in (1, 2, 9):
            X = rng.normal(size=(4, length, 8))
            np.testing.assert_allclose(client.ask(X), answer_in_torch(layer, X), atol=1e-12)
        client.close()


def test_a_client_is_told_how_many_positions_a_served_layer_knows(rng):
    layer = draw_wired("absolute", rng, displacements=3)
    with serving(Local(layer)) as (address, _):
        client = HttpService(address)
        with pytest.raises(TargetFailed, match="knows 3 positions; got sequences of 4 tokens"):
            client.ask(rng.normal(size=(2, 4, 8)))
        client.close()


def test_a_layer_is_learned_from_the_command_that_serves_it(tmp_path, rng):
    wiring = WIRINGS["rms rope"]
    layer = keyhole.random_layer(8, heads=2, wiring=wiring, rng=rng)
    keyhole.save(layer, tmp_path / "head.safetensors")
    with command(tmp_path, KEYHOLE_TOKEN="") as (_, address):
        job = LearnJob(address, out=str(tmp_path / "run"), norm="rms", positions="rope")
        assert run_job(job).data.verdict == "EXACT"
    found = keyhole.load(tmp_path / "run/model.safetensors")
    X = rng.normal(size=(4, 5, 8))
    np.testing.assert_allclose(found(X), layer(X), atol=1e-9)
