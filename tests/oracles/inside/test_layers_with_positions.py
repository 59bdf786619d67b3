"""Layers of transformers that tell positions, recovered by the call that `keyhole inspect` prints,
and what of their arithmetic is narrower than their weights.
"""

import numpy as np
import pytest

import keyhole
from keyhole import Verdict
from keyhole.lab.targets.advising import advise
from keyhole.oracles.base import read_imperfection
from support.seeds import few
from support.transformer_models import HEADS, WIDTH, build_model, torch

LAYERS = {
    "t5": "encoder.block.1.layer.0.SelfAttention",
    "bloom": "h.1.self_attention",
    "neox": "layers.1.attention",
    "llama": "layers.1.self_attn",
    "opt": "decoder.layers.1.self_attn",
}
# Half of a head is rotated, in pairs; every head has keys and values of its own.
OPTIONS = {"neox": {"rotary_pct": 0.5}, "llama": {"num_key_value_heads": HEADS}}
NARROW = {"t5": "", "bloom": "its softmax", "neox": "its rotary tables"}
NARROW |= {"llama": "its rotary tables"}
F32 = 2.0**-24


def run_in_model(model, name, X):
    """The module's answers to X at the last token, inside a run of the whole model."""
    caught = []

    def put(module, args, kwargs):
        tokens = torch.from_numpy(X)
        # Bloom adds its residual inside the layer.
        if name == "bloom":
            return (tokens, torch.zeros_like(tokens), *args[2:]), kwargs
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": tokens}
        return (tokens, *args[1:]), kwargs

    part = model.get_submodule(LAYERS[name])
    handles = [
        part.register_forward_pre_hook(put, with_kwargs=True),
        part.register_forward_hook(lambda module, args, answer: caught.append(answer[0])),
    ]
    ids = torch.ones(X.shape[:2], dtype=torch.long)
    with torch.no_grad():
        model.encoder(input_ids=ids) if name == "t5" else model(input_ids=ids)
    for handle in handles:
        handle.remove()
    return caught[0][:, -1].numpy()


def recover_as_advised(model, name):
    inside = keyhole.inspect(model)
    part = next(part for part in inside.attention if part.name == LAYERS[name])
    call = advise(part, "my_model:model", inside).call
    return eval(call, {"keyhole": keyhole, "model": model})  # noqa: S307


@pytest.mark.parametrize("name", NARROW)
def test_the_call_that_is_printed_recovers_the_layer(name, rng):
    for seed in few(3):
        model = build_model(name, seed, **OPTIONS.get(name, {}))
        recovery = recover_as_advised(model, name)
        exact = not NARROW[name]
        assert recovery.verdict is (Verdict.EXACT if exact else Verdict.WITHIN_TOLERANCE)
        for length in (1, 2, 8, 32):
            X = rng.normal(size=(4, length, WIDTH))
            truth = run_in_model(model, name, X)
            gap = np.abs(recovery.model(X) - truth).max()
            assert gap <= (1e-9 if exact else 1e3 * F32) * np.abs(truth).max()


@pytest.mark.parametrize("name", NARROW)
def test_arithmetic_that_is_narrower_than_the_weights_is_seen_and_said(name):
    oracle = keyhole.open_layer(build_model(name, **OPTIONS.get(name, {})), LAYERS[name])
    stated = read_imperfection(oracle)
    assert stated.perfect == (not NARROW[name])
    assert NARROW[name] in stated.cause
    assert stated.roundoff == (F32 if NARROW[name] else read_imperfection(None).roundoff)


def test_no_layer_is_called_exact_whose_softmax_is_rounded():
    """The same layer of OPT, asked by a fused attention in float64 and by one in float32."""
    model = build_model("opt", attn_implementation="eager")
    part = keyhole.inspect(model).attention[1]
    assert part.arithmetic == "its softmax in f32"
    recovery = keyhole.learn(keyhole.open_layer(model, LAYERS["opt"]), rng=0)
    assert recovery.verdict is Verdict.WITHIN_TOLERANCE
    assert "The module computes its softmax in f32" in recovery.sentence
    assert keyhole.inspect(build_model("opt")).attention[1].arithmetic == ""


class Bucketed(torch.nn.Module):
    """Looks scores up by logarithms of distances, which are float32 and end in whole numbers."""

    def __init__(self, rounded):
        super().__init__()
        self.num_heads, self.rounded = 2, rounded
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, torch.nn.Linear(8, 8, dtype=torch.float64))
        self.table = torch.nn.Parameter(torch.randn(64, dtype=torch.float64))

    def forward(self, hidden_states):
        q, k, v = (part(hidden_states) for part in (self.q_proj, self.k_proj, self.v_proj))
        back = torch.arange(hidden_states.shape[1]).flip(0)
        far = torch.log1p(back.float())
        added = far if self.rounded else self.table[far.long()]
        scores = q @ k.transpose(1, 2) + added
        return self.o_proj(torch.softmax(scores, -1) @ v)


@pytest.mark.parametrize("rounded", [False, True])
def test_narrow_numbers_that_end_in_whole_ones_leave_nothing_in_answers(rounded):
    model = torch.nn.Sequential(Bucketed(rounded))
    part = keyhole.inspect(model).attention[0]
    assert part.arithmetic == ("a part of its arithmetic in f32" if rounded else "")
