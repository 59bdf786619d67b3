r"""A sum of heads from queries whose tokens are rows of a given matrix E, and nothing else.

Single tokens give what all values add up to. Copies of two tokens give the heads between them under
one query token (copied_pairs.py), hence all V on the affine hull of E; with these every sequence
gives shares (query_scores.py). A model that is almost right is fitted to further sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, check_finite, check_shape, freeze_array
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import freedom, head_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.heads_in_vocabulary.copied_pairs import (
    LONGEST_COPIES,
    MOST_HEADS,
    read_paired_heads,
)
from keyhole.learners.heads_in_vocabulary.query_scores import assemble_heads, lift_heads
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.several_heads.heads_fit import (
    count_soft_sequences,
    fit_heads_jointly,
    is_small_model,
    keep_acting_heads,
)
from keyhole.learners.tokens.ratios import COPIES
from keyhole.learners.verifying.ending import (
    SPENT,
    SUM_OF_HEADS,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import EXACT, Examination, examine_model
from keyhole.learners.verifying.questions import QUERIES, read_limits
from keyhole.learners.vocabulary.hull import OF_ROWS, Vocabulary, check_width
from keyhole.learners.vocabulary.token_values import EXTRA_TOKENS, Asker, ValueReader
from keyhole.models import MultiHead
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_ATTEMPTS = 3  # each under another query token
_LENGTHS = (2, 3, 4, 6)
_ALMOST = 0.1  # relative disagreement that a fit may mend
_WELL = 0.25  # of the tolerance: what is nearer needs no fit


@dataclass(frozen=True, eq=False, slots=True)
class RestrictedHeads:
    """Recovers up to four heads, at most as many as outputs, on the tokens it may ask.

    Args:
        tokens: the vocabulary E, one token per row; queries hold nothing else, bit by bit.
    """

    tokens: Matrix

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", freeze_array(self.tokens))
        check_shape("tokens", self.tokens, (None, None))
        check_finite("tokens", self.tokens)
        if len(np.unique(self.tokens, axis=0)) < 2:
            raise InvalidInput(
                "a vocabulary for several heads needs two different tokens; got shape"
                f" {self.tokens.shape}."
            )

    def plan(self, width: int, *, outputs: int = 1, heads: int = 2) -> Plan:
        """Single tokens, copies, triples, and scores of so many heads of full rank."""
        check_width(self.tokens, width)
        m = Vocabulary.of(self.tokens).size
        together = max(1, int(0.6 * min(outputs, heads * m) / heads))
        by_phase = {
            "read": m + 1 + EXTRA_TOKENS,
            "copies": (len(COPIES) + 1) * m - 1,
            "measure": m * -(-m // together),
            "verify": QUERIES,
        }
        one = by_phase["copies"] + m * m + 2 * QUERIES
        fit = 3 * MOST_HEADS * m * (m + 1 + outputs) // (2 * outputs) + 32
        return Plan(
            by_phase=by_phase,
            at_most=by_phase["read"] + _ATTEMPTS * (one + fit) + 8,
            degrees_of_freedom=heads * head_freedom(m, outputs=outputs, score_bias=m),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover what the vocabulary determines of a sum of heads."""
        check_width(self.tokens, oracle.width)
        measuring, checking = rng.spawn(2)
        session = _Session(Counted(oracle), Vocabulary.of(self.tokens), measuring)
        try:
            return session.conclude(session.recover(checking))
        except BudgetSpent:
            return session.conclude(SPENT)
        except NotAHead as refusal:
            case = refusal.counterexample
            detail = describe_case(case, "what a sum of heads can answer")
            return session.conclude(
                resolve_doubt(session.oracle, Doubt(Status.NOT_A_HEAD, case, detail))
            )


