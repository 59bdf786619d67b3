"""Limits of attention beyond the two papers the project began with: look-ups, composition, hops."""

from __future__ import annotations

from keyhole.theorems.base import AtHand, cite_paper, claim_ours

_TELLING = "keyhole.bounds.telling"
_TELLING_TEST = "tests/bounds/test_telling.py"
_POINTERS_TEST = "tests/constructions/pointers/test_pointers.py"

RELATED = (
    cite_paper(
        "PNP24/composition",
        "No single attention layer composes functions on n elements unless its heads, width and"
        " bits reach n log n: in fixed point H (v p + b_L) >= n log2 n, as in SHT23/7.",
        "Peng, Narayanan, Papadimitriou, On Limitations of the Transformer Architecture, 2024; the"
        " constant is derived",
        module=_TELLING,
        test=_TELLING_TEST,
        at_hand=AtHand.NOTED,
        paper_states=(
            "A layer of H heads of width d with p bits composes functions on n elements only with"
            " some chance of error where H (d + 1) p < n log n."
        ),
        our_constant=(
            "H (v p + b_L) >= n log2 n for answers that are always right and survive the rounding."
        ),
    ),
    cite_paper(
        "SHT24/induction-heads",
        "No single attention layer is an induction head, or makes k hops, unless its heads, width"
        " and bits reach N: with s payload symbols H (v p + b_L) >= floor((N - 2k + 1)/2) log2 s,"
        " as in SHT23/7.",
        "Sanford, Hsu, Telgarsky, One-layer transformers fail to solve the induction heads task,"
        " 2024; the constant, and k above 1, are derived",
        module=_TELLING,
        test=_TELLING_TEST,
        at_hand=AtHand.NOTED,
        paper_states="A layer that is an induction head has h m p >= c N for some constant c > 0.",
        our_constant="The inequality with its constant, for any k and any number of symbols.",
    ),
    cite_paper(
        "BHBK24/index-lookup",
        "One layer of one head of key width 2 looks symbols up by index, where a recurrent network"
        " needs (N - 1) log2 s bits of state; attention needs H (2m + v) p >= log2(N - 1) without"
        " residuals.",
        "Bhattamishra, Hahn, Blunsom, Kanade, Separations in the Representational Capabilities of"
        " Transformers and Recurrent Architectures, 2024; weights and constants are derived",
        module="keyhole.constructions.pointers.composing",
        test=_POINTERS_TEST,
        at_hand=AtHand.NOTED,
        paper_states=(
            "Index look-up takes one layer of size logarithmic in N, and a recurrent network of"
            " size linear in N."
        ),
        our_constant="The weights, and both counts of bits.",
    ),
    cite_paper(
        "CPW24/composition",
        "A decoder of L layers does not compose L functions in sequence over n tokens while H d p"
        " is at most n^(2^(-4L)).",
        "Chen, Peng, Wu, Theoretical limitations of multi-layer Transformer, 2024",
        module="keyhole.bounds.known_bounds",
        test="tests/bounds/test_layers_conjecture.py",
        at_hand=AtHand.NOTED,
    ),
    claim_ours(
        "keyhole/two-look-ups",
        "Two layers of one head of key width 2 compose functions on n elements, in float64 and"
        " wherever a position of 2n + 2 is told apart.",
        "docs/building-look-ups.md",
        module="keyhole.constructions.pointers.composing",
        test=_POINTERS_TEST,
    ),
    cite_paper(
        "SHT24/k-hop",
        "Layers of one head of key width 3, the second behind a causal mask, make k hops at depth"
        " 2 + ceil(log2 k), with scores of size O(N^2 log N).",
        "Sanford, Hsu, Telgarsky, Transformers, Parallel Computation, and Logarithmic Depth, 2024;"
        " the weights are derived",
        module="keyhole.constructions.pointers.hopping",
        test=_POINTERS_TEST,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "Transformers with a causal mask, one head and constant width make k hops at depth 2 +"
            " floor(log2 k)."
        ),
        our_constant=(
            "The weights; depth 2 + ceil(log2 k), which is one more unless k is a power of two."
        ),
    ),
    claim_ours(
        "keyhole/split-heads",
        "H heads of key width 2q/H average any q of N tokens, where H divides q: head h averages"
        " every H-th member, and the least gap of scores over all sets is one product over"
        " positions H apart.",
        "docs/building-weights.md",
        module="keyhole.constructions.split_sets.split_heads",
        test="tests/constructions/split_sets/test_split_heads.py",
    ),
)
