"""A few queries that tell classes of targets apart, once a single head is refuted."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS, Matrix
from keyhole.oracles import Counted, read_imperfection

# A network whose kinks lie far away is affine near zero.
_SCALES = (1.0, 30.0, 1e3, 1e6, 1e9)
_EACH = 6
_MORE = 12
# At such steps second differences of smooth units show, and few ReLU units bend.
_FINE = 1e-4


def suggest_learners(oracle: Counted, *, rng: np.random.Generator) -> tuple[str, ...]:
    """Names of the learners worth trying, the likeliest first.

    A sum of heads answers single tokens with an affine map; a network and a Transformer do not, and
    only a network heeds no token but the last. Smooth units bend everywhere, ReLU units almost
    nowhere.
    """
    if _is_affine(oracle, rng):
        return ("several-heads",) if (oracle.outputs or 1) == 1 else ("layer", "several-heads")
    if not _is_last_token_only(oracle, rng):
        return ("one-layer",)
    plain = "network" if read_imperfection(oracle).roundoff <= EPS else "noisy-network"
    return ("smooth-network", plain) if _is_smooth(oracle, rng) else (plain, "smooth-network")


def is_curved(oracle: Counted, *, rng: np.random.Generator) -> bool:
    """Whether single tokens are not answered by an affine map, beyond what errors explain."""
    stated = read_imperfection(oracle)
    bound = stated.token_bound
    for scale in _SCALES if bound is None else (0.5 * bound,):
        x, y = rng.normal(size=(2, _MORE, oracle.width))
        x, y = (scale * v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
        asked = np.concatenate([x + y, x, y, 0 * x])
        # Asked twice, as noise of unknown size shows in nothing else.
        one, two = (oracle.ask(asked[:, None]) for _ in range(2))
        scatter = float(np.abs(one - two).max())
        both, first, second, zero = np.split((one + two) / 2, 4)
        errors = 4 * (scatter + np.nan_to_num(stated.noise) + stated.tolerance)
        gap = float(np.abs(both - first - second + zero).max())
        if gap > 2 * errors + _allow_rounding(oracle) * float(np.abs(one).max()):
            return True
    return False


def _allow_rounding(oracle: Counted) -> float:
    return 1e4 * max(read_imperfection(oracle).roundoff, EPS)


def _is_affine(oracle: Counted, rng: np.random.Generator) -> bool:
    """Whether f([x + y]) - f([x]) - f([y]) + f([0]) vanishes for tokens of several lengths."""
    zero = oracle.ask(np.zeros((1, 1, oracle.width)))
    for scale in _SCALES:
        x, y = scale * rng.normal(size=(2, _EACH, oracle.width))
        both, first, second = (oracle.ask(tokens[:, None]) for tokens in (x + y, x, y))
        size = np.abs(np.stack([both, first, second])).max() + np.abs(zero).max()
        if np.abs(both - first - second + zero).max() > _allow_rounding(oracle) * size:
            return False
    return True


def _is_last_token_only(oracle: Counted, rng: np.random.Generator) -> bool:
    """Whether tokens before the last change nothing."""
    for scale in _SCALES:
        x: Matrix = scale * rng.normal(size=(_EACH, 3, oracle.width))
        whole, last = (oracle.ask(tokens.copy()) for tokens in (x, x[:, -1:]))
        if np.abs(whole - last).max() > _allow_rounding(oracle) * np.abs(whole).max():
            return False
    return True


def _is_smooth(oracle: Counted, rng: np.random.Generator) -> bool:
    """Whether f(x + h u) - 2 f(x) + f(x - h u) differs from zero at most of a few random places."""
    x, u = rng.normal(size=(2, _EACH, oracle.width))
    before, at, after = (oracle.ask((x + h * u)[:, None]) for h in (-_FINE, 0.0, _FINE))
    bend = np.abs(before - 2 * at + after).max(axis=1)
    # The median, as a few of the places may lie on a kink of a ReLU unit.
    return bool(np.median(bend) > 64 * read_imperfection(oracle).roundoff * np.abs(at).max())
