"""Sums of heads by saturation: each head is isolated at boundaries where all others are hard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from keyhole._arrays import Matrix, Sequences, Vector, pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import canonical, head_freedom, matrix_rank
from keyhole.learners.base import Jumps, Plan, Recovery, Status
from keyhole.learners.several_heads.coinciding import Family
from keyhole.learners.several_heads.families import fit_families, recover_coinciding_heads
from keyhole.learners.several_heads.joint_fit import is_small_model, keep_acting_heads, polish_heads
from keyhole.learners.several_heads.last_column import measure_heads
from keyhole.learners.several_heads.mirror_pairs import add_unseen_pair
from keyhole.learners.several_heads.pairs import (
    Pairs,
    Unresolved,
    find_soft_scale,
    normalise_rows,
    read_sum,
    scale_outputs,
)
from keyhole.learners.several_heads.refutation import find_impossible_answer
from keyhole.learners.several_heads.rows import RowSearch, find_rows, measure_readouts
from keyhole.learners.several_heads.signs import assemble_heads, resolve_signs
from keyhole.learners.verifying.ending import (
    SPENT,
    SUM_OF_HEADS,
    Account,
    Doubt,
    Ending,
    conclude,
    repeat_case,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, examine_model
from keyhole.learners.verifying.questions import (
    QUERIES,
    choose_token_scales,
    draw_fresh_sequences,
    shorten_to_bound,
)
from keyhole.models import Head, MultiHead
from keyhole.oracles import Budgeted, Counted, Oracle
from keyhole.oracles.base import read_imperfection

_EXACT, _ROUGH, _MERGE = "exact", "rough", "merge"  # ways to search for rows
_ATTEMPTS = (_EXACT, _EXACT, _ROUGH, _EXACT, _ROUGH, _ROUGH, _MERGE)
_HARD = 2.0**46  # over the scale at which the steepest head begins to act
_COARSE = 2.0**24  # the same in the last attempt: heads that are nearly equal become one
_PROBES = 4
_PER_HEAD = 60  # queries to find a head, apart from those that grow with d
_RANK = 1e-9
_PAIR = 2
_OWN_LENGTHS = (2, 3, 6)
_ALMOST = 0.1  # relative disagreement that Gauss-Newton may mend
_FINE = 2.0**14  # roundings within which a model agrees as closely as answers allow
_AGAIN = 2  # searches for heads that coincide, behind a model that is right but not as closely
_FAINT = 2.0**20  # roundings of the largest read-out within which another may be none


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralHeads:
    """Recovers any number of heads, each of any rank, from d^2 + 4d + about 30 queries per head.

    Args:
        most: more heads than this are given up.
        queries: never ask more than this in all; None for `plan(...).at_most`.
    """

    most: int = 32
    queries: int | None = None

    def __post_init__(self) -> None:
        if self.most < 1 or (self.queries is not None and self.queries < 1):
            raise InvalidInput(
                f"most and queries must be at least 1; got {self.most} and {self.queries}."
            )

    def plan(self, width: int, *, outputs: int = 1, heads: int | None = None) -> Plan:
        """What `heads` heads of full rank cost; the number of heads is found and need not be
        given.
        """
        count = self.most if heads is None else heads
        by_phase = {
            "read": width + 1,
            "scale": 3 * _PROBES,
            "rows": count * (width + 25) + 20,
            "measure": count * (width * width + 2 * width),
            "signs": count + 1,
            "verify": QUERIES + len(_OWN_LENGTHS) * count,
        }
        freedom = count * head_freedom(width, outputs=outputs)
        attempt = self.most * (2 * width * width + 6 * width + _PER_HEAD) + 400
        return Plan(
            by_phase=by_phase,
            at_most=self.queries or len(_ATTEMPTS) * (attempt + by_phase["verify"]),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover a sum of heads; certificate keyhole/saturate-and-isolate."""
        cap = Budgeted(oracle, self.plan(oracle.width).at_most)
        session = SeveralHeadsSession(
            Counted(cap), self.most, read_imperfection(oracle).roundoff, cap
        )
        with pin_one_thread():
            return session.recover(rng)


