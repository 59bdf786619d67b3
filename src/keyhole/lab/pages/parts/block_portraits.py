"""Pictures of a recovered Transformer block: its stages, its attention, its network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keyhole.drawing.blocks.block_sheets import draw_block_stages
from keyhole.drawing.blocks.block_stages import BlockProgress
from keyhole.drawing.html import Markup, element, format_number, format_section, join_markup
from keyhole.lab.pages.parts.layer_portraits import draw_layer_portrait
from keyhole.lab.pages.parts.portraits import draw_network_portrait
from keyhole.lab.pages.parts.recovered_matrices import has_verified_model
from keyhole.lab.runs.recovery_records import RecoveryRecord
from keyhole.lab.runs.rows import count_fewest_queries
from keyhole.models import Norm, TransformerBlock, load

_LEARNERS = ("pre-norm-block", "post-norm-block", "gated-block")
_ENDED = "STAGE_FOUND"
_STATUSES = ("BLOCK_DISAGREES", "UNITS_UNSEPARATED", _ENDED)


def draw_block_progress(
    data: RecoveryRecord, directory: Path, errors: Mapping[str, float] | None = None
) -> Markup:
    """The block as it filled in, stage by stage; nothing where no block was looked for.

    Args:
        data: the record of the run.
        directory: of the run, with the model where there is one.
        errors: how far parts are from the truth, where that is held.
    """
    progress = describe_block_progress(data, directory, errors)
    if progress is None:
        return Markup()
    return format_section(progress.finding, draw_block_stages(progress))


def describe_block_progress(
    data: RecoveryRecord, directory: Path, errors: Mapping[str, float] | None = None
) -> BlockProgress | None:
    """How far the recovery of a block came; None where no block was looked for."""
    sought = data.learner in _LEARNERS or data.status in _STATUSES or data.model_class == "block"
    if not sought or not data.queries.by_phase:
        return None
    path = directory / "model.safetensors"
    model = load(path) if data.model is not None and path.is_file() else None
    block = model if isinstance(model, TransformerBlock) else None
    return BlockProgress(
        asked=data.queries.by_phase,
        verified=has_verified_model(data),
        ended=data.status == _ENDED,
        heads=None if block is None else block.attention.heads,
        units=None if block is None else block.network.hidden,
        limit=count_fewest_queries(data),
        errors=errors or {},
    )


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
