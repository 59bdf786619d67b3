r"""The learner of pre-norm blocks with LayerNorm and smooth units, as in GPT-2.

Steps, each a module: 1. with a huge last token the network stands still, and answers are those of
the attention (far_tokens): value maps of all heads (value_maps), then queries and keys
(head_scores); 2. huge lone tokens show the network on a sphere (unit_slices, rank_ones, unit_reads,
unit_rest); 3. lone tokens of ordinary size settle the network, what the attention makes of a lone
token and its constant (lone_fit); 4. sequences of ordinary tokens settle the heads (sequence_fit);
5. fresh questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Array, Matrix
from keyhole.errors import InvalidInput
from keyhole.identify.blocks import block_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.blocks.block_ends import (
    NO_RESIDUAL,
    UNEVEN,
    BlockReport,
    Unfound,
    check_exactness,
    check_room,
    check_size,
    check_stage,
    choose_stages,
    describe_units,
)
from keyhole.learners.blocks.block_plans import (
    count_lone_queries,
    count_sequence_queries,
    guess_rank,
)
from keyhole.learners.blocks.extreme_scores import count_extreme_queries
from keyhole.learners.blocks.far_tokens import FAR, FarTokens
from keyhole.learners.blocks.head_scores import design_scores, find_score_maps
from keyhole.learners.blocks.lone_fit import LoneAnswers, LoneFit, LoneMap
from keyhole.learners.blocks.network_search import (
    bound_network_queries,
    count_network_queries,
    search_network,
)
from keyhole.learners.blocks.sequence_fit import Heads, SequenceFit
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_rest import SphereNetwork
from keyhole.learners.blocks.unit_slices import choose_dimension, limit_units
from keyhole.learners.blocks.value_maps import ValueMaps, count_value_queries, find_value_maps
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AttentionLayer, Norm, ReluNet, TransformerBlock, Wiring
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.wiring import USUAL_EPS
from keyhole.oracles import Counted, Oracle

_FEW = 24  # lone tokens that the constant is first fitted to
_SETTLED = 1e-9  # what a fit may leave
_WEIGHTS = 24  # of others that a sequence shows, at least
_LENGTH = 14  # of sequences, at least
_NARROWEST = 6
_SPLITS = 6  # tries to tell heads apart
_CLUSTERED = 0.25  # of eigenvalues that are met again, at least, where heads add up
_ALONE = 2  # tries with less, after which there are no heads
_ADDED = 1e-2  # of a huge token, that a block adds to it at most
_NEAR = (1.0, 0.4, 0.15)  # how far from the last token others are, as shares of the usual


@dataclass(frozen=True, slots=True)
class PreNormBlock:
    """Learner of a pre-norm block with LayerNorm, heads without positions and smooth units.

    Args:
        wiring: what is told of it; the eps of its norms is 1e-5 where it is not told.
        hidden: hidden units expected, four times the width when absent; `run` finds their number.
        tries: subspaces that are tried for the network, at most.
        activation: of the units: gelu, gelu_tanh or silu; found when absent.
        until: the stage after which the recovery ends: values or network; the last when absent.
    """

    wiring: Wiring | None = None
    hidden: int | None = None
    tries: int = 4
    activation: str | None = None
    until: str | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Activations in question."""
        return tuple(EVEN_PARTS) if self.activation is None else (self.activation,)

    def __post_init__(self) -> None:
        if self.activation not in (None, *EVEN_PARTS):
            raise InvalidInput(
                f"the activation of a unit is {', '.join(EVEN_PARTS)}; got {self.activation!r}."
            )
        if self.tries < 1 or (self.hidden is not None and self.hidden < 1):
            raise InvalidInput(
                f"tries and hidden are whole numbers from 1 on; got {self.tries}, {self.hidden}."
            )
        check_stage(self.until, ("values", "network"))
        _check_learnable(self.wiring or Wiring())

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Heads of size 8 and so many units; the most is that of the largest network."""
        D = max(_NARROWEST, width) - 1
        k = self._expect(D)
        rank = guess_rank(D + 1)
        heads = (D + 1) // rank
        by_phase = {
            "values": 1 + count_value_queries(D),
            "scores": design_scores(D, rank).queries,
            **count_network_queries(D, D + 1, k),
            "lone": count_lone_queries(D, k),
            "sequences": count_sequence_queries(D, heads, rank),
            "verify": QUERIES + count_extreme_queries(heads),
        }
        wiring = Wiring(norm="layer")
        freedom = block_freedom(wiring, D + 1, heads=heads, rank=rank, hidden=k)
        return Plan(
            by_phase=choose_stages(by_phase, self.until),
            at_most=self._bound_queries(D),
            degrees_of_freedom=freedom,
            outputs=max(1, outputs),
        )

    def _expect(self, dimension: int) -> int:
        usual = 4 * (dimension + 1) if self.hidden is None else self.hidden
        return max(1, min(usual, limit_units(dimension)))

    def _bound_queries(self, dimension: int) -> int:
        D = dimension
        scores = max(design_scores(D, rank).queries for rank in range(4, D + 2))
        network = self.tries * (
            bound_network_queries(D, D + 1) + count_lone_queries(D, limit_units(D))
        )
        sequences = max(count_sequence_queries(D, h, (D + 1) // h) for h in range(1, D + 1))
        front = 1 + _SPLITS * count_value_queries(D) + len(_NEAR) * scores
        return front + network + sequences + count_extreme_queries(D) + QUERIES + 16

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[TransformerBlock]:
        """Recover a block."""
        return _BlockSession(self, oracle, rng).recover()


def _check_learnable(wiring: Wiring) -> None:
    """Raise where a wiring is told that this learner does not know."""
    known = {"norm": "layer", "positions": "none", "residual": True, "sinks": False}
    known |= {"qk_norm": False}
    differing = [
        name
        for name, value in wiring.told.items()
        if name != "eps" and (name not in known or value != known[name])
    ]
    if differing:
        raise InvalidInput(
            "this learner knows blocks with a residual, LayerNorms before attention and network,"
            f" and no positions; told otherwise: {', '.join(differing)}."
        )
    if wiring.eps == 0.0:
        raise InvalidInput(
            "a norm with eps = 0 lets tokens be read on a sphere only; tell its eps."
        )


class _BlockSession:
    """One recovery under way."""

    def __init__(self, learner: PreNormBlock, oracle: Oracle, rng: np.random.Generator) -> None:
        self.learner = learner
        self.oracle = Counted(oracle)
        self.rng = rng
        wiring = learner.wiring or Wiring()
        self.eps = USUAL_EPS if wiring.eps is None else wiring.eps
        told = "told" if wiring.eps is not None else "taken as usual"
        self.report = BlockReport(
            self.oracle,
            "A pre-norm block with LayerNorm and smooth units was tried;"
            f" eps {self.eps:g} was {told}.",
            learner.until,
        )

    def recover(self) -> Recovery[TransformerBlock]:
        """The block, as far as it is found."""
        return self.report.recover(self._measure_block, self.rng)

    def _open_ball(self) -> NormBall:
        return NormBall.of(self.oracle.width, "layer", self.eps)

    def _measure_block(self) -> TransformerBlock:
        check_exactness(self.oracle)
        check_room(self.oracle, _NARROWEST, _LENGTH)
        asking = FarTokens(self.oracle, self._open_ball())
        values = self._find_values(asking)
        self.report.keep_stage(
            "values",
            f"{values.heads} heads of size {values.rank}",
            attention_Wo=values.U,
            attention_Wv=values.W @ asking.ball.basis.T,
        )
        known = self._find_network(asking, values)
        return self._assemble(asking.ball, known, self._find_heads(asking, known, values))

    def _find_values(self, asking: FarTokens) -> ValueMaps:
        with self.oracle.phase("values"):
            self._check_growth(asking)
            alone = 0
            for _ in range(_SPLITS):
                tried = find_value_maps(asking, rng=self.rng)
                if tried.maps is not None:
                    return tried.maps
                alone += tried.clustered < _CLUSTERED
                if alone == _ALONE:
                    raise Unfound(Status.BLOCK_DISAGREES, _NO_CLUSTERS)
        raise Unfound(Status.UNSEPARATED, _UNSPLIT)

    def _check_growth(self, asking: FarTokens) -> None:
        """Raise unless a huge last token comes back with little added."""
        y = asking.draw_on_sphere(1, self.rng)
        if not linalg.norm(asking.ask_lone(y)) < _ADDED * FAR * asking.radius:
            raise Unfound(Status.BLOCK_DISAGREES, NO_RESIDUAL)

    def _find_network(self, asking: FarTokens, values: ValueMaps) -> LoneMap:
        """Subspaces one after the other, larger ones where units filled them."""
        D = asking.dimension
        guess = self.learner.hidden or 4 * asking.outputs
        m = choose_dimension(D, guess) or D - 2
        seen: int | None = None
        for _ in range(self.learner.tries):
            sought = search_network(asking, values.total, m, self.learner.kinds, rng=self.rng)
            seen = seen if sought.units is None else sought.units
            if sought.network is not None:
                known, left = self._settle_network(asking, values, sought.network)
                if left < _SETTLED:
                    self._keep_network(known, asking.ball)
                    return known
            if sought.units is None:
                m = min(D - 2, m + max(1, (D - 2 - m) // 2))
        raise Unfound(Status.UNITS_UNSEPARATED, describe_units(seen, limit_units(D)))

    def _keep_network(self, known: LoneMap, ball: NormBall) -> None:
        words = f"{len(known.w)} units of {known.activation}"
        W1, W2 = known.w @ ball.basis.T, known.D.T
        self.report.keep_stage(
            "network", words, network_W1=W1, network_b1=known.beta, network_W2=W2
        )

    def _settle_network(
        self, asking: FarTokens, values: ValueMaps, network: SphereNetwork
    ) -> tuple[LoneMap, float]:
        D, k = asking.dimension, len(network.w)
        count = count_lone_queries(D, k)
        check_size(count, D + 1)
        x = self._draw_lone(count)
        with self.oracle.phase("lone"):
            answers = self.oracle.ask(x[:, None]) - x
        start = LoneMap(
            network.w,
            network.beta,
            network.D,
            network.constant,
            values.total,
            np.zeros(D),
            network.activation,
        )
        few = LoneFit(asking.ball, LoneAnswers(x[:_FEW], answers[:_FEW])).settle_constant(start)
        return LoneFit(asking.ball, LoneAnswers(x, answers)).fit(few)

    def _draw_lone(self, count: int) -> Matrix:
        """Lone tokens of sizes about 1, over a decade."""
        size = np.exp(self.rng.uniform(np.log(0.3), np.log(3.0), size=(count, 1)))
        return size * self.rng.normal(size=(count, self.oracle.width))

    def _find_heads(self, asking: FarTokens, known: LoneMap, values: ValueMaps) -> Heads:
        """Scores read nearer and nearer to the last token, until sequences bear them out."""
        fits: list[tuple[float, Heads]] = []
        X, answers = np.zeros((0, 1, 1)), np.zeros((0, 1))
        for near in _NEAR:
            with self.oracle.phase("scores"):
                scores = find_score_maps(asking, values, near=near, rng=self.rng)
            if scores is None:
                continue
            if not len(X):
                X, answers = self._ask_sequences(values)
            start = Heads(values.U, values.W, scores.Wq, scores.bq, scores.Wk)
            heads, left = SequenceFit(asking.ball, known, X, answers).fit(start)
            fits.append((left, heads))
            if left < _SETTLED:
                break
        if not fits:
            raise Unfound(Status.UNSEPARATED, UNEVEN)
        return min(fits, key=lambda fit: fit[0])[1]

    def _ask_sequences(self, values: ValueMaps) -> tuple[Array, Matrix]:
        width = self.oracle.width
        count = count_sequence_queries(width - 1, values.heads, values.rank)
        length = max(_LENGTH, -(-_WEIGHTS // values.heads) + 2)
        X = self.rng.normal(size=(count, length, width))
        with self.oracle.phase("sequences"):
            return X, self.oracle.ask(X)

    def _assemble(self, ball: NormBall, known: LoneMap, heads: Heads) -> TransformerBlock:
        """The block with gains and shifts folded into its maps."""
        back = ball.basis.T
        root = np.sqrt(heads.Wq.shape[1])
        bo = known.b @ back
        attention = AttentionLayer(
            heads.Wq @ back * root,
            heads.Wk @ back,
            heads.W @ back,
            heads.U,
            bq=heads.bq * root,
            bo=bo,
        )
        network = ReluNet(known.w @ back, known.beta, known.D.T, known.T - bo, known.activation)
        norm = Norm("layer", self.eps)
        return TransformerBlock(attention, network, norm, norm)


_UNSPLIT = (
    "No weights of heads showed as multiple eigenvalues: a single head, heads of fewer than four"
    " numbers, heads that share values, positions, another norm or eps, or no block of this build."
)
_NO_CLUSTERS = (
    "Weights of heads would show as multiple eigenvalues, and twice there were next to none:"
    " another norm or eps, heads of fewer than four numbers, several layers, or no block of this"
    " build."
)
