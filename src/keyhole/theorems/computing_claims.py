"""What attention cannot compute, and what explicit weights do compute."""

from __future__ import annotations

from keyhole.theorems.base import AtHand, Theorem, cite_paper, claim_ours

# The paper, the modules and the tests that several entries name, spelled once.
_SHT23 = "Sanford, Hsu, Telgarsky, Representational Strengths and Limitations of Transformers, 2023"
_FORMULAS = "keyhole.bounds.formulas"
_SPARSE_AVERAGE = "keyhole.constructions.sparse_averages.sparse_average"
_WAVES = "keyhole.constructions.matching.wave_units"
_DISJOINTNESS = "tests/bounds/test_disjointness_bounds.py"
_OTHER_NETWORKS = "tests/bounds/test_other_networks.py"
_AVERAGES_TEST = "tests/constructions/sparse_averages/test_sparse_average.py"
_MATCHING_TEST = "tests/constructions/matching/test_matching_units.py"

BOUNDS = (
    cite_paper(
        "SHT23/4",
        "No attention layer with m p <= c q computes q-sparse averages to 1/(2q) for N >= 2q + 1:"
        " by set disjointness, 2 D H (m + v) p >= q for D layers of H heads, residuals included.",
        f"{_SHT23}, Theorem 4; the constant is derived",
        module=_FORMULAS,
        test=_DISJOINTNESS,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "No attention layer with m p <= c q computes q-sparse averages to 1/(2q) for N >= 2q"
            " + 1."
        ),
        our_constant="2 D H (m + v) p >= q for D layers of H heads, residuals included.",
    ),
    cite_paper(
        "SHT23/7",
        "No single attention layer with m p H <= c N / log log N computes Match3 for M >= N + 1: in"
        " fixed point with I integer and F fraction bits, H (v p + b_L) >= floor((N - 1)/2) where"
        " b_L bits hold a log-partition, of scores within 2^I or, with p-bit queries and keys,"
        " within m 2^(2I); labels must survive errors of 2^-F in head outputs.",
        f"{_SHT23}, Theorem 7; the constant is derived",
        module=_FORMULAS,
        test=_DISJOINTNESS,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "No single attention layer with m p H <= c N / log log N computes Match3 for M >= N +"
            " 1."
        ),
        our_constant=(
            "H (v p + b_L) >= floor((N - 1)/2), in fixed point, for labels that survive its"
            " rounding."
        ),
    ),
    cite_paper(
        "SHT23/conjecture",
        "Conjectured: no Transformer of several layers computes Match3 unless its depth, heads,"
        " width or bits grow as a power of N.",
        f"{_SHT23}, the conjecture on Match3",
        module="keyhole.bounds.known_bounds",
        test="tests/bounds/test_layers_conjecture.py",
        at_hand=AtHand.NOTED,
        standing="conjecture",
    ),
    cite_paper(
        "SHT23/10",
        "A fully connected network that computes q-sparse averages to less than 1/q has N d'/2"
        " units in its first layer for q <= N/2, and (N - q + 1) d' for any q.",
        f"{_SHT23}, Theorem 10; the second count is derived",
        module=_FORMULAS,
        test=_OTHER_NETWORKS,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "A fully connected network that computes q-sparse averages to less than 1/q has N"
            " d'/2 units in its first layer for q <= N/2."
        ),
        our_constant="(N - q + 1) d' units for any q.",
    ),
    cite_paper(
        "SHT23/11",
        "A recurrent network that computes q-sparse averages to less than 1/q reading left to right"
        " has (N - 1)/2 bits of state, already for q = 1, and N - 1 for any q < N.",
        f"{_SHT23}, Theorem 11; the second count is derived",
        module=_FORMULAS,
        test=_OTHER_NETWORKS,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "A recurrent network that computes q-sparse averages to less than 1/q reading left to"
            " right has (N - 1)/2 bits of state, already for q = 1."
        ),
        our_constant="N - 1 bits for any q < N.",
    ),
    claim_ours(
        "keyhole/counting-sets",
        "Without residuals, attention of any depth that computes q-sparse averages to less than 1/q"
        " has H (2m + v) p >= log2 C(N - 1, q) in its first layer; with residuals, and behind any"
        " token map into d numbers, any model has d p >= log2 C(N - 1, q).",
        "docs/lower-bounds.md",
        module=_FORMULAS,
        test=_DISJOINTNESS,
    ),
    claim_ours(
        "keyhole/radon",
        "One head with keys from positions alone that computes q-sparse averages to less than"
        " 1/(2q) has m >= 2q, at any precision, for N >= 3q; cyclic polytopes meet it.",
        "docs/lower-bounds.md",
        module=_FORMULAS,
        test=_DISJOINTNESS,
    ),
    claim_ours(
        "keyhole/answer-bits",
        "Without residuals, attention that computes sparse averages of vectors of R^d' to eps has "
        "H v p >= d' log2(1/eps) in its last layer.",
        "docs/lower-bounds.md",
        module=_FORMULAS,
        test=_DISJOINTNESS,
    ),
    claim_ours(
        "keyhole/one-row",
        "A single attention layer that decides set disjointness of n bits in a public row, as"
        " Match4, Match3Bigram, Match3Local, closed walks on edges and 4-cycles on rows of a matrix"
        " do, has H (v p + b_L) >= n, as in SHT23/7.",
        "docs/lower-bounds.md",
        module=_FORMULAS,
        test=_DISJOINTNESS,
    ),
    claim_ours(
        "keyhole/exchanged-rows",
        "Attention that finds directed 4-cycles from the rows of an adjacency matrix has D n H (m +"
        " v) p >= floor(n/4)^2, at any depth and with residuals.",
        "docs/lower-bounds.md",
        module=_FORMULAS,
        test=_DISJOINTNESS,
    ),
    claim_ours(
        "keyhole/conversation",
        "Two people who own the tokens run any Transformer of standard attention with N H D (m + v"
        " + 1) b bits; one layer deviates by C 2^-b S at most, to first order, with S the spread of"
        " scores and C = H V (1 + (1 + ln N)/(2 S)) for values within V.",
        "docs/lower-bounds.md",
        module="keyhole.bounds.protocol",
        test="tests/bounds/test_conversation.py",
    ),
    Theorem(
        "keyhole/sign-faces",
        "Keys for which every set of q positions is the key set of a face need min(2q, N - 1)"
        " dimensions in real numbers; for signs and few bits the least dimension is found by"
        " exhaustive search for small N.",
        "docs/lower-bounds.md; neighbourly polytopes (Gale)",
        "measured",
        module="keyhole.bounds.faces",
        test="tests/bounds/test_sign_faces.py",
        at_hand=AtHand.RECALLED,
        paper_states="Real keys need min(2q, N - 1) dimensions.",
        our_constant="The least dimensions for signs and few bits, by exhaustive search.",
    ),
)

