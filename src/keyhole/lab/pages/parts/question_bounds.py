"""Questions that were used beside the fewest from which anybody can know as much, by policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from keyhole.drawing.describing import Axis, Bar, Chart, Line, Point, name_rows
from keyhole.lab.runs.record_parts import TokenAudit, TokenPolicyRecord

_ROW = 22.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What one policy took.

    Args:
        policy: its name.
        used: questions that were asked.
        fewest: with fewer nobody can know it.
    """

    policy: str
    used: int
    fewest: int

    @property
    def ratio(self) -> float:
        """How many times the fewest were used."""
        return self.used / self.fewest


def list_space_costs(found: TokenAudit) -> list[Cost]:
    """Of the space of the projection, where it was found."""
    return [
        Cost(one.policy, one.questions, one.limit)
        for one in found.policies
        if one.limit is not None and one.rank is not None
    ]


def list_rotation_costs(found: TokenAudit) -> list[Cost]:
    """Of the projection up to a rotation, in prompts, where it was found."""
    return [
        Cost(one.policy, one.rotation.questions // _count_per_prompt(one), one.rotation.limit)
        for one in found.policies
        if one.rotation.questions and one.rotation.limit and one.rotation.residual is not None
    ]


def list_function_costs(found: TokenAudit) -> list[Cost]:
    """Of the function itself, where a copy answers as the model does."""
    return [
        Cost(one.policy, one.function.questions, one.function.limit)
        for one in found.policies
        if one.function and one.function.follows and one.function.questions and one.function.limit
    ]


def _count_per_prompt(record: TokenPolicyRecord) -> int:
    """How many questions one prompt took."""
    return max(1, record.questions // max(1, record.prompts))


def state_costs(what: str, unit: str, costs: list[Cost]) -> str:
    """The picture in a sentence."""
    ratios = sorted(cost.ratio for cost in costs)
    times = f"{ratios[0]:.3g}"
    if f"{ratios[-1]:.3g}" != times:
        times += f" to {ratios[-1]:.3g}"
    return f"{what} took {times} times the fewest {unit} that could tell it"


def describe_costs(about: str, unit: str, costs: list[Cost]) -> Chart:
    """One row per policy: from the fewest questions to those that were used."""
    rows = costs[::-1]
    return Chart(
        about,
        Axis(f"{unit}, log scale", log=True),
        name_rows([cost.policy for cost in rows]),
        [line for k, cost in enumerate(rows) for line in _trace_cost(k, cost, unit)],
        bars=[Bar(k, c.fewest, c.used, shade=0.15) for k, c in enumerate(rows)],
        width=470.0,
        height=_ROW * len(rows),
    )


def _trace_cost(row: int, cost: Cost, unit: str) -> Iterator[Line]:
    fewest = f"{cost.policy}: {cost.fewest:,} {unit} at least"
    used = f"{cost.policy}: {cost.used:,} {unit} used, {cost.ratio:.3g} times the fewest"
    yield Line("", "limit", [Point(cost.fewest, row, fewest)])
    yield Line("", "ours", [Point(cost.used, row, used, label=f"{cost.used:,}")])
