r"""A head from answers with errors: noise, a tolerance, rounding to decimals, tokens inside a ball.

With tokens of norm at most R and errors of standard deviation s, $d^2$ queries of the v-tilted
simplex give every entry of W with a standard error of $12\sqrt3\,s/(R^3|v|)$ while scores are
small: for $W = 4G/\sqrt d$ that is $3\sqrt3\sqrt d\,s/(R^3|v|)$ of its norm. Where tokens may be of
any length, absolute errors vanish beside long ones. Error bars come from fitting again with errors
drawn anew, read-out included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Array, Stack, pin_one_thread
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom
from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status, bound_queries
from keyhole.learners.noise.noisy_readout import (
    Errors,
    NoisyReading,
    count_reads,
    estimate_noise,
    measure_noisy_readout,
)
from keyhole.learners.noise.tilted_simplex import certify_tilted_simplex
from keyhole.learners.noise.weighted_fit import (
    WeightedFit,
    begin_fit,
    measure_weights,
    replicate_fits,
)
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.verifying.ending import (
    DECLARED_ERRORS,
    NO_READOUT,
    NO_ROOM,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    describe_case,
    resolve_doubt,
    settle,
    withdraw,
)
from keyhole.learners.verifying.examination import EXACT, Examination
from keyhole.learners.verifying.questions import QUERIES, draw_fresh_sequences, shorten_to_bound
from keyhole.models import Head
from keyhole.oracles import Counted, Imperfection, Oracle, read_imperfection

_SIGMAS = 6.0  # standard deviations that a fresh answer may be off
_AGAIN = 8  # times a doubtful question is asked again
_VAGUE = "Errors of the answers hide what the model says: many other heads would agree as well."
# queries beside those for V: the constant, whether a bias or a residual acts, the scale
_READING = 60


@dataclass(frozen=True, slots=True)
class UnderNoise:
    """Recovers a head from answers whose errors are declared, with a standard error for every
    entry.

    Args:
        rank: the rank of W where it is known; found by the noise edge otherwise.
        repeats: how often every question is asked; only random noise averages out.
    """

    rank: int | None = None
    repeats: int = 1

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidInput(
                f"every question is asked a whole number >= 1 of times; got {self.repeats}."
            )
        if self.rank is not None and self.rank < 0:
            raise InvalidInput(f"a rank is a whole number >= 0; got {self.rank}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """2d or 4d queries and 60 more to read out, then d^2 for W, or d(r + 4) + r(d - r - 4) + rd
        at low rank.
        """
        r = width if self.rank is None else min(self.rank, width)
        k = min(r + 4, width)
        low = width * k + r * (width - k) + r * width
        measure = self.repeats * min(width * width, low)
        by_phase = {
            "read": count_reads(width) * width * self.repeats + _READING,
            "measure": measure,
            "verify": QUERIES,
        }
        freedom = head_freedom(width, outputs=outputs, rank=r)
        return Plan(
            by_phase=by_phase,
            at_most=3 * bound_queries(by_phase),
            degrees_of_freedom=freedom,
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[Head]:
        """Recover a head, verify it within what the errors explain; certificate
        keyhole/tilted-simplex.
        """
        if self.rank is not None and self.rank > oracle.width:
            raise InvalidInput(f"the rank is at most the width {oracle.width}; got {self.rank}.")
        measuring, drawing, checking = rng.spawn(3)
        work = _Work(self, Counted(oracle), read_imperfection(oracle), measuring)
        try:
            work.measure()
        except BudgetSpent:
            return _conclude(work, SPENT)
        except Saturated:
            return _conclude(work, Ending(status=Status.SATURATED))
        return _judge(work, drawing, checking)


@dataclass(slots=True)
class _Work:
    """One recovery under way; `full` where every bias is measured, visible or not."""

    options: UnderNoise
    oracle: Counted
    stated: Imperfection
    rng: np.random.Generator
    full: bool = False
    errors: Errors = field(init=False)
    guessed: bool = field(default=False, init=False)
    reading: NoisyReading | None = field(default=None, init=False)
    fit: WeightedFit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.errors = Errors.of(self.stated)

    def measure(self) -> None:
        """Read out, then measure W and h."""
        repeats = self.options.repeats
        with self.oracle.phase("read"):
            if np.isnan(self.stated.noise):
                self.guessed, self.errors = (
                    True,
                    replace(self.errors, noise=estimate_noise(self.oracle, rng=self.rng)),
                )
            bound = self.stated.token_bound
            self.reading = measure_noisy_readout(
                self.oracle, self.errors, bound=bound, repeats=repeats, rng=self.rng, full=self.full
            )
        if self.reading is not None and not self.reading.readout.blind:
            with self.oracle.phase("scale"):
                limited = bound is not None
                self.fit = begin_fit(
                    self.oracle,
                    self.reading,
                    self.errors,
                    repeats=repeats,
                    bounded=limited,
                    rng=self.rng,
                )
            with self.oracle.phase("measure"):
                measure_weights(self.fit, self.options.rank, self.rng)

    @property
    def lost(self) -> bool:
        """Whether errors hide most of what was asked of W."""
        return self.fit is not None and any(
            self.fit.prober.lost(block) for block in self.fit.blocks
        )

    @property
    def head(self) -> Head | None:
        """The head as far as it was measured; None before anything was read."""
        if self.reading is None:
            return None
        readout, d = self.reading.readout, self.oracle.width
        W, h = (np.zeros((d, d)), None) if self.fit is None else self.fit.weights()
        return Head(W, readout.V, h, readout.c if readout.c.any() else None, readout.U)


# --- fresh queries ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _NoisyRow:
    """A fresh answer: the case, the token values it mixes, and the standard deviation that errors
    explain.
    """

    case: Counterexample
    value: float
    deviation: float


def _judge(
    work: _Work, drawing: np.random.Generator, checking: np.random.Generator
) -> Recovery[Head]:
    head = work.head
    if head is None:
        return _conclude(work, NO_READOUT)
    asked: list[tuple[Stack, Array]] = []
    complete = True
    with work.oracle.phase("verify"):
        for X in _draw_bounded_sequences(work, head, checking):
            try:
                asked.append((X, work.oracle.ask(X.copy())))
            except BudgetSpent:
                complete = False
                break
    bars, rows = _compare_fresh_answers(work, head, asked, drawing)
    failed = (
        [row for row in rows if row.case.gap > _bound_allowed_gap(work, row)] if complete else []
    )
    worst = min(failed, key=lambda row: len(row.case.tokens), default=None)
    ending = settle(
        work.oracle,
        Examination(_summarise_fresh(rows), worst and worst.case, worst is None, False, complete),
        lines=DECLARED_ERRORS,
        refuse=lambda: Ending(status=Status.DISAGREES) if worst is None else _refuse(work, worst),
        blind=not head.V.any(),
        reservation=_reservation(work, rows),
        words=_describe_accuracy(work, head, bars),
    )
    if ending.verdict is Verdict.CLASS_REFUTED and not work.full:
        return _measure_all_biases(work, _conclude(work, ending, bars), drawing, checking)
    return _conclude(work, ending, bars)


def _reservation(work: _Work, rows: list[_NoisyRow]) -> Ending | None:
    """Why agreement is worth nothing, where declared errors hide most answers or exact ones are not
    met exactly.
    """
    if 2 * sum(_SIGMAS * row.deviation > row.value for row in rows) > len(rows):
        return Ending(status=Status.IMPRECISE, detail=_VAGUE)
    if work.stated.perfect and _summarise_fresh(rows).relative > EXACT:
        return Ending(status=Status.IMPRECISE)
    return None


def _draw_bounded_sequences(work: _Work, head: Head, rng: np.random.Generator) -> Iterator[Stack]:
    """Fresh sequences inside the bound; where there is none, half of them so long that errors hide
    nothing.

    Tokens before the last are made longer and the last one shorter by the same factor, which keeps
    the scores (tokens of even lengths are orthogonal to a score bias). Errors would hide a class
    nearly right beside tokens of order one.
    """
    bound, reach = work.stated.token_bound, 0.0 if work.reading is None else work.reading.reach
    for X in shorten_to_bound(draw_fresh_sequences(head, rng=rng), bound):
        longest = np.sqrt((X**2).sum(axis=2).max(axis=1))
        longer = np.maximum(1.0, reach / np.maximum(longest, 1e-300))[:, None, None]
        stretched = bound is None and X.shape[1] % 2 == 0
        yield np.concatenate([X[:, :-1] * longer, X[:, -1:] / longer], axis=1) if stretched else X


def _measure_all_biases(
    work: _Work, doubt: Recovery[Head], drawing: np.random.Generator, checking: np.random.Generator
) -> Recovery[Head]:
    """Measure again with all biases, those that errors seemed to explain included, before the class
    is refused.
    """
    fuller = _Work(work.options, work.oracle, work.stated, work.rng, full=True)
    try:
        fuller.measure()
    except BudgetSpent:
        return withdraw(doubt, Status.UNCHECKED, NO_ROOM)
    except Saturated:
        return _conclude(fuller, Ending(status=Status.SATURATED))
    return _judge(fuller, drawing, checking)


def _compare_fresh_answers(
    work: _Work, head: Head, asked: list[tuple[Stack, Array]], rng: np.random.Generator
) -> tuple[dict[str, Array], list[_NoisyRow]]:
    """Error bars, and every fresh answer beside the model's."""
    if work.reading is None:
        return {}, []
    with pin_one_thread():
        bars, spread = replicate_fits(work.fit, work.reading, head, [X for X, _ in asked], rng)
    rows: list[_NoisyRow] = []
    for (X, answers), off in zip(asked, spread, strict=True):
        predicted, values = head(X), head.magnitude(X)
        noise = work.errors.deviation(8.0 * np.maximum(values, np.abs(answers).max(axis=1)))
        for i, x in enumerate(X):
            case = Counterexample(x, answers[i], predicted[i])
            rows.append(_NoisyRow(case, float(values[i]), float(np.hypot(noise[i], off[i]))))
    return bars, rows


