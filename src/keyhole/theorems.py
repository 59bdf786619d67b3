"""The registry: every theorem the code stands on, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theorem:
    """One claim the code stands on.

    Args:
        id: how code, tests and documentation name it.
        statement: the claim in our words.
        source: where it comes from.
        standing: "paper" (proved there), "derived" (argued in our docs) or "measured".
    """

    id: str
    statement: str
    source: str
    standing: str


def _register_theorems(*theorems: Theorem) -> dict[str, Theorem]:
    return {theorem.id: theorem for theorem in theorems}


# The papers that entries cite, spelled once.
_BSHK26 = "Bhattamishra, Shah, Hahn, Kanade, Provably Learning Attention with Queries, 2026"
_SHT23 = "Sanford, Hsu, Telgarsky, Representational Strengths and Limitations of Transformers, 2023"

THEOREMS = _register_theorems(
    Theorem(
        "BSHK26/4.1",
        "A softmax head with a read-out that is not zero is recovered exactly from d^2 + d value"
        " queries.",
        f"{_BSHK26}, Theorem 4.1",
        "paper",
    ),
    Theorem(
        "BSHK26/5.1",
        "A head whose W has rank r is recovered from O(rd) value queries; the two-round range"
        " finder needs d + r(2d - r) of them, which is the number of its parameters.",
        f"{_BSHK26}, Theorem 5.1; the count is derived",
        "paper",
    ),
    Theorem(
        "BSHK26/6.1",
        "A head with |W|_F <= B and every |v_i| >= mu is recovered from d^2 + d answers wrong by up"
        " to tau < mu within |dW|_F <= 8.52 d B (1.5 B + 0.63) tau / (mu - tau) and |dv| <= sqrt(d)"
        " tau.",
        f"{_BSHK26}, Theorem 6.1; the constants are derived",
        "paper",
    ),
    Theorem(
        "BSHK26/membership",
        "From labels, the signs of the answers, a softmax head whose read-out is not zero is"
        " recovered by bisection: v up to a positive factor, W fully, with about one label per"
        " binary digit of each of d^2 + d - 1 numbers.",
        f"{_BSHK26}, Appendix B; the count is derived",
        "paper",
    ),
    Theorem(
        "keyhole/tilted-simplex",
        "From tokens of norm at most R and answers with independent errors of standard deviation s,"
        " d^2 queries give every entry of W with standard error 12 sqrt(3) s / (R^3 |v|) while"
        " scores are small.",
        "derived in docs/theorems.md",
        "derived",
    ),
    Theorem(
        "keyhole/null-balance",
        "A head computed in float64 whose answers are cast to f32, f16 or bf16 is recovered to"
        " 1e-12 of W from 6 d^2 + 6 d + 60 queries, verification included: floats are dense near 0,"
        " and queries balanced to answer 0 multiply the error by the rounding of the format.",
        "null balance as implemented in keyhole.learners.casts.learner",
        "derived",
    ),
    Theorem(
        "keyhole/one-line",
        "A network with one hidden ReLU layer of k units is recovered, up to what its values do not"
        " determine, from one generic line and Jacobians along it: k(d - 1) + O(k + d) queries for"
        " one output, O(k + d k / m) for m.",
        "docs/learning-networks.md",
        "derived",
    ),
    Theorem(
        "keyhole/chords",
        "A network with one hidden ReLU layer is recovered inside a ball from chords between points"
        " where the model is right and points where it is wrong: k(d + 1) + O(k + d) queries for"
        " one output; after (ln 20 + ln 2) N / 3 fresh points that agree it is wrong on less than"
        " 6/N of the ball, and of its surface, with 95 % confidence.",
        "docs/learning-networks.md",
        "derived",
    ),
    Theorem(
        "keyhole/grown-network",
        "A ReLU network is recovered from answers with declared errors: where tokens may be of any"
        " length and errors do not grow with them, normals and jumps to rounding and offsets to"
        " sigma/|D|; inside a ball as far as answers show it. At 2,000 fresh points the mean square"
        " of what is left is that of the errors.",
        "docs/learning-networks.md",
        "measured",
    ),
    Theorem(
        "keyhole/smooth-units",
        "A network with one hidden layer of k GELU or SiLU units, no two of them parallel, is"
        " recovered from the queries of a ReLU network asked far away, O(k) to read every width and"
        " offset, and about 1.35 (k(d + 1 + m) + m(d + 1)) / m near the origin.",
        "docs/learning-networks.md",
        "derived",
    ),
    Theorem(
        "BSHK26/one-layer",
        "Without biases f(X) - f(-X) of a one-layer Transformer is a single head with the same W,"
        " so that a learner of networks and 2(d^2 + d) further value queries recover it.",
        f"{_BSHK26}, one-layer Transformers",
        "paper",
    ),
    Theorem(
        "keyhole/local-affine",
        "Inside a linear region of the network that lone tokens meet, a one-layer Transformer is a"
        " single head: W, a score bias and the mixing of a residual are recovered with biases"
        " anywhere.",
        "the page on learning one-layer Transformers",
        "derived",
    ),
    Theorem(
        "keyhole/saturate-and-isolate",
        "A sum of heads whose W are pairwise not proportional, of unknown number, is recovered from"
        " d^2 + 4d + O(1) value queries of at most three tokens per head, where tokens may be"
        " long.",
        "argued on the page on several heads",
        "derived",
    ),
    Theorem(
        "keyhole/hessian-pencil",
        "A sum of at most d heads in general position, of unknown number, is recovered from O(H"
        " d^2) value queries of at most three tokens, none of them longer than a given bound.",
        "argued on the page on several heads",
        "derived",
    ),
    Theorem(
        "BSHK26/7.1",
        "Parameters of several heads are not determined by answers: there are distinct ones with"
        " the same function.",
        f"{_BSHK26}, Proposition 7.1",
        "paper",
    ),
    Theorem(
        "BSHK26/orthogonal-heads",
        "Heads in pairwise orthogonal subspaces of dimensions r_h, with known bases, are recovered"
        " one by one from the sum of r_h^2 + r_h value queries.",
        f"{_BSHK26}, second version, section 7",
        "paper",
    ),
    Theorem(
        "KKG26/repetition",
        "H heads with one output are recovered from 4Hd^2 - 2H + 1 value queries of length at most"
        " 2H + 1, by rational interpolation in the ratio in which two tokens are repeated; exact"
        " arithmetic is assumed.",
        "Kim, Kim, Guo, arXiv 2608.03294, 2026",
        "paper",
    ),
    Theorem(
        "keyhole/whole-layer",
        "All heads of a layer that write into independent spaces of the outputs are separated and"
        " recovered from the same answers, with about twice as many queries as the layer has"
        " parameters per output.",
        "docs/learning-a-layer.md",
        "derived",
    ),
    Theorem(
        "SHT23/4",
        "No attention layer with m p <= c q computes q-sparse averages to 1/(2q) for N >= 2q + 1:"
        " by set disjointness, 2 D H (m + v) p >= q for D layers of H heads, residuals included.",
        f"{_SHT23}, Theorem 4; the constant is derived",
        "paper",
    ),
    Theorem(
        "SHT23/7",
        "No single attention layer with m p H <= c N / log log N computes Match3 for M >= N + 1: in"
        " fixed point with I integer and F fraction bits, H (v p + b_L) >= floor((N - 1)/2) where"
        " b_L bits hold a log-partition.",
        f"{_SHT23}, Theorem 7; the constant is derived",
        "paper",
    ),
    Theorem(
        "SHT23/10",
        "A fully connected network that computes q-sparse averages to less than 1/q has N d'/2"
        " units in its first layer for q <= N/2, and (N - q + 1) d' for any q.",
        f"{_SHT23}, Theorem 10; the second count is derived",
        "paper",
    ),
    Theorem(
        "SHT23/11",
        "A recurrent network that computes q-sparse averages to less than 1/q reading left to right"
        " has (N - 1)/2 bits of state, already for q = 1, and N - 1 for any q < N - 1.",
        f"{_SHT23}, Theorem 11; the second count is derived",
        "paper",
    ),
    Theorem(
        "keyhole/counting-sets",
        "Without residuals, attention of any depth that computes q-sparse averages to less than 1/q"
        " has H (2m + v) p >= log2 C(N - 1, q) in its first layer.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/radon",
        "One head with keys from positions alone that computes q-sparse averages to less than"
        " 1/(2q) has m >= 2q, at any precision, for N >= 3q; cyclic polytopes meet it.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/answer-bits",
        "Without residuals, attention that computes sparse averages of vectors of R^d' to eps has "
        "H v p >= d' log2(1/eps) in its last layer.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/one-row",
        "A single attention layer that decides set disjointness of n bits in a public row, as"
        " Match4, Match3Bigram, Match3Local and directed triangles do, has H (v p + b_L) >= n, as"
        " in SHT23/7.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/exchanged-rows",
        "Attention that finds directed 4-cycles from the rows of an adjacency matrix has D n H (m +"
        " v) p >= floor(n/4)^2, at any depth and with residuals.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/conversation",
        "Two people who own the tokens run any Transformer of standard attention with N H D (m + v"
        " + 1) b bits; one layer deviates by C 2^-b S at most, to first order, with S the spread of"
        " scores and C = H V (1 + (1 + ln N)/(2 S)) for values within V.",
        "docs/lower-bounds.md",
        "derived",
    ),
    Theorem(
        "keyhole/sign-faces",
        "Keys for which every set of q positions is the key set of a face need min(2q, N - 1)"
        " dimensions in real numbers; for signs and few bits the least dimension is found by"
        " exhaustive search for small N.",
        "docs/lower-bounds.md; neighbourly polytopes (Gale)",
        "measured",
    ),
    Theorem(
        "SHT23/2",
        "One self-attention unit with random sign keys of width O(q log N) averages any q of N"
        " tokens within eps, with numbers of O(log((q / eps) log N)) bits.",
        f"{_SHT23}, Theorem 2",
        "paper",
    ),
    Theorem(
        "SHT23/3",
        "One self-attention unit with keys of width 2q on a cyclic polytope averages any q of N"
        " tokens within eps, in exact arithmetic.",
        f"{_SHT23}, Theorem 3",
        "paper",
    ),
    Theorem(
        "keyhole/max-margin-keys",
        "A set of keys is singled out by some query if and only if a linear program has a positive"
        " optimum, and attention with that query, at sharpness ln(2 (N - q) / (q eps)) over its"
        " margin, averages the set within eps.",
        "docs/building-weights.md",
        "derived",
    ),
    Theorem(
        "keyhole/one-hot-keys",
        "One-hot keys of width N single out every set of tokens, with a margin of their size; where"
        " a set holds everybody, zero keys of width 1 average it exactly.",
        "docs/building-weights.md",
        "derived",
    ),
    Theorem(
        "SHT23/match2",
        "One self-attention unit of key width 3 computes Match2 modulo M for every input of N"
        " tokens, with scores of size O(M^2 log N).",
        _SHT23,
        "paper",
    ),
    Theorem(
        "SHT23/third-order",
        "One unit of order s of key width 2^(s-1) + 1 computes Match_s modulo M; key width 5"
        " computes Match3.",
        f"{_SHT23}; the weights are derived",
        "paper",
    ),
    Theorem(
        "SHT23/bigram",
        "Two layers of one head with key width 3 compute Match3Bigram.",
        f"{_SHT23}; the weights are derived",
        "paper",
    ),
    Theorem(
        "SHT23/local",
        "One layer computes Match3Local of radius K by gathering windows, with key width 2(K + 1)"
        " at high precision.",
        f"{_SHT23}; the weights are derived",
        "paper",
    ),
    Theorem(
        "keyhole/several-frequencies",
        "With k frequencies, key width k 2^(s-1) + 1, the gap of Match_s modulo M is about M^(-2/k)"
        " instead of M^(-2), so that bf16 suffices for Match2 modulo a million with key width 13.",
        "docs/building-matching.md",
        "derived",
    ),
    Theorem(
        "keyhole/closed-walks",
        "One unit of order 3 on edge tokens, of key width 6k + 1 for k frequencies, decides which"
        " edges are on a closed walk of three edges.",
        "docs/building-matching.md",
        "derived",
    ),
    Theorem(
        "keyhole/gather",
        "One layer of two ordinary heads gathers all numbers of an input, N + 1 values, and with a"
        " map behind it computes Match3; with n^2 + 1 values it finds directed 4-cycles.",
        "docs/building-matching.md",
        "derived",
    ),
)
