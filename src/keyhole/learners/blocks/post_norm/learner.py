r"""The learner of post-norm blocks with LayerNorms and smooth units, as in BERT.

Steps, each a module: 1. answers alone show the last norm (output_norm); 2. sequences of huge tokens
show the value maps of all heads with everything behind them unknown (locks); 3. huge lone tokens
show the token map by directions (direction_slices, direction_reads, direction_rest); 4. lone tokens
of ordinary size settle it (direction_fit); 5. weights are read through it (weight_reading);
6. sequences of ordinary tokens settle the attention (attention_fit); 7. fresh questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import FORMATS, Array, Matrix
from keyhole.errors import InvalidInput
from keyhole.identify.blocks import post_block_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.blocks.block_ends import (
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
from keyhole.learners.blocks.block_plans import guess_rank
from keyhole.learners.blocks.post_norm.attention_fit import AttentionFit, WholeFront
from keyhole.learners.blocks.post_norm.direction_fit import DirectionFit, TokenMap, TokenModel
from keyhole.learners.blocks.post_norm.direction_rest import DirectionMap
from keyhole.learners.blocks.post_norm.direction_search import (
    bound_search_queries,
    choose_first_dimension,
    count_search_queries,
    search_directions,
)
from keyhole.learners.blocks.post_norm.error_draws import (
    Settled,
    SettledMap,
    allow_errors,
)
from keyhole.learners.blocks.post_norm.locks import (
    LOCK_LENGTH,
    UNLOCKED,
    FrontMaps,
    LockSearch,
    bound_lock_queries,
    count_lock_queries,
)
from keyhole.learners.blocks.post_norm.output_norm import (
    NO_NORM,
    OutputNorm,
    count_norm_queries,
    find_output_norm,
    refine_output_norm,
)
from keyhole.learners.blocks.post_norm.settling_plans import (
    count_token_queries,
    count_whole_queries,
)
from keyhole.learners.blocks.post_norm.token_sphere import (
    FAR,
    TokenSphere,
    find_error,
    invert_front,
)
from keyhole.learners.blocks.post_norm.weight_reading import (
    WeightReader,
    choose_score_rank,
    count_weight_queries,
)
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.blocks.unit_slices import choose_dimension, limit_units
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AttentionLayer, Norm, ReluNet, TransformerBlock, Wiring
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.wiring import USUAL_EPS
from keyhole.oracles import Counted, Oracle

USUAL_POST_EPS = 1e-12  # as in BERT
_FEW = 24  # lone tokens that the constant is first fitted to
_SETTLED = 1e-9  # what a fit may leave
_WEIGHTS = 24  # of others that a sequence shows, at least
_LENGTH = 14  # of sequences, at least
_NARROWEST = 6
_ROUNDED = 1e-8  # what answers leave of plane and ellipsoid where no eps shows
_SHOWN = 1e-9  # an eps that shows
_IN_TURN = 6  # rounds of last norm and token map
_UNMOVED = 1e-12  # what a round moves the gain by, at last
_BOUNDED = 1e-2  # of a huge token, what its answer is at most
_NEAR = (1.0, 0.4, 0.15)  # how far from the last token others are, as shares of the usual


@dataclass(frozen=True, slots=True)
class PostNormBlock:
    """Learner of a post-norm block with LayerNorms, heads without positions and smooth units.

    Args:
        wiring: what is told of it; the eps of its norms is found to be 1e-12 or 1e-5
            where it is not told.
        hidden: hidden units expected, four times the width when absent; `run` finds their number.
        tries: subspaces that are tried for the network, at most.
        activation: of the units: gelu, gelu_tanh or silu; found when absent.
        until: the stage after which the recovery ends: norm, values or network; the last when
            absent.
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
        check_stage(self.until, ("norm", "values", "network"))
        _check_learnable(self.wiring or Wiring())

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Heads of size 8 and so many units; the most is that of the largest network."""
        d = max(_NARROWEST, width)
        D = d - 1
        k = self.expect_units(D)
        rank = guess_rank(d)
        heads = d // rank
        by_phase = {
            "norm": 1 + count_norm_queries(d),
            "values": count_lock_queries(d, heads),
            **count_search_queries(D, k),
            "lone": max(0, count_token_queries(d, k) - count_norm_queries(d)),
            "scores": count_weight_queries(d, heads, rank),
            "sequences": count_whole_queries(d, heads, rank),
            "verify": QUERIES,
        }
        return Plan(
            by_phase=choose_stages(by_phase, self.until),
            at_most=self._bound_queries(d),
            degrees_of_freedom=post_block_freedom(d, heads=heads, rank=rank, hidden=k),
            outputs=max(1, outputs),
        )

    def expect_units(self, dimension: int) -> int:
        """Units that are planned for."""
        usual = 4 * (dimension + 1) if self.hidden is None else self.hidden
        return max(1, min(usual, limit_units(dimension)))

    def _bound_queries(self, width: int) -> int:
        D = width - 1
        front = 1 + count_norm_queries(width) + bound_lock_queries(width)
        network = self.tries * (
            bound_search_queries(D) + count_token_queries(width, limit_units(D))
        )
        sizes = [(h, max(1, -(-width // h))) for h in range(1, width + 1)]
        scores = max(count_weight_queries(width, h, r) for h, r in sizes)
        sequences = max(count_whole_queries(width, h, r) for h, r in sizes)
        return front + network + len(_NEAR) * (scores + sequences) + QUERIES + 16

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[TransformerBlock]:
        """Recover a block."""
        return _PostNormSession(self, oracle, rng).recover()


def _check_learnable(wiring: Wiring) -> None:
    """Raise where a wiring is told that this learner does not know."""
    # Its norms are told as those of any block, or as none before its attention.
    known = {"norm": ("none", "layer"), "positions": ("none",), "residual": (True,)}
    known |= {"sinks": (False,), "qk_norm": (False,)}
    told = {name: value for name, value in wiring.told.items() if name != "eps"}
    differing = [name for name, value in told.items() if value not in known.get(name, ())]
    if differing:
        raise InvalidInput(
            "this learner knows blocks with a residual, LayerNorms behind both parts, and no"
            f" positions; told otherwise: {', '.join(differing)}."
        )


class _PostNormSession:
    """One recovery under way."""

    def __init__(self, learner: PostNormBlock, oracle: Oracle, rng: np.random.Generator) -> None:
        self.learner = learner
        self.oracle = Counted(oracle)
        self.rng = rng
        wiring = learner.wiring or Wiring()
        self.told = wiring.eps
        self.error = find_error(oracle)
        self.eps = USUAL_POST_EPS if wiring.eps is None else wiring.eps
        self.basis = NormBall.of(self.oracle.width, "layer", self.eps).basis
        self.report = BlockReport(self.oracle, self._describe_tried(), learner.until)

    @property
    def model(self) -> TokenModel:
        """The map behind the first norm, evaluated."""
        return TokenModel(self.basis, self.eps, self.error)

    def _describe_tried(self) -> str:
        told = "taken as usual" if self.told is None else "told"
        return (
            "A post-norm block with LayerNorms and smooth units was tried;"
            f" eps {self.eps:g} was {told}."
        )

    def recover(self) -> Recovery[TransformerBlock]:
        """The block, as far as it is found."""
        return self.report.recover(self._measure_block, self.rng)

    def _measure_block(self) -> TransformerBlock:
        check_exactness(self.oracle, FORMATS["f32"].roundoff)
        check_room(self.oracle, _NARROWEST, LOCK_LENGTH)
        norm, x, answers = self._find_norm()
        self.report.keep_stage(
            "norm", "the last norm", norm2_gain=norm.gain, norm2_shift=norm.shift
        )
        front = self._find_values(norm)
        words = f"{front.heads} heads that write {front.rank} numbers"
        self.report.keep_stage(
            "values", words, attention_Wo=self.basis @ front.U, attention_Wv=front.W
        )
        settled = self._find_attention(self._find_network(norm, front, x, answers), front)
        if self.error > 0:
            self.report.allowance = allow_errors(settled, self.model, self._assemble, rng=self.rng)
        return self._assemble(settled)

    def _keep_network(self, norm: OutputNorm, known: TokenMap) -> None:
        behind = known.behind
        self.report.keep_stage(
            "network",
            f"{len(behind.w)} units of {behind.activation}",
            norm1_gain=behind.gain,
            norm2_gain=norm.gain,
            norm2_shift=norm.shift,
            network_W1=behind.w @ self.basis.T / behind.gain,
            network_b1=behind.beta,
            network_W2=self.basis @ behind.D.T,
        )

    def _find_norm(self) -> tuple[OutputNorm, Matrix, Matrix]:
        """The last norm, and the lone tokens and answers that showed it."""
        x = self._draw_lone(count_norm_queries(self.oracle.width))
        with self.oracle.phase("norm"):
            far = self.oracle.ask(FAR * x[:1, None])
            if not linalg.norm(far) < _BOUNDED * linalg.norm(FAR * x[0]):
                raise Unfound(Status.BLOCK_DISAGREES, _UNBOUNDED)
            answers = self.oracle.ask(x[:, None])
        norm, rounded = find_output_norm(answers, self.basis), self.model.excuse(_ROUNDED)
        if norm is None or (norm.left > rounded and (self.told or 1.0) < _SHOWN):
            raise Unfound(Status.BLOCK_DISAGREES, NO_NORM)
        if self.told is None and norm.left > rounded:
            self.eps = USUAL_EPS
            self.report.tried = self._describe_tried()
        return norm, x, answers

    def _draw_lone(self, count: int) -> Matrix:
        """Lone tokens of sizes about 1, over a decade."""
        size = np.exp(self.rng.uniform(np.log(0.3), np.log(3.0), size=(count, 1)))
        return size * self.rng.normal(size=(count, self.oracle.width))

    def _find_values(self, norm: OutputNorm) -> FrontMaps:
        with self.oracle.phase("values"):
            front = LockSearch(self.oracle, norm, self.rng).find()
        if front is None:
            raise Unfound(Status.UNSEPARATED, UNLOCKED)
        return front

    def _find_network(
        self, norm: OutputNorm, front: FrontMaps, x: Matrix, answers: Matrix
    ) -> SettledMap:
        """Subspaces one after the other, larger ones where units filled them."""
        K = front.join_residual(self.basis)
        sphere = TokenSphere(self.oracle, norm, invert_front(K))
        D = sphere.dimension
        m = choose_first_dimension(D, self.learner.expect_units(D))
        seen: int | None = None
        for _ in range(self.learner.tries):
            sought = search_directions(sphere, m, self.learner.kinds, rng=self.rng)
            seen = seen if sought.units is None else sought.units
            if sought.behind is not None:
                turned = replace(norm, gain=norm.gain * sought.side)
                x, answers = self._ask_more(x, answers, len(sought.behind.w))
                settled = self._settle(turned, K, sought.behind, x, answers)
                if settled is not None:
                    self._keep_network(settled.norm, settled.known)
                    return settled
            if sought.units is None:
                m = min(D - 2, m + max(1, (D - 2 - m) // 2))
            else:
                m = max(m, choose_dimension(D, sought.units) or D - 2)
        raise Unfound(Status.UNITS_UNSEPARATED, describe_units(seen, limit_units(D)))

    def _settle(
        self, norm: OutputNorm, K: Matrix, behind: DirectionMap, x: Matrix, answers: Matrix
    ) -> SettledMap | None:
        """The token map to the last digit; where eps shows, it and the last norm in turn."""
        fit = DirectionFit(self.model, x, norm.read(answers))
        known, left = fit.fit(fit.start(K, behind, _FEW))
        for _ in range(_IN_TURN):
            if self.eps < _SHOWN:
                break
            u = x @ known.front.K.T + known.front.b
            refined = refine_output_norm(norm, answers, self.model.turn(known.behind, u).h)
            if refined is None:
                break
            moved = linalg.norm(refined.gain - norm.gain) / linalg.norm(norm.gain)
            norm = refined
            known, left = DirectionFit(self.model, x, norm.read(answers)).fit(known)
            if moved < _UNMOVED:
                break
        if not left < self.model.excuse(_SETTLED):
            return None
        return SettledMap(norm, known, x, norm.read(answers))

    def _ask_more(self, x: Matrix, answers: Matrix, units: int) -> tuple[Matrix, Matrix]:
        """Lone tokens enough to settle so many units."""
        d = self.oracle.width
        more = count_token_queries(d, units) - len(x)
        check_size(len(x) + more, d)
        if more <= 0:
            return x, answers
        added = self._draw_lone(more)
        with self.oracle.phase("lone"):
            shown = self.oracle.ask(added[:, None])
        return np.concatenate([x, added]), np.concatenate([answers, shown])

    def _find_attention(self, settled: SettledMap, front: FrontMaps) -> Settled:
        """Scores read nearer and nearer to the last token, until sequences bear them out."""
        norm, known = settled.norm, settled.known
        sphere = TokenSphere(self.oracle, norm, invert_front(known.front.K))
        reader = WeightReader(sphere, self.model, known, front)
        fits: list[tuple[float, WholeFront]] = []
        asked: list[tuple[Array, Matrix]] = []
        for near in _NEAR:
            with self.oracle.phase("scores"):
                scores = reader.find(near=near, rng=self.rng)
            asked.append((scores.X, scores.phi))
            if scores.maps is None:
                continue
            if len(fits) == 0:
                asked.append(self._ask_sequences(sphere, front))
            maps = scores.maps
            start = WholeFront(front.U, front.W, maps.Wq, maps.bq, maps.Wk, 1.0)
            held, left = AttentionFit(self.model, known, asked).fit(start)
            fits.append((left, held))
            if left < self.model.excuse(_SETTLED):
                break
        if not fits:
            raise Unfound(Status.UNSEPARATED, UNEVEN)
        return Settled(settled, min(fits, key=lambda fit: fit[0])[1], asked)

    def _ask_sequences(self, sphere: TokenSphere, front: FrontMaps) -> tuple[Array, Matrix]:
        width = self.oracle.width
        rank = choose_score_rank(width, front)
        length = max(_LENGTH, -(-_WEIGHTS // front.heads) + 2)
        X = self.rng.normal(size=(count_whole_queries(width, front.heads, rank), length, width))
        with self.oracle.phase("sequences"):
            return X, sphere.ask(X)

    def _assemble(self, settled: Settled) -> TransformerBlock:
        """The block with what stands before a map folded into it."""
        norm, known, front = settled.map.norm, settled.map.known, settled.front
        root = np.sqrt(front.Wq.shape[1])
        behind, back = known.behind, self.basis.T
        attention = AttentionLayer(
            front.Wq * root,
            front.Wk,
            front.W,
            self.basis @ front.U,
            bq=front.bq * root,
            bo=self.basis @ (front.omega * known.front.b),
        )
        network = ReluNet(
            behind.w @ back / behind.gain,
            behind.beta,
            self.basis @ behind.D.T,
            self.basis @ behind.T,
            behind.activation,
        )
        first = Norm("layer", self.eps, behind.gain)
        last = Norm("layer", norm.eps or self.eps, norm.gain, norm.shift)
        return TransformerBlock(attention, network, first, last, style="post")


_UNBOUNDED = "Answers grow with the token, as none do behind a last norm."
