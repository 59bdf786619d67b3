r"""The order of steps: switches, read-outs, token groups, scores.

$$F(X) = c + x_N^\top U + \sum_h \mathrm{softmax}(X (W_h x_N + h_h))^\top X V_h, \qquad V_h \in
\mathbb{R}^{d \times o}$$
There are at most as many heads as outputs, and the spaces they write into may overlap; or at most
as many as a token has coordinates, which one output tells, or one combination of the outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from keyhole._arrays import Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.base import Jumps
from keyhole.learners.joint_heads.dual_tokens import DualTokens
from keyhole.learners.joint_heads.hard_pairs import (
    Dependent,
    HalfCircle,
    HardPairs,
    LoneTokens,
    Unseparated,
)
from keyhole.learners.joint_heads.moved_plateaus import (
    Moves,
    PlateauMoves,
    Readouts,
    find_relations,
    measure_readouts,
)
from keyhole.learners.joint_heads.one_output.combination import (
    combine_outputs,
    pick_soft_questions,
    solve_all_readouts,
)
from keyhole.learners.joint_heads.routed_moves import RoutedMoves, find_routes
from keyhole.learners.joint_heads.score_columns import ScoreColumns, complete_columns, start_columns
from keyhole.learners.joint_heads.score_lengths import Scores, ScoreSizes
from keyhole.learners.joint_heads.shared_answers import JointScores
from keyhole.learners.joint_heads.soft_pairs import SoftPairs, find_soft_answer, split_product
from keyhole.learners.joint_heads.switching_heads import MISFIT, Scan, Switches
from keyhole.learners.joint_heads.token_groups import choose_token_groups
from keyhole.models import MultiHead
from keyhole.oracles import Counted

_RESIDUAL = 1e-9  # of the plateaus: where lone tokens differ by more, something passes the heads
_MANY = 2.0**8  # roundings of coarse answers that count as none
_LEAST = 1e-9  # a score that is looked for, at least
_SPARE = 2  # coordinates that no head reads, from which on one head of two is turned away
_BIASED = 1e-11  # of the plateaus: a departure from the even mean at y = 0


@dataclass(frozen=True, eq=False, slots=True)
class Separated:
    """What the half circle told.

    Args:
        pairs: hard pairs.
        switches: plateaus, and where heads switch.
        sizes: root mean squares of x . W y and of x . h over the heads, for x and y of length one.
        residual: whether a residual acts.
        soft: how soft answers are asked.
        still: a soft answer at y = 0.
        lengths: a and b of soft answers.
    """

    pairs: HardPairs
    switches: Switches
    sizes: ScoreSizes
    residual: bool
    soft: SoftPairs
    still: Vector
    lengths: tuple[float, float]

    def start_moves(self, rng: np.random.Generator) -> PlateauMoves:
        """Moves of x along random orthonormal directions, on plateaus."""
        width = len(self.switches.circle.x)
        with pin_one_thread():
            directions = np.linalg.qr(rng.normal(size=(width, width)))[0].T
        relations = find_relations(self.switches, residual=self.residual)
        return PlateauMoves(self.pairs, self.switches, relations, directions)

    def route_moves(self, moves: PlateauMoves, rng: np.random.Generator) -> Moves:
        """Moves with one head on at a time, begun anew, where such last tokens are found."""
        switches = self.switches
        few = switches.heads < len(self.pairs.lone.c)
        if switches.signs is None or switches.idle.any() or not few:
            return moves
        routes = find_routes(self.soft, switches, self.lengths, self.still, rng)
        if routes is None:
            return moves
        return RoutedMoves(self.pairs, switches, routes, self.residual, moves.directions)

    def read_heads(self, rng: np.random.Generator) -> Readouts:
        """Read-outs of all heads."""
        moves = self.start_moves(rng)
        route = partial(self.route_moves, rng=rng)
        return measure_readouts(moves, route, residual=self.residual, even=not self.biased)

    @property
    def biased(self) -> bool:
        """Whether a score bias acts."""
        return self.sizes.bias > 0.0


@dataclass(slots=True)
class Progress:
    """What one try knows so far.

    Args:
        readouts: of all heads.
        columns: of their score matrices.
        switches: of the half circle that told the heads apart.
        soft: questions and whole answers, where scores were read from a combination of outputs.
    """

    readouts: Readouts | None = None
    columns: ScoreColumns | None = None
    switches: Switches | None = None
    soft: list[tuple[Stack, Matrix]] = field(default_factory=list[tuple[Stack, Matrix]])

    def assemble(self, lone: LoneTokens) -> MultiHead | None:
        """The sum of heads as far as it is known, scores not measured as zero."""
        if self.readouts is None:
            return None
        V = self.readouts.V
        if self.columns is None:
            return assemble_model(lone, self.readouts, np.zeros((*V.shape[:2], V.shape[1])), None)
        return assemble_model(lone, self.readouts, self.columns.assemble(), self.columns.h)


def recover_heads_jointly(
    oracle: Counted,
    lone: LoneTokens,
    rng: np.random.Generator,
    *,
    misfit: float = 0.0,
    progress: Progress | None = None,
) -> tuple[MultiHead, Jumps]:
    """One try of the claim keyhole/joint-heads: the sum of heads, not yet examined, and its steps.

    Args:
        oracle: the black box, counting.
        lone: what lone tokens told.
        rng: source of half circles and directions.
        misfit: of the largest answer, what other heads may act beside those that switch.
        progress: where what is known is kept on the way.

    Raises:
        Unseparated: this half circle did not tell the heads apart; another may.
        Dependent: none will.
    """
    try:
        return _take_steps(oracle, lone, rng, misfit, progress or Progress())
    except np.linalg.LinAlgError as error:
        raise Unseparated("A decomposition did not converge.") from error


def _take_steps(
    oracle: Counted,
    lone: LoneTokens,
    rng: np.random.Generator,
    misfit: float,
    progress: Progress,
) -> tuple[MultiHead, Jumps]:
    with oracle.phase("switches"):
        seen = separate_heads(oracle, lone, rng, misfit=misfit)
    if seen.switches.heads > count_most_heads(oracle.width, len(lone.c)):
        raise Dependent("There are more heads than answers tell apart.")
    progress.switches = seen.switches
    if seen.switches.heads > len(lone.c) > 1:
        return _read_one_combination(oracle, lone, rng, misfit, progress)
    with oracle.phase("readouts"):
        readouts = progress.readouts = seen.read_heads(rng)
    with oracle.phase("measure"):
        scores, sizes = _choose_scores(oracle, lone, readouts, seen.sizes, misfit, rng)
        columns = progress.columns = ScoreColumns.random(scores, oracle.width, rng)
        guess = len(lone.c) // seen.switches.heads
        start_columns(columns, sizes)
        W = complete_columns(columns, guess, rng=rng)
    return assemble_model(lone, readouts, W, columns.h), _place_jumps(seen.switches, W)


def _read_one_combination(
    oracle: Counted,
    lone: LoneTokens,
    rng: np.random.Generator,
    misfit: float,
    progress: Progress,
) -> tuple[MultiHead, Jumps]:
    """The heads from one combination of the outputs, then what they write into each of them."""
    combination = combine_outputs(oracle, len(lone.c), rng)
    one = Progress()
    part, jumps = _take_steps(combination, combination.combine(lone), rng, misfit, one)
    progress.soft = pick_soft_questions(part, combination.kept)
    model = solve_all_readouts(progress.soft, lone, part)
    if one.switches is None:
        return model, jumps
    return model, combination.spread_jumps(jumps, one.switches.circle.x, model)


def count_most_heads(width: int, outputs: int) -> int:
    """Heads that are told apart: one output shows as many as tokens have coordinates."""
    return max(width, outputs)


def _place_jumps(switches: Switches, W: Stack) -> Jumps:
    """Steps along the half circle, at the angles where x . W_h y vanishes."""
    first, second = np.einsum("d,hde,ke->kh", switches.circle.x, W, switches.circle.y)
    angles = np.arctan2(-first, second) % np.pi
    return Jumps(angles, switches.jumps, switches.plateaus[0])


def _choose_scores(
    oracle: Counted,
    lone: LoneTokens,
    readouts: Readouts,
    sizes: ScoreSizes,
    misfit: float,
    rng: np.random.Generator,
) -> tuple[Scores, ScoreSizes]:
    """What measures scores, and their sizes: one output shows few heads at a time, many all."""
    if len(lone.c) > 1:
        tokens = choose_token_groups(readouts.V, rng, coarse=lone.coarse)
        scores = JointScores(oracle, lone, tokens, readouts.V, readouts.idle)
        scores.misfit = max(scores.misfit, misfit)
        return scores, sizes
    idle = np.zeros(oracle.width) if readouts.idle is None else readouts.idle[:, 0]
    scores = DualTokens(SoftPairs(oracle, lone), readouts.V[:, :, 0], idle)
    scores.lengths = sizes.choose_lengths()
    scores.check_unread(misfit)
    return scores, scores.guess_sizes(sizes, rng)


def separate_heads(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator, *, misfit: float = 0.0
) -> Separated:
    """Switches on a random half circle, and whether a residual or a score bias acts."""
    circle = HalfCircle.random(oracle.width, rng)
    scan = Scan(oracle, lone, circle)
    soft = SoftPairs(oracle, lone)
    y = rng.normal(size=oracle.width)
    g, product = find_soft_answer(soft, circle.x, y / np.linalg.norm(y), scan.ends)
    scan.separate(g, max(misfit, MISFIT))
    switches = scan.close()
    # At y = 0 only a score bias moves a softmax from the even mean.
    a, b = split_product(product)
    still = soft.ask(circle.x, 0.0 * circle.x, a, b)
    rounding = 64 * lone.roundoff * float(np.abs(lone.c).max()) / b
    hidden = lone.allow(_BIASED, _MANY) * scan.size + rounding
    biased = not np.abs(still - scan.ends.mean(axis=0)).max() <= hidden
    sizes = _guess_sizes(switches, scan, g, still if biased else None, product)
    gap = np.abs(scan.ends.sum(axis=0) - circle.x @ lone.B).max()
    residual = bool(gap > lone.allow(_RESIDUAL, _MANY) * scan.size)
    return Separated(scan.pairs, switches, sizes, residual, soft, still, (a, b))


def _guess_sizes(
    switches: Switches, scan: Scan, soft: Vector, still: Vector | None, product: float
) -> ScoreSizes:
    """Sizes of scores from a soft answer, and from one at y = 0 where a score bias acts."""
    b = split_product(product)[1]
    if switches.heads < len(soft):
        bias = np.zeros(switches.heads) if still is None else switches.read_logits(still)
        return ScoreSizes(rms(switches.read_logits(soft) - bias) / product, rms(bias) / b)
    # A share departs from one half by a quarter of a small score.
    even = scan.ends.mean(axis=0)
    away = [4.0 * float(np.abs(g - even).max()) / scan.size for g in (soft, still) if g is not None]
    return ScoreSizes(away[0] / product, max(away[1], _LEAST) / b if still is not None else 0.0)


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
    readouts = (heads if biased else heads - 1) * width
    columns = width + biased
    if outputs < heads:
        # Outputs that are fewer than the heads are told apart after a first half circle.
        first = 7 + 4 * heads if outputs > 1 else 0
        # With one coordinate beside the heads, or none, crossed scores take further answers.
        further = heads * (heads - 1) * columns // 6 if width - heads < _SPARE else 0
        measure = heads * width * columns + 2 * heads + 1 + further
        return {"switches": first + 8 + 7 * heads, "readouts": readouts, "measure": measure}
    groups = -(-width // max(1, min(outputs // heads, width)))
    return {"switches": 7 + 4 * heads, "readouts": readouts, "measure": groups * columns}
