"""Measuring the heads of a layer: rows that read them, then keys, queries and a fit of each."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np

from keyhole._arrays import Indices, Matrix, Stack, Vector
from keyhole.learners.positions.coarse.joint_fit import draw_likely, fit_jointly, list_bars
from keyhole.learners.positions.grouped.assembling import assemble_layer
from keyhole.learners.positions.grouped.kernel_split import (
    Unshared,
    has_kernel,
    split_by_kernel,
)
from keyhole.learners.positions.grouped.kernel_try import SharedSplit
from keyhole.learners.positions.grouped.sharing import (
    HeadMaps,
    MeasuredHeads,
    list_head_maps,
)
from keyhole.learners.positions.grouped.sink_values import split_by_sinks
from keyhole.learners.positions.head_fit import (
    AskedHead,
    FittedHead,
    is_coarse,
    measure_head,
    needs_more,
)
from keyhole.learners.positions.head_split import (
    RoughSplit,
    Unfinished,
    Unsplit,
    choose_moved_token,
    finish_split,
    split_by_positions,
    split_one_pair,
)
from keyhole.learners.positions.normed.normed_heads import measure_normed_heads
from keyhole.learners.positions.normed.normed_kernel import split_normed_by_kernel
from keyhole.learners.positions.normed.normed_split import split_normed_heads
from keyhole.learners.positions.placed import (
    Asking,
    LinearPart,
    Placed,
    join_placed,
    read_deviation,
)
from keyhole.learners.positions.position_kind import falls_into_pairs, find_cap, find_relative_kind
from keyhole.learners.positions.question_design import (
    COARSE_OVER,
    OVER,
    QuestionDesign,
    Setting,
    design_questions,
    draw_displacements,
    make_score_form,
)
from keyhole.learners.positions.score_form import ScoreForm
from keyhole.learners.positions.wide.shift_split import WideSearch
from keyhole.learners.positions.wide.wide_heads import (
    list_wide_maps,
    may_be_wide,
    measure_wide_heads,
)
from keyhole.models import AttentionLayer
from keyhole.oracles import Counted
from keyhole.oracles.base import read_imperfection

ROUNDS = 2  # of further questions for heads that the first did not determine
_ROUGH = 3e-3  # what odds may depart from a line by where some rows of heads are rough
_SHARP = 1e-6
_DRAWS = 16  # layers, which tell how far answers of the one that was found may be off


class Measuring:
    """Heads measured with tokens of one size.

    Args:
        oracle: counts questions by phase.
        asking: the same in coordinates of the ball.
        linear: what lone tokens are answered.
        setting: the wiring, and how far displacements go.
        wide: the search for heads that no rows read one by one.
        size: of tokens, as a share of the radius of the ball.
        rng: source of all tokens.
    """

    def __init__(
        self,
        oracle: Counted,
        asking: Asking,
        linear: LinearPart,
        setting: Setting,
        wide: WideSearch,
        *,
        size: float,
        rng: np.random.Generator,
    ) -> None:
        self.oracle = oracle
        self.asking = asking
        self.linear: LinearPart = linear
        self.whole = linear
        self.setting = setting
        self.wide = wide
        self.size = size
        self.rng = rng
        self.stated = read_imperfection(oracle).roundoff
        self.deviation = read_deviation(oracle)
        self.roundoff = max(self.stated, self.deviation / linear.scale)
        self.form = ScoreForm(np.zeros(0), np.zeros((1, 0)), None, linear.biased)

    def _make_form(self, rank: int, *, rough: bool = False) -> ScoreForm:
        setting = self.setting
        turned = setting.wiring.rotary_share or 1.0
        if setting.wiring.positions == "rope" and not falls_into_pairs(rank, turned):
            # Coarse answers may show rows that are none of a head.
            raise Unsplit
        return make_score_form(
            setting.wiring,
            rank,
            biased=self.whole.biased,
            displacements=setting.displacements,
            longest=setting.longest,
            rough=rough,
        )

    def _design_questions(self, D: int, rank: int) -> QuestionDesign:
        over = COARSE_OVER if is_coarse(self.roundoff) else OVER
        outputs = self.linear.M.shape[0]
        return design_questions(self.form, D, rank, over=over, outputs=outputs)

    def measure_heads(self) -> MeasuredHeads:
        """Rows, keys, queries and a fit of every head; of all at once where no rows read one."""
        if self.setting.wiring.qk_norm:
            return self._measure_normed()
        try:
            V, first = self._split_heads()
        except Unsplit as unsplit:
            if isinstance(unsplit, Unfinished | Unshared) or not self._may_be_wide():
                raise
            return self._measure_wide()
        design = self._design_questions(self.asking.ball.dimension, V.shape[1])
        heads = self._fit_rounds(V, design, first)
        maps = list_head_maps(heads, self.linear.M, self.asking.shown)
        return self._refine(maps, [head.found for head in heads])

    def _refine(self, maps: list[HeadMaps], found: list[bool]) -> MeasuredHeads:
        """All heads fitted together where answers are coarse, with error bars."""
        log, form, own = self.asking.log, self.form, self.asking.shown is None
        joint = None
        if log and own and all(found) and not form.sinks:
            sizes = {"roundoff": self.stated, "deviation": self.deviation}
            joint = fit_jointly(maps, self.whole.constant, log, form, **sizes)
        if joint is None:
            return MeasuredHeads(maps, found)
        self.whole = replace(self.whole, constant=joint.constant)
        bars = list_bars(joint, form, self.asking.ball.basis)
        if not self.deviation:
            return MeasuredHeads(joint.heads, found, bars)
        others = draw_likely(joint, form, count=_DRAWS, rng=self.rng)
        return MeasuredHeads(joint.heads, found, bars, others)

    def _measure_normed(self) -> MeasuredHeads:
        """Heads whose queries and keys have a norm of their own."""
        with self.oracle.phase("split"):
            V = self._split_normed()
            self._look_for_kind(V)
            if self.setting.wiring.positions not in ("rope", "none"):
                raise Unsplit
            self.form = self._make_form(V.shape[1])
        with self.oracle.phase("keys"):
            return measure_normed_heads(
                V,
                self.form,
                self.asking,
                self.linear,
                size=self.size,
                roundoff=self.roundoff,
                rng=self.rng,
            )

    def _split_normed(self) -> Stack:
        wiring, longest, rng = self.setting.wiring, self.setting.longest, self.rng
        if (shared := self._find_shared_values()) is None:
            kind = wiring.positions
            return split_normed_heads(self.asking, self.linear, kind, longest=longest, rng=rng)
        self._settle_residual(shared)
        split = split_normed_by_kernel(self.asking, shared, wiring, longest=longest, rng=rng)
        return self._take_shown(split)

    def _may_be_wide(self) -> bool:
        wiring, fine = self.setting.wiring, not is_coarse(self.roundoff)
        # Shifts of the last token, which tell wide heads, need it inside of the ball.
        told = not self.setting.searches and wiring.residual is not None and not self.setting.last
        return fine and told and may_be_wide(wiring, self.linear, self.asking.ball.dimension)

    def _measure_wide(self) -> MeasuredHeads:
        """All heads at once, where their sizes add up to more than the outputs."""
        with self.oracle.phase("split"):
            split = self.wide.find(
                self.asking, self.linear, longest=self.setting.longest, rng=self.rng
            )
        self.form = self._make_form(split.rank, rough=True)
        with self.oracle.phase("keys"):
            heads = measure_wide_heads(
                split,
                self.form,
                self.asking,
                self.linear,
                self._ask_placed,
                size=self.size,
                rng=self.rng,
            )
        maps = list_wide_maps(heads, split.rank)
        return MeasuredHeads(maps, [heads.found] * len(maps))

    def _split_heads(self) -> tuple[Stack, Placed | None]:
        """Rows that read the heads one by one, and questions at one last token if any told them."""
        first: Placed | None = None
        with self.oracle.phase("split"):
            if shared := self._find_shared_values():
                V = self._split_by_kernel(shared)
            elif self.setting.wiring.sinks:
                V = split_by_sinks(
                    self.asking, self.linear, longest=self.setting.longest, rng=self.rng
                )
            elif self.setting.wiring.positions == "none":
                rough = split_one_pair(
                    self.asking, self.linear, size=self.size, roundoff=self.roundoff, rng=self.rng
                )
                self._look_for_cap(rough.V, sure=_ROUGH)
                self.form = self._make_form(rough.clusters.rank)
                V, first = self._complete_rows(rough)
            else:
                V = self._split_by_positions()
            if first is None:
                self._look_for_kind(V)
                self._look_for_cap(V, sure=_SHARP)
                self.form = self._make_form(V.shape[1])
        return V, first

    def _list_linear_parts(self) -> list[LinearPart]:
        residual, D = self.setting.wiring.residual, self.asking.ball.dimension
        return self.linear.list_possible(residual, D)

    def _find_shared_values(self) -> LinearPart | None:
        """What lone tokens are answered, where some of them have no value."""
        parts = self._list_linear_parts()
        return next((part for part in parts if has_kernel(part, self.roundoff)), None)

    def _split_by_kernel(self, linear: LinearPart) -> Stack:
        """Rows of all heads that share values."""
        self._settle_residual(linear)
        split = split_by_kernel(
            self.asking,
            linear,
            longest=self.setting.longest,
            cap=self.setting.wiring.softcap,
            roundoff=self.roundoff,
            last=self.setting.last,
            rng=self.rng,
        )
        return self._take_shown(split)

    def _take_shown(self, split: SharedSplit) -> Stack:
        """Rows along those directions of answers that heads have."""
        self.linear = self.linear.project(split.shown)
        self.asking = replace(self.asking, shown=split.shown)
        return split.V

    def _split_by_positions(self) -> Stack:
        """Rows of all heads; and the residual, where that is not known."""
        wiring = self.setting.wiring
        moved = choose_moved_token(
            wiring.positions, self.setting.longest, self.roundoff, self.asking.ball.dimension
        )
        known = self._list_linear_parts()
        linear, V = split_by_positions(
            self.asking, known, moved, last=self.setting.last, rng=self.rng
        )
        self._settle_residual(linear)
        return V

    def _settle_residual(self, linear: LinearPart) -> None:
        residual = linear is not self.linear or self.asking.residual
        self._note(residual=residual)
        self.linear = self.whole = linear
        self.asking = replace(self.asking, residual=residual)

    def _note(self, **found: str | float | bool | None) -> None:
        setting = self.setting
        self.setting = replace(setting, wiring=replace(setting.wiring, **found))

    def _look_for_kind(self, V: Stack) -> None:
        if self.setting.wiring.positions is None:
            found = find_relative_kind(
                self.asking, self.linear, V, longest=self.setting.longest, rng=self.rng
            )
            self._note(**asdict(found))

    def _look_for_cap(self, V: Stack, *, sure: float) -> None:
        wiring = self.setting.wiring
        # Beside a sink odds of a pair are no whole picture of weights, nor are coarse answers.
        told = not self.setting.searches or wiring.softcap is not None or wiring.sinks
        if not (told or is_coarse(self.roundoff)):
            self._note(softcap=find_cap(self.asking, self.linear, V, sure=sure, rng=self.rng))

    def _complete_rows(self, rough: RoughSplit) -> tuple[Stack, Placed]:
        """All rows, with the questions at the same last token that told the slopes.

        Raises:
            Unfinished: a head does not explain the answers, however many were asked.
        """
        rank = rough.clusters.rank
        design = self._design_questions(len(rough.y), rank)
        # One row of each head is missing, and one token less can be read.
        fewer = replace(design, tokens=max(1, design.tokens - 1))
        count = math.ceil(design.key_questions[0] * design.tokens / fewer.tokens)
        asked: list[Placed] = []
        for share in (1.0, *[0.5] * ROUNDS):
            last = np.tile(rough.y, (math.ceil(share * count), 1))
            asked.append(self._ask_placed(fewer, last))
            placed = join_placed(asked)
            try:
                V = finish_split(self.linear, rough, placed, self.form, roundoff=self.roundoff)
                return V, placed
            except Unfinished:
                continue
        raise Unfinished

    def _ask_placed(self, design: QuestionDesign, last: Matrix) -> Placed:
        ball = self.asking.ball
        n = ball.draw(len(last), design.tokens, size=self.size, rng=self.rng)
        at = draw_displacements(design, self.form, len(last), rng=self.rng)
        n = np.concatenate([n, last[:, None]], axis=1)
        return self.asking.ask_placed(n, at, design.length, self.linear.constant)

    def _fit_rounds(
        self, V: Stack, design: QuestionDesign, first: Placed | None
    ) -> list[FittedHead]:
        last = self._draw_last(design.groups)
        keys: list[Placed] = []
        queries: list[Placed] = []
        groups: list[Indices] = []
        heads: list[FittedHead | None] = [None] * len(V)
        for share in (1.0, *[0.5] * ROUNDS):
            with self.oracle.phase("keys"):
                asked, group = self._ask_keys(design, last, share, skip=first is not None)
                keys.append(asked)
                groups.append(group)
            with self.oracle.phase("queries"):
                queries += self._ask_queries(design, math.ceil(share * design.query_questions))
            for h, head in enumerate(heads):
                if needs_more(head, self.form, self.roundoff):
                    asked = AskedHead(keys, groups, queries, first)
                    heads[h] = measure_head(
                        V[h],
                        asked,
                        self.linear.M,
                        self.form,
                        roundoff=self.roundoff,
                        deviation=self.deviation,
                    )
            wanting = [needs_more(head, self.form, self.roundoff) for head in heads]
            # Where no head is right, more questions of the same kind make none right.
            if not any(wanting) or not any(head is not None and head.found for head in heads):
                break
        return [head for head in heads if head is not None]

    def _draw_last(self, count: int) -> Matrix:
        size = self.size if self.setting.last is None else self.setting.last
        return self.asking.ball.draw(count, size=size, rng=self.rng)

    def _ask_keys(
        self, design: QuestionDesign, last: Matrix, share: float, *, skip: bool
    ) -> tuple[Placed, Indices]:
        """Questions at every fixed last token; the first group may have been asked already."""
        counts = [math.ceil(share * count) for count in design.key_questions]
        counts = counts[1:] if skip else counts
        group = np.repeat(np.arange(len(counts)), counts)
        return self._ask_placed(design, last[group]), group

    def _ask_queries(self, design: QuestionDesign, count: int) -> list[Placed]:
        """Questions with a last token each; half of them short where keys may be biased.

        Among many zero tokens large biases leave few weights to read.
        """
        short = count // 2 if self.form.key_biased and self.form.cap is None else 0
        brief = replace(design, length=design.tokens + 1)
        asked = [self._ask_placed(design, self._draw_last(count - short))]
        return asked + ([self._ask_placed(brief, self._draw_last(short))] if short else [])

    def assemble(self, maps: list[HeadMaps], constant: Vector | None = None) -> AttentionLayer:
        """The layer of these heads, and of another constant where one is given."""
        whole = self.whole if constant is None else replace(self.whole, constant=constant)
        basis, rounding = self.asking.ball.basis, self.roundoff
        return assemble_layer(maps, whole, self.setting, self.form, basis, roundoff=rounding)
