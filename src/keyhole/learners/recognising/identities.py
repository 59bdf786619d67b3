"""Which rules are held against which of the first answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector
from keyhole.learners.findings import Witness
from keyhole.learners.recognising.design import AGAIN, BALL, WIDE, name_lone, name_rung
from keyhole.learners.recognising.first_answers import FirstAnswers
from keyhole.learners.recognising.formats import describe_format, is_at_end, see_format
from keyhole.learners.verifying.error_bar import (
    Band,
    Coarseness,
    ErrorBar,
    describe_coarseness,
    measure_error_bar,
)
from keyhole.learners.verifying.rules import Measured, hold_rule
from keyhole.oracles import read_imperfection

_RUNGS = sorted({*WIDE.rungs, *BALL.rungs})
_SHARE_OF_SHAKE = 1.0 / 16.0
# The name of y alone at the scale of pairs, which is asked under another name.
_LONE = "*y"


@dataclass(frozen=True, slots=True)
class Identity:
    """A rule of `RULES` and the questions, by name, that it is held against."""

    rule: str
    questions: tuple[str, ...]


_PAIRS_OF_G = ("*g(2)", "*g(-2)", "*[x;y]", "*g(-1)")
_AROUND = {p: (f"{p}-1v", p, f"{p}+1v", f"{p}+2v") for p in ("x", "y")}

IDENTITIES: Mapping[str, Identity] = {
    **{f"lone {name[2:]}": Identity("repeat", ("x", name)) for name in AGAIN},
    "pair again": Identity("repeat", ("[x;y]", "[x;y] again")),
    "long again": Identity("repeat", ("*Z doubled", "*Z doubled again")),
    "odd": Identity("odd", ("x", "-x", "0")),
    "far odd": Identity("odd", ("far x", "far -x", "0")),
    "additive": Identity("additive", ("x+y", "0", "x", "y")),
    "far x": Identity("proportional", ("far x", "x", "0")),
    "far -x": Identity("proportional", ("far -x", "-x", "0")),
    "far y": Identity("proportional", ("far y", "y", "0")),
    **{f"earlier {c:g}": Identity("earlier tokens", (name_rung(c), name_lone(c))) for c in _RUNGS},
    "earlier far": Identity("earlier tokens", (name_rung(WIDE.far), "far y")),
    "earlier opposite": Identity("earlier tokens", ("[2y-x;y]", "y")),
    "earlier two": Identity("earlier tokens", ("[w;x;y]", "y")),
    "earlier many": Identity("earlier tokens", ("[Z;y]", "y")),
    "earlier others": Identity("earlier tokens", ("[-Z;y]", "y")),
    "equal copies": Identity("equal copies", ("[y;y]", "y")),
    "doubled pair": Identity("doubling", ("*[x;x;y;y]", "*[x;y]")),
    "long pair": Identity("doubling", ("*[x^n;y^n]", "*[x;y]")),
    "doubled context": Identity("doubling", ("*Z doubled", "*Z")),
    "neighbours parted": Identity("order", ("*[x;x;w;y]", "*[x;w;x;y]")),
    "neighbours moved": Identity("order", ("*[x;x;w;y]", "*[w;x;x;y]")),
    "neighbours joined": Identity("order", ("*[x;w;x;y]", "*[w;x;x;y]")),
    "context permuted": Identity("order", ("*Z permuted", "*Z")),
    "antisymmetry": Identity("antisymmetry", _PAIRS_OF_G),
    "copies": Identity("copies", ("*[x;y;y;y]", "*[x;y]", "*[x;x;x;y]", "y", "0")),
    "odds": Identity("odds", ("*[x;y]", "*g(-1)", "*g(2)", "y", "0")),
    "once": Identity("once", ("*[x;x;x;y]", "*[x;y]", "*g(2)", "y", "0")),
    "residual": Identity("residual", ("*[x;y]", "*g(-1)", "x", "y")),
    "bias": Identity("bias", ("*[x;0]", "*[-x;0]", "0")),
    "average": Identity("average", ("*[x;x;w;y]", "*[x;y]", "*[w;y]", _LONE)),
    "degree at x": Identity("homogeneous", ("far x", "x", "-x", "0")),
    "even": Identity("even", ("x", "-x")),
    "far even": Identity("even", ("far x", "far -x")),
    "square": Identity("square", ("far x", "x")),
    "square at y": Identity("square", ("far y", "y")),
    "rank two": Identity("rank two", ("x", "y", "w", "x+y", "x+w", "y+w")),
    "zero tokens": Identity("zero tokens", (_LONE, "*[0;y]", "*[0;0;y]")),
    "curve at x": Identity("curvature", _AROUND["x"]),
    "curve at y": Identity("curvature", _AROUND["y"]),
    "curves": Identity("curvature", (*_AROUND["x"], *_AROUND["y"])),
    "kink at x": Identity("kink", _AROUND["x"]),
    "kink at y": Identity("kink", _AROUND["y"]),
}


@dataclass(frozen=True, eq=False, slots=True)
class Evidence:
    """All first answers and the error bar they support; identities are measured when asked for.

    Args:
        questions: by name.
        answers: by the same names.
        format: the number format answers share.
        coarseness: by what is declared and seen.
        bar: the error bar.
        lone: under which name y was asked alone at the scale of pairs.
    """

    questions: Mapping[str, Matrix]
    answers: Mapping[str, Vector]
    format: str
    coarseness: Coarseness
    bar: ErrorBar
    lone: str
    _measured: dict[str, Measured | None] = field(
        default_factory=dict[str, Measured | None], init=False
    )

    def measure(self, name: str) -> Measured | None:
        """The identity of that name; None where a question of it has no answer."""
        if name not in self._measured:
            self._measured[name] = self._hold_rule(name)
        return self._measured[name]

    def _hold_rule(self, name: str) -> Measured | None:
        names = _name_questions(name, self.lone)
        if not all(asked in self.answers for asked in names):
            return None
        questions = [self.questions[asked] for asked in names]
        answers = [self.answers[asked] for asked in names]
        return hold_rule(IDENTITIES[name].rule, questions, answers, self.bar)

    def differ(self, names: Iterable[str]) -> list[str]:
        """Those of the identities that answers break by more than rounding explains."""
        measured = {name: self.measure(name) for name in names}
        return [name for name, seen in measured.items() if seen is not None and seen.differs]

    def agree(self, name: str) -> bool:
        """Whether an identity was measured and holds."""
        measured = self.measure(name)
        return measured is not None and measured.agrees

    def add(self, weights: Mapping[str, float]) -> tuple[Vector, Band]:
        """A weighted sum of answers by name, with its error bar."""
        factors = np.array(list(weights.values()))
        answers = np.array([self.answers[name] for name in weights])
        questions = [self.questions[name] for name in weights]
        with np.errstate(over="ignore", invalid="ignore"):
            return factors @ answers, self.bar.bound_sum(factors, questions, answers)

    def make_witness(self, name: str) -> Witness:
        """The questions and answers of an identity that was measured, as a witness."""
        measured = self.measure(name) or Measured(0.0, 0.0, 0.0)
        names = _name_questions(name, self.lone)
        return Witness(
            rule=IDENTITIES[name].rule,
            questions=tuple(self.questions[asked] for asked in names),
            answers=tuple(self.answers[asked] for asked in names),
            gap=measured.gap,
            allowed=measured.allowed,
        )


def weigh_answers(first: FirstAnswers, lone: str = "y") -> Evidence:
    """All answers so far, with the error bar they support.

    Args:
        first: what was asked.
        lone: under which name y was asked alone at the scale of pairs.
    """
    seen = see_format(np.array(list(first.answers.values())))
    coarseness = describe_coarseness(read_imperfection(first.oracle), describe_format(seen))
    answers = {name: one for name, one in first.answers.items() if not is_at_end(one, seen)}
    questions = {name: first.questions[name] for name in answers}
    bar = measure_error_bar(list(questions.values()), list(answers.values()), coarseness)
    if answers.keys() >= {"x", "y"}:
        bar = bar.steepen(questions["x"], _measure_shake(answers))
    return Evidence(questions, answers, seen, coarseness, bar, lone)


def _measure_shake(answers: Mapping[str, Vector]) -> float:
    """By how much last digits of x or y move its answer; 0 where answers scatter by themselves."""
    shaken = [(answers[place], answers.get(f"{place} shaken")) for place in ("x", "y")]
    moves = [np.abs(at - moved).max() for at, moved in shaken if moved is not None]
    change = float(max(moves, default=0.0))
    again = [answers[name] for name in AGAIN if name in answers]
    scatter = max((float(np.abs(answers["x"] - one).max()) for one in again), default=0.0)
    return change if scatter <= _SHARE_OF_SHAKE * change else 0.0


def _name_questions(identity: str, lone: str) -> list[str]:
    return [lone if name == _LONE else name for name in IDENTITIES[identity].questions]
