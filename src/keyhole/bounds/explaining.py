"""Verdicts on sizes in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from keyhole.bounds.base import Inequality
from keyhole.constructions import Built, Proven, Size
from keyhole.models.numbers import number_format as format_named


@dataclass(frozen=True, slots=True)
class Gap:
    """What lies between the largest size known to be too small and the least known to be enough.

    Args:
        axis: the size in question, all others as asked.
        too_small: the largest value that is too small; 0 where none is.
        asked: the value asked for.
        enough: the least value known to be enough; None where none is known.
    """

    axis: str
    too_small: int
    asked: int
    enough: int | None


def format_amount(value: float) -> str:
    """An amount in words: whole where it is, or large."""
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.1f}"


def explain_too_small(told: Inequality) -> str:
    """Which models are excluded, and by which inequality."""
    return (
        f"Too small: the task needs {format_amount(told.needed)} {told.unit}, and these sizes give"
        f" {format_amount(told.available)} ({told.name}: {told.formula}). This excludes"
        f" {told.excludes}."
    )


def explain_enough(built: Built) -> str:
    """What was built, and how surely it does the task."""
    seen = built.checked
    if seen.exhaustive:
        share = "checked on every input"
    else:
        share = f"proved for every input, and {seen.inputs:,} were asked"
    return (
        f"These sizes are enough: the construction {built.construction} does the task with"
        f" {_describe_size(built.size)} and {format_named(built.format).bits:.0f} bits; it was"
        f" built and {share}, without error."
    )


def explain_proven(proven: Proven) -> str:
    """What a formula proves."""
    return (
        f"These sizes are enough: the construction {proven.construction} does the task with"
        f" {_describe_size(proven.size)} and {proven.size.bits} bits; a proof covers every input"
        f" ({proven.argument}, {proven.theorem})."
    )


def _describe_size(size: Size) -> str:
    return (
        f"key width {size.embed:,}, value width {size.value_width:,}, {size.heads}"
        f" head{'s' * (size.heads > 1)}, {size.layers} layer{'s' * (size.layers > 1)}"
    )


def explain_sampled(built: Built) -> str:
    """What is known of weights that answered all that was asked, and no more."""
    asked = built.certificate.sampled or f"{built.checked.inputs:,} inputs, not every one"
    return (
        f"Sampled: the construction {built.construction} of key width {built.size.embed} answered"
        f" all that was asked ({asked}); the rest was neither asked nor proved."
    )


def explain_open(told: Inequality | None, gap: Gap) -> str:
    """What is known on either side of what was asked."""
    axis = gap.axis.replace("_", " ").replace("embed", "key width")
    below = (
        f"{gap.too_small:,} or less is too small"
        if gap.too_small
        else "none is known to be too small"
    )
    above = (
        f"{gap.enough:,} or more is enough"
        if gap.enough is not None
        else "none is known to be enough"
    )
    if told is None:
        near = ""
    else:
        near = (
            f" ({told.name}: {format_amount(told.needed)} {told.unit} needed,"
            f" {_format_available(told.available)})"
        )
    return (
        f"Open: nothing known decides the {axis} {gap.asked:,}. With the other sizes as asked,"
        f" {below}, and {above}{near}."
    )


def explain_silence(known: tuple[Inequality, ...], told: Inequality | None) -> str:
    """Why the bounds that are known of a task say nothing, where none applies."""
    if told is not None or not known:
        return ""
    failed = next(check for check in known[0].checks if not check.holds)
    return (
        f" {known[0].name} ({known[0].theorem}) says nothing here: {failed.name}"
        f" {failed.measured:g}, and it is for at most {failed.limit:g}."
    )


def _format_available(available: float) -> str:
    return f"{format_amount(available)} available" if isfinite(available) else "no limit on bits"


def describe_network_need(told: Inequality) -> str:
    """What the bound says of a network that it does not exclude."""
    if told.applies:
        return f"fewer than {format_amount(told.needed)} are too few, and no more is known"
    failed = next(check for check in told.checks if not check.holds)
    return f"no bound applies here ({failed.name}: {failed.measured:g} is above {failed.limit:g})"
