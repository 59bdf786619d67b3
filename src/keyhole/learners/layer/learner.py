r"""A whole attention layer with its output projection, as one black box: all heads at once.

$$F(X) = c + \sum_h \mathrm{softmax}(X (W_h x_N + h_h))^\top X V_h$$
where the spaces that the heads write into (the row spaces of the $V_h$) are independent, as they
are in a layer whose output projection has full rank.

Exact answers are read as those of any sum of heads are (joint_heads), where the spaces need not
even be independent. Where that fails, and where answers are coarse, six steps follow, each a module
or a function below:

1. read: c and $V = \sum_h V_h$ from single tokens; 2. flips: on long tokens each head is a switch;
where switches flip on a half circle separates the heads; 3. spaces: what each head writes into,
roughly, and $V_h$ as the part of V in it; 4. measure, round one: whole columns of all $W_h$ from
the same answers, until no rank grows; 5. route: one head at a time looks at x, all others away,
which gives the spaces to rounding, and stored answers are read again; 6. measure, round two:
coordinates along the ranges found, on all other directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.coarse_heads.two_readings import can_read_coarsely, recover_heads_at_once
from keyhole.learners.joint_heads import hard_pairs
from keyhole.learners.joint_heads.hard_pairs import LoneTokens
from keyhole.learners.joint_heads.road import Progress
from keyhole.learners.layer.crossings import renew_spaces
from keyhole.learners.layer.flips import (
    Dependent,
    Still,
    Unseparated,
    find_column_spaces,
    find_hard_pairs,
    find_widest_plateaus,
)
from keyhole.learners.layer.joint_scores import Scores, Spaces, calibrate_scores
from keyhole.learners.layer.layer_costs import (
    ATTEMPTS,
    JOINT_ATTEMPTS,
    certify_whole_layer,
    estimate_queries,
    limit_queries,
)
from keyhole.learners.layer.ranges import (
    assemble_partial_matrices,
    complete_score_matrices,
    measure_enough_columns,
    measure_few_columns,
    split_score_bias,
)
from keyhole.learners.layer.routing import route_heads
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead, Readout, Scattered, measure_readout
from keyhole.learners.several_heads.heads_account import (
    RANK_SHARE,
    count_heads_freedom,
    explain_heads_found,
    find_largest_rank,
)
from keyhole.learners.verifying.ending import (
    SPENT,
    Account,
    Ending,
    conclude,
    end_scattered,
)
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.sums_of_heads import CANCEL, describe_sum, judge_sum, refuse_affine
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import read_imperfection

_MEET = 100.0  # roundings of coarse answers below which the spaces of heads count as meeting
_FINE = 1e5  # roundings of float64 below which a singular value counts as zero
_COARSE = 1e3  # the same of coarser answers
_WORTH_ANOTHER = (
    Status.UNSEPARATED,
    Status.STILL,
    Status.DEPENDENT,
    Status.SATURATED,
    Status.IMPRECISE,
    Status.HEADS_DISAGREE,
)
_RESIDUAL = "A residual acts, which a sum of heads does not hold."
_REASONS = {Unseparated: Status.UNSEPARATED, Dependent: Status.DEPENDENT, Still: Status.STILL}


@dataclass(frozen=True, slots=True)
class WholeLayer:
    """Separates and recovers all heads of a layer with vector outputs, their number and ranks.

    Args:
        heads: how many heads to plan for; `run` finds their number by itself.
        head_size: ranks of W and V to plan for, likewise.
    """

    heads: int = 12
    head_size: int = 32

    def __post_init__(self) -> None:
        if self.heads < 1 or self.head_size < 1:
            raise InvalidInput(
                f"heads and head_size are whole numbers >= 1; got {self.heads} and"
                f" {self.head_size}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """What a layer of that many heads costs, each as large as width and outputs have room."""
        rank = min(self.head_size, width, max(1, outputs // self.heads))
        freedom = self.heads * head_freedom(
            width, outputs=outputs, rank=rank, value_rank=rank, score_bias=rank
        )
        by_phase = estimate_queries(width, [rank] * self.heads, rank, biased=True)
        return Plan(
            by_phase={**by_phase, "verify": QUERIES},
            at_most=limit_queries(width, outputs),
            degrees_of_freedom=freedom + outputs,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover a layer; certificate keyhole/whole-layer."""
        session = _LayerSession(oracle, rng)
        recovery = session.recover()
        certificate = certify_whole_layer(
            recovery, session.list_sizes(recovery.model), session.tries, joint=session.joint
        )
        return replace(recovery, certificate=certificate)


