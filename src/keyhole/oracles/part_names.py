"""Names that transformers, fairseq, diffusers and others give the projections of a layer."""

from __future__ import annotations

# Queries, keys and values.
TRIPLES = (
    ("query", "key", "value"),
    ("q_proj", "k_proj", "v_proj"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("q", "k", "v"),
)
# The three in one, and whether its rows go head by head.
FUSED = {
    "c_attn": False,
    "qkv_proj": False,
    "qkv": False,
    "Wqkv": False,
    "in_proj": False,
    "query_key_value": True,
}
# The projection behind the heads: in the layer, or beside it.
BEHIND = ("o_proj", "out_proj", "out_lin", "to_out.0", "to_out", "wo", "o", "dense", "c_proj")
BEHIND += ("proj",)
NEXT_TO = ("output.dense", "output")
# Numbers of heads, and of sets of keys and values.
HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead")
GROUPS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
# Up and down of a feed-forward network.
PAIRS = (
    ("fc1", "fc2"),
    ("c_fc", "c_proj"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("wi", "wo"),
    ("linear1", "linear2"),
    ("lin1", "lin2"),
    ("fc_in", "fc_out"),
    ("up_proj", "down_proj"),
    ("w_in", "w_out"),
    ("intermediate.dense", "output.dense"),
)
# The gate, which has the activation, then up and down.
GATED = (
    ("gate_proj", "up_proj", "down_proj"),
    ("wi_0", "wi_1", "wo"),
    ("w1", "w3", "w2"),
)
# Words in the way to a layer whose keys are those of other tokens.
CROSS = ("cross", "encdec", "encoder_attn")
# Where configurations keep what positions and norms are.
ROPE_BASES = ("rope_theta", "rotary_emb_base", "rope_base")
ROPE_SHARES = ("partial_rotary_factor", "rotary_pct")
SOFTCAPS = ("attn_logit_softcapping", "softcap", "logit_softcapping")
