"""The audit: every policy is tried and judged, nothing is asked twice, and a failing target is no
protection.
"""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keyhole.models import Head, MultiHead, save
from support.pages import Walk

WIDTH = 4
ATTEMPT = {
    "options",
    "queries",
    "error",
    "function_error",
    "verdict",
    "status",
    "sentence",
    "model",
    "run",
    "seconds",
}
FIELDS = {
    *(
        "sentence",
        "target",
        "width",
        "outputs",
        "token_bound",
        "error_of",
        "policies",
        "queries",
        "seconds",
        "seed",
    ),
    *("run", "version"),
}


@pytest.fixture(scope="module")
def audited(commands, tmp_path_factory):
    """One audit of a saved head of width 4: its directory, what it printed, what it said while at
    work.
    """
    folder = tmp_path_factory.mktemp("audited")
    save(Head.random(WIDTH, rng=np.random.default_rng(5)), folder / "head.safetensors")
    done = commands(folder, "audit", "head.safetensors", "--out", "run", "--seed", "3")
    assert done.code == 0, done.err
    return folder, done.out, done.err


@pytest.fixture
def record(audited):
    return json.loads((audited[0] / "run" / "record.json").read_text())


def begun(folder, *arguments):
    """An audit under way, that has finished its first attempt."""
    command = [sys.executable, "-m", "keyhole", "audit", *map(str, arguments), "--out", "run"]
    running = subprocess.Popen(
        command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "run/full-precision/record.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return running


def by_name(record):
    return {row["policy"].split(" of ")[0]: row for row in record["policies"]}


def test_the_record_has_every_field_of_the_contract(record):
    assert record.keys() >= FIELDS
    assert (record["width"], record["outputs"], record["seed"], record["error_of"]) == (
        WIDTH,
        1,
        3,
        "W",
    )
    assert record["token_bound"] == pytest.approx(2.0)
    for row in record["policies"]:
        assert row.keys() == {"policy", "simulate", "protects", "verdict", "attempts"}
        assert all(attempt.keys() >= ATTEMPT for attempt in row["attempts"])


def test_every_kind_of_policy_is_tried(record):
    simulated = " ".join(" ".join(row["simulate"]) for row in record["policies"])
    for name in (
        "answers=f32",
        "answers=f16",
        "answers=bf16",
        "decimals=3",
        "noise=",
        "labels",
        "token-bound=",
    ):
        assert name in simulated
    names = [row["policy"] for row in record["policies"]]
    assert len(set(names)) == len(names)
    assert any("budget" in name for name in names)


def test_unbounded_tokens_are_not_protected_by_casts_rounding_noise_or_labels(record):
    for row in record["policies"]:
        if "token-bound" not in " ".join(row["simulate"]) and "budget" not in row["policy"]:
            assert row["attempts"][-1]["error"] < 1e-10
            assert not row["protects"]
            assert "no protection" in row["verdict"]


def test_too_small_a_budget_does_protect_and_the_sentence_says_so(record):
    (row,) = (row for row in record["policies"] if "budget" in row["policy"])
    assert row["protects"]
    assert row["policy"] in record["sentence"]
    spent = [attempt["queries"] for attempt in row["attempts"]]
    assert spent == [attempt["options"]["budget"] for attempt in row["attempts"]]
    assert max(spent) < record["policies"][0]["attempts"][0]["queries"] - 128


def test_coarser_answers_in_a_ball_leave_larger_errors(record):
    rows = [
        row
        for row in record["policies"]
        if len(row["simulate"]) == 2 and "decimals" in row["simulate"][0]
    ]
    errors = [row["attempts"][-1]["error"] for row in rows]
    assert [row["simulate"][0] for row in rows] == ["decimals=6", "decimals=3", "decimals=1"]
    assert errors == sorted(errors)
    assert errors[-1] > 1e4 * errors[0]


def test_more_bits_of_labels_give_more_digits(record):
    attempts = by_name(record)["labels only"]["attempts"]
    assert [attempt["options"]["bits"] for attempt in attempts] == [10, 20, 40]
    assert attempts[0]["error"] > 1e2 * attempts[1]["error"] > 1e4 * attempts[2]["error"]


def test_errors_of_answers_are_measured_where_errors_of_weights_are(record):
    for row in record["policies"]:
        for attempt in row["attempts"]:
            assert (
                (attempt["error"] is None)
                == (attempt["function_error"] is None)
                == (attempt["model"] is None)
            )


def test_the_cost_is_that_of_all_attempts_and_of_the_held_out_questions(record):
    attempts = sum(attempt["queries"] for row in record["policies"] for attempt in row["attempts"])
    assert record["queries"]["total"] == attempts + 64


def test_a_person_reads_the_sentence_then_a_row_per_policy(audited, record):
    _, out, err = audited
    first, *rows = out.splitlines()
    assert first == record["sentence"]
    for row, shown in zip(record["policies"], rows, strict=False):
        assert shown.strip().startswith(row["policy"])
        assert f"{row['attempts'][-1]['queries']:,} queries" in shown
    assert len(err.splitlines()) == len(record["policies"])
    assert all(row["verdict"] in err for row in record["policies"])


def test_the_page_names_every_policy_and_fetches_nothing(audited, record):
    page = (audited[0] / "run" / "report.html").read_text()
    for row in record["policies"]:
        assert page.count(row["policy"]) >= 2
        assert row["verdict"] in page
    policy = next(
        attrs["content"]
        for attrs in Walk(page).all("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert not re.search(r"https?://|<link|src=|url\(|@import", page.replace("img-src data:", ""))


def test_an_audit_is_not_overwritten_unless_told(commands, audited):
    done = commands(audited[0], "audit", "head.safetensors", "--out", "run")
    assert done.code == 2
    assert "--resume" in done.err


@pytest.mark.parametrize("changed", [("--seed", "4"), ("--seed", "3", "--ball", "1.5")])
def test_a_directory_that_holds_another_audit_is_refused(commands, audited, changed):
    done = commands(audited[0], "audit", "head.safetensors", "--out", "run", "--resume", *changed)
    assert done.code == 2
    assert "another audit" in done.err


def test_a_directory_that_holds_a_learn_run_is_refused(keyhole, head):
    keyhole("learn", "head.safetensors", "--out", "run")
    ran = keyhole("audit", "head.safetensors", "--out", "run", "--resume")
    assert ran.code == 2
    assert "another audit or run" in ran.err


@pytest.mark.slow
def test_resuming_a_finished_audit_asks_nothing(keyhole, targets, asked):
    command = ("audit", "targets:counting", "--width", WIDTH, "--out", "run", "--json")
    first, once = keyhole(*command), asked()
    assert first.code == 0, first.err
    assert once == first.json["queries"]["total"]
    again = keyhole(*command, "--resume")
    assert asked() == once
    assert again.json["policies"] == first.json["policies"]
    assert again.json["outputs"] == 2


@pytest.mark.slow
def test_forcing_a_finished_audit_asks_everything_again(keyhole, targets, asked):
    command = ("audit", "targets:counting", "--width", WIDTH, "--out", "run", "--json")
    first, once = keyhole(*command), asked()
    forced = keyhole(*command, "--force")
    assert asked() == 2 * once
    assert [row["verdict"] for row in forced.json["policies"]] == [
        row["verdict"] for row in first.json["policies"]
    ]


def test_a_killed_audit_goes_on_where_it_was(keyhole, targets, tmp_path, asked):
    running = begun(tmp_path, "targets:slow", "--width", WIDTH)
    time.sleep(0.3)
    running.kill()
    running.communicate(timeout=30)
    assert running.returncode == -9
    command = ("audit", "targets:slow", "--width", WIDTH, "--out", "run", "--json")
    refused = keyhole(*command)
    assert refused.code == 2
    assert "--resume" in refused.err
    (tmp_path / "targets.py").write_text(
        (tmp_path / "targets.py").read_text().replace("time.sleep(0.05)", "counting(X)")
    )
    resumed = keyhole(*command, "--resume")
    assert resumed.code == 0, resumed.err
    # what the first attempt had asked was kept
    assert asked() < resumed.json["queries"]["total"] - 159
    assert [row["policy"] for row in resumed.json["policies"] if row["protects"]] == [
        resumed.json["policies"][1]["policy"]
    ]
    once = asked()
    again = keyhole(*command, "--resume")
    assert asked() == once
    assert again.json["policies"] == resumed.json["policies"]


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(targets, tmp_path):
    running = begun(tmp_path, "targets:slow", "--width", WIDTH)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.safetensors",), "no model file"),
        (("nowhere:f", "--width", 4), "cannot import nowhere"),
        (("targets:vector",), "--width"),
        (("head.safetensors", "--resume"), "--out"),
        (("head.safetensors", "--seed", -1), "seed"),
        (("head.safetensors", "--ball", 0), "bound"),
        (("head.safetensors", "--budget", 0), "budget"),
        (("head.safetensors", "--fail-above", 0), "fail-above"),
    ],
)
def test_misuse_exits_with_two(keyhole, targets, head, arguments, said):
    ran = keyhole("audit", *arguments)
    assert ran.code == 2, ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_target_that_raises_at_once_exits_with_three(keyhole, targets):
    ran = keyhole("audit", "targets:raising", "--width", WIDTH, "--json")
    assert ran.code == 3
    assert "the line is dead" in ran.json["sentence"]
    # Four sequences were put to it, whatever became of them.
    assert ran.json["queries"]["total"] == 4


def test_a_target_that_raises_in_the_middle_is_no_protection_and_can_be_mended(
    keyhole, targets, tmp_path, asked
):
    log = '    open("asked.log", "a").write(f"{len(X)}\\n")\n'
    source = (tmp_path / "targets.py").read_text()
    source = source.replace("def raising_later(X):\n", f"def raising_later(X):\n{log}")
    (tmp_path / "targets.py").write_text(source.replace("len(calls) > 8", "len(calls) > 60"))
    command = ("audit", "targets:raising_later", "--width", WIDTH, "--out", "run", "--json")
    ran = keyhole(*command)
    assert (ran.code, ran.json["status"]) == (3, "TARGET_FAILED")
    assert "the line is dead" in ran.json["sentence"]
    assert ran.json["queries"]["total"] == asked()
    assert not (tmp_path / "run" / "record.json").exists()
    (tmp_path / "targets.py").write_text(source.replace("len(calls) > 8", "False"))
    mended = keyhole(*command, "--resume")
    assert mended.code == 0, mended.err
    assert not any(
        row["protects"] for row in mended.json["policies"] if "budget" not in row["policy"]
    )


@pytest.fixture(scope="module")
def two_heads(commands, tmp_path_factory):
    """An audit of two heads, gated: its directory and what it ended with."""
    folder = tmp_path_factory.mktemp("two")
    save(MultiHead.random(2, heads=2, rng=np.random.default_rng(4)), folder / "two.safetensors")
    gated = ("--fail-above", "0.1", "--json")
    return folder, commands(folder, "audit", "two.safetensors", "--out", "run", *gated)


def test_two_heads_are_judged_by_their_answers_within_a_stated_cap(two_heads):
    folder, ran = two_heads
    said = json.loads(ran.out)
    assert said["error_of"] == "answers"
    assert "is not a single head" in said["sentence"]
    whole, *policies = said["policies"]
    for row in policies:
        assert all(attempt["error"] == attempt["function_error"] for attempt in row["attempts"])
        assert all(attempt["queries"] <= said["cap"] for attempt in row["attempts"])
    assert said["cap"] == 16 * whole["attempts"][0]["queries"]
    assert f"{said['cap']:,} queries at most" in (folder / "run" / "report.html").read_text()


def test_a_copy_of_two_heads_near_in_answers_is_a_leak_and_one_that_failed_is_no_protection(
    two_heads,
):
    rows = json.loads(two_heads[1].out)["policies"][1:]
    for row in rows:
        last = row["attempts"][-1]
        if last["error"] is not None and last["error"] < 0.3:
            assert row["protects"] is False
        elif last["verdict"] == "UNVERIFIED":
            assert row["protects"] is None
            assert "does not show that it protects" in row["verdict"]
    # A budget below the cost leaves no copy: that does protect.
    assert [row["protects"] for row in rows if "budget" in row["policy"]] == [True]
    assert False in [row["protects"] for row in rows]


def test_the_gate_fails_where_a_copy_of_the_target_as_it_stands_is_as_near_as_that(
    two_heads, keyhole, head
):
    said = json.loads(two_heads[1].out)
    reached = said["policies"][0]["attempts"][0]["error"]
    assert two_heads[1].code == 3
    assert said["gate"] == {"fail_above": 0.1, "error": reached, "passes": False}
    page = (two_heads[0] / "run" / "report.html").read_text()
    assert "The target as it stands fails" in page
    low = keyhole(
        "audit", "head.safetensors", "--fail-above", 1e-30, "--budget", 400, "--json", "--out", "a"
    )
    assert (low.code, low.json["gate"]["passes"]) == (0, True)


def test_full_precision_is_not_counted_among_the_policies(record):
    tried = record["policies"][1:]
    leaks = sum(row["protects"] is False for row in tried)
    assert f"{leaks} of {len(tried)} output policies do not protect it" in record["sentence"]


def test_an_owner_is_told_what_to_do(audited, record):
    best = next(row for row in record["policies"] if row["protects"])
    said = record["recommendation"]
    assert said.startswith(f"Recommended: {best['policy']}")
    assert "Do not count on answers in f32" in said
    assert said in audited[1]
    assert said in (audited[0] / "run" / "report.html").read_text()


def test_a_target_that_is_not_learned_as_it_stands_ends_the_audit(keyhole, tmp_path):
    (tmp_path / "foreign.py").write_text(
        "import numpy as np\n"
        "def answer(X):\n"
        "    return np.sin(X[:, -1] ** 2).sum(axis=1) + np.median(X[..., 0], axis=1)\n"
    )
    ran = keyhole("audit", "foreign:answer", "--width", 4, "--out", "run", "--json")
    assert ran.code == 3
    (only,) = ran.json["policies"]
    assert (only["policy"], only["protects"]) == ("full precision", None)
    assert "was not learned as it stands" in ran.json["sentence"]
    assert ran.json["queries"]["total"] == only["attempts"][0]["queries"] + 64


def test_a_budget_holds_for_all_attempts_together_and_what_it_does_not_reach_is_named(
    keyhole, head
):
    ran = keyhole("audit", "head.safetensors", "--out", "run", "--budget", 700, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["queries"]["total"] <= 700
    assert 1 < len(ran.json["policies"]) < 14
    assert "Not tried within the budget" in ran.json["sentence"]
    again = keyhole(
        "audit", "head.safetensors", "--out", "run", "--budget", 700, "--json", "--resume"
    )
    assert again.json["policies"] == ran.json["policies"]


def test_an_attempt_without_own_time_is_no_protection_and_goes_on_with_more(keyhole, head):
    options = ("audit", "head.safetensors", "--out", "run", "--json", "--budget", "400")
    hasty = keyhole(*options, "--max-seconds", "1e-6", "--fail-above", "0.3")
    (only,) = hasty.json["policies"]
    assert (hasty.code, hasty.json["gate"]["passes"]) == (3, False)
    assert (only["protects"], only["attempts"][-1]["status"]) == (None, "OUT_OF_TIME")
    patient = keyhole(*options, "--resume")
    assert patient.json["policies"][0]["protects"] is False
