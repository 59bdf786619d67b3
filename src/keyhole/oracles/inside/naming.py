"""Sentences about names of layers that are not there."""

from __future__ import annotations

from difflib import get_close_matches

_SHOWN = 12  # names in a sentence; a model has thousands


def suggest_layers(name: str, names: list[str]) -> str:
    """The sentence about a layer that is not there: near names first."""
    if not names:
        return (
            f"the model has no layer {name!r}: no attention layer or network was found in it. A"
            " callable of your own, package.module:NAME, can ask any part."
        )
    near = get_close_matches(name, names, n=4, cutoff=0.5)
    told = f"near it: {', '.join(near)}" if near else f"it has: {_list_some(names)}"
    return f"the model has no layer {name!r}; {told}."


def _list_some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
