r"""Networks with one hidden layer, and the normal form that their values determine.

For ReLU, $\max(z, 0) = (|z| + z)/2$, so with $n_j = w_j/|w_j|$, $t_j = -b_j/|w_j|$ and $D_j = |w_j|
A_{:j}$

$$\sum_j A_{:j} \max(w_j x + b_j, 0) + c = \tfrac12 \sum_j D_j |n_j x - t_j| + P x + q,$$

$P = \tfrac12 \sum_j A_{:j} w_j^\top$ and $q = c + \tfrac12 \sum_j A_{:j} b_j$. Once hyperplanes are
distinct and no $D_j$ is zero the right-hand side is unique up to order and the signs of $(n_j,
t_j)$: the bends of the function are the hyperplanes, its jumps of slope are the $D_j$. Which side
of a hyperplane a unit was active on (its flip) enters only through $P$, so that values determine it
only where $P$ does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import (
    Answers,
    Array,
    Float,
    Indices,
    Matrix,
    PerSequence,
    Rng,
    as_generator,
    check_shape,
    find_power_of_two,
    freeze_array,
    rms,
)
from keyhole.drawing.faces import Face
from keyhole.errors import InvalidInput
from keyhole.models.last_token.activations import ACTIVATIONS
from keyhole.models.last_token.base import LastToken, Points, freeze_arrays
from keyhole.models.yardsticks import Reach, measure_linear_part, measure_network

# Hyperplanes closer than this, relative to their offset, are one; D below it of the largest is 0.
_SAME = 1e-12
_PLACES = 12  # decimals of a unit normal that equal ones share
# Of what cancels between parallel hyperplanes that still counts: so far out it is never exact.
_KEPT = 1e-3


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class ReluNet(LastToken, Face):
    r"""A network with one hidden layer, $g(x) = W_2\, \phi(W_1 x + b_1) + b_2$.

    Args:
        W1: one row per hidden unit.
        b1: biases of the hidden units.
        W2: one row per output.
        b2: constant added to the answer.
        activation: relu, gelu (exact, $z\Phi(z)$), gelu_tanh (its tanh form), silu
            ($z/(1 + e^{-z})$) or softplus ($\log(1 + e^z)$).
    """

    W1: Float[Array, "hidden width"]
    b1: Float[Array, "hidden"]
    W2: Float[Array, "outputs hidden"]
    b2: Float[Array, "outputs"]
    activation: str = "relu"

    def __post_init__(self) -> None:
        freeze_arrays(self, "W1", "b1", "W2", "b2")
        check_shape("W1", self.W1, (None, None))
        check_shape("b1", self.b1, (len(self.W1),))
        check_shape("W2", self.W2, (None, len(self.W1)))
        check_shape("b2", self.b2, (len(self.W2),))
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(
                f"an activation is one of {', '.join(ACTIVATIONS)}; got {self.activation!r}."
            )

    @classmethod
    def random(
        cls,
        width: int,
        *,
        hidden: int,
        outputs: int = 1,
        scale: float = 1.0,
        activation: str = "relu",
        rng: Rng,
    ) -> ReluNet:
        """Gaussian weights of size 1/sqrt(inputs); hyperplanes about 1 / `scale` from 0."""
        rng = as_generator(rng)
        W1 = scale * rng.normal(size=(hidden, width)) / np.sqrt(width)
        W2 = rng.normal(size=(outputs, hidden)) / np.sqrt(max(1, hidden))
        return cls(W1, rng.normal(size=hidden), W2, rng.normal(size=outputs), activation)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.W1.shape[1]

    @property
    def hidden(self) -> int:
        """Number of hidden units."""
        return len(self.W1)

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return len(self.W2)

    def points(self, x: Points) -> Answers:
        """Answers to points."""
        return ACTIVATIONS[self.activation](x @ self.W1.T + self.b1) @ self.W2.T + self.b2

    def terms(self, x: Points) -> PerSequence:
        """Largest sum of the sizes of the terms of an answer."""
        reach = np.abs(x) @ np.abs(self.W1).T + np.abs(self.b1)
        return (reach @ np.abs(self.W2).T + np.abs(self.b2)).max(axis=1)

    def reach(self, into: Reach, eps: float) -> Reach:
        """Size and rounding of the parts of an answer."""
        return measure_network(into, self.W1, self.b1, self.W2, self.b2, eps)

    def normal_form(self) -> AbsAffine:
        """The same function as absolute values plus an affine map; idle units are a constant.

        Raises:
            InvalidInput: the activation is not ReLU, which no finite sum of absolute values equals.
        """
        if self.activation != "relu":
            raise InvalidInput(
                f"only a ReLU network is a sum of absolute values; this one has {self.activation}."
            )
        size = np.linalg.norm(self.W1, axis=1)
        # A unit without weights has no hyperplane: it adds a constant, or nothing.
        acts = size > 0
        A = self.W2[:, acts]
        w = self.W1[acts]
        b = self.b1[acts]
        size = size[acts]
        idle = self.W2[:, ~acts] @ np.maximum(self.b1[~acts], 0.0)
        D = (A * size).T
        q = self.b2 + idle + A @ b / 2
        return AbsAffine(w / size[:, None], -b / size, D, A @ w / 2, q)


@dataclass(frozen=True, eq=False, slots=True)
class Unfolded:
    """A ReLU network made from a normal form.

    Args:
        net: the network; the same function.
        flips: whether the side on which each unit is active is determined by the function.
        added: units that were added to carry an affine part that flips do not explain.
    """

    net: ReluNet
    flips: bool
    added: int


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class AbsAffine(LastToken, Face):
    r"""Absolute values plus an affine map, $g(x) = \tfrac12 \sum_j D_j |n_j x - t_j| + P x + q$.

    This is what the values of a ReLU network determine, up to the order of the hyperplanes and the
    sign of each $(n_j, t_j)$. Normals are made unit vectors at birth.

    Args:
        n: normals, one row per hyperplane.
        t: offsets of the hyperplanes from the origin.
        D: jumps of slope across the hyperplanes, one row each.
        P: linear part.
        q: constant part.
    """

    n: Float[Array, "hidden width"]
    t: Float[Array, "hidden"]
    D: Float[Array, "hidden outputs"]
    P: Float[Array, "outputs width"]
    q: Float[Array, "outputs"]

    def __post_init__(self) -> None:
        freeze_arrays(self, "n", "t", "D", "P", "q")
        check_shape("P", self.P, (None, None))
        m, d = self.P.shape
        check_shape("n", self.n, (None, d))
        for name, shape in {"t": (len(self.n),), "D": (len(self.n), m), "q": (m,)}.items():
            check_shape(name, getattr(self, name), shape)
        self._normalise()

    def _normalise(self) -> None:
        size = np.linalg.norm(self.n, axis=1)
        if (size == 0).any():
            raise InvalidInput(
                f"normals must not be zero; {int((size == 0).sum())} of {len(size)} are."
            )
        # Normals that are unit already keep their bits.
        if (np.abs(size - 1) > 1e-14).any():
            unit = {"n": self.n / size[:, None], "t": self.t / size, "D": self.D * size[:, None]}
            for name, array in unit.items():
                object.__setattr__(self, name, freeze_array(array))

    @classmethod
    def random(cls, width: int, *, hidden: int, outputs: int = 1, rng: Rng) -> AbsAffine:
        """Gaussian offsets, jumps of size 1/sqrt(hidden), and any affine part."""
        rng = as_generator(rng)
        D = rng.normal(size=(hidden, outputs)) / np.sqrt(max(1, hidden))
        n = rng.normal(size=(hidden, width))
        P = rng.normal(size=(outputs, width)) / np.sqrt(width)
        n /= np.linalg.norm(n, axis=1, keepdims=True)
        return cls(n, rng.normal(size=hidden), D, P, rng.normal(size=outputs))

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.P.shape[1]

    @property
    def hidden(self) -> int:
        """Number of hyperplanes."""
        return len(self.n)

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return len(self.P)

    @property
    def degrees_of_freedom(self) -> int:
        """Numbers that values determine, $k(d + m) + m(d + 1)$."""
        return network_freedom(self.width, hidden=self.hidden, outputs=self.outputs)

    def points(self, x: Points) -> Answers:
        """Answers to points."""
        return np.abs(x @ self.n.T - self.t) @ self.D / 2 + x @ self.P.T + self.q

    def terms(self, x: Points) -> PerSequence:
        """Largest sum of the sizes of the terms of an answer."""
        bends = (np.abs(x @ self.n.T) + np.abs(self.t)) @ np.abs(self.D) / 2
        return (bends + np.abs(x) @ np.abs(self.P).T + np.abs(self.q)).max(axis=1)

    def reach(self, into: Reach, eps: float) -> Reach:
        """Size and rounding of the parts of an answer; parallel hyperplanes are one part."""
        bends = measure_network(into, self.n, self.t, self.D.T / 2, self.q, eps)
        cancelled = (1.0 - _KEPT) * self._measure_cancelled(into.size)
        bends = replace(bends, size=bends.size - cancelled)
        return bends + measure_linear_part(into, self.P, eps)

    def _measure_cancelled(self, tokens: Matrix) -> Matrix:
        r"""By how much the bends of one direction are larger than what they add up to.

        Between 0 and x, $\sum_j D_j |n x - t_j|$ changes by no more than $|\sum_j D_j|\,|n x| +
        2 \sum_j |D_j|\,|t_j - t|$: a ridge, or ReLU6, is as large as it is high, however far away.
        """
        cancelled = np.zeros((len(tokens), self.outputs))
        for group, signs in find_equal_normals(self.n):
            D, t = np.abs(self.D[group]), signs * self.t[group]
            along = tokens @ np.abs(self.n[group[0]])[:, None]
            apart = 2 * np.abs(t - (t.min() + t.max()) / 2)
            together = np.abs(self.D[group].sum(axis=0)) * along + apart @ D
            cancelled += np.maximum(D.sum(axis=0) * along - together, 0.0) / 2
        return cancelled

    def jacobian(self, x: Float[Array, "width"]) -> Matrix:
        """Slopes at a point off the hyperplanes, one row per output."""
        return self.P + (np.sign(self.n @ x - self.t)[:, None] * self.D / 2).T @ self.n

    def canonical(self) -> AbsAffine:
        """The same function, equal hyperplanes merged, idle ones dropped, sorted by jump.

        Every normal points to the side of one fixed generic direction.
        """
        sign = np.where(self.n @ choose_generic_direction(self.width) < 0, -1.0, 1.0)
        n, t, D = merge_hyperplanes(self.n * sign[:, None], self.t * sign, self.D)
        size = np.linalg.norm(D, axis=1)
        least = _SAME * size.max(initial=0.0)
        order = [int(j) for j in np.argsort(-size, kind="stable") if size[j] > least]
        return AbsAffine(n[order], t[order], D[order], self.P, self.q)

    def unfold(self) -> Unfolded:
        r"""A ReLU network with the same values.

        Flips $s_j$ solve $P = \tfrac12 \sum_j s_j D_j n_j^\top$, which are m d equations for k
        signs. Where these determine all of them the network has k units; otherwise every unit is
        active on the far side, and what P then lacks is added as ReLU(v x) - ReLU(-v x), two units
        per rank of it, at most 2 min(m, d).
        """
        flips = _find_active_sides(self)
        s = np.ones(self.hidden) if flips is None else flips
        W1 = s[:, None] * self.n
        b1 = -s * self.t
        W2 = self.D.T
        lacking = self.P - W2 @ W1 / 2
        # What P lacks, in as few linear units as its rank allows.
        U, S, Z = np.linalg.svd(lacking, full_matrices=False)
        if flips is not None:
            rank = 0
        else:
            rank = int((1e-14 * max(rms(self.P), rms(W2), rms(lacking)) < S).sum())
        V = Z[:rank]
        left = U[:, :rank] * S[:rank]
        net = ReluNet(
            np.concatenate([W1, V, -V]),
            np.concatenate([b1, np.zeros(2 * rank)]),
            np.hstack([W2, left, -left]),
            self.q - W2 @ b1 / 2,
        )
        return Unfolded(net, flips is not None, 2 * rank)


def network_freedom(width: int, *, hidden: int, outputs: int) -> int:
    """Numbers that the values of a ReLU network determine, $k(d + m) + m(d + 1)$."""
    return hidden * (width + outputs) + outputs * (width + 1)


def choose_generic_direction(width: int) -> Array:
    """A fixed direction that no hyperplane found in practice is parallel to."""
    return np.cos(1.0 + np.arange(width) ** 2 * np.sqrt(2.0))


def find_equal_normals(n: Matrix) -> list[tuple[Indices, Array]]:
    """Groups of two or more rows that are one direction, with their signs beside the first's."""
    direction = choose_generic_direction(n.shape[1])
    along = n @ direction
    near = find_close_numbers(np.abs(along), 10.0**-_PLACES * float(np.abs(direction).sum()))
    if not len(near):
        return []
    signs = np.where(along < 0, -1.0, 1.0)
    rows = np.round(n[near] * signs[near, None], _PLACES) + 0.0
    _, numbers, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    groups = [near[numbers.ravel() == i] for i in np.flatnonzero(counts > 1)]
    return [(group, signs[group] * signs[group[0]]) for group in groups]


