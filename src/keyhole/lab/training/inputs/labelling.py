"""Lessons with answers yes or no, on inputs that ask what is meant; simple guesses.

Uniform inputs of Match3 can often be answered from pairs: $2 x_i + x_j = 0$ or $x_i + 2 x_j = 0$
modulo M shows a match to anybody who looks at two tokens. Strict inputs have no such pair and no 0
(which matches with itself), so that every match takes three tokens. Strict inputs of Match2 have no
0 either, and every other pair of tokens is a match, planted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Array, Sequences, Stack
from keyhole.errors import InvalidInput
from keyhole.lab.training.inputs.lessons import Averaging, Columns, Examples, Lesson
from keyhole.tasks import FourCycles, Match2, Match3, SparseAverage, Task, Triangles
from keyhole.tasks.base import Labels, round_to_whole

_ROUNDS = 400  # of redrawing strict inputs
_LARGEST = 4096  # modulus up to which sums are looked up in a table


@dataclass(frozen=True, slots=True)
class Labelling(Lesson[Any]):
    """A task whose answers are yes or no.

    Args:
        inputs: how inputs are drawn: one of the task's kinds, "mixed" (a share of each) or
            "strict".
    """

    inputs: str = "mixed"

    @property
    def labels(self) -> bool:
        """Answers are yes or no."""
        return True

    @property
    def columns(self) -> Columns:
        """Every number stands for something."""
        # A token of this task is a row of the graph, and only its node is a name.
        if isinstance(self.task, FourCycles):
            return Columns(self.task.nodes, 1, self.task.nodes)
        values = self.task.nodes if isinstance(self.task, Triangles) else self.task.modulus
        return Columns(0, self.task.width, values)

    def draw(self, size: int, *, rng: np.random.Generator) -> Sequences:
        """Inputs of the kind that was asked for."""
        if self.inputs == "strict":
            return _STRICT[type(self.task)](self.task, size, rng)[..., None].astype(np.float64)
        if self.inputs != "mixed":
            return self.task.sample(size, rng=rng, kind=self.inputs)
        kinds = self.task.kinds
        # Equal shares, rounded up, then cut to size after shuffling.
        each = [self.task.sample(-(-size // len(kinds)), rng=rng, kind=kind) for kind in kinds]
        return np.concatenate(each)[rng.permutation(len(kinds) * -(-size // len(kinds)))[:size]]

    def targets(self, X: Sequences) -> Labels:
        """The truth; sums of one or two tokens are looked up where there are few of them."""
        # The table has a column per residue.
        if type(self.task) not in _STRICT or self.task.modulus > _LARGEST:
            return self.task.target(X)
        x = round_to_whole(X[..., 0])
        M = self.task.modulus
        sums = x
        if not isinstance(self.task, Match2):
            sums = ((x[:, :, None] + x[:, None, :]) % M).reshape(len(x), -1)
        seen = np.zeros((len(x), M))
        rows = np.arange(len(x))[:, None]
        seen[rows, sums] = 1.0
        return seen[rows, -x % M][..., None]

    def lines(self, tests: Examples, seen: Examples) -> dict[str, float]:
        """The majority, the best guess by how many tokens differ, and what pairs tell."""
        X, Y = tests
        majority = np.full(Y.shape, float(seen.Y.mean() > 0.5))
        guesses: dict[str, Array] = {
            "majority": majority,
            "distinct_count": _guess_by_count(X, seen),
        }
        # Shows whether inputs can be answered without ever looking at three tokens.
        if isinstance(self.task, Match3):
            guesses["pairwise"] = _find_pair_matches(round_to_whole(X[..., 0]), self.task.modulus)[
                ..., None
            ].astype(np.float64)
        return {
            name: float(np.not_equal(guess > 0.5, Y > 0.5).mean())
            for name, guess in guesses.items()
        }


def _count_distinct_tokens(X: Stack) -> Any:
    """How many different tokens each sequence has."""
    return np.array([len({row.tobytes() for row in x}) for x in X])


def _guess_by_count(X: Stack, seen: Examples) -> Array:
    """The more frequent answer among seen inputs with as many different tokens."""
    then = _count_distinct_tokens(seen.X)
    now = _count_distinct_tokens(X)
    usual = float(seen.Y.mean())
    rates = {count: float(seen.Y[then == count].mean()) for count in set(then.tolist())}
    # A count that was never seen gets the usual answer.
    return np.array([rates.get(int(count), usual) for count in now])[:, None, None] * np.ones(
        (1, X.shape[1], 1)
    )


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


_STRICT: dict[type[Any], Callable[[Any, int, np.random.Generator], Any]] = {
    Match2: _draw_strict_pairs,
    Match3: _draw_strict_triples,
}


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))


def _has_strict_inputs(task: Any) -> bool:
    """Whether strict inputs of a task are what they are meant to be."""
    return (
        type(task) in _STRICT
        and task.modulus <= _LARGEST
        # Modulo 2 or 3 a value matches with copies of itself.
        and task.modulus > 3
        and _is_prime(task.modulus)
    )


def choose_lesson(task: Task, inputs: str | None = None) -> Lesson[Any]:
    """How a task is taught; matching modulo an odd prime on strict inputs unless told otherwise.

    Raises:
        InvalidInput: the task has no such inputs.
    """
    if isinstance(task, SparseAverage):
        if inputs is not None:
            raise InvalidInput(
                "--inputs is for tasks with answers yes or no; sparse-average has one kind of"
                " inputs."
            )
        return Averaging(task)
    known = (*task.kinds, "mixed", *(("strict",) if _has_strict_inputs(task) else ()))
    if inputs is not None and inputs not in known:
        hint = ""
        if inputs == "strict":
            hint = " Strict ones need match2 or match3 and a prime modulus from 5 to 4,093."
        raise InvalidInput(
            f"--inputs of this {task.name} is one of {', '.join(known)}; got {inputs!r}.{hint}"
        )
    return Labelling(task, inputs or ("strict" if "strict" in known else "mixed"))
