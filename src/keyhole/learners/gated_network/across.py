r"""Gates and factors across the plane of the circle, from steps at a few of its places.

Write unit j so that on the circle $\tilde n_j x(\theta) = \sin(\theta - \theta_j)$ and $\tilde b_j
x(\theta) = \sin(\theta - \eta_j)$. Between two places with the kinks B between them the function
changes at $x + h v$ by

$$\sum_{j \in B} C_j\, (\tilde n_j x + h \alpha_j)(\tilde b_j x + h \beta_j), \qquad
  \alpha_j = \tilde n_j v, \quad \beta_j = \tilde b_j v,$$

and with at most 0.92 m kinks in B their shares are told apart by C. Two angles at every place give
two equations for each pair (α_j, β_j); the first place needs a third answer for each direction v,
from where on all forms follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from keyhole._arrays import Mask, Matrix, Vector, rms
from keyhole.learners.gated_network.gate_kinks import Kinks
from keyhole.learners.gated_network.gated_form import GatedForm
from keyhole.learners.gated_network.whole_fit import fit_form
from keyhole.learners.networks.jacobians import choose_block_ends

BLOCK = 0.92  # kinks between two places, as a share of the outputs
_STEP = 1 / 100  # across the plane, as a share of the room to the next kink
_STEP_FEW = 1 / 30  # the same with few outputs, where the rest hangs on it
_TURN = 0.4  # of the two angles at a place, to both sides, as a share of that room
_SLACK = 1e5  # roundings beyond which a step has crossed a kink: forms carry many of them
_SHORTER = 4.0
_AGAIN = 5
_NEWTON = 6
_MANY = 6  # places from which on each has its own forms
_SIDES = 1.5  # answers, for each side over the outputs
_SPOILT = 1e-6  # of answers, left along a direction whose steps crossed a kink
_STEPPED = 1e-9  # what is no rounding of a place of the circle
_MENDED = 2  # how often such directions are measured again
TELLING = 3  # outputs from which on they tell kinks between two places apart
_UNEVEN, _EVEN = (
    1e-2,
    1e-4,
)  # deviations beside the even part, and beside the odd one, that are real
_VANISHED = 1e-6  # of what a unit adds, that is none
_UNCLEAR = 12.0
_VECTORS = ("n", "b", "C")  # parts that are seen far away
_STEPS = 4  # of fitting these


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Places of the circle where steps are taken.

    Args:
        region: how many kinks lie before each.
        angles: two angles at each.
        room: distance from the nearest kink.
    """

    region: list[int]
    angles: Matrix
    room: Vector


def choose_places(kinks: Kinks) -> Places:
    """Wide regions of the circle, not more than 0.92 m kinks apart, that tell their jumps apart."""
    theta = kinks.theta
    if not len(theta):
        return Places([0], np.array([[-0.5, 0.5]]), np.ones(1))
    # The half circle goes on with the mirror images of its kinks.
    wrapped = np.concatenate([theta[-1:] - np.pi, theta, theta[:1] + np.pi])
    centre = (wrapped[1:] + wrapped[:-1]) / 2
    room = np.diff(wrapped) / 2
    block = max(1, int(BLOCK * kinks.C.shape[1]))
    region = choose_block_ends(kinks.C, room, block)
    at, room = centre[region], room[region]
    turn = np.minimum(_TURN * room, 0.5)
    return Places(region, np.column_stack([at - turn, at + turn]), room)


@dataclass(slots=True)
class _Forms:
    """Along every direction v the form of one region: 2 B(x0, v), 2 B(u, v) and q(v)."""

    by_x0: Matrix
    by_u: Matrix
    square: Matrix

    def at(self, theta: float, h: Vector) -> Matrix:
        """What a step h v adds to the value at an angle."""
        along = np.cos(theta) * self.by_x0 + np.sin(theta) * self.by_u
        return h[:, None] * along + (h * h)[:, None] * self.square

    def put(self, other: _Forms, which: Mask) -> None:
        """Take over the forms along some directions."""
        self.by_x0[which] = other.by_x0
        self.by_u[which] = other.by_u
        self.square[which] = other.square


