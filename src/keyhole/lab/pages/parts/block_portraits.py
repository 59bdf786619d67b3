"""Pictures of a recovered Transformer block: its attention, then its network."""

from __future__ import annotations

from keyhole.drawing.html import Markup, element, format_number, format_section, join_markup
from keyhole.lab.pages.parts.layer_portraits import draw_layer_portrait
from keyhole.lab.pages.parts.portraits import draw_network_portrait
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.models import Norm, TransformerBlock


def draw_block_portrait(data: RecoveryRecord, block: TransformerBlock) -> Markup:
    """How the block is built, then the portraits of its parts."""
    where = "before" if block.style == "pre" else "behind"
    said = " and ".join(_tell_norm(norm) for norm in (block.norm1, block.norm2))
    note = element(
        "p", f"Norms stand {where} the attention and {where} the network: {said}, both residual."
    )
    return join_markup(
        format_section("A Transformer block", note),
        draw_layer_portrait(data, block.attention),
        draw_network_portrait(data, block.network),
    )


def _tell_norm(norm: Norm) -> str:
    name = "LayerNorm" if norm.kind == "layer" else "RMSNorm"
    return f"{name} of eps {format_number(norm.eps)}"
