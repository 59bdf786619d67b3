"""Matching modulo a prime, on inputs that ask what is meant.

Uniform inputs of Match3 can often be answered from pairs: $2 x_i + x_j = 0$ or $x_i + 2 x_j = 0$
modulo M shows a match to anybody who looks at two tokens. Strict inputs have no such pair and no 0
(which matches with itself), so that every match takes three tokens. Strict inputs of Match2 have no
0 either, and every other pair of tokens is a match, planted.

One triple or none, modulo $N^4$, is what Match3 is conjectured to be hard on.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.lab.training.inputs.labelling import Labelling
from keyhole.tasks import Match2, Match3, draw_planted_triples
from keyhole.tasks.base import Labels, round_to_whole

_ROUNDS = 400  # of redrawing strict inputs
_LARGEST = 4096  # modulus up to which sums are looked up in a table

Matching = TypeVar("Matching", Match2, Match3)


@dataclass(frozen=True, slots=True)
class StrictLabelling(Labelling[Matching]):
    """A matching task that has strict inputs modulo a prime."""

    @classmethod
    def list_own_inputs(cls, task: Matching) -> tuple[str, ...]:
        """Strict ones, where they are what they are meant to be."""
        # Modulo 2 or 3 a value matches with copies of itself.
        strict = 3 < task.modulus <= _LARGEST and _is_prime(task.modulus)
        return ("strict",) if strict else ()

    def draw_kind(self, kind: str, size: int, rng: np.random.Generator) -> Sequences:
        """Inputs of one kind, strict ones included."""
        if kind != "strict":
            return self.task.sample(size, rng=rng, kind=kind)
        return self.draw_strict(size, rng)[..., None].astype(np.float64)

    def targets(self, X: Sequences) -> Labels:
        """The truth; sums of other tokens are looked up where there are few of them."""
        # The table has a column per residue.
        if self.task.modulus > _LARGEST:
            return self.task.target(X)
        x = round_to_whole(X[..., 0])
        M = self.task.modulus
        seen = np.zeros((len(x), M))
        rows = np.arange(len(x))[:, None]
        seen[rows, self.sum_partners(x)] = 1.0
        return seen[rows, -x % M][..., None]

    @abstractmethod
    def draw_strict(self, size: int, rng: np.random.Generator) -> Any:
        """Strict inputs, as whole numbers."""

    @abstractmethod
    def sum_partners(self, x: Any) -> Any:
        """Every sum of as many tokens as a match takes beside the one that asks."""


@dataclass(frozen=True, slots=True)
class Pairs(StrictLabelling[Match2]):
    """Match2."""

    def draw_strict(self, size: int, rng: np.random.Generator) -> Any:
        """Every other pair of tokens is a match."""
        return _draw_strict_pairs(self.task, size, rng)

    def sum_partners(self, x: Any) -> Any:
        """The tokens themselves."""
        return x


@dataclass(frozen=True, slots=True)
class Triples(StrictLabelling[Match3]):
    """Match3."""

    @classmethod
    def list_own_inputs(cls, task: Match3) -> tuple[str, ...]:
        """Those on which it is conjectured to be hard too, where M is the fourth power of N."""
        hard = task.length >= 3 and task.modulus == task.length**4
        return (*(("one-triple",) if hard else ()), *super(Triples, cls).list_own_inputs(task))

    def draw_kind(self, kind: str, size: int, rng: np.random.Generator) -> Sequences:
        """Inputs of one kind, those with one planted triple, or none, included."""
        if kind == "one-triple":
            return draw_planted_triples(self.task.length, size, rng=rng).X
        return super(Triples, self).draw_kind(kind, size, rng)

    def draw_strict(self, size: int, rng: np.random.Generator) -> Any:
        """No pair shows a match."""
        return _draw_strict_triples(self.task, size, rng)

    def sum_partners(self, x: Any) -> Any:
        """The sums of all pairs."""
        return ((x[:, :, None] + x[:, None, :]) % self.task.modulus).reshape(len(x), -1)

    def guess_labels(self, X: Stack) -> dict[str, Array]:
        """What pairs tell: whether inputs can be answered without looking at three tokens."""
        shown = _find_pair_matches(round_to_whole(X[..., 0]), self.task.modulus)
        return {"pairwise": shown[..., None].astype(np.float64)}


def _find_pair_matches(x: Any, modulus: int) -> Any:
    """Matches of three that a pair shows: a token twice with another, or another twice."""
    one, two = x[:, :, None], x[:, None, :]
    return (((2 * one + two) % modulus == 0) | ((one + 2 * two) % modulus == 0)).any(axis=2)


# One of x and M - x is chosen for every value, so that no two tokens sum to zero; then every second
# token is made the negative of its neighbour with probability 1/2, and places are shuffled.
def _draw_strict_pairs(task: Match2, size: int, rng: np.random.Generator) -> Any:
    M, N = task.modulus, task.length
    flipped = rng.random((size, M)) < 0.5
    small = rng.integers(1, (M + 1) // 2, size=(size, N))
    x = np.where(np.take_along_axis(flipped, small, axis=1), M - small, small)
    partners = x[:, 1::2]
    partners[:] = np.where(
        rng.random(partners.shape) < 0.5, M - x[:, 0::2][:, : partners.shape[1]], partners
    )
    return rng.permuted(x, axis=1)


def _draw_strict_triples(task: Match3, size: int, rng: np.random.Generator) -> Any:
    """Uniform inputs, those thrown away that a pair tells something about."""
    kept: list[Any] = []
    for _ in range(_ROUNDS):
        # Some more than needed, since many are thrown away.
        x = rng.integers(1, task.modulus, size=(2 * size + 64, task.length))
        kept.append(x[~_find_pair_matches(x, task.modulus).any(axis=1)])
        if sum(map(len, kept)) >= size:
            return np.concatenate(kept)[:size]
    raise InvalidInput(
        f"hardly any input of {task.length} tokens modulo {task.modulus} is strict. Give a larger"
        " --modulus, a shorter --length, or --inputs random."
    )


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))
