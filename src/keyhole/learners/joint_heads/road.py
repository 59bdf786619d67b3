r"""The order of steps: switches, read-outs, token groups, scores.

$$F(X) = c + x_N^\top U + \sum_h \mathrm{softmax}(X (W_h x_N + h_h))^\top X V_h, \qquad V_h \in
\mathbb{R}^{d \times o}$$
There are fewer heads than outputs; the spaces that heads write into may overlap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import EPS, Matrix, Stack, Vector, rms
from keyhole.learners.joint_heads.hard_pairs import (
    HalfCircle,
    HardPairs,
    LoneTokens,
)
from keyhole.learners.joint_heads.moved_plateaus import Readouts, measure_readouts
from keyhole.learners.joint_heads.score_columns import measure_score_matrices
from keyhole.learners.joint_heads.shared_answers import JointScores, ScoreSizes
from keyhole.learners.joint_heads.soft_pairs import SoftPairs, find_soft_answer, split_product
from keyhole.learners.joint_heads.switching_heads import Scan, Switches
from keyhole.learners.joint_heads.token_groups import choose_token_groups
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_RESIDUAL = 1e-9  # of the plateaus: where lone tokens differ by more, something passes the heads
_BIASED = 1e-11  # of the plateaus: a departure from the even mean at y = 0


@dataclass(frozen=True, eq=False, slots=True)
class Separated:
    """What the half circle told.

    Args:
        pairs: hard pairs.
        switches: plateaus, and where heads switch.
        sizes: root mean squares of x . W y and of x . h over the heads, for x and y of length one.
        residual: whether a residual acts.
    """

    pairs: HardPairs
    switches: Switches
    sizes: ScoreSizes
    residual: bool

    @property
    def biased(self) -> bool:
        """Whether a score bias acts."""
        return self.sizes.bias > 0.0


def recover_heads_jointly(oracle: Counted, lone: LoneTokens, rng: np.random.Generator) -> MultiHead:
    """One try of the claim keyhole/joint-heads: the sum of heads, not yet examined.

    Raises:
        Unseparated: this half circle did not tell the heads apart; another may.
    """
    with oracle.phase("switches"):
        seen = separate_heads(oracle, lone, rng)
    with oracle.phase("readouts"):
        readouts = measure_readouts(
            seen.pairs, seen.switches, residual=seen.residual, even=not seen.biased, rng=rng
        )
    tokens = choose_token_groups(readouts.V, rng)
    scores = JointScores(oracle, lone, tokens, len(readouts.V), readouts.idle)
    with oracle.phase("measure"):
        W, h = measure_score_matrices(scores, readouts.V, seen.sizes, rng=rng)
    return assemble_model(lone, readouts, W, h)


def separate_heads(oracle: Counted, lone: LoneTokens, rng: np.random.Generator) -> Separated:
    """Switches on a random half circle, and whether a residual or a score bias acts."""
    circle = HalfCircle.random(oracle.width, rng)
    scan = Scan(oracle, lone, circle)
    soft = SoftPairs(oracle, lone)
    y = rng.normal(size=oracle.width)
    g, product = find_soft_answer(soft, circle.x, y / np.linalg.norm(y), scan.ends)
    scan.separate(g)
    switches = scan.close()
    # At y = 0 only a score bias moves a softmax from the even mean.
    a, b = split_product(product)
    still = soft.ask(circle.x, 0.0 * y, a, b)
    hidden = _BIASED * scan.size + 64 * EPS * float(np.abs(lone.c).max()) / b
    biased = not np.abs(still - scan.ends.mean(axis=0)).max() <= hidden
    bias = switches.read_logits(still) if biased else np.zeros(switches.heads)
    sizes = ScoreSizes(rms(switches.read_logits(g) - bias) / product, rms(bias) / b)
    gap = np.abs(scan.ends.sum(axis=0) - circle.x @ lone.B).max()
    return Separated(scan.pairs, switches, sizes, bool(gap > _RESIDUAL * scan.size))


def assemble_model(lone: LoneTokens, readouts: Readouts, W: Stack, h: Matrix | None) -> MultiHead:
    """The sum of heads; one with W = 0 comes last."""
    V = readouts.V
    if readouts.idle is not None:
        W = np.concatenate([W, np.zeros_like(W[:1])])
        V = np.concatenate([V, readouts.idle[None]])
        h = None if h is None else np.concatenate([h, np.zeros_like(h[:1])])
    c: Vector | None = lone.c if lone.c.any() else None
    return MultiHead(W, V, h, c, readouts.U)


def plan_joint_queries(
    width: int, outputs: int, heads: int, *, biased: bool = False
) -> dict[str, int]:
    """Queries by phase of heads of full rank; a residual and score biases where `biased`."""
    together = max(1, min(outputs // heads, width))
    groups = -(-width // together)
    return {
        "switches": 7 + 4 * heads,
        "readouts": (heads if biased else heads - 1) * width,
        "measure": groups * (width + biased),
    }
