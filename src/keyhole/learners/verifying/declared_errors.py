"""What declared errors explain of a gap: errors of answers, and error bars of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from keyhole._arrays import EPS, Array, PerSequence, Sequences
from keyhole.learners.verifying.examination import EXACT, Ruler
from keyhole.models import AttentionLayer, Head, Model, MultiHead
from keyhole.oracles import Imperfection, Oracle, read_imperfection

SIGMAS = 6.0  # standard deviations that an answer may be off
_DRAWS = 16  # models drawn from the error bars
_ROUNDINGS = 1e5  # lines of networks and layers lose five decimal digits
_COARSEST = 1e-2  # a relative error that no rounding of answers leaves in weights


def choose_ruler(
    stated: Imperfection, model: Model, bars: Mapping[str, Array], *, rng: np.random.Generator
) -> Ruler:
    """What explains gaps between a model and answers of which so much is declared."""
    tolerance = EXACT
    if stated.roundoff > EPS:
        tolerance = max(stated.roundoff, min(_ROUNDINGS * stated.roundoff, _COARSEST))
    # Rounding is relative and part of the tolerance; only absolute errors need an allowance.
    allowance = build_allowance(stated, model, bars, rng=rng) if stated.absolute else None
    return Ruler(tolerance, stated.roundoff, allowance)


def build_allowance(
    stated: Imperfection, model: Model, bars: Mapping[str, Array], *, rng: np.random.Generator
) -> Callable[[Sequences], PerSequence]:
    """How far an answer may be off: by its own errors, and by the model's error bars."""
    others: list[Model] = []
    if isinstance(model, Head | MultiHead | AttentionLayer) and bars:
        others = [_draw_within_bars(model, bars, rng) for _ in range(_DRAWS)]
    return _allow(stated, model, others)


def allow_draws(
    oracle: Oracle, model: Model, others: Sequence[Model]
) -> Callable[[Sequences], PerSequence] | None:
    """How far an answer may be off: by its own errors, and by what models as likely differ.

    None where none are declared; errors that nobody knows the size of explain nothing.
    """
    stated = read_imperfection(oracle)
    if not stated.absolute:
        return None
    known = stated if np.isfinite(stated.noise) else replace(stated, noise=0.0)
    return _allow(known, model, others)


def _allow(
    stated: Imperfection, model: Model, others: Sequence[Model]
) -> Callable[[Sequences], PerSequence]:
    def allowance(X: Sequences) -> PerSequence:
        middle = model(X)
        squares = [((other(X) - middle) ** 2).max(axis=1) for other in others]
        spread = np.mean(squares, axis=0) if squares else np.zeros(len(X))
        return stated.tolerance + SIGMAS * np.sqrt(stated.noise**2 + spread)

    return allowance


def _draw_within_bars(
    model: Head | MultiHead | AttentionLayer, bars: Mapping[str, Array], rng: np.random.Generator
) -> Model:
    if isinstance(model, AttentionLayer):
        drawn = {
            name: getattr(model, name) + bar * rng.normal(size=bar.shape)
            for name, bar in bars.items()
        }
        return replace(model, **drawn)
    tensors = {"W": np.asarray(model.W), "V": model.V, "h": model.h, "c": model.c, "U": model.U}
    known = {
        name: tensor for name, tensor in tensors.items() if tensor is not None and name in bars
    }
    return replace(
        model, **{name: t + bars[name] * rng.normal(size=t.shape) for name, t in known.items()}
    )
