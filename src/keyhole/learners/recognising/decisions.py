"""The decision table: what the target looks like, which learners to try, what to try after that."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from keyhole._arrays import EPS
from keyhole.oracles import Imperfection


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


# What a sum of heads and one head have in common.
_HEADS = "Single tokens are answered by an affine map, as attention heads answer them, and "

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
        "The declared errors are as large as the differences between answers: nothing can be told.",
    ),
    LabelRow(
        "neighbours",
        ("neighbours",),
        ("wired",),
        "Equal tokens count differently side by side than apart; without positions no softmax does"
        " that.",
    ),
    LabelRow(
        "positions",
        ("order", "lone tokens bend"),
        ("wired", "rotary block"),
        "Order matters and lone tokens bend: a layer behind a norm with positions, or a block.",
    ),
    LabelRow(
        "positions",
        ("order",),
        ("wired",),
        "The order of the earlier tokens changes the answer: the target tells positions apart.",
    ),
    LabelRow(
        "length or repeats",
        ("length",),
        ("wired",),
        "Repeating all tokens changes the answer: length or repeats matter, as they do"
        " in no softmax.",
    ),
    LabelRow(
        "length or repeats",
        ("counted once",),
        (),
        "Copies of a token change nothing although other tokens do: repeats are counted once.",
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
        ("several heads", "one head"),
        "Long contexts change the answer although one earlier token does not.",
        bars=("earlier tokens act",),
    ),
    LabelRow(
        "constant",
        ("constant",),
        ("one head", "relu"),
        "Every answer is the same: a constant.",
        bars=("lone tokens bend", "context acts"),
    ),
    LabelRow(
        "affine",
        (),
        ("one head", "relu"),
        "The answer is an affine map of the last token; tokens before it do not act.",
        bars=("lone tokens bend", "context acts"),
    ),
    LabelRow(
        "max-like",
        ("saturated",),
        ("one head", "several heads"),
        "One token takes all the attention however short the tokens are: a maximum, or very sharp"
        " scores.",
        bars=("lone tokens bend", "scores show"),
    ),
    LabelRow(
        "saturated",
        ("saturated",),
        ("one head", "several heads"),
        "In every pair of tokens that was asked, one takes all the attention.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "other attention",
        ("antisymmetry fails",),
        ("wired",),
        "Opposite scores should have weights that add up to 1, and do not: this is no softmax.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "several heads",
        ("copies fail",),
        ("several heads", "one head"),
        _HEADS + "copies of a token do not weigh as in one softmax: several heads.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "several heads",
        ("odds fail",),
        ("several heads", "one head"),
        _HEADS + "scores do not weigh tokens as in one softmax: several heads.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "scores not seen",
        ("even weights",),
        ("one head", "several heads"),
        _HEADS + "all tokens weigh the same, however long they are: no scores are seen.",
        bars=("lone tokens bend", "scores show"),
    ),
    LabelRow(
        "one head",
        ("copies and odds hold",),
        ("one head", "several heads"),
        _HEADS + "tokens weigh as in one softmax: one attention head.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "heads",
        (),
        ("one head", "several heads"),
        _HEADS + "earlier tokens matter: attention; of one head or of several was not seen.",
        bars=("lone tokens bend",),
    ),
    LabelRow(
        "third order",
        ("context acts", "homogeneous"),
        ("third order",),
        "Answers grow as the square of the token and earlier tokens matter: attention"
        " of third order.",
        bars=("opposites differ", "no square", "no product", "no single unit"),
    ),
    LabelRow(
        "norm",
        ("norm", "unmoved by a shift"),
        ("wired",),
        "Long tokens are answered by their direction alone, whatever their mean: a LayerNorm.",
        bars=("straight",),
    ),
    LabelRow(
        "norm",
        ("norm", "far line"),
        ("wired", "block"),
        "Long tokens are answered by their direction, and the token itself is added: a norm beside"
        " a residual.",
        bars=("straight",),
    ),
    LabelRow(
        "norm",
        ("norm",),
        ("wired", "block"),
        "Long tokens are answered by their direction alone, not by their length: there is a norm.",
        bars=("straight",),
    ),
    LabelRow(
        "average",
        ("context acts", "average"),
        ("one-layer",),
        "The answer is an average, over the tokens, of a function of each.",
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
        ("one-layer smooth",),
        "Single tokens are answered by a curved function and earlier tokens matter:"
        " attention before"
        " a smooth network.",
    ),
    LabelRow(
        "one-layer",
        ("context acts",),
        ("one-layer",),
        "Single tokens are not answered by an affine map, and earlier tokens matter:"
        " attention before"
        " a network.",
    ),
    LabelRow(
        "gated",
        ("grows",),
        ("gated",),
        "Only the last token matters, and answers grow faster than it does: a gated network.",
        bars=("straight",),
    ),
    LabelRow(
        "saturating",
        ("curved", "levels off"),
        ("smooth",),
        "Only the last token matters; answers curve and level off.",
    ),
    LabelRow(
        "smooth",
        ("curved",),
        ("smooth",),
        "Only the last token matters, and answers curve: a smooth network.",
    ),
    LabelRow(
        "relu",
        (),
        ("relu", "smooth"),
        "Only the last token matters, and answers are straight between bends: a ReLU network.",
    ),
)

_TELL_POSITIONS = (
    "Say how the layer is wired, if you know it (--norm, --positions), or ask it without positions."
)
# What to try next where nothing is suggested, or nothing that was suggested succeeded.
ADVICE: Mapping[str, str] = {
    "not finished": "Give a larger budget.",
    "non-deterministic": "If that is noise, declare its size (--noise); if the target drops entries"
    " as in training, switch that off.",
    "labels": "Declare labels (--labels).",
    "hidden": "Have the target answer with more digits.",
    "neighbours": _TELL_POSITIONS,
    "positions": _TELL_POSITIONS,
    "length or repeats": "Look for a window, a mask or a sum in the target: none is learned.",
    "constant": "Ask tokens at which the answer changes, if there are any (--tokens).",
    "affine": "Ask tokens before the last that act, if there are any (--tokens).",
    "max-like": "Keep tokens short, so that weights are not all on one (--token-bound).",
    "saturated": "Keep tokens short, so that weights are not all on one (--token-bound).",
    "other attention": "Look for scores that are capped, normalised or of higher order: only plain"
    " softmax"
    " scores are learned.",
    "several heads": "Ask all outputs of the layer at once, or give the learner more room by naming"
    " it (--learner several-heads).",
    "scores not seen": "Ask longer tokens, if the target takes them.",
    "one head": "Look for what long sequences, repeated tokens or long tokens do in the target.",
    "heads": "Name a learner (--learner low-rank, several-heads).",
    "third order": "Give the learner more room by naming it (--learner third-order): it learns one"
    " unit of third order.",
    "norm": "Name the norm (--norm rms or layer, --positions), or ask the layer behind it; of whole"
    " blocks those with LayerNorms and smooth units, and Llama's with RMSNorm, are learned.",
    "average": "Of such targets only softmax attention before a ReLU network is learned.",
    "homogeneous": "Only attention by softmax, one unit of third order, and networks with one"
    " hidden layer are learned.",
    "one-layer smooth": "Give the learner more room by naming it (--learner smooth-layer); several"
    " heads before a smooth network with biases, and before gated units, are not learned.",
    "one-layer": "Give the learner more room by naming it (--learner one-layer); deeper networks,"
    " and several heads before one with biases, are not learned.",
    "gated": "Give the learner more room by naming it (--learner gated-network).",
    "saturating": "Of smooth units GELU and SiLU are learned, others are not.",
    "smooth": "Give the learner more room by naming it (--learner smooth-network); of smooth units"
    " GELU and SiLU are learned.",
    "relu": "Give the learner more room by naming it (--learner network); deeper networks are not"
    " learned.",
}

# Which class of `CLASSES` a kind of learner belongs to: once excluded it is not suggested.
KINDS: Mapping[str, tuple[str, ...]] = {
    "labels": (),
    "one head under noise": ("head",),
    "one head": ("head",),
    "several heads": ("multihead",),
    "relu": ("relu",),
    "smooth": ("smooth",),
    "gated": ("gated",),
    "third order": ("tensor",),
    "one-layer": ("onelayer",),
    "one-layer smooth": ("onelayer",),
    "wired": ("wired",),
    "block": ("block",),
    "rotary block": ("block",),
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
        **dict.fromkeys(("plain", "cast", "decimals"), ("several-heads",)),
        "errors": (),
        "errors in ball": ("heads-in-ball",),
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
    "gated": {"plain": ("gated-network",), "cast": (), "errors": (), "ball": ()},
    "third order": {
        "plain": ("third-order",),
        "cast": ("third-order",),
        "errors": (),
        "ball": (),
    },
    "one-layer": {
        "plain": ("one-layer", "several-heads-layer"),
        "cast": ("one-layer",),
        "errors": (),
        "ball": (),
    },
    "one-layer smooth": {
        "plain": ("smooth-layer", "several-heads-layer"),
        "cast": (),
        "errors": (),
        "ball": (),
    },
    "wired": {"plain": ("wired-layer",), "cast": ("wired-layer",), "errors": (), "ball": ()},
    "block": {"plain": ("pre-norm-block", "post-norm-block"), "cast": (), "errors": (), "ball": ()},
    "rotary block": {"plain": ("gated-block",), "cast": (), "errors": (), "ball": ()},
}

_WIDE = 128  # outputs from which on a target is a whole layer first


def find_label(facts: set[str]) -> LabelRow:
    """The first line of the decision table that fits."""
    return next(row for row in LABELS if facts.issuperset(row.facts) and facts.isdisjoint(row.bars))


def choose_terms(stated: Imperfection) -> str:
    """The column of `LEARNERS_BY_KIND` for what is declared or seen of answers and tokens."""
    if stated.token_bound is not None:
        return "errors in ball" if stated.absolute else "ball"
    if stated.absolute:
        return "errors" if stated.noise != 0 else "decimals"
    return "plain" if stated.roundoff <= EPS else "cast"


def list_learners(
    kinds: tuple[str, ...], terms: str, outputs: int, excluded: Collection[str] = ()
) -> tuple[str, ...]:
    """Learners of the kinds that are left, in the order in which they are tried."""
    names: list[str] = []
    for kind in kinds:
        if not any(name in excluded for name in KINDS[kind]):
            able = LEARNERS_BY_KIND[kind]
            # A bound on tokens matters beside errors only where a learner says so.
            names += able[terms if terms in able else "errors"]
    # Both read several outputs at once: sums of heads with fewer questions, layers through rounding
    # and where many heads of low rank fill the outputs.
    if "several-heads" in names and outputs > 1 and terms != "decimals":
        after = terms == "plain" and outputs < _WIDE
        names.insert(names.index("several-heads") + after, "layer")
    return tuple(dict.fromkeys(names))
