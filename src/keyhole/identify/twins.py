"""Twins of heads: other parameters with the same function, with the proof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, Rng, Sequences, as_generator, rms
from keyhole.claims import Basis, Certificate, Check
from keyhole.identify.heads import fill_score_biases, relative_distance
from keyhole.models import Factored, Head, MultiHead

# Answers that differ by less than this, relatively, count as the same.
_ROUNDING = 1e-11
_LONGEST = 16  # tokens of sequences that twins are asked


class Symmetry(StrEnum):
    """A change of parameters that no answer shows. The value is the proof."""

    ORDER = (
        "The answer is a sum over the heads, and a sum does not depend on the order of its terms."
    )
    SPLIT = (
        "Heads with one W and one h have one softmax, a(X). So a(X) X V1 + a(X) X V2 = a(X) X (V1 +"
        " V2): only the sum of their read-outs acts, and any other split of it answers alike."
    )
    CANCEL = (
        "Two heads with one W, one h and read-outs V and -V have one softmax, a(X), and a(X) X V -"
        " a(X) X V = 0: the pair adds nothing, whatever its W, h and V are."
    )
    IDLE = (
        "A head with V = 0 adds a(X) X 0 = 0 whatever its softmax a(X) is, so any W and any h"
        " answer alike."
    )
    GAUGE = (
        "Scores see the factors of W only as the product A B^T, and (A G)(B G^-T)^T = A G G^-1 B^T"
        " = A B^T for every invertible G."
    )
    VALUES = (
        "Values act only through the product of output and value map, and (Wo C^-1)(C Wv) = Wo Wv"
        " for every invertible C; a bias of values goes along."
    )
    SCORES = (
        "Scores see queries and keys only as products, and (G^-T q) . (G k) = q . k for every"
        " invertible G; biases go along."
    )
    PAIRS = (
        "Rotary positions turn a pair as they turn a complex number: its score is the real part of"
        " conj(k) q e^(it), and conj(c k) (q / conj(c)) = conj(k) q for every c but 0."
    )
    EQUAL_SCORES = (
        "What is added to all scores of a head alike is a factor of numerator and denominator of"
        " its softmax, and cancels."
    )
    NORM = (
        "Gain and shift of a norm act only through the maps behind it: W (g n + s) + b = (W diag g)"
        " n + (W s + b)."
    )
    MEAN = "What a LayerNorm leaves has mean 0, so (W + a 1^T) n = W n for every a."
    PLACES = (
        "What is added to all tokens before a norm, or without one, is added to every map's bias:"
        " W (x + p + t) + (b - W t) = W (x + p) + b; equal entries of it are lost in a LayerNorm."
    )


@dataclass(frozen=True, eq=False, slots=True)
class Twin:
    """Other parameters with the same function.

    Args:
        model: the twin.
        symmetry: why it answers alike; the value is the proof.
        changed: what was done to the parameters.
        certificate: the theorem on this pair: the parameters differ, the answers do not.
    """

    model: Any
    symmetry: Symmetry
    changed: str
    certificate: Certificate


Candidate = tuple[Head | MultiHead, Symmetry, str]


def twin_heads(model: Head | MultiHead, *, rng: Rng) -> tuple[Twin, ...]:
    """Distinct parameters with one function, for each symmetry of `model`; BSHK26/7.1.

    Every model has some: a head may be split, and heads that cancel or are idle may be added.
    Canonical forms are alike for all of them.
    """
    rng = as_generator(rng)
    candidates = list(_change_gauge(model, rng)) if isinstance(model, Head) else []
    candidates += _rearrange_heads(_expand_heads(model), rng)
    found = [
        (twin, why, changed, _confront_twin(model, twin, rng)) for twin, why, changed in candidates
    ]
    return tuple(Twin(*parts) for parts in found)


def _expand_heads(model: Head | MultiHead) -> MultiHead:
    """The model as a sum of heads, every part present."""
    if isinstance(model, Head):
        model = MultiHead(
            np.asarray(model.W)[None],
            model.V[None],
            None if model.h is None else model.h[None],
            model.c,
            model.U,
        )
    return replace(model, h=fill_score_biases(model))


def _change_gauge(head: Head, rng: np.random.Generator) -> Iterator[Candidate]:
    if isinstance(head.W, Factored) and head.W.A.shape[1] > 0:
        # Orthogonal, so well conditioned, and times 2, so that it is not lost in a change of basis.
        G = np.linalg.qr(rng.normal(size=(head.W.A.shape[1],) * 2))[0] * 2.0
        other = Factored(head.W.A @ G, head.W.B @ np.linalg.inv(G).T)
        yield replace(head, W=other), Symmetry.GAUGE, "A became A G and B became B G^-T."


def _rearrange_heads(model: MultiHead, rng: np.random.Generator) -> list[Candidate]:
    """Twins of a sum of heads; what is free is drawn of the size of its entries."""
    W = rng.normal(size=model.W.shape[1:]) * (rms(model.W) or 1.0)
    V = rng.normal(size=model.V.shape[1:]) * (rms(model.V) or 1.0)
    built = (
        _reorder_heads(model),
        _split_values(model, V),
        _add_cancelling_heads(model, W, V),
        _change_idle_head(model, W),
    )
    return [candidate for candidate in built if candidate is not None]


def _reorder_heads(model: MultiHead) -> Candidate | None:
    moved = np.roll(np.arange(len(model.W)), 1)
    parts = {"W": model.W[moved], "V": model.V[moved], "h": fill_score_biases(model)[moved]}
    # A single head, or equal ones, stay what they are when moved: no twin.
    if all(np.array_equal(part, getattr(model, name)) for name, part in parts.items()):
        return None
    told = "Every head moved one place, the last to the front."
    return replace(model, **parts), Symmetry.ORDER, told


def _split_values(model: MultiHead, share: Matrix) -> Candidate | None:
    """Another split of V among two heads of one W, or of one head into two."""
    if len(model.W) == 0:
        return None
    alike = _find_alike_heads(model)
    moved = model.V.copy()
    if alike is None:
        moved[0] -= share
        twin = _append_heads(
            replace(model, V=moved), model.W[:1], share[None], fill_score_biases(model)[:1]
        )
        return twin, Symmetry.SPLIT, "Head 1 became two heads of its W whose V add up to its own."
    moved[alike[0]] -= share
    moved[alike[1]] += share
    changed = (
        f"A part of V went from head {alike[0] + 1} to head {alike[1] + 1}, which has the same W."
    )
    return replace(model, V=moved), Symmetry.SPLIT, changed


def _add_cancelling_heads(model: MultiHead, W: Matrix, V: Matrix) -> Candidate:
    twin = _append_heads(model, np.stack([W, W]), np.stack([V, -V]), np.zeros((2, model.width)))
    return twin, Symmetry.CANCEL, "Two heads of one random W were added, with V and -V."


def _change_idle_head(model: MultiHead, W: Matrix) -> Candidate:
    """Another W for a head with V = 0; where there is none, such a head."""
    idle = [at for at, V in enumerate(model.V) if not V.any()]
    if not idle:
        twin = _append_heads(
            model, W[None], np.zeros((1, *model.V.shape[1:])), np.zeros((1, model.width))
        )
        return twin, Symmetry.IDLE, "A head with V = 0 and a random W was added."
    changed = model.W.copy()
    changed[idle[0]] = W
    told = f"Head {idle[0] + 1} has V = 0 and got a random W."
    return replace(model, W=changed), Symmetry.IDLE, told


def _append_heads(model: MultiHead, W: Array, V: Array, h: Array) -> MultiHead:
    parts = ((model.W, W), (model.V, V), (fill_score_biases(model), h))
    all_W, all_V, all_h = (np.concatenate(pair) for pair in parts)
    return MultiHead(all_W, all_V, all_h, model.c, model.U)


def _find_alike_heads(model: MultiHead) -> tuple[int, int] | None:
    """Two heads of one W and one h, if there are any."""
    for a in range(len(model.W)):
        for b in range(a):
            if np.array_equal(model.W[a], model.W[b]) and np.array_equal(
                fill_score_biases(model)[a], fill_score_biases(model)[b]
            ):
                return b, a
    return None


def _confront_twin(
    model: Head | MultiHead, twin: Head | MultiHead, rng: np.random.Generator
) -> Certificate:
    """Proposition 7.1 on one pair: how far parameters are apart, and how far answers are."""
    apart = _measure_parameter_distance(model, twin)
    return certify_twin("BSHK26/7.1", apart, measure_twin_gap(model, twin, rng))


def certify_twin(theorem: str, apart: float, gap: float) -> Certificate:
    """That parameters differ and answers do not."""
    return Certificate(
        theorem,
        assumptions=(),
        conclusion=(
            Check(
                "agreement of the parameters, 1 being the same",
                1.0 - min(1.0, apart),
                1.0 - 1e-6,
            ),
            Check("worst relative disagreement of the answers", gap, _ROUNDING),
        ),
        basis=Basis.CONFRONTED,
    )


def measure_twin_gap(
    model: Any, twin: Any, rng: np.random.Generator, longest: int = _LONGEST
) -> float:
    """The worst relative disagreement of answers to sequences of 1 to `longest` tokens."""
    return max(
        _measure_disagreement(model, twin, X) for X in draw_twin_sequences(model, rng, longest)
    )


def _measure_disagreement(model: Any, twin: Any, X: Sequences) -> float:
    # The rounding of an answer goes by the values it averages, not by what they cancel to.
    values = np.maximum(model.magnitude(X), twin.magnitude(X)) + np.abs(model(X)).max(axis=1)
    return float((np.abs(model(X) - twin(X)).max(axis=1) / np.where(values > 0, values, 1.0)).max())


def draw_twin_sequences(
    model: Any, rng: np.random.Generator, longest: int = _LONGEST, each: int = 4
) -> Iterator[Sequences]:
    """Gaussian sequences of lengths 1 to `longest`, short enough for scores of order one."""
    scores = model.logits(rng.normal(size=(8, longest, model.width)))
    # Beyond a window scores are minus infinity.
    size = rms(scores[np.isfinite(scores)])
    for length in range(1, longest + 1):
        yield rng.normal(size=(each, length, model.width)) / max(1.0, size) ** 0.5


def _measure_parameter_distance(model: Head | MultiHead, twin: Head | MultiHead) -> float:
    """Relative distance of the parameters as they stand, an absent head counting as zeros."""
    factored = [m for m in (model, twin) if isinstance(m, Head) and isinstance(m.W, Factored)]
    # Two factored heads have one product by construction: their factors are compared.
    if len(factored) == 2:
        a, b = (_stack_factors(m) for m in factored)
    else:
        a, b = (_list_head_parameters(m) for m in (model, twin))
    rows = max(len(a), len(b))
    return relative_distance(
        *(np.concatenate([x, np.zeros((rows - len(x), x.shape[1]))]) for x in (a, b))
    )


def _stack_factors(head: Head) -> Matrix:
    W = head.W
    return np.concatenate([W.A, W.B]) if isinstance(W, Factored) else W


def _list_head_parameters(model: Head | MultiHead) -> Matrix:
    """One row of parameters per head."""
    form = _expand_heads(model)
    parts = (form.W, form.V, fill_score_biases(form))
    return np.concatenate(
        [part.reshape(len(part), int(np.prod(part.shape[1:]))) for part in parts], axis=1
    )
