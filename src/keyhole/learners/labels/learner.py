"""Appendix B of [BSHK26]: a head from labels only, by bisection."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Array, Mask, pin_one_thread
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
from keyhole.learners.labels.bisection import MOST_VOTES, Unsteady, Voter, count_votes
from keyhole.learners.labels.fresh_labels import QUERIES, Resolution, Sighting
from keyhole.learners.labels.thresholds import (
    LabelForms,
    Measurement,
    Ratios,
    Unread,
    draw_label_basis,
)
from keyhole.learners.one_head.readout import NotAHead
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
from keyhole.learners.verifying.examination import Examination
from keyhole.models import Head
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_AGAIN = 32  # single tokens asked again to see whether labels are flipped
_RATE = 1024  # labels from which the rate of flips is told
_LOSS = 6  # binary digits lost between the target's rounding and a form


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
        """One label per bit: (d - 1)(bits + 6) per output, d^2 (bits + 2), and a few to find scales
        and to verify.
        """
        per = self.votes // 2 + 1
        ratios = outputs * (width - 1) * (1 + _count_ratio_bits(self.bits, width))
        again = 2 * width * _count_repeats(width) if self.votes == 1 else 0
        mending = (
            (per * 2 * (outputs * (width - 1)), per * 2 * width**2) if self.votes > 1 else (0, 0)
        )
        by_phase = {
            "read": per * (2 * width + 1 + ratios) + again + mending[0],
            "scale": per * 30,
            "measure": per * width**2 * (self.bits + 2) + mending[1],
            "verify": per * QUERIES,
        }
        freedom = head_freedom(width, outputs=outputs) - outputs
        most = self.most(width, outputs) * (self.votes if self.votes > 1 else 1 + MOST_VOTES)
        return Plan(by_phase=by_phase, at_most=most, degrees_of_freedom=freedom, outputs=outputs)

    def most(self, width: int, outputs: int) -> int:
        """The most that is ever asked with one vote each, at all rounds that bisections and mending
        are allowed.
        """
        numbers = outputs * (width - 1) * (_count_ratio_bits(46, width) + 16) + width**2 * (
            self.bits + 160
        )
        return 4 * numbers + 200 * (width**2 + outputs * width) + 400 + _RATE + 2 * QUERIES

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head from labels; certificate BSHK26/membership."""
        first, second = rng.spawn(2)
        session = LabelSession(Voter(Counted(oracle), self.votes), self.bits, first)
        try:
            try:
                return _attempt_recovery(session)
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


def _count_ratio_bits(bits: int, width: int) -> int:
    """Bits of ratios in v: enough more than those of W that their errors do not count."""
    return bits + 4 + math.ceil(math.log2(width) / 2)


