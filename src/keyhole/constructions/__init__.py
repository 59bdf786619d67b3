"""Explicit attention weights that solve tasks, each with a certificate."""

from keyhole.constructions.base import Built, Checked, Construction, Size, check

__all__ = ["Built", "Checked", "Construction", "Size", "check"]
