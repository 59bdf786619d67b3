"""Pictures of several heads: jumps on the half circle, and recovered heads beside true ones."""

import re

import numpy as np
from msgspec import structs

from keyhole import Local, MultiHead, SeveralHeads
from keyhole.lab.pages.parts.head_switches import draw_half_circle, draw_heads_against_truth
from keyhole.lab.runs.record_parts import JumpsRecord, Queries
from keyhole.lab.runs.recording import record_jumps
from keyhole.lab.runs.recovery_records import DemoRecord, Stop
from keyhole.models import save

STOP = Stop(name="two heads", verdict="EXACT", sentence="They came back.")


def test_jumps_are_those_of_the_hidden_heads(rng):
    hidden = MultiHead.random(5, heads=3, outputs=2, rng=rng)
    recovery = SeveralHeads().run(Local(hidden), rng=rng)
    seen = recovery.jumps
    assert len(seen.angles) == 3
    assert ((seen.angles >= 0) & (seen.angles < np.pi)).all()
    # half a turn on, every head has changed sides, so that start and end add up to the jump of all
    # read-outs
    x = np.linalg.lstsq(
        hidden.V.sum(axis=0).T, 2 * seen.start + seen.sizes.sum(axis=0), rcond=None
    )[0]
    np.testing.assert_allclose(
        x @ hidden.V.sum(axis=0), 2 * seen.start + seen.sizes.sum(axis=0), rtol=1e-9
    )


def test_every_jump_is_drawn_with_its_numbers():
    jumps = JumpsRecord(angles=[2.0, 0.5], sizes=[[-3.0], [1.0]], start=[0.25])
    page = draw_half_circle(structs.replace(STOP, jumps=jumps))
    assert "answers jump 2 times" in page
    assert re.findall(r"<title>(.*?)</title>", page) == ["angle 0.5, jump 1", "angle 2, jump -3"]
    assert "angle of y" in page


def test_nothing_is_drawn_where_nothing_jumped():
    assert draw_half_circle(STOP) == ""
    none = JumpsRecord(angles=[], sizes=[], start=[0.0])
    assert draw_half_circle(structs.replace(STOP, jumps=none)) == ""
    assert record_jumps(None) is None


def test_heads_stand_beside_the_true_ones_they_match(tmp_path, rng):
    truth = MultiHead.random(4, heads=2, rng=rng)
    found = MultiHead(truth.W[::-1] + 1e-12, truth.V[::-1])
    save(truth, tmp_path / "t.safetensors")
    save(found, tmp_path / "f.safetensors")
    stop = structs.replace(STOP, truth="t.safetensors", model="f.safetensors", distance=1e-12)
    tour = DemoRecord(verdict="EXACT", queries=Queries(total=1), stops=[stop, STOP])
    page = draw_heads_against_truth(tour, tmp_path)
    assert "true W of head 2" in page
    largest = [float(value) for value in re.findall(r"largest ([0-9.e-]+)", page)]
    assert largest
    assert max(largest) <= 1e-11