@dataclass(slots=True)
class SeveralHeadsSession:
    """One recovery under way: the best model so far and what was seen of it."""

    oracle: Counted
    most: int
    roundoff: float
    cap: Budgeted
    bound: float | None = None
    model: MultiHead | None = field(default=None, init=False)
    failed: int = field(default=0, init=False)
    fits: int = field(default=0, init=False)
    seen: Examination | None = field(default=None, init=False)
    jumps: Jumps | None = field(default=None, init=False)

    def recover(self, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Attempts until fresh queries agree; every way to stop ends in a Recovery."""
        measuring, checking = rng.spawn(2)
        try:
            with self.oracle.phase("read"):
                pairs = read_sum(self.oracle, self.roundoff)
            for way in _ATTEMPTS:
                if self._attempt(pairs, way, measuring, checking):
                    self._improve(pairs, measuring, checking)
                    return self._examined()
                self.failed += 1
            return self._refused(pairs.c, pairs.B, checking)
        except BudgetSpent:
            return self._spent()

    def _spent(self) -> Recovery[MultiHead]:
        """The end of a budget, or of the learner's own cap."""
        own = self.cap.spent >= self.cap.budget
        return self._conclude(Ending(status=Status.UNRESOLVED) if own else SPENT)

    def _attempt(
        self, pairs: Pairs, way: str, measuring: np.random.Generator, checking: np.random.Generator
    ) -> bool:
        """Whether a model was found that fresh queries do not contradict."""
        return any(
            self._confirmed(model, checking) for model in self._candidates(pairs, way, measuring)
        )

    def _candidates(self, pairs: Pairs, way: str, rng: np.random.Generator) -> Iterator[MultiHead]:
        """Models of one attempt, the next of which is made when fresh queries contradict the
        last.
        """
        with suppress(Unresolved):
            pairs, search = self._scaled(pairs, way, rng)
            if search is None:
                yield from self._seen_by_triples(_build_mean_model(pairs), rng)
            elif search.rough:
                model, rows = recover_coinciding_heads(pairs, search, rng)
                self.jumps = pairs.jumps(rows.x, rows.angles, rows.J)
                yield keep_acting_heads(model)
            else:
                yield from self._isolated(pairs, search, rng)

    def _isolated(
        self, pairs: Pairs, search: RowSearch, rng: np.random.Generator
    ) -> Iterator[MultiHead]:
        """Heads one by one; then, where only triples differ, an unseen pair; then all fitted
        together.
        """
        with self.oracle.phase("rows"):
            rows = find_rows(pairs, search, rng)
            D = measure_readouts(pairs, rows, rng)
        with self.oracle.phase("measure"):
            W = measure_heads(pairs, rows, D, rng)
        with self.oracle.phase("signs"):
            model = resolve_signs(pairs, rows, W, D, rng)
        self.jumps = pairs.jumps(rows.x, rows.angles, rows.J)
        yield from self._seen_by_triples(model, rng)
        self.fits += 1
        if self.almost:
            yield self.polished(rng)
        else:
            yield keep_acting_heads(fit_families(pairs, [Family(W, D)], rng))

    def _seen_by_triples(self, model: MultiHead, rng: np.random.Generator) -> Iterator[MultiHead]:
        """The model; then, where only longer sequences contradict it, one with a pair that others
        do not show.
        """
        yield model
        if self._triples_differ():
            yield self._with_unseen_pair(model, rng)

    @property
    def almost(self) -> bool:
        """Whether the last model is nearly right and small enough to be fitted."""
        return (
            self.seen is not None
            and self.seen.fresh.relative <= _ALMOST
            and is_small_model(self.model)
        )

    def polished(self, rng: np.random.Generator) -> MultiHead:
        """The last model fitted to fresh answers."""
        if self.model is None:
            raise Unresolved
        with self.oracle.phase("polish"):
            return keep_acting_heads(
                polish_heads(self.oracle, self.model, self.roundoff, rng, bound=self.bound)
            )

    def _improve(
        self, pairs: Pairs, measuring: np.random.Generator, checking: np.random.Generator
    ) -> None:
        """A confirmed model again without faint heads, and closer where it is less precise than
        answers allow.
        """
        best = self.model, self.seen
        with suppress(BudgetSpent):
            for model in self._closer(pairs, measuring):
                better = self._confirmed(model, checking) and self._improves(*best)
                self.model, self.seen = best = (self.model, self.seen) if better else best
        self.model, self.seen = best

    def _improves(self, model: MultiHead | None, seen: Examination | None) -> bool:
        """Whether the last model has fewer heads than another, or agrees more closely with fresh
        answers.
        """
        if (
            self.model is None
            or self.seen is None
            or model is None
            or seen is None
            or not self.seen.complete
        ):
            return False
        return len(self.model.W) < len(model.W) or self.seen.fresh.relative < seen.fresh.relative

    def _closer(self, pairs: Pairs, rng: np.random.Generator) -> Iterator[MultiHead]:
        """Models that may be better than the last."""
        if self.model is None or self.seen is None or not (self.perfect and self.seen.complete):
            return
        lean = keep_acting_heads(self.model, _FAINT * self.roundoff)
        if len(lean.W) < len(self.model.W):
            yield lean
        if self._coarse:
            self.fits += 1
            yield self.polished(rng)
        for _ in range(_AGAIN):
            if self._coarse:
                yield from self._candidates(pairs, _ROUGH, rng)

    @property
    def _coarse(self) -> bool:
        """Whether fresh answers are met less closely than rounding explains, by a model small
        enough to be fitted.
        """
        return (
            self.seen is not None
            and self.seen.fresh.relative > _FINE * self.roundoff
            and is_small_model(self.model)
        )

    def _with_unseen_pair(self, model: MultiHead, rng: np.random.Generator) -> MultiHead:
        """The model with a mirror pair that only longer sequences show, where there is one."""
        try:
            with self.oracle.phase("mirror"):
                return add_unseen_pair(self.oracle, model, rng)
        except Unresolved:
            return model

    def _triples_differ(self) -> bool:
        """Whether sequences of one and two tokens agree with the model and longer ones do not."""
        if self.seen is None or self.seen.worst is None or not self.perfect:
            return False
        return len(self.seen.worst.tokens) > _PAIR

    def _confirmed(self, model: MultiHead, rng: np.random.Generator) -> bool:
        """Whether fresh queries agree, as far as they could be asked."""
        self.model = model
        batches = shorten_to_bound(
            chain(draw_fresh_sequences(model, rng=rng), draw_head_sequences(model, rng)), self.bound
        )
        with self.oracle.phase("verify"):
            self.seen = examine_model(
                self.oracle,
                model,
                tolerance=self.tolerance,
                roundoff=self.roundoff,
                rng=rng,
                batches=batches,
            )
        return self.seen.passed

    def _scaled(
        self, pairs: Pairs, way: str, rng: np.random.Generator
    ) -> tuple[Pairs, RowSearch | None]:
        """Outputs in their units, and where to search for rows; None where nothing acts."""
        d, hard = self.oracle.width, _COARSE if way == _MERGE else _HARD
        with self.oracle.phase("scale"):
            X, Y = normalise_rows(rng.normal(size=(2, _PROBES, d)))
            soft = find_soft_scale(pairs, X, Y)
            if soft is None or d == 1:
                return pairs, None
            return scale_outputs(pairs, X, Y, soft * hard), RowSearch(
                soft, soft * hard, self.most, rough=way == _ROUGH
            )

    @property
    def perfect(self) -> bool:
        """Whether answers are declared to be exact."""
        return read_imperfection(self.oracle).perfect

    def _examined(self) -> Recovery[MultiHead]:
        """The recovery of a model that fresh queries did not contradict."""
        seen, model = self.seen, self.model
        if seen is None or model is None:
            return self._conclude(Ending(status=Status.HIDDEN))
        ending = settle(
            self.oracle,
            seen,
            lines=SUM_OF_HEADS,
            refuse=lambda: Ending(status=Status.UNRESOLVED),
            blind=not model.V.any(),
            words=(
                ""
                if self.perfect
                else f"Answers are declared to be rounded to {self.roundoff:.1e}."
            ),
        )
        return self._conclude(ending)

    def _refused(self, c: Vector, B: Matrix, rng: np.random.Generator) -> Recovery[MultiHead]:
        """No attempt agreed: the class is refuted only by an answer that no sum of heads gives."""
        with self.oracle.phase("verify"):
            case = find_impossible_answer(self.oracle, c, B, self.roundoff, rng, bound=self.bound)
        doubted = case if case is not None or self.seen is None else self.seen.worst
        doubt = Doubt(Status.UNRESOLVED if case is None else Status.NOT_HEADS, case)
        return self._conclude(
            resolve_doubt(self.oracle, doubt, repeat=partial(repeat_case, self.oracle, doubted))
        )

    def _conclude(self, ending: Ending) -> Recovery[MultiHead]:
        ranks = (
            [] if self.model is None else [matrix_rank(W, _RANK) for W in canonical(self.model).W]
        )
        seen = self.seen.fresh if self.seen is not None and self.seen.fresh.sequences else None
        return conclude(
            self.oracle,
            replace(ending, fresh=seen),
            Account(
                model=self.model,
                reason=_explain_heads_found(self.model),
                determined=_describe_determined_heads(ending.verdict),
                degrees_of_freedom=_count_heads_freedom(self.model),
                rank=max(ranks, default=None),
                certificate=self._certificate(ending.status),
                jumps=self.jumps,
            ),
        )

    def _certificate(self, status: Status) -> Certificate | None:
        if self.model is None or self.seen is None:
            return None
        theorem, further, allowed = self._promise(len(self.model.W))
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            theorem,
            assumptions=(
                Check(
                    "answers that could not be split among heads",
                    float(status is not Status.RECOVERED),
                    0.0,
                ),
                Check("attempts that did not tell the heads apart", float(self.failed), 0.0),
                further,
            ),
            conclusion=(
                Check("queries used", asked, allowed),
                Check(
                    "worst relative disagreement on fresh queries",
                    self.seen.fresh.relative,
                    self.tolerance,
                ),
            ),
        )

    def _promise(self, heads: int) -> tuple[str, Check, float]:
        """The theorem that a run instantiates, what else it assumes, and how many queries it
        allows.
        """
        d = self.oracle.width
        allowed = heads * (d * d + 4 * d + _PER_HEAD) + d + 200
        return (
            "keyhole/saturate-and-isolate",
            Check("models fitted to further answers", self.fits, 0.0),
            allowed,
        )

    @property
    def tolerance(self) -> float:
        """Relative disagreement that is explained."""
        return SUM_OF_HEADS.tolerance(self.oracle)


