r"""The token map of sparse averaging: a vector, its position's key, the query of its set.

$$\phi(x_i) = (z_i ; u_i ; \alpha_y w_y),
\qquad \alpha_y = \frac{1}{\gamma_y} \ln \frac{2 (N - |y|)}{|y| \varepsilon}$$

The query is computed from the keys by a certificate; $\gamma_y$ is its margin, so every set is
given the sharpness it needs. Scores are then equal on y and at least $\alpha_y \gamma_y$ less off
it, and the weights of attention are, in l1, within $2\delta/(1 + \delta) \le \varepsilon$ of
uniform on y, with $\delta = \frac{N - |y|}{|y|} e^{-\alpha_y \gamma_y}$: no vectors z of the unit
ball make the answer wrong by more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keyhole._arrays import (
    Array,
    Float,
    Mask,
    Matrix,
    Sequences,
    Stack,
    Vector,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
)
from keyhole.constructions.shared.layout import Layout
from keyhole.constructions.sparse_averages.directions import (
    Directions,
    Sets,
    find_directions,
    mark_members,
)
from keyhole.constructions.sparse_averages.exposing import SOLVERS
from keyhole.errors import DoesNotFit, InvalidInput

# Queries remembered at most; a linear program each, which long searches ask for again and again.
_KEPT = 50_000
# A sharpness beyond this could overflow a score.
_LARGEST = 1e290
# Queries of many sets at once, by closed forms while they are good enough.
STAGED = "staged"
Members = tuple[int, ...]


class Query(NamedTuple):
    """What singles out one set.

    Args:
        scaled: the query, sharpness included.
        margin: of the query before scaling.
        sharpness: the factor between.
    """

    scaled: Vector
    margin: float
    sharpness: float


class Queries(NamedTuple):
    """What singles out many sets of one size, one row or number a set.

    Args:
        scaled: the queries, sharpness included; 0 where a set is not singled out.
        margin: of the queries before scaling; not positive where a set is not singled out.
        sharpness: the factors between.
    """

    scaled: Matrix
    margin: Vector
    sharpness: Vector

    @property
    def exposed(self) -> Mask:
        """Which sets are singled out."""
        return self.margin > 0


@dataclass(frozen=True, eq=False, slots=True)
class SetQueries:
    """Maps a token (z ; y ; i) to its vector, its key and the query of its set.

    Args:
        keys: one row per position.
        solver: how queries are computed from keys, by name.
        accuracy: largest error of an answer in exact arithmetic.
        q: numbers of a token that name positions, -1 for none.
        dimension: numbers of a token that are its vector.
        enough: the margin with which staged queries are content.
    """

    keys: Float[Array, "length embed"]
    solver: str
    accuracy: float
    q: int
    dimension: int = 1
    enough: float = 0.0
    _found: dict[Members, Query] = field(
        default_factory=dict[Members, Query], init=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", freeze_array(self.keys))
        check_shape("keys", self.keys, (None, None))
        check_finite("keys", self.keys)
        if self.solver not in (*SOLVERS, STAGED):
            raise InvalidInput(
                f"queries of sets are computed by {', '.join((*SOLVERS, STAGED))}; got"
                f" {self.solver!r}."
            )
        if not 0 <= self.enough < math.inf or (self.enough > 0) != (self.solver == STAGED):
            raise InvalidInput(
                f"staged queries, and no others, have a margin that is enough; got {self.enough!r}"
                f" for {self.solver} ones."
            )
        if not 0 < self.accuracy < math.inf:
            raise InvalidInput(f"an accuracy is a positive number; got {self.accuracy!r}.")
        if not 1 <= self.q <= len(self.keys) or self.dimension < 1 or self.keys.shape[1] < 1:
            raise InvalidInput(
                f"queries of sets need 1 <= q <= {len(self.keys)}, the number of keys, and a"
                f" vector; got q = {self.q}, dimension = {self.dimension} and keys of width"
                f" {self.keys.shape[1]}."
            )
        if self.solver == "indicator" and self.keys.shape[1] != len(self.keys):
            raise InvalidInput(f"one-hot keys are a square matrix; got shape {self.keys.shape}.")
        if self.solver in ("monomial", "trigonometric") and self.keys.shape[1] < 2 * self.q:
            raise InvalidInput(
                f"{self.solver} keys of sets of {self.q} have width {2 * self.q}; got"
                f" {self.keys.shape}."
            )

    @property
    def name(self) -> str:
        """By which files know it."""
        return "set-queries"

    @property
    def settings(self) -> Mapping[str, float | int | str]:
        """Its words and numbers."""
        staged = {"enough": self.enough} if self.solver == STAGED else {}
        return {
            "solver": self.solver,
            "accuracy": self.accuracy,
            "q": self.q,
            "dimension": self.dimension,
        } | staged

    @property
    def tensors(self) -> Mapping[str, Array]:
        """Its keys."""
        return {"keys": self.keys}

    @property
    def length(self) -> int:
        """Positions that have a key."""
        return len(self.keys)

    @property
    def layout(self) -> Layout:
        """Of the mapped tokens."""
        return Layout.of(value=self.dimension, key=self.keys.shape[1], query=self.keys.shape[1])

    @property
    def known(self) -> tuple[Members, ...]:
        """Sets whose queries were computed before."""
        return tuple(self._found)

    def query(self, members: Members) -> Query:
        """The query of a set.

        Raises:
            DoesNotFit: the keys do not single it out.
        """
        if members not in self._found:
            if len(self._found) >= _KEPT:
                self._found.clear()
            self._found[members] = self._solve(members)
        return self._found[members]

    def _solve(self, members: Members) -> Query:
        found = self.solve_sets(np.array([members], dtype=np.int64))
        if not found.exposed[0]:
            raise DoesNotFit(
                f"{self.solver} queries of width {self.keys.shape[1]} do not single out the"
                f" positions {', '.join(map(str, members))}: draw other keys, or wider ones."
            )
        return Query(found.scaled[0], float(found.margin[0]), float(found.sharpness[0]))

    def solve_sets(self, sets: Sets) -> Queries:
        """The queries of sets of one size; what a set gets does not depend on the others.

        Args:
            sets: one row of positions per set, rising.
        """
        rest = self.length - sets.shape[1]
        # Everybody is meant: attention that tells nobody apart.
        if rest == 0:
            none = np.zeros(len(sets))
            return Queries(np.zeros((len(sets), self.keys.shape[1])), none + math.inf, none)
        w, margin, _ = self.find_directions(sets)
        wanted = self.count_wanted_gap(sets.shape[1])
        margin = np.where(margin > wanted / _LARGEST, margin, np.minimum(margin, 0.0))
        sharpness = np.where(margin > 0, wanted / np.where(margin > 0, margin, 1.0), 0.0)
        return Queries(sharpness[:, None] * w, margin, sharpness)

    def count_wanted_gap(self, size: int) -> float:
        """By how much scores on a set of that size exceed all others, after scaling."""
        rest = self.length - size
        return max(0.0, math.log(2.0 * rest / (size * self.accuracy))) if rest else 0.0

    def find_directions(self, sets: Sets) -> Directions:
        """The queries of sets of one size before they are scaled; none holds every position."""
        if self.solver == STAGED:
            return find_directions(self.keys, sets, enough=self.enough)
        marked = mark_members(sets, self.length)
        found = [SOLVERS[self.solver](self.keys, on) for on in marked]
        w = np.array([one.w for one in found]).reshape(len(sets), self.keys.shape[1])
        return Directions(w, np.array([one.margin for one in found], dtype=np.float64), 0)

    def __call__(self, X: Sequences) -> Stack:
        """The mapped tokens."""
        check_sequences(X, self.dimension + self.q + 1)
        z, y, place = np.split(X, [self.dimension, self.dimension + self.q], axis=-1)
        at = self._read_positions(place)[..., 0]
        if (at < 0).any():
            raise InvalidInput(
                f"a token's position lies between 0 and {self.length - 1}; got {int(at.min())}."
            )
        # Many tokens name one set, and a query costs a linear program.
        rows, back = np.unique(
            self._read_positions(y).reshape(-1, self.q), axis=0, return_inverse=True
        )
        scaled = np.stack([self.query(_read_members(row)).scaled for row in rows])
        queries = scaled[back.reshape(at.shape)]
        return np.concatenate([z, self.keys[at], queries], axis=-1)

    def _read_positions(self, numbers: Array) -> Any:
        """Positions as whole numbers, -1 for none."""
        whole = np.rint(numbers)
        if (
            not (np.abs(whole - numbers) < 0.25).all()
            or whole.min() < -1
            or whole.max() >= self.length
        ):
            raise InvalidInput(f"positions are whole numbers below {self.length}, or -1 for none.")
        return whole.astype(np.int64)


def _read_members(row: Any) -> Members:
    """The set a row of positions names."""
    members = tuple(sorted(int(j) for j in row if j >= 0))
    if not members:
        raise InvalidInput("a token names at least one position; got none.")
    if len(set(members)) < len(members):
        raise InvalidInput(
            f"a token names each position of its set once; got {', '.join(map(str, members))}."
        )
    return members
