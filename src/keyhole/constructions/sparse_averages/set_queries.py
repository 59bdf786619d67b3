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
    Sequences,
    Stack,
    Vector,
    check_finite,
    check_sequences,
    check_shape,
    freeze_array,
)
from keyhole.constructions.shared.layout import Layout
from keyhole.constructions.sparse_averages.exposing import SOLVERS
from keyhole.errors import DoesNotFit, InvalidInput

# Queries remembered at most; a linear program each, which long searches ask for again and again.
_KEPT = 50_000
# A sharpness beyond this could overflow a score.
_LARGEST = 1e290
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


@dataclass(frozen=True, eq=False, slots=True)
class SetQueries:
    """Maps a token (z ; y ; i) to its vector, its key and the query of its set.

    Args:
        keys: one row per position.
        solver: how queries are computed from keys, by name.
        accuracy: largest error of an answer in exact arithmetic.
        q: numbers of a token that name positions, -1 for none.
        dimension: numbers of a token that are its vector.
    """

    keys: Float[Array, "length embed"]
    solver: str
    accuracy: float
    q: int
    dimension: int = 1
    _found: dict[Members, Query] = field(
        default_factory=dict[Members, Query], init=False, repr=False
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", freeze_array(self.keys))
        check_shape("keys", self.keys, (None, None))
        check_finite("keys", self.keys)
        if self.solver not in SOLVERS:
            raise InvalidInput(
                f"queries of sets are computed by {', '.join(SOLVERS)}; got {self.solver!r}."
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
        return {
            "solver": self.solver,
            "accuracy": self.accuracy,
            "q": self.q,
            "dimension": self.dimension,
        }

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
        rest = self.length - len(members)
        # Everybody is meant: attention that tells nobody apart.
        if rest == 0:
            return Query(np.zeros(self.keys.shape[1]), math.inf, 0.0)
        on = np.isin(np.arange(self.length), members)
        w, margin = SOLVERS[self.solver](self.keys, on)
        wanted = max(0.0, math.log(2.0 * rest / (len(members) * self.accuracy)))
        sharpness = wanted / margin if margin > wanted / _LARGEST else math.inf
        if math.isinf(sharpness):
            raise DoesNotFit(
                f"{self.solver} queries of width {len(w)} do not single out the positions "
                f"{', '.join(map(str, members))}: draw other keys, or wider ones."
            )
        return Query(sharpness * w, margin, sharpness)

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
    members = tuple(sorted({int(j) for j in row if j >= 0}))
    if not members:
        raise InvalidInput("a token names at least one position; got none.")
    return members
