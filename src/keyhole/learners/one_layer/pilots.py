r"""Pilot questions behind a known network: how large scores are, and whether a residual acts.

At a few spots $z + sx$ and $z - sx$ are asked before z for a random unit vector x: $x^\top(Wz + h)$
and $J M x$ at once. Scores grow with the length of z, so a length at which they can be read is
found by bisection. There and at a sixteenth of it their sizes tell $|W z|$ from $|h|$; and $J M x =
J x$ for a random x means, with probability one, that M is the identity: no residual.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, Vector, rms
from keyhole.learners.networks.lines import measure_typical_distance
from keyhole.learners.one_head.probes import REASK_ABOVE, TARGET, Saturated
from keyhole.learners.one_layer.regions import (
    Sizes,
    Spot,
    locate_spot,
    measure_room,
)
from keyhole.learners.one_layer.scores import Reader

_COUNT = 3  # directions
_LOOKED_AT = 4  # spots with most room whose slopes are worked out, beside one on the other side
_PROBES = 60
_RAISE = 64.0  # by how much tokens are made longer where a score bias hides W
_ROUNDED = 1e6  # length of tokens, in steps, at which rounding hides what W does beside h
_ROUNDS = 20  # of shortening steps
_VISIBLE = 1e-3  # a smaller logit is asked again with longer tokens
_SAFE = 6.0  # deviations of a random vector along a normal that steps leave room for
BLIND = 1e-6  # size of J M x beside J x below which M is zero
_SAME = 1e-4  # relative difference of J M x and J x from which a residual acts
_LOWER = 1.0 / 16.0  # second length, at which the score bias shows
_FLAT = 1e-9  # slopes below this share of what they can be show nothing
_FARTHEST = 2.0**110  # of the network's own length: no effect up to there means no scores


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the pilots saw.

    Args:
        sizes: of the forms; None where no score acts at any length.
        mixing: how long M x is for a unit vector x, rather more than less.
        residual: whether M is not the identity.
    """

    sizes: Sizes | None
    mixing: float
    residual: bool


