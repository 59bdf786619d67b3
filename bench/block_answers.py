"""How far each stage of a block gets behind answers that are given otherwise.

Run: python bench/block_answers.py [--seeds 5] [--first 800] [--width 16] [--style gpt2|bert|llama]
One row for each way to answer: of how many blocks each stage was found, and its largest error.
Errors are beside the truth: of the gain of a last norm, of what a head makes of values, of units
before their activation. The learners are not told how answers are given, but where a row
says that it is declared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from keyhole import GatedBlock, Local, PostNormBlock, PreNormBlock, TransformerBlock, random_block
from keyhole._arrays import Array, Matrix
from keyhole.learners.blocks.block_ends import BlockRecovery
from keyhole.oracles import Cast

LEARNERS = {"gpt2": PreNormBlock(), "bert": PostNormBlock(), "llama": GatedBlock()}
# Units beside the width: a width tells fewer gated ones apart.
UNITS = {"gpt2": 1.0, "bert": 1.0, "llama": 0.625}
_DECLARED = "float32, declared"
STAGES = ("norm2.gain", "attention.Wo", "network.W1", "whole")
Answer = Callable[[Array, Matrix], Matrix]


def keep_largest(count: int) -> Answer:
    """The largest outputs alone, the others 0."""

    def answer(X: Array, y: Matrix) -> Matrix:
        least = np.sort(np.abs(y), axis=1)[:, -count, None]
        return np.where(np.abs(y) >= least, y, 0.0)

    return answer


def shrink(bound: float, block: TransformerBlock) -> Answer:
    """Answers to tokens made as short as a bound, where they are longer."""

    def answer(X: Array, y: Matrix) -> Matrix:
        size = np.linalg.norm(X, axis=2, keepdims=True)
        return block(X * np.minimum(1.0, bound / np.maximum(size, 1e-300)))

    return answer


def list_answers(block: TransformerBlock) -> dict[str, Answer]:
    """Ways to answer, by their names."""
    d = block.width
    rounded = {f"{k} decimals": lambda X, y, k=k: np.round(y, k) for k in (12, 10, 8, 6, 4, 3, 2)}
    return {
        "float64": lambda X, y: y,
        **rounded,
        "float32": lambda X, y: y.astype(np.float32).astype(np.float64),
        _DECLARED: lambda X, y: y,
        "bfloat16": lambda X, y: _cut_mantissa(y, 8),
        f"largest {d // 2} of {d} outputs": keep_largest(d // 2),
        "largest 4 outputs": keep_largest(4),
        "tokens cut to norm 1,000": shrink(1e3, block),
        "tokens cut to norm 20": shrink(20.0, block),
    }


def _cut_mantissa(y: Matrix, bits: int) -> Matrix:
    fraction, power = np.frexp(y)
    return np.ldexp(np.round(np.ldexp(fraction, bits)), power - bits)


@dataclass
class Cell:
    """One way to answer: what was found in how many blocks."""

    found: dict[str, list[float]]
    exact: int = 0
    false: int = 0


def measure_parts(block: TransformerBlock, found: BlockRecovery) -> dict[str, float]:
    """The error of every part that a recovery kept."""
    errors: dict[str, float] = {}
    if "norm2.gain" in found.parts:
        gain, truth = found.parts["norm2.gain"], block.norm2.spell_out(block.width)[0]
        side = np.sign(gain @ truth)
        errors["norm2.gain"] = float(np.linalg.norm(side * gain - truth) / np.linalg.norm(truth))
    if "attention.Wo" in found.parts:
        errors["attention.Wo"] = match_maps(read_values(block), join_values(block, found))
    if "network.W1" in found.parts:
        # Behind a first norm its gain is a part of its own; before a network it is folded in.
        made = found.parts["network.W1"] * found.parts.get("norm1.gain", 1.0)
        errors["network.W1"] = match_maps(read_units(block), _centre(made))
    if "network.A" in found.parts:
        gates = block.network.A * block.norm2.spell_out(block.width)[0]
        errors["network.W1"] = match_maps(gates, found.parts["network.A"])
    return errors


def match_maps(truth: Array, made: Array) -> float:
    """The largest gap of any part to the nearest that was found, beside its size."""
    rows, others = (one.reshape(len(one), -1) for one in (truth, made))
    gaps = np.linalg.norm(rows[:, None] - others, axis=2).min(axis=1)
    return float((gaps / np.linalg.norm(rows, axis=1)).max())


def read_values(block: TransformerBlock) -> Array:
    """What heads make of a token, as far as norms show it."""
    gain = block.norm1.spell_out(block.width)[0] if block.style == "pre" else 1.0
    maps = np.einsum("hor,hrd->hod", block.attention.Wo, block.attention.Wv * gain)
    return _centre(maps) if block.style == "pre" else maps - maps.mean(axis=1, keepdims=True)


def join_values(block: TransformerBlock, found: BlockRecovery) -> Array:
    """The same of what was found."""
    return found.parts["attention.Wo"] @ found.parts["attention.Wv"]


def read_units(block: TransformerBlock) -> Matrix:
    """Weights of units, with the norm before them."""
    norm = block.norm2 if block.style == "pre" else block.norm1
    gain = norm.spell_out(block.width)[0]
    return _centre(np.asarray(block.network.W1) * gain)


def _centre(M: Array) -> Array:
    return M - M.mean(axis=-1, keepdims=True)


def run_cell(name: str, style: str, width: int, seeds: range) -> Cell:
    """Learn one block per seed behind one way to answer."""
    cell = Cell({stage: [] for stage in STAGES})
    for seed in seeds:
        truth_rng, rng = np.random.default_rng(seed).spawn(2)
        hidden = round(UNITS[style] * width)
        block = random_block(width, style=style, heads=2, hidden=hidden, rng=truth_rng)
        answer = list_answers(block)[name]
        target = Local(lambda X, b=block, a=answer: a(X, b(X)), width)
        found = LEARNERS[style].run(Cast(target, "f32") if name == _DECLARED else target, rng=rng)
        assert isinstance(found, BlockRecovery)
        for stage, error in measure_parts(block, found).items():
            cell.found[stage].append(error)
        exact = found.verdict.verified
        cell.exact += exact
        if exact and found.model is not None:
            X = rng.normal(size=(20, 8, width))
            gap = float(np.linalg.norm(found.model(X) - block(X)) / np.linalg.norm(block(X)))
            cell.found["whole"].append(gap)
            cell.false += gap > (1e-5 if name == _DECLARED else 1e-6)
    return cell


def main() -> None:
    """Print one row for each way to answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=800)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--style", choices=LEARNERS, default=None)
    told = parser.parse_args()
    for style in LEARNERS if told.style is None else (told.style,):
        print(f"{style}, width {told.width} | last norm | value maps | units | whole", flush=True)
        block = random_block(told.width, style=style, heads=2, rng=np.random.default_rng(0))
        for name in list_answers(block):
            cell = run_cell(name, style, told.width, range(told.first, told.first + told.seeds))
            shown = [
                f"{len(held)}/{told.seeds}" + (f", {max(held):.0e}" if held else "")
                for held in cell.found.values()
            ]
            false = f" ({cell.false} FALSE)" if cell.false else ""
            print(f"{name} | {' | '.join(shown)}{false}", flush=True)


if __name__ == "__main__":
    main()
