"""The registry of tasks: every place in it is there, and a new task is one entry."""

from dataclasses import fields

import numpy as np
import pytest

import keyhole
from keyhole.lab.jobs import AttackJob, BoundJob, BuildJob, TrainJob
from keyhole.lab.running import run_job
from keyhole.tasks import TASKS, find_kind, list_tasks_with
from support.majority import BARE, WHOLE, Majority

# The room that asks for a part, so that no room imports one above it.
ROOMS = {
    "recipes": "keyhole.constructions",
    "split_recipes": "keyhole.constructions",
    "proofs": "keyhole.constructions",
    "sent_bits": "keyhole.constructions",
    "known_inputs": "keyhole.constructions",
    "reduction": "keyhole.bounds",
    "telling": "keyhole.bounds",
    "inequalities": "keyhole.bounds",
    "network_bound": "keyhole.bounds",
    "attack": "keyhole.bounds",
    "told_sizes": "keyhole.bounds",
    "lesson": "keyhole.lab.training",
    "picture": "keyhole.lab.pages",
}
DECLARED = [
    (name, part)
    for name, kind in TASKS.items()
    for part in ROOMS
    if getattr(kind, part) is not None
]
TRAINING = {"model": "mlp", "hidden": 4, "steps": 2, "seeds": 1, "tests": 20, "keep": False}


@pytest.fixture
def declared(monkeypatch):
    """Declares the task of the tests with all its parts."""
    monkeypatch.setitem(TASKS, "majority", WHOLE)


@pytest.fixture
def bare(monkeypatch):
    """Declares the task of the tests without any part."""
    monkeypatch.setitem(TASKS, "majority", BARE)


def test_every_part_of_a_kind_has_its_room():
    words = {"task", "title", "usual"}
    assert {item.name for item in fields(WHOLE)} == words | set(ROOMS)


@pytest.mark.parametrize(("name", "part"), DECLARED)
def test_every_place_is_there_and_in_the_room_that_asks_for_it(name, part):
    place = getattr(TASKS[name], part)
    assert place.startswith(f"{ROOMS[part]}.")
    assert TASKS[name].load(part) is not None


@pytest.mark.parametrize("name", TASKS)
def test_the_sizes_at_which_a_page_opens_are_sizes_of_the_task(name):
    kind = TASKS[name]
    assert kind.task.name == name
    assert set(kind.usual) <= set(kind.list_sizes())


def test_a_class_that_took_the_name_of_a_task_is_not_taken_for_it():
    class Match2(Majority):
        name = "match2"

    stranger = Match2(3)
    assert find_kind(stranger).recipes is None
    assert find_kind(keyhole.Match2(3, 4)) is TASKS["match2"]


@pytest.mark.usefixtures("declared")
def test_a_declared_task_is_built_and_drawn(tmp_path):
    out = tmp_path / "run"
    record = run_job(BuildJob("majority", length=5, round_trip=True, out=str(out)))
    assert record.data.construction == "count"
    assert record.data.checked.inputs == 2**5
    assert record.data.checked.errors == 0
    assert record.data.round_trip.error_after == 0.0
    assert "of 5 tokens are 1" in (out / "report.html").read_text()


@pytest.mark.usefixtures("declared")
def test_a_declared_task_is_bounded_from_both_sides():
    # Six counts do not fit into two bits.
    few = run_job(BoundJob("majority", length=5, embed=1, bits=2))
    assert few.data.verdict == "TOO_SMALL"
    assert few.data.inequality.name == "counted ones"
    enough = run_job(BoundJob("majority", length=5, embed=1, build=True))
    assert enough.data.verdict == "ENOUGH"


@pytest.mark.usefixtures("declared")
def test_a_declared_task_is_trained():
    record = run_job(TrainJob("majority", length=5, **TRAINING))
    assert record.data.task_sizes == {"length": 5}
    assert set(record.data.lines) == {"majority", "distinct_count"}


@pytest.mark.usefixtures("declared")
def test_names_in_sentences_are_those_of_the_registry():
    assert list_tasks_with("lesson").split(", ") == list(TASKS)
    with pytest.raises(keyhole.InvalidInput, match=r"k-hop, majority; got 'minority'"):
        run_job(BuildJob("minority"))


@pytest.mark.usefixtures("bare")
def test_what_a_task_does_not_declare_is_refused_in_a_sentence(tmp_path):
    built = run_job(BuildJob("majority", length=5, out=str(tmp_path / "run")))
    assert (built.code, built.data.sentence) == (3, "No construction is known for this task.")
    judged = run_job(BoundJob("majority", length=5, embed=1, bits=2)).data
    assert (judged.verdict, judged.inequality) == ("OPEN", None)
    assert "none is known to be too small, and none is known to be enough" in judged.sentence
    with pytest.raises(keyhole.InvalidInput, match=r"can be trained are .*; got majority\."):
        run_job(TrainJob("majority", length=5, **TRAINING))
    with pytest.raises(keyhole.InvalidInput, match="other networks are for sparse-average"):
        run_job(BoundJob("majority", length=5, hidden=4))
    model = tmp_path / "unit.safetensors"
    keyhole.save(keyhole.SelfAttention(*np.ones((3, 1, 1, 1))), model)
    with pytest.raises(keyhole.InvalidInput, match="models of sparse-average; got majority"):
        run_job(AttackJob(str(model), "majority", length=5))
