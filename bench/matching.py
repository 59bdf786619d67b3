"""The largest modulus without an error on adversarial inputs, per number format, for Match2 units
of key width 3.
"""

import numpy as np

from keyhole.constructions.matching.recipes import MATCHING
from keyhole.errors import DoesNotFit
from keyhole.tasks import Match2

LENGTH = 20


def fits(modulus, form):
    """What the certificate says, nothing where the build is refused."""
    rng = np.random.default_rng(modulus)
    try:
        built = MATCHING[0].build(
            Match2(LENGTH, modulus), accuracy=0.0, number_format=form, embed=None, rng=rng
        )
    except DoesNotFit:
        return ""
    return built.certificate.outcome.name


for form, first in (("bf16", 8), ("f16", 16), ("f32", 1000), ("f64", 2 * 10**7)):
    modulus, proven = first, 0
    while outcome := fits(modulus, form):
        proven = modulus if outcome == "HOLDS" else proven
        modulus = modulus * 5 // 4
    print(
        f"{form}: proven at {proven:.3g}, seen to hold up to {modulus * 4 // 5:.3g}, wrong at"
        f" {modulus:.3g}"
    )
