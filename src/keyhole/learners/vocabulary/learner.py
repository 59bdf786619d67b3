r"""A head from queries whose tokens are rows of a given matrix E, and nothing else.

Single tokens give the affine read-out. Comparisons under one query token b give the column $W z_b +
h$ on the differences of tokens, b running over an affine basis; once the columns of several tokens
span no more than those before, the others are measured only along that span. What the affine hull
of E leaves open is chosen small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, check_finite, check_shape, freeze_array
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Plan, Recovery, Status
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.verifying.ending import (
    SPENT,
    VOCABULARY,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, Ruler, examine_model
from keyhole.learners.verifying.questions import QUERIES, Limits, read_limits
from keyhole.learners.vocabulary.comparisons import SPARE, Comparer, count_readable_tokens
from keyhole.learners.vocabulary.hull import OF_ROWS, Vocabulary, check_width
from keyhole.learners.vocabulary.score_assembly import Scores
from keyhole.learners.vocabulary.token_values import (
    EXTRA_TOKENS,
    PAIRS,
    TRIES,
    Asker,
    ValueReader,
    Values,
)
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection


@dataclass(frozen=True, eq=False, slots=True)
class Restricted:
    """Recovers a head on the tokens it may ask, whose affine hull has dimension m.

    It takes (m + 1) ceil(m/o) comparisons at most.

    Args:
        tokens: the vocabulary E, one token per row; queries hold nothing else, bit by bit.
    """

    tokens: Matrix

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", freeze_array(self.tokens))
        check_shape("tokens", self.tokens, (None, None))
        check_finite("tokens", self.tokens)
        if self.tokens.size == 0:
            raise InvalidInput(
                f"a vocabulary needs at least one token; got shape {self.tokens.shape}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """One query per basis token, pairs to see what acts, comparisons for W of full rank."""
        check_width(self.tokens, width)
        m = Vocabulary.of(self.tokens).size
        many = count_readable_tokens(min(m, outputs))
        by_phase = {
            "read": m + 1 + EXTRA_TOKENS,
            "scale": 4 * PAIRS,
            "measure": (m + 1) * -(-m // many),
            "verify": QUERIES,
        }
        pairs = 4 * PAIRS * TRIES + 2 * TRIES * (m + 1)
        most = by_phase["read"] + pairs + 4 * (m + 1) * m + SPARE + QUERIES + 4
        freedom = head_freedom(m, outputs=outputs, score_bias=m, constant=True)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=outputs)

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover what the vocabulary determines of a head."""
        check_width(self.tokens, oracle.width)
        measuring, checking = rng.spawn(2)
        session = _VocabularySession(Counted(oracle), Vocabulary.of(self.tokens), measuring)
        try:
            session.measure()
        except BudgetSpent:
            return session.conclude(SPENT)
        except Saturated:
            return session.conclude(session.refuse(Status.SATURATED))
        except NotAHead as refusal:
            return session.conclude(session.refuse(Status.NOT_A_HEAD, refusal.counterexample))
        return _judge(session, checking)


