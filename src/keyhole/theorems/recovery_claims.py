"""What answers give away: claims of recovery."""

from __future__ import annotations

from keyhole.theorems.base import AtHand, cite_paper, claim_ours

# The paper that entries cite, spelled once.
_BSHK26 = "Bhattamishra, Shah, Hahn, Kanade, Provably Learning Attention with Queries, 2026"

RECOVERIES = (
    cite_paper(
        "BSHK26/4.1",
        "A softmax head with a read-out that is not zero is recovered exactly from d^2 + d value"
        " queries.",
        f"{_BSHK26}, Theorem 4.1",
        module="keyhole.learners.one_head.exact",
        test="tests/learners/one_head/test_exact_recovery.py",
        at_hand=AtHand.NOTED,
        our_constant="d queries more for each bias or residual that is told apart.",
    ),
    cite_paper(
        "BSHK26/5.1",
        "A head whose W has rank r is recovered from O(rd) value queries; the two-round range"
        " finder needs d + r(2d - r) of them, which is the number of its parameters.",
        f"{_BSHK26}, Theorem 5.1; the count is derived",
        module="keyhole.learners.one_head.low_rank",
        test="tests/learners/one_head/test_low_rank.py",
        at_hand=AtHand.NOTED,
        paper_states="A head whose W has rank r is recovered from O(rd) value queries.",
        our_constant=(
            "d + r(2d - r) queries, by two rounds in place of the paper's convex programme."
        ),
    ),
    cite_paper(
        "BSHK26/6.1",
        "A head with |W|_F <= B and every |v_i| >= mu is recovered from d^2 + d answers wrong by up"
        " to tau < mu within |dW|_F <= 8.52 d B (1.5 B + 0.63) tau / (mu - tau) and |dv| <= sqrt(d)"
        " tau.",
        f"{_BSHK26}, Theorem 6.1; the constants are derived",
        module="keyhole.learners.tolerance.learner",
        test="tests/learners/tolerance/test_guarantees.py",
        at_hand=AtHand.NOTED,
        paper_states=(
            "The order of the tolerance tau at which W and v are recovered to given errors, from"
            " d^2 + d answers of a head with |W|_F <= B and every |v_i| >= mu."
        ),
        our_constant="The constants 8.52, 1.5 and 0.63, derived from the paper's queries.",
    ),
    cite_paper(
        "BSHK26/membership",
        "From labels, the signs of the answers, a softmax head whose read-out is not zero is"
        " recovered by bisection: v up to a positive factor, W fully, with about one label per"
        " binary digit of each of d^2 + d - 1 numbers.",
        f"{_BSHK26}, Appendix B; the count is derived",
        module="keyhole.learners.labels.learner",
        test="tests/learners/labels/test_membership.py",
        at_hand=AtHand.NOTED,
        paper_states=(
            "A softmax head is recovered from polynomially many labels, the signs of its answers."
        ),
        our_constant=(
            "About one label per binary digit of d^2 + d - 1 numbers, by a scheme of our own."
        ),
    ),
    claim_ours(
        "keyhole/tilted-simplex",
        "From tokens of norm at most R and answers with independent errors of standard deviation s,"
        " d^2 queries give every entry of W with standard error 12 sqrt(3) s / (R^3 |v|) while"
        " scores are small.",
        "derived in docs/theorems.md",
        module="keyhole.learners.noise.learner",
        test="tests/learners/noise/test_noise.py",
    ),
    claim_ours(
        "keyhole/null-balance",
        "A head computed in float64 whose answers are cast to f32, f16 or bf16 is recovered to"
        " 1e-12 of W from 6 d^2 + 6 d + 60 queries, verification included: floats are dense near 0,"
        " and queries balanced to answer 0 multiply the error by the rounding of the format.",
        "null balance as implemented in keyhole.learners.casts.learner",
        module="keyhole.learners.casts.learner",
        test="tests/learners/casts/test_cast_answers.py",
        our_constant="The accuracy and the count are measured.",
    ),
    claim_ours(
        "keyhole/one-line",
        "A network with one hidden ReLU layer of k units is recovered, up to what its values do not"
        " determine, from one generic line and Jacobians along it: k(d - 1) + O(k + d) queries for"
        " one output, O(k + d k / m) for m.",
        "docs/learning-networks.md",
        module="keyhole.learners.networks.learner",
        test="tests/learners/networks/test_one_line.py",
        our_constant="The constants of the count are measured.",
    ),
    claim_ours(
        "keyhole/chords",
        "A network with one hidden ReLU layer is recovered inside a ball from chords between points"
        " where the model is right and points where it is wrong: k(d + 1) + O(k + d) queries for"
        " one output; after (ln 20 + ln 2) N / 3 fresh points that agree it is wrong on less than"
        " 6/N of the ball, and of its surface, with 95 % confidence.",
        "docs/learning-networks.md",
        module="keyhole.learners.network_in_ball.learner",
        test="tests/learners/network_in_ball/test_chords.py",
        our_constant="The constants of the count are measured.",
    ),
    claim_ours(
        "keyhole/grown-network",
        "A ReLU network is recovered from answers with declared errors: where tokens may be of any"
        " length and errors do not grow with them, normals and jumps to rounding and offsets to"
        " sigma/|D|; inside a ball as far as answers show it. At 2,000 fresh points the mean square"
        " of what is left is that of the errors.",
        "docs/learning-networks.md",
        standing="measured",
        module="keyhole.learners.network_under_noise.learner",
        test="tests/learners/network_under_noise/test_grown_networks.py",
    ),
    claim_ours(
        "keyhole/smooth-units",
        "A network with one hidden layer of k GELU, SiLU or softplus units, no two parallel, is"
        " recovered from the queries of a ReLU network asked far away and O(k/m) more that read"
        " every offset and width; where these are not precise enough, about"
        " 1.35 (k(d + 1 + m) + m(d + 1)) / m near the origin.",
        "docs/learning-networks.md",
        module="keyhole.learners.smooth_network.learner",
        test="tests/learners/smooth_network/test_smooth_networks.py",
        our_constant="The constants of the count are measured.",
    ),
    claim_ours(
        "keyhole/gated-units",
        "A gated network of k units (SwiGLU, GEGLU), no two gates parallel, is recovered up to"
        " order and a factor between (B, b) and C of each unit: O(k) queries on half a circle far"
        " away, O(d k/m) across it, O(k/m) for offsets and widths, and about"
        " 1.15 (k(2d + 1 + m) + m)/m for a fit of everything.",
        "docs/learning-networks.md",
        module="keyhole.learners.gated_network.learner",
        test="tests/learners/gated_network/test_gated_networks.py",
        our_constant="The constants of the count are measured.",
    ),
    claim_ours(
        "keyhole/third-order-recovery",
        "The last row of one unit of third order, whose two value vectors are not parallel, is"
        " recovered up to exchanging both places: 3d - 3 queries for the values, then d^3 for T, or"
        " r^2 + (d - r)(2r + 1) + r^2 [r > 1] + (d - 1 - [r > 1]) ceil(sqrt r)^2 where T is a sum"
        " of r < d generic products, since zero tokens make every answer one linear equation for"
        " weights.",
        "docs/third-order.md",
        module="keyhole.learners.third_order.learner",
        test="tests/learners/third_order/test_third_order_recovery.py",
        our_constant="24 to 104 queries more for a length of tokens; a fit to 1.3 answers per"
        " number where a check shows that the first estimate is not exact.",
    ),
    cite_paper(
        "BSHK26/one-layer",
        "Without biases f(X) - f(-X) of a one-layer Transformer is a single head with the same W,"
        " so that a learner of networks and 2(d^2 + d) further value queries recover it.",
        f"{_BSHK26}, one-layer Transformers",
        module="keyhole.learners.one_layer.antisymmetric",
        test="tests/learners/one_layer/test_antisymmetric.py",
        at_hand=AtHand.NOTED,
        our_constant="10 % and 60 queries more, to find scales.",
    ),
    claim_ours(
        "keyhole/local-affine",
        "Inside a linear region of the network that lone tokens meet, a one-layer Transformer is a"
        " single head: W, a score bias and the mixing of a residual are recovered with biases"
        " anywhere.",
        "the page on learning one-layer Transformers",
        module="keyhole.learners.one_layer.learner",
        test="tests/learners/one_layer/test_local_affine.py",
    ),
    claim_ours(
        "keyhole/segment-scores",
        "Behind a network of smooth or gated units that lone tokens show, a pair is answered by a"
        " point of a known segment, whose place is a score: W and a score bias are recovered from"
        " two queries for each of their numbers, and the mixing of a residual from short pairs.",
        "docs/learning-one-layer.md",
        module="keyhole.learners.one_layer.smooth_layer",
        test="tests/learners/one_layer/test_smooth_layers.py",
    ),
    claim_ours(
        "keyhole/saturate-and-isolate",
        "A sum of heads whose W are pairwise not proportional, of unknown number, is recovered from"
        " d^2 + 4d + O(1) value queries of at most three tokens per head, where tokens may be"
        " long.",
        "argued on the page on several heads",
        module="keyhole.learners.several_heads.learner",
        test="tests/learners/several_heads/test_several_heads.py",
        our_constant="The rates of success in float64 are measured.",
    ),
    claim_ours(
        "keyhole/joint-heads",
        "A sum of at most o heads with o outputs, score biases and a residual, in general position"
        " and of unknown number, is recovered from d + 1 + (H + 1) d + d (d + 1) / floor(o / H) +"
        " O(H) value queries: hard softmaxes give all read-outs, then every answer gives floor(o /"
        " H) scores of every head. With one output at most d - 2 heads take d + 1 + (H + 1) d + H d"
        " (d + 1); up to d heads take answers beside these that choose between roots.",
        "docs/learning-several-heads.md",
        module="keyhole.learners.joint_heads.road",
        test="tests/learners/joint_heads/test_joint_heads.py",
        our_constant="The number of angles that separate the heads is measured.",
    ),
    claim_ours(
        "keyhole/hessian-pencil",
        "A sum of at most d heads in general position, of unknown number, is recovered from O(H"
        " d^2) value queries of at most three tokens, none of them longer than a given bound.",
        "argued on the page on several heads",
        module="keyhole.learners.heads_in_ball.learner",
        test="tests/learners/heads_in_ball/test_heads_in_ball.py",
        our_constant="That least squares converge from where they start is measured, not proved.",
    ),
    cite_paper(
        "BSHK26/7.1",
        "Parameters of several heads are not determined by answers: there are distinct ones with"
        " the same function.",
        f"{_BSHK26}, Proposition 7.1",
        module="keyhole.identify.twins",
        test="tests/identify/test_twins.py",
        at_hand=AtHand.NOTED,
    ),
    claim_ours(
        "keyhole/layer-symmetries",
        "No answer of an attention layer shows the order of its groups of heads, an invertible map"
        " between values and outputs, one between queries and keys (of a pair that rotary positions"
        " turn: a complex number), what is added to all scores of a head alike, how gain and shift"
        " of a norm are split from the maps behind it, what a LayerNorm takes away, and a common"
        " part of position vectors that biases make up for. What is left is as many numbers as the"
        " rank of the answers' derivative at random layers.",
        "docs/learning-layers-as-built.md",
        module="keyhole.identify.layer_twins",
        test="tests/identify/test_layer_twins.py",
        our_constant="That nothing else is hidden is measured, by that rank.",
    ),
    claim_ours(
        "keyhole/layers-as-built",
        "An attention layer behind RMSNorm, LayerNorm or none, with rotary, linear, tabled or"
        " learned absolute positions or none, whose heads write into independent spaces of the"
        " outputs, is recovered up to its symmetries from its last position: every head out of the"
        " same answers, by linear equations and a fit of each head alone.",
        "docs/learning-layers-as-built.md",
        module="keyhole.learners.positions.learner",
        test="tests/learners/positions/test_wired_layers.py",
        our_constant="1.4 to 1.8 times the counting limit in the median, more for shared keys.",
    ),
    cite_paper(
        "BSHK26/orthogonal-heads",
        "Heads in pairwise orthogonal subspaces of dimensions r_h, with known bases, are recovered"
        " one by one from the sum of r_h^2 + r_h value queries.",
        f"{_BSHK26}, second version, section 7",
        module="keyhole.learners.published.orthogonal",
        test="tests/learners/published/test_orthogonal_heads.py",
        at_hand=AtHand.NOTED,
    ),
    cite_paper(
        "KKG26/repetition",
        "H heads with one output are recovered from 4Hd^2 - 2H + 1 value queries of length at most"
        " 2H + 1, by rational interpolation in the ratio in which two tokens are repeated; exact"
        " arithmetic is assumed.",
        "Kim, Kim, Guo, arXiv 2608.03294, 2026",
        module="keyhole.learners.published.repetition",
        test="tests/learners/published/test_repetition.py",
        at_hand=AtHand.NOTED,
        our_constant="4 queries more than the published count.",
    ),
    claim_ours(
        "keyhole/whole-layer",
        "All heads of a layer that write into independent spaces of the outputs are separated and"
        " recovered from the same answers, with about 1.2 times as many queries as the layer has"
        " parameters per output.",
        "docs/learning-a-layer.md",
        module="keyhole.learners.layer.learner",
        test="tests/learners/layer/test_whole_layer.py",
        our_constant="The count is measured.",
    ),
)
