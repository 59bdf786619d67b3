"""What answers determine: degrees of freedom, symmetries, distance modulo symmetry."""

from keyhole.identify.heads import (
    Distance,
    assign_heads,
    canonical,
    distance,
    freedom,
    head_freedom,
    matrix_rank,
)
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
    "assign_heads",
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
