"""Pure maps on arrays: frozen, batched, numpy only."""

from keyhole.models.attention import Factored, Head, Model, MultiHead, SelfAttention
from keyhole.models.files import load, save

__all__ = ["Factored", "Head", "Model", "MultiHead", "SelfAttention", "load", "save"]