def _bound_allowed_gap(work: _Work, row: _NoisyRow) -> float:
    exact = EXACT * row.value if work.stated.perfect else 0.0
    return work.errors.tolerance + max(_SIGMAS * row.deviation, exact)


def _summarise_fresh(rows: list[_NoisyRow]) -> Fresh:
    largest = max((np.abs(row.case.answer).max() for row in rows), default=0.0)
    relative = max((row.case.gap / (row.value or largest or 1.0) for row in rows), default=0.0)
    return Fresh(len(rows), max((row.case.gap for row in rows), default=0.0), float(relative))


def _refuse(work: _Work, row: _NoisyRow) -> Ending:
    """Refuse, unless the target scatters more than was declared."""
    X = np.repeat(row.case.tokens[None], _AGAIN, axis=0)
    try:
        with work.oracle.phase("verify"):
            answers = work.oracle.ask(X)
    except BudgetSpent:
        return Ending(status=Status.UNCHECKED, detail=NO_ROOM)
    case = Counterexample(row.case.tokens, answers.mean(axis=0), row.case.predicted)
    doubt = Doubt(Status.DISAGREES, case, describe_case(case, "such a head"))
    if work.lost:
        doubt = Doubt(Status.IMPRECISE, detail=_VAGUE)
    elif case.gap <= _bound_allowed_gap(work, row) and work.full:
        doubt = Doubt(
            Status.INCONSISTENT,
            detail="One fresh answer was far off, and was not when asked again.",
        )
    return resolve_doubt(work.oracle, doubt, repeat=lambda: _describe_excess(work, answers))


