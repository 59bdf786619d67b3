"""What each finding excludes, what it suggests, and the sentence a person reads: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADS = ("head", "multihead", "layer")
NETWORKS = ("relu", "smooth")
ALL = (*HEADS, *NETWORKS, "onelayer")

CLASSES: Mapping[str, str] = {
    "head": "one softmax head",
    "multihead": "a sum of softmax heads",
    "layer": "a layer of heads with an output projection",
    "relu": "a network of the last token with one hidden ReLU layer",
    "smooth": "a network of the last token with one hidden smooth layer",
    "onelayer": "attention before a network",
}


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding: identities of which one is broken (or kept), and the classes that excludes.

    Args:
        identities: names in `identities.IDENTITIES`.
        excludes: classes of which no member answers so.
        sentence: the finding in words.
        pairs: whether it reads scores from pairs, which coarse or saturated answers do not show.
    """

    identities: tuple[str, ...]
    excludes: tuple[str, ...]
    sentence: str
    pairs: bool = False


FINDINGS: Mapping[str, FindingRow] = {
    "answers differ": FindingRow(
        (
            *("lone again", *(f"lone again {i}" for i in range(2, 10))),
            *("pair again", "long again"),
        ),
        (),
        "The same question was answered differently.",
    ),
    "order": FindingRow(
        ("neighbours parted", "neighbours moved", "neighbours joined", "context permuted"),
        ALL,
        "The order of earlier tokens changes the answer.",
    ),
    "length": FindingRow(
        ("equal copies", "doubled pair", "long pair", "doubled context"),
        ALL,
        "Copies of all tokens change the answer, as in no softmax.",
    ),
    "counted once": FindingRow(
        ("once",), HEADS, "Copies of one token change nothing, although scores do.", pairs=True
    ),
    "lone tokens bend": FindingRow(
        ("odd", "additive", "far odd", "far x", "far -x", "far y"),
        HEADS,
        "Lone tokens are not answered by an affine map.",
    ),
    "earlier tokens act": FindingRow(
        (
            *("earlier 1", "earlier opposite", "earlier far"),
            *(f"earlier {c}" for c in ("1e-06", "0.0001", "0.01", "0.1", "100", "10000")),
        ),
        NETWORKS,
        "Tokens before the last change the answer.",
    ),
    "longer contexts act": FindingRow(
        ("earlier two", "earlier many", "earlier others"),
        NETWORKS,
        "Longer contexts change the answer, although one earlier token does not.",
    ),
    "antisymmetry fails": FindingRow(
        ("antisymmetry",),
        (*HEADS, "onelayer"),
        "Opposite scores do not have weights that add up to 1.",
        pairs=True,
    ),
    "copies fail": FindingRow(
        ("copies",), ("head",), "Copies of a token do not act as in one head.", pairs=True
    ),
    "odds fail": FindingRow(
        ("odds",), ("head",), "Scores do not change the odds as in one head.", pairs=True
    ),
    "homogeneous": FindingRow(
        ("degree at x",),
        (*NETWORKS, "onelayer"),
        "Answers grow as the square or the cube of the token.",
    ),
    "curved": FindingRow(("curves",), ("relu",), "Answers curve evenly near two tokens."),
    "residual": FindingRow(("residual",), (), "The last token is added to the answer: a residual."),
    "bias": FindingRow(("bias",), (), "Scores have a bias."),
}


@dataclass(frozen=True, slots=True)
class LabelRow:
    """A line of the decision table: the first whose facts are all there, and none that bars it.

    Args:
        label: what the target looks like.
        facts: what must have been found.
        bars: what must not have been found.
        suggests: kinds of learners worth trying, the likeliest first.
        sentence: what a person reads.
    """

    label: str
    facts: tuple[str, ...]
    suggests: tuple[str, ...]
    sentence: str
    bars: tuple[str, ...] = ()


