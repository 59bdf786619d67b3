"""Whole blocks of MiniLM as black boxes (width 384, 12 heads, 1,536 units), stage by stage.

    python bench/real.py --blocks 6

Each block is a function of float64 over its weights, asked for its last position. Stages are
asked for alone, each from what those before it found: the last norm from ordinary tokens, the value
maps of all heads from sequences of huge ones, the units and their directions on a subspace from
second derivatives. What is behind them stays unknown. Errors are the largest, beside the truth.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import keyhole
from keyhole._arrays import Array
from keyhole.learners.blocks.block_ends import BlockRecovery
from keyhole.learners.blocks.post_norm.direction_slices import find_direction_slices
from keyhole.learners.blocks.post_norm.output_norm import OutputNorm
from keyhole.learners.blocks.post_norm.token_sphere import TokenSphere, invert_front
from keyhole.learners.blocks.rank_ones import find_rank_ones
from keyhole.learners.blocks.unit_slices import choose_dimension
from keyhole.learners.positions.ball import NormBall
from keyhole.oracles import Chunked, Counted
from trained import wheels

_CHUNK = 64  # sequences that the block computes at once
_UNITS = 1536
_MET = 0.01  # sine between a unit and the one that was found


def print_blocks(wheel: Path, count: int) -> bool:
    """Print what the stages find of the first blocks; whether all bars were met."""
    tensors = wheels.tensors_of(wheel)
    print("block, stage                       found      queries     error seconds  memory bars")
    met = True
    for number in range(count):
        block = wheels.minilm_block(tensors, number)
        for stage in measure_stages(block):
            print(f"MiniLM block {number}, {stage}", flush=True)
            met = met and stage.endswith("met")
    return met


def measure_stages(block: keyhole.TransformerBlock) -> Iterator[str]:
    """A row for every stage."""
    start = time.perf_counter()
    counted = Counted(
        Chunked(keyhole.Local(block), _CHUNK),
    )
    learner = keyhole.PostNormBlock(keyhole.Wiring(eps=1e-12), until="values")
    found = learner.run(counted, rng=np.random.default_rng(0))
    assert isinstance(found, BlockRecovery)
    asked = {name: entry.sequences for name, entry in found.ledger.phases.items()}
    if "norm2.gain" in found.parts:
        error = measure_norm(block, found)
        yield _row("last norm", "gain, shift", asked["norm"], error, None, error < 1e-8)
    if "attention.Wo" not in found.parts:
        yield _row("value maps", "none", asked.get("values", 0), np.inf, start, False)
        return
    heads = len(found.parts["attention.Wo"])
    error = measure_values(block, found)
    met = heads == block.attention.heads and error < 1e-6
    yield _row("value maps", f"{heads} heads", asked["values"], error, start, met)
    yield find_units(block, found, time.perf_counter())


def measure_norm(block: keyhole.TransformerBlock, found: BlockRecovery) -> float:
    """The largest error of gain and shift beside the largest of each."""
    gain, shift = block.norm2.spell_out(block.width)
    side = np.sign(found.parts["norm2.gain"] @ gain)
    gaps = (side * found.parts["norm2.gain"] - gain, found.parts["norm2.shift"] - shift)
    return max(float(np.abs(gap).max() / np.abs(gain).max()) for gap in gaps)


def join_values(block: keyhole.TransformerBlock) -> Array:
    """What every head makes of a token, as far as a LayerNorm behind it shows it."""
    maps = np.asarray(block.attention.Wo) @ np.asarray(block.attention.Wv)
    return maps - maps.mean(axis=1, keepdims=True)


def measure_values(block: keyhole.TransformerBlock, found: BlockRecovery) -> float:
    """The largest gap of any head to the nearest that was found, beside its size."""
    truth = join_values(block)
    made = found.parts["attention.Wo"] @ found.parts["attention.Wv"]
    gaps = np.array([np.linalg.norm(made - one, axis=(1, 2)).min() for one in truth])
    return float((gaps / np.linalg.norm(truth, axis=(1, 2))).max())


def find_units(block: keyhole.TransformerBlock, found: BlockRecovery, start: float) -> str:
    """How many units bend, and their directions on a subspace, by what stages before found."""
    oracle = Counted(Chunked(keyhole.Local(block), _CHUNK))
    basis = NormBall.of(block.width, "layer", 0.0).basis
    norm = OutputNorm(found.parts["norm2.gain"], found.parts["norm2.shift"], basis)
    maps = found.parts["attention.Wo"] @ found.parts["attention.Wv"]
    sphere = TokenSphere(oracle, norm, invert_front(basis.T @ (np.eye(block.width) + maps.sum(0))))
    m = choose_dimension(sphere.dimension, _UNITS) or sphere.dimension - 2
    rng = np.random.default_rng(1)
    slices = find_direction_slices(sphere, m, rng=rng)
    units = 0 if slices is None else slices.units
    w = None if slices is None else find_rank_ones(slices.basis, m, units, rng=rng)
    asked = oracle.ledger.total().sequences
    if slices is None or w is None:
        return _row("units", f"{units:,} seen", asked, np.inf, start, False)
    error, same = measure_units(block, w, basis @ slices.split.inside)
    met = units == same == _UNITS
    return _row("units", f"{same:,} of {units:,}", asked, error, start, met)


def measure_units(block: keyhole.TransformerBlock, w: Array, inside: Array) -> tuple[float, int]:
    """The largest sine between any unit of the block and the nearest, and how many were found."""
    gain, _ = block.norm1.spell_out(block.width)
    truth = (np.asarray(block.network.W1) * gain) @ inside
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    nearest = w[np.argmax(np.abs(truth @ w.T), axis=1)]
    along = np.sum(truth * nearest, axis=1, keepdims=True)
    sines = np.linalg.norm(truth - along * nearest, axis=1)
    return float(sines.max()), int((sines < _MET).sum())


def _row(
    stage: str, found: str, asked: int, error: float | None, start: float | None, met: bool
) -> str:
    seconds = "" if start is None else f"{time.perf_counter() - start:.1f}"
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    shown = "" if error is None else f"{error:.1e}"
    return (
        f"{stage:<18} {found:<12} {asked:>9,} {shown:>9} {seconds:>7} {gigabytes:>5.1f} GB"
        f" {'met' if met else 'missed'}"
    )
