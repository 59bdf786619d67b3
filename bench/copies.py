"""Quantised copies of trained layers are told from their originals, by the error they make.

    python bench/copies.py [--seeds 700-719]

For each seed a layer of attention is trained in torch; its weights are rounded to 4, 6 and 8 bits,
and every copy is kept as a torch module, as an ONNX file and as a plain safetensors file. One more
copy has its products in 8 bit integers, as onnxruntime quantises them: its steps fit the batch, so
that it is asked one sequence at a time. `keyhole compare` asks the original and the copy. The true
error is measured by torch, or by onnxruntime, on 16 times as many sequences. `told` counts copies
that are called different, `off` is how far the stated error is from the true one, relatively.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import types
import warnings

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import quantize_dynamic
from safetensors.numpy import save_file

from keyhole.lab.jobs import CompareJob
from keyhole.lab.running import run_job
from keyhole.lab.targets.answer_gaps import LENGTHS

WIDTH, HEADS, STEPS = 16, 4, 60
BITS = (4, 6, 8)
EACH = 1000  # sequences of a length, for the true error


class Attention(torch.nn.Module):
    """Attention as many models of transformers write it."""

    num_heads = HEADS

    def __init__(self) -> None:
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, name, torch.nn.Linear(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Answers at every token."""
        q, k, v = (
            project(x).unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        scores = q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5
        return self.out_proj((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Layer(torch.nn.Module):
    """A model with that one layer."""

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Answers at every token."""
        return self.attention(x)


def train_layer(seed: int) -> Layer:
    """A layer that averages tokens by how near they are to the last one."""
    torch.manual_seed(seed)
    layer = Layer().double()
    turn = torch.linalg.qr(torch.randn(WIDTH, WIDTH, dtype=torch.float64))[0]
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(STEPS):
        X = torch.randn(64, 6, WIDTH, dtype=torch.float64)
        near = torch.softmax(X @ X[:, -1:].transpose(1, 2), dim=1)
        loss = ((layer(X)[:, -1] - (near * X).sum(dim=1) @ turn) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return layer.eval()


def round_weights(layer: Layer, bits: int) -> Layer:
    """A copy whose matrices hold whole multiples of one step each."""
    made = copy.deepcopy(layer)
    with torch.no_grad():
        for weights in made.parameters():
            step = weights.abs().max() / (2 ** (bits - 1) - 1)
            weights.copy_(torch.round(weights / step) * step)
    return made


def write_onnx(layer: Layer, path: str) -> None:
    """An ONNX file of a layer, in the numbers of the layer."""
    free = {0: "batch", 1: "length"}
    kind = next(layer.parameters()).dtype
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            layer,
            (torch.zeros(2, 3, WIDTH, dtype=kind),),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": free, "y": free},
        )


def write_copies(layer: Layer, made: types.ModuleType) -> dict[str, tuple[str, dict[str, object]]]:
    """Every copy of a layer: by its name the target and the options that open it."""
    copies: dict[str, tuple[str, dict[str, object]]] = {}
    for bits in BITS:
        rounded = round_weights(layer, bits)
        setattr(made, f"bits{bits}", rounded)
        write_onnx(rounded, f"{bits}.onnx")
        weights = {name: part.detach().numpy() for name, part in rounded.state_dict().items()}
        save_file(weights, f"{bits}.safetensors")
        copies[f"{bits} bits, torch"] = (f"{made.__name__}:bits{bits}", {})
        copies[f"{bits} bits, ONNX"] = (f"{bits}.onnx", {})
        named = {"other_layer": "attention", "heads": HEADS}
        copies[f"{bits} bits, safetensors"] = (f"{bits}.safetensors", named)
    write_onnx(copy.deepcopy(layer).float(), "narrow.onnx")
    quantize_dynamic("narrow.onnx", "integers.onnx", op_types_to_quantize=["MatMul", "Gemm"])
    copies["8 bit integers, onnxruntime"] = ("integers.onnx", {})
    return copies


def open_session(path: str) -> onnxruntime.InferenceSession:
    """A session on one thread: small products in turns gain nothing from more."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def measure_truth(layer: Layer, made: types.ModuleType, name: str, seed: int) -> float:
    """The relative error of a copy, asked without keyhole."""
    torch.manual_seed(1000 + seed)
    session = open_session("integers.onnx") if "integers" in name else None
    gap = size = 0.0
    with torch.no_grad():
        for length in LENGTHS:
            X = torch.randn(EACH, length, WIDTH, dtype=torch.float64)
            truth = layer(X)[:, -1].numpy()
            if session is None:
                answers = getattr(made, f"bits{name[0]}")(X)[:, -1].numpy()
            else:
                rows = X.float().numpy()
                lone = [session.run(None, {"x": row[None]})[0][0, -1] for row in rows]
                answers = np.stack(lone)
            gap += float(np.mean((answers - truth) ** 2))
            size += float(np.mean(truth**2))
    return (gap / size) ** 0.5


def compare_copies(seed: int) -> dict[str, tuple[bool, float, float]]:
    """For every copy: whether it is told apart, the stated error, the true one."""
    made = types.ModuleType(f"trained_{seed}")
    sys.modules[made.__name__] = made
    layer = made.model = train_layer(seed)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        results: dict[str, tuple[bool, float, float]] = {}
        truths: dict[str, float] = {}
        for name, (target, options) in write_copies(layer, made).items():
            job = CompareJob(f"{made.__name__}:model", target, seed=seed, **options)
            told = run_job(job).data.answers
            rounding = name.partition(",")[0]
            if rounding not in truths:
                truths[rounding] = measure_truth(layer, made, name, seed)
            results[name] = (not told.same, told.relative, truths[rounding])
        os.chdir("/")
    return results


def main() -> None:
    """Train, copy, compare; print a row for every kind of copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="700-719")
    torch.set_num_threads(1)
    first, last = map(int, parser.parse_args().seeds.split("-"))
    rows = [compare_copies(seed) for seed in range(first, last + 1)]
    print(f"{'copy':30} {'told':>7} {'true error':>11} {'off, median':>12} {'off, worst':>11}")
    for name in rows[0]:
        told = [row[name] for row in rows]
        off = [abs(stated / truth - 1.0) for _, stated, truth in told]
        print(
            f"{name:30} {sum(one for one, _, _ in told):>3}/{len(told):<3}"
            f" {statistics.median(truth for _, _, truth in told):>11.2g}"
            f" {statistics.median(off):>12.1%} {max(off):>11.1%}"
        )


if __name__ == "__main__":
    main()
