"""Where the nuclear norm starts to recover: success rate over measurements / degrees of freedom and
rank.

Every cell draws matrices of that rank and Gaussian rank-one measurements of them. Two lines are
compared with where half of them come back: the degrees of freedom, below which no method can work,
and the statistical dimension of the nuclear norm's descent cone (Amelunxen, Lotz, McCoy, Tropp
2014), where the change is for fully Gaussian measurements.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keyhole.drawing.palette import LIGHT, read_channels
from keyhole.learners.one_head.nuclear_program import minimise_nuclear_norm

STEP = 0.125
RATIOS = tuple(np.arange(1.0, 3.26, STEP))
RECOVERED = 1e-6  # relative error of a success
INK, PAPER, OURS, LIMIT, RULE = (LIGHT[name] for name in ("ink", "page", "ours", "limit", "rule"))
LEFT, TOP, CELL, ROW = 92, 128, 36, 34  # pixels


@dataclass(frozen=True)
class Cell:
    """One rank, one number of measurements."""

    width: int
    rank: int
    ratio: float
    seeds: int

    @property
    def measurements(self) -> int:
        """The ratio times the degrees of freedom."""
        return int(np.ceil(self.ratio * self.rank * (2 * self.width - self.rank)))


def success(cell: Cell) -> float:
    """Share of random matrices that come back."""
    return sum(comes_back(cell, seed) for seed in range(cell.seeds)) / cell.seeds


def comes_back(cell: Cell, seed: int) -> bool:
    """Whether the matrix of least nuclear norm is the one that was measured."""
    d, r, m = cell.width, cell.rank, cell.measurements
    rng = np.random.default_rng([seed, d, r, m])
    W = rng.normal(size=(d, r)) @ rng.normal(size=(r, d))
    A, B = rng.normal(size=(2, m, d))
    found = minimise_nuclear_norm(A, B, np.einsum("ki,ij,kj->k", A, W, B)).W
    return bool(np.linalg.norm(found - W) <= RECOVERED * np.linalg.norm(W))


def statistical_dimension(width: int, rank: int) -> float:
    r"""Measurements at which half succeed, if they were fully Gaussian.

    $$r(2d - r) + \min_\tau (r \tau^2 + E \sum_i (\sigma_i - \tau)_+^2)$$

    over the singular values of a Gaussian matrix of size d - r, which follow the quarter
    circle law on [0, 2 sqrt(d - r)].
    """
    n = width - rank
    s = (np.arange(4000) + 0.5) / 2000
    density = np.sqrt(4 - s**2) / np.pi / 2000
    steps = np.linspace(0, 2, 401)
    costs = [rank * n * tau**2 + n * n * density @ np.maximum(s - tau, 0) ** 2 for tau in steps]
    return rank * (2 * width - rank) + min(costs)


def half(ratios: list[float], rates: list[float]) -> float | None:
    """Where the success rate passes one half, between the two ratios around it."""
    for (x, p), (y, q) in zip(
        zip(ratios, rates, strict=True), list(zip(ratios, rates, strict=True))[1:], strict=False
    ):
        if p < 0.5 <= q:
            return x + (0.5 - p) / (q - p) * (y - x)
    return None


def cells(width: int, ranks: range, seeds: int) -> list[Cell]:
    """All cells but those with as many measurements as entries, where there is nothing left to
    minimise.
    """
    every = [Cell(width, r, float(ratio), seeds) for r in ranks for ratio in RATIOS]
    return [cell for cell in every if cell.measurements < width * width]


def table(
    rates: dict[tuple[int, float], float], ranks: range, crossing: dict[int, float], width: int
) -> str:
    """The rates as text; a dot stands for as many measurements as entries."""
    lines = ["rank  " + "".join(f"{ratio:5.2f}" for ratio in RATIOS) + "    half  theory"]
    for r in ranks:
        row = "".join(
            f"{rates[r, ratio]:5.2f}" if (r, ratio) in rates else "    ." for ratio in RATIOS
        )
        theory = statistical_dimension(width, r) / (r * (2 * width - r))
        lines.append(f"{r:4d}  {row}  {crossing.get(r, np.nan):6.2f}  {theory:6.2f}")
    return "\n".join(lines)


def blend(rate: float) -> str:
    """Paper at 0, blue at 1."""
    paper, blue = (np.array(read_channels(c)) for c in (PAPER, OURS))
    return "#" + "".join(f"{round(v):02x}" for v in paper + rate * (blue - paper))


def x_of(ratio: float) -> float:
    """Pixels from the left."""
    return LEFT + ((ratio - RATIOS[0]) / STEP + 0.5) * CELL


def y_of(rank: float, ranks: range) -> float:
    """Pixels from the top."""
    return TOP + (ranks[-1] - rank + 0.5) * ROW


def text(
    x: float, y: float, words: str, *, size: int = 13, anchor: str = "start", colour: str = INK
) -> str:
    """One line of text, haloed so that it can be read on a cell."""
    look = (
        f'font-size="{size}" text-anchor="{anchor}" fill="{colour}" stroke="{PAPER}"'
        ' stroke-width="3"'
    )
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {look} paint-order="stroke"'
        f' stroke-linejoin="round">{words}</text>'
    )


def curve(points: list[tuple[float, float]], colour: str, dashes: str = "") -> str:
    """A line with a halo of paper."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f'stroke-dasharray="{dashes}"' if dashes else ""
    halo = (
        f'<polyline points="{path}" fill="none" stroke="{PAPER}" stroke-width="5" opacity="0.85"/>'
    )
    return (
        f'{halo}<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" {style}/>'
    )


