"""The registry: every theorem the code stands on, as data, with its module and its test.

Enters: nothing. Leaves: `THEOREMS`, each claim by its id, in the order of the documentation.
What a paper states, the constant that is ours and how far the paper was at hand are kept apart.
"""

from keyhole.theorems.base import AtHand, Theorem
from keyhole.theorems.computing_claims import BOUNDS, CONSTRUCTIONS
from keyhole.theorems.recovery_claims import RECOVERIES
from keyhole.theorems.related_claims import RELATED

__all__ = ["THEOREMS", "AtHand", "Theorem"]

_ALL = (*RECOVERIES, *BOUNDS, *CONSTRUCTIONS, *RELATED)
THEOREMS = {theorem.id: theorem for theorem in _ALL}
