"""How a number of bits is split before and behind the point, and which margins it can do with."""

from __future__ import annotations

import math

from keyhole.constructions.sparse_averages.rounded_sets import bound_rounding_loss
from keyhole.constructions.sparse_averages.set_checks import AskedSets, count_integer_bits
from keyhole.constructions.sparse_averages.set_queries import SetQueries
from keyhole.errors import DoesNotFit
from keyhole.models.numbers import number_format as format_named
from keyhole.tasks import SparseAverage

# A format of so many bits, split before and behind the point as queries need it.
BITS = "bits:"
# Queries of floating formats are content with entries up to 2 to this.
FLOATING = 7


def check_answers_written(task: SparseAverage, accuracy: float, form: str) -> None:
    """Refuse a format in which the answers themselves cannot be written.

    Raises:
        DoesNotFit: rounding alone moves answers by more than the accuracy.
    """
    spacing = 2.0 ** (1 - int(form.removeprefix(BITS))) if form.startswith(BITS) else 0.0
    rounding = spacing / 2 if spacing else bound_rounding_loss(task, format_named(form))
    if rounding > accuracy:
        said = f"{form.removeprefix(BITS)} bits" if spacing else form
        raise DoesNotFit(
            f"rounding to {said} alone moves answers by {rounding:.1e}, more than {accuracy:g}."
        )


def choose_split(form: str, phi: SetQueries, asked: AskedSets) -> str:
    """A format by name; a mere number of bits splits so that the largest query is held.

    Raises:
        DoesNotFit: the bits do not even hold the integer part.
    """
    if not form.startswith(BITS):
        return form
    bits = int(form.removeprefix(BITS))
    integer = count_integer_bits(phi, asked)
    if bits <= integer:
        raise DoesNotFit(
            f"queries up to {2**integer:,} need more than {integer + 1} bits; {bits} were allowed."
        )
    return f"fixed:{integer}.{bits - 1 - integer}"


# m entries rounded to F bits move a score by about sqrt(m) 2^-F; a quarter of the accuracy is left
# to that, and the bits that remain hold the largest query.
def choose_enough(form: str, width: int, accuracy: float, wanted: float) -> tuple[float, bool]:
    """The margin with which queries of a format are content, and whether less is refused."""
    if form.startswith(BITS):
        fraction = math.ceil(math.log2(4.0 * math.sqrt(width) / accuracy))
        integer = max(1, int(form.removeprefix(BITS)) - 1 - fraction)
        return 1.001 * wanted / 2.0**integer, True
    split = format_named(form).fixed if form.startswith("fixed") else None
    if split is not None:
        return 1.001 * wanted / 2.0 ** max(split[0], 0), True
    return wanted / 2.0**FLOATING, False
