"""What answers determine: degrees of freedom, symmetries, distance modulo symmetry.

Enters: models. Leaves: numbers, canonical forms, and twins that no question tells apart.
Only tests and the lab hold a truth to compare with.
"""

from keyhole.identify.comparing import canonical, compare, twins
from keyhole.identify.heads import (
    Distance,
    assign_heads,
    canonical_heads,
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
from keyhole.identify.twins import Symmetry, Twin

__all__ = [
    "Distance",
    "NetworkDistance",
    "OneLayerDistance",
    "Symmetry",
    "Twin",
    "assign_heads",
    "canonical",
    "canonical_heads",
    "compare",
    "distance",
    "freedom",
    "head_freedom",
    "matrix_rank",
    "network_distance",
    "one_layer_distance",
    "one_layer_freedom",
    "twins",
]
