"""Pure maps on arrays: frozen, batched, numpy only."""

from keyhole.models.attention import Factored, Head, Model, MultiHead, SelfAttention
from keyhole.models.files import load, save
from keyhole.models.relu import AbsAffine, ReluNet

__all__ = ["AbsAffine", "Factored", "Head", "Model", "MultiHead", "ReluNet", "SelfAttention", "load", "save"]
