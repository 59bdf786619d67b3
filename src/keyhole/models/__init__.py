"""Pure maps on arrays: frozen, batched, numpy only."""

from keyhole.models.attention import Factored, Head, Model, MultiHead, SelfAttention
from keyhole.models.files import load, save
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.transformer import OneLayer

__all__ = [
    "AbsAffine",
    "Factored",
    "Head",
    "Model",
    "MultiHead",
    "OneLayer",
    "ReluNet",
    "SelfAttention",
    "load",
    "save",
]
