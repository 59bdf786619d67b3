"""Whole blocks of MiniLM as black boxes (width 384, 12 heads, 1,536 units), stage by stage.

    python bench/real.py --blocks 6

Each block is a function of float64 over its weights, asked for its last position. Stages are
asked for alone, each from what those before it found: the last norm from ordinary tokens, the value
maps of all heads from sequences of huge ones, all units and with them what a lone token becomes
from second derivatives and reads, before any fit settles it. Errors are the largest, beside the
truth; those of units count the sides on which they are active.
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
from keyhole.learners.blocks.post_norm.direction_fit import TokenModel
from keyhole.learners.blocks.post_norm.direction_rest import DirectionMap
from keyhole.learners.blocks.post_norm.direction_search import (
    choose_first_dimension,
    search_directions,
)
from keyhole.learners.blocks.post_norm.output_norm import OutputNorm
from keyhole.learners.blocks.post_norm.token_sphere import TokenSphere, invert_front
from keyhole.learners.positions.ball import NormBall
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.oracles import Chunked, Counted
from trained import wheels

_CHUNK = 64  # sequences that the block computes at once
_UNITS = 1536
_MET = 0.01  # gap between a unit and the one that was found, beside its weights
_MAPPED = 1e-3  # of the direction of an answer
_FRESH = 64  # lone tokens that it is measured on


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
    counted = Counted(Chunked(keyhole.Local(block), _CHUNK))
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
    yield from find_network(block, open_sphere(block, found))


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


def open_sphere(block: keyhole.TransformerBlock, found: BlockRecovery) -> TokenSphere:
    """The block by directions of lone tokens, by what stages before found."""
    oracle = Counted(Chunked(keyhole.Local(block), _CHUNK))
    basis = NormBall.of(block.width, "layer", 0.0).basis
    norm = OutputNorm(found.parts["norm2.gain"], found.parts["norm2.shift"], basis)
    maps = found.parts["attention.Wo"] @ found.parts["attention.Wv"]
    return TokenSphere(oracle, norm, invert_front(basis.T @ (np.eye(block.width) + maps.sum(0))))


def find_network(block: keyhole.TransformerBlock, sphere: TokenSphere) -> Iterator[str]:
    """How many units bend, their weights, and what a lone token becomes."""
    start = time.perf_counter()
    m = choose_first_dimension(sphere.dimension, _UNITS)
    sought = search_directions(sphere, m, tuple(EVEN_PARTS), rng=np.random.default_rng(1))
    units, asked = sought.units or 0, sphere.oracle.ledger.total().sequences
    if sought.behind is None:
        yield _row("units", f"{units:,} seen", asked, np.inf, start, False)
        return
    errors = measure_units(block, sought.behind.w, sphere.norm.basis)
    same = int((errors < _MET).sum())
    met = units == same == _UNITS
    yield _row("units", f"{same:,} of {units:,}", asked, float(errors.max()), start, met)
    error = measure_token_map(sphere, sought.behind, sought.side)
    yield _row("token map", "not settled", 0, error, None, error < _MAPPED)


def measure_units(block: keyhole.TransformerBlock, w: Array, basis: Array) -> Array:
    """The gap of every unit of the block to the nearest that was found, beside its weights."""
    gain, _ = block.norm1.spell_out(block.width)
    truth = (np.asarray(block.network.W1) * gain) @ basis
    size = np.linalg.norm(truth, axis=1)
    along = truth @ (w / np.linalg.norm(w, axis=1, keepdims=True)).T
    nearest = w[np.argmax(np.abs(along), axis=1)]
    return np.linalg.norm(truth - nearest, axis=1) / size


def measure_token_map(sphere: TokenSphere, behind: DirectionMap, side: float) -> float:
    """The largest gap of an answer to fresh lone tokens, by its direction."""
    y = np.random.default_rng(2).normal(size=(_FRESH, sphere.dimension))
    y *= sphere.radius / np.linalg.norm(y, axis=1, keepdims=True)
    h = TokenModel(sphere.norm.basis, 0.0).turn(behind, y).h
    made = side * h / np.linalg.norm(h, axis=1, keepdims=True)
    return float(np.linalg.norm(made - sphere.ask_lone(y), axis=1).max())


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
