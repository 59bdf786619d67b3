"""Every construction of labels, and certificates made again for other weights."""

from __future__ import annotations

import numpy as np

from keyhole.claims import Certificate
from keyhole.constructions.matching.adjacency import GatherRows
from keyhole.constructions.matching.closed_walks import WalkUnit
from keyhole.constructions.matching.one_window import OneWindow
from keyhole.constructions.matching.successors import Bigrams
from keyhole.constructions.matching.wave_units import Waves
from keyhole.constructions.matching.windows import GatherAll, Windows
from keyhole.constructions.shared.base import Built
from keyhole.constructions.shared.certifying import Recipe, certify_other_weights
from keyhole.models.stack import Transformer

PAIRS: tuple[Recipe, ...] = (Waves(2), Waves(2, several=True))
TRIPLES: tuple[Recipe, ...] = (Waves(3), Waves(3, several=True), GatherAll())
QUADRUPLES: tuple[Recipe, ...] = (Waves(4), Waves(4, several=True))
BIGRAMS: tuple[Recipe, ...] = (Bigrams(),)
WINDOWS: tuple[Recipe, ...] = (OneWindow(), Windows())
TRIANGLES: tuple[Recipe, ...] = (WalkUnit("triangle-walks"),)
WALKS: tuple[Recipe, ...] = (WalkUnit("closed-walks"),)
FOUR_CYCLES: tuple[Recipe, ...] = (GatherRows(),)
MATCHING = (*PAIRS, *TRIPLES, *QUADRUPLES, *BIGRAMS, *WINDOWS, *TRIANGLES, *WALKS, *FOUR_CYCLES)


def recertify_weights(built: Built, model: Transformer, *, rng: np.random.Generator) -> Certificate:
    """The certificate of a construction for other weights of the same shape.

    Assumptions and proven bounds are those of the construction; the conclusion is measured on the
    weights in question, so that weights which are not as good as proven are REFUTED.

    Args:
        built: what one of `MATCHING` gave.
        model: the weights in question.
        rng: draws inputs.

    Raises:
        InvalidInput: none of `MATCHING` built it.
    """
    return certify_other_weights(built, model, MATCHING, rng=rng)
