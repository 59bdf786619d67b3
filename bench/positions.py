"""Attention layers as they are built: queries beside the counting limit, errors, successes.

Run: python bench/positions.py [--seeds 20] [--first 500] [--only grouped] [--answers f32]
    [--untold] [--longest 64] [--biases 1.8]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole import AttentionLayer, Cast, Local, Oracle, Recovery, Wiring, learn, random_layer
from keyhole.claims import Verdict
from keyhole.identify.layers import layer_freedom
from keyhole.learners.positions.learner import WiredLayer
from keyhole.oracles.limits import Sized

DISPLACEMENTS = 32
PLACES = 8  # absolute positions
USUAL_BIAS = 0.3  # standard deviation
GOALS = {"f64": 1e-9, "f32": 1e-4}
VERDICTS = {"f64": Verdict.EXACT, "f32": Verdict.WITHIN_TOLERANCE}


@dataclass(frozen=True)
class Cell:
    """Layers of one wiring and size."""

    name: str
    width: int
    heads: int
    biases: bool
    told: dict[str, str | float | int] = field(default_factory=dict)
    rank: int | None = None  # of a head, where it is not the width over the heads

    @property
    def wiring(self) -> Wiring:
        """The wiring that is told."""
        return Wiring(eps=1e-5, residual=True, **self.told)

    @property
    def displacements(self) -> int:
        """Entries of a table, or absolute positions."""
        return PLACES if self.wiring.positions == "absolute" else DISPLACEMENTS

    def count_places(self, untold: bool) -> int:
        """Places that a layer is drawn with; `auto` asks for 64 of those by displacement."""
        return self.displacements if not untold or self.displacements == PLACES else 64

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the sequences that errors are measured on."""
        return (1, 2, 4, 8) if self.wiring.positions == "absolute" else (1, 2, 8, 32)


def list_cells() -> Iterator[Cell]:
    """What the class must show, and a few more."""
    yield from list_own_values()
    yield from list_shared_values()
    yield from list_wide_heads()
    yield from list_normed_heads()
    yield from list_large_layers()


def list_normed_heads() -> Iterator[Cell]:
    """Heads whose queries and keys have a norm of their own."""
    for width, heads in ((16, 2), (16, 4), (32, 4), (64, 8)):
        for positions in ("rope", "none"):
            told = {"norm": "rms", "positions": positions, "qk_norm": True}
            yield Cell(f"normed, {positions}, RMSNorm", width, heads, False, told)
    for width, heads, groups in ((16, 4, 2), (16, 4, 1), (32, 4, 2), (64, 8, 2)):
        told = {"norm": "rms", "positions": "rope", "qk_norm": True, "groups": groups}
        yield Cell(f"normed, grouped {groups}, rope, RMSNorm", width, heads, False, told)


def list_large_layers() -> Iterator[Cell]:
    """Widths of 128 and 256."""
    for width in (128, 256):
        yield Cell("large, rope, RMSNorm", width, 8, False, {"norm": "rms", "positions": "rope"})
        told = {"norm": "layer", "positions": "none"}
        yield Cell("large, no positions, LayerNorm, biases", width, 8, True, told)


def list_wide_heads() -> Iterator[Cell]:
    """Heads whose sizes add up to more than the width."""
    for width, heads, rank in ((16, 3, 8), (16, 4, 8), (32, 4, 16)):
        for positions in ("rope", "none"):
            told = {"norm": "rms", "positions": positions}
            name = f"wide {rank}, {positions}, RMSNorm"
            yield Cell(name, width, heads, False, told, rank=rank)
    told = {"norm": "rms", "positions": "rope", "groups": 2}
    yield Cell("wide 12, grouped 2, rope, RMSNorm", 16, 4, False, told, rank=12)


def list_own_values() -> Iterator[Cell]:
    """Heads with keys and values of their own."""
    for width, heads in ((16, 2), (16, 4), (32, 4), (64, 8)):
        yield Cell("rope, RMSNorm", width, heads, False, {"norm": "rms", "positions": "rope"})
    for positions in ("table", "alibi"):
        for width, heads in ((32, 4), (64, 8)):
            told = {"norm": "layer", "positions": positions}
            yield Cell(f"{positions}, LayerNorm, biases", width, heads, True, told)
    for width, heads in ((32, 4), (64, 8)):
        told = {"norm": "layer", "positions": "none"}
        yield Cell("no positions, LayerNorm, biases", width, heads, True, told)
    told = {"norm": "rms", "positions": "rope", "softcap": 5.0}
    yield Cell("rope, soft-cap 5, RMSNorm", 32, 4, False, told)
    told = {"norm": "rms", "positions": "rope", "rotary_share": 0.5}
    yield Cell("half rope, RMSNorm", 32, 4, False, told)
    for width, heads in ((16, 4), (32, 4)):
        for norm, name, biases in (("rms", "RMSNorm", False), ("layer", "LayerNorm, biases", True)):
            told = {"norm": norm, "positions": "absolute"}
            yield Cell(f"absolute, {name}", width, heads, biases, told)


