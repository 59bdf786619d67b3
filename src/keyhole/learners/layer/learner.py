r"""A whole attention layer with its output projection, as one black box: all heads at once.

$$F(X) = c + \sum_h \mathrm{softmax}(X (W_h x_N + h_h))^\top X V_h$$
where the spaces that the heads write into (the row spaces of the $V_h$) are independent, as they
are in a layer whose output projection has full rank. Six steps, each a module or a function below:

1. read: c and $V = \sum_h V_h$ from single tokens; 2. flips: on long tokens each head is a switch;
where switches flip on a half circle separates the heads; 3. spaces: what each head writes into,
roughly, and $V_h$ as the part of V in it; 4. measure, round one: whole columns of all $W_h$ from
the same answers, until no rank grows; 5. route: one head at a time looks at x, all others away,
which gives the spaces to rounding, and stored answers are read again; 6. measure, round two:
coordinates along the ranges found, on all other directions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Plan, Recovery, Status
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
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
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

_ATTEMPTS = 3  # each with other half circles: one in many has two flips too close together
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
        ranks = [basis.shape[1] for basis in session.scores.spaces.bases] if session.scores else []
        return replace(recovery, certificate=certify_whole_layer(recovery, ranks, session.tries))


def estimate_queries(
    width: int, ranks: Sequence[int], score_rank: int, *, biased: bool
) -> dict[str, int]:
    """Queries by phase for read-outs of the given ranks and score matrices of one rank."""
    heads, least, top = len(ranks), min(ranks), max(ranks)
    together = max(1, int(0.875 * least))
    groups = -(-width // together)
    directions = width + biased
    columns = min(directions, max(heads, score_rank) + 2 + biased)
    along = min(groups, -(-int(np.ceil(1.5 * score_rank)) // together))
    return {
        "read": width + 5,
        "flips": 18 + 11 * heads,
        "spaces": heads * (top + 2 + top // 8),
        "scale": 16,
        "measure": groups * columns + along * (directions - columns),
        "route": sum(int(np.ceil(1.25 * rank)) + 1 for rank in ranks),
    }


def limit_queries(width: int, outputs: int, *, coarse: bool = False) -> int:
    """The most that is ever asked: every form of every head singly, twice, in every attempt.

    Coarse answers are asked for more half circles, twice the moves, and jumps at fresh tokens.
    """
    separate = 18 + 11 * outputs + (outputs + 8) ** 2 // 3
    if coarse:
        separate = 6 * separate + 4 * (outputs + 3) * (20 + 3 * outputs)
    measure = (width + 1) * width + 1000
    return width + 5 + _ATTEMPTS * (2 * measure + separate + 4 * outputs + 400 + QUERIES) + 8


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
        if readout.U is not None:
            return self._conclude(None, Ending(status=Status.UNSEPARATED, detail=_RESIDUAL))
        if readout.blind:
            found = self._judge(self._model(readout, [], np.zeros((0, *readout.V.shape))), self.rng)
            # Read-outs that cancel on lone tokens may still act on longer sequences.
            missed = found.status in (Status.HEADS_DISAGREE, Status.IMPRECISE)
            return self._conclude(None, CANCEL) if missed else found
        tried: list[Recovery[MultiHead]] = []
        for rng in self.rng.spawn(_ATTEMPTS):
            tried.append(self._attempt(readout, rng))
            if tried[-1].status not in _WORTH_ANOTHER:
                return tried[-1]
        return tried[0]

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
        if self.readout is None or self.scores is None:
            return None
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
                reason=self._reason(),
                determined=describe_sum(model, ending.verdict),
                degrees_of_freedom=self._freedom(model),
                rank=max(self.ranks) if self.ranks else None,
            ),
        )

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


def certify_whole_layer(
    recovery: Recovery[MultiHead], ranks: Sequence[int], tries: int
) -> Certificate | None:
    """The claim keyhole/whole-layer confronted with one run, which found these ranks."""
    model = recovery.model
    if model is None or recovery.fresh is None or len(ranks) == 0:
        return None
    rank = recovery.rank or model.width
    counts = estimate_queries(model.width, ranks, rank, biased=model.h is not None)
    per_try = recovery.ledger.total(without="verify").sequences / tries
    coarse = float(recovery.verdict is Verdict.WITHIN_TOLERANCE)
    return Certificate(
        "keyhole/whole-layer",
        assumptions=(
            assume_class("answers that no such layer gives", recovery.verdict),
            Check("answers coarser than float64", coarse, 0.0),
            Check("read-out ranks of all heads together", sum(ranks), model.outputs, judged=True),
            Check("queries per try, but those of verification", per_try, _allow_queries(counts)),
        ),
        conclusion=(conclude_agreement(recovery.fresh),),
    )


def _allow_queries(counts: Mapping[str, int]) -> float:
    """The expected count, a tenth for what is asked again, and columns that end a rank."""
    return 1.1 * sum(counts.values()) + 50
