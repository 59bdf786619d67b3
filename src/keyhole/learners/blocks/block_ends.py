"""How recoveries of blocks end: stages that did not succeed, and what is said of those that did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from keyhole._arrays import EPS, Array, PerSequence, Sequences
from keyhole.claims import Verdict
from keyhole.drawing.blocks.block_sheets import draw_block_stages
from keyhole.drawing.blocks.block_stages import BlockProgress
from keyhole.drawing.html import Markup
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify.blocks import block_freedom, gated_block_freedom, post_block_freedom
from keyhole.learners.base import Recovery, Status
from keyhole.learners.blocks.extreme_scores import draw_extreme_sequences
from keyhole.learners.verifying.ending import (
    BLOCK,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_gap,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Ruler, examine_model
from keyhole.models import Gated, TransformerBlock
from keyhole.oracles import Counted
from keyhole.oracles.base import read_imperfection

_HELD = 1e8  # slopes of lone answers by what a network is given: 0.8 GB, held three times at most
_TOO_LARGE = (
    f"A fit of all weights would hold more than {_HELD:.0e} slopes at once, which is not attempted."
)
NO_RESIDUAL = "A huge token is not given back with little added, as by a norm beside a residual."
UNEVEN = "Too few weights of tokens could be read: scores are too large for tokens that are asked."
# Phases of questions by the stage of the learners that they belong to.
STAGE_PHASES: Mapping[str, tuple[str, ...]] = {
    "norm": ("norm",),
    "values": ("values",),
    "network": ("slices", "reads", "lone"),
}
_CLOSE = 1e-8  # of the answers, what the largest scores may leave
_CAPPED = (
    "Where scores are as large as they can be answers differ, although they agree elsewhere: scores"
    " are capped, or weights are not those of a softmax."
)
_COARSE = (
    "Answers are declared to be too coarse for this learner: huge tokens and second differences"
    " take nearly all their digits."
)
_NOT_EXAMINED = "No fresh questions were asked of it."
_UNSOLVED = "A system of equations had no solution."


class EndedStage(Exception):
    """A stage after which a recovery ends, successful or not.

    Args:
        ending: what is said of it.
    """

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.detail)
        self.ending = ending


class Unfound(EndedStage):
    """A stage that did not succeed.

    Args:
        status: what is said of it.
        detail: more of that.
    """

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(Ending(status=status, detail=detail))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True, repr=False)
class BlockRecovery(Recovery[TransformerBlock]):
    """A recovery of a block, which draws how it filled in.

    Args:
        parts: what the stages found, by the names of a block's file; of a block that was not
            verified these are all there is.
    """

    parts: Mapping[str, Array] = field(default_factory=dict[str, Array])

    @property
    def picture(self) -> Markup:
        """The block, stage by stage."""
        freedom, model = self.degrees_of_freedom, self.model
        progress = BlockProgress(
            asked={name: entry.sequences for name, entry in self.ledger.phases.items()},
            verified=self.verdict.verified,
            ended=self.status is Status.STAGE_FOUND,
            heads=None if model is None else model.attention.heads,
            units=None if model is None else model.network.hidden,
            limit=None if model is None or freedom is None else -(-freedom // model.outputs),
        )
        return draw_block_stages(progress)


@dataclass(slots=True)
class BlockReport:
    """What a recovery of a block says in the end.

    Args:
        oracle: the block.
        tried: what was tried, and what was told of it.
        until: the stage after which the recovery ends; the last when None.
        found: what the stages found so far, in words.
        parts: the same as arrays, by the names of a block's file.
        allowance: how far answers may be off where errors of theirs are declared.
    """

    oracle: Counted
    tried: str
    until: str | None = None
    found: list[str] = field(default_factory=list[str])
    parts: dict[str, Array] = field(default_factory=dict[str, Array])
    allowance: Callable[[Sequences], PerSequence] | None = None

    def keep_stage(self, stage: str, words: str, **parts: Array) -> None:
        """Keep what a stage found; `_` in names of parts stands for a dot, once.

        Raises:
            EndedStage: nothing beyond it was asked for.
        """
        self.found.append(words)
        self.parts |= {name.replace("_", ".", 1): part for name, part in parts.items()}
        if stage == self.until:
            raise EndedStage(Ending(status=Status.STAGE_FOUND, detail=_NOT_EXAMINED))

    def recover(
        self, measure: Callable[[], TransformerBlock], rng: np.random.Generator
    ) -> Recovery[TransformerBlock]:
        """What the stages make of a block: every way to stop ends in a Recovery."""
        try:
            model = measure()
        except BudgetSpent:
            return self._conclude(SPENT)
        except EndedStage as ended:
            return self._conclude(ended.ending)
        except np.linalg.LinAlgError:
            return self._conclude(Ending(status=Status.UNITS_UNSEPARATED, detail=_UNSOLVED))
        return self._judge(model, rng)

    def _judge(
        self, model: TransformerBlock, rng: np.random.Generator
    ) -> Recovery[TransformerBlock]:
        """The end of a recovery whose stages all succeeded: fresh questions decide."""
        try:
            with self.oracle.phase("verify"):
                if not self._bears_extremes(model, rng):
                    ending = Ending(status=Status.BLOCK_DISAGREES, detail=_CAPPED)
                    return self._conclude(ending, model)
                ruler = Ruler(allowance=self.allowance)
                seen = examine_model(self.oracle, model, ruler=ruler, rng=rng)
        except BudgetSpent:
            return self._conclude(SPENT, model)

        def refuse() -> Ending:
            words = describe_gap(seen.worst)
            return resolve_doubt(self.oracle, Doubt(Status.BLOCK_DISAGREES, seen.worst, words))

        return self._conclude(settle(self.oracle, seen, lines=BLOCK, refuse=refuse), model)

    def _bears_extremes(self, model: TransformerBlock, rng: np.random.Generator) -> bool:
        """Whether answers agree where scores are largest, as far as they have a largest value."""
        if model.style == "post":
            return True
        X = draw_extreme_sequences(model, rng)
        y = self.oracle.ask(X)
        return bool(np.abs(y - model(X)).max() <= _CLOSE * np.abs(y).max())

    def _conclude(
        self, ending: Ending, model: TransformerBlock | None = None
    ) -> Recovery[TransformerBlock]:
        """The recovery, with what was found so far."""
        found = conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=self._explain(),
                determined=_describe_determined(model, ending.verdict, self.parts),
                degrees_of_freedom=None if model is None else _count_freedom(model),
                rank=None if model is None else model.attention.rank,
            ),
        )
        held = {part.name: getattr(found, part.name) for part in fields(found)}
        return BlockRecovery(**held, parts=dict(self.parts))

    def _explain(self) -> str:
        words = self.tried
        return f"{words} Found: {', '.join(self.found)}." if self.found else words


def check_room(oracle: Counted, narrowest: int, longest: int) -> None:
    """Raise `Unfound` unless answers and lengths are those of a block."""
    lengths = read_imperfection(oracle).lengths
    if oracle.outputs is None:
        # Many targets tell how many numbers they answer with their first answer alone.
        with oracle.phase("recognise"):
            oracle.ask(np.ones((1, 1, oracle.width)))
    if oracle.width < narrowest or oracle.outputs != oracle.width:
        raise Unfound(
            Status.BLOCK_DISAGREES,
            f"A block answers as many numbers as a token has, here at least {narrowest}; this"
            " target does not.",
        )
    if lengths is not None and (lengths[0] > 1 or lengths[1] < longest):
        raise Unfound(
            Status.BLOCK_DISAGREES,
            f"Lone tokens and sequences of {longest} tokens must be allowed.",
        )


def check_exactness(oracle: Counted, largest: float = EPS) -> None:
    """Raise `Unfound` where answers are declared to have larger errors than a road bears."""
    stated = read_imperfection(oracle)
    errors = (stated.tolerance, stated.noise, float(stated.levels is not None))
    if stated.roundoff > largest or any(error != 0.0 for error in errors):
        raise Unfound(Status.BLOCK_DISAGREES, _COARSE)


def check_size(points: int, width: int) -> None:
    """Raise `Unfound` where a fit of so many lone answers would not fit in memory."""
    if points * width**2 > _HELD:
        raise Unfound(Status.UNITS_UNSEPARATED, _TOO_LARGE)


def _count_freedom(model: TransformerBlock) -> int:
    """Numbers that the answers of a recovered block determine."""
    heads = model.attention
    sizes = {"heads": heads.heads, "rank": heads.rank, "hidden": model.network.hidden}
    if model.style == "post":
        return post_block_freedom(model.width, **sizes)
    count = gated_block_freedom if isinstance(model.network, Gated) else block_freedom
    return count(model.front.wiring, model.width, **sizes)


def choose_stages(by_phase: Mapping[str, int], until: str | None) -> dict[str, int]:
    """The phases of a plan up to the end of a stage."""
    if until is None:
        return dict(by_phase)
    names = list(by_phase)
    last = max(names.index(name) for name in STAGE_PHASES[until] if name in names)
    return {name: by_phase[name] for name in names[: last + 1]}


def check_stage(until: str | None, stages: tuple[str, ...]) -> None:
    """Raise `InvalidInput` unless a learner has such a stage."""
    if until not in (None, *stages):
        raise InvalidInput(f"a recovery may end after {' or '.join(stages)}; got {until!r}.")


def _describe_determined(
    model: TransformerBlock | None, verdict: Verdict, parts: Mapping[str, Array]
) -> str:
    """What is and is not determined."""
    if model is None and parts:
        return f"Parts of the block were found, which nothing verified: {', '.join(parts)}."
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    if isinstance(model.network, Gated):
        each = "head" if model.attention.groups == model.attention.heads else "group of heads"
        return (
            f"The maps of {model.attention.heads} heads are determined up to order, an invertible"
            f" map of values and a complex number per turned pair, each {each} its own; the"
            f" {model.network.hidden} units up to order and a factor between what gates are"
            " multiplied by and outputs. Gains of the norms are folded in."
        )
    return (
        f"The maps of {model.attention.heads} heads are determined up to order and an invertible"
        " map of values and one of queries and keys, each head its own; the"
        f" {model.network.hidden} units up to order. Gains and shifts of the norms are folded in;"
        " a constant that is equal in all outputs may stand before or behind the second norm."
    )


def describe_units(seen: int | None, most: int) -> str:
    """What was seen of the plain units of a network, and what others would be missed."""
    shown = "did not show how many there are" if seen is None else f"showed {seen} units"
    return (
        f"Second differences {shown}; at this width up to {most} are told apart. Units whose bias"
        " is beyond the sphere do not bend there and are not seen; other activations than GELU,"
        " its tanh form and SiLU bend otherwise."
    )
