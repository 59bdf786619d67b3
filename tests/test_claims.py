"""Theorems as data."""

import math

import pytest

from keyhole.claims import THEOREMS, Basis, Certificate, Check, Outcome, Verdict
from keyhole.theorems.computing_claims import BOUNDS, CONSTRUCTIONS
from keyhole.theorems.recovery_claims import RECOVERIES
from keyhole.theorems.related_claims import RELATED

TRUE, FALSE = Check("fine", 1.0, 1.0), Check("not fine", 1.5, 1.0)


@pytest.mark.parametrize(
    ("measured", "limit", "holds"),
    [
        (1.0, 2.0, True),
        (2.0, 2.0, True),
        (2.1, 2.0, False),
        (-math.inf, 0.0, True),
        (0.0, math.inf, True),
    ],
)
def test_a_check_is_an_inequality(measured, limit, holds):
    assert Check("x", measured, limit).holds is holds


@pytest.mark.parametrize(
    ("measured", "limit"), [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan)]
)
def test_a_check_never_holds_for_what_is_no_number(measured, limit):
    assert not Check("x", measured, limit).holds


@pytest.mark.parametrize(
    ("assumptions", "conclusion", "outcome"),
    [
        ((TRUE,), (TRUE,), Outcome.HOLDS),
        ((), (), Outcome.HOLDS),
        ((TRUE, TRUE), (TRUE, FALSE), Outcome.REFUTED),
        ((), (FALSE,), Outcome.REFUTED),
        ((TRUE, FALSE), (TRUE,), Outcome.SILENT),
        ((FALSE,), (FALSE,), Outcome.SILENT),
    ],
)
def test_a_theorem_is_refuted_only_where_it_promised_something(assumptions, conclusion, outcome):
    assert Certificate("BSHK26/4.1", assumptions, conclusion).outcome is outcome


def test_the_registry_names_every_theorem_by_its_own_id():
    assert all(name == theorem.id for name, theorem in THEOREMS.items())
    assert "BSHK26/4.1" in THEOREMS


def test_no_id_is_given_twice():
    named = [theorem.id for theorem in (*RECOVERIES, *BOUNDS, *CONSTRUCTIONS, *RELATED)]
    assert len(named) == len(set(named)) == len(THEOREMS)


@pytest.mark.parametrize("theorem", THEOREMS.values(), ids=THEOREMS)
def test_a_theorem_has_a_statement_a_source_and_a_standing(theorem):
    papers = {"BSHK26", "KKG26", "SHT23", "SHT24", "PNP24", "BHBK24", "CPW24"}
    assert theorem.id.split("/")[0] in {*papers, "keyhole"}
    assert theorem.statement.endswith(".")
    assert theorem.source
    assert theorem.standing in {"paper", "derived", "measured", "conjecture"}


def test_only_exact_and_within_tolerance_may_be_relied_on():
    assert {verdict for verdict in Verdict if verdict.verified} == {
        Verdict.EXACT,
        Verdict.WITHIN_TOLERANCE,
    }


def test_every_verdict_and_outcome_is_a_sentence():
    assert all(part.value.endswith(".") for part in (*Verdict, *Outcome))


@pytest.mark.parametrize(
    ("assumptions", "conclusion", "outcome"),
    [
        ((TRUE,), (TRUE,), Outcome.SILENT),
        ((TRUE,), (FALSE,), Outcome.REFUTED),
        ((FALSE,), (FALSE,), Outcome.SILENT),
    ],
)
def test_a_sample_may_refute_and_never_holds(assumptions, conclusion, outcome):
    assert Certificate("some/theorem", assumptions, conclusion, "3 of 9 sets").outcome is outcome


def test_a_certificate_is_examined_unless_it_says_what_else_it_rests_on():
    assert Certificate("some/theorem", (), ()).basis is Basis.EXAMINED
    assert Certificate("some/theorem", (), (), basis=Basis.PROVED).basis is Basis.PROVED
    sampled = Certificate("some/theorem", (), (), "3 of 9 sets", Basis.PROVED)
    assert sampled.basis is Basis.SAMPLED


def test_the_truth_takes_the_place_of_what_a_run_said_of_itself_and_of_nothing_else():
    said = Check("said", 0.0, 1.0, judged=True)
    held = Certificate("some/theorem", (said, TRUE), (said,), given={"radius": 2.0})
    confronted = held.confront([TRUE], [FALSE])
    assert confronted.assumptions == (TRUE, TRUE)
    assert confronted.conclusion == (FALSE,)
    assert confronted.basis is Basis.CONFRONTED
    assert confronted.given == {"radius": 2.0}
    assert (held.outcome, confronted.outcome) == (Outcome.HOLDS, Outcome.REFUTED)
