r"""Prompts asked until a rank shows: the space of the answers, and what it takes at least.

A space of dimension r and a point it goes through take r + 1 answers of full length. A space of
dimension r in V has r(V - r) numbers, so that answers of k numbers must be r(V - r)/k at least.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Matrix
from keyhole.errors import BudgetSpent
from keyhole.learners.logits.caps import find_cap, measure_steepness
from keyhole.learners.logits.number_formats import FormatError, measure_format_error
from keyhole.learners.logits.projection import (
    LARGEST_RANK,
    Ellipsoid,
    count_projection_prompts,
    count_unknowns,
    fit_ellipsoid,
)
from keyhole.learners.logits.reading import Reading
from keyhole.learners.logits.spectra import (
    Spectrum,
    doubt_ids,
    find_rank,
    hash_numbers,
    withdraw_rank,
)
from keyhole.oracles import Counted, read_imperfection
from keyhole.oracles.own_time import check_own_time
from keyhole.oracles.tokens.ids import pack_ids

_FRESH = 16  # prompts at least that a space is held against
# What arithmetic in float32 and float64 leaves of a model without weak directions is wider.
_SINGLE_GAP, _DOUBLE_GAP = 1e4, 1e8
_FIRST = 64  # prompts that are asked first; twice as many while no rank shows
# A projection that takes more questions, or more numbers in memory, is not tried.
_MOST_QUESTIONS = 250_000
_MOST_NUMBERS = 1 << 26


@dataclass(slots=True)
class Prompts:
    """Random prompts asked of one oracle under one policy, more whenever they are needed.

    Args:
        oracle: the policy, counted.
        reading: how its answers are read.
        rng: draws the prompts.
        length: of every prompt.
        format_error: what the number format of the target itself leaves of answers, where that is
            known from elsewhere; else it is seen of what is answered.
        may_be_capped: whether a soft cap is looked for.
    """

    oracle: Counted
    reading: Reading
    rng: np.random.Generator
    length: int
    format_error: FormatError | None = None
    may_be_capped: bool = True
    answered: Matrix = field(init=False)

    def __post_init__(self) -> None:
        columns = self.reading.vocabulary
        columns = 2 * self.reading.count if self.reading.kind == "likeliest" else columns
        self.answered = np.empty((0, columns))

    @property
    def asked(self) -> int:
        """Questions under this policy so far."""
        return self.oracle.ledger.total().sequences

    @property
    def own_error(self) -> FormatError:
        """What the number format leaves of answers."""
        if self.format_error is not None:
            return self.format_error
        return measure_format_error(self.answered[:, -self.reading.numbers :])

    @property
    def error(self) -> float:
        """Standard deviation of the errors of answers that are known of."""
        stated = read_imperfection(self.oracle)
        # What is rounded is off by anything up to half a unit, alike.
        declared = float(np.hypot(stated.noise, stated.tolerance / np.sqrt(3.0)))
        # Rounding that is declared shows in the numbers too.
        error = max(declared, self.own_error.deviation)
        cap = self.reading.cap
        return error * measure_steepness(self.answered, cap) if cap and error else error

    def grow(self, count: int) -> None:
        """Ask until there are so many prompts."""
        more = count - len(self.answered)
        if more > 0:
            ids = self.rng.integers(self.reading.vocabulary, size=(more, self.length))
            try:
                new = self.reading.ask(self.oracle, pack_ids(ids))
            except BudgetSpent as spent:
                if spent.answers is not None:
                    self.answered = np.concatenate([self.answered, spent.answers])
                raise
            self.answered = np.concatenate([self.answered, new])

    def find_spectrum(self) -> Spectrum:
        """What all answers so far show, as logits."""
        arranged = self.reading.arrange(_drop_repeats(self.answered))
        spectrum = find_rank(
            arranged, error=self.error, spread=self.own_error.spread, asked=len(self.answered)
        )
        if spectrum.rank is None:
            return spectrum
        if self.reading.kind in ("raised", "log-probabilities"):
            spectrum = self._restore(spectrum)
        few = doubt_ids(spectrum)
        if few:
            return withdraw_rank(spectrum, few)
        if self.reading.cap:
            known = f"behind a soft cap of {self.reading.cap:.6g}, which answers tell"
            return replace(spectrum, reason=f"{spectrum.reason} They stand {known}.")
        return spectrum

    def _restore(self, spectrum: Spectrum) -> Spectrum:
        """The space in logits, where two models can be compared; its errors were white before."""
        turned, change = np.linalg.qr(self.reading.restore(spectrum.basis).T)
        return replace(
            spectrum,
            basis=turned.T,
            coordinates=spectrum.coordinates @ change.T,
            mean=self.reading.restore(spectrum.mean[None])[0],
        )


def _drop_repeats(answered: Matrix) -> Matrix:
    """Every answer once: a model that looks at few ids repeats itself, errors of rounding too."""
    first = {hash_numbers(row): place for place, row in reversed(list(enumerate(answered)))}
    return answered if len(first) == len(answered) else answered[sorted(first.values())]


def find_space(prompts: Prompts, most: int) -> Spectrum:
    """The space of the answers, from as few prompts as show it and `most` at most.

    A quarter more confirm it.
    """
    count = min(_FIRST, most)
    while True:
        check_own_time()
        prompts.grow(count)
        spectrum = prompts.find_spectrum()
        if spectrum.rank is not None:
            spectrum = confirm_space(prompts, spectrum)
        if spectrum.rank is not None and not _may_be_bent(prompts, spectrum):
            return spectrum
        if spectrum.rank is not None or count >= most:
            spectrum = _look_behind_cap(prompts, spectrum)
            return withdraw_rank(spectrum, _BENT) if _may_be_bent(prompts, spectrum) else spectrum
        count = min(2 * count, most)


# What a soft cap adds to logits is of third order first, and spans a space of its own: where its
# fifth order is lost in arithmetic, that space ends in a gap too.
def _may_be_bent(prompts: Prompts, spectrum: Spectrum) -> bool:
    """Whether a rank stands before a gap that is narrower than arithmetic alone would leave it."""
    if spectrum.rank is None or prompts.error > 0.0:
        return False
    with np.errstate(over="ignore"):
        single = np.array_equal(prompts.answered, prompts.answered.astype(np.float32))
    # Log-probabilities are worked out here, of answers in either format.
    double = prompts.reading.kind == "logits" and not single
    return spectrum.gap < (_DOUBLE_GAP if double else _SINGLE_GAP)


_BENT = (
    "the widest gap is narrower than arithmetic leaves it, and no errors are known of: directions"
    " may be hidden behind it, or logits be bent, whose bends have directions of their own."
)


def _look_behind_cap(prompts: Prompts, plain: Spectrum) -> Spectrum:
    """The space of logits before a soft cap, where answers show one; else the spectrum as it is."""
    reading = prompts.reading
    looked_for = prompts.may_be_capped and reading.kind == "logits"
    cap = find_cap(prompts.answered) if looked_for else None
    if cap is None:
        return plain
    prompts.reading = replace(reading, cap=cap)
    spectrum = prompts.find_spectrum()
    if spectrum.rank is not None:
        spectrum = confirm_space(prompts, spectrum)
    if spectrum.rank is None:
        prompts.reading = reading
        return plain
    return spectrum


def leave_open(prompts: Prompts, reason: str) -> Spectrum:
    """What answers show that were cut short: their singular values, and no rank."""
    answered = prompts.answered
    if not len(answered):
        answered = np.zeros((1, answered.shape[1]))
    return withdraw_rank(find_rank(prompts.reading.arrange(answered)), reason)


def confirm_space(prompts: Prompts, spectrum: Spectrum) -> Spectrum:
    """The space, where answers to fresh prompts lie in it; else no space, and the reason.

    A model that answers by its last few ids alone has as few answers as there are such ids: as long
    as many have not been asked, its answers span less than they can.
    """
    known = len(prompts.answered)
    prompts.grow(known + max(_FRESH, known // 4))
    if prompts.reading.kind == "likeliest":
        again = prompts.find_spectrum()
        agrees = again.rank == spectrum.rank
    else:
        agrees = _measure_outside(prompts, spectrum, known) <= _allow_outside(spectrum)
    if agrees:
        return spectrum
    reason = (
        f"{spectrum.rank} directions explain {known} prompts, but not the next ones: the space that"
        " answers can reach is larger, or the prompts were too much alike."
    )
    return withdraw_rank(spectrum, reason)


def _measure_outside(prompts: Prompts, spectrum: Spectrum, known: int) -> float:
    """The largest root mean square of a fresh answer outside the space."""
    reading = prompts.reading
    rows = reading.show(prompts.answered[known:]) - spectrum.mean
    outside = rows - (rows @ spectrum.basis.T) @ spectrum.basis
    return float(np.sqrt((outside**2).mean(axis=1).max()))


def _allow_outside(spectrum: Spectrum) -> float:
    """What errors explain, of a fresh answer and of the space itself."""
    rank, (prompts, vocabulary) = spectrum.rank or 0, (spectrum.prompts, spectrum.basis.shape[1])
    errors = spectrum.deviation * np.sqrt(1.0 + rank / max(1, prompts - 1 - rank))
    # The weakest direction, by entry: one that is missing stands far above a hundredth of it.
    weakest = spectrum.values[rank - 1] / np.sqrt(prompts * vocabulary)
    return float(max(4.0 * errors, 1e-2 * weakest))


def refuse_projection(reading: Reading, rank: int) -> str:
    """Why the projection is not looked for up to a rotation; nothing where it is."""
    prompts = count_projection_prompts(rank)
    questions = prompts * reading.per_prompt
    if rank > LARGEST_RANK:
        return (
            f"not tried: {count_unknowns(rank):,} unknowns; it is done up to a rank of"
            f" {LARGEST_RANK}."
        )
    if questions > _MOST_QUESTIONS or prompts * reading.vocabulary > _MOST_NUMBERS:
        return f"not tried: it takes {questions:,} questions under this policy."
    return ""


def find_projection(prompts: Prompts, rank: int) -> tuple[Spectrum, Ellipsoid | None]:
    """The space of more answers, and the ellipsoid they lie on, if they lie on one."""
    prompts.grow(count_projection_prompts(rank))
    spectrum = prompts.find_spectrum()
    return spectrum, fit_ellipsoid(spectrum) if spectrum.rank == rank else None


def count_least_questions(rank: int, reading: Reading) -> int:
    """The fewest questions from which anybody can know the space of the answers."""
    freedom = rank * (reading.vocabulary - rank)
    return max(rank + 1, -(-freedom // reading.numbers))