def _count_repeats(width: int) -> int:
    """How often all single tokens are asked again."""
    return -(-_AGAIN // (2 * width))


@dataclass(slots=True)
class LabelSession:
    """One recovery under way: what is known so far, so that a spent budget leaves a partial model.

    A bound on tokens may keep scores small; `lack` is by how many binary digits they fall short of
    one.
    """

    voter: Voter
    bits: int
    rng: np.random.Generator
    bound: float = field(init=False)
    roundoff: float = field(init=False)
    lengths: float = field(init=False)
    rest: Mask = field(init=False)
    ratios: list[Ratios] = field(default_factory=list[Ratios], init=False)
    forms: LabelForms | None = field(default=None, init=False)
    measurement: Measurement | None = field(default=None, init=False)
    lack: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        stated = read_imperfection(self.oracle)
        self.bound = math.inf if stated.token_bound is None else stated.token_bound
        self.roundoff = stated.roundoff
        self.lengths = min(1.0, self.bound / 2)
        self.rest = np.zeros(0, dtype=bool)

    @property
    def oracle(self) -> Counted:
        """Who is asked, and what it has cost."""
        return self.voter.oracle

    @property
    def digits(self) -> int:
        """Binary digits of the target's arithmetic."""
        return math.floor(-math.log2(self.roundoff))

    def read(self) -> None:
        """Signs of single tokens, then ratios.

        Raises:
            NotAHead: a token and its negative have one label, which is not that of the token 0.
            Unsteady: labels differ when asked again.
        """
        X = self.tokens()
        labels = self.voter.ask(np.concatenate([np.zeros_like(X[:1]), X]))
        if self.voter.votes == 1 and any(
            (self.voter.once(X) != labels[1:]).any()
            for _ in range(_count_repeats(self.oracle.width))
        ):
            raise Unsteady
        self.rest, plus, minus = labels[0], *np.split(labels[1:], 2)
        wrong = (plus == minus) & (plus != self.rest)
        if wrong.any():
            n = int(np.flatnonzero(wrong.any(axis=1))[0])
            said = np.where(wrong[n], self.rest, plus[n])
            raise NotAHead(Counterexample(X[n], self.voter.coded(plus[n]), self.voter.coded(said)))
        signs = plus.astype(np.float64) - minus
        self.ratios = [
            Ratios(self.voter, n, column, self.lengths) for n, column in enumerate(signs.T)
        ]
        for ratios in self.ratios:
            if ratios.signs.any():
                ratios.seek()
                ratios.refine(min(_count_ratio_bits(self.bits, len(X) // 2), self.digits - 2))

    def tokens(self) -> Array:
        """Sequences of one token, e_i and then -e_i."""
        E = self.lengths * np.eye(self.oracle.width)[:, None]
        return np.concatenate([E, -E])

    def measure(self) -> None:
        """Forms of W, by the labels of the first output that is not blind.

        Raises:
            Unread: forms are beyond every threshold.
        """
        ratios = next(column for column in self.ratios if column.signs.any())
        forms = self._forms(ratios)
        with self.oracle.phase("scale"):
            scale = forms.find_scale(rng=self.rng)
        if scale == 0.0:
            return
        self.lack = max(0, math.ceil(-math.log2(scale * forms.least)))
        if self.lack > 0:
            with self.oracle.phase("read"):
                ratios.refine(
                    min(_count_ratio_bits(self.bits, len(forms.v)) + self.lack, self.digits - 2)
                )
            forms = self._forms(ratios)
            forms.scale = scale
        self.bits = max(1, min(self.bits, self.digits - _LOSS - self.lack))
        self.measurement = Measurement(forms, self.bits)
        with self.oracle.phase("measure"):
            self.measurement.run()

    def _forms(self, ratios: Ratios) -> LabelForms:
        v = ratios.column
        self.forms = LabelForms(
            self.voter, ratios.output, v, draw_label_basis(v, rng=self.rng), self.bound
        )
        return self.forms

    @property
    def head(self) -> Head:
        """The head as far as it is known; columns of V have norm 1."""
        d = self.oracle.width
        V = np.stack([column.column for column in self.ratios], axis=1)
        return Head(np.zeros((d, d)) if self.measurement is None else self.measurement.W, V)

    def partial(self) -> Head | None:
        """What is known when the budget is spent."""
        return self.head if self.ratios else None

    @property
    def resolution(self) -> Resolution:
        """Bounds on the errors of W and V."""
        V = max(column.error for column in self.ratios)
        W = 0.0
        if self.measurement is not None:
            seen = self.ratios[self.measurement.forms.output]
            W = self.measurement.error(seen.error + 4 * self.roundoff)
        elif self.forms is not None:
            W = self.oracle.width * 2.0 ** (self.forms.floor + 1)
        return Resolution(W, V, self.roundoff)

    def doubtful(self) -> bool:
        """Whether an end of a bracket has another label now."""
        tests = [(column.above, column.logs) for column in self.ratios]
        tests += (
            []
            if self.measurement is None
            else [(self.measurement.forms.above, self.measurement.found)]
        )
        return any(brackets.doubtful(test) > 0 for test, brackets in tests)

    def steadier(self) -> Voter | None:
        """One who asks often enough to outweigh the flips, or who knows there are none; None where
        that is too often.

        A steady target that contradicts itself is not a head, which the second attempt will show.
        """
        if self.voter.votes > 1:
            return None
        X = self.tokens()
        with self.oracle.phase("read"):
            flips, asked = self.voter.flips(X, max(9, -(-_RATE // len(X)) | 1))
        votes = count_votes(flips, asked) if flips else 1
        return None if votes is None else Voter(self.oracle, votes, steady=flips == 0)


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
        return _conclude(
            session, _refuse(session, Status.NOT_A_HEAD, refusal.counterexample), session.partial()
        )
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
        Examination(fresh, seen.worst, seen.worst is None, False, seen.complete),
        lines=COARSE_ANSWERS,
        refuse=lambda: _refuse(session, Status.DISAGREES, seen.worst),
        blind=not head.V.any(),
        reservation=Ending(status=Status.IMPRECISE) if vague else None,
        words=_describe_reach(session),
    )
    return _conclude(session, ending, head)


def _refuse(session: LabelSession, status: Status, case: Counterexample | None) -> Ending:
    """Refuse, unless labels turn out to change: the case is asked again, and so are the ends of all
    brackets.

    Raises:
        Unsteady: they do.
    """

    def repeat() -> str:
        same = case is None or all(_is_label_repeated(session, case) for _ in range(2))
        if not same or (not session.voter.steady and session.doubtful()):
            raise Unsteady
        return ""

    length = 0 if case is None else len(case.tokens)
    detail = (
        f"A sequence of length {length} has another label than the best head without biases"
        " gives it."
    )
    return resolve_doubt(
        session.oracle, Doubt(status, case, detail if case is not None else ""), repeat=repeat
    )


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
    detail = f"Answers are labels, which tell W to a relative {session.resolution.W / size:.1e}"
    bounded = (
        f" (tokens up to norm {session.bound:g} let scores act so much)"
        if session.bound < math.inf
        else ""
    )
    voted = f", each by {session.voter.votes} votes" if session.voter.votes > 1 else ""
    return f"{detail}{bounded}{voted}."


def _conclude(session: LabelSession, ending: Ending, head: Head | None = None) -> Recovery[Head]:
    known = head is not None and ending.status in (Status.RECOVERED, Status.NO_READOUT)
    rank = _measure_rank(session, head) if head is not None and known else None
    recovery = conclude(
        session.oracle,
        ending,
        Account(
            model=head,
            reason="Answers are labels: a single head without biases is what they can tell.",
            determined=_describe_label_head(head, ending.verdict),
            degrees_of_freedom=(
                None if head is None or rank is None else _count_label_freedom(head, rank)
            ),
            rank=rank,
            bars=_list_label_bars(session) if known else {},
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
    resolution, d = session.resolution, session.oracle.width
    return {"V": np.array([resolution.V]), "W": np.array([resolution.W / d])}


def _describe_label_head(head: Head | None, verdict: Verdict) -> str:
    if head is None:
        return "Nothing was determined."
    if verdict is Verdict.NOT_IDENTIFIABLE:
        return (
            "Every sequence asked has the same label, as with V = 0; W is not determined: any"
            " values fit."
        )
    if verdict is Verdict.CLASS_REFUTED:
        return "No head without biases has these labels; the model is the nearest one found."
    if not verdict.verified:
        return "What was measured so far; W is zero where it was not."
    return (
        "W is determined. Each column of V is determined up to a positive factor, which acts on no"
        " label; it is given with norm 1."
    )


def certify_labels(recovery: Recovery[Head], session: LabelSession) -> Certificate | None:
    """What labels tell, confronted with one run: as many labels as bits, and a head that fresh
    labels agree with.
    """
    head = recovery.model
    if head is None or recovery.fresh is None:
        return None
    d, o, votes = head.width, head.outputs, session.voter.votes
    ratios = o * (d - 1) * (_count_ratio_bits(session.bits, d) + 14)
    allowed = votes * (ratios + d * d * (session.bits + 8) + 8 * d + 100) + (
        _RATE + 10 * d if votes > 1 else 0
    )
    is_head = recovery.status in (Status.RECOVERED, Status.NO_READOUT)
    size = float(np.linalg.norm(np.asarray(head.W)))
    return Certificate(
        "BSHK26/membership",
        assumptions=(
            Check("labels that no head gives", float(not is_head), 0.0),
            Check("read-out that is zero", float(not head.V.any()), 0.0),
        ),
        conclusion=(
            Check("labels asked", recovery.ledger.total(without="verify").sequences, allowed),
            Check(
                "bound on the relative error of W",
                session.resolution.W / size if size > 0 else 0.0,
                2.0 ** (2 - session.bits)
                + 256 * math.sqrt(d) * session.roundoff * 2.0**session.lack,
            ),
        ),
    )
