"""Torch models of several makes, small enough to be asked in full."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

nn = torch.nn


WIDTH = 8


class Bert(nn.Module):
    """Attention under the names of BERT: the output projection stands beside the heads, a residual
    behind it.
    """

    def __init__(self, heads=2):
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            setattr(self.attention.self, name, nn.Linear(WIDTH, WIDTH))
        self.attention.self.num_attention_heads = heads
        self.attention.self.forward = self.mix
        self.attention.output = nn.Module()
        self.attention.output.dense = nn.Linear(WIDTH, WIDTH)
        self.attention.output.LayerNorm = nn.LayerNorm(WIDTH)

    def mix(self, hidden_states, mask):
        part = self.attention.self
        q, k, v = (
            f(hidden_states).unflatten(-1, (2, -1)).transpose(1, 2)
            for f in (part.query, part.key, part.value)
        )
        return (
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            .transpose(1, 2)
            .flatten(2)
        )

    def forward(self, tokens):
        mask = torch.ones(1, 1, tokens.shape[1], tokens.shape[1], dtype=torch.bool)
        mixed = self.attention.self(hidden_states=tokens, mask=mask)
        return self.attention.output.LayerNorm(tokens + self.attention.output.dense(mixed))


class Llama(nn.Module):
    """Attention under the names of Llama: keys and values are shared, four heads look through two
    of them.
    """

    def __init__(self):
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, 8, bias=False), nn.Linear(8, WIDTH, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, 4, bias=False)
        self.num_heads = 4

    def forward(self, tokens):
        q, k, v = (
            p(tokens).unflatten(-1, (-1, 2)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Model(nn.Module):
    """A bigger model: word embeddings, then layers."""

    def __init__(self, layers):
        super().__init__()
        self.words, self.layers = nn.Embedding(10, WIDTH), nn.ModuleList(layers)

    def forward(self, words):
        tokens = self.words(words)
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens


def multihead(**options):
    """torch's own layer, its biases not zero."""
    made = nn.MultiheadAttention(
        WIDTH, 2, **{"dtype": torch.float64, "batch_first": True, **options}
    )
    if made.in_proj_bias is not None:
        nn.init.normal_(made.in_proj_bias)
    return made


def asked(module, X):
    with torch.no_grad():
        return module(torch.from_numpy(X))


def running(model):
    return lambda batch, length: model(torch.zeros(batch, length, dtype=torch.long))
