"""The page of a recovery: well formed, self-contained, true to the record, and readable."""

import base64
import hashlib
import html
import re
import shlex
import shutil
import struct
import zlib

import numpy as np
import pytest

from keyhole.lab.pages import recovery_page
from keyhole.lab.runs.reading import read_run
from keyhole.models import load
from support.pages import Walk, read_cells
from support.recovery_runs import KINDS
from support.typed import typed


def pixels(address):
    """The colours of a PNG held in an address and how much they cover, read by hand."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    columns, rows = struct.unpack(">II", data[16:24])
    size = struct.unpack(">I", data[33:37])[0]
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(
        rows, 4 * columns + 1
    )
    return lines[:, 1:].reshape(rows, columns, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_has_a_well_formed_page_that_fetches_nothing(learned, kind):
    run = learned(kind)
    assert (run.walk.errors, run.walk.open) == ([], [])
    fetched = [attrs["src"] for _, attrs in run.walk.tags if "src" in attrs]
    assert all(address.startswith("data:image/png;base64,") for address in fetched)
    # Links lead to parts of the page, and to pages of runs in the same directory.
    links = [attrs["href"] for _, attrs in run.walk.tags if "href" in attrs]
    parts = {f"#{attrs['id']}" for attrs in run.walk.all("section") if "id" in attrs}
    for link in links:
        assert link in parts or (run.directory / link).is_file()
    assert "://" not in run.page
    assert run.record["verdict"] == KINDS[kind][-1]
    assert run.record["verdict"] in run.walk.text
    assert run.record["sentence"] in run.walk.text
    assert all("alt" in attrs for attrs in run.walk.all("img"))
    assert all(attrs["aria-label"] for attrs in run.walk.all("svg"))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_printed_for_people(learned, kind):
    text = learned(kind).walk.text
    assert "{'" not in text
    assert "None" not in text
    assert re.findall(r"\d\.\d{6,}", text) == []
    assert re.findall(r"\d[eE]\+\d", text) == []
    assert re.search(r"[\d.]+ m?s, of which [\d.]+ m?s in the target", text)


@pytest.mark.parametrize(
    "kind", ["exact", "wide", "biases", "refuted", "budget", "constant", "no verification"]
)
def test_the_page_counts_what_the_record_counts(learned, kind):
    run = learned(kind)
    phases = dict(run.record["queries"]["by_phase"])
    rows = dict(re.findall(r'<th scope="row">(\w+)</th><td class="number">([\d,]+)</td>', run.page))
    assert {name: int(rows[name].replace(",", "")) for name in phases} == phases
    asked = sum(phases.values()) - phases.get("verify", 0)
    assert f"to learn: {asked:,}" in run.walk.text


@pytest.mark.parametrize("kind", ["exact", "biases", "refuted"])
def test_the_stacked_bar_is_as_long_as_its_phases_and_the_limit_stands_where_it_belongs(
    learned, kind
):
    run = learned(kind)
    phases = dict(run.record["queries"]["by_phase"])
    verify = phases.pop("verify")
    bars = [(float(a["x"]), float(a["width"])) for a in run.walk.all("rect")]
    dashed = next(a["d"] for a in run.walk.all("path") if a["class"] == "dashed")
    line = float(dashed[1:].split()[0])
    unit = bars[-1][1] / verify
    widths = list(phases.values())
    np.testing.assert_allclose([width / unit for _, width in bars[:-1]], widths, atol=0.2)
    np.testing.assert_allclose(
        [start / unit for start, _ in bars[:-1]], np.cumsum([0, *widths[:-1]]), atol=0.2
    )
    limit = int(np.ceil(run.record["degrees_of_freedom"] / run.record["outputs"]))
    assert line / unit == pytest.approx(limit, abs=0.2)
    # Everything lies inside the axes, which are 560 wide.
    assert all(0 <= start <= start + width <= 560 for start, width in (*bars, (line, 0)))


def test_a_refuted_class_shows_its_witness_and_claims_no_recovery(learned):
    run = learned("refuted")
    case, text = run.record["counterexample"], run.walk.text
    assert f"{len(case['questions'])} answers break the rule {case['rule']} by" in text
    assert "keyhole verify TARGET --witness" in text
    for question in case["questions"]:
        assert f"length {len(question)}" in text
    assert "nearest single head, refuted" in text
    assert "recovered W" not in text
    assert "queries recover" not in text
    assert len([a for a in run.walk.all("path") if a["class"] == "bad"]) == 5


def test_what_was_recognised_stands_on_the_page(learned):
    run = learned("exact")
    assert run.record["sentence"].startswith("The model was recovered. ")
    assert run.record["sentence"].endswith(run.record["recognised"]["sentence"])
    assert run.record["recognised"]["sentence"] in run.walk.text
    assert "one head; answers are f64 numbers" in run.walk.text


def test_a_model_that_answers_deny_shows_the_sequence_and_claims_no_recovery(learned):
    run = learned("denied")
    case, text = run.record["counterexample"], run.walk.text
    assert f"On a sequence of length {len(case['tokens'])} target and model differ by" in text
    cells = re.search(r"output 0</th>" + r'<td class="number">([^<]+)</td>' * 3, run.page)
    answer, predicted, gap = map(float, cells.groups())
    assert answer == pytest.approx(case["answer"][0], rel=1e-2)
    assert predicted == pytest.approx(case["predicted"][0], rel=1e-2)
    assert gap == pytest.approx(case["gap"], rel=5e-2)
    assert "record.json" in text
    assert "recovered W" not in text
    assert "queries recover" not in text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][-1] != "EXACT"])
def test_only_a_verified_run_speaks_of_a_recovered_matrix(learned, kind):
    assert "recovered W" not in learned(kind).walk.text.lower().replace("w", "W")


def test_answers_that_differ_late_are_printed_far_enough_to_tell_them_apart(learned):
    run = learned("denied")
    record = run.record
    record["counterexample"] |= {"answer": [0.25], "predicted": [0.2500000001], "gap": 1e-10}
    page = recovery_page.draw_recovery_page(typed(record), run.directory)
    assert "<td" in page
    assert "0.2500000001</td>" in page
    assert "1e-10" in page


@pytest.mark.parametrize(
    "answers", [([1e308], [-1e308]), ([None], [1.0]), ([2.0], [2.0]), ([0.0] * 9, [1.0] * 9)]
)
def test_a_counterexample_of_any_size_has_a_page(learned, answers):
    run = learned("denied")
    record = run.record
    record["counterexample"] |= {"answer": answers[0], "predicted": answers[1], "gap": None}
    with np.errstate(over="ignore"):
        assert Walk(recovery_page.draw_recovery_page(typed(record), run.directory)).errors == []


def test_the_pictures_hold_the_entries_of_the_saved_matrix(learned):
    run = learned("exact")
    W = np.asarray(load(run.directory / "model.safetensors").W)
    (picture,) = run.walk.maps
    np.testing.assert_allclose(read_cells(picture["data-cells"]).reshape(8, 8), W, rtol=0.06)
    colours = pixels(picture["src"]).astype(int)
    red, blue = colours[..., 0], colours[..., 2]
    assert (np.sign(red - blue)[np.abs(W) > 0.05] == np.sign(W)[np.abs(W) > 0.05]).all()
    assert tuple(colours[np.unravel_index(np.abs(W).argmax(), W.shape)]) in {
        (31, 111, 235, 255),
        (194, 65, 12, 255),
    }
    # What is zero shows the page, light or dark.
    np.testing.assert_allclose(colours[..., 3], 255 * np.abs(W) / np.abs(W).max(), atol=0.51)


def test_a_wide_matrix_is_shown_as_block_means_that_use_the_whole_range_of_colours(learned):
    run = learned("wide")
    W = np.asarray(load(run.directory / "model.safetensors").W)
    (picture,) = run.walk.maps
    side = [slice(start, start + 3) for start in range(0, 130, 3)]
    means = np.array([[W[rows, columns].mean() for columns in side] for rows in side])
    np.testing.assert_allclose(
        read_cells(picture["data-cells"]).reshape(44, 44), means, rtol=0.06, atol=1e-9
    )
    assert "means over 3 x 3 blocks, limits ±" in run.walk.text
    largest = pixels(picture["src"])[np.unravel_index(np.abs(means).argmax(), means.shape)]
    assert tuple(largest) in {(31, 111, 235, 255), (194, 65, 12, 255)}


def test_singular_values_are_drawn_and_told_on_hover(learned):
    run = learned("exact")
    W = np.asarray(load(run.directory / "model.safetensors").W)
    told = [float(value) for value in re.findall(r"singular value \d+: ([\d.e-]+)<", run.page)]
    np.testing.assert_allclose(told, np.linalg.eigvalsh(W.T @ W)[::-1][:2] ** 0.5, rtol=0.01)
    assert "rank 2; the other 6 are zero" in run.walk.text


def test_a_stale_truth_beside_a_later_run_is_not_shown(keyhole, head, demo, tmp_path):
    shutil.copytree(demo.directory, tmp_path / "run")
    assert keyhole("learn", "head.safetensors", "--out", "run", "--force").code == 0
    walk = Walk((tmp_path / "run" / "report.html").read_text())
    assert len(walk.maps) == 1
    assert "true W" not in walk.text


def test_the_command_on_the_page_gives_the_same_weights(keyhole, targets, tmp_path):
    (tmp_path / "targets.py").rename(tmp_path / "targets_2.py")
    assert keyhole("learn", "targets_2:vector", "--width", 4, "--seed", 5, "--out", "run").code == 0
    (command,) = re.findall("<code>(.*?)</code>", (tmp_path / "run" / "report.html").read_text())
    words = shlex.split(html.unescape(command))
    assert words[0] == "keyhole"
    assert keyhole(*words[1:], "--out", "again").code == 0
    one, two = (load(tmp_path / out / "model.safetensors") for out in ("run", "again"))
    np.testing.assert_array_equal(np.asarray(one.W), np.asarray(two.W))


def test_a_target_with_blanks_and_quotes_can_be_pasted(keyhole, head, tmp_path):
    name = "my 'own' <script>alert(1)</script> $(x).safetensors".replace("/", "_")
    (tmp_path / "head.safetensors").rename(tmp_path / name)
    assert keyhole("learn", name, "--out", "run").code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    (command,) = re.findall("<code>(.*?)</code>", page)
    assert shlex.split(html.unescape(command))[2] == name


def test_options_that_the_record_names_are_part_of_the_command(learned):
    run = learned("exact")
    page = recovery_page.draw_recovery_page(
        typed(
            run.record
            # Earlier records do not hold their command.
            | {"budget": 900, "options": {"answers": "f32", "tokens": "my tokens.npy"}}
            | {"command": None}
        ),
        run.directory,
    )
    words = shlex.split(html.unescape(re.findall("<code>(.*?)</code>", page)[0]))
    pairs = set(zip(words[3::2], words[4::2], strict=True))
    assert {
        ("--budget", "900"),
        ("--answers", "f32"),
        ("--tokens", "my tokens.npy"),
        ("--seed", "0"),
    } <= pairs


@pytest.mark.parametrize("kind", ["exact", "refuted"])
def test_everything_from_the_record_is_escaped(learned, kind):
    run = learned(kind)
    record = run.record
    evil = "</p><script>alert('x')</script><b title=\"y\">&"

    def poisoned(value):
        if isinstance(value, dict):
            return {key: poisoned(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [poisoned(entry) for entry in value]
        return value + evil if isinstance(value, str) else value

    kept = ("record", "model", "verdict", "certificate")
    bad = {key: value if key in kept else poisoned(value) for key, value in record.items()}
    bad["queries"]["by_phase"][evil] = 7
    bad["certificate"]["theorem"] += evil
    bad["certificate"]["assumptions"][0]["name"] += evil
    page = recovery_page.draw_recovery_page(typed(bad), run.directory)
    walk = Walk(page)
    assert (walk.errors, walk.open) == ([], [])
    assert len(walk.all("script")) == 1
    assert "<b title" not in page
    assert evil in walk.text


def test_the_one_script_is_the_one_the_page_allows(demo):
    (policy,) = [
        a["content"]
        for a in demo.walk.all("meta")
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    script = demo.page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_versions_are_named_where_the_record_has_them(demo):
    bare = {name: value for name, value in demo.record.items() if name not in ("python", "numpy")}
    plain = Walk(recovery_page.draw_recovery_page(typed(bare), demo.directory)).text
    more = Walk(
        recovery_page.draw_recovery_page(
            typed(demo.record | {"python": "3.99.1", "numpy": "9.8.7"}), demo.directory
        )
    ).text
    assert f"keyhole {demo.record['version']}" in plain
    assert "Python" not in plain
    assert f"keyhole {demo.record['version']}, numpy 9.8.7, Python 3.99.1" in more


def test_a_page_made_again_from_record_json_is_the_same(learned):
    run = learned("exact")
    again = recovery_page.draw_recovery_page(read_run(str(run.directory)).data, run.directory)
    assert again == run.page
    assert len(run.page) < 100_000