LABELS: tuple[LabelRow, ...] = (
    LabelRow(
        "not finished", ("unfinished",), (), "The questions ended before the target was recognised."
    ),
    LabelRow(
        "non-deterministic",
        ("answers differ",),
        ("one head under noise",),
        "The target answered the same question differently when asked again.",
    ),
    LabelRow("labels", ("labels",), ("labels",), "Answers are a few whole numbers: labels."),
    LabelRow(
        "hidden",
        ("hidden",),
        ("one head",),
        "The declared errors are as large as what answers differ by: nothing can be told.",
    ),
    LabelRow(
        "neighbours",
        ("neighbours",),
        (),
        "Equal tokens side by side count otherwise than apart: no softmax without positions does.",
    ),
    LabelRow(
        "positions",
        ("order",),
        (),
        "The order of earlier tokens changes the answer: there are positions.",
    ),
    LabelRow(
        "length or repeats",
        ("length",),
        (),
        "Repeating all tokens changes the answer: length or repeats count, as in no softmax.",
    ),
    LabelRow(
        "length or repeats",
        ("counted once",),
        (),
        "Copies of a token change nothing although scores do: repeats are counted once.",
    ),
    LabelRow(
        "length or repeats",
        ("longer contexts act", "lone tokens bend"),
        ("one-layer",),
        "Long contexts change the answer although one earlier token does not.",
        bars=("earlier tokens act",),
    ),
    LabelRow(
        "length or repeats",
        ("longer contexts act",),
        ("several heads",),
        "Long contexts change the answer although one earlier token does not.",
        bars=("earlier tokens act",),
    ),
    LabelRow(
        "constant",
        ("constant",),
        ("one head",),
        "Every answer is the same: a constant.",
        bars=("lone tokens bend", "context acts"),
    ),
    LabelRow(
        "affine",
        (),
        ("one head",),
        "The answer is an affine map of the last token; tokens before it do not act.",
        bars=("lone tokens bend", "context acts"),
    ),
    LabelRow(
        "max-like",
        ("saturated",),
        ("one head", "several heads"),
        "All weight lies on one token at every scale: a maximum, or scores sharper than the ladder"
        " reaches.",
        bars=("lone tokens bend", "scores show"),
    ),
    LabelRow(
        "saturated",
        ("saturated",),
        ("one head", "several heads"),
        "All weight lies on one token wherever pairs were asked.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "other attention",
        ("antisymmetry fails",),
        (),
        "Opposite scores do not have weights that add up to 1: scores are not those of a softmax.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "several heads",
        ("copies fail",),
        ("several heads", "one head"),
        "Lone tokens are affine, and copies of a token do not act as in one head: several heads.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "several heads",
        ("odds fail",),
        ("several heads", "one head"),
        "Lone tokens are affine, and scores do not act as in one head: several heads.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "scores not seen",
        ("even weights",),
        ("one head", "several heads"),
        "Lone tokens are affine, and all tokens weigh the same at every scale.",
        bars=("lone tokens bend", "scores show"),
    ),
    LabelRow(
        "one head",
        ("copies and odds hold",),
        ("one head", "several heads"),
        "Lone tokens are affine, and copies and odds act as in one head.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "heads",
        (),
        ("one head", "several heads"),
        "Lone tokens are affine and earlier tokens act; whether as in one head was not seen.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "norm",
        ("norm", "unmoved by a shift"),
        (),
        "Far out the answer follows the direction of the token less its mean: a LayerNorm.",
        bars=("straight",),
    ),
    LabelRow(
        "norm",
        ("norm", "far line"),
        (),
        "Far out the answer follows the direction of the token, and the token itself is added: a"
        " norm beside a residual.",
        bars=("straight",),
    ),
    LabelRow(
        "norm",
        ("norm",),
        (),
        "Far out the answer follows the direction of the token, not its length: there is a norm.",
        bars=("straight",),
    ),
    LabelRow(
        "average",
        ("context acts", "average"),
        ("one-layer",),
        "The answer is an average of functions of the tokens.",
        bars=("straight",),
    ),
    LabelRow(
        "homogeneous",
        ("homogeneous",),
        (),
        "Answers grow as the square or the cube of the token: no network with biases.",
    ),
    LabelRow(
        "one-layer smooth",
        ("context acts", "curved"),
        ("one-layer",),
        "Lone tokens curve and earlier tokens act: attention before a smooth network.",
    ),
    LabelRow(
        "one-layer",
        ("context acts",),
        ("one-layer",),
        "Lone tokens are not affine and earlier tokens act: attention before a network.",
    ),
    LabelRow(
        "gated",
        ("grows",),
        ("smooth", "relu"),
        "Answers of the last token grow faster than it: a gated network.",
        bars=("straight",),
    ),
    LabelRow(
        "saturating",
        ("curved", "levels off"),
        ("smooth",),
        "Answers of the last token curve, and do not grow with it.",
    ),
    LabelRow(
        "smooth", ("curved",), ("smooth",), "Answers of the last token curve: a smooth network."
    ),
    LabelRow(
        "relu",
        (),
        ("relu", "smooth"),
        "Only the last token acts, by pieces that are straight: a ReLU network.",
    ),
)

# Which class of `CLASSES` a kind of learner belongs to: once excluded it is not suggested.
KINDS: Mapping[str, tuple[str, ...]] = {
    "labels": (),
    "one head under noise": ("head",),
    "one head": ("head",),
    "several heads": ("multihead",),
    "relu": ("relu",),
    "smooth": ("smooth",),
    "one-layer": ("onelayer",),
}

# Learners of a kind, by what is declared or seen of answers and tokens.
LEARNERS_BY_KIND: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "labels": dict.fromkeys(("plain", "cast", "errors", "ball"), ("labels",)),
    "one head under noise": dict.fromkeys(("plain", "cast", "errors", "ball"), ("noisy",)),
    "one head": {
        "plain": ("low-rank",),
        "cast": ("balanced",),
        "errors": ("noisy",),
        "ball": ("noisy",),
    },
    "several heads": {
        "plain": ("several-heads",),
        "cast": ("several-heads",),
        "errors": (),
        "ball": ("heads-in-ball",),
    },
    "relu": {
        "plain": ("network",),
        "cast": ("noisy-network",),
        "errors": ("noisy-network",),
        "ball": ("network-in-ball",),
    },
    "smooth": {
        "plain": ("smooth-network",),
        "cast": ("smooth-network",),
        "errors": (),
        "ball": (),
    },
    "one-layer": {"plain": ("one-layer",), "cast": ("one-layer",), "errors": (), "ball": ()},
}


def find_label(facts: set[str]) -> LabelRow:
    """The first line of the decision table that fits."""
    return next(row for row in LABELS if facts.issuperset(row.facts) and facts.isdisjoint(row.bars))
