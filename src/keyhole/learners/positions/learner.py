r"""The learner of attention layers as they are built.

Steps, each a module: 1. what is not told of the wiring and a few questions tell (found_wiring);
2. lone tokens: the constant and $M = \sum_h A_h$ (placed); vectors of absolute positions (absolute)
that all further tokens are asked less; 3. the heads are told apart by a pencil
(head_pencil, head_split), or where they share values by tokens that have none (grouped): rows $V_h$
that read one head out of an answer; 4. weights of a few
tokens at chosen displacements are read by these rows: keys, then queries, by linear equations
(question_design, score_maps); 5. each head is fitted to all these answers, its rows eliminated,
which is a verdict per head (head_fit); 6. fresh questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, Matrix, Vector
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify.layers import layer_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.positions.absolute import (
    PositionSearch,
    Unplaceable,
    Unplaced,
    find_first_position,
)
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.found_wiring import (
    draw_direction,
    find_eps,
    find_eps_beside_sinks,
    find_kind_of_order,
    find_norm,
    find_residual,
    find_window,
)
from keyhole.learners.positions.grouped.kernel_split import Unshared
from keyhole.learners.positions.grouped.sink_values import TooShort, measure_sink_part
from keyhole.learners.positions.head_fit import is_coarse
from keyhole.learners.positions.head_split import NormedScores, Unfinished, Unsplit
from keyhole.learners.positions.layer_plans import (
    SIZES,
    check_told_wiring,
    complete_told_wiring,
    estimate_layer_queries,
    limit_layer_queries,
)
from keyhole.learners.positions.measuring import Measuring
from keyhole.learners.positions.placed import Asking, LinearPart, Logged, measure_linear_part
from keyhole.learners.positions.position_kind import USUAL_BASE, are_scores_normed
from keyhole.learners.positions.question_design import Setting
from keyhole.learners.positions.wide.shift_split import WideSearch
from keyhole.learners.positions.wired_account import (
    NARROW,
    NO_EPS,
    NORMED,
    TOO_SHORT,
    UNPLACED,
    UNSHARED,
    UNSPLIT,
    certify_layer,
    count_layer_freedom,
    describe_determined_layer,
    explain_layer,
)
from keyhole.learners.verifying.declared_errors import allow_draws
from keyhole.learners.verifying.ending import (
    SPENT,
    WIRED_LAYER,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_gap,
    describe_rounding,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AttentionLayer, Wiring
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_DISPLACEMENTS = 64


@dataclass(frozen=True, slots=True)
class WiredLayer:
    """Recovers a layer: all heads, their number and size, tables and biases.

    Args:
        wiring: how the layer is wired, as far as it is known; norm, residual, eps and positions are
            found where they are not told. Where positions are not, so are base, share and cap.
        displacements: entries of a table of scores to learn, or absolute positions; no more than
            the longest sequence.
        heads: how many heads to plan for; `run` finds their number by itself.
    """

    wiring: Wiring | None = None
    displacements: int = _DISPLACEMENTS
    heads: int = 4

    def __post_init__(self) -> None:
        if self.displacements < 2 or self.heads < 1:
            raise InvalidInput(
                "displacements is a whole number from 2 on and heads one from 1 on; got"
                f" {self.displacements} and {self.heads}."
            )
        check_told_wiring(self.wiring or Wiring())

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """What a layer of that many heads costs, as large as the outputs have room."""
        told = self.wiring or Wiring()
        wiring = complete_told_wiring(told, self.heads)
        rank = max(2, outputs // self.heads)
        rank += rank % 2 if wiring.positions == "rope" else 0
        by_phase = estimate_layer_queries(
            told,
            width,
            rank,
            heads=self.heads,
            displacements=self.displacements,
            biased=True,
        )
        freedom = layer_freedom(
            wiring,
            width,
            heads=self.heads,
            rank=rank,
            outputs=outputs,
            displacements=self.displacements,
            biased=True,
        )
        return Plan(
            by_phase={**by_phase, "verify": QUERIES},
            at_most=limit_layer_queries(told, width, outputs, self.displacements),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[AttentionLayer]:
        """Recover a layer; certificate keyhole/layers-as-built."""
        return _WiredSession(self, oracle, rng).recover()


class _WiredSession:
    """One recovery under way."""

    def __init__(self, learner: WiredLayer, oracle: Oracle, rng: np.random.Generator) -> None:
        self.told = learner.wiring or Wiring()
        self.displacements = learner.displacements
        self.oracle = Counted(oracle)
        self.rng = rng
        stated = read_imperfection(oracle)
        most = stated.lengths and stated.lengths[1]
        longest = [end for end in (most, self.told.window) if end is not None]
        self.longest = min(longest, default=None)
        self.coarse = stated.absolute or is_coarse(stated.roundoff)
        self.wiring = self.told
        self.wide = WideSearch()
        self.positions: Matrix | None = None
        self.model: AttentionLayer | None = None
        self.found: list[bool] = []
        self.bars: Mapping[str, Array] = {}
        self.others: list[AttentionLayer] = []
        self.log: list[Logged] = []

    def recover(self) -> Recovery[AttentionLayer]:
        """Attempts with smaller and smaller tokens; every way to stop ends in a Recovery."""
        if self.oracle.width < 2 and self.wiring.norm != "none":
            return self._conclude(Ending(status=Status.UNSEPARATED, detail=NARROW))
        try:
            with self.oracle.phase("wiring"):
                self._find_wiring()
            if self.wiring.norm is None:
                return self._conclude(Ending(status=Status.NO_LAYER))
            blind = self.wiring.norm != "none" and not self.wiring.eps
            if blind and self.wiring.positions != "absolute":
                return self._conclude(Ending(status=Status.UNSEPARATED, detail=NO_EPS))
            with self.oracle.phase("read"):
                linear = self._read_linear_part()
            return self._attempt_sizes(linear)
        except BudgetSpent:
            return self._conclude(SPENT)
        except TooShort:
            return self._conclude(Ending(status=Status.UNSEPARATED, detail=TOO_SHORT))
        except Unplaceable:
            return self._conclude(Ending(status=Status.UNSEPARATED, detail=UNPLACED))

    def _find_wiring(self) -> None:
        """What is not told, as far as a few questions tell it."""
        if self.wiring.norm is None:
            self._find_norm()
        if self.wiring.positions is None and self.wiring.norm is not None:
            self._find_order(self.wiring.norm)
        if self.wiring.norm in (None, "none"):
            return
        u = draw_direction(self.oracle.width, rng=self.rng)
        if self.wiring.residual is None:
            self._note(residual=find_residual(self.oracle, u))
        # With absolute positions eps shows once the first of them is known.
        if self.wiring.eps is None and self.wiring.positions != "absolute":
            self._note(eps=self._find_eps(u))

    def _find_eps(self, u: Vector) -> float:
        residual = bool(self.wiring.residual)
        if not self.wiring.sinks:
            return find_eps(self.oracle, u, residual=residual)
        return find_eps_beside_sinks(self.oracle, u, residual=residual, longest=self.longest)

    def _find_order(self, norm: str) -> None:
        order = find_kind_of_order(self.oracle, norm, rng=self.rng)
        self._note(positions=order.positions)
        if order.sinks:
            self._note(sinks=True, rope_base=self.wiring.rope_base or USUAL_BASE)

    def _find_norm(self) -> None:
        found = find_norm(self.oracle, rng=self.rng)
        residual = self.wiring.residual if found.residual is None else found.residual
        self._note(norm=found.norm, residual=residual)
        if self.wiring.positions is None and not found.odd and found.norm is not None:
            self._note(positions="absolute")

    def _note(self, **found: str | float | bool | None) -> None:
        """Keep what was found of the wiring, beside what was told."""
        self.wiring = replace(self.wiring, **found)

    def _read_linear_part(self) -> LinearPart:
        """What lone tokens are answered; and what absolute positions add to tokens."""
        if self.wiring.sinks:
            return measure_sink_part(self._open_ball(), longest=self.longest, rng=self.rng)
        if self.wiring.positions != "absolute":
            linear = measure_linear_part(self._open_ball(), size=SIZES[0], rng=self.rng)
            return self._settle_residual(linear) if self.wiring.positions == "none" else linear
        first = np.zeros(self.oracle.width)
        if self.wiring.norm == "none":
            linear = measure_linear_part(self._open_ball(), size=SIZES[0], rng=self.rng)
        else:
            lone = find_first_position(self.oracle, self.wiring, eps=self.told.eps, rng=self.rng)
            first, linear = lone.vector, lone.linear
            self._note(eps=lone.eps)
        most = min(self.displacements, self.longest or self.displacements)
        with self.oracle.phase("positions"):
            linear = self._settle_residual(linear)
            search = PositionSearch(self.oracle, self.wiring, linear, self.rng)
            self.positions = search.find_all(first, most)
        self.longest = len(self.positions)
        return linear

    def _settle_residual(self, linear: LinearPart) -> LinearPart:
        """The linear part without the residual, where lone tokens did not tell that."""
        if self.wiring.residual is not None:
            return linear
        search = PositionSearch(self.oracle, self.wiring, linear, self.rng)
        self._note(residual=search.find_residual())
        lost = np.eye(*linear.M.shape) if self.wiring.residual else 0.0
        return LinearPart(linear.constant, linear.M - lost)

    def _open_ball(self) -> Asking:
        """The target asked in coordinates of the ball behind its norm, without its positions."""
        ball = NormBall.of(self.oracle.width, self.wiring.norm or "none", self.wiring.eps or 0.0)
        target = self.oracle if self.positions is None else Unplaced(self.oracle, self.positions)
        # Places that were found, and a residual that was not, are no part of the joint fit.
        plain = self.positions is None and self.wiring.residual is not None
        log = self.log if self.coarse and plain else None
        return Asking(target, ball, bool(self.wiring.residual), log=log)

    def _attempt_sizes(self, linear: LinearPart) -> Recovery[AttentionLayer]:
        ends: list[Recovery[AttentionLayer]] = []
        # Normed scores do not shrink with tokens.
        sizes = SIZES[:1] if self.wiring.qk_norm else SIZES
        for size in sizes:
            try:
                self._measure_layer(linear, size)
            except NormedScores:
                return self._attempt_normed(linear)
            except Unshared:
                return self._conclude(Ending(status=Status.UNSEPARATED, detail=UNSHARED))
            except Unsplit as unsplit:
                if size == SIZES[0] and self._sees_norms():
                    return self._attempt_normed(linear)
                detail = NORMED if self.wiring.qk_norm else UNSPLIT
                ends.append(self._conclude(Ending(status=Status.UNSEPARATED, detail=detail)))
                # Heads that no try told apart are hardly those of such a layer.
                if self.told.positions is None and not isinstance(unsplit, Unfinished):
                    break
            else:
                if not any(self.found) and self._sees_norms():
                    return self._attempt_normed(linear)
                ends.append(self._judge())
            if ends[-1].status not in (Status.UNSEPARATED, Status.LAYER_DISAGREES):
                return ends[-1]
            if ends[-1].status is Status.LAYER_DISAGREES and self._looks_through_window():
                return self._attempt_sizes(linear)
        return min(ends, key=_measure_gap)

    def _attempt_normed(self, linear: LinearPart) -> Recovery[AttentionLayer]:
        """Once more, with norms of queries and keys that nobody told."""
        wiring = self.wiring
        beside = wiring.sinks or wiring.softcap or wiring.window
        if wiring.qk_norm is not None or beside:
            return self._conclude(Ending(status=Status.UNSEPARATED, detail=NORMED))
        self._note(qk_norm=True)
        return self._attempt_sizes(linear)

    def _sees_norms(self) -> bool:
        """Whether scores of tokens do not grow with them, which is not known already."""
        if self.positions is not None or self.wiring.qk_norm:
            return False
        with self.oracle.phase("wiring"):
            return are_scores_normed(self._open_ball(), rng=self.rng)

    def _looks_through_window(self) -> bool:
        """Whether far tokens change nothing, where nothing is told of positions."""
        open_order = self.told.positions is None and self.positions is None
        # A window that was found once is not looked for again.
        if not open_order or self.wiring.window is not None:
            return False
        with self.oracle.phase("wiring"):
            window = find_window(self.oracle, self.longest, rng=self.rng)
        if window is None:
            return False
        self._note(window=window)
        self.longest = window
        return True

    def _measure_layer(self, linear: LinearPart, size: float) -> None:
        """One attempt: the layer, fitted and not yet verified."""
        self.model, self.found, self.bars, self.others = None, [], {}, []
        placed = self.positions is not None
        wiring = replace(self.wiring, positions="none") if placed else self.wiring
        searches = self.told.positions is None
        setting = Setting(wiring, self.displacements, self.longest, searches)
        asking = self._open_ball()
        work = Measuring(self.oracle, asking, linear, setting, self.wide, size=size, rng=self.rng)
        heads = work.measure_heads()
        self.found, self.bars = heads.found, heads.bars
        model = work.assemble(heads.maps)
        self.others = [work.assemble(*other) for other in heads.others]
        known = {"positions": "absolute"} if placed else {}
        self.model = replace(model, wiring=replace(model.wiring, **known), positions=self.positions)

    def _judge(self) -> Recovery[AttentionLayer]:
        model = self.model
        if model is None:
            return self._conclude(SPENT)
        with self.oracle.phase("verify"):
            allowance = allow_draws(self.oracle, model, self.others)
            ruler = replace(WIRED_LAYER.ruler(self.oracle), allowance=allowance)
            seen = examine_model(self.oracle, model, ruler=ruler, rng=self.rng)
        # Coarse answers bear out models that are only near: whether a head is right its fit tells.
        lost = self.coarse and not all(self.found)
        ending = settle(
            self.oracle,
            seen,
            lines=WIRED_LAYER,
            refuse=lambda: self._refuse(seen),
            reservation=self._refuse(seen) if lost else None,
            words=describe_rounding(self.oracle, ruler.tolerance),
        )
        return self._conclude(ending, seen)

    def _refuse(self, seen: Examination) -> Ending:
        lost = self.found.count(False)
        detail = f"{lost} of {len(self.found)} heads do not explain the answers." if lost else ""
        words = f"{detail} {describe_gap(seen.worst)}".strip()
        again = not read_imperfection(self.oracle).absolute
        doubt = Doubt(Status.LAYER_DISAGREES, seen.worst, words, again=again)
        return resolve_doubt(self.oracle, doubt)

    def _conclude(
        self, ending: Ending, seen: Examination | None = None
    ) -> Recovery[AttentionLayer]:
        model = self.model
        certificate = None
        if model is not None and seen is not None:
            limit = WIRED_LAYER.tolerance(self.oracle)
            certificate = certify_layer(model, ending.verdict, seen, limit)
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=explain_layer(self.told, self.wiring, model),
                determined=describe_determined_layer(model, ending.verdict),
                degrees_of_freedom=None if model is None else count_layer_freedom(model),
                rank=None if model is None else model.rank,
                certificate=certificate,
                bars=self.bars,
            ),
        )


def _measure_gap(end: Recovery[AttentionLayer]) -> float:
    return math.inf if end.fresh is None else end.fresh.relative
