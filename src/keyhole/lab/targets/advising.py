"""What keyhole can recover of a part of a model, decided by how it is wired, and by which command.

No name of an architecture is asked: a layer is refused for what is in it that no learner knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.lab.runs.command_lines import format_command_line
from keyhole.models.last_token.activations import ACTIVATIONS
from keyhole.oracles.inside.described import AttentionPart, Inside, NetworkPart, NormPart, Part

_NORMED = "its queries and keys are normed in a way, or beside something, that is not learned"
_UNKNOWN = "it may tell positions, and nothing says how"
# Ways to tell positions that a learner recovers once it is told of them.
_POSITIONS = {
    "rope": "rotary positions",
    "alibi": "slopes by distance (ALiBi)",
    "table": "a table of distances",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do with a part.

    Args:
        recoverable: whether a learner is made for it.
        reason: what is recovered, or why nothing is.
        command: the command that recovers it.
        call: the same in Python.
    """

    recoverable: bool
    reason: str
    command: str | None = None
    call: str | None = None


def advise(part: Part, model: str, inside: Inside) -> Advice:
    """What can be recovered of a part, and how.

    Args:
        part: a part of the model.
        model: what the model is called on the command line.
        inside: all that was found in it.
    """
    if isinstance(part, NormPart):
        return Advice(False, "not recovered by itself: it is a part of the layer behind it")
    causes = list_obstacles(part, inside.norms)
    # The module that weights are loaded into may compute in any type.
    causes += [] if inside.source == "safetensors" else _list_format_obstacles(part)
    if causes:
        return Advice(False, f"not recovered yet: {', '.join(causes)}")
    if inside.source == "safetensors":
        return Advice(True, "recovered where it runs: name the module that these weights belong to")
    wiring = list_wiring(part) if isinstance(part, AttentionPart) else {}
    command = format_command_line("learn", [model], {"layer": part.name, **wiring})
    told = ", ".join(f"{name}={value!r}" for name, value in wiring.items())
    more = f", wiring=keyhole.Wiring({told})" if told else ""
    opened = f"keyhole.open_layer({_spell_model(model, inside)}, {part.name!r})"
    return Advice(True, _describe_recovery(part), command, f"keyhole.learn({opened}{more}, rng=0)")


def list_wiring(part: AttentionPart) -> dict[str, str | float]:
    """What has to be told of a layer with positions, by the names of `keyhole.Wiring`."""
    if part.positions not in _POSITIONS:
        return {}
    known = {
        "norm": "none",
        "positions": part.positions,
        "rope_base": part.rope_base,
        "rotary_share": None if part.rotary_share == 1.0 else part.rotary_share,
        "window": part.window,
        "softcap": part.softcap,
        "groups": None if part.groups == part.heads else part.groups,
        "qk_norm": part.qk_norm or None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _spell_model(model: str, inside: Inside) -> str:
    return repr(model) if inside.source == "onnx" else "model"


def _describe_recovery(part: AttentionPart | NetworkPart) -> str:
    what = "all its heads" if isinstance(part, AttentionPart) else "all its units"
    narrow = part.arithmetic if isinstance(part, AttentionPart) else ""
    if narrow:
        return f"recovered: {what}, to the rounding that is left by {narrow}"
    if part.dtype == "f64":
        return f"recovered: {what}"
    return (
        f"recovered: {what}, to the rounding of {part.dtype}; from the same weights in float64"
        " exactly"
    )


def list_obstacles(part: AttentionPart | NetworkPart, norms: Sequence[NormPart] = ()) -> list[str]:
    """What stands in the way of recovering a part; nothing where a learner is made for it.

    Args:
        part: of a model.
        norms: all norms of the model, which tell what queries and keys are normed by.
    """
    return (
        _list_attention_obstacles(part, norms)
        if isinstance(part, AttentionPart)
        else _list_network_obstacles(part)
    )


def _list_attention_obstacles(part: AttentionPart, norms: Sequence[NormPart]) -> list[str]:
    placed = part.positions in _POSITIONS
    causes: list[tuple[bool, str]] = [
        (bool(part.trouble), f"it cannot be asked by itself ({part.trouble})"),
        (part.cross, "its keys and values come from other tokens than its queries"),
        (part.positions == "unknown", _UNKNOWN),
        (part.rope_scaling is not None, f"its rotations follow the rule {part.rope_scaling}"),
        (
            not placed and part.window is not None,
            f"it looks through a window of {part.window} tokens",
        ),
        (not placed and part.softcap is not None, f"its scores are capped at {part.softcap}"),
        (part.qk_norm and not _is_normed_plainly(part, norms), _NORMED),
        (part.sinks, "its heads have scores that belong to no token"),
    ]
    held = [cause for stands, cause in causes if stands]
    return held + (_list_placed_obstacles(part) if placed else [])


def _is_normed_plainly(part: AttentionPart, norms: Sequence[NormPart]) -> bool:
    """Whether heads are divided by their root mean square, with nothing beside that is in the way.

    One norm over all heads, and one that takes off the mean, are other layers.
    """
    own = [norm for norm in norms if norm.name.rpartition(".")[0] == part.name]
    plain = all(norm.norm == "rms" and norm.width == part.head_size for norm in own)
    whole = part.positions == "rope" and part.rotary_share in (None, 1.0)
    return whole and len(own) == 2 and plain and not (part.biases or part.window or part.softcap)


def _list_placed_obstacles(part: AttentionPart) -> list[str]:
    """What keeps a layer with positions from being learned."""
    how = f"it tells positions by {_POSITIONS[part.positions]}"
    if part.heads is None or part.head_size is None:
        return [f"{how}, and nothing says how many heads it has"]
    turned = part.head_size * (part.rotary_share or 1.0)
    causes = (
        (part.heads < 2, f"{how}, and has one head alone"),
        (
            part.heads * part.head_size > (part.outputs or 0),
            f"{how}, and its heads are wider than its outputs together",
        ),
        (
            part.positions == "rope" and (turned % 2 != 0 or turned < 2),
            f"{how}, {turned:g} entries of a head, which are no pairs",
        ),
    )
    return [cause for stands, cause in causes if stands]


def _list_format_obstacles(part: AttentionPart | NetworkPart) -> list[str]:
    """Why answers of its number format are too coarse, measured on layers of that kind."""
    double = "the same weights in float64, such as model.double(), are recovered"
    if isinstance(part, NetworkPart) and part.dtype != "f64":
        return [f"answers in {part.dtype} are too coarse for its units; {double}"]
    if isinstance(part, AttentionPart) and part.dtype not in ("f64", "f32") and part.heads != 1:
        return [f"answers in {part.dtype} are too coarse to tell its heads apart; {double}"]
    return []


def _list_network_obstacles(part: NetworkPart) -> list[str]:
    if part.activation is None:
        return ["its activation was not found"]
    if part.activation not in ACTIVATIONS:
        return [f"its activation is {part.activation}, not one of {', '.join(ACTIVATIONS)}"]
    return []
