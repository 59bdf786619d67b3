r"""Lower bounds as inequalities with both sides known: what a task needs, and what sizes offer.

Every inequality here has its constant; the growth the papers state beside it is quoted as words and
never used to decide. Each is derived above its function, and again with examples on the page
docs/lower-bounds.md.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, comb, inf, isfinite, lgamma, log, log2, nextafter
from typing import Any

from keyhole.bounds.base import Inequality, Sizes
from keyhole.bounds.disjointness import Reduction, reduction
from keyhole.claims import Check
from keyhole.tasks import FourCycles, Match3, SparseAverage, Task

ENTRIES = "p bits hold every number of XQ, XK and XV, and of head outputs"
STREAM = "no residual carries a token past its first attention layer"
STANDARD = "standard attention (order 2), heads summed, token maps of any kind"
SCORES = "fixed point with I integer and F fraction bits holds values, and scores lie within 2^I"
SCORES_WIDE = (
    "fixed point with I integer and F fraction bits holds queries, keys and values, so that scores"
    " lie within m 2^(2I)"
)
ROBUST = (
    "one layer of attention with p-bit values, scores within 2^I and labels that survive errors of"
    " 2^-F in head outputs"
)
ROBUST_WIDE = (
    "one layer of attention with p-bit queries, keys and values and labels that survive errors of"
    " 2^-F in head outputs"
)
ONE_LAYER = "one layer of standard attention (order 2), heads summed, token maps of any kind"
BELOW_ONE = nextafter(1.0, 0.0)
# Positions of a set up to which sets are counted by whole numbers.
COUNTED = 1_000


# Fix the vectors and sets of all tokens but the last, let that one name a set y of q of the other N
# - 1 positions, and follow what it changes. The attention layer sees y only through the token's
# query, key and value: H (2m + v) numbers of p bits. Without a residual nothing else carries y
# further, through however many layers. If there are more sets than messages, two sets y != y' send
# the same message and get the same answer whatever the vectors are. Take j in y but not in y', z_j
# = +e_1 and -e_1 elsewhere: the answers should be (-1 + 2/q) e_1 and -e_1, so that one of them is
# wrong by 1/q at least. Sets of at most q positions only add messages that must differ: means over
# y lie 2/|y| >= 2/q apart.
def bound_by_counting(task: SparseAverage, sizes: Sizes) -> Inequality:
    """Sparse averaging sends a message per set: H (2m + v) p >= log2 C(N - 1, q)."""
    message = sizes.heads * (2 * sizes.embed + sizes.value_width)
    return Inequality(
        "counting",
        "keyhole/counting-sets",
        log_sets(task.length - 1, task.q, at_most=task.at_most),
        message * sizes.bits,
        "bits",
        (_check_accuracy(task, sizes, 1.0), Check("residual", float(sizes.residual), 0.0)),
        (STANDARD, ENTRIES, STREAM),
        "log2 C(N-1, q) <= H (2m + v) p",
        "SHT23/4: m p >= c q for some constant c > 0, where N >= 2q + 1",
        "attention of any depth without residuals whose queries, keys and values have p bits",
    )


# Whatever stands behind the token map knows the set of a token by its d numbers of p bits alone,
# residuals included: two sets with one token get one answer.
def bound_by_embedding(task: SparseAverage, sizes: Sizes) -> Inequality:
    """A token behind the token map tells its set: d p >= log2 C(N - 1, q), whatever stands behind.

    With H heads and any depth; the paper's own form of the bound for a whole embedding.
    """
    width = sizes.token_width
    return Inequality(
        "embedding",
        "keyhole/counting-sets",
        log_sets(task.length - 1, task.q, at_most=task.at_most),
        inf if width is None else width * sizes.bits,
        "bits",
        (
            _check_accuracy(task, sizes, 1.0),
            Check("token width that is not given", float(width is None), 0.0),
        ),
        ("tokens behind the token map are d numbers of p bits", "anything stands behind them"),
        "log2 C(N-1, q) <= d p",
        "SHT23/4: for a whole embedding, width times p >= c q log N",
        "models of any kind behind a token map into d numbers of p bits",
    )


def log_sets(positions: int, q: int, *, at_most: bool = False) -> float:
    """How many bits name a set of q, or at most q, positions; 0 where there is no choice.

    Of large sets rounded down, and of at most q positions the most frequent size alone.
    """
    most = min(q, positions // 2) if at_most else q
    if min(most, positions - most) > COUNTED:
        logs = [lgamma(n + 1) for n in (positions, most, positions - most)]
        # Logarithms of factorials are good to some units of rounding.
        return (logs[0] - logs[1] - logs[2] - 1e-14 * sum(logs)) / log(2)
    count = sum(comb(positions, size) for size in range(1 if at_most else q, min(q, positions) + 1))
    return log2(count) if count else 0.0


# With a residual the asking token remembers its set, and the argument above breaks. Two people who
# own the asking token and all others can still run the model: per layer the owner of the token
# sends its query, key and value and is sent back the head outputs, H (2m + v) + H v numbers of p
# bits. On the inputs of the reduction that decides whether two sets of q bits meet, which takes q
# bits of talk however it is done (the q-bit fooling set a, not a).
def bound_by_disjointness(task: SparseAverage, sizes: Sizes) -> Inequality:
    """Sparse averaging decides disjointness: 2 D H (m + v) p >= q, with residuals too."""
    return Inequality(
        "disjointness",
        "SHT23/4",
        float(task.q),
        2.0 * sizes.layers * sizes.heads * (sizes.embed + sizes.value_width) * sizes.bits,
        "bits",
        (
            _check_accuracy(task, sizes, 1.0),
            Check("2q + 1 tokens", 2.0 * task.q + 1.0, float(task.length)),
        ),
        (STANDARD, ENTRIES),
        "q <= 2 D H (m + v) p",
        "SHT23/4: m p >= c q for some constant c > 0",
        "attention of D layers, residuals or none, all of whose numbers have p bits",
    )


# One head, weights a_j(y) = softmax_j <k_j, w_y>, answer sum_j a_j(y) (A z_j + c). Changing z_j
# from -e_1 to +e_1 moves the answer by 2 a_j(y) |A e_1|, and should move it by 2/q for j in y and
# by 0 otherwise, each up to 2 eps. For eps < 1/(2q) all of y therefore has larger weights, hence
# larger scores, than all of its complement: w_y separates the keys of y from the others. By Radon,
# m + 2 points of R^m split into two parts whose hulls meet, the smaller of at most (m + 2)/2
# points. If m <= 2q - 1 that part has at most q points; fill it up to q with further positions, m +
# 2 + q - 1 <= 3q in all, and no hyperplane separates that set. Hence m >= 2q, at any precision.
def bound_by_radon(task: SparseAverage, sizes: Sizes) -> Inequality:
    """One head with keys from positions alone needs m >= 2q, at any precision."""
    return Inequality(
        "radon",
        "keyhole/radon",
        2.0 * task.q,
        float(sizes.embed),
        "dimensions",
        (
            _check_accuracy(task, sizes, 0.5),
            Check("3q tokens", 3.0 * task.q, float(task.length)),
            Check("heads", float(sizes.heads), 1.0),
            Check("layers", float(sizes.layers), 1.0),
            Check("keys that see more than the position", float(not sizes.positional), 0.0),
        ),
        (
            "one head",
            "keys depend on positions alone",
            "values are one affine map of the vectors",
            "no map behind it",
        ),
        "2q <= m",
        "SHT23/3: m >= c (d' + q) is enough for some constant c, in real numbers",
        "one head of any precision with keys from positions alone and nothing behind it",
    )


# All vectors equal z make z the right answer, so that answers must come within eps of every point
# of the unit ball of R^d'. The last layer gives H v numbers of p bits, from which the map behind it
# makes at most 2^(H v p) answers; balls of radius eps around them cover the unit ball only if there
# are (1/eps)^d' of them, by volume.
def bound_by_answers(task: SparseAverage, sizes: Sizes) -> Inequality:
    """Answers must come near every point of a ball: H v p >= d' log2(1/eps)."""
    needed = -task.dimension * log2(sizes.accuracy) if 0 < sizes.accuracy < 1 else 0.0
    return Inequality(
        "answers",
        "keyhole/answer-bits",
        needed,
        sizes.heads * sizes.value_width * sizes.bits,
        "bits",
        (Check("residual", float(sizes.residual), 0.0),),
        (ENTRIES, STREAM),
        "d' log2(1/eps) <= H v p",
        "SHT23/2: m >= c (d' + q log N) is enough for some constant c",
        "attention of any depth without residuals whose head outputs have p bits",
    )


