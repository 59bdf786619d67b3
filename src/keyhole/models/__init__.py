"""Pure maps on arrays: frozen, batched, numpy only.

Enters: weights. Leaves: callables on batches of sequences, and their files.
No model knows of oracles, tasks or learners.
"""

from keyhole.models.attention import Factored, Head, Model, MultiHead, SelfAttention
from keyhole.models.blocks.norm import Norm
from keyhole.models.blocks.transformer_block import TransformerBlock, read_longest
from keyhole.models.files import load, save
from keyhole.models.last_token.gated import Gated
from keyhole.models.layers.attention_layer import AttentionLayer
from keyhole.models.layers.wiring import Wiring
from keyhole.models.numbers import (
    FixedPoint,
    FloatingPoint,
    NumberFormat,
    Unrounded,
    evaluate,
    number_format,
)
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.tensor import TensorAttention, TensorHeads
from keyhole.models.tensor_fast import (
    Blank,
    build_circle_features,
    in_pairs,
    on_circle,
    pairwise_sum,
    shift_invariant,
)
from keyhole.models.torch_layout import TorchLayout, torch_multihead
from keyhole.models.transformer import OneLayer

__all__ = [
    "AbsAffine",
    "AttentionLayer",
    "Blank",
    "Factored",
    "FixedPoint",
    "FloatingPoint",
    "Gated",
    "Head",
    "Model",
    "MultiHead",
    "Norm",
    "NumberFormat",
    "OneLayer",
    "ReluNet",
    "SelfAttention",
    "TensorAttention",
    "TensorHeads",
    "TorchLayout",
    "TransformerBlock",
    "Unrounded",
    "Wiring",
    "build_circle_features",
    "evaluate",
    "in_pairs",
    "load",
    "number_format",
    "on_circle",
    "pairwise_sum",
    "read_longest",
    "save",
    "shift_invariant",
    "torch_multihead",
]
