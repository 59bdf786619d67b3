"""One recovery of a sum of heads: attempts of every kind until fresh queries agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Jumps, Recovery, Status
from keyhole.learners.coarse_heads.two_readings import can_read_at_once, recover_heads_at_once
from keyhole.learners.joint_heads.hard_pairs import (
    Dependent,
    LoneTokens,
    Unseparated,
    read_lone_tokens,
)
from keyhole.learners.joint_heads.road import Progress
from keyhole.learners.several_heads.coinciding import Family
from keyhole.learners.several_heads.families import fit_families, recover_coinciding_heads
from keyhole.learners.several_heads.heads_account import (
    count_heads_freedom,
    describe_determined_heads,
    explain_heads_found,
    find_largest_rank,
    promise_theorem,
)
from keyhole.learners.several_heads.heads_fit import (
    fit_small_model,
    is_small_model,
    keep_acting_heads,
    polish_heads,
)
from keyhole.learners.several_heads.last_column import measure_heads
from keyhole.learners.several_heads.mirror_pairs import add_unseen_pair
from keyhole.learners.several_heads.opposed_search import find_lone_pair, find_opposed_pairs
from keyhole.learners.several_heads.pairs import (
    Pairs,
    Unresolved,
    find_soft_scale,
    normalise_rows,
    scale_outputs,
    start_pairs,
)
from keyhole.learners.several_heads.rows import RowSearch, find_rows, measure_readouts
from keyhole.learners.several_heads.signs import build_mean_model, resolve_signs
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import (
    SPENT,
    SUM_OF_HEADS,
    Account,
    Doubt,
    Ending,
    conclude,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, Ruler, examine_model
from keyhole.learners.verifying.questions import read_limits
from keyhole.models import MultiHead
from keyhole.oracles import Budgeted, Counted
from keyhole.oracles.base import read_imperfection

_EXACT, _ROUGH, _MERGE = "exact", "rough", "merge"  # ways to search for rows
JOINT_ATTEMPTS = 3  # with all heads at once, each on another half circle
ATTEMPTS = (_EXACT, _EXACT, _ROUGH, _EXACT, _ROUGH, _ROUGH, _MERGE)
_HARD = 2.0**46  # over the scale at which the steepest head begins to act
_COARSE = 2.0**24  # the same in the last attempt: heads that are nearly equal become one
PROBES = 4
_PAIR = 2
_ALMOST = 0.1  # relative disagreement that Gauss-Newton may mend
_WELL = 0.25  # of the tolerance
_FINE = 2.0**20  # roundings within which a model agrees closely, tokens stretched included
_AGAIN = 2  # searches for heads that coincide, behind a model that is right but not as closely
_FAINT = 2.0**20  # roundings of the largest read-out within which another may be none
_UNRESOLVED = Ending(status=Status.UNRESOLVED)


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
    joint: bool = field(default=False, init=False)

    def recover(self, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Attempts until fresh queries agree; every way to stop ends in a Recovery."""
        measuring, checking = rng.spawn(2)
        try:
            with self.oracle.phase("read"):
                lone = replace(read_lone_tokens(self.oracle), roundoff=self.roundoff)
            if self._recover_jointly(lone, measuring, checking):
                return self._conclude_examined()
            self.joint = False
            self.failed = 0
            # Isolation reads one score at a time, and mends no model too large to be fitted.
            if self._is_near_miss(lone):
                return self._conclude_refused()
            pairs = start_pairs(self.oracle, lone, self.roundoff)
            for way in ATTEMPTS:
                if self._attempt(pairs, way, measuring, checking):
                    self._keep_best(self._closer(pairs, measuring), checking)
                    return self._conclude_examined()
                self.failed += 1
            return self._conclude_refused()
        except BudgetSpent:
            return self._end_spent()

    def _end_spent(self) -> Recovery[MultiHead]:
        """The end of a budget, or of the learner's own cap."""
        return self._conclude(_UNRESOLVED if self.cap.spent >= self.cap.budget else SPENT)

    def _recover_jointly(
        self, lone: LoneTokens, measuring: np.random.Generator, checking: np.random.Generator
    ) -> bool:
        """Whether a model was found whose read-outs are known before any score."""
        # Steps are told apart by rounding; in width 1 there is no half circle.
        if not can_read_at_once(read_imperfection(self.oracle), lone) or len(lone.B) == 1:
            return False
        self.joint = True
        for tried in range(2 * JOINT_ATTEMPTS):
            if tried >= JOINT_ATTEMPTS and not self._is_near_miss(lone):
                break
            progress = Progress()
            try:
                found = recover_heads_at_once(self.oracle, lone, measuring, progress)
            # What rounding leaves of two heads that cancel looks like many.
            except Dependent:
                return self._confirm_any(find_lone_pair(self.oracle, lone, measuring), checking)
            except Unseparated:
                self.failed += 1
                continue
            # Scores read along one combination of outputs are told better by all of them.
            model, self.jumps = fit_small_model(found[0], progress.soft, self.roundoff), found[1]
            if self._confirm_polished(model, measuring, checking):
                return True
            self.failed += 1
        return self._confirm_any(find_opposed_pairs(self.oracle, lone, measuring), checking)

    def _confirm_any(
        self, found: Iterator[tuple[MultiHead, Jumps | None]], checking: np.random.Generator
    ) -> bool:
        """Whether fresh queries agree with one of these, each found with its steps."""
        for model, jumps in found:
            self.jumps = jumps
            if self._confirm_model(model, checking):
                return True
        return False

    def _confirm_polished(
        self, model: MultiHead, measuring: np.random.Generator, checking: np.random.Generator
    ) -> bool:
        """Whether fresh queries agree, with the model or with one fitted to further answers."""
        passed = self._confirm_model(model, checking)
        # Close to the line other questions may be beyond it.
        if not self.almost or (passed and self._is_near(_WELL * self.tolerance)):
            return passed
        polished = self._polish_once(measuring)
        if passed:
            self._keep_best(polished, checking)
        return passed or self._confirm_model(next(polished), checking)

    def _polish_once(self, rng: np.random.Generator) -> Iterator[MultiHead]:
        self.fits += 1
        yield self.polish_model(rng)

    def _attempt(
        self, pairs: Pairs, way: str, measuring: np.random.Generator, checking: np.random.Generator
    ) -> bool:
        """Whether a model was found that fresh queries do not contradict."""
        return any(
            self._confirm_model(model, checking)
            for model in self._candidates(pairs, way, measuring)
        )

    def _candidates(self, pairs: Pairs, way: str, rng: np.random.Generator) -> Iterator[MultiHead]:
        """Models of one attempt; the next is made when fresh queries contradict the last."""
        with suppress(Unresolved):
            pairs, search = self._scale_outputs(pairs, way, rng)
            if search is None:
                yield from self._seen_by_triples(build_mean_model(pairs), rng)
            elif search.rough:
                model, rows = recover_coinciding_heads(pairs, search, rng)
                self.jumps = pairs.jumps(rows.x, rows.angles, rows.J)
                yield keep_acting_heads(model)
            else:
                yield from self._isolate_heads(pairs, search, rng)

    def _isolate_heads(
        self, pairs: Pairs, search: RowSearch, rng: np.random.Generator
    ) -> Iterator[MultiHead]:
        """Heads one by one; where only triples differ, an unseen pair; then all fitted together."""
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
        # Gauss-Newton mends a model that is nearly right; another is fitted from its rows anew.
        if self.almost:
            yield self.polish_model(rng)
        else:
            yield keep_acting_heads(fit_families(pairs, [Family(W, D)], rng))

    def _seen_by_triples(self, model: MultiHead, rng: np.random.Generator) -> Iterator[MultiHead]:
        """The model; then, where only longer sequences contradict it, one with an unseen pair."""
        yield model
        if self._triples_differ():
            yield self._with_unseen_pair(model, rng)

    @property
    def almost(self) -> bool:
        """Whether the last model is nearly right and small enough to be fitted."""
        return self._is_near() and is_small_model(self.model)

    def _is_near_miss(self, lone: LoneTokens) -> bool:
        return len(lone.c) > 1 and self._is_near() and not self.almost

    def _is_near(self, line: float = _ALMOST) -> bool:
        return self.seen is not None and self.seen.fresh.relative <= line

    def polish_model(self, rng: np.random.Generator) -> MultiHead:
        """The last model fitted to fresh answers."""
        if self.model is None:
            raise Unresolved
        with self.oracle.phase("polish"):
            return keep_acting_heads(
                polish_heads(self.oracle, self.model, self.roundoff, rng, bound=self.bound)
            )

    def _keep_best(self, models: Iterator[MultiHead], checking: np.random.Generator) -> None:
        """The confirmed model, or one of others that has no faint heads or is more precise."""
        best = self.model, self.seen
        # The model in hand is confirmed already, so that a budget spent here costs nothing.
        with suppress(BudgetSpent):
            for model in models:
                if self._confirm_model(model, checking) and self._improves(*best):
                    best = self.model, self.seen
                self.model, self.seen = best
        self.model, self.seen = best

    def _improves(self, model: MultiHead | None, seen: Examination | None) -> bool:
        """Whether the last model has fewer heads than another, or agrees more closely."""
        if self.model is None or self.seen is None or model is None or seen is None:
            return False
        # Fewer fresh questions than the other model was asked are no ground to prefer it.
        if not self.seen.complete:
            return False
        return len(self.model.W) < len(model.W) or self.seen.fresh.relative < seen.fresh.relative

    def _closer(self, pairs: Pairs, rng: np.random.Generator) -> Iterator[MultiHead]:
        """Models that may be better than the last."""
        if self.model is None or self.seen is None or not self.seen.complete:
            return
        if not self.perfect:
            # Every answer is off: a fit to many evens that out.
            if is_small_model(self.model):
                yield from self._polish_once(rng)
            return
        lean = keep_acting_heads(self.model, _FAINT * self.roundoff)
        if len(lean.W) < len(self.model.W):
            yield lean
        if self._coarse:
            yield from self._polish_once(rng)
        for _ in range(_AGAIN):
            if self._coarse:
                yield from self._candidates(pairs, _ROUGH, rng)

    @property
    def _coarse(self) -> bool:
        """Whether a model small enough to be fitted is less precise than rounding explains."""
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

    def _confirm_model(self, model: MultiHead, rng: np.random.Generator) -> bool:
        """Whether fresh queries agree, as far as they could be asked."""
        self.model = model
        with self.oracle.phase("verify"):
            self.seen = examine_model(
                self.oracle,
                model,
                ruler=Ruler(self.tolerance, self.roundoff),
                rng=rng,
                limits=read_limits(self.oracle, bound=self.bound),
            )
        return self.seen.passed

    def _scale_outputs(
        self, pairs: Pairs, way: str, rng: np.random.Generator
    ) -> tuple[Pairs, RowSearch | None]:
        """Outputs in their units, and where to search for rows; None where nothing acts."""
        d = self.oracle.width
        with self.oracle.phase("scale"):
            X, Y = normalise_rows(rng.normal(size=(2, PROBES, d)))
            soft = find_soft_scale(pairs, X, Y)
            # On a line there are no circles to walk around: one coordinate has no rows to find.
            if soft is None or d == 1:
                return pairs, None
            hard = soft * (_COARSE if way == _MERGE else _HARD)
            search = RowSearch(soft, hard, self.most, rough=way == _ROUGH)
            return scale_outputs(pairs, X, Y, hard), search

    @property
    def perfect(self) -> bool:
        """Whether answers are declared to be exact."""
        return read_imperfection(self.oracle).perfect

    def _conclude_examined(self) -> Recovery[MultiHead]:
        """The recovery of a model that fresh queries did not contradict."""
        seen, model = self.seen, self.model
        if seen is None or model is None:
            return self._conclude(Ending(status=Status.HIDDEN))
        words = f"Answers are declared to be rounded to {self.roundoff:.1e}."
        ending = settle(
            self.oracle,
            seen,
            lines=SUM_OF_HEADS,
            refuse=lambda: _UNRESOLVED,
            blind=not model.V.any(),
            words="" if self.perfect else words,
        )
        return self._conclude(ending)

    def _conclude_refused(self) -> Recovery[MultiHead]:
        """No attempt agreed; a target that does not stand by its answers has no heads to find."""
        case = None if self.seen is None else self.seen.worst
        return self._conclude(resolve_doubt(self.oracle, Doubt(Status.UNRESOLVED, case)))

    def _conclude(self, ending: Ending) -> Recovery[MultiHead]:
        seen = self.seen.fresh if self.seen is not None and self.seen.fresh.sequences else None
        return conclude(
            self.oracle,
            replace(ending, fresh=seen),
            Account(
                model=self.model,
                reason=explain_heads_found(self.model),
                determined=describe_determined_heads(self.model, ending.verdict),
                degrees_of_freedom=count_heads_freedom(self.model),
                rank=find_largest_rank(self.model),
                certificate=self._certificate(ending.verdict),
                jumps=self.jumps,
            ),
        )

    def _certificate(self, verdict: Verdict) -> Certificate | None:
        if self.model is None or self.seen is None:
            return None
        theorem, further, allowed = self._promise(self.model)
        asked = self.oracle.ledger.total(without="verify").sequences
        return Certificate(
            theorem,
            assumptions=(
                assume_class("answers that could not be split among heads", verdict),
                Check("attempts that did not tell the heads apart", float(self.failed), 0.0),
                further,
                Check("queries used", asked, allowed),
            ),
            conclusion=(conclude_agreement(self.seen.fresh, self.tolerance),),
        )

    def _promise(self, model: MultiHead) -> tuple[str, Check, float]:
        return promise_theorem(model, self.roundoff, joint=self.joint, fits=self.fits)

    @property
    def tolerance(self) -> float:
        """Relative disagreement that is explained."""
        return SUM_OF_HEADS.tolerance(self.oracle)
