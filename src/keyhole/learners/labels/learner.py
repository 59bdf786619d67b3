"""Appendix B of [BSHK26]: a head from labels only, by bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import Array, pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.labels.bisection import MOST_VOTES, Unsteady, Voter
from keyhole.learners.labels.fresh_labels import QUERIES, Sighting
from keyhole.learners.labels.label_session import (
    RATE,
    LabelSession,
    count_ratio_bits,
    count_repeats,
)
from keyhole.learners.labels.thresholds import Unread
from keyhole.learners.one_head.readout import NotAHead
from keyhole.learners.verifying.certifying import assume_class
from keyhole.learners.verifying.ending import (
    COARSE_ANSWERS,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import Examination, list_examined
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle


@dataclass(frozen=True, slots=True)
class Labels:
    """Learns a head from labels, which tell V up to a positive factor per column, and W fully.

    Each label is one comparison of one number with a threshold, so d^2 forms of W and d - 1 ratios
    per column of V are bisected, all in step: about (d^2 + d)(bits + 2) labels.

    Args:
        bits: forms of W become known to within 2^-bits of their root mean square.
        votes: an odd number; each question is asked until one label has more than half of so many
            votes. With 1, labels are asked again on the way, and if they turn out to be flipped at
            random, as many votes are used as needed.
    """

    bits: int = 40
    votes: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 46:
            raise InvalidInput(
                f"labels can tell 1 to 46 bits of a number in float64; got {self.bits}."
            )
        if self.votes % 2 != 1 or not 1 <= self.votes <= MOST_VOTES:
            raise InvalidInput(
                f"votes must be an odd number from 1 to {MOST_VOTES}; got {self.votes}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """One label per bit: (d - 1)(bits + 6) per output, d^2 (bits + 2), and a few more."""
        per = self.votes // 2 + 1
        ratios = outputs * (width - 1) * (1 + count_ratio_bits(self.bits, width))
        by_phase = {
            "read": per * (2 * width + 1 + ratios),
            "scale": per * 30,
            "measure": per * width**2 * (self.bits + 2),
            "verify": per * QUERIES,
        }
        # Flips are looked for with one vote; with more they are expected, and ends asked again.
        if self.votes == 1:
            by_phase["read"] += 2 * width * count_repeats(width)
        else:
            by_phase["read"] += per * 2 * (outputs * (width - 1))
            by_phase["measure"] += per * 2 * width**2
        freedom = head_freedom(width, outputs=outputs) - outputs
        most = self.most(width, outputs) * (self.votes if self.votes > 1 else 1 + MOST_VOTES)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=outputs)

    def most(self, width: int, outputs: int) -> int:
        """The most that is ever asked with one vote each: bisections and mending in full."""
        numbers = outputs * (width - 1) * (count_ratio_bits(46, width) + 16)
        numbers += width**2 * (self.bits + 160)
        return 4 * numbers + 200 * (width**2 + outputs * width) + 400 + RATE + 2 * QUERIES

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head from labels; certificate BSHK26/membership."""
        first, second = rng.spawn(2)
        session = LabelSession(Voter(Counted(oracle), self.votes), self.bits, first)
        try:
            try:
                return _attempt_recovery(session)
            # One wrong label spoils what was bisected after it: begin again, with votes.
            except Unsteady:
                voter = session.steadier()
            if voter is not None:
                session = LabelSession(voter, self.bits, second)
                return _attempt_recovery(session)
        except BudgetSpent:
            return _conclude(session, SPENT, session.partial())
        except Unsteady:
            pass
        return _conclude(session, Ending(status=Status.INCONSISTENT, detail=_UNSTEADY))


_UNSTEADY = "Labels change from one time to the next, more often than votes can outweigh."


def _attempt_recovery(session: LabelSession) -> Recovery[Head]:
    """Read, measure and verify once.

    Raises:
        Unsteady: labels were seen to change.
        BudgetSpent: while measuring.
    """
    checking = session.rng.spawn(1)[0]
    try:
        with session.oracle.phase("read"):
            session.read()
        if any(column.signs.any() for column in session.ratios):
            session.measure()
    except NotAHead as refusal:
        ending = _refuse(session, Status.NOT_A_HEAD, refusal.counterexample)
        return _conclude(session, ending, session.partial())
    except Unread:
        return _conclude(session, _refuse(session, Status.SATURATED, None))
    head = session.head
    seen = Sighting(session.voter, head, session.resolution, session.rest)
    with session.oracle.phase("verify"):
        seen.look(session.bound, rng=checking)
    # Labels near the boundary say nothing; where most are, agreement is worth nothing.
    vague = 2 * seen.sure < seen.asked
    fresh = Fresh(0, 0.0, 0.0) if seen.fresh is None else seen.fresh
    ending = settle(
        session.oracle,
        Examination(
            fresh=fresh,
            worst=seen.worst,
            passed=seen.worst is None,
            complete=seen.complete,
            examined=list_examined(seen.kinds),
        ),
        lines=COARSE_ANSWERS,
        refuse=lambda: _refuse(session, Status.DISAGREES, seen.worst),
        blind=not head.V.any(),
        reservation=Ending(status=Status.IMPRECISE) if vague else None,
        words=_describe_reach(session),
    )
    return _conclude(session, ending, head)


