"""Targets that are sums of heads, by the name of their cell: what `several_heads.py` measures.

A cell draws a target from a generator, says which learner somebody who knows the target would name,
and how many queries the numbers that answers determine call for: degrees of freedom over outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import keyhole
from keyhole import Hints, MultiHead

Array = np.ndarray
Rng = np.random.Generator


@dataclass
class Timed:
    """A target that keeps the seconds spent in it; it is asked as a bare callable.

    Args:
        model: what answers.
        imperfect: what is done to answers, by default nothing.
    """

    model: Any
    imperfect: Callable[[Array], Array] = lambda answers: answers
    seconds: float = field(default=0.0)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.model.width

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return self.model.outputs

    def __call__(self, X: Array) -> Array:
        """Answers, timed."""
        start = time.process_time()
        answers = self.model(X)
        self.seconds += time.process_time() - start
        return self.imperfect(answers)


@dataclass(frozen=True)
class Cell:
    """A kind of target.

    Args:
        draw: a target.
        learner: its learner, named.
        wrap: an oracle of a timed target, by default the target itself.
        hints: what the learner is told.
        goal: queries before verification that the median should not exceed, where one is stated.
        tolerant: whether WITHIN_TOLERANCE is as good as EXACT.
    """

    draw: Callable[[Rng], Any]
    learner: str = "several-heads"
    wrap: Callable[[Timed, Rng], Any] = lambda target, _: target
    hints: Callable[[Rng, int], Hints] = lambda _, __: Hints()
    goal: float | None = None
    tolerant: bool = False


def draw_heads(
    rng: Rng,
    heads: int,
    width: int,
    outputs: int = 1,
    *,
    rank: int | None = None,
    value_rank: int | None = None,
    biased: bool = False,
    residual: str = "",
) -> MultiHead:
    """W = G/sqrt d and V = G/sqrt d, or products of thin factors; `residual` is random or plain."""
    W = draw_matrices(rng, (heads, width, width), rank)
    V = draw_matrices(rng, (heads, width, outputs), value_rank)
    h = rng.normal(size=(heads, width)) if biased else None
    c = rng.normal(size=outputs) if biased else None
    U = None
    if residual == "random":
        U = rng.normal(size=(width, outputs)) / np.sqrt(width)
    if residual == "plain":
        U = np.eye(width)[:, :outputs]
    return MultiHead(W, V, h, c, U)


def draw_matrices(rng: Rng, shape: tuple[int, int, int], rank: int | None) -> Array:
    """Matrices of entries of about 1/sqrt d, of a rank."""
    heads, rows, columns = shape
    if rank is None or rank >= min(rows, columns):
        return rng.normal(size=shape) / np.sqrt(rows)
    left = rng.normal(size=(heads, rows, rank))
    right = rng.normal(size=(heads, rank, columns))
    return left @ right / np.sqrt(rows * rank)


def draw_some_biased(rng: Rng, width: int, heads: int, outputs: int) -> MultiHead:
    """Heads with score biases, every other model with a residual."""
    return draw_heads(
        rng, heads, width, outputs, biased=True, residual="random" if rng.random() < 0.5 else ""
    )


def twist_heads(
    rng: Rng, twist: Callable[[Rng, Array, Array], None], outputs: int = 1, heads: int = 3
) -> MultiHead:
    """Three heads of width 8, two of them made degenerate in place."""
    model = draw_heads(rng, heads, 8, outputs)
    W, V = model.W.copy(), model.V.copy()
    twist(rng, W, V)
    return MultiHead(W, V)


def _oppose_near_equal(distance: float, rng: Rng, W: Array, V: Array) -> None:
    W[1] = W[0] + distance * rng.normal(size=W[0].shape) / np.sqrt(len(W[0]))
    V[1] = -V[0]


def _near_equal(distance: float, rng: Rng, W: Array, V: Array) -> None:
    W[1] = W[0] + distance * rng.normal(size=W[0].shape) / np.sqrt(len(W[0]))


def _sum_to_zero(_: Rng, W: Array, V: Array) -> None:
    V[-1] = -V[:-1].sum(axis=0)


def _share_row_space(rng: Rng, W: Array, V: Array) -> None:
    d = len(W[0])
    row = rng.normal(size=d)
    W[0] = np.outer(rng.normal(size=d), row) / d**0.5
    W[1] = np.outer(rng.normal(size=d), row) / d**0.5


def _share_column_space(rng: Rng, W: Array, V: Array) -> None:
    d = len(W[0])
    column = rng.normal(size=d)
    W[0] = np.outer(column, rng.normal(size=d)) / d**0.5
    W[1] = np.outer(column, rng.normal(size=d)) / d**0.5


def _assign(rule: Callable[[Array, Array], None]) -> Callable[[Rng, Array, Array], None]:
    return lambda _, W, V: rule(W, V)


def _equal_scores(W: Array, _: Array) -> None:
    W[1] = W[0]


def _cancel(W: Array, V: Array) -> None:
    W[1], V[1] = W[0], -V[0]


def _no_readout(_: Array, V: Array) -> None:
    V[1] = 0.0


def _no_scores(W: Array, _: Array) -> None:
    W[1] = 0.0


def _mirror(W: Array, _: Array) -> None:
    W[1] = -W[0]


def _mirror_equal(W: Array, V: Array) -> None:
    W[1], V[1] = -W[0], V[0]


def _mirror_opposite(W: Array, V: Array) -> None:
    W[1], V[1] = -W[0], -V[0]


def _equal_readouts(_: Array, V: Array) -> None:
    V[1] = V[0]


def _opposite_readouts(_: Array, V: Array) -> None:
    V[1] = -V[0]


def _double(W: Array, _: Array) -> None:
    W[1] = 2.0 * W[0]


def _negative_multiple(W: Array, _: Array) -> None:
    W[1] = -3.0 * W[0]


TWISTS: Mapping[str, Callable[[Rng, Array, Array], None]] = {
    "read-outs sum to zero": _sum_to_zero,
    "near-equal 1e-6, opposite V": partial(_oppose_near_equal, 1e-6),
    "near-equal 1e-4, opposite V": partial(_oppose_near_equal, 1e-4),
    "near-equal 1e-2, opposite V": partial(_oppose_near_equal, 1e-2),
    "near-equal 1e-6": partial(_near_equal, 1e-6),
    "rank one, one row space": _share_row_space,
    "rank one, one column space": _share_column_space,
    "equal W": _assign(_equal_scores),
    "cancelling pair": _assign(_cancel),
    "V = 0": _assign(_no_readout),
    "W = 0": _assign(_no_scores),
    "W, -W": _assign(_mirror),
    "W, -W, V equal": _assign(_mirror_equal),
    "W, -W, V opposite": _assign(_mirror_opposite),
    "V equal": _assign(_equal_readouts),
    "V opposite": _assign(_opposite_readouts),
    "W, 2W": _assign(_double),
    "W, -3W": _assign(_negative_multiple),
}


def draw_layer(rng: Rng, width: int, heads: int, size: int) -> MultiHead:
    """A layer with an output projection, biases of queries and values, its scores as trained."""
    Q, K, V = rng.normal(size=(3, heads, size, width)) / np.sqrt(width)
    O = rng.normal(size=(heads, size, width)) / np.sqrt(width)
    scale = 2.0 / np.sqrt(size)
    W = np.swapaxes(K, 1, 2) @ Q * scale
    h = np.einsum("hrd,hr->hd", K, 0.4 * rng.normal(size=(heads, size))) * scale
    return MultiHead(W, np.swapaxes(V, 1, 2) @ O, h, 0.3 * rng.normal(size=width))


@dataclass(frozen=True)
class Narrow:
    """A sum of heads that computes in float32."""

    model: MultiHead

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.model.width

    @property
    def outputs(self) -> int:
        """Numbers per answer."""
        return self.model.outputs

    def __call__(self, X: Array) -> Array:
        """The formula in float32 throughout."""
        model, narrow = self.model, np.float32
        W, V = model.W.astype(narrow), model.V.astype(narrow)
        X = X.astype(narrow)
        queries = np.einsum("hde,be->bhd", W, X[:, -1], optimize=True)
        if model.h is not None:
            queries = queries + model.h.astype(narrow)
        scores = np.einsum("bnd,bhd->bhn", X, queries, optimize=True)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mean = np.einsum("bhn,bnd->bhd", weights, X, optimize=True)
        answers = np.einsum("bhd,hdo->bo", mean, V, optimize=True)
        return answers if model.c is None else answers + model.c.astype(narrow)


def _in_ball(target: Timed, _: Rng) -> Any:
    return keyhole.Bounded(keyhole.Local(target), float(np.sqrt(target.width)))


def _in_ball_with_noise(target: Timed, rng: Rng) -> Any:
    noisy = keyhole.Noisy(keyhole.Local(target), 1e-6, int(rng.integers(1 << 30)))
    return keyhole.Bounded(noisy, float(np.sqrt(target.width)))


def _declare_float32(target: Timed, _: Rng) -> Any:
    return keyhole.Declared(keyhole.Local(target), keyhole.Imperfection.cast("f32"))


def _round_to_decimals(target: Timed, _: Rng) -> Any:
    target.imperfect = partial(np.round, decimals=2)
    return keyhole.Declared(keyhole.Local(target), keyhole.Imperfection.decimals(2))


def _draw_vocabulary(rng: Rng, width: int) -> Hints:
    return Hints(tokens=rng.normal(size=(4 * width, width)) / np.sqrt(width))


def _name_cells() -> dict[str, Cell]:
    heads = draw_heads
    some = draw_some_biased

    def of(draw: Callable[..., Any], *sizes: Any, **extra: Any) -> Callable[[Rng], Any]:
        return lambda rng: draw(rng, *sizes, **extra)

    def before(outputs: int, activation: str = "relu", size: tuple[int, int, int] = (2, 6, 8)):
        heads, width, hidden = size
        return lambda rng: keyhole.HeadsBeforeNetwork.random(
            width, heads=heads, hidden=hidden, outputs=outputs, activation=activation, rng=rng
        )

    wiring = {"biased": True, "residual": "random"}
    cells = {
        "vector 2,8,8": Cell(of(heads, 2, 8, 8), goal=45),
        "vector 4,16,16": Cell(of(heads, 4, 16, 16), goal=150),
        "vector 8,32,32": Cell(of(heads, 8, 32, 32), goal=580),
        "vector 8,64,64": Cell(of(heads, 8, 64, 64), goal=1150),
        "more heads than outputs 3,8,2": Cell(of(heads, 3, 8, 2)),
        "more heads than outputs 5,8,3, biases, residual": Cell(of(heads, 5, 8, 3, **wiring)),
        "more heads than outputs 8,16,4, biases, residual": Cell(of(heads, 8, 16, 4, **wiring)),
        "vector h U 4,16,16": Cell(of(heads, 4, 16, 16, **wiring), goal=175),
        "scalar 2,4": Cell(of(heads, 2, 4), goal=1.8 * 40),
        "scalar 2,8": Cell(of(heads, 2, 8), goal=1.25 * 144),
        "scalar 4,16": Cell(of(heads, 4, 16), goal=1.12 * 1088),
        "scalar 8,64": Cell(of(heads, 8, 64), goal=1.03 * 33280),
    }
    for size in ((2, 8), (3, 8), (4, 16), (4, 32)):
        for outputs in (1, size[1]):
            name = f"biases {size[0]},{size[1]},{outputs}"
            cells[name] = Cell(of(some, size[1], size[0], outputs))
    for size in ((2, 8), (4, 16), (8, 64)):
        name = f"x + heads {size[0]},{size[1]}"
        cells[name] = Cell(of(heads, *size, size[1], residual="plain"))
    cells |= {
        "x + heads 2,8, rank 4": Cell(of(heads, 2, 8, 8, rank=4, value_rank=4, residual="plain")),
        "4 x width 8,64,64": Cell(of(heads, 8, 64, 64, rank=32, value_rank=32), goal=1100),
        "rank 4 8,64,1": Cell(of(heads, 8, 64, 1, rank=4), goal=1.3 * 4480),
        "rank 4 8,64,64": Cell(of(heads, 8, 64, 64, rank=4, value_rank=4), goal=260),
        "64 heads 8,1": Cell(of(heads, 64, 8, 1)),
        "64 heads 8,8": Cell(of(heads, 64, 8, 8)),
        "layer 384 = 12 x 32": Cell(of(draw_layer, 384, 12, 32), "layer", goal=1900),
        "layer 128 = 12 x 32": Cell(of(heads, 12, 128, 128, rank=32, value_rank=32)),
    }
    for name, twist in TWISTS.items():
        for outputs in (1, 3):
            draw = of(twist_heads, twist, outputs)
            cells[f"{name}, {outputs} out"] = Cell(draw)
    for size in ((2, 8), (4, 16)):
        cells[f"in ball {size[0]},{size[1]}"] = Cell(of(heads, *size), "heads-in-ball", _in_ball)
        cells[f"noise in ball {size[0]},{size[1]}"] = Cell(
            of(heads, *size), "heads-in-ball", _in_ball_with_noise, tolerant=True
        )
    return cells | {
        "float32 4,16,16": Cell(
            lambda rng: Narrow(draw_heads(rng, 4, 16, 16, rank=4, value_rank=4)),
            "layer",
            _declare_float32,
            tolerant=True,
        ),
        "float32 8,64,64": Cell(
            lambda rng: Narrow(draw_heads(rng, 8, 64, 64, rank=8, value_rank=8)),
            "layer",
            _declare_float32,
            tolerant=True,
        ),
        **{
            f"decimals {H},{d},{o}": Cell(
                of(heads, H, d, o, residual="random"), wrap=_round_to_decimals, tolerant=True
            )
            for H, d, o in ((2, 8, 1), (2, 8, 8), (4, 16, 16))
        },
        **{
            f"vocabulary {H},{d},{o}": Cell(
                of(heads, H, d, o), "restricted-heads", hints=_draw_vocabulary
            )
            for H, d, o in ((4, 8, 1), (2, 8, 8), (3, 8, 8), (4, 8, 8), (3, 16, 16))
        },
        "vocabulary h U 3,8,8": Cell(
            of(heads, 3, 8, 8, **wiring), "restricted-heads", hints=_draw_vocabulary
        ),
        "before ReLU 2,6,8,1": Cell(before(1), "several-heads-layer"),
        "before ReLU 2,6,8,6": Cell(before(6), "several-heads-layer"),
        "before GELU 2,6,8,1": Cell(before(1, "gelu"), "several-heads-layer"),
        "before GELU 2,6,8,6": Cell(before(6, "gelu"), "several-heads-layer"),
        "before SiLU 2,6,8,6": Cell(before(6, "silu"), "several-heads-layer"),
        "before GELU 3,10,12,4": Cell(before(4, "gelu", (3, 10, 12)), "several-heads-layer"),
    }


CELLS: Mapping[str, Cell] = _name_cells()


def find_limit(model: Any) -> int | None:
    """Degrees of freedom over outputs, rounded up; None where they are not counted."""
    inner = getattr(model, "model", model)
    if isinstance(inner, keyhole.HeadsBeforeNetwork):
        return None
    return -(-keyhole.freedom(inner) // inner.outputs)
