"""The page of the tour: truth, recovery and difference, and every stop with its limit."""

import shutil

import numpy as np
import pytest

from keyhole.lab.pages import recovery_page
from keyhole.lab.runs import summaries
from keyhole.models import Factored, Head, save
from support.pages import Walk
from support.typed import typed


def test_the_demo_shows_truth_recovery_and_difference_and_its_own_command(demo):
    before = Walk(demo.page.partition("<h2>The tour: ")[0])
    assert len(before.maps) == 3 * (1 + 2)  # the head of the first stop, then each of two heads
    # Rings of the truth, with a smaller dot in each; the error curve has larger dots.
    marks = [(attrs["class"], attrs["r"]) for attrs in before.all("circle")]
    assert (marks.count(("truth", "4.5")), marks.count(("ours", "2.6"))) == (16, 16)
    assert "keyhole demo --seed 3" in demo.walk.text
    assert "keyhole learn" not in demo.walk.text


def test_the_demo_draws_its_stops_and_tells_each_with_its_limit(demo):
    text = demo.walk.text
    for stop in demo.record["stops"]:
        assert stop["sentence"] in text
    for words in (
        "Recoveries cost",
        "Keys of positions",
        "On the circle",
        "Third-order attention",
        "Two people who own",
    ):
        assert words in text
    assert "every dot lies inside its circle" in text
    assert len(demo.page) < 6_000_000


def test_the_error_of_the_demo_falls_with_its_last_queries_and_not_before_the_limit(demo):
    curve, limit = demo.record["curve"], demo.record["degrees_of_freedom"]
    assert [c["queries"] for c in curve] == sorted(c["queries"] for c in curve)
    assert all(c["error"] > 1e-3 for c in curve if c["queries"] < limit)
    assert curve[-1]["error"] < 1e-9
    assert f"limit {limit}" in demo.walk.text


def test_the_summary_of_the_demo_counts_its_stops(demo):
    rows = dict(summaries.summarise_record(typed(demo.record)))
    assert rows["stops"] == "15 of 15 came out as they should"
    assert rows["again"] == "keyhole demo --seed 3"


def test_a_demo_whose_stops_are_gone_keeps_their_sentences(demo, tmp_path):
    for name in ("record.json", "model.safetensors", "truth.safetensors"):
        shutil.copy(demo.directory / name, tmp_path)
    walk = Walk(recovery_page.draw_recovery_page(typed(demo.record), tmp_path))
    assert walk.errors == []
    assert demo.record["stops"][-1]["sentence"] in walk.text


@pytest.mark.parametrize(
    ("largest", "dense"), [(1e-310, True), (1e150, True), (1e150, False), (1e-200, False)]
)
def test_matrices_of_any_size_have_a_page(demo, tmp_path, rng, largest, dense):
    W = rng.normal(size=(4, 4))
    root = np.sqrt(largest)
    save(
        Head(largest * W if dense else Factored(root * W, root * W), np.ones((4, 1))),
        tmp_path / "model.safetensors",
    )
    record = {key: value for key, value in demo.record.items() if key != "distance"}
    page = recovery_page.draw_recovery_page(typed(record), tmp_path)
    walk = Walk(page)
    assert (walk.errors, len(walk.maps)) == ([], 1)
    spectrum = Walk(page.partition("<h2>")[2].partition("</section>")[0])
    assert len([a for a in spectrum.all("circle") if a["class"] == "ours"]) == 4


def test_the_demo_draws_a_block_with_the_errors_of_its_parts(demo):
    stop = next(stop for stop in demo.record["stops"] if stop["errors"])
    assert stop["verdict"] == "EXACT"
    assert max(stop["errors"].values()) == stop["error"] < 1e-8
    assert "errors beside the truth: scores" in demo.walk.text
    assert f"{stop['queries']:,} questions fill in the block" in demo.walk.text