def _refuse(session: LabelSession, status: Status, case: Counterexample | None) -> Ending:
    """Refuse, unless the case, or an end of a bracket, turns out to change its label.

    Raises:
        Unsteady: they do.
    """

    def repeat() -> str:
        same = case is None or all(_is_label_repeated(session, case) for _ in range(2))
        if not same or (not session.voter.steady and session.doubtful()):
            raise Unsteady
        return ""

    detail = ""
    if case is not None:
        detail = (
            f"A sequence of length {len(case.tokens)} has another label than the best head without"
            " biases gives it."
        )
    return resolve_doubt(session.oracle, Doubt(status, case, detail), repeat=repeat)


def _is_label_repeated(session: LabelSession, case: Counterexample) -> bool:
    labels = session.voter.ask(case.tokens[None])[0]
    return bool((labels == (case.answer > 0)).all())


def _describe_reach(session: LabelSession) -> str:
    """What the labels told, in numbers."""
    size = float(np.linalg.norm(np.asarray(session.head.W)))
    if size == 0.0:
        at_most = session.resolution.W
        return (
            f"Answers are labels; no score was seen to act, so W is at most {at_most:.1e} in size."
        )
    detail = (
        f"Answers are labels, which tell W to a relative error of {session.resolution.W / size:.1e}"
    )
    if session.bound < math.inf:
        detail += f" (tokens up to norm {session.bound:g} let scores act so much)"
    if session.voter.votes > 1:
        detail += f", each by {session.voter.votes} votes"
    return f"{detail}."


def _conclude(session: LabelSession, ending: Ending, head: Head | None = None) -> Recovery[Head]:
    rank = freedom = None
    bars = dict[str, Array]()
    if head is not None and ending.status in (Status.RECOVERED, Status.NO_READOUT):
        rank = _measure_rank(session, head)
        freedom = _count_label_freedom(head, rank)
        bars = _list_label_bars(session)
    recovery = conclude(
        session.oracle,
        ending,
        Account(
            model=head,
            reason="Answers are labels: a single head without biases is what they can tell.",
            determined=_describe_label_head(head, ending.verdict),
            degrees_of_freedom=freedom,
            rank=rank,
            bars=bars,
        ),
    )
    return replace(recovery, certificate=certify_labels(recovery, session))


def _measure_rank(session: LabelSession, head: Head) -> int:
    W = np.asarray(head.W)
    with pin_one_thread():
        size = float(np.linalg.norm(W, 2))
        return matrix_rank(W, min(1.0, session.resolution.W / size)) if size > 0 else 0


def _count_label_freedom(head: Head, rank: int) -> int:
    """Numbers that labels determine: those of a head less one factor per column of V."""
    value_rank = int(np.linalg.matrix_rank(head.V)) if head.V.any() else 0
    scales = int(head.V.any(axis=0).sum())
    return head_freedom(head.width, outputs=head.outputs, rank=rank, value_rank=value_rank) - scales


def _list_label_bars(session: LabelSession) -> dict[str, Array]:
    resolution = session.resolution
    per_entry = resolution.W / session.oracle.width
    return {"V": np.array([resolution.V]), "W": np.array([per_entry])}


def _describe_label_head(head: Head | None, verdict: Verdict) -> str:
    if head is None:
        return "Nothing was determined."
    if verdict is Verdict.NOT_IDENTIFIABLE:
        return (
            "Every sequence asked has the same label, as with V = 0; W is not determined: any"
            " values fit."
        )
    if verdict is Verdict.UNVERIFIED:
        return "The model is the nearest one found; nothing of it is certain."
    if not verdict.verified:
        return "What was measured so far; W is zero where it was not."
    return (
        "W is determined. Each column of V is determined up to a positive factor, which acts on no"
        " label; it is given with norm 1."
    )


def certify_labels(recovery: Recovery[Head], session: LabelSession) -> Certificate | None:
    """What labels tell, confronted with one run: as many labels as bits, and a small error."""
    head = recovery.model
    if head is None or recovery.fresh is None:
        return None
    d = head.width
    votes = session.voter.votes
    ratios = head.outputs * (d - 1) * (count_ratio_bits(session.bits, d) + 14)
    allowed = votes * (ratios + d * d * (session.bits + 8) + 8 * d + 100)
    # Several votes follow a first attempt that told how often labels are flipped.
    if votes > 1:
        allowed += RATE + 10 * d
    size = float(np.linalg.norm(np.asarray(head.W)))
    rounding = 256 * math.sqrt(d) * session.roundoff * 2.0**session.lack
    return Certificate(
        "BSHK26/membership",
        assumptions=(
            assume_class("labels that no head gives", recovery.verdict),
            Check("read-out that is zero", float(not head.V.any()), 0.0, judged=True),
            Check("labels asked", recovery.ledger.total(without="verify").sequences, allowed),
        ),
        conclusion=(
            Check(
                "bound on the relative error of W",
                session.resolution.W / size if size > 0 else 0.0,
                2.0 ** (2 - session.bits) + rounding,
            ),
        ),
    )