# The row that decides is public in the reduction, and so is its query. Per head Alice sends the
# log-partition L_A of her scores and her average A of v numbers; Bob has L_B and B, and g A + (1 -
# g) B with g = sigmoid(L_A - L_B) is the head's output. Numbers are fixed point with I integer and
# F fraction bits, p = I + F + 1. She rounds A to F bits, wrong by 2^(-F-1) at most, and L_A to a
# step of 2^(1-I-F), wrong by 2^(-I-F) at most, which moves g by a quarter of that and the output by
# |A - B| / 4 of it, less than 2^(-F-1). So Bob has every head output to less than 2^-F. Scores
# within 2^I leave L_A a range of 2^(I+1) + ln n. The answer decides disjointness of n bits, for
# which no one-way message is shorter than n bits. Neither the key width nor M enters.
def bound_by_partition_message(
    task: Task,
    sizes: Sizes,
    *,
    theorem: str = "keyhole/one-row",
    growth: str = "none in the sources",
    wide: bool = False,
    reduce_row: Callable[[Any], Reduction | None] = reduction,
) -> Inequality | None:
    """One layer that decides disjointness in a public row: H (v p + b_L) >= n.

    Args:
        task: the task.
        sizes: of the layer.
        theorem: the claim behind it.
        growth: the source's own form.
        wide: whether scores may be as large as p-bit queries and keys make them, m 2^(2I), and not
            2^I; a log-partition then takes about log2 m + I bits more.
        reduce_row: how the task decides disjointness in one row.
    """
    found = reduce_row(task)
    if found is None:
        return None
    return Inequality(
        "partition-message-wide" if wide else "partition-message",
        theorem,
        float(found.size),
        measure_partition_message(sizes, found.size, wide=wide),
        "bits",
        (Check("layers", float(sizes.layers), 1.0),),
        (
            ONE_LAYER,
            SCORES_WIDE if wide else SCORES,
            "answers stay right when every number of a head output moves by less than 2^-F",
        ),
        "n <= H (v p + b_L)",
        growth,
        ROBUST_WIDE if wide else ROBUST,
    )


