"""Sizes that a model is allowed, and inequalities between what a task needs and what they offer."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from keyhole.claims import Basis, Certificate, Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a model is allowed to cost.

    Args:
        embed: m, width of queries and keys.
        bits: p, bits of a number; infinite for real numbers.
        heads: H.
        value_width: v, width of values.
        layers: D.
        fixed: integer and fraction bits of the fixed-point format of numbers; every split of `bits`
            when absent.
        accuracy: largest error allowed, for tasks with real answers.
        residual: whether tokens are carried past attention layers.
        format: the name of the number format; fixed point of any split of `bits` when absent.
        positional: whether keys depend on positions alone, values on the vectors alone by one
            affine map, and nothing stands behind the head.
        token_width: numbers of a token behind the token map; any where absent.
    """

    embed: int
    bits: float = inf
    heads: int = 1
    value_width: int = 1
    layers: int = 1
    fixed: tuple[int, int] | None = None
    accuracy: float = 0.0
    residual: bool = False
    positional: bool = False
    format: str | None = None
    token_width: int | None = None


@dataclass(frozen=True, slots=True)
class Inequality:
    """What a task needs of some resource, and what is available of it.

    Args:
        name: what people call it.
        theorem: the id of the claim behind it.
        needed: a model of the task has at least this.
        available: what the sizes offer.
        unit: in what both are counted.
        checks: the assumptions that are numbers.
        assumptions: the assumptions on the class of models, in words.
        formula: both sides in symbols.
        growth: the asymptotic form of the source, which decides nothing here.
        excludes: the class of models of which it speaks, in words.
    """

    name: str
    theorem: str
    needed: float
    available: float
    unit: str
    checks: tuple[Check, ...]
    assumptions: tuple[str, ...]
    formula: str
    growth: str
    excludes: str

    @property
    def applies(self) -> bool:
        """Whether the assumptions that are numbers hold."""
        return all(check.holds for check in self.checks)

    @property
    def violated(self) -> bool:
        """Whether it shows that no model of these sizes does the task."""
        return self.applies and self.available < self.needed

    @property
    def certificate(self) -> Certificate:
        """The claim on these sizes; REFUTED: too small, if a model is said to exist."""
        return Certificate(
            self.theorem,
            self.checks,
            (Check(self.formula, self.needed, self.available),),
            basis=Basis.PROVED,
        )