def _describe_excess(work: _Work, answers: Array) -> str:
    """By how much repeated answers scatter beyond what was declared; nothing where they do not."""
    scatter = float(answers.std(axis=0, ddof=1).max())
    if scatter <= 3.0 * work.errors.noise + 2.0 * work.errors.tolerance + 1e-11 * float(
        np.abs(answers).max()
    ):
        return ""
    return f"Answers to one sequence scatter by {scatter:.1e}, which is more than was declared."


# --- the recovery -----------------------------------------------------------------------------------------------


def _conclude(work: _Work, ending: Ending, bars: dict[str, Array] | None = None) -> Recovery[Head]:
    rank = None if work.fit is None else work.fit.rank
    bars = bars or {}
    claimed = (
        None
        if work.fit is None
        else certify_tilted_simplex(work.fit, bars, bounded=work.stated.token_bound is not None)
    )
    return conclude(
        work.oracle,
        ending,
        Account(
            model=work.head,
            reason=_explain_noisy_head(work),
            determined=_describe_known_weights(work, ending.verdict),
            degrees_of_freedom=_count_noisy_freedom(work, rank),
            rank=rank,
            certificate=claimed,
            bars=bars,
        ),
    )


def _count_noisy_freedom(work: _Work, rank: int | None) -> int | None:
    if work.reading is None or rank is None:
        return None
    readout = work.reading.readout
    d, o = readout.V.shape
    return head_freedom(
        d,
        outputs=o,
        rank=rank,
        score_bias=d if readout.biased else 0,
        constant=bool(readout.c.any()),
        residual=readout.U is not None,
    )


