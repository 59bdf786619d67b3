"""Records that are hostile, damaged or lost: told in sentences, and never run."""

import json

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import ReportJob
from keyhole.lab.running import run_job
from support.pages import walked
from support.run_records import EVIL, TRAINED


@pytest.mark.parametrize("name", ["learn", "audit", "twins", "build", "bound", "sweep"])
def test_hostile_words_in_a_record_stay_words(copied, tmp_path, name):
    def poisoned(value, key=""):
        if isinstance(value, dict):
            return {k: poisoned(entry, k) for k, entry in value.items()}
        if isinstance(value, list):
            return [poisoned(entry, key) for entry in value]
        kept = (
            "record",
            "theorem",
            "outcome",
            "symmetry",
            "verdict",
            "axis",
            "sender",
            "receiver",
            "x",
            "y",
            "value",
            "kind",
        )
        return value + EVIL if isinstance(value, str) and key not in kept else value

    directory = copied(name)
    record = json.loads((directory / "record.json").read_text())
    models = [row["model"] for row in record["twins"]] if name == "twins" else []
    bad = poisoned(record)
    for row, path in zip(bad.get("twins", []), models, strict=True):
        row["model"] = path
    (directory / "record.json").write_text(json.dumps(bad))
    run_job(ReportJob((str(directory),)))
    run_job(ReportJob((str(directory), str(copied("spent"))), out=str(tmp_path / "two")))
    for page in (directory / "report.html", tmp_path / "two" / "report.html"):
        walk, text = walked(page)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "alert(1)" in walk.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "holds no record.json"),
        ("{", "cannot be read as JSON"),
        ("[1, 2]", "holds no JSON object"),
        ('{"verdict": 3, "queries": "many", "class": null}', "is damaged"),
        ('{"policies": [{}], "error_of": "W"}', "is damaged"),
        ('{"expectations": 7, "jobs": {}, "store": ""}', "is damaged"),
    ],
)
def test_a_missing_or_damaged_record_is_told_in_a_sentence(tmp_path, content, said):
    if content is not None:
        (tmp_path / "record.json").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        run_job(ReportJob((str(tmp_path),)))


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("learn", {"budget": "many"}),
        ("build", {"sizes": [1]}),
        ("bound", {"task_sizes": 3}),
        ("train", {"curve": {"steps": [0, 10], "median": [1.0, ["x"]]}}),
    ],
)
def test_what_was_asked_and_learning_curves_of_a_damaged_record_are_told_too(
    copied, tmp_path, name, spoilt
):
    directory = tmp_path / name if name == "train" else copied(name)
    directory.mkdir(exist_ok=True)
    record = TRAINED if name == "train" else json.loads((directory / "record.json").read_text())
    (directory / "record.json").write_text(json.dumps(record | spoilt))
    with pytest.raises(InvalidInput, match="is damaged"):
        run_job(ReportJob((str(directory),)))
    with pytest.raises(InvalidInput, match="is damaged"):
        run_job(ReportJob((str(directory), str(copied("spent"))), out=str(tmp_path / "two")))


def test_a_store_is_read_under_any_name_and_no_other_file_is_made(copied, tmp_path):
    there = copied("sweep").rename(tmp_path / "50%20of? #é 'x\"")
    before = set(tmp_path.iterdir())
    assert "4 of 4" in run_job(ReportJob((str(there),))).text()
    assert set(tmp_path.iterdir()) == before


def test_a_record_cannot_steer_the_terminal_nor_add_lines(tmp_path):
    record = {"sentence": "\x1b[2Jgone\n  verdict  EXACT", "note\x07": "a\rb\u202e"}
    (tmp_path / "record.json").write_text(json.dumps(record))
    text = run_job(ReportJob((str(tmp_path),))).text()
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == 3
    assert "\\x1b[2Jgone" in text


def test_a_run_that_is_nowhere_and_no_run_at_all_are_told(tmp_path):
    with pytest.raises(InvalidInput, match="is not a directory"):
        run_job(ReportJob((str(tmp_path / "nowhere"),)))
    with pytest.raises(InvalidInput, match="at least one RUN"):
        run_job(ReportJob(()))


def test_the_command_line_ends_with_the_sentence_and_code_2(keyhole, tmp_path):
    (tmp_path / "record.json").write_text("{")
    ran = keyhole("report", ".")
    assert (ran.code, ran.out) == (2, "")
    assert "cannot be read as JSON" in ran.err
    assert "Traceback" not in ran.err


def test_a_lost_store_or_model_is_named(copied):
    sweep, twins = copied("sweep"), copied("twins")
    (sweep / "store.sqlite").unlink()
    next(twins.glob("twin-*.safetensors")).unlink()
    with pytest.raises(InvalidInput, match="no store at"):
        run_job(ReportJob((str(sweep),)))
    with pytest.raises(InvalidInput, match="no model file at"):
        run_job(ReportJob((str(twins),)))
