"""Colours of numbers: signed ones, shares and errors, on the scales of the palette."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import Matrix, Stack
from keyhole.drawing.palette import SHARES, SIGNED, read_channels


def paint_shares(shares: Matrix, colours: str) -> Stack:
    """Red, green, blue and cover of shares, on the scale signed, sequential or errors."""
    # Errors are the warm half of the signed scale.
    return _paint_covered(shares) if colours == "sequential" else paint_diverging(shares)


def paint_diverging(shares: Matrix) -> Stack:
    """Colours of numbers from -1 (blue) over 0 (the ground, light or dark) to 1 (orange)."""
    cold, _, warm = (np.array(read_channels(c), dtype=np.float64) for c in SIGNED)
    x = shares[..., None]
    return np.concatenate([np.where(x < 0, cold, warm), 255.0 * np.abs(x)], axis=-1)


def _paint_covered(shares: Matrix) -> Stack:
    cover = np.full((*shares.shape, 1), 255.0)
    return np.concatenate([paint_sequential(shares), cover], axis=-1)


def paint_sequential(shares: Matrix) -> Stack:
    """Colours from 0 to 1 that grow brighter all the way: violet, blue, green, yellow."""
    stops = np.array([read_channels(c) for c in SHARES], dtype=np.float64)
    places = np.linspace(0, 1, len(stops))
    channels: list[Matrix] = [np.interp(shares, places, channel) for channel in stops.T]
    return np.stack(channels, axis=-1)


def colour_of(share: float) -> str:
    """The colour of one number from 0 to 1, as a page writes it."""
    r, g, b = (int(channel) for channel in paint_sequential(np.array([[share]]))[0, 0].round())
    return f"rgb({r},{g},{b})"
