r"""How long tokens are made, so that a model's answers tell: scores of a chosen spread.

Scores of tokens $c r_i$ differ from that of the last by $c^2 a_i + c b_i$ with $a_i = (r_i -
y)^\top W y$ and $b_i = (r_i - y)^\top h$; the spread S is met by the smallest positive c with
$\mathrm{mean}_i (c^2 a_i + c b_i)^2 = S^2$, a quartic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Sequences, Vector, rms
from keyhole.learners.verifying.question_kinds import EVEN_SPREADS
from keyhole.models import AbsAffine, AttentionLayer, Head, Model, MultiHead, OneLayer, ReluNet
from keyhole.models.layers.heads_before_network import HeadsBeforeNetwork
from keyhole.models.layers.tensor_row import TensorRow

_TYPICAL = 8  # tokens that tell the scale of a head
_UNSEEN = (0.01, 1.0, 100.0)  # lengths of tokens where no scale shows anything
_REDRAWS = 40
_REAL = 1e-6
_NO_OFFSET = 1e-12


@dataclass(frozen=True, eq=False, slots=True)
class Subject:
    """What questions are scaled by.

    Args:
        heads: every head whose scores may be aimed at.
        kink: the size of tokens at which a network behind them bends, None where there is none.
        width: of a token.
        row: a unit of higher order, whose scores are aimed at.
    """

    heads: tuple[Head, ...]
    kink: float | None
    width: int
    row: TensorRow | None = None


def describe_subject(model: Model) -> Subject:
    """Heads and network of a model, as far as they tell which tokens are informative."""
    heads: tuple[Head, ...] = ()
    if isinstance(model, Head):
        heads = (model,)
    elif isinstance(model, MultiHead):
        heads = model.heads
    elif isinstance(model, HeadsBeforeNetwork):
        heads = model.heads.heads
    elif isinstance(model, OneLayer):
        heads = (model.head,)
    elif isinstance(model, AttentionLayer) and model.wiring.norm == "none":
        heads = _view_as_heads(model)
    acting = tuple(head for head in heads if _acts(head))
    row = model if isinstance(model, TensorRow) else None
    return Subject(acting, _find_kink_size(model), model.width, row)


def _view_as_heads(layer: AttentionLayer) -> tuple[Head, ...]:
    """The heads of a layer without a norm as they score a token beside the last."""
    group = [layer.find_group(h) for h in range(layer.heads)]
    W = [layer.Wk[g].T @ layer.Wq[h] / np.sqrt(layer.rank) for h, g in enumerate(group)]
    V = [(layer.Wo[h] @ layer.Wv[g]).T for h, g in enumerate(group)]
    return tuple(Head(*parts) for parts in zip(W, V, strict=True))


def _acts(head: Head) -> bool:
    return bool(np.asarray(head.W).any()) or (head.h is not None and bool(head.h.any()))


def _find_kink_size(model: Model) -> float | None:
    """Median size of the offsets of hidden units, in units of Gaussian tokens of length 1."""
    net = model.lone() if isinstance(model, OneLayer) else model
    if isinstance(model, HeadsBeforeNetwork):
        net = model.spread()
    if isinstance(net, AbsAffine):
        sizes = np.abs(net.t)
    elif isinstance(net, ReluNet):
        norms = np.linalg.norm(net.W1, axis=1)
        # A smooth unit bends over a width of its own, wherever its offset is.
        bends = np.abs(net.b1) if net.activation == "relu" else np.hypot(1.0, net.b1)
        sizes = bends[norms > 0] / norms[norms > 0]
    else:
        return None
    # Offsets that were read as zero are rounding, and no size to ask at.
    seen = sizes[sizes > _NO_OFFSET]
    return float(np.median(seen)) * np.sqrt(net.width) if len(seen) else 1.0


def find_scale(head: Head, tokens: Matrix, spread: float) -> float | None:
    """The smallest c at which scores of c times the tokens have that spread; None if none has."""
    if len(tokens) == 1:
        return None
    apart = tokens[:-1] - tokens[-1]
    query = head.queries(tokens[-1:])[0]
    # Without a score bias the quartic has one term.
    if head.h is None:
        size = rms(apart @ query)
        return float(np.sqrt(spread / size)) if size > 0.0 else None
    return _solve_spread(apart @ (query - head.h), apart @ head.h, spread)


def _solve_spread(a: Vector, b: Vector, spread: float) -> float | None:
    largest = np.abs(a).max(), np.abs(b).max()
    if max(largest) == 0.0:
        return None
    # In units of the size at which one part alone would do, no power over- or underflows.
    with np.errstate(divide="ignore"):
        unit = float(min(np.sqrt(spread / largest[0]), spread / largest[1]))
    A, B = a * (unit * unit / spread), b * (unit / spread)
    quartic = float(np.mean(A * A)), 2 * float(np.mean(A * B)), float(np.mean(B * B)), 0.0, -1.0
    roots = np.roots(quartic)
    real = roots.real[(np.abs(roots.imag) <= _REAL * np.abs(roots)) & (roots.real > 0)]
    return unit * float(real.min()) if len(real) else unit


def find_cubic_scale(row: TensorRow, tokens: Matrix, spread: float) -> float | None:
    """The c at which scores of c times the tokens differ by that much from the last pair's.

    Scores of a unit of order s grow as the s-th power of the tokens.
    """
    scores = row.logits(tokens[None])[0, 0]
    size = rms(scores - scores[-1])
    return float((spread / size) ** (1.0 / row.unit.order)) if size > 0.0 else None


def find_typical_scale(
    subject: Subject, head: Head | None, turn: int, rng: np.random.Generator
) -> float:
    """The scale of generic tokens of spread 1, for questions whose own scores are all equal."""
    if head is not None:
        tokens = rng.normal(size=(_TYPICAL, subject.width)) / np.sqrt(subject.width)
        scale = find_scale(head, tokens, 1.0)
        if scale is not None:
            return scale
    if subject.row is not None:
        tokens = rng.normal(size=(_TYPICAL, subject.width)) / np.sqrt(subject.width)
        return find_cubic_scale(subject.row, tokens, 1.0) or 1.0
    if subject.kink is not None:
        return subject.kink * (1.0, 4.0)[turn % 2]
    return _UNSEEN[turn % len(_UNSEEN)]


def turn_from_bias(head: Head, tokens: Matrix) -> Matrix:
    """Tokens on which a score bias does not act; in width 1 nothing is orthogonal to it."""
    if head.h is None or head.width == 1 or not head.h.any():
        return tokens
    unit = head.h / np.linalg.norm(head.h)
    return tokens - np.outer(tokens @ unit, unit)


def spread_along_query(head: Head, X: Matrix, spread: float) -> Matrix:
    """Tokens whose sizes stay, but for the part along q = Wy + h, which gives scores the spread.

    A linear map of the earlier tokens: equal ones stay equal, zero stays zero; copies of the last
    stay what they are.
    """
    q = head.queries(X[-1:])[0]
    scores = X @ q
    size = rms(scores[:-1])
    if size == 0.0:
        return X
    factor = float(np.hypot(spread, min(abs(float(scores[-1])), spread))) / size
    moved = (X[-1] != X).any(axis=1)
    return X + np.outer(np.where(moved, (factor - 1.0) * scores, 0.0), q / (q @ q))


def draw_quiet_last(head: Head, scale: float, width: int, rng: np.random.Generator) -> Vector:
    """A last token that does not draw all weight to itself: of several, the one of least score."""
    drawn = scale * rng.normal(size=(_REDRAWS, width)) / np.sqrt(width)
    own = np.einsum("bd,bd->b", drawn, head.queries(drawn))
    return drawn[int(np.argmin(np.abs(own)))]


def raise_scores(head: Head, X: Matrix, level: float, rng: np.random.Generator) -> Matrix:
    """Earlier tokens moved along q until their scores are `level`, give or take 1."""
    # Weight stays on the earlier tokens while the last scores no higher.
    drawn = rng.normal(size=(_REDRAWS, X.shape[1])) * (np.linalg.norm(X[-1]) / X.shape[1] ** 0.5)
    lasts = np.vstack([X[-1:], drawn])
    own = np.einsum("bd,bd->b", lasts, head.queries(lasts))
    y = lasts[int(np.argmax(own <= level + 1.0))]
    q = head.queries(y[None])[0]
    wanted = level + rng.normal(size=len(X) - 1)
    if not q.any():
        return X
    moved = X[:-1] + np.outer((wanted - X[:-1] @ q) / (q @ q), q)
    return np.vstack([moved, y])


def stretch_across(head: Head, X: Matrix, factor: float, rng: np.random.Generator) -> Matrix:
    """Earlier tokens made longer across q, with scores of spread 1 along it."""
    q = head.queries(X[-1:])[0]
    if not q.any() or len(q) == 1:
        return X
    earlier = X[:-1]
    across = earlier - np.outer(earlier @ q / (q @ q), q)
    along = np.outer(rng.normal(size=len(earlier)) / (q @ q), q)
    return np.vstack([factor * across + along, X[-1:]])


def measure_score_parts(model: Model, X: Sequences) -> tuple[float, float]:
    """Root mean squares of the quadratic and the linear part of score differences."""
    one, two = (s[..., :-1] - s[..., -1:] for s in (model.logits(X), model.logits(2 * X)))
    quadratic = rms((two - 2 * one) / 2)
    linear = rms((4 * one - two) / 2)
    # Of a linear part that is zero the subtraction leaves rounding.
    return quadratic, linear if linear > 1e-12 * quadratic else 0.0


def choose_token_scales(model: Model, *, rng: np.random.Generator) -> tuple[float, ...]:
    """Lengths of tokens at which all score differences together have the even spreads, then 1.

    Scores at token scale s are $s^2 a + s b$, and $s^4 A + s^2 B = t^2$ for the mean squares A, B
    gives s without iteration.
    """
    X = rng.normal(size=(_TYPICAL, 4 * _TYPICAL, model.width)) / np.sqrt(model.width)
    a, b = measure_score_parts(model, X)
    # Without scores no length is better than another.
    if max(a, b) == 0.0:
        return (*_UNSEEN, 1.0)
    # s^2 = 2 t^2 / (b^2 + sqrt(b^4 + 4 a^2 t^2)), written so that no square over- or underflows
    lengths = [
        float(np.sqrt(2.0) * t / np.hypot(b, np.sqrt(np.hypot(b * b, 2 * a * t))))
        for t in EVEN_SPREADS
    ]
    return (*lengths, 1.0)
