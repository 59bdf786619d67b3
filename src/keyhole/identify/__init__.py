"""What answers determine: degrees of freedom, symmetries, distance modulo symmetry."""

from keyhole.identify.heads import Distance, assignment, canonical, distance, freedom, head_freedom, matrix_rank
from keyhole.identify.networks import (
    NetworkDistance,
    OneLayerDistance,
    network_distance,
    one_layer_distance,
    one_layer_freedom,
)
from keyhole.identify.twins import Symmetry, Twin, twins

__all__ = [
    "Distance",
    "NetworkDistance",
    "OneLayerDistance",
    "Symmetry",
    "Twin",
    "assignment",
    "canonical",
    "distance",
    "freedom",
    "head_freedom",
    "matrix_rank",
    "network_distance",
    "one_layer_distance",
    "one_layer_freedom",
    "twins",
]
