r"""Scores behind a network that is known and linear nowhere, from pairs of tokens.

A pair $[z + x; z]$ is answered by $G(z + \alpha M x)$ with $\alpha = \sigma(x^\top(W z + h))$: a
point of the segment from z to z + Mx. With G and M known (M = 1 without a residual) the answer
tells which, and that is the score. Segments are cut, without asking, to where G turns by little, so
that no two of their points are answered alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Indices, Mask, Matrix, Vector
from keyhole.learners.networks.kinks import Ask
from keyhole.models.transformer import Network

_GRID = np.linspace(0.0, 1.0, 17)
_TURNED = 0.3  # share of its first slope that G keeps along a segment, at least
_HALVINGS = 12
_NEWTON = 24
_CAUTIOUS = 0.1  # a step of a share, at most
_DIFFERENCE = 1e-5  # of a share, for slopes along a segment
_EDGE = 1e-13  # shares closer to 0 or 1 say nothing


@dataclass(frozen=True, eq=False, slots=True)
class Segments:
    """Segments from z to z + M x, one row each; the token asked before z is z + x."""

    z: Matrix
    x: Matrix
    moved: Matrix

    def at(self, share: Array) -> Matrix:
        """Points of the segments."""
        return self.z + share[:, None] * self.moved

    def pairs(self) -> Array:
        """The sequences [z + x; z]."""
        return np.stack([self.z + self.x, self.z], axis=1)

    def shortened(self, which: Mask, factor: float) -> Segments:
        """The same with some of them shorter."""
        factors = np.where(which, factor, 1.0)[:, None]
        return Segments(self.z, self.x * factors, self.moved * factors)

    def take(self, which: Indices | Mask) -> Segments:
        """Some of them."""
        return Segments(self.z[which], self.x[which], self.moved[which])


def measure_slopes_along(G: Network, segments: Segments, share: Vector) -> Matrix:
    """How answers change along segments, for each unit of the share."""
    ahead, back = (G.points(segments.at(share + e)) for e in (_DIFFERENCE, -_DIFFERENCE))
    return (ahead - back) / (2 * _DIFFERENCE)


def cut_to_one_way(G: Network, segments: Segments) -> Segments:
    """Segments halved until answers go one way along each."""
    for _ in range(_HALVINGS):
        slopes = np.array(
            [measure_slopes_along(G, segments, np.full(len(segments.z), g)) for g in _GRID]
        )
        first = slopes[0]
        kept = np.einsum("gim,im->gi", slopes, first).min(axis=0)
        turned = kept < _TURNED * np.einsum("im,im->i", first, first)
        if not turned.any():
            break
        segments = segments.shortened(turned, 0.5)
    return segments


def find_shares(G: Network, segments: Segments, answers: Matrix) -> Vector:
    """The share of each segment at which G answers so, by a scan and Newton's method."""
    there = np.array([G.points(segments.at(np.full(len(segments.z), g))) for g in _GRID])
    share: Vector = _GRID[np.linalg.norm(there - answers, axis=2).argmin(axis=0)]
    for _ in range(_NEWTON):
        share = _step_to(G, segments, share, answers - G.points(segments.at(share)))
    return share


def sharpen_shares(
    ask: Ask, G: Network, segments: Segments, share: Vector, answers: Matrix
) -> Vector:
    """Shares that are free of errors of G: the lone token found is asked, and a step taken."""
    return _step_to(G, segments, share, answers - ask(segments.at(share)))


def _step_to(G: Network, segments: Segments, share: Vector, left: Matrix) -> Vector:
    slopes = measure_slopes_along(G, segments, share)
    size = np.maximum(np.einsum("im,im->i", slopes, slopes), 1e-300)
    step = np.einsum("im,im->i", slopes, left) / size
    return np.clip(share + np.clip(step, -_CAUTIOUS, _CAUTIOUS), _EDGE, 1 - _EDGE)
