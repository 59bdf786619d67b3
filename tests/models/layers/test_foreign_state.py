"""Layers loaded into modules of torch and transformers, which then answer as the layers do."""

import numpy as np
import pytest

import keyhole
from keyhole.errors import InvalidInput
from keyhole.models import AttentionLayer, Wiring

export_state = keyhole.export_state
torch = pytest.importorskip("torch", reason="torch is not installed")
WIDTH, HEADS, RANK = 12, 3, 4


def layer(rng, wiring, *, groups=HEADS, biased=True, outputs=WIDTH):
    shapes = [(HEADS, RANK, WIDTH), (groups, RANK, WIDTH), (groups, RANK, WIDTH)]
    maps = [rng.normal(size=shape) / 2 for shape in shapes]
    out = rng.normal(size=(HEADS, outputs, RANK))
    biases = {"bq": (HEADS, RANK), "bk": (groups, RANK), "bv": (groups, RANK), "bo": (outputs,)}
    drawn = {name: rng.normal(size=size) for name, size in biases.items()} if biased else {}
    return AttentionLayer(*maps, out, wiring, **drawn)


def loaded(module, state):
    module = module.double().eval()
    module.load_state_dict({name: torch.as_tensor(np.array(W)) for name, W in state.items()})
    return module


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("biased", [True, False])
def test_multihead_attention_of_torch_answers_as_the_layer_does(rng, groups, biased):
    truth = layer(rng, Wiring(), groups=groups, biased=biased)
    plain = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    theirs = loaded(plain, export_state(truth, "multihead"))
    X = rng.normal(size=(5, 7, WIDTH))
    with torch.no_grad():
        rows = theirs(*[torch.as_tensor(X)] * 3, need_weights=False)[0]
    np.testing.assert_allclose(rows[:, -1].numpy(), truth(X), atol=1e-12)


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_of_gpt2_answers_as_the_layer_does(rng, groups, biased):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.gpt2 import modeling_gpt2

    truth = layer(rng, Wiring(), groups=groups, biased=biased)
    config = transformers.GPT2Config(n_embd=WIDTH, n_head=HEADS, attn_implementation="eager")
    theirs = loaded(modeling_gpt2.GPT2Attention(config, layer_idx=0), export_state(truth, "gpt2"))
    X = rng.normal(size=(5, 7, WIDTH))
    with torch.no_grad():
        rows = theirs(torch.as_tensor(X))[0]
    np.testing.assert_allclose(rows[:, -1].numpy(), truth(X), atol=1e-12)


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("biased", [True, False])
def test_attention_of_bert_answers_as_the_layer_does(rng, groups, biased):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.bert import modeling_bert

    truth = layer(rng, Wiring(), groups=groups, biased=biased)
    config = transformers.BertConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attn_implementation="eager"
    )
    theirs = modeling_bert.BertAttention(config).double().eval()
    state = {name: torch.tensor(W) for name, W in export_state(truth, "bert").items()}
    kept = theirs.load_state_dict(state, strict=False)
    assert kept.unexpected_keys == []
    assert set(kept.missing_keys) == {"output.LayerNorm.weight", "output.LayerNorm.bias"}
    X = torch.as_tensor(rng.normal(size=(5, 7, WIDTH)))
    with torch.no_grad():
        rows = theirs.output.dense(theirs.self(X)[0])
    np.testing.assert_allclose(rows[:, -1].numpy(), truth(X.numpy()), atol=1e-12)


@pytest.mark.parametrize("groups", [1, HEADS])
@pytest.mark.parametrize("biased", [True, False])
def test_llama_attention_answers_as_the_layer_does(rng, groups, biased):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers.models.llama import modeling_llama

    truth = layer(rng, Wiring(positions="rope", rope_base=500.0), groups=groups, biased=biased)
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=groups,
        head_dim=RANK,
        attention_bias=biased,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    config._attn_implementation = "eager"
    theirs = loaded(modeling_llama.LlamaAttention(config, 0), export_state(truth, "llama"))
    X = torch.as_tensor(rng.normal(size=(5, 7, WIDTH)))
    turned = modeling_llama.LlamaRotaryEmbedding(config)
    with torch.no_grad():
        angles = torch.arange(7)[None].double()[..., None] * turned.inv_freq.double()
        both = torch.cat([angles, angles], dim=-1)
        rows = theirs(X, position_embeddings=(both.cos(), both.sin()), attention_mask=None)[0]
    # Their frequencies are float32.
    np.testing.assert_allclose(rows[:, -1].numpy(), truth(X.numpy()), atol=1e-5)


@pytest.mark.parametrize(
    ("wiring", "module", "words"),
    [
        (Wiring(positions="rope"), "multihead", "positions rope"),
        (Wiring(), "llama", "positions none"),
        (Wiring(norm="rms"), "multihead", "norm rms"),
        (Wiring(residual=True), "multihead", "residual"),
        (Wiring(positions="rope", softcap=5.0), "llama", "softcap"),
        (Wiring(positions="rope", rotary_share=0.5), "llama", "rotary share"),
        (Wiring(), "gpt9", "one of multihead, gpt2, bert, llama"),
    ],
)
def test_what_a_module_has_no_place_for_is_named(rng, wiring, module, words):
    with pytest.raises(InvalidInput, match=words):
        export_state(layer(rng, wiring), module)


def test_sizes_that_do_not_fit_are_named(rng):
    with pytest.raises(InvalidInput, match="5 outputs"):
        export_state(layer(rng, Wiring(), outputs=5), "multihead")
