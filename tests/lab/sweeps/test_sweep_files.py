"""Sweep files, stores, exports and expectations."""

import csv
import json

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import PlanJob, TransitionJob, TrialJob
from keyhole.lab.jobs.job_parts import RandomModel
from keyhole.lab.pages.sweep_page import draw_sweep_page
from keyhole.lab.running import run_job
from keyhole.lab.runs.other_records import FailedJob, Figure, JobCounts, SweepRecord
from keyhole.lab.runs.store import DONE, FAILED, About, Store, StoredRow, read_rows
from keyhole.lab.runs.tables import export_rows, tabulate_rows
from keyhole.lab.sweeps.expectations import judge_expectations, parse_expectation
from keyhole.lab.sweeps.files import read_sweep


def write(tmp_path, text, name="sweep.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_base_list_and_grid_are_combined_and_later_ones_override(tmp_path):
    sweep = read_sweep(
        write(
            tmp_path,
            'job = "trial"\n[base]\nmodel.kind = "head"\nmodel.width = 3\n[[list]]\nmodel.rank ='
            ' 1\n[[list]]\nmodel.kind = "multihead"\n[grid]\n"model.width" = [4, 8]\nseed.range ='
            " [0, 2]\n",
        )
    )
    jobs = list(sweep.jobs)
    expected = [
        TrialJob(RandomModel(kind, width=width, rank=rank), seed=seed)
        for kind, rank in (("head", 1), ("multihead", None))
        for width in (4, 8)
        for seed in (0, 1)
    ]
    assert jobs == expected
    assert len({job.key for job in jobs}) == 8


def test_every_entry_of_a_list_is_crossed_with_every_other(tmp_path):
    text = (
        'job = "plan"\n[[list]]\nwidth = 4\n[[list]]\nwidth = 6\n[[cross]]\n[[cross]]\noutputs = 2'
        "\nheads = 3\n[grid]\nrank = [1, 2]\n"
    )
    expected = [
        PlanJob(width=width, rank=rank, **other)
        for width in (4, 6)
        for other in ({}, {"outputs": 2, "heads": 3})
        for rank in (1, 2)
    ]
    assert list(read_sweep(write(tmp_path, text)).jobs) == expected
    with pytest.raises(InvalidInput, match=r"cross holds tables, each \[\[cross\]\]"):
        read_sweep(write(tmp_path, 'job = "plan"\ncross = 3\n'))


def test_json_says_the_same_as_toml(tmp_path):
    toml = read_sweep(write(tmp_path, 'name = "a"\njob = "plan"\n[grid]\nwidth = [2, 3]\n'))
    data = {"name": "a", "job": "plan", "grid": {"width": [2, 3]}}
    assert read_sweep(write(tmp_path, json.dumps(data), "sweep.json")) == toml
    assert toml.jobs == (PlanJob(width=2), PlanJob(width=3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job = 1 = 2", "is not a readable sweep in TOML"),
        ("[grid]\nwidth = [1]", "names its job"),
        ('job = "fly"', "a job is one of"),
        ('job = "plan"\ncolour = "red"', "unknown colour"),
        ('job = "plan"\n[base]\nbreadth = 3', "has no breadth"),
        ('job = "plan"\n[base]\nwidth = "three"', "Expected `int"),
        ('job = "trial"\n[base]\nmodel.kind = "head"\nmodel.size = 3', "trial.model has no size"),
        ('job = "plan"\n[grid]\nwidth = 3', "a list of values"),
        ('job = "plan"\n[grid]\nwidth = []', "a list of values"),
        ('job = "plan"\n[grid]\nwidth.range = [0, 400]\noutputs.range = [0, 400]', "100,000 jobs"),
        ('job = "plan"\nname = "../x"', "letters, digits"),
        ('job = "plan"\n[figure]\nx = "a"', "columns x and y"),
        ('job = "plan"\n[figure]\nx = "a"\ny = "b"\nw = "c"', "unknown w"),
        ('job = "plan"\n[[expect]]\nvalue = "a"', "an expectation has"),
        ('job = "plan"\n[base]\nwidth = 3\n[list]\nwidth = 3', "tables"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, text, words):
    with pytest.raises(InvalidInput, match=words):
        read_sweep(write(tmp_path, text))


def test_a_missing_file_says_what_was_looked_for():
    with pytest.raises(InvalidInput, match="no sweep file at nowhere"):
        read_sweep("nowhere.toml")


ROWS = [
    StoredRow(
        "a",
        b'{"tags":["x"],"width":1}',
        DONE,
        b'{"error":0.001,"verdict":"EXACT"}',
        None,
        About(seconds=1.0),
    ),
    StoredRow(
        "b",
        b'{"tags":[],"width":2}',
        DONE,
        b'{"error":0.003,"verdict":"EXACT"}',
        None,
        About(seconds=2.0),
    ),
    StoredRow("c", b'{"tags":[],"width":2}', FAILED, None, "it fell over", About()),
]


def test_a_store_keeps_rows_and_lets_one_driver_in(tmp_path):
    path = tmp_path / "deep" / "store.sqlite"
    store = Store(path)
    for row in reversed(ROWS):
        store.put(row)
    assert list(read_rows(path)) == ROWS
    assert store.states() == {"a": DONE, "b": DONE, "c": FAILED}
    with pytest.raises(InvalidInput, match="another sweep is writing"):
        Store(path)
    mended = StoredRow("c", ROWS[2].job, DONE, b'{"error":0.0}', None, About())
    store.put(mended)
    store.close()
    again = Store(path)
    assert again.states()["c"] == DONE
    again.close()
    assert list(read_rows(path))[2] == mended


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no store at"):
        list(read_rows(tmp_path / "store.sqlite"))
    (tmp_path / "store.sqlite").write_bytes(b"something else entirely" * 100)
    with pytest.raises(InvalidInput, match="is not a readable store"):
        list(read_rows(tmp_path / "store.sqlite"))
    with pytest.raises(InvalidInput, match="is not a store of a sweep"):
        Store(tmp_path / "store.sqlite")


def test_rows_are_exported_flat(tmp_path):
    names = export_rows(tabulate_rows(ROWS), tmp_path, ["csv", "json"])
    assert names == [str(tmp_path / "rows.csv"), str(tmp_path / "rows.json")]
    with (tmp_path / "rows.csv").open() as file:
        first, _, last = csv.DictReader(file)
    assert (first["job.width"], first["record.error"], first["job.tags"]) == ("1", "0.001", '["x"]')
    assert (last["state"], last["reason"], last["record.error"]) == ("failed", "it fell over", "")
    lines = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert lines[1]["record.verdict"] == "EXACT"


def test_rows_are_exported_to_parquet(tmp_path):
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed: pip install 'keyhole[parquet]'"
    )
    export_rows(tabulate_rows(ROWS), tmp_path, ["parquet"])
    back = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["record.error"] for row in back] == [1e-3, 3e-3, None]


def test_expectations_are_statistics_of_the_rows_they_name():
    rows = tabulate_rows(ROWS[:2])
    cases = [
        ({"value": "record.error", "statistic": "median", "at_most": 2e-3}, 2e-3, True),
        ({"value": "record.error", "statistic": "max", "at_most": 2e-3}, 3e-3, False),
        (
            {
                "value": "record.error",
                "statistic": "max",
                "where": {"job.width": 1},
                "at_most": 2e-3,
            },
            1e-3,
            True,
        ),
        ({"value": "record.verdict", "equals": "EXACT", "at_least": 1.0}, 1.0, True),
        ({"value": "record.nothing", "statistic": "max", "at_most": 1.0}, None, False),
    ]
    for one, measured, met in cases:
        (landing,) = judge_expectations(rows, (parse_expectation(one),))
        assert (
            landing.measured == pytest.approx(measured)
            if measured is not None
            else landing.measured is None
        )
        assert landing.met is met


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"value": "record.error", "statistic": "max", "at_most": 1e-9},
            "largest error: at most 1e-09",
        ),
        (
            {
                "value": "record.verdict",
                "equals": "EXACT",
                "where": {"job.model.heads": 4, "job.noise": 0.0},
                "at_least": 0.9,
                "at_most": 1.0,
            },
            "share of jobs whose verdict is EXACT, where model heads is 4 and noise is 0.0:"
            " at least 0.9 and at most 1",
        ),
    ],
)
def test_an_expectation_is_said_in_words(given, sentence):
    (landing,) = judge_expectations([], (parse_expectation(given),))
    assert landing.sentence == sentence


