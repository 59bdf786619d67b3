"""One claim as data, and how far the text it comes from was at hand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class AtHand(StrEnum):
    """How far the source of a claim was at hand. The value is what its page says."""

    OURS = "none needed: the argument is ours"
    CONFIRMED = "the statement was confirmed in the paper"
    NOTED = "the statement is noted as the paper's"
    RECALLED = "recalled, not confirmed in the paper: check it there before quoting"
    UNRECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Theorem:
    """One claim the code stands on.

    Args:
        id: how code, tests and documentation name it.
        statement: the claim in our words, ours and the paper's together.
        source: where it comes from.
        standing: "paper" (proved there), "derived" (argued in our docs), "measured" or
            "conjecture" (proved nowhere, and no verdict rests on it).
        module: the module that implements it and names the id.
        test: the file of tests that confronts it, marked with the id.
        paper_states: how much of the statement is the paper's; empty for a claim of ours.
        our_constant: the constant, count or weights that are ours, where they differ.
        at_hand: how far the text of the source was at hand.
    """

    id: str
    statement: str
    source: str
    standing: str
    module: str = ""
    test: str = ""
    paper_states: str = ""
    our_constant: str = ""
    at_hand: AtHand = AtHand.UNRECORDED


def cite_paper(
    name: str,
    statement: str,
    source: str,
    *,
    module: str,
    test: str,
    at_hand: AtHand,
    paper_states: str = "",
    our_constant: str = "",
    standing: str = "paper",
) -> Theorem:
    """A claim of a paper, which states all of it unless `paper_states` says how much."""
    stated = paper_states or statement
    return Theorem(name, statement, source, standing, module, test, stated, our_constant, at_hand)


def claim_ours(
    name: str,
    statement: str,
    source: str,
    *,
    module: str,
    test: str,
    standing: str = "derived",
    our_constant: str = "",
) -> Theorem:
    """A claim of our own, argued or measured on our pages."""
    constant = our_constant
    return Theorem(name, statement, source, standing, module, test, "", constant, AtHand.OURS)