def _assemble_forms(taken: list[Matrix], angles: tuple[float, float], h: Vector) -> _Forms:
    """Forms from steps ahead at two angles and one back at the first."""
    a, b = angles
    ahead, other, back = taken
    step = h[:, None]
    square = (ahead + back) / (2 * step**2)
    at_both = np.stack([(ahead - back) / (2 * step), (other - square * step**2) / step])
    inverse = np.linalg.inv([[np.cos(a), np.sin(a)], [np.cos(b), np.sin(b)]])
    by_x0, by_u = np.einsum("ij,jpm->ipm", inverse, at_both)
    return _Forms(by_x0, by_u, square)


@dataclass(slots=True)
class _Across:
    """Steps along all directions across the plane of a circle."""

    kinks: Kinks
    places: Places
    V: Matrix
    share: float
    x: list[Matrix]
    y: list[Matrix]

    def measure(self) -> tuple[Matrix, Matrix]:
        """α and β of all kinks, by direction and kink."""
        count = len(self.V)
        forms = self.open(self.step(0), np.ones(count, dtype=np.bool_))
        parts = [np.zeros((2, count, 0))]
        for place, (first, last) in enumerate(pairwise(self.places.region), start=1):
            parts.append(np.stack(self.cross(forms, place, first, last)))
        alpha, beta = np.concatenate(parts, axis=2)
        return alpha, beta

    def step(self, place: int) -> Vector:
        """The first step at a place along every direction."""
        return np.full(len(self.V), self.share * self.places.room[place])

    def take(self, angle: float, h: Vector, which: Mask) -> Matrix:
        """What steps h v add at an angle."""
        circle = self.kinks.circle
        x = circle.at(np.full(int(which.sum()), angle)) + h[which, None] * self.V[which]
        y = circle.ask(x)
        self.x.append(x)
        self.y.append(y)
        return y - self.kinks.points(np.array([angle]))

    def open(self, h: Vector, which: Mask) -> _Forms:
        """The form of the first region along some directions, from three answers for each."""
        a, b = self.places.angles[0].tolist()
        taken = [self.take(a, h, which), self.take(b, h, which), self.take(a, -h, which)]
        return _assemble_forms(taken, (a, b), h[which])

    def cross(self, forms: _Forms, place: int, first: int, last: int) -> tuple[Matrix, Matrix]:
        """α and β of the kinks between two places, by direction and kink."""
        angles = self.places.angles[place].tolist()
        theta, eta = self.kinks.theta[first:last], self.kinks.eta[first:last]
        C = self.kinks.C[first:last]
        inverse = np.linalg.pinv(C)
        steps = [(angles[0], 1.0), (angles[1], 1.0)]
        h = self.step(place)
        first_step = self.step(0)
        # Where gate and factor vanish nearly together, two answers fit them exchanged as well;
        # and errors add up from place to place.
        unclear = np.abs(np.sin(theta - eta)).min() < _UNCLEAR * h[0]
        few = self.kinks.C.shape[1] < TELLING
        if unclear or few or len(self.places.region) > _MANY:
            steps.append((angles[0], -1.0))
        count = len(self.V)
        alpha, beta = np.zeros((2, count, last - first))
        todo = np.ones(count, dtype=np.bool_)
        own = _Forms(*(part.copy() for part in (forms.by_x0, forms.by_u, forms.square)))
        for _ in range(_AGAIN):
            taken = [self.take(angle, step * h, todo) for angle, step in steps]
            added = [
                answers - forms.at(angle, step * h)[todo]
                for answers, (angle, step) in zip(taken, steps, strict=True)
            ]
            shares = [answers @ inverse for answers in added]
            off = np.max(
                [np.abs(a - share @ C).max(axis=1) for a, share in zip(added, shares, strict=True)],
                axis=0,
            )
            alpha[todo], beta[todo] = _solve_pairs(shares, angles, theta, eta, h[todo])
            if len(taken) > 2:
                own.put(_assemble_forms(taken, (angles[0], angles[1]), h[todo]), todo)
            crossed = off > _SLACK * self.kinks.noise
            crossed |= self._find_crossed(alpha[todo], theta, angles, h[todo])
            crossed |= _find_vanished(shares, steps, theta, eta)
            crossed |= _find_uneven(shares, alpha[todo], beta[todo], h[todo])
            todo[todo] = crossed
            if not todo.any():
                break
            h[todo] /= _SHORTER
            if place == 1:
                # A step at the first place may have crossed one too.
                first_step[todo] /= _SHORTER
                forms.put(self.open(first_step, todo), todo)
        self._extend(forms, alpha, beta, theta, eta, C)
        if len(steps) > 2:
            forms.put(own, np.ones(count, dtype=np.bool_))
        return alpha, beta

    def _find_crossed(self, alpha: Matrix, theta: Vector, angles: list[float], h: Vector) -> Mask:
        """Steps that, by what they say themselves, reach one of the kinks."""
        away = np.min([np.abs(np.sin(angle - theta)) for angle in angles], axis=0)
        return (h[:, None] * np.abs(alpha) > 0.8 * away).any(axis=1)

    def _extend(
        self, forms: _Forms, alpha: Matrix, beta: Matrix, theta: Vector, eta: Vector, C: Matrix
    ) -> None:
        """The forms of the next region."""
        forms.by_x0 = forms.by_x0 - (alpha * np.sin(eta) + beta * np.sin(theta)) @ C
        forms.by_u = forms.by_u + (alpha * np.cos(eta) + beta * np.cos(theta)) @ C
        forms.square = forms.square + (alpha * beta) @ C


