"""Every construction that follows pointers."""

from __future__ import annotations

from keyhole.constructions.pointers.composing import LookUp, TwoLookUps
from keyhole.constructions.pointers.gathering import GatherWhole
from keyhole.constructions.pointers.hopping import Doubling
from keyhole.constructions.shared.certifying import Recipe

LOOK_UPS: tuple[Recipe, ...] = (LookUp(),)
COMPOSITIONS: tuple[Recipe, ...] = (TwoLookUps(), GatherWhole())
HOPS: tuple[Recipe, ...] = (Doubling(), GatherWhole())
