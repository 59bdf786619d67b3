r"""The mixing map M of residual attention before a smooth network, from short pairs.

With $t = s\,x^\top(W z + h)$ the pairs $[z \pm s x; z]$ are answered by $G(z \pm s\,\sigma(\pm t)
M x)$, and since both shares add up to 1

$$f_+ - f_- = s\, J M x + O(s^3),$$

with J the slopes of G at z, which are known: d directions at $\lceil d/m \rceil$ spots and two more
give M by least squares. What the cubes leave is fitted away later, with all other answers.
"""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Vector, pin_one_thread
from keyhole.learners.one_layer.layer_account import OneLayerSession
from keyhole.models.transformer import Network

_STEP = 3e-4  # of a pair, beside the length of its tokens
_DIFFERENCE = 1e-5  # the same for slopes of G
_IGNORED = 1e-7  # slopes beside the largest that are none
_MORE = 2  # spots beyond those that are needed
_SAME = 1e-4  # relative difference of J M x and J x from which on a residual acts


def measure_slopes(G: Network, z: Vector, step: float) -> Matrix:
    """Slopes of a network at a point by differences, one row per output."""
    moved = step * np.eye(len(z))
    return (G.points(z + moved) - G.points(z - moved)).T / (2 * step)


def has_residual(
    session: OneLayerSession, G: Network, length: float, *, rng: np.random.Generator
) -> bool:
    """Whether the tokens' mean moves the network's input by another map than the identity."""
    z, x = length * draw_units(2, G.width, rng)
    seen = _read_moved_slopes(session, z, x[None], length)[0]
    expected = measure_slopes(G, z, _DIFFERENCE * length) @ x / length
    return bool(np.linalg.norm(seen - expected) > _SAME * np.linalg.norm(expected))


def measure_smooth_mixing(
    session: OneLayerSession, G: Network, length: float, *, rng: np.random.Generator
) -> Matrix:
    """M, to within the square of the step."""
    d = G.width
    spots = length * draw_units(-(-d // G.outputs) + _MORE, d, rng)
    directions = length * np.linalg.qr(rng.normal(size=(d, d)))[0]
    slopes = [measure_slopes(G, z, _DIFFERENCE * length) for z in spots]
    seen = [_read_moved_slopes(session, z, directions, length).T for z in spots]
    with pin_one_thread():
        # Along directions that G ignores M is free, and the least is taken.
        moved = np.linalg.lstsq(np.concatenate(slopes), np.concatenate(seen), rcond=_IGNORED)[0]
        # Directions are the rows of an orthogonal matrix.
        return moved @ directions / length


def draw_units(count: int, width: int, rng: np.random.Generator) -> Matrix:
    """Vectors of length one."""
    drawn = rng.normal(size=(count, width))
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def _read_moved_slopes(session: OneLayerSession, z: Vector, x: Matrix, length: float) -> Matrix:
    """J M x over the length of x, one row per direction x."""
    steps = _STEP * np.concatenate([x, -x])
    pairs = np.stack([z + steps, np.broadcast_to(z, steps.shape)], axis=1)
    ahead, back = np.split(session.oracle.ask(pairs), 2)
    return (ahead - back) / (_STEP * length)