@dataclass(slots=True)
class _VocabularySession:
    """One recovery under way."""

    oracle: Counted
    vocabulary: Vocabulary
    rng: np.random.Generator
    reader: ValueReader = field(init=False)
    scores: Scores = field(init=False)
    values: Values | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        roundoff = read_imperfection(self.oracle).roundoff
        self.reader = ValueReader(Asker(self.oracle, self.vocabulary), roundoff, self.rng)
        self.scores = Scores(self.vocabulary, roundoff, self.tolerance)

    @property
    def tolerance(self) -> float:
        """What fresh answers may differ by, relative to the token values."""
        return VOCABULARY.tolerance(self.oracle)

    @property
    def blind(self) -> bool:
        """Whether attention shows in no answer."""
        return self.values is None or not self.values.V.any()

    @property
    def head(self) -> Head | None:
        """The head as far as it is known."""
        values = self.values
        if values is None:
            return None
        return self.vocabulary.lift(self.scores.W, self.scores.h, values.V, values.c, values.U)

    def measure(self) -> None:
        """Read out, see what acts, and measure the scores."""
        with self.oracle.phase("read"):
            self.values = self.reader.read()
        # One token alone is compared with nothing.
        if self.vocabulary.size == 0:
            return
        with self.oracle.phase("scale"):
            self.values = self.reader.separate(self.values)
        if self.blind:
            return
        comparer = Comparer(
            self.reader.asker,
            self.values,
            roundoff=self.reader.roundoff,
            tolerance=self.tolerance,
            rng=self.rng,
        )
        with self.oracle.phase("measure"):
            self.scores.measure(comparer, rng=self.rng)

    @property
    def limits(self) -> Limits:
        """Fresh questions have tokens of the vocabulary, half of them not asked before, if any."""
        E = self.vocabulary.E
        used = np.array(sorted(self.reader.asker.used), dtype=np.int64)
        held = E[self.vocabulary.outside(used)]
        # Repeated, so that about half of what is drawn is new.
        copies = max(1, len(E) // len(held)) if len(held) else 0
        return read_limits(self.oracle, tokens=np.concatenate([E, *[held] * copies]))

    def refuse(self, status: Status, case: Counterexample | None = None) -> Ending:
        """Refuse, unless the target turns out to answer the same question differently."""
        detail = describe_case(case, "what such a head can answer")
        if status is Status.SATURATED:
            detail = (
                "Only tokens of the vocabulary may be asked, and their scores are too far apart."
            )
        return resolve_doubt(self.oracle, Doubt(status, case, detail), probe=self.reader.probe)

    def conclude(self, ending: Ending) -> Recovery[Head]:
        """The recovery as it stands."""
        return conclude(
            self.oracle,
            ending,
            Account(
                model=self.head,
                reason="Only rows of the vocabulary were asked; one head was tried.",
                determined=self._describe_determined(ending.verdict),
                degrees_of_freedom=self._count_freedom(),
                rank=0 if self.blind and self.values is not None else self.scores.rank,
            ),
        )

    def _count_freedom(self) -> int | None:
        if self.values is None or (self.scores.rank is None and not self.blind):
            return None
        m, o = self.values.V.shape
        return head_freedom(
            m,
            outputs=o,
            rank=self.scores.rank or 0,
            value_rank=0 if self.blind else int(np.linalg.matrix_rank(self.values.V)),
            score_bias=0 if self.blind else m,
            constant=True,
            residual=self.values.U is not None,
        )

    def _describe_determined(self, verdict: Verdict) -> str:
        v = self.vocabulary
        where = (
            f"The tokens span {v.span} of {len(v.mean)} dimensions, their affine hull has dimension"
            f" {v.size}"
        )
        if self.values is None:
            return f"{where}. Nothing is determined."
        if verdict is Verdict.UNVERIFIED:
            return f"{where}. The model is the nearest one found; nothing of it is certain."
        if verdict is Verdict.BUDGET_SPENT:
            measured = len(self.scores.columns)
            return f"{where}. Of {v.size + 1} query tokens {measured} had their scores measured."
        if self.blind:
            return (
                f"{where}. What single tokens answer is determined; attention shows nowhere, so W,"
                " h and V are not."
            )
        parts = [
            f"{where}; {_MIXED if v.aside.any() else _APART}.",
            "W is determined between differences of tokens (keys) and tokens (queries), V on"
            " tokens; elsewhere they are chosen small, and nothing asked can tell.",
        ]
        if self.values.U is not None:
            parts.append("A residual acts, so V is determined along differences of tokens only.")
        if self.scores.uncertain:
            parts.append(
                f"For {self.scores.uncertain} of {v.size + 1} query tokens scores are too far"
                " apart to be read in full."
            )
        return " ".join(parts)


_MIXED = (
    "the hull does not contain 0, so h acts as part of W and c as part of V (U where there is one):"
    " they are determined together only, and h = c = 0 was chosen"
)
_APART = "the hull contains 0, so h and c are determined apart from W and V"


def _judge(session: _VocabularySession, rng: np.random.Generator) -> Recovery[Head]:
    head = session.head
    if head is None:
        return session.conclude(SPENT)
    with session.oracle.phase("verify"):
        seen = examine_model(
            session.oracle,
            head,
            ruler=Ruler(session.tolerance, session.reader.roundoff),
            rng=rng,
            limits=session.limits,
        )
    ending = settle(
        session.oracle,
        seen,
        lines=VOCABULARY,
        refuse=lambda: session.refuse(*_doubt(session, seen)),
        blind=session.blind,
        words=OF_ROWS,
    )
    return session.conclude(ending)


def _doubt(session: _VocabularySession, seen: Examination) -> tuple[Status, Counterexample | None]:
    """Why fresh answers disagree, with the case against the class where nothing else explains."""
    # Answers that are off by what the scores are uncertain by say nothing of the class.
    if session.blind or seen.fresh.relative <= 1e3 * session.scores.error:
        return Status.SATURATED, None
    if seen.fresh.relative <= VOCABULARY.near * session.tolerance:
        return Status.IMPRECISE, None
    return Status.DISAGREES, seen.worst
