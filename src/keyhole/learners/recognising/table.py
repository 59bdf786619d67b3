"""What each finding excludes, what it suggests, and the sentence a person reads: one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADS = ("head", "multihead", "layer")
NETWORKS = ("relu", "smooth", "gated")
ALL = (*HEADS, *NETWORKS, "onelayer", "tensor")

CLASSES: Mapping[str, str] = {
    "head": "one softmax head",
    "multihead": "a sum of softmax heads",
    "layer": "a layer of heads with an output projection",
    "wired": "an attention layer behind a norm or with positions",
    "block": "a whole Transformer block",
    "relu": "a network of the last token with one hidden ReLU layer",
    "smooth": "a network of the last token with one hidden smooth layer",
    "gated": "a network of the last token with one hidden gated layer",
    "onelayer": "attention before a network",
    "tensor": "one unit of third order",
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
        "Repeating all tokens changes the answer, as in no softmax.",
    ),
    "counted once": FindingRow(
        ("once",),
        HEADS,
        "Copies of one token change nothing, although other tokens do.",
        pairs=True,
    ),
    "lone tokens bend": FindingRow(
        ("odd", "additive", "far odd", "far x", "far -x", "far y"),
        HEADS,
        "Single tokens are not answered by an affine map.",
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
        ("copies",), ("head",), "Copies of a token do not weigh as in one softmax head.", pairs=True
    ),
    "odds fail": FindingRow(
        ("odds",),
        ("head",),
        "A score twice as large does not square the odds, as in one softmax head.",
        pairs=True,
    ),
    "homogeneous": FindingRow(
        ("degree at x",),
        ("relu", "smooth"),
        "Answers grow as the square or the cube of the token.",
    ),
    "opposites differ": FindingRow(
        ("even", "far even"), ("tensor",), "A token and its opposite are answered differently."
    ),
    "no square": FindingRow(
        ("square", "square at y"), ("tensor",), "Answers do not grow as the square of the token."
    ),
    "no product": FindingRow(
        ("rank two",), ("tensor",), "Single tokens are answered by no product of two linear forms."
    ),
    "no single unit": FindingRow(
        ("zero tokens",), ("tensor",), "Zero tokens do not weigh as in one unit of third order."
    ),
    "curved": FindingRow(("curves",), ("relu",), "Answers curve evenly near two tokens."),
    "residual": FindingRow(("residual",), (), "The last token is added to the answer: a residual."),
    "bias": FindingRow(("bias",), (), "Scores have a bias."),
}