@dataclass(slots=True)
class Pilots:
    """A few random directions, looked along at any length."""

    reader: Reader
    U: Matrix
    X: Matrix
    longest: float = np.inf  # no step is longer: a large score bias would saturate it
    ratios: list[float] = field(default_factory=list[float], init=False)
    gaps: list[float] = field(default_factory=list[float], init=False)

    @classmethod
    def random(cls, reader: Reader, rng: np.random.Generator) -> Pilots:
        """Unit directions for z and for x."""
        draws = rng.normal(size=(2, _COUNT, reader.G.width))
        U, X = draws / np.linalg.norm(draws, axis=2, keepdims=True)
        return cls(reader, U, X)

    def forms(self, length: float) -> tuple[Vector, float]:
        """Forms at last tokens of about that length, and the size of the largest logit.

        Where saturated they are infinite, where the network is flat they are not a number.
        """
        asked = [self._ask(u, x, length) for u, x in zip(self.U, self.X, strict=True)]
        logits, steps = np.array(asked).T
        return logits / steps, float(np.nanmax(np.abs(logits), initial=-1.0))

    def _ask(self, u: Vector, x: Vector, length: float) -> tuple[float, float]:
        G = self.reader.G
        place, reach = _find_roomy_spot(self.reader, u, length)
        if not np.linalg.norm(place.J) > _FLAT * (np.linalg.norm(G.P) + np.linalg.norm(G.D)):
            return np.nan, 1.0
        step = min(reach / _SAFE, self.longest)
        t, seen = self.reader.pair(place, G.points(place.z[None])[0], x[None], np.array([step]))
        size = float(np.linalg.norm(place.J)) / np.sqrt(len(x))
        self.ratios.append(float(np.linalg.norm(seen)) / size)
        self.gaps.append(float(np.linalg.norm(seen[0] - place.J @ x)) / size)
        return float(t[0]) if np.isfinite(t[0]) else np.inf, step

    @property
    def blind(self) -> bool:
        """Whether tokens before the last move nothing, so that there is no attention to be seen."""
        return bool(self.ratios and max(self.ratios) < BLIND)

    def readable(self) -> float | None:
        """A length at which scores are read well, or None when none acts.

        Raises:
            Saturated: there is none.
        """
        unit = measure_typical_distance(self.reader.G)
        low, high = 0.0, np.inf
        length = unit
        flat = 0.0
        for _ in range(_PROBES):
            size = self.forms(length)[1]
            if self.blind:
                return None
            # Flat all around: no form could be asked.
            if size < 0.0:
                flat = max(flat, length)
                length *= 4.0
                continue
            # At shorter lengths the network is flat: only shorter steps can help.
            if size > REASK_ABOVE and length <= 16.0 * flat:
                self.longest = min(self.longest, length) * 2.0**-10
                low, high = 0.0, np.inf
                continue
            if _VISIBLE <= size <= REASK_ABOVE:
                return length
            if size < _VISIBLE and length >= _FARTHEST * unit:
                return None
            if size < _VISIBLE:
                low = length
            else:
                high = length
            if low == 0.0 and length < unit / _FARTHEST:
                # What saturates at any length is the score bias.
                self.longest = min(self.longest, unit) * 2.0**-20
                length = unit
                high = np.inf
            elif low > 0.0 and high < np.inf:
                length = float(np.sqrt(low * high))
            else:
                length *= 2.0**10 if low > 0.0 else 2.0**-10
        raise Saturated

    def sizes(self, length: float) -> Sizes:
        """The sizes of forms: at s times a length their mean square is s^2 |W z|^2 + |h|^2."""
        there = self._square(_LOWER * length)
        # Flat there: the network bends in between, so that both lengths move up.
        if there is None:
            there = self._square(length)
            length = length / _LOWER
        here = self._square(length)
        if here is None or there is None:
            raise Saturated
        if here > 4.0 * there:
            bias = max(0.0, (there - _LOWER**2 * here) / (1.0 - _LOWER**2))
            return Sizes(float(np.sqrt(here - bias)) / length, float(np.sqrt(bias)))
        return self._beside(there, length)

    def _beside(self, bias: float, length: float) -> Sizes:
        """Sizes where |h| hides |W z|: tokens grow until it does not, or rounding does."""
        self.longest = min(self.longest, TARGET / max(np.sqrt(bias), 1e-300))
        longest = _ROUNDED * max(self.longest, measure_typical_distance(self.reader.G))
        while length < longest:
            length *= _RAISE
            here = self._square(length)
            if here is not None and here > 4.0 * bias:
                return Sizes(float(np.sqrt(here - bias)) / length, float(np.sqrt(bias)))
        return Sizes(0.0, float(np.sqrt(bias)))

    def _square(self, length: float) -> float | None:
        """Mean square of the forms at a length, none of them saturated; None where all is flat."""
        for _ in range(_ROUNDS):
            forms = self.forms(length)[0]
            seen = forms[~np.isnan(forms)]
            if np.isfinite(seen).all():
                return rms(seen) ** 2 if len(seen) else None
            self.longest = min(self.longest, length) / 16.0
        raise Saturated

    def outlook(self) -> Outlook:
        """All that is to be known before measuring."""
        length = self.readable()
        sizes = None if length is None else self.sizes(length)
        mixing = max(self.ratios, default=1.0)
        residual = max(self.gaps, default=0.0) > _SAME * max(1.0, mixing)
        return Outlook(sizes, mixing, bool(residual))


def _find_roomy_spot(reader: Reader, u: Vector, length: float) -> tuple[Spot, float]:
    """The spot with most room among a few lengths near the one wanted, forwards and backwards."""
    near = length * 2.0 ** np.linspace(-0.5, 0.5, 9)
    lengths = np.concatenate([near, -near])
    reach = measure_room(reader.G, u, lengths)
    order = np.argsort(-reach / np.abs(lengths))
    # A network may be flat on one whole side of the origin, so that the other is looked at too.
    other_side = np.sign(lengths[order]) != np.sign(lengths[order[0]])
    kept = [*order[:_LOOKED_AT], order[np.argmax(other_side)]]
    found = [(locate_spot(reader.G, lengths[i] * u), float(reach[i])) for i in kept]

    def worth(pair: tuple[Spot, float]) -> float:
        spot, room = pair
        return room * float(np.linalg.norm(spot.J)) / float(np.linalg.norm(spot.z))

    return max(found, key=worth)