def _find_uneven(shares: list[Matrix], alpha: Matrix, beta: Matrix, h: Vector) -> Mask:
    """Steps ahead and back whose even part is not h² α β: one of them crossed a kink."""
    if len(shares) < 3:
        return np.zeros(len(h), dtype=np.bool_)
    even = (shares[0] + shares[2]) / 2
    foreseen = h[:, None] ** 2 * alpha * beta
    size = np.abs(shares[0] - shares[2]) / 2
    uneven: Mask = np.abs(even - foreseen) > _UNEVEN * (np.abs(foreseen) + _EVEN * size)
    return np.any(uneven, axis=1)


def _find_vanished(
    shares: list[Matrix], steps: list[tuple[float, float]], theta: Vector, eta: Vector
) -> Mask:
    """Steps after which a unit adds nothing: they crossed its kink, whatever pair explains that."""
    vanished = np.zeros(len(shares[0]), dtype=np.bool_)
    for share, (angle, _) in zip(shares, steps, strict=True):
        before = np.sin(angle - theta) * np.sin(angle - eta)
        vanished |= (np.abs(share + before) < _VANISHED * np.abs(before)).any(axis=1)
    return vanished


def _solve_pairs(
    shares: list[Matrix], angles: list[float], theta: Vector, eta: Vector, h: Vector
) -> tuple[Matrix, Matrix]:
    """α and β from h (α b + β a) + h² α β = share at two angles.

    A third share, of the step back at the first angle, makes the equations linear; with two it is
    Newton's method.
    """
    gate = np.array([np.sin(angle - theta) for angle in angles])
    other = np.array([np.sin(angle - eta) for angle in angles])
    h = h[:, None]
    alpha: Matrix = np.zeros(shares[0].shape)
    beta: Matrix = np.zeros(shares[0].shape)
    turns = _NEWTON
    if len(shares) > 2:
        square = (shares[0] + shares[2]) / 2
        shares = [(shares[0] - shares[2]) / 2, shares[1] - square]
        h_square = np.zeros_like(h)
        turns = 1
    else:
        h_square = h
    for _ in range(turns):
        left = [
            share / h - alpha * other[i] - beta * gate[i] - h_square * alpha * beta
            for i, share in enumerate(shares)
        ]
        by_alpha = [other[i] + h_square * beta for i in range(2)]
        by_beta = [gate[i] + h_square * alpha for i in range(2)]
        size = by_alpha[0] * by_beta[1] - by_alpha[1] * by_beta[0]
        size = np.where(np.abs(size) > 1e-300, size, 1e-300)
        alpha = alpha + (left[0] * by_beta[1] - left[1] * by_beta[0]) / size
        beta = beta + (by_alpha[0] * left[1] - by_alpha[1] * left[0]) / size
    return alpha, beta


