"""What the questions of each phase of a recovery were for, in words."""

from __future__ import annotations

from collections.abc import Mapping

_PHASES: Mapping[str, str] = {
    "recognise": "first questions: what kind of target it is",
    "before": "learners that were tried before",
    "read": "single tokens: the read-out V, constants and biases",
    "scale": "token lengths at which attention can be read",
    "measure": "pairs of tokens: the entries of W",
    "rank": "directions that show the rank of W",
    "rows": "long pairs of tokens: how many heads, where each switches",
    "apart": "heads that switch together, taken apart",
    "signs": "three tokens: which of W and -W",
    "mirror": "three tokens: mirror pairs that pairs do not show",
    "polish": "further questions, to which everything is fitted together",
    "switches": "long pairs of tokens: how many heads, where each switches",
    "readouts": "pairs on both sides of a switch: the read-out of that head",
    "flips": "long pairs of tokens: how many heads, where each switches",
    "spaces": "pairs on both sides of a switch: the outputs that head writes into",
    "route": "sequences that tell the shares of all heads apart",
    "pencil": "short tokens: how many heads, and a first look at each",
    "odd": "sequences and their opposites, whose difference is one head",
    "kinks": "points along a line: where hidden units switch",
    "slopes": "points across each switch: the direction and size of that unit",
    "offsets": "points near the origin: how far from it each unit switches",
    "widths": "points across each unit: how sharply it switches, its activation",
    "fit": "points to which all weights are fitted together",
    "start": "a point round which answers are affine",
    "search": "random points: where the model found so far is wrong",
    "try": "points beside new hyperplanes, to try them",
    "mend": "hyperplanes that were found badly, found again",
    "grow": "points where the model found so far may be wrong",
    "check": "a few questions to hold against the model found so far",
    "wiring": "the norm, its eps, and how positions are told apart",
    "positions": "one position after the other: what is added to its token",
    "split": "sequences that tell the value maps of all heads apart",
    "keys": "sequences with few last tokens: the keys of every head",
    "queries": "sequences with many last tokens: the queries of every head",
    "network": "the network behind the attention, asked by its own learner",
    "verify": "fresh sequences, not used for the fit",
    "lost": "asked before a kill, answers not kept",
}
# Where a phase of that name asks something else.
_OF_CLASS: Mapping[str, Mapping[str, str]] = {
    "tensor": {
        "values": "single tokens: the two value vectors of every output",
        "scores": "two tokens beside zero tokens: the entries of T",
        "signs": "exchanged tokens: which score belongs to which place",
        "fit": "sequences to which the whole unit is fitted",
    },
    "block": {
        "norm": "answers to anything: the last norm, on whose plane they lie",
        "values": "long tokens: the value maps of the heads",
        "zeros": "zero tokens before a long one: whether they do nothing but take weight",
        "slices": "points on random circles: how many hidden units",
        "reads": "points across each unit: its direction and activation",
        "lone": "single tokens to which the network is fitted",
        "scores": "long tokens: the scores of every head",
        "sequences": "sequences to which all heads are fitted",
    },
    "tokens": {
        "read": "prompts of one id: the answer to each",
        "copies": "prompts with copies of an id: how much each head weighs it",
        "match": "prompts of three ids: which weights are of one head",
        "scores": "prompts of other last ids: the scores of every head",
    },
}


def describe_phase(name: str, model_class: str | None) -> str:
    """What a phase asked, for a class of model; nothing where that is not known."""
    own = _OF_CLASS.get(model_class or "", {})
    # A run that failed names the class of what was tried first.
    others = (words[name] for words in _OF_CLASS.values() if name in words)
    return own.get(name) or _PHASES.get(name) or next(others, "")