def draw_head_sequences(model: MultiHead, rng: np.random.Generator) -> Iterator[Sequences]:
    """Sequences at which each head in turn has logits of order one, however small or large its W
    is.
    """
    for W, V in zip(model.W, model.V, strict=True):
        if W.any():
            scale = choose_token_scales(Head(W, V), rng=rng)[1]
            for length in _OWN_LENGTHS:
                yield scale * rng.normal(size=(1, length, model.width)) / np.sqrt(model.width)


def _count_heads_freedom(model: MultiHead | None) -> int | None:
    """Degrees of freedom of the heads found; a mean head has only its read-out."""
    if model is None:
        return None
    outputs = model.outputs
    return sum(
        head_freedom(
            model.width,
            outputs=outputs,
            rank=matrix_rank(W, _RANK) if W.any() else 0,
            value_rank=int(np.linalg.matrix_rank(V)),
        )
        for W, V in zip(model.W, model.V, strict=True)
    ) + outputs * (model.c is not None)


def _explain_heads_found(model: MultiHead | None) -> str:
    if model is None:
        return "A sum of heads was looked for."
    ranks = [matrix_rank(W, _RANK) if W.any() else 0 for W in model.W]
    return f"Heads found: {len(ranks)}, with W of rank {', '.join(map(str, ranks))}."


def _describe_determined_heads(verdict: Verdict) -> str:
    if verdict.verified:
        return (
            "W and V of every head are determined; the order of heads, a split of V among heads of"
            " equal W, and heads without effect are not."
        )
    return "Nothing is determined but the sum of all read-outs."


def _build_mean_model(pairs: Pairs) -> MultiHead:
    """The mean alone, where nothing acts on pairs of tokens."""
    d, none = len(pairs.B), np.zeros((0, *pairs.B.shape))
    return assemble_heads(pairs, np.zeros((0, d, d)), none, none)