def measure_partition_message(sizes: Sizes, tokens: int, *, wide: bool) -> float:
    """Bits of what one person says of a public row: H (v p + b_L), by the worst split of p.

    Args:
        sizes: of the layer.
        tokens: how many are hers.
        wide: whether scores may be as large as p-bit queries and keys make them.
    """
    split = sizes.fixed or _find_worst_split(sizes.bits)
    if split is None:
        return inf
    reach = sizes.embed * 4 ** split[0] if wide else 2 ** split[0]
    partition = count_partition_bits(tokens, *split, reach=reach)
    return float(sizes.heads * (sizes.value_width * (sum(split) + 1.0) + partition))


def bound_triples_by_message(
    task: Match3, sizes: Sizes, *, wide: bool = False
) -> Inequality | None:
    """The same for Match3, of which the source states the growth."""
    growth = "SHT23/7: m p H >= c N / log log N for some constant c > 0"
    return bound_by_partition_message(task, sizes, theorem="SHT23/7", growth=growth, wide=wide)


def count_partition_bits(
    size: int, integer: int, fraction: int, *, reach: int | None = None
) -> int:
    """Bits of a log-partition over `size` scores, in steps of 2^(1 - I - F).

    Args:
        size: n, scores.
        integer: I.
        fraction: F.
        reach: scores lie within this; 2^I when absent.
    """
    within = 2**integer if reach is None else reach
    steps = (Fraction(2 * within) + Fraction(log(size))) * Fraction(2) ** (
        integer + fraction - 1
    ) + 2
    return (ceil(steps) - 1).bit_length()


def _find_worst_split(bits: float) -> tuple[int, int] | None:
    """All of p bits before the point: (2^(I+1) + ln n) 2^(p-2) steps are most for large I."""
    return (int(bits) - 1, 0) if isfinite(bits) else None


