r"""Prompts asked until a rank shows: the space of the answers, and what it takes at least.

A space of dimension r and a point it goes through take r + 1 answers of full length. A space of
dimension r in V has r(V - r) numbers, so that answers of k numbers must be r(V - r)/k at least.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix
from keyhole.learners.logits.projection import (
    LARGEST_RANK,
    Ellipsoid,
    count_projection_prompts,
    count_unknowns,
    fit_ellipsoid,
)
from keyhole.learners.logits.reading import Reading
from keyhole.learners.logits.spectra import Spectrum, find_rank
from keyhole.oracles import Counted, read_imperfection
from keyhole.oracles.tokens.ids import pack_ids

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
    """

    oracle: Counted
    reading: Reading
    rng: np.random.Generator
    length: int
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
    def error(self) -> float:
        """Standard deviation of the errors that are declared of answers."""
        stated = read_imperfection(self.oracle)
        # What is rounded is off by anything up to half a unit, alike.
        return float(np.hypot(stated.noise, stated.tolerance / np.sqrt(3.0)))

    def grow(self, count: int) -> None:
        """Ask until there are so many prompts."""
        more = count - len(self.answered)
        if more > 0:
            ids = self.rng.integers(self.reading.vocabulary, size=(more, self.length))
            new = self.reading.ask(self.oracle, pack_ids(ids))
            self.answered = np.concatenate([self.answered, new])

    def find_spectrum(self) -> Spectrum:
        """What all answers so far show."""
        return find_rank(self.reading.arrange(self.answered), error=self.error)


def find_space(prompts: Prompts, most: int) -> Spectrum:
    """The space of the answers, from as few prompts as show it and `most` at most."""
    count = min(_FIRST, most)
    while True:
        prompts.grow(count)
        spectrum = prompts.find_spectrum()
        if spectrum.rank is not None or count >= most:
            return spectrum
        count = min(2 * count, most)


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
    return spectrum, None if spectrum.rank is None else fit_ellipsoid(spectrum)


def count_least_questions(rank: int, reading: Reading) -> int:
    """The fewest questions from which anybody can know the space of the answers."""
    freedom = rank * (reading.vocabulary - rank)
    return max(rank + 1, -(-freedom // reading.numbers))
