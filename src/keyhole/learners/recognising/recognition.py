"""Recognise first: what a few questions exclude and suggest, before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix
from keyhole.errors import BudgetSpent
from keyhole.learners.findings import Finding, Recognition
from keyhole.learners.recognising.decisions import (
    ADVICE,
    choose_terms,
    find_label,
    list_learners,
)
from keyhole.learners.recognising.design import (
    Tokens,
    design_bends,
    design_contexts,
    design_copies,
    design_doubled,
    design_lone_tokens,
    design_long,
    design_pairs,
    design_repeats,
    design_scaled_pairs,
    design_three,
    design_unit,
    draw_tokens,
    is_far,
    name_lone,
)
from keyhole.learners.recognising.facts import list_facts, list_findings, list_witnesses
from keyhole.learners.recognising.first_answers import FirstAnswers
from keyhole.learners.recognising.formats import describe_format
from keyhole.learners.recognising.identities import IDENTITIES, Evidence, weigh_answers
from keyhole.learners.recognising.scale import (
    UNSEEN,
    Scale,
    choose_asked_scale,
    choose_scale,
    measure_saturation,
)
from keyhole.learners.recognising.table import FINDINGS
from keyhole.oracles import Counted, Oracle, read_imperfection

_MOST_RESCALES = 3
USUAL_QUESTIONS = 40  # of a target of one of our classes, with two lengths more or less
MOST_QUESTIONS = 90  # ever: with every rescale, repeats, and a witness asked again
# Findings whose witness is asked again before it is used, the first that was found.
_ASKED_AGAIN = ("order", "length", "counted once", "antisymmetry fails", "copies fail", "odds fail")


@dataclass(slots=True)
class _Run:
    """One recognition under way."""

    first: FirstAnswers
    tokens: Tokens
    scale: Scale = UNSEEN
    lone: str = "y"
    saturated: bool = False
    finished: bool = False
    changed: bool = False

    _weighed: tuple[int, str, Evidence] | None = None

    def weigh(self) -> Evidence:
        """Everything answered so far, weighed once."""
        now = len(self.first.answers), self.lone
        if self._weighed is None or self._weighed[:2] != now:
            self._weighed = (*now, weigh_answers(self.first, self.lone))
        return self._weighed[2]

    def shows(self, finding: str) -> bool:
        """Whether answers so far show a finding of the table."""
        return bool(self.weigh().differ(FINDINGS[finding].identities))

    def find(self) -> dict[str, str]:
        """Findings of the table so far."""
        return list_findings(self.weigh(), saturated=self.saturated)


def recognise(
    oracle: Oracle, *, rng: np.random.Generator, lengths: tuple[int, int] = (1, 300)
) -> Recognition:
    """What kind of target it is, from 17 to 50 questions in at most seven calls.

    A rescale adds eight questions and a call, at most three times; asking a witness again a call.

    Args:
        oracle: the target.
        rng: source of the tokens.
        lengths: the shortest and the longest sequence that may be asked.

    Returns:
        The recognition; where the budget ends early, of what was seen.
    """
    counted = oracle if isinstance(oracle, Counted) else Counted(oracle)
    tokens = draw_tokens(oracle.width, read_imperfection(oracle).token_bound, lengths, rng=rng)
    run = _Run(FirstAnswers(counted, lambda question: _may_be_lost(question, tokens)), tokens)
    with counted.phase("recognise"):
        try:
            _ask_everything(run)
            run.finished = True
        except BudgetSpent:
            pass
    return _conclude(run)


def _may_be_lost(question: Matrix, tokens: Tokens) -> bool:
    # A target may be undefined far out, or refuse long sequences that nobody declared.
    return is_far(question, tokens) or len(question) > 4


def _ask_everything(run: _Run) -> None:
    first, tokens = run.first, run.tokens
    # Lone tokens and pairs are the ground that everything else stands on.
    if tokens.lengths[0] > 1:
        return
    first.ask(design_lone_tokens(tokens))
    if tokens.lengths[1] < 2:
        return
    first.ask(design_pairs(tokens))
    if _is_decided(run):
        return
    affine = not run.shows("lone tokens bend")
    if affine:
        run.scale = choose_scale(run.weigh(), tokens.range)
    else:
        _ask_bends(run)
    if run.scale.acts or run.shows("earlier tokens act"):
        _ask_attention(run, affine)
    else:
        _ask_longer_contexts(run)


def _is_decided(run: _Run) -> bool:
    """Whether answers are labels or scatter, so that nothing else can be seen."""
    evidence = run.weigh()
    return evidence.format == "labels" or bool(evidence.differ(("lone again",)))


def _ask_bends(run: _Run) -> None:
    run.first.ask(design_bends(run.tokens))
    evidence = run.weigh()
    value = choose_asked_scale(evidence, run.tokens.range)
    acts = run.shows("earlier tokens act")
    run.scale, run.lone = Scale(value, acts=acts, shows=False), name_lone(value)


def _ask_attention(run: _Run, affine: bool) -> None:
    first, tokens = run.first, run.tokens
    first.ask(design_scaled_pairs(tokens, run.scale.value, affine=affine))
    if affine:
        _rescale(run)
    if run.shows("homogeneous"):
        _ask_unit(run)
    value, longest = run.scale.value, tokens.lengths[1]
    if longest >= 4:
        first.ask(design_copies(tokens, value))
        first.ask(design_long(tokens, value))
        first.ask(design_doubled(tokens, value))
    _ask_witness_again(run)


def _ask_unit(run: _Run) -> None:
    for questions in design_unit(run.tokens, run.scale.value):
        if max(map(len, questions.values())) <= run.tokens.lengths[1]:
            run.first.ask(questions)


def _rescale(run: _Run) -> None:
    """Ask pairs again with smaller tokens while all weight lies on one token."""
    for attempt in range(_MOST_RESCALES + 1):
        evidence = run.weigh()
        if not {"*[x;y]", "*g(-1)"} <= evidence.answers.keys():
            return
        cut = measure_saturation(evidence, run.scale.value)
        if cut == 1.0:
            return
        if attempt == _MOST_RESCALES:
            run.saturated = True
            return
        # Each cut is bolder than the last.
        run.scale = Scale(run.scale.value / cut ** (attempt + 1), acts=True, shows=True)
        questions = design_scaled_pairs(run.tokens, run.scale.value, affine=True)
        run.first.forget(questions)
        run.first.ask(questions)


def _ask_longer_contexts(run: _Run) -> None:
    longest = run.tokens.lengths[1]
    if run.weigh().bar.erratic:
        run.first.ask(design_repeats(run.tokens))
    if longest >= 3:
        run.first.ask(design_three(run.tokens))
    if longest >= 4:
        run.first.ask(design_contexts(run.tokens))


def _ask_witness_again(run: _Run) -> None:
    """The longest questions of the witness that weighs most, in one call."""
    found = run.find()
    name = next((name for name in _ASKED_AGAIN if name in found), None)
    if name is None:
        return
    asked = [run.lone if one == "*y" else one for one in IDENTITIES[found[name]].questions]
    questions = {one: run.first.questions[one] for one in asked}
    longest = max(map(len, questions.values()))
    again = {f"{one} asked again": q for one, q in questions.items() if len(q) == longest}
    run.first.ask(again)
    evidence = run.weigh()
    for one in again:
        if one in evidence.answers:
            value, band = evidence.add({one: 1.0, one.removesuffix(" asked again"): -1.0})
            run.changed |= bool((np.abs(value) > band.allowed).any())


def _conclude(run: _Run) -> Recognition:
    if not run.first.answers:
        return _conclude_unseen(run)
    evidence, found = run.weigh(), run.find()
    oracle = run.first.oracle
    stated = read_imperfection(oracle).combined(describe_format(evidence.format))
    facts = list_facts(evidence, found, run.scale)
    marks = {"saturated": run.saturated, "answers differ": run.changed}
    marks["unfinished"] = not run.finished or run.tokens.lengths[1] < 2
    facts.update(name for name, yes in marks.items() if yes)
    steady = "answers differ" not in facts and evidence.format != "labels"
    far_asked = not run.tokens.range.bounded and not run.first.lost
    excluded = list_witnesses(evidence, found, far_asked=far_asked) if steady else {}
    row = find_label(facts)
    return Recognition(
        label=row.label,
        sentence=row.sentence,
        advice=ADVICE[row.label],
        findings=tuple(_describe_finding(evidence, name, found[name]) for name in found),
        excluded=excluded,
        suggested=list_learners(row.suggests, choose_terms(stated), oracle.outputs or 1, excluded),
        format=evidence.format,
        not_examined=_list_not_examined(run),
        scale=run.scale.value,
        residual=_tell_part(evidence, "residual", facts),
        bias=_tell_part(evidence, "bias", facts),
        steep="grows" in facts,
        constant=evidence.answers.get("0"),
        questions=dict(run.first.questions),
        answers=dict(run.first.answers),
        ledger=run.first.oracle.ledger,
    )


def _conclude_unseen(run: _Run) -> Recognition:
    row = find_label({"unfinished"})
    return Recognition(
        label=row.label,
        sentence=row.sentence,
        advice=ADVICE[row.label],
        findings=(),
        excluded={},
        suggested=(),
        format="f64",
        not_examined=_list_not_examined(run),
        scale=1.0,
        residual=None,
        bias=None,
        steep=False,
        constant=None,
        questions={},
        answers={},
        ledger=run.first.oracle.ledger,
    )


def _describe_finding(evidence: Evidence, name: str, identity: str) -> Finding:
    witness = evidence.make_witness(identity)
    return Finding(name, FINDINGS[name].sentence, witness.gap, witness.allowed)


def _tell_part(evidence: Evidence, name: str, facts: set[str]) -> bool | None:
    """Whether a part of a head was seen; None where pairs were not asked, or say nothing."""
    measured = evidence.measure(name)
    if measured is None or "lone tokens bend" in facts:
        return None
    if measured.differs:
        return True
    return False if measured.agrees else None


def _list_not_examined(run: _Run) -> tuple[str, ...]:
    tokens = run.tokens
    shortest, longest = tokens.lengths
    kept = {
        "anything: lone tokens and pairs may not be asked": shortest > 1 or longest < 2,
        "tokens beyond the declared bound": tokens.range.bounded,
        "copies, order and doubling: they take sequences of four tokens": longest < 4,
        f"sequences longer than {2 * tokens.half}": True,
        f"questions that were refused ({', '.join(run.first.lost)})": bool(run.first.lost),
    }
    return tuple(words for words, yes in kept.items() if yes)
