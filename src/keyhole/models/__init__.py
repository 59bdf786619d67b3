"""Pure maps on arrays: frozen, batched, numpy only."""

from keyhole.models.attention import Factored, Head, Model, MultiHead, SelfAttention
from keyhole.models.files import load, save
from keyhole.models.numbers import FixedPoint, FloatingPoint, NumberFormat, Unrounded, evaluate, number_format
from keyhole.models.relu import AbsAffine, ReluNet
from keyhole.models.tensor import TensorAttention
from keyhole.models.transformer import OneLayer

__all__ = [
    "AbsAffine",
    "Factored",
    "FixedPoint",
    "FloatingPoint",
    "Head",
    "Model",
    "MultiHead",
    "NumberFormat",
    "OneLayer",
    "ReluNet",
    "SelfAttention",
    "TensorAttention",
    "Unrounded",
    "evaluate",
    "load",
    "number_format",
    "save",
]