def rectangles(rates: dict[tuple[int, float], float], ranks: range) -> list[str]:
    """One rectangle a cell, its number on hover."""
    shape = (
        '<rect x="{:.1f}" y="{:.1f}" width="{}" height="{}" fill="{}" stroke="{}"'
        ' stroke-width="0.5">{}</rect>'
    )
    return [
        shape.format(
            x_of(ratio) - CELL / 2, y_of(r, ranks) - ROW / 2, CELL, ROW, blend(rate), RULE,
            f"<title>rank {r}, {ratio:.2f} x degrees of freedom: {rate:.0%}</title>",
        )
        for (r, ratio), rate in rates.items()
    ]  # fmt: skip


def axes(ranks: range) -> list[str]:
    """Ticks and names."""
    bottom = TOP + len(ranks) * ROW
    ticks = [text(x_of(v), bottom + 19, f"{v:g}", size=12, anchor="middle") for v in RATIOS[::4]]
    ticks += [text(LEFT - 10, y_of(r, ranks) + 4, str(r), size=12, anchor="end") for r in ranks]
    middle = LEFT + len(RATIOS) * CELL / 2
    name = text(
        middle, bottom + 44, "measurements m over degrees of freedom r(2d − r)", anchor="middle"
    )
    side = text(0, 0, "rank r of W", anchor="middle")
    return [
        *ticks,
        name,
        f'<g transform="translate(38 {TOP + len(ranks) * ROW / 2:.0f}) rotate(-90)">{side}</g>',
    ]


def key(bottom: float) -> list[str]:
    """What the colours mean."""
    shown = [0.0, 0.25, 0.5, 0.75, 1.0]
    boxes = [
        f'<rect x="{LEFT + 30 * i}" y="{bottom}" width="30" height="12" fill="{blend(p)}"'
        f' stroke="{RULE}"/>'
        for i, p in enumerate(shown)
    ]
    says = "success rate 0 to 1; no cell: as many measurements as entries, nothing to minimise"
    return [*boxes, text(LEFT + 160, bottom + 11, says, size=12)]