CONSTRUCTIONS = (
    cite_paper(
        "SHT23/2",
        "One self-attention unit with random sign keys of width O(q log N) averages any q of N"
        " tokens within eps, with numbers of O(log((q / eps) log N)) bits.",
        f"{_SHT23}, Theorem 2",
        module=_SPARSE_AVERAGE,
        test=_AVERAGES_TEST,
        at_hand=AtHand.CONFIRMED,
    ),
    cite_paper(
        "SHT23/3",
        "One self-attention unit with keys of width 2q on a cyclic polytope averages any q of N"
        " tokens within eps, in exact arithmetic; on the circle the least gap of scores over all"
        " sets is the product of 1 - cos of the q nearest differences.",
        f"{_SHT23}, Theorem 3; the product and the bits are derived",
        module=_SPARSE_AVERAGE,
        test=_AVERAGES_TEST,
        at_hand=AtHand.CONFIRMED,
        paper_states=(
            "One self-attention unit of width O(d' + q) averages any q of N tokens within eps, in"
            " exact arithmetic."
        ),
        our_constant="Key width 2q, the product of gaps, and the bits that hold it.",
    ),
    claim_ours(
        "keyhole/max-margin-keys",
        "A set of keys is singled out by some query if and only if a linear program has a positive"
        " optimum, and attention with that query, at sharpness ln(2 (N - q) / (q eps)) over its"
        " margin, averages the set within eps.",
        "docs/building-weights.md",
        module=_SPARSE_AVERAGE,
        test=_AVERAGES_TEST,
        our_constant="That widths of 1 to 2 times q ln N suffice for signs is measured.",
    ),
    claim_ours(
        "keyhole/coherence",
        "Keys of signs with |<u_i, u_j>| <= mu m single out every set of q by their least-squares"
        " queries where q mu < 1 - (q - 1) mu; random signs of width (5q - 2)^2 ln(2 N (N - 1)) / 2"
        " do so with a chance of at least one half.",
        "docs/building-weights.md",
        module="keyhole.constructions.sparse_averages.all_at_once",
        test=_AVERAGES_TEST,
    ),
    claim_ours(
        "keyhole/one-hot-keys",
        "One-hot keys of width N single out every set of tokens, with a margin of their size; where"
        " a set holds everybody, zero keys of width 1 average it exactly.",
        "docs/building-weights.md",
        module=_SPARSE_AVERAGE,
        test=_AVERAGES_TEST,
    ),
    cite_paper(
        "SHT23/match2",
        "One self-attention unit of key width 3 computes Match2 modulo M for every input of N"
        " tokens, with scores of size O(M^2 log N).",
        _SHT23,
        module=_WAVES,
        test=_MATCHING_TEST,
        at_hand=AtHand.CONFIRMED,
        our_constant="The sharpness: the least power of two whose margin is ln 8N.",
    ),
    cite_paper(
        "SHT23/third-order",
        "One unit of order s of key width 2^(s-1) + 1 computes Match_s modulo M; key width 5"
        " computes Match3.",
        f"{_SHT23}; the weights, and every order above 3, are derived",
        module=_WAVES,
        test=_MATCHING_TEST,
        at_hand=AtHand.CONFIRMED,
        paper_states="Attention of order s is defined, and a unit of order 3 computes Match3.",
        our_constant="The weights, of key width 2^(s-1) + 1, and Match_s for s above 3.",
        standing="derived",
    ),
    cite_paper(
        "SHT23/bigram",
        "Two layers of one head with key width 3 compute Match3Bigram.",
        f"{_SHT23}; the weights are derived",
        module="keyhole.constructions.matching.successors",
        test=_MATCHING_TEST,
        at_hand=AtHand.RECALLED,
        paper_states="Two layers of one head compute Match3Bigram.",
        our_constant="The weights, of key width 3.",
        standing="derived",
    ),
    cite_paper(
        "SHT23/local",
        "One layer of one head computes Match3Local of radius K by gathering windows, with key"
        " width 2(K + 1) at high precision, where no two windows hold everybody (2K < N), and of"
        " two heads always.",
        f"{_SHT23}; the weights are derived",
        module="keyhole.constructions.matching.one_window",
        test=_MATCHING_TEST,
        at_hand=AtHand.RECALLED,
        paper_states="One layer computes Match3Local.",
        our_constant="The weights, of key width 2(K + 1), with one head and with two.",
        standing="derived",
    ),
    claim_ours(
        "keyhole/several-frequencies",
        "With k frequencies, key width k 2^(s-1) + 1, the gap of Match_s modulo M is about M^(-2/k)"
        " instead of M^(-2), so that bf16 suffices for Match2 modulo a million with key width 13:"
        " powers of a base b with M <= (b + 1) b^(k-1) keep (2/k) sin^2(pi/(b + 1)).",
        "docs/building-matching.md",
        module=_WAVES,
        test=_MATCHING_TEST,
        our_constant="Gaps of frequencies that are drawn are certified by a scan of all residues.",
    ),
    claim_ours(
        "keyhole/closed-walks",
        "One unit of order s on edge tokens, of key width 2ks + 1 for k frequencies, decides which"
        " edges are on a closed walk of s edges, for any s >= 3: triangles and directed 4-cycles.",
        "docs/building-matching.md",
        module="keyhole.constructions.matching.closed_walks",
        test=_MATCHING_TEST,
    ),
    claim_ours(
        "keyhole/gather",
        "One layer of two ordinary heads gathers all numbers of an input, N + 1 values, and with a"
        " map behind it computes Match3; with n^2 + 1 values it finds directed 4-cycles.",
        "docs/building-matching.md",
        module="keyhole.constructions.matching.windows",
        test=_MATCHING_TEST,
    ),
)