def list_shared_values() -> Iterator[Cell]:
    """Heads that share keys and values."""
    for width, heads, groups in ((16, 4, 2), (16, 4, 1), (32, 4, 2), (64, 8, 2)):
        told = {"norm": "rms", "positions": "rope", "groups": groups}
        yield Cell(f"grouped {groups}, rope, RMSNorm", width, heads, False, told)
        yield Cell(f"grouped {groups}, rope, RMSNorm, biases", width, heads, True, told)
    for groups in (2, 4):
        told = {"norm": "rms", "positions": "rope", "groups": groups, "sinks": True}
        yield Cell(f"sinks, grouped {groups}, rope, RMSNorm", 16, 4, False, told)
    for positions in ("table", "alibi", "none", "absolute"):
        told = {"norm": "layer", "positions": positions, "groups": 2}
        yield Cell(f"grouped 2, {positions}, LayerNorm, biases", 32, 4, True, told)


def measure_error(
    cell: Cell, truth: AttentionLayer, model: AttentionLayer, rng: np.random.Generator
) -> float:
    """The largest relative error over the lengths."""
    errors: list[float] = []
    for length in cell.lengths:
        X = rng.normal(size=(20, length, truth.width))
        errors.append(float(np.linalg.norm(truth(X) - model(X)) / np.linalg.norm(truth(X))))
    return max(errors)


def count_limit(cell: Cell) -> float:
    """The fewest queries that could tell all that is determined."""
    numbers = layer_freedom(
        cell.wiring,
        cell.width,
        heads=cell.heads,
        rank=cell.rank or cell.width // cell.heads,
        outputs=cell.width,
        displacements=cell.displacements,
        biased=cell.biases,
    )
    return numbers / cell.width


def recover(
    cell: Cell, target: Oracle, rng: np.random.Generator, untold: bool
) -> Recovery[AttentionLayer]:
    """By the learner of the wiring that is told, or by `auto`, of which nothing is."""
    if untold:
        return learn(target, rng=rng)
    return WiredLayer(cell.wiring, displacements=cell.displacements).run(target, rng=rng)


def open_target(truth: AttentionLayer, answers: str, longest: int | None) -> Oracle:
    """The layer as it is asked: its answers rounded, and no sequences longer than allowed."""
    target: Oracle = Local(truth)
    if answers != "f64":
        target = Cast(target, answers)
    return target if longest is None else Sized(target, (1, longest))


def scale_biases(layer: AttentionLayer, times: float) -> AttentionLayer:
    """The layer with biases of queries, keys and values so many times as large."""
    known = {name: getattr(layer, name) for name in ("bq", "bk", "bv")}
    return replace(layer, **{name: times * b for name, b in known.items() if b is not None})


def run_cell(
    cell: Cell,
    seeds: range,
    answers: str,
    untold: bool,
    longest: int | None = None,
    biases: float = USUAL_BIAS,
) -> None:
    """Recover one layer per seed and print the row."""
    errors, asked, verified = [], [], 0
    start = time.process_time()
    for seed in seeds:
        truth_rng, rng, fresh = np.random.default_rng(seed).spawn(3)
        truth = random_layer(
            cell.width,
            heads=cell.heads,
            rank=cell.rank,
            wiring=cell.wiring,
            biases=cell.biases,
            displacements=cell.count_places(untold),
            rng=truth_rng,
        )
        truth = scale_biases(truth, biases / USUAL_BIAS)
        target = open_target(truth, answers, longest)
        found = recover(cell, target, rng, untold)
        verified += found.verdict is VERDICTS[answers]
        asked.append(found.ledger.total(without="verify").sequences)
        lost = found.model is None
        errors.append(np.inf if lost else measure_error(cell, truth, found.model, fresh))
    limit = count_limit(cell)
    good = sum(error <= GOALS[answers] for error in errors)
    seconds = (time.process_time() - start) / len(seeds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {cell.name} | {cell.width}, {cell.heads} |"
        f" {verified}/{len(seeds)}, {good}/{len(seeds)} |"
        f" {np.median(errors):.0e} / {np.max(errors):.0e} |"
        f" {np.median(asked):.0f}, at most {np.max(asked)} | {limit:.0f} |"
        f" {np.median(asked) / limit:.2f}, at most {np.max(asked) / limit:.2f} | {seconds:.1f} |"
        f" {memory:.1f} |",
        flush=True,
    )


def main() -> None:
    """Print one row per cell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=500)
    parser.add_argument("--only", default="")
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--untold", action="store_true", help="auto, of which nothing is told")
    parser.add_argument("--answers", default="f64", choices=list(GOALS))
    parser.add_argument("--longest", type=int, help="longest sequence that may be asked")
    parser.add_argument("--biases", type=float, default=USUAL_BIAS, help="their size")
    given = parser.parse_args()
    goal = f"{VERDICTS[given.answers].name}, error <= {GOALS[given.answers]:g}"
    print(f"| layer | d, H | {goal} | error | queries | limit | ratio | CPU s | GB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for cell in list_cells():
        if given.only in cell.name and given.width in (0, cell.width):
            seeds = range(given.first, given.first + given.seeds)
            run_cell(cell, seeds, given.answers, given.untold, given.longest, given.biases)


if __name__ == "__main__":
    main()