def find_close_numbers(numbers: Array, apart: float) -> Indices:
    """Which of some numbers are no farther than that from another, ascending."""
    order = np.argsort(numbers)
    close = np.diff(numbers[order]) <= apart
    chosen = np.zeros(len(order), dtype=np.bool_)
    chosen[:-1] |= close
    chosen[1:] |= close
    return np.sort(order[chosen])


def merge_hyperplanes(n: Matrix, t: Array, D: Matrix) -> tuple[Matrix, Array, Matrix]:
    """Jumps of equal hyperplanes added up, in the place of the first of them."""
    kept: list[int] = []
    sums: list[Array] = []
    for j in range(len(n)):
        apart = np.abs(t[kept] - t[j]) / (1 + abs(t[j]))
        near = np.abs(n[kept] - n[j]).max(axis=1, initial=0.0) + apart
        same = np.flatnonzero(near < _SAME)
        if len(same):
            sums[same[0]] = sums[same[0]] + D[j]
        else:
            kept.append(j)
            sums.append(D[j])
    return n[kept], t[kept], np.array(sums).reshape(len(kept), D.shape[1])


def _find_active_sides(model: AbsAffine) -> Array | None:
    """The sides on which units are active, where the linear part says so, else None."""
    k = model.hidden
    if k == 0:
        return np.ones(0) if rms(model.P) == 0.0 else None
    # Fewer equations than signs: some could be flipped together.
    if model.outputs * model.width < k:
        return None
    # In units of the largest jump no product of two overflows.
    unit = find_power_of_two(float(np.abs(model.D).max())) or 1.0
    D, P = model.D / unit, model.P / unit
    # (D_j n_j^T, D_i n_i^T) without forming them: m d numbers for each unit are too many.
    normal = (D @ D.T) * (model.n @ model.n.T) / 4
    size = np.sqrt(np.diag(normal))
    if (size == 0).any():
        return None
    values, vectors = np.linalg.eigh(normal / size / size[:, None])
    # Dependent columns: signs along the kernel are free.
    if values[0] <= 1e-13 * values[-1]:
        return None
    pull = np.einsum("jm,md,jd->j", D, P, model.n, optimize=True) / 2
    signs = np.where(vectors @ (vectors.T @ (pull / size) / values) < 0, -1.0, 1.0)
    lacking = P - (D * signs[:, None]).T @ model.n / 2
    # Signs that leave a rest explain nothing: the affine part is another's.
    typical = rms(size) / np.sqrt(P.size)
    return signs if rms(lacking) <= 1e-6 * max(rms(P), typical) else None
