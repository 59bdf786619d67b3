"""Attention layers as they are built: what of them answers determine."""

from __future__ import annotations

from keyhole.models import Wiring


def layer_freedom(
    wiring: Wiring,
    width: int,
    *,
    heads: int,
    rank: int,
    outputs: int,
    displacements: int = 1,
    biased: bool = False,
) -> int:
    r"""Numbers that answers of a layer determine whose heads have values of their own.

    A norm costs nothing: its gain goes into the maps, and a LayerNorm takes one dimension. Value
    and output maps leave an invertible map free, $r(D + o) - r^2$; so do queries and keys, but for
    what rotary positions turn: there only a complex number per pair is free. A table has a free
    constant per head.

    Args:
        wiring: how the layer is wired.
        width: size of a token.
        heads: number of heads.
        rank: size of a head.
        outputs: numbers per answer.
        displacements: entries of a table, or number of absolute positions.
        biased: whether there are biases.
    """
    D = width - (wiring.norm == "layer")
    turned = round(rank * (wiring.rotary_share or 1.0)) if wiring.positions == "rope" else 0
    rest = rank - turned
    scores = turned * (2 * (D + biased)) - turned + rest * (2 * D + biased) - rest**2
    added = {"table": displacements - 1, "alibi": 1}.get(wiring.positions or "none", 0)
    each = rank * (D + outputs) - rank**2 + scores + added
    placed = displacements * width if wiring.positions == "absolute" else 0
    return heads * each + (outputs if biased else 0) + placed
