"""Every learner by name: where it stands, which hints it takes, what it bears of answers.

A room is imported when its learner is made, so that a command loads what it uses. A new learner is
one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyhole._arrays import EPS, Matrix
from keyhole._places import import_place
from keyhole.errors import InvalidInput
from keyhole.learners.base import Learner
from keyhole.models import Wiring
from keyhole.oracles import Imperfection


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Hints:
    """What a person knows of a target beforehand.

    Args:
        rank: the rank of W.
        grid: W has entries that are whole multiples of this.
        tokens: the only vectors that may be asked, one per row.
        repeats: how often every question is asked where answers carry random errors.
        norm_bound: largest Frobenius norm of W.
        margin: least size of an entry of the read-out.
        bits: binary digits of W to learn from labels.
        heads: number of heads.
        bases: of the subspaces heads live in, one per head.
        wiring: what stands before the heads of a layer, and how they tell positions apart.
    """

    rank: int | None = None
    grid: float | None = None
    tokens: Matrix | None = None
    repeats: int = 1
    norm_bound: float | None = None
    margin: float | None = None
    bits: int = 40
    heads: int | None = None
    bases: tuple[Matrix, ...] | None = None
    wiring: Wiring | None = None


NO_HINTS = Hints()
ROUNDING = "rounding"
ERRORS = "absolute errors"
BOUNDED = "rounded decimals"
BALL = "a bound on tokens"
LABELS = "labels only"
_NOISE = (ROUNDING, ERRORS, BOUNDED, BALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A learner that is made when it is asked for.

    Args:
        place: its module below `keyhole.learners`, and its class.
        finds: the class of models that it learns, as `recognising.table.CLASSES` names it.
        bears: imperfections of answers or tokens that it allows for.
        takes: hints that it is made from, in the order of its options.
        needs: those of them that must be given.
    """

    place: str
    finds: str
    bears: tuple[str, ...] = (ROUNDING,)
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def load_class(self) -> type[Learner]:
        """The class, its room imported now."""
        return import_place(f"keyhole.learners.{self.place}")

    def make(self, name: str, hints: Hints) -> Learner:
        """The learner with what the hints say.

        Raises:
            InvalidInput: a hint that it needs is missing.
        """
        for hint in self.needs:
            _require_hint(getattr(hints, hint), hint, name)
        return self.load_class()(*(getattr(hints, hint) for hint in self.takes))


def _require_hint(value: object, hint: str, learner: str) -> None:
    if value is None:
        python = f"hints=keyhole.Hints({hint}=...)"
        option = hint.replace("_", "-")
        raise InvalidInput(f"the learner {learner} needs --{option}, in Python {python}.")


LEARNERS: Mapping[str, Entry] = {
    "exact": Entry("one_head.exact:Exact", "head"),
    "low-rank": Entry("one_head.low_rank:LowRank", "head", takes=("rank",)),
    "nystrom": Entry("one_head.nystrom:Nystrom", "head", takes=("rank",), needs=("rank",)),
    "nuclear-norm": Entry("one_head.nuclear:NuclearNorm", "head", takes=("rank",), needs=("rank",)),
    "grid": Entry("one_head.grid:Grid", "head", takes=("grid",), needs=("grid",)),
    "restricted": Entry(
        "vocabulary.learner:Restricted",
        "head",
        (ROUNDING, BALL),
        takes=("tokens",),
        needs=("tokens",),
    ),
    "restricted-heads": Entry(
        "heads_in_vocabulary.learner:RestrictedHeads",
        "multihead",
        (BALL,),
        takes=("tokens",),
        needs=("tokens",),
    ),
    "noisy": Entry("noise.learner:UnderNoise", "head", _NOISE, takes=("rank", "repeats")),
    "balanced": Entry("casts.learner:Balanced", "head"),
    "labels": Entry("labels.learner:Labels", "head", (*_NOISE, LABELS), takes=("bits",)),
    "several-heads": Entry("several_heads.learner:SeveralHeads", "multihead", (ROUNDING, BOUNDED)),
    "heads-in-ball": Entry("heads_in_ball.learner:HeadsInBall", "multihead", _NOISE),
    "layer": Entry("layer.learner:WholeLayer", "layer"),
    "wired-layer": Entry(
        "positions.learner:WiredLayer", "wired", (ROUNDING, ERRORS, BOUNDED), takes=("wiring",)
    ),
    "pre-norm-block": Entry("blocks.learner:PreNormBlock", "block", (), takes=("wiring",)),
    "gated-block": Entry("blocks.gated.learner:GatedBlock", "block", (), takes=("wiring",)),
    "post-norm-block": Entry("blocks.post_norm.learner:PostNormBlock", "block", takes=("wiring",)),
    "orthogonal": Entry(
        "published.orthogonal:Orthogonal", "multihead", takes=("bases",), needs=("bases",)
    ),
    "repetition": Entry(
        "published.repetition:Repetition", "multihead", takes=("heads",), needs=("heads",)
    ),
    "network": Entry("networks.learner:Network", "relu", bears=()),
    "network-in-ball": Entry("network_in_ball.learner:NetworkInBall", "relu", (BALL,)),
    "noisy-network": Entry("network_under_noise.learner:NetworkUnderNoise", "relu", _NOISE),
    "smooth-network": Entry("smooth_network.learner:SmoothNetwork", "smooth"),
    "gated-network": Entry("gated_network.learner:GatedNetwork", "gated"),
    "third-order": Entry("third_order.learner:ThirdOrder", "tensor"),
    "one-layer": Entry("one_layer.learner:OneLayerTransformer", "onelayer"),
    "smooth-layer": Entry("one_layer.smooth_layer:SmoothLayer", "onelayer"),
    "several-heads-layer": Entry("one_layer.several_heads_layer:SeveralHeadsLayer", "onelayer"),
    "antisymmetric": Entry("one_layer.antisymmetric:Antisymmetric", "onelayer"),
    "tolerant": Entry(
        "tolerance.learner:Tolerant",
        "head",
        _NOISE,
        takes=("norm_bound", "margin"),
        needs=("norm_bound", "margin"),
    ),
}


def make_learner(name: str, hints: Hints = NO_HINTS) -> Learner:
    """The learner of that name, with what the hints say."""
    return LEARNERS[name].make(name, hints)


def find_entry(learner: Learner) -> Entry | None:
    """The line of a learner's class, None where it is none of these."""
    kind = type(learner)
    places = (entry for entry in LEARNERS.values() if _is_place(entry.place, kind))
    return next(places, None)


def _is_place(place: str, kind: type) -> bool:
    return f"keyhole.learners.{place}" == f"{kind.__module__}:{kind.__qualname__}"


def list_imperfections(stated: Imperfection) -> set[str]:
    """What answers or tokens lack, in words."""
    lacks = {
        ROUNDING: not stated.roundoff <= EPS,
        ERRORS: stated.noise != 0,
        BOUNDED: stated.tolerance > 0,
        LABELS: stated.levels is not None,
        BALL: stated.token_bound is not None,
    }
    return {name for name, yes in lacks.items() if yes}
