"""The layer that heads make together, in the coordinates of tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.positions.grouped.sharing import HeadMaps, share_maps
from keyhole.learners.positions.placed import LinearPart
from keyhole.learners.positions.question_design import Setting
from keyhole.learners.positions.score_form import ScoreForm, make_table
from keyhole.models import AttentionLayer


def assemble_layer(
    heads: list[HeadMaps],
    whole: LinearPart,
    setting: Setting,
    form: ScoreForm,
    basis: Matrix,
    *,
    roundoff: float,
) -> AttentionLayer:
    """A layer; gains and shifts of its norm are folded into its maps.

    Args:
        heads: their maps, each in coordinates of its own.
        whole: what lone tokens are answered.
        setting: the wiring.
        form: of the scores.
        basis: of tokens, in whose coordinates maps are given.
        roundoff: of the answers: heads whose maps differ by more share none.
    """
    groups = share_maps(heads, form, roundoff=roundoff)
    maps = [head for group in groups for head in group]
    scores = [head.scores for head in maps]
    shared = [group[0] for group in groups]
    wiring, taus = setting.wiring, [part.tau for part in scores]
    return AttentionLayer(
        Wq=np.stack([part.Wq @ basis.T for part in scores]),
        Wk=np.stack([head.scores.Wk @ basis.T for head in shared]),
        Wv=np.stack([head.Wv @ basis.T for head in shared]),
        Wo=np.stack([head.Wo for head in maps]),
        wiring=replace(wiring, groups=None),
        bq=np.stack([part.bq for part in scores]) if whole.biased else None,
        bk=np.stack([head.scores.bk for head in shared]) if form.key_biased else None,
        bo=whole.constant if whole.biased else None,
        table=make_table(wiring, setting.displacements, form, taus),
        sinks=np.array([part.tau[-1] for part in scores]) if form.sinks else None,
        q_gain=scores[0].q_gain if wiring.qk_norm else None,
        k_gain=scores[0].k_gain if wiring.qk_norm else None,
    )
