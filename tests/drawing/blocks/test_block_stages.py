"""The drawing of a block: which parts are known after which stage, and what each stage asked."""

import csv
import io
import re

from keyhole.drawing.blocks.block_sheets import draw_block_stages
from keyhole.drawing.blocks.block_stages import (
    PARTS,
    SETTLED,
    STAGES,
    BlockProgress,
    tabulate_steps,
)
from keyhole.drawing.describing import write_csv

PRE = {"values": 45, "slices": 62, "reads": 244, "lone": 41, "scores": 69, "sequences": 33}
POST = {"norm": 57, "values": 98, "slices": 467, "reads": 271, "scores": 108, "sequences": 24}


def known_after(asked, verified):
    """By the name of a stage, the parts that are known to the last digit after it."""
    steps = BlockProgress(asked=asked, verified=verified).list_steps()
    return {
        step.name: {part for part, share in step.known.items() if share == SETTLED}
        for step in steps
    }


def test_a_verified_block_is_whole_after_its_sequences():
    for asked in (PRE, POST):
        known = known_after({**asked, "verify": 160}, verified=True)
        assert known["sequences"] == known["fresh questions"] == set(PARTS)
        assert known["value maps of the heads"] <= {"norm2"}


def test_lone_tokens_that_the_last_norm_had_asked_for_already_settle_the_network_too():
    known = known_after({**POST, "verify": 160}, verified=True)
    assert "lone tokens" not in known
    assert {"units", "norm1"} <= known["scores of the heads"]


def test_the_stage_at_which_a_recovery_stopped_fills_nothing_in():
    asked = {name: PRE[name] for name in ("values", "slices")}
    progress = BlockProgress(asked=asked, verified=False)
    values, network = progress.list_steps()
    assert (values.done, network.done) == (True, False)
    assert network.known == values.known == STAGES["pre"][0].fills
    assert "as far as: units of the network" in progress.finding


def test_a_recovery_that_was_to_end_after_a_stage_shows_it_as_found():
    progress = BlockProgress(asked={"norm": 57, "values": 98}, verified=False, ended=True)
    assert progress.list_steps()[-1].known == {"norm2": SETTLED, "values": 0.3}
    assert "up to: value maps of the heads" in progress.finding


def test_questions_add_up_and_others_come_first():
    progress = BlockProgress(asked={"recognise": 50, "before": 20, **PRE}, verified=True)
    steps = progress.list_steps()
    assert (steps[0].name, steps[0].asked) == ("first questions", 70)
    assert steps[-1].total == sum(step.asked for step in steps) == progress.learning == 564


def test_numbers_of_the_drawing_are_its_rows():
    progress = BlockProgress(asked={**PRE, "verify": 160}, verified=True, limit=40)
    drawn = write_csv(tabulate_steps(progress.list_steps()))
    rows = list(csv.DictReader(io.StringIO(drawn)))
    assert rows[-1]["questions so far"] == str(654)
    assert float(rows[0]["scores"]) == 0.0
    assert float(rows[-1]["units"]) == SETTLED


def test_a_drawing_names_heads_units_limit_and_errors_and_says_what_it_leaves_out():
    asked = {**POST, "verify": 160}
    drawn = draw_block_stages(
        BlockProgress(
            asked=asked, verified=True, heads=12, units=48, limit=44, errors={"scores": 3e-13}
        )
    )
    words = " ".join(re.findall(r">([^<]+)<", drawn))
    for said in ("12 heads", "48 units", "limit 44", "scores 3e-13", "8 of 12 heads and 24 of 48"):
        assert said in words
    assert "no learner" not in draw_block_stages(BlockProgress(asked=asked, verified=False))


def test_a_block_with_gates_is_drawn_by_its_own_stages():
    asked = {"zeros": 6, "slices": 86, "reads": 221, "lone": 42, "split": 10, "keys": 14}
    known = known_after({**asked, "queries": 14, "verify": 164}, verified=True)
    assert known["zero tokens"] == set()
    assert known["lone tokens"] == {"units", "norm2"}
    assert known["heads told apart"] == {"units", "norm2", "values"}
    assert known["scores of the heads"] == set(PARTS)
    stopped = BlockProgress(asked={"zeros": 6}, verified=False)
    assert "as far as: zero tokens" in stopped.finding
