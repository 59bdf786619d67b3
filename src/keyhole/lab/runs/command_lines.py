"""Jobs as the words of the command line that asks for them."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

# Where a run is written is nobody's business but the machine's.
_PLACES = ("out", "force", "resume")


def format_command_line(command: str, job: Any, *named: str) -> str:
    """The words that ask the same again, quoted for a shell.

    Args:
        command: the name of the command.
        job: what it is asked for; options at their defaults are left out.
        named: fields that are given without a name, in order.
    """
    words = ["keyhole", command, *(str(getattr(job, name)) for name in named)]
    for item in fields(job):
        value = getattr(job, item.name)
        if item.name not in (*named, *_PLACES) and value != item.default:
            words += format_option(item.name.replace("_", "-"), value)
    return shlex.join(words)


def format_option(name: str, value: Any) -> list[str]:
    """An option with its value; a flag has none, and what may be given several times is."""
    if isinstance(value, bool):
        return [f"--{'no-' * (not value)}{name}"]
    given: Any = value if isinstance(value, list | tuple) else (value,)  # pyright: ignore[reportUnknownVariableType]
    return [word for one in given for word in (f"--{name}", str(one))]