class _LayerSession:
    """One recovery under way."""

    def __init__(self, oracle: Oracle, rng: np.random.Generator) -> None:
        self.oracle = Counted(oracle)
        self.rng = rng
        self.imperfection = read_imperfection(oracle)
        self.roundoff = self.imperfection.roundoff
        self.readout: Readout | None = None
        self.scores: Scores | None = None
        self.ranks: list[int] | None = None
        self.tries = 0
        self.joint = False
        self.progress = Progress()

    def recover(self) -> Recovery[MultiHead]:
        """Read, then separate and measure until verified; every way to stop ends in a Recovery."""
        try:
            with self.oracle.phase("read"):
                readout = self.readout = measure_readout(
                    self.oracle, roundoff=self.roundoff, rng=self.rng
                )
            limit = limit_queries(*readout.V.shape, coarse=self.roundoff > EPS)
            spent = self.oracle.ledger.total().sequences
            self.oracle.inner = Budgeted(self.oracle.inner, limit - spent)
            return self._attempts(readout)
        except BudgetSpent:
            return self._conclude(self._partial(), SPENT)
        except Scattered as found:
            return self._conclude(None, end_scattered(found.gap))
        except NotAHead as refusal:
            ending = refuse_affine(self.oracle, refusal.counterexample, rng=self.rng)
            return self._conclude(None, ending)

    def _attempts(self, readout: Readout) -> Recovery[MultiHead]:
        fine = self.imperfection.perfect or can_read_coarsely(self.imperfection, len(readout.c))
        if fine and not readout.blind:
            found = self._attempt_jointly(readout)
            if found is not None:
                return found
        if readout.U is not None:
            return self._conclude(None, Ending(status=Status.UNSEPARATED, detail=_RESIDUAL))
        if readout.blind:
            found = self._judge(self._model(readout, [], np.zeros((0, *readout.V.shape))), self.rng)
            # Read-outs that cancel on lone tokens may still act on longer sequences.
            missed = found.status in (Status.HEADS_DISAGREE, Status.IMPRECISE)
            return self._conclude(None, CANCEL) if missed else found
        tried: list[Recovery[MultiHead]] = []
        for rng in self.rng.spawn(ATTEMPTS):
            tried.append(self._attempt(readout, rng))
            if tried[-1].status not in _WORTH_ANOTHER:
                return tried[-1]
        return tried[0]

    def _read_lone_tokens(self, readout: Readout) -> LoneTokens:
        return LoneTokens(readout.c, readout.total, self.roundoff)

    def _attempt_jointly(self, readout: Readout) -> Recovery[MultiHead] | None:
        """The recovery where all read-outs are known before any score; None where that fails."""
        lone = self._read_lone_tokens(readout)
        for rng in self.rng.spawn(JOINT_ATTEMPTS):
            self.tries += 1
            self.progress = Progress()
            try:
                model, _ = recover_heads_at_once(self.oracle, lone, rng, self.progress)
            except hard_pairs.Dependent as refusal:
                return self._conclude(None, Ending(status=Status.DEPENDENT, detail=str(refusal)))
            except hard_pairs.Unseparated:
                continue
            self.joint = True
            found = self._judge(model, rng)
            if found.status not in _WORTH_ANOTHER:
                return found
            self.joint = False
        return None

    def _attempt(self, readout: Readout, rng: np.random.Generator) -> Recovery[MultiHead]:
        self.scores = self.ranks = None
        self.tries += 1
        try:
            model = self._measure_heads(readout, rng)
        except Unseparated as refusal:
            return self._conclude(None, Ending(status=_REASONS[type(refusal)], detail=str(refusal)))
        except Saturated:
            return self._conclude(None, Ending(status=Status.SATURATED))
        return self._judge(model, rng)

    def _measure_heads(self, readout: Readout, rng: np.random.Generator) -> MultiHead:
        """One try: the layer, fitted and not yet verified."""
        spaces = self._separate_heads(readout, rng)
        fine = (_FINE if self.imperfection.perfect else _COARSE) * self.roundoff
        with self.oracle.phase("scale"):
            scores = self.scores = calibrate_scores(
                self.oracle, readout, spaces, roundoff=self.roundoff, rng=rng
            )
        with self.oracle.phase("measure"):
            # Coarse answers show no rank before spaces are sharp: only what routing needs is asked.
            if self.roundoff > EPS:
                measure_few_columns(scores)
            else:
                measure_enough_columns(scores, cut=max(self.roundoff ** (1 / 3), fine))
        with self.oracle.phase("route"):
            scores.sharpen(route_heads(scores, rng=rng) or spaces)
        with self.oracle.phase("measure"):
            measure_enough_columns(scores, cut=fine)
            found, self.ranks = complete_score_matrices(scores, cut=fine)
        return self._model(readout, found, scores.spaces.V)

    def _separate_heads(self, readout: Readout, rng: np.random.Generator) -> Spaces:
        with self.oracle.phase("flips"):
            pairs = find_hard_pairs(self.oracle, readout, rng=rng)
            plateaus = find_widest_plateaus(pairs, roundoff=self.roundoff, rng=rng)
        with self.oracle.phase("spaces"):
            bases = find_column_spaces(pairs, plateaus, roundoff=self.roundoff, rng=rng)
            if self.roundoff > EPS:
                bases = renew_spaces(pairs, bases, roundoff=self.roundoff, rng=rng)
        cut = float(np.sqrt(self.roundoff)) if self.roundoff <= EPS else _MEET * self.roundoff
        return Spaces.of(bases, readout.V, cut=cut, roundoff=self.roundoff)

    def _model(self, readout: Readout, found: Sequence[Matrix], V: Stack) -> MultiHead:
        d = len(readout.V)
        scores = self.scores
        parts = [] if scores is None else [split_score_bias(scores, M) for M in found]
        W = np.array([W for W, _ in parts]).reshape(-1, d, d)
        h = np.array([h for _, h in parts if h is not None]).reshape(-1, d)
        biases = h if readout.biased and len(h) else None
        return MultiHead(W, V, biases, readout.c if readout.c.any() else None)

    def _partial(self) -> MultiHead | None:
        """What is known so far: once heads are separated, read-outs and W as far as measured."""
        if self.readout is None:
            return None
        if self.scores is None:
            return self.progress.assemble(self._read_lone_tokens(self.readout))
        found = assemble_partial_matrices(self.scores)
        return self._model(self.readout, found, self.scores.spaces.V)

    def _judge(self, model: MultiHead, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Verify; where spaces nearly meet, a declared rounding explains more."""
        leeway = 1.0 if self.scores is None else min(10.0, 1.0 / self.scores.spaces.condition)
        probe = None if self.readout is None else self.readout.probe
        ending = judge_sum(self.oracle, model, probe=probe, rng=rng, leeway=leeway)
        return self._conclude(model, ending)

    def _conclude(self, model: MultiHead | None, ending: Ending) -> Recovery[MultiHead]:
        """The recovery, however it came to its end."""
        return conclude(
            self.oracle,
            ending,
            Account(
                model=model,
                reason=explain_heads_found(model) if self.joint else self._reason(),
                determined=describe_sum(model, ending.verdict),
                degrees_of_freedom=self._freedom(model),
                rank=find_largest_rank(model) if self.joint else max(self.ranks or [0]) or None,
            ),
        )

    def list_sizes(self, model: MultiHead | None) -> list[int]:
        """Ranks of all read-outs, once heads are told apart."""
        if self.joint and model is not None:
            return [matrix_rank(V, RANK_SHARE) if V.any() else 0 for V in model.V]
        return [basis.shape[1] for basis in self.scores.spaces.bases] if self.scores else []

    def _reason(self) -> str:
        if self.scores is None:
            return "A layer of several heads was tried."
        ranks = [basis.shape[1] for basis in self.scores.spaces.bases]
        found = f"; their W have ranks {_list_ranks(self.ranks)}" if self.ranks else ""
        return (
            f"On long tokens {len(ranks)} heads flip one by one and write into independent spaces"
            f" of dimensions {_list_ranks(ranks)}{found}."
        )

    def _freedom(self, model: MultiHead | None) -> int | None:
        """Numbers the answers determine; a score bias lies in a range, and counts its rank."""
        if self.joint:
            return count_heads_freedom(model)
        if model is None or self.scores is None or self.ranks is None:
            return None
        sizes = zip(self.ranks, self.scores.spaces.bases, strict=True)
        heads = [
            head_freedom(
                model.width,
                outputs=model.outputs,
                rank=rank,
                value_rank=basis.shape[1],
                score_bias=rank if model.h is not None else 0,
            )
            for rank, basis in sizes
        ]
        return sum(heads) + (model.outputs if model.c is not None else 0)


def _list_ranks(ranks: Sequence[int]) -> str:
    """One number where all are equal."""
    return str(ranks[0]) if len(set(ranks)) == 1 else ", ".join(map(str, ranks))