def _describe_errors(work: _Work) -> str:
    errors = work.errors
    said = "estimated" if work.guessed else "declared"
    parts = [f"random errors of standard deviation {errors.noise:.1e}"] if errors.noise else []
    parts += [f"errors up to {errors.tolerance:.1e}"] if errors.tolerance else []
    parts += [f"relative rounding of {errors.roundoff:.1e}"] if errors.roundoff > 1e-15 else []
    return f"{' and '.join(parts)} ({said})" if parts else "no errors"


def _describe_tokens(work: _Work) -> str:
    bound = work.stated.token_bound
    if bound is not None:
        return f"tokens up to norm {bound:.3g}"
    longest = 0.0 if work.reading is None else work.reading.length
    return f"tokens of any norm (up to {longest:.1e} was asked)"


def _explain_noisy_head(work: _Work) -> str:
    return f"One head was tried; answers carry {_describe_errors(work)}; {_describe_tokens(work)}."


def _describe_accuracy(work: _Work, head: Head, bars: dict[str, Array]) -> str:
    size, error = (
        float(np.linalg.norm(np.asarray(a))) for a in (head.W, bars.get("W", np.zeros(1)))
    )
    known = (
        f"W is known to {error / size:.1e} of its norm"
        if size > 0
        else f"W is zero to within {error:.1e}"
    )
    known = (
        known
        if size > 2.0 * error
        else f"W cannot be told from zero, its standard error being {error:.1e}"
    )
    return f"Answers carry {_describe_errors(work)}, with {_describe_tokens(work)}; {known}."


def _describe_known_weights(work: _Work, verdict: Verdict) -> str:
    if work.reading is None:
        return "No answer depends on the tokens beyond its errors; nothing is determined of W."
    if work.reading.readout.blind:
        return "V is zero beyond the errors; any W fits."
    if verdict is Verdict.CLASS_REFUTED:
        return (
            "No single head has these answers; the model is the nearest one found, and nothing of"
            " it is determined."
        )
    if work.fit is None or work.fit.rank is None:
        return (
            "V is determined within its error bars; W only along the directions measured, zero"
            " elsewhere."
        )
    return "All parameters are determined within their error bars (one standard error each)."