# Alice owns half of the rows, Bob the other half. Per layer everybody tells the keys and values of
# his rows, H (m + v) numbers of p bits each, n rows in all; then each can compute the outputs of
# his own rows, residuals included. After D layers they know whether k^2 = floor(n/4)^2 bits meet.
def bound_by_exchanged_rows(task: FourCycles, sizes: Sizes) -> Inequality:
    """Directed 4-cycles need D n H (m + v) p >= floor(n/4)^2, at any depth and with residuals."""
    return Inequality(
        "exchanged-rows",
        "keyhole/exchanged-rows",
        float((task.nodes // 4) ** 2),
        1.0
        * sizes.layers
        * task.nodes
        * sizes.heads
        * (sizes.embed + sizes.value_width)
        * sizes.bits,
        "bits",
        (),
        (STANDARD, ENTRIES),
        "floor(n/4)^2 <= D n H (m + v) p",
        "SHT23: D m p H >= c n for some constant c > 0",
        "attention of D layers, residuals or none, whose keys and values have p bits",
    )


# A network whose first layer has fewer units than the z-coordinates of N - q + 1 tokens has a
# vector in the kernel of its weights on these coordinates. Scaled so that its longest token vector,
# at j*, has norm 1, +it and -it look the same behind the first layer. All tokens name j* and the q
# - 1 tokens left over, whose vectors are zero: the answers should be +-delta/q, 2/q apart.
def bound_by_kernel(task: SparseAverage, hidden: int, accuracy: float) -> Inequality:
    """A fully connected network needs (N - q + 1) d' units in its first layer."""
    return Inequality(
        "kernel",
        "SHT23/10",
        float((task.length - task.q + 1) * task.dimension),
        float(hidden),
        "units of the first layer",
        (Check("accuracy times q", accuracy * task.q, BELOW_ONE),),
        (
            "a fully connected network on all tokens side by side",
            "real numbers, any depth, any activation",
        ),
        "(N - q + 1) d' <= units of the first layer",
        "SHT23/10: N d'/2 units for q <= N/2",
        "fully connected networks of any depth in real numbers",
    )


# Let the first N - 1 vectors be +-e_1 in any combination, and the last token ask. Two different
# prefixes z, z' that leave the same state get the same answer, whatever is asked. Some q positions
# have different sums of z and z': if z - z' is the same everywhere any will do, otherwise exchange
# a position in the set for one where z - z' differs (q < N - 1 leaves one). For q = N - 1 > 1 let
# the set hold the last token and leave out one position j: if the sums of all positions agree, take
# j where z and z' differ; if not, they cannot differ by z_j - z'_j for every j. Sums of +-1 that
# differ do so by 2 at least, hence the answers by 2/q.
def bound_by_prefixes(task: SparseAverage, state_bits: float, accuracy: float) -> Inequality:
    """A recurrent network that reads left to right needs N - 1 bits of state."""
    return Inequality(
        "prefixes",
        "SHT23/11",
        float(task.length - 1),
        float(state_bits),
        "bits of state",
        (
            Check("accuracy times q", accuracy * task.q, BELOW_ONE),
            Check("q below N", task.q + 1.0, float(task.length)),
        ),
        (
            "one pass from left to right",
            "the state between two tokens is all that is remembered",
            "the last token asks",
        ),
        "N - 1 <= bits of state",
        "SHT23/11: (N - 1)/2 bits, for q = 1 already",
        "recurrent networks that read once from left to right",
    )


def _check_accuracy(task: SparseAverage, sizes: Sizes, share: float) -> Check:
    return Check(f"accuracy times q, over {share:g}", sizes.accuracy * task.q / share, BELOW_ONE)


def count_disjointness_bits(task: Task) -> int:
    """Bits two people must exchange to do a task, by its reduction; 0 where none is known."""
    found = reduction(task)
    return 0 if found is None else found.size


__all__ = [
    "Inequality",
    "Sizes",
    "bound_by_answers",
    "bound_by_counting",
    "bound_by_disjointness",
    "bound_by_embedding",
    "bound_by_exchanged_rows",
    "bound_by_kernel",
    "bound_by_partition_message",
    "bound_by_prefixes",
    "bound_by_radon",
    "bound_triples_by_message",
    "count_disjointness_bits",
    "count_partition_bits",
    "log_sets",
    "measure_partition_message",
]
