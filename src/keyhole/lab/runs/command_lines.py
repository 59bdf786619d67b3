"""Command lines that ask for something again, quoted so that a shell takes them back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from keyhole.lab.runs.record_parts import Given

Option = Given | tuple[Any, ...]

# Where a run is written is nobody's business but the machine's.
_PLACES = ("out", "force", "resume")


def format_command_line(command: str, named: Sequence[Any], options: Mapping[str, Option]) -> str:
    """The line that calls a command; no other place puts one together.

    Args:
        command: the name of the command.
        named: what it is given without a name, in order.
        options: what it is given by name, as a job or the command line spells it; None is left
            out, a flag has no value, and a list is given one by one.
    """
    given = [str(value) for value in named]
    words = [word for name, value in options.items() for word in _format_option(name, value)]
    # After a bare -- nothing is an option, not even a file whose name looks like one.
    if any(word.startswith("-") for word in given):
        return shlex.join(["keyhole", command, *words, "--", *given])
    return shlex.join(["keyhole", command, *given, *words])


def format_job_command(command: str, job: Any, *spelt: str) -> str:
    """The line that asks for a job again, but for where it is written.

    Args:
        command: the name of the command.
        job: what it is asked for; options at their defaults are left out.
        spelt: options that are given even so.
    """
    named: list[Any] = []
    options: dict[str, Option] = {}
    for item in fields(job):
        value = getattr(job, item.name)
        # What a job takes without a name, its command takes so too.
        if not item.kw_only:
            named += _list_given(value)
        elif item.name not in _PLACES and (value != item.default or item.name in spelt):
            options[item.name] = value
    return format_command_line(command, named, options)


def _format_option(name: str, value: Any) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    words: list[str] = []
    for one in map(str, _list_given(value)):
        # A value that looks like an option would be taken for one.
        words += [f"{option}={one}"] if one.startswith("-") else [option, one]
    return words


def _list_given(value: Any) -> list[Any]:
    """What is given: nothing, one thing or several."""
    if value is None:
        return []
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