def find_units(kinks: Kinks, *, rng: np.random.Generator) -> GatedForm:
    """Gates, factors and weights of all units far away."""
    circle = kinks.circle
    d = len(circle.u)
    plane = np.column_stack([circle.x0, circle.u])
    V = np.linalg.qr(np.column_stack([plane, rng.normal(size=(d, d - 2))]))[0][:, 2:].T
    places = choose_places(kinks)
    apart = rng.normal(size=(count_apart(d, *kinks.C.shape), d)) / d**0.5
    x = [circle.at(kinks.places), apart]
    y = [kinks.values, circle.ask(apart)]
    alpha, beta = np.zeros((2, d - 2, len(kinks.theta)))

    def measure(which: Mask, share: float) -> GatedForm:
        alpha[which], beta[which] = _Across(kinks, places, V[which], share, x, y).measure()
        n = _join_vectors(kinks.theta, alpha, plane, V)
        b = _join_vectors(kinks.eta, beta, plane, V)
        return find_sides(_scale_units(n, b, kinks.C), np.concatenate(x), np.concatenate(y))

    share = _STEP if kinks.C.shape[1] >= TELLING else _STEP_FEW
    far = measure(np.ones(d - 2, dtype=np.bool_), share)
    for _ in range(_MENDED):
        spoilt = _find_spoilt(far, V, np.concatenate(x), np.concatenate(y))
        # Where most are spoilt it is not for steps that crossed a kink unnoticed.
        if not spoilt.any() or 2 * spoilt.sum() > d - 1:
            break
        share /= _SHORTER**2
        far = measure(spoilt, share)
    if kinks.C.shape[1] >= TELLING:
        return far
    # Forms that follow one another add up errors, which all answers together do not.
    answers = np.concatenate(x), np.concatenate(y)
    return fit_form(far, *answers, parts=_VECTORS, steps=_STEPS, near=True)


def count_apart(width: int, hidden: int, outputs: int) -> int:
    """Points away from the circle that sides need: steps across show 3(d - 1) of their products."""
    return max(0, int(np.ceil(_SIDES * hidden / outputs)) - 3 * (width - 1))


def _find_spoilt(far: GatedForm, V: Matrix, x: Matrix, y: Matrix) -> Mask:
    """Directions along which the units found do not explain the answers."""
    unexplained = np.abs(y - far.points(x)).max(axis=1) > _SPOILT * rms(y)
    stepped = np.abs(x @ V.T) > _STEPPED
    # What is away from the circle in all directions tells nothing of one.
    stepped[stepped.sum(axis=1) > 1] = False
    return (stepped & unexplained[:, None]).any(axis=0)


def _scale_units(n: Matrix, b: Matrix, C: Matrix) -> GatedForm:
    """Units through the origin, their vectors scaled to length one."""
    long_n: Vector = np.linalg.norm(n, axis=1)
    long_b: Vector = np.linalg.norm(b, axis=1)
    k, m = len(C), int(C.shape[1])
    zero: Vector = np.zeros(k)
    return GatedForm(
        n / long_n[:, None],
        zero,
        np.ones(k),
        zero,
        b / long_b[:, None],
        zero,
        C * (long_n * long_b)[:, None],
        np.zeros(m),
        None,
    )


def _join_vectors(angle: Vector, across: Matrix, plane: Matrix, V: Matrix) -> Matrix:
    """Vectors w with w x(θ) = sin(θ - angle) on the circle and w v = across."""
    inside = np.column_stack([-np.sin(angle), np.cos(angle)])
    return inside @ plane.T + across.T @ V


def find_sides(far: GatedForm, x: Matrix, y: Matrix) -> GatedForm:
    """The same with the sides on which units are active, by linear least squares."""
    if not len(far.C):
        return far
    r = x @ far.n.T
    products = r * (x @ far.b.T) / 2
    left = y - (np.abs(r) * (x @ far.b.T) / 2) @ far.C
    normal = (products.T @ products) * (far.C @ far.C.T)
    pull = np.einsum("nk,nm,km->k", products, left, far.C, optimize=True)
    scale = 1 / np.sqrt(np.maximum(np.diag(normal), 1e-300))
    inverse = np.linalg.pinv(normal * scale * scale[:, None], rcond=1e-12, hermitian=True)
    sides = scale * (inverse @ (scale * pull))
    return replace(far, sigma=np.where(sides < 0, -1.0, 1.0))
