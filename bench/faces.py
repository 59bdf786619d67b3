"""How many keys of p-bit entries have every q of them on a face, by exhaustive search;
docs/lower-bounds.md quotes it.

Prints, for entries of so many bits (1: signs), the most keys found in m0 dimensions, whether the
search was complete, and how many sets it looked at; then the least m0 for N keys beside the lower
bounds min(2q, N - 1) and log2 N over the bits, and the upper bound N - 1 of a simplex.
"""

import time
from math import ceil, log2

from keyhole.bounds.faces import find_most_keys, is_neighbourly

CASES = [
    (1, 1, (1, 2, 3, 4)),
    (1, 2, (2, 3, 4, 5)),
    (1, 3, (4, 5, 6)),
    (2, 1, (1, 2)),
    (2, 2, (2, 3, 4)),
]
LIMITS = {(1, 2, 5): 200_000, (1, 3, 6): 8_000, (2, 2, 4): 4_000}


def main():
    """Print both tables."""
    most = {}
    print("bits  q  m0  most keys  complete  sets looked at  seconds")
    for bits, q, dimensions in CASES:
        for m0 in dimensions:
            start = time.perf_counter()
            found = find_most_keys(m0, q, bits=bits, limit=LIMITS.get((bits, q, m0), 20_000))
            assert is_neighbourly(found.keys, q), "a linear programme disagrees with the search"
            # only simplices below 2q
            complete = found.proven or (m0 < 2 * q and len(found.keys) == m0 + 1)
            most[bits, q, m0] = len(found.keys), complete
            spent = time.perf_counter() - start
            print(
                f"{bits:4} {q:2} {m0:3} {len(found.keys):10}  {complete!s:8} {found.looked:15,}"
                f" {spent:8.1f}",
                flush=True,
            )
    print("\nbits  q   N  least m0  lower  upper")
    for bits, q, dimensions in CASES:
        for length in range(q + 2, most[bits, q, dimensions[-1]][0] + 1):
            least = next(m0 for m0 in dimensions if most[bits, q, m0][0] >= length)
            exact = all(most[bits, q, m0][1] for m0 in dimensions if m0 < least)
            lower = max(min(2 * q, length - 1), ceil(log2(length) / bits))
            print(
                f"{bits:4} {q:2} {length:3}  {'' if exact else '<= '}{least:<8}  {lower:5} "
                f" {length - 1:5}"
            )


if __name__ == "__main__":
    main()
