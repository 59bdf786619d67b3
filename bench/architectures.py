"""Layers of transformers' architectures, random weights: what comes back of each, or why not.

Run: python bench/architectures.py [--only llama] [--width 32] [--seed 700]
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from typing import Any

import numpy as np
import torch
import transformers

import keyhole
from keyhole.lab.targets.advising import advise, list_wiring
from keyhole.oracles.inside.described import AttentionPart

HEADS, GROUPS, LAYERS, WORDS = 4, 2, 2, 50


def list_configs(width: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The names of a model and of its configuration, and what it is built with."""
    sizes = {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "hidden_size": width}
    words = {**sizes, "vocab_size": WORDS, "intermediate_size": 2 * width}
    shared = {**words, "num_key_value_heads": GROUPS}
    old = {"n_embd": width, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS}
    fed = {"d_model": width, "d_ff": 2 * width, "num_layers": LAYERS, "num_heads": HEADS}
    patches = {"intermediate_size": 2 * width, "image_size": 16, "patch_size": 4}
    feed = {"ffn_dim": 2 * width, "vocab_size": WORDS, "word_embed_proj_dim": width}
    bloom = {"hidden_size": width, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": WORDS}
    return {
        "Llama": ("Llama", shared),
        "Mistral": ("Mistral", shared),
        "Qwen2": ("Qwen2", shared),
        "Qwen3": ("Qwen3", {**shared, "head_dim": width // HEADS}),
        "Gemma 2": ("Gemma2", {**shared, "head_dim": width // HEADS}),
        "GPT-NeoX": ("GPTNeoX", words),
        "GPT-J": ("GPTJ", {**old, "rotary_dim": width // HEADS // 2}),
        "Bloom": ("Bloom", bloom),
        "T5": ("T5", {**fed, "d_kv": width // HEADS, "vocab_size": WORDS}),
        "GPT-2": ("GPT2", old),
        "BERT": ("Bert", words),
        "ViT": ("ViT", {**sizes, **patches}),
        "OPT": ("OPT", {**sizes, **feed}),
    }


def build_model(make: str, options: dict[str, Any], seed: int) -> Any:
    """A model in float64 with weights and biases that matter."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # Configurations warn of words beyond so small a vocabulary.
        warnings.simplefilter("ignore")
        config = getattr(transformers, f"{make}Config")(**options)
        model = getattr(transformers, f"{make}Model")(config)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=weights.shape[-1] ** -0.5)
    return model.double().eval()


def describe_wiring(part: AttentionPart) -> str:
    """What inspection reads of a layer, in a few words."""
    shared = "" if part.groups == part.heads else f", {part.groups} groups"
    told = [part.positions]
    told += [f"{part.rotary_share:g} of a head"] if part.rotary_share not in (None, 1.0) else []
    told += ["normed queries and keys"] if part.qk_norm else []
    told += [f"cap {part.softcap:g}"] if part.softcap else []
    told += [f"window {part.window}"] if part.window else []
    return f"{', '.join(told)}{shared}"


def measure_error(oracle: Any, model: Any, rng: np.random.Generator) -> float:
    """The largest relative error over lengths 1 to 32 of fresh tokens."""
    errors: list[float] = []
    for length in (1, 2, 8, 32):
        X = rng.normal(size=(20, length, oracle.width))
        truth = oracle.ask(X)
        errors.append(float(np.linalg.norm(truth - model(X)) / np.linalg.norm(truth)))
    return max(errors)


def run_row(name: str, make: str, options: dict[str, Any], seed: int) -> str:
    """One architecture: its first layer as inspection advises to recover it."""
    model = build_model(make, options, seed)
    inside = keyhole.inspect(model)
    part = next(part for part in inside.attention if not part.cross)
    advice = advise(part, "model", inside)
    start = f"| {name} | {describe_wiring(part)} |"
    if not advice.recoverable:
        return f"{start} refused: {advice.reason} | 0 | | |"
    told = list_wiring(part)
    wiring = keyhole.Wiring(**told) if told else None
    began = time.process_time()
    oracle = keyhole.open_layer(model, part.name)
    found = keyhole.learn(oracle, wiring=wiring, rng=seed)
    seconds = time.process_time() - began
    asked = found.ledger.total(without="verify").sequences
    if found.model is None:
        return f"{start} {found.verdict.name}: {found.status.value} | {asked} | | {seconds:.0f} |"
    error = measure_error(oracle, found.model, np.random.default_rng(seed))
    narrow = f" ({part.arithmetic})" if part.arithmetic else ""
    return f"{start} {found.verdict.name}{narrow} | {asked} | {error:.0e} | {seconds:.0f} |"


def main() -> None:
    """Print one row per architecture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=700)
    given = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    print("| architecture | positions | verdict | queries | error | CPU s |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (make, options) in list_configs(given.width).items():
        if given.only.lower() in name.lower():
            print(run_row(name, make, options, given.seed), flush=True)


if __name__ == "__main__":
    main()
