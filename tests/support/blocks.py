"""Blocks of transformers' own GPT-2, BERT and Llama in float64, and the same weights as ours."""

import numpy as np
import torch
from transformers import BertConfig, GPT2Config, LlamaConfig
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from keyhole import AttentionLayer, Gated, Norm, ReluNet, TransformerBlock, Wiring

WIDTH, HEADS, GROUPS, HIDDEN = 8, 4, 2, 12


def scatter(module, rng):
    """Weights of ordinary size everywhere, also where torch begins with 0 and 1."""
    with torch.no_grad():
        for name, weight in module.named_parameters():
            gain = 1.0 if "norm" in name.lower() or "ln_" in name else 0.0
            drawn = 0.3 * rng.normal(size=weight.shape) + (gain if name.endswith("weight") else 0.0)
            weight.copy_(torch.tensor(drawn))
    return module.double().eval()


def read(weight):
    return weight.detach().numpy().copy()


def heads_of(W, count):
    """Rows of a projection, one group of rows per head."""
    return W.reshape(count, len(W) // count, *W.shape[1:])


def outputs_of(W, count):
    """Columns of an output projection per head: heads x outputs x rank."""
    return W.reshape(len(W), count, -1).transpose(1, 0, 2)


def causal(length):
    mask = torch.full((length, length), torch.finfo(torch.float64).min, dtype=torch.float64)
    return torch.triu(mask, 1)[None, None]


def make_gpt2(rng, activation="gelu", heads=HEADS, hidden=HIDDEN):
    config = GPT2Config(n_embd=WIDTH, n_head=heads, n_inner=hidden, activation_function=activation)
    config._attn_implementation = "eager"
    module = scatter(GPT2Block(config, layer_idx=0), rng)

    def ask(X):
        with torch.no_grad():
            out = module(torch.tensor(X), attention_mask=causal(X.shape[1]))
        return (out[0] if isinstance(out, tuple) else out)[:, -1].numpy()

    W, b = read(module.attn.c_attn.weight).T, read(module.attn.c_attn.bias)
    (Wq, Wk, Wv), (bq, bk, bv) = np.split(W, 3), np.split(b, 3)
    attention = AttentionLayer(
        *(heads_of(part, heads) for part in (Wq, Wk, Wv)),
        outputs_of(read(module.attn.c_proj.weight).T, heads),
        bq=heads_of(bq, heads),
        bk=heads_of(bk, heads),
        bv=heads_of(bv, heads),
        bo=read(module.attn.c_proj.bias),
    )
    network = ReluNet(
        read(module.mlp.c_fc.weight).T,
        read(module.mlp.c_fc.bias),
        read(module.mlp.c_proj.weight).T,
        read(module.mlp.c_proj.bias),
        "gelu" if activation == "gelu" else "gelu_tanh",
    )
    norms = [
        Norm("layer", 1e-5, read(ln.weight), read(ln.bias)) for ln in (module.ln_1, module.ln_2)
    ]
    return TransformerBlock(attention, network, *norms), ask


def make_bert(rng, heads=HEADS, hidden=HIDDEN):
    config = BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=heads,
        intermediate_size=hidden,
        hidden_act="gelu",
        layer_norm_eps=1e-12,
    )
    config._attn_implementation = "eager"
    module = scatter(BertLayer(config), rng)

    def ask(X):
        with torch.no_grad():
            out = module(torch.tensor(X))
        return (out[0] if isinstance(out, tuple) else out)[:, -1].numpy()

    own, out = module.attention.self, module.attention.output
    attention = AttentionLayer(
        *(heads_of(read(part.weight), heads) for part in (own.query, own.key, own.value)),
        outputs_of(read(out.dense.weight), heads),
        bq=heads_of(read(own.query.bias), heads),
        bk=heads_of(read(own.key.bias), heads),
        bv=heads_of(read(own.value.bias), heads),
        bo=read(out.dense.bias),
    )
    inner, outer = module.intermediate.dense, module.output.dense
    network = ReluNet(
        read(inner.weight), read(inner.bias), read(outer.weight), read(outer.bias), "gelu"
    )
    norms = [
        Norm("layer", 1e-12, read(ln.weight), read(ln.bias))
        for ln in (out.LayerNorm, module.output.LayerNorm)
    ]
    return TransformerBlock(attention, network, *norms, style="post"), ask


def make_llama(rng):
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        intermediate_size=HIDDEN,
        rms_norm_eps=1e-5,
    )
    config._attn_implementation = "sdpa"
    module = LlamaDecoderLayer(config, layer_idx=0)
    # The module's own norms, softmax and rotary tables compute in float32 whatever they are given.
    module.input_layernorm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
    module.post_attention_layernorm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
    module = scatter(module, rng)
    theta = 10_000.0 ** (-torch.arange(0, WIDTH // HEADS, 2).double() / (WIDTH // HEADS))

    def ask(X):
        angles = torch.outer(torch.arange(X.shape[1]).double(), theta).repeat(1, 2)[None]
        turns = angles.cos(), angles.sin()
        with torch.no_grad():
            out = module(
                torch.tensor(X), attention_mask=causal(X.shape[1]), position_embeddings=turns
            )
        return (out[0] if isinstance(out, tuple) else out)[:, -1].numpy()

    own = module.self_attn
    attention = AttentionLayer(
        heads_of(read(own.q_proj.weight), HEADS),
        heads_of(read(own.k_proj.weight), GROUPS),
        heads_of(read(own.v_proj.weight), GROUPS),
        outputs_of(read(own.o_proj.weight), HEADS),
        Wiring(positions="rope"),
    )
    mlp = module.mlp
    none = np.zeros(HIDDEN)
    network = Gated(
        read(mlp.gate_proj.weight),
        none,
        read(mlp.up_proj.weight),
        none,
        read(mlp.down_proj.weight),
        np.zeros(WIDTH),
    )
    norms = [
        Norm("rms", 1e-5, read(norm.weight))
        for norm in (module.input_layernorm, module.post_attention_layernorm)
    ]
    return TransformerBlock(attention, network, *norms), ask


MAKERS = {
    "gpt2": make_gpt2,
    "gpt2 tanh": lambda rng: make_gpt2(rng, "gelu_new"),
    "bert": make_bert,
    "llama": make_llama,
}


def stack_blocks(blocks, *, causal):
    """Blocks in a row, the last position answered."""

    def read_all(block, X):
        if causal:
            return np.stack([block(X[:, : i + 1]) for i in range(X.shape[1])], axis=1)
        # Without positions the order of the others does not matter: each is put last in turn.
        return np.stack([block(np.roll(X, -1 - i, axis=1)) for i in range(X.shape[1])], axis=1)

    def ask(X):
        for block in blocks[:-1]:
            X = read_all(block, X)
        return blocks[-1](X)

    return ask
