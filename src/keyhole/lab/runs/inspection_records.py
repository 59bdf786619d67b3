"""The record of what is inside a model."""

from __future__ import annotations

from keyhole.lab.runs.record_parts import Number, Part
from keyhole.lab.runs.records import Envelope


class PartRecord(Part, frozen=True, kw_only=True):
    """A part of a model: its sizes, each where the part has it, and what can be recovered of it.

    Args:
        kind: attention, network or norm.
        name: what `--layer` takes.
        layout: where the projections are, in words.
        width: size of a token.
        outputs: numbers of an answer.
        heads: number of heads.
        head_size: numbers of one head.
        groups: sets of keys and values.
        scale: what scores are multiplied by.
        causal: whether a token sees none behind it.
        cross: whether keys and values come from other tokens.
        positions: none, rope, alibi, table or unknown.
        rope_base: base of rotary positions.
        rotary_share: share of a head that is rotated.
        rope_scaling: the rule that bends rotary frequencies.
        window: tokens that a token sees at most.
        softcap: scores are held below this.
        qk_norm: whether queries and keys are normed.
        sinks: whether heads have scores that belong to no token.
        trouble: why it cannot be asked by itself.
        hidden: hidden units of a network.
        activation: of a network.
        gated: whether units of a network are multiplied by a linear map.
        norm: layer or rms.
        eps: of a norm.
        biases: whether a projection adds a constant.
        dtype: the type of its weights.
        arithmetic: what of it is computed in a narrower type, in words.
        recoverable: whether a learner of keyhole is made for it.
        reason: what is recovered, or why nothing is yet.
        command: the command that recovers it; nothing where none does.
        call: the same in Python.
    """

    kind: str
    name: str
    layout: str | None = None
    width: int | None = None
    outputs: int | None = None
    heads: int | None = None
    head_size: int | None = None
    groups: int | None = None
    scale: Number = None
    causal: bool | None = None
    cross: bool | None = None
    positions: str | None = None
    rope_base: Number = None
    rotary_share: Number = None
    rope_scaling: str | None = None
    window: int | None = None
    softcap: Number = None
    qk_norm: bool | None = None
    sinks: bool | None = None
    trouble: str | None = None
    hidden: int | None = None
    activation: str | None = None
    gated: bool | None = None
    norm: str | None = None
    eps: Number = None
    biases: bool | None = None
    dtype: str | None = None
    arithmetic: str | None = None
    recoverable: bool = False
    reason: str = ""
    command: str | None = None
    call: str | None = None


class InspectRecord(Envelope, frozen=True, kw_only=True, tag="inspect"):
    """What is inside a model.

    Args:
        model: what was looked into.
        source: torch, onnx or safetensors.
        parts: attention layers, networks and norms, in the order of the model.
    """

    model: str
    source: str
    parts: list[PartRecord] = []
