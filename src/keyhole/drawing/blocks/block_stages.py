"""What each stage of a recovery of a Transformer block finds, and how far a recovery came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from keyhole.drawing.describing import Row

GLANCED, SETTLED = 0.3, 0.85  # how dark a part is that is seen, and one known to the last digit
PARTS = ("norm1", "scores", "values", "norm2", "units")


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a recovery.

    Args:
        name: what it is called.
        phases: of questions, that belong to it.
        fills: how well it knows each part of the block.
    """

    name: str
    phases: tuple[str, ...]
    fills: Mapping[str, float] = field(default_factory=dict[str, float])


_NETWORK = Stage("units of the network", ("slices", "reads"), {"units": GLANCED})
_SCORES = Stage("scores of the heads", ("scores",), {"scores": GLANCED})
_SEQUENCES = {"scores": SETTLED, "values": SETTLED}
_FRESH = Stage("fresh questions", ("verify",))
# By whether norms stand before or behind attention and network, and whether this is gated.
STAGES: Mapping[str, tuple[Stage, ...]] = {
    "pre": (
        Stage("value maps of the heads", ("values",), {"values": GLANCED}),
        _NETWORK,
        Stage("lone tokens", ("lone",), {"units": SETTLED, "norm2": SETTLED}),
        _SCORES,
        Stage("sequences", ("sequences",), {**_SEQUENCES, "norm1": SETTLED}),
        _FRESH,
    ),
    "post": (
        Stage("the last norm", ("norm",), {"norm2": SETTLED}),
        Stage("value maps of the heads", ("values",), {"values": GLANCED}),
        _NETWORK,
        Stage("lone tokens", ("lone",), {"units": SETTLED, "norm1": SETTLED}),
        _SCORES,
        Stage("sequences", ("sequences",), _SEQUENCES),
        _FRESH,
    ),
    "gated": (
        Stage("zero tokens", ("zeros",)),
        _NETWORK,
        Stage("lone tokens", ("lone",), {"units": SETTLED, "norm2": SETTLED}),
        Stage("heads told apart", ("split",), {"values": SETTLED}),
        Stage("scores of the heads", ("keys", "queries"), {**_SEQUENCES, "norm1": SETTLED}),
        _FRESH,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgress:
    """How far a recovery of a block came.

    Args:
        asked: questions by phase, in the order in which phases began.
        verified: whether fresh questions agreed.
        ended: whether the last stage that was asked is the last that was wanted.
        heads: how many there are, where that was found.
        units: the same of the network.
        limit: the fewest questions that can do.
        errors: how far parts are from the truth, where that is known.
    """

    asked: Mapping[str, int]
    verified: bool
    ended: bool = False
    heads: int | None = None
    units: int | None = None
    limit: int | None = None
    errors: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def style(self) -> str:
        """Pre or post; only a last norm is asked for by itself."""
        return "post" if "norm" in self.asked else "pre"

    @property
    def road(self) -> str:
        """Which stages there are; zero tokens are asked where a gated network is looked for."""
        return "gated" if "zeros" in self.asked else self.style

    @property
    def learning(self) -> int:
        """Questions to learn, those of the verification apart."""
        return sum(self.asked.values()) - self.asked.get("verify", 0)

    @property
    def finding(self) -> str:
        """The picture in a sentence."""
        limit = "" if self.limit is None else f"; the limit is {self.limit:,}"
        if self.verified:
            return f"{self.learning:,} questions fill in the block, stage by stage{limit}"
        steps = self.list_steps()
        last = steps[-1].name if steps else "nothing"
        reach = "up to" if self.ended else "as far as"
        return f"{self.learning:,} questions fill in the block {reach}: {last}{limit}"

    def list_steps(self) -> list[Step]:
        """The stages that were asked for, and what was known after each."""
        return [*self._trace_steps()]

    def _trace_steps(self) -> Iterator[Step]:
        stages = [(stage, self._count_questions(stage)) for stage in STAGES[self.road]]
        last = max((k for k, (_, asked) in enumerate(stages) if asked), default=-1)
        total, known = 0, dict[str, float]()
        if others := sum(self.asked.values()) - sum(asked for _, asked in stages):
            total += others
            yield Step("first questions", others, total, {}, done=True)
        for k, (stage, asked) in enumerate(stages):
            # A stage that another follows has found what it looked for, maybe without questions.
            done = self.verified or self.ended or k < last
            known = {**known, **stage.fills} if done else known
            total += asked
            if asked:
                yield Step(stage.name, asked, total, known, done=done)

    def _count_questions(self, stage: Stage) -> int:
        return sum(self.asked.get(phase, 0) for phase in stage.phases)


@dataclass(frozen=True, slots=True)
class Step:
    """A stage as it went.

    Args:
        name: of the stage.
        asked: questions of it.
        total: questions up to its end.
        known: how well each part was known then.
        done: whether it found what it looked for.
    """

    name: str
    asked: int
    total: int
    known: Mapping[str, float]
    done: bool


def tabulate_steps(steps: list[Step]) -> Iterator[Row]:
    """Stages as rows of numbers: shares of parts that are known are those of the drawing."""
    yield "stage", "questions", "questions so far", *PARTS
    for step in steps:
        yield step.name, step.asked, step.total, *(step.known.get(part, 0.0) for part in PARTS)
