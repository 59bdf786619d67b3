"""Rows of a record: the terminal, the page and the summary say the same."""

import html
import re

import numpy as np
import pytest
from msgspec import structs

from keyhole.lab.jobs import BuildJob, LearnJob, ReportJob, TwinsJob, VerifyJob
from keyhole.lab.running import run_job
from keyhole.lab.runs.other_records import Landing
from keyhole.lab.runs.record_parts import (
    CertificateRecord,
    CounterexampleRecord,
    ExclusionRecord,
    FindingRecord,
    FreshError,
    Queries,
    RecognitionRecord,
    Seconds,
    WitnessRecord,
)
from keyhole.lab.runs.recovery_records import LearnRecord, TwinRecord
from keyhole.lab.runs.rows import (
    describe_distances,
    list_build_rows,
    list_expectation_rows,
    list_recovery_rows,
    list_time_rows,
)
from keyhole.models import Head, MultiHead, save

RECOVERED = LearnRecord(
    verdict="EXACT",
    status="RECOVERED",
    model_class="head",
    reason="one answer explains it.",
    determined="W and v.",
    width=6,
    rank=0,
    heads=1,
    outputs=2,
    queries=Queries(total=1234, by_phase={"read": 1000, "verify": 234}),
    degrees_of_freedom=27,
    fresh_error=FreshError(max=1e-15, relative=1.24e-15, sequences=1024),
    error_bar=3e-7,
    counterexample=CounterexampleRecord(
        tokens=[[0.0], [1.0]], answer=[0.5], predicted=[0.0], gap=0.5
    ),
    certificate=CertificateRecord(theorem="BSHK26/4.1", outcome="HOLDS"),
    seconds=Seconds(total=1.5, oracle=0.25),
)


def test_a_recovery_is_told_in_full():
    assert dict(list_recovery_rows(RECOVERED)) == {
        "verdict": "EXACT",
        "status": "RECOVERED",
        "class": "head, width 6, rank 0, heads 1, outputs 2: one answer explains it.",
        "determined": "W and v.",
        "queries": "1,234 (read 1,000, verify 234)",
        "limit": "14 queries for 27 degrees of freedom; 1,000 were asked, verification apart",
        "fresh error": "1.2e-15 of the token values, over 1,024 fresh sequences",
        "error bar": "3e-7 of W, relative",
        "differs on": "a sequence of length 2, in record.json; gap 0.5",
        "certificate": "BSHK26/4.1 HOLDS",
        "time": "1.5 s, of which 250 ms in the target",
    }


def test_gaps_within_declared_errors_are_no_share_of_shorter_tokens():
    fresh = FreshError(max=4.86e-4, relative=37528.6, sequences=160)
    noisy = structs.replace(RECOVERED, verdict="WITHIN_TOLERANCE", fresh_error=fresh)
    told = dict(list_recovery_rows(noisy))["fresh error"]
    assert (
        told == "4.9e-4 at most, over 160 fresh sequences, as declared errors and rounding explain"
    )
    wrong = structs.replace(noisy, verdict="UNVERIFIED")
    told = dict(list_recovery_rows(wrong))["fresh error"]
    assert told == "37,529 of the token values, over 160 fresh sequences"


WITNESS = WitnessRecord(
    rule="order",
    questions=[[[0.0], [1.0]], [[1.0], [0.0]]],
    answers=[[0.5], [1.0]],
    gap=0.5,
    allowed=1e-12,
)
RECOGNISED = RecognitionRecord(
    label="positions",
    sentence="There are positions.",
    findings=[FindingRecord(name="order", sentence="Order acts.", gap=0.5, allowed=1e-12)],
    excluded=[ExclusionRecord(classes=["head", "relu"], witness=WITNESS)],
    suggested=[],
    format="f64",
    not_examined=["far tokens", "long sequences"],
)


