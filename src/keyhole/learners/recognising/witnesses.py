"""Looking for a witness against a class: the one way a class is refuted.

A learner that finds no model, or one that answers deny, has searched in vain and says so. Whether
no member of its class could answer so is asked here, by the rules that all of them keep.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.errors import BadAnswer, BudgetSpent
from keyhole.learners.findings import Recognition, Witness
from keyhole.learners.recognising.recognition import recognise
from keyhole.learners.verifying.error_bar import describe_coarseness, measure_error_bar
from keyhole.learners.verifying.rules import ask_by_length, hold_rule
from keyhole.oracles import Counted, read_imperfection

# Rules that heads keep with any tokens, and what they are held against: x, y, w and sequences of
# these; copies are a rule of one head alone. With y as last token and at its own scale, they need
# no answer to a zero token.
_RULES = (
    ("equal copies", ("yy", "y")),
    ("doubling", ("xxyy", "xy")),
    ("order", ("xxwy", "xwxy")),
    ("order", ("xxwy", "wxxy")),
    ("copies", ("xyyy", "xy", "xxxy", "y", "y")),
)
_SCORES = ("copies",)
_OF_ONE = ("copies",)
_DRAWS = 4


def recognise_afterwards(oracle: Counted, *, rng: np.random.Generator) -> Recognition | None:
    """What first questions show of a target that a learner failed at, None where they show nothing.

    Args:
        oracle: the target, counting.
        rng: source of the tokens.
    """
    try:
        seen = recognise(oracle, rng=rng)
    # Where the target has no answer there is no witness either.
    except BadAnswer:
        return None
    return None if seen.label == "not finished" else seen


def find_witness_among(
    oracle: Counted, tokens: Matrix, *, one: bool, rng: np.random.Generator
) -> Witness | None:
    """The same against one head, or any sum of heads, from questions of rows of `tokens` alone.

    Args:
        oracle: the target, counting.
        tokens: all that may be asked.
        one: whether a single head is what is refuted.
        rng: source of the rows.
    """
    for _ in range(_DRAWS):
        x, y, w = tokens[rng.integers(len(tokens), size=3)]
        try:
            with oracle.phase("recognise"):
                witness = _hold_rules(oracle, {"x": x, "y": y, "w": w}, one=one)
        except (BadAnswer, BudgetSpent):
            return None
        if witness is not None:
            return witness
    return None


def _hold_rules(oracle: Counted, letters: dict[str, Vector], *, one: bool) -> Witness | None:
    """The rule that answers break most, None where they keep all of them."""
    rules = [(rule, asked) for rule, asked in _RULES if one or rule not in _OF_ONE]
    words = list(dict.fromkeys(word for _, asked in rules for word in asked))
    questions = [np.stack([letters[letter] for letter in word]) for word in words]
    answers = dict(zip(words, ask_by_length(oracle, questions), strict=True))
    coarseness = describe_coarseness(read_imperfection(oracle))
    bar = measure_error_bar(questions, list(answers.values()), coarseness)
    found: list[Witness] = []
    for rule, asked in rules:
        if rule in _SCORES and coarseness.coarse:
            continue
        held = [questions[words.index(word)] for word in asked]
        told = [answers[word] for word in asked]
        seen = hold_rule(rule, held, told, bar)
        if seen.differs:
            found.append(Witness(rule, tuple(held), tuple(told), seen.gap, seen.allowed))
    return max(found, key=lambda one: one.gap / one.allowed if one.allowed else 1.0, default=None)