def test_a_page_draws_rows_and_keeps_hostile_words_inert():
    data = SweepRecord(
        name="<script>alert(1)</script>",
        sentence="done",
        about="",
        jobs=JobCounts(total=3, done=2, failed=1),
        expectations=[],
        failures=[FailedJob(key="k", reason="<img src=x onerror=alert(1)>")],
        store="runs/a/store.sqlite",
        file="a.toml",
        run="runs/a",
    )
    figure = Figure(x="job.width", y="record.error", series="record.verdict", log="y", limit=1e-2)
    drawn = draw_sweep_page(data, tabulate_rows(ROWS), figure)
    assert "<script>alert" not in drawn
    assert "<img src=x" not in drawn
    assert drawn.count("<circle") == 2
    assert "stroke" in drawn
    empty = draw_sweep_page(data, tabulate_rows(ROWS), Figure(x="job.nothing", y="record.error"))
    assert "No row has numbers" in empty


def test_a_transition_counts_the_matrices_that_come_back():
    many, few = (run_job(TransitionJob(8, 1, ratio, seeds=4)).data for ratio in (5.0, 0.5))
    assert many.success == 1.0
    assert many.measurements == 75
    assert few.success == 0.0


def test_a_transition_of_no_rank_is_refused():
    with pytest.raises(InvalidInput, match="1 <= rank <= width"):
        run_job(TransitionJob(8, 0, 2.0))