@dataclass(slots=True)
class _Session:
    """One recovery under way: the last model, on coordinates of the hull, and what was seen."""

    oracle: Counted
    vocabulary: Vocabulary
    rng: np.random.Generator
    asker: Asker = field(init=False)
    found: MultiHead | None = field(default=None, init=False)
    seen: Examination | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.asker = Asker(self.oracle, self.vocabulary)

    @property
    def roundoff(self) -> float:
        """Relative rounding of answers."""
        return read_imperfection(self.oracle).roundoff

    @property
    def model(self) -> MultiHead | None:
        """The last model, on tokens."""
        return None if self.found is None else lift_heads(self.vocabulary, self.found)

    def recover(self, checking: np.random.Generator) -> Ending:
        """Attempts until fresh queries agree."""
        if read_limits(self.oracle).lengths[1] < LONGEST_COPIES:
            return Ending(status=Status.UNSEPARATED, detail=_SHORT)
        with self.oracle.phase("read"):
            values = ValueReader(self.asker, self.roundoff, self.rng).read()
        least = 1
        for b in self._choose_queries():
            with self.oracle.phase("copies"):
                paired = read_paired_heads(self.asker, values, b, least)
            if paired is None:
                continue
            with self.oracle.phase("measure"):
                found = assemble_heads(self.asker, values, paired, self.roundoff, self.rng)
            if self._confirm(found, checking) | self._improve(checking):
                return self._settle()
            # Under one query token two heads may look like one.
            least = paired.heads
        return self._refuse()

    def _choose_queries(self) -> list[int]:
        """Long tokens, under which scores of heads are farthest apart."""
        basis = self.vocabulary.basis
        sizes = np.linalg.norm(self.vocabulary.Z[basis], axis=1)
        return basis[np.argsort(-sizes)][:_ATTEMPTS].tolist()

    def _confirm(self, found: MultiHead, rng: np.random.Generator) -> bool:
        """Whether fresh queries agree."""
        self.found = found
        limits = read_limits(self.oracle, tokens=self.vocabulary.E)
        with self.oracle.phase("verify"):
            self.seen = examine_model(
                self.oracle,
                lift_heads(self.vocabulary, found),
                ruler=SUM_OF_HEADS.ruler(self.oracle),
                rng=rng,
                limits=limits,
            )
        return self.seen.passed

    def _improve(self, rng: np.random.Generator) -> bool:
        """Whether fresh queries agree with the last model, fitted where it is near or hardly right.

        A fit that is no nearer is given up.
        """
        before, seen = self.found, self.seen
        if before is None or seen is None or not is_small_model(before):
            return False
        if not _WELL * EXACT < seen.fresh.relative <= _ALMOST:
            return False
        nearer = self._confirm(self._fit_again(before), rng)
        if not nearer and self.seen is not None and self.seen.fresh.relative > seen.fresh.relative:
            self.found, self.seen = before, seen
        return nearer

    def _fit_again(self, model: MultiHead) -> MultiHead:
        """The model fitted to answers to further sequences."""
        with self.oracle.phase("polish"):
            share = -(-count_soft_sequences(model) // len(_LENGTHS))
            many = len(self.vocabulary.E)
            tables = [self.rng.integers(many, size=(share, length)) for length in _LENGTHS]
            asked = [(self.vocabulary.Z[table], self.asker.ask(table)) for table in tables]
        return keep_acting_heads(fit_heads_jointly(model, asked, self.roundoff))

    def _settle(self) -> Ending:
        if self.seen is None:
            return SPENT
        return settle(
            self.oracle, self.seen, lines=SUM_OF_HEADS, refuse=self._refuse, words=OF_ROWS
        )

    def _refuse(self) -> Ending:
        """No attempt agreed."""
        if self.seen is None:
            return resolve_doubt(self.oracle, Doubt(Status.UNSEPARATED, None, _UNEXPLAINED))
        case = self.seen.worst
        detail = describe_case(case, "the heads that copies of two tokens show")
        return resolve_doubt(self.oracle, Doubt(Status.HEADS_DISAGREE, case, detail))

    def conclude(self, ending: Ending) -> Recovery[MultiHead]:
        """The recovery as it stands."""
        verified = self.found is not None and ending.verdict.verified
        return conclude(
            self.oracle,
            ending,
            Account(
                model=self.model,
                reason="Only rows of the vocabulary were asked; up to four heads were tried.",
                determined=self._describe_determined(ending.verdict),
                degrees_of_freedom=freedom(self.found) if self.found and verified else None,
            ),
        )

    def _describe_determined(self, verdict: Verdict) -> str:
        if self.found is None:
            return "Nothing was determined."
        if not verdict.verified:
            return "The model is the nearest one found; nothing of it is certain."
        return (
            f"{len(self.found.W)} heads are determined on the affine hull of the tokens, of"
            f" dimension {self.vocabulary.size}: W between differences of tokens (keys) and tokens"
            " (queries), V along differences; elsewhere they are chosen small. The order of heads,"
            " and what their values share as a constant, change no answer."
        )


_SHORT = f"Copies of two tokens take sequences of up to {LONGEST_COPIES} tokens."
_UNEXPLAINED = (
    f"Copies of two tokens are explained by no {MOST_HEADS} heads, nor by as many as there are"
    " outputs where these are fewer: more are not told apart where only given tokens may be asked,"
    " nor are scores so far apart that one token outweighs 48 copies of another."
)
