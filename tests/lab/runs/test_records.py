"""Records: one envelope, JSON and back, and those of format 1, which said neither."""

import json
import math
import shutil
from pathlib import Path

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import LearnJob, PlanJob, ReportJob, SampleJob, SweepJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.reading import read_record, read_run
from keyhole.lab.runs.records import FORMAT, encode_record
from support.pages import walked
from support.paths import DATA

OLD = DATA / "format-1"
KINDS = sorted(place.name for place in OLD.iterdir() if (place / "record.json").is_file())


def read_json(place):
    return json.loads((place / "record.json").read_text())


def list_lost_fields(old, new, where=""):
    """Fields of plain data, at any depth, that other data lacks or has with another value."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            lost
            for name, value in old.items()
            for lost in list_lost_fields(value, new.get(name, ...), f"{where}.{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return [lost for a, b in pairs for lost in list_lost_fields(a, b, f"{where}[]")]
    return [] if old == new else [where]


@pytest.mark.parametrize("name", [name for name in KINDS if name != "compare"])
def test_a_record_of_format_1_is_read_with_every_field_it_has(name):
    old = read_json(OLD / name)
    record = read_run(str(OLD / name)).data
    assert (record.record_format, record.kind) == (1, name.partition("-")[0])
    assert list_lost_fields(old, json.loads(encode_record(record))) == []


def test_a_record_of_format_1_without_a_page_of_its_own_is_read_as_fields():
    record = read_run(str(OLD / "compare")).data
    assert (record.kind, record.sentence) == ("other", read_json(OLD / "compare")["sentence"])
    assert record.fields["distance.W"] == read_json(OLD / "compare")["distance"]["W"]


@pytest.mark.parametrize("name", KINDS)
def test_a_run_of_format_1_is_reported(name, tmp_path):
    place = Path(shutil.copytree(OLD / name, tmp_path / name))
    made = run_job(ReportJob((str(place),))).data
    assert made.sentence == read_json(place)["sentence"]
    walk, _ = walked(place / "report.html")
    assert made.sentence in walk.text


def test_runs_of_format_1_are_compared(tmp_path):
    places = [str(shutil.copytree(OLD / name, tmp_path / name)) for name in KINDS]
    run_job(ReportJob(tuple(places), out=str(tmp_path / "all")))
    walk, _ = walked(tmp_path / "all" / "report.html")
    assert all(name in walk.text for name in KINDS)


def test_a_sweep_of_format_1_goes_on_with_its_store(tmp_path, monkeypatch):
    shutil.copytree(OLD / "sweep", tmp_path / "sweep")
    shutil.copy(OLD / "small.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    made = run_job(SweepJob("small.toml", workers=0, out="sweep")).data
    assert (made.jobs.total, made.jobs.done, made.jobs.run_now) == (4, 4, 0)
    old = read_json(OLD / "sweep")
    assert made.expectations[0].measured == old["expectations"][0]["measured"]
    text = (tmp_path / "small.toml").read_text().replace("seed = [0, 1]", "seed = [0, 1, 2]")
    (tmp_path / "small.toml").write_text(text)
    assert run_job(SweepJob("small.toml", workers=0, out="sweep")).data.jobs.run_now == 2


def test_every_record_begins_with_the_envelope(tmp_path):
    model = str(tmp_path / "head.safetensors")
    jobs = [
        SampleJob("head", width=2, seed=3, out=model),
        LearnJob(model, seed=3, out=str(tmp_path / "learn")),
        PlanJob(width=2),
    ]
    for job, kind, seed in zip(jobs, ("sample", "learn", "plan"), (3, 3, None), strict=True):
        made = run_job(job)
        said = json.loads(made.json())
        names = list(said)
        assert names[:5] == ["record", "record_format", "version", "seed", "sentence"]
        assert (said["record"], said["record_format"], said["seed"]) == (kind, FORMAT, seed)
        # Reading is the inverse of writing.
        assert json.loads(encode_record(read_record(made.json()))) == said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"record": "learn", "record_format": FORMAT + 1, "version": "9.1"}, "version .* 9.1"),
        ({"record_format": FORMAT + 1}, f"formats up to {FORMAT}"),
        ({"record": "learn", "record_format": FORMAT}, "is damaged: .*missing"),
        ({"record": "learn", "record_format": "two"}, "is damaged"),
        ({"record": "bound", "record_format": FORMAT, "task": 7}, "is damaged"),
        ([1, 2], "holds no JSON object"),
    ],
)
def test_a_newer_or_damaged_record_is_told_in_a_sentence(content, said, tmp_path):
    (tmp_path / "record.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=said) as told:
        run_job(ReportJob((str(tmp_path),)))
    assert "\n" not in str(told.value)


def test_the_command_line_ends_with_that_sentence(keyhole, tmp_path):
    (tmp_path / "record.json").write_text(json.dumps({"record_format": 99}))
    ran = keyhole("report", ".")
    assert (ran.code, ran.out) == (2, "")
    assert "of format 99" in ran.err
    assert "Traceback" not in ran.err


def test_a_kind_that_is_not_known_is_shown_as_fields():
    record = read_record(b'{"record":"guess","record_format":2,"sentence":"a","deep":{"b":1}}')
    assert (record.kind, record.fields["deep.b"], record.record_format) == ("other", 1, 2)


def test_numbers_that_are_not_finite_are_null(tmp_path):
    bounds = {"width": 4, "norm_bound": 1e3, "margin": 1e-9, "tolerance": 1.0}
    made = run_job(PlanJob(**bounds))
    assert not math.isfinite(made.data.guarantee.W)
    assert json.loads(made.json())["guarantee"]["W"] is None
    assert read_record(made.json()).guarantee.W is None
