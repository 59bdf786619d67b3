"""Trains a small GPT-2 on a toy text, the commonest words of docs/, in a minute or so.

    python experiments/toy_language_model.py
    keyhole audit --tokens-in experiments.toy_language_model:model --vocabulary 300

The weights go to runs/toy-language-model.safetensors; `model` is what was trained last.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "runs" / "toy-language-model.safetensors"
VOCABULARY, SIZE, LENGTH = 300, 32, 16
STEPS, BATCH, RATE = 300, 32, 3e-3


def read_text() -> np.ndarray:
    """The words of all pages as ids, the commonest first; id 0 stands for all the others."""
    pages = sorted((ROOT / "docs").glob("**/*.md"))
    words = re.findall(r"[a-z]+|[.,:;]", " ".join(p.read_text() for p in pages).lower())
    common = [word for word, _ in Counter(words).most_common(VOCABULARY - 1)]
    places = {word: place for place, word in enumerate(common, start=1)}
    return np.array([places.get(word, 0) for word in words])


def make_model(seed: int = 0) -> Any:
    """A GPT-2 with random weights."""
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 2 * LENGTH, "n_embd": SIZE}
    config = transformers.GPT2Config(
        **sizes, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


def train_model(steps: int = STEPS, seed: int = 0) -> tuple[Any, list[float]]:
    """The model after so many steps, and its loss at each."""
    import torch

    text, rng = torch.as_tensor(read_text()), np.random.default_rng(seed)
    model = make_model(seed).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    losses: list[float] = []
    for _ in range(steps):
        starts = rng.integers(len(text) - LENGTH, size=BATCH)
        ids = torch.stack([text[start : start + LENGTH] for start in starts.tolist()])
        loss = model(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return model.eval(), losses


def load_model() -> Any:
    """What was trained last."""
    from safetensors.torch import load_file

    model = make_model()
    # The output projection is that of the embeddings, and is not written twice.
    model.load_state_dict(load_file(PLACE), strict=False)
    model.tie_weights()
    return model.eval()


def __getattr__(name: str) -> Any:
    """`model`, read when it is asked for."""
    if name != "model":
        raise AttributeError(name)
    return load_model()


def main() -> None:
    """Train and write."""
    from safetensors.torch import save_file

    model, losses = train_model()
    PLACE.parent.mkdir(exist_ok=True)
    kept = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    save_file(kept, PLACE)
    print(f"loss {losses[0]:.2f} to {np.mean(losses[-20:]):.2f} in {STEPS} steps; {PLACE}")  # noqa: T201


if __name__ == "__main__":
    main()