def picture(
    rates: dict[tuple[int, float], float], ranks: range, crossing: dict[int, float], cell: Cell
) -> str:
    """The phase diagram as a self-contained SVG."""
    d, bottom = cell.width, TOP + len(ranks) * ROW
    theory = [(statistical_dimension(d, r) / (r * (2 * d - r)), r) for r in ranks]
    lines = [
        curve([(x_of(1), TOP), (x_of(1), bottom)], LIMIT, "2 4"),
        curve([(x_of(x), y_of(r, ranks)) for x, r in theory], LIMIT, "7 5"),
        curve([(x_of(x), y_of(r, ranks)) for r, x in crossing.items()], INK),
    ]
    dots = [
        f'<circle cx="{x_of(x):.1f}" cy="{y_of(r, ranks):.1f}" r="4" fill="{INK}"/>'
        for r, x in crossing.items()
    ]
    low, high = min(crossing.values()), max(crossing.values())
    title = (
        f"Half of the matrices come back at {low:.1f} to {high:.1f} times their degrees of freedom"
    )
    caption = (
        (
            f"d = {d}, {cell.seeds} random matrices a cell, success: relative error at most"
            f" {RECOVERED:g}."
        ),
        (
            "Look at where blue begins: close to the dashed prediction, which is for fully Gaussian"
            " measurements."
        ),
    )
    width = LEFT + len(RATIOS) * CELL + 40
    height = bottom + 96
    measured = " ".join(f"{r},{x:.2f},{p:.2f}" for (r, x), p in rates.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" style="font-variant-numeric: tabular-nums">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        text(20, 32, title, size=16),
        *(text(20, 54 + 18 * i, words, size=12, colour=LIMIT) for i, words in enumerate(caption)),
        *rectangles(rates, ranks), *lines, *dots, *axes(ranks), *key(bottom + 62),
        text(x_of(1) - 4, TOP - 9, "1: no method works to the left", size=12, colour=LIMIT),
        *labels(theory, crossing, ranks),
        f"<metadata>rank,ratio,rate {measured}</metadata></svg>",
    ]  # fmt: skip
    return "\n".join(parts)


def labels(theory: list[tuple[float, int]], crossing: dict[int, float], ranks: range) -> list[str]:
    """Names of the two curves, beside them: the measured one on its right, the predicted one on its
    left.
    """
    r, low = ranks[min(2, len(ranks) - 1)], ranks[0]
    ours = text(
        x_of(crossing.get(r, 2.0)) + 12, y_of(r, ranks) + 4, "measured: half succeed", size=12
    )
    x = x_of(theory[0][0]) - 10
    return [
        ours,
        text(x, y_of(low, ranks) + 4, "statistical dimension", size=12, anchor="end", colour=LIMIT),
    ]


def main() -> None:
    """Print the table, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="d = 12, five matrices a cell")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/phase_transition.svg"))
    options = parser.parse_args()
    width, seeds, ranks = (12, 5, range(1, 6)) if options.quick else (20, 20, range(1, 9))
    grid, start = cells(width, ranks, seeds), time.perf_counter()
    with ProcessPoolExecutor(options.workers) as pool:
        rates = {
            (c.rank, c.ratio): rate
            for c, rate in zip(grid, pool.map(success, grid, chunksize=4), strict=True)
        }
    crossing: dict[int, float] = {}
    for r in ranks:
        here = [c.ratio for c in grid if c.rank == r]
        at = half(here, [rates[r, ratio] for ratio in here])
        crossing |= {} if at is None else {r: at}
    print(table(rates, ranks, crossing, width))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(picture(rates, ranks, crossing, grid[0]))
    print(
        f"\nd = {width}, {seeds} matrices a cell, {time.perf_counter() - start:.0f} s; columns: m /"
        " r(2d - r)."
    )
    print(
        "half: where half succeed; theory: statistical dimension / r(2d - r). Picture:"
        f" {options.out}"
    )


if __name__ == "__main__":
    main()