def test_what_was_recognised_is_told_with_its_gaps_and_witnesses():
    refused = LearnRecord(
        verdict="CLASS_REFUTED",
        queries=Queries(total=41),
        recognised=RECOGNISED,
        counterexample=CounterexampleRecord(**structs.asdict(WITNESS)),
    )
    assert list(list_recovery_rows(refused))[1:] == [
        ("recognised", "positions; answers are f64 numbers"),
        ("found", "Order acts. The difference is 0.5; rounding explains 1e-12."),
        ("excluded", "head, relu: answers break the rule 'order'"),
        ("to try", "none"),
        ("not seen at first", "far tokens; long sequences"),
        ("queries", "41"),
        (
            "refuted by",
            "2 answers that break the rule order, in record.json; gap 0.5, of which rounding"
            " explains 1e-12",
        ),
    ]


def test_what_a_record_leaves_open_is_left_out():
    ended = LearnRecord(verdict="UNVERIFIED", queries=Queries(total=7), width=3)
    assert list(list_recovery_rows(ended)) == [
        ("verdict", "UNVERIFIED"),
        ("sizes", "width 3"),
        ("queries", "7"),
    ]
    assert list(list_time_rows(Seconds(total=2.0))) == [("time", "2.0 s")]


def test_what_nothing_measured_is_said_so():
    one = Landing(met=False, sentence="below 1", measured=None)
    two = Landing(met=True, sentence="below 2", measured=1.5)
    assert list(list_expectation_rows([one, two])) == [
        ("MISSED", "below 1; measured nothing"),
        ("met", "below 2; measured 1.5"),
    ]
    # In JSON a number that is not finite is null, which is not nothing.
    twin = TwinRecord(
        symmetry="ORDER",
        changed="The order.",
        proof="A sum.",
        model="twin.safetensors",
        parameters_differ=0.25,
        answers_differ=None,
        certificate=CertificateRecord(theorem="BSHK26/7.1", outcome="SILENT"),
    )
    lost = describe_distances(twin)
    assert lost == "the parameters differ by 25 %, the answers by not finite"


def test_terminal_page_and_summary_of_a_recovery_say_the_same(tmp_path):
    save(Head.random(3, rng=np.random.default_rng(5)), tmp_path / "head.safetensors")
    out = tmp_path / "learn"
    record = run_job(LearnJob(str(tmp_path / "head.safetensors"), out=str(out)))
    said = [*list_recovery_rows(record.data)]
    assert [*record.lines] == [*said, ("written to", str(out))]
    page = html.unescape((out / "report.html").read_text())
    shown = re.findall(r'<th scope="row">([^<]*)</th><td[^>]*>([^<]*)</td>', page)
    assert set(said) <= set(shown)
    summary = run_job(ReportJob((str(out),))).data.runs[0].summary
    assert {tuple(row) for row in summary if row[0] != "again"} <= set(said)
    assert [name for name, _ in summary] == [
        *("verdict", "class", "queries", "limit", "fresh error"),
        *("certificate", "time", "again"),
    ]
    verified = run_job(
        VerifyJob(str(tmp_path / "head.safetensors"), str(out / "model.safetensors"))
    )
    assert re.fullmatch(r".* of the token values, over \d+ fresh sequences", verified.lines[1][1])


@pytest.mark.parametrize("kind", ["build", "twins"])
def test_terminal_and_summary_of_other_runs_say_the_same(kind, tmp_path):
    save(MultiHead.random(3, heads=2, rng=np.random.default_rng(5)), tmp_path / "two.safetensors")
    out = str(tmp_path / "run")
    job = BuildJob("match2", length=4, modulus=5, out=out)
    if kind == "twins":
        job = TwinsJob(str(tmp_path / "two.safetensors"), out=out)
    record = run_job(job)
    summary = run_job(ReportJob((out,))).data.runs[0].summary
    rows = [tuple(row) for row in summary if row[0] not in ("again", "time")]
    assert len(rows) >= 3
    assert set(rows) <= set(record.lines)
    if kind == "build":
        assert [*list_build_rows(record.data)] == [*record.lines[:-2]]
