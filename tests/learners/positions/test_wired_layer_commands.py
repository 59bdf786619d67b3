"""Learning a layer from the command line: flags in, wiring and verdict out."""

import json


def test_the_command_line_learns_a_layer_and_records_its_wiring(keyhole):
    sample = ("--norm", "rms", "--positions", "rope", "--residual", "--heads", 4)
    keyhole("sample", "layer", *sample, "--out", "layer.safetensors")
    told = ("--norm", "rms", "--positions", "rope", "--residual")
    done = keyhole("learn", "layer.safetensors", *told, "--out", "run", "--json")
    record = json.loads(done.out)
    assert (record["verdict"], record["class"], record["heads"]) == ("EXACT", "layer", 4)
    assert record["wiring"]["told"] == {"norm": "rms", "positions": "rope", "residual": True}
    assert abs(record["wiring"]["found"]["eps"] - 1e-5) < 1e-12
    assert keyhole("verify", "layer.safetensors", "run/model.safetensors").code == 0


def test_the_command_line_learns_and_plans_heads_that_share_keys(keyhole):
    wired = ("--norm", "rms", "--positions", "rope", "--residual", "--groups", 2)
    keyhole("sample", "layer", *wired, "--heads", 4, "--width", 16, "--out", "layer.safetensors")
    record = json.loads(keyhole("learn", "layer.safetensors", *wired, "--json").out)
    assert (record["verdict"], record["heads"]) == ("EXACT", 4)
    assert record["wiring"]["told"]["groups"] == 2
    plan = json.loads(keyhole("plan", "layer.safetensors", *wired, "--json").out)
    asked = record["queries"]["total"]
    assert asked <= plan["queries"]["total"] <= 1.2 * asked
