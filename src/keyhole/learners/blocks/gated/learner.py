r"""The learner of pre-norm blocks with RMSNorm, rotary positions and gated units, as in Llama.

Steps, each a module: 1. zero tokens do nothing but take weight (inert_zeros); 2. huge lone tokens
show the network on a sphere (growing_slices, gate_pairs, gate_curves, gate_search), and the sum of
the value maps, which no gated unit looks like; 3. lone tokens of ordinary size settle both
(gate_fit); 4. answers are solved for what the network was given (peeled_block), and the attention
is recovered as a layer by itself (`learners.positions`); 5. fresh questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.identify.blocks import gated_block_freedom
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.blocks.block_ends import (
    NO_RESIDUAL,
    BlockReport,
    Unfound,
    check_exactness,
    check_room,
    check_size,
    check_stage,
    choose_stages,
)
from keyhole.learners.blocks.block_plans import count_numbers, guess_rank
from keyhole.learners.blocks.extreme_scores import count_extreme_queries
from keyhole.learners.blocks.far_tokens import FAR, FarTokens
from keyhole.learners.blocks.gated.gate_fit import GateFit, GateMap
from keyhole.learners.blocks.gated.gate_search import (
    bound_gate_queries,
    count_gate_queries,
    search_gates,
)
from keyhole.learners.blocks.gated.growing_slices import limit_gates
from keyhole.learners.blocks.gated.inert_zeros import (
    LENGTH,
    bound_zero_queries,
    count_zero_queries,
    zeros_are_inert,
)
from keyhole.learners.blocks.gated.peeled_block import PeeledBlock, share_of_ball
from keyhole.learners.blocks.lone_fit import LoneAnswers
from keyhole.learners.blocks.solving import linalg
from keyhole.learners.positions.ball import NormBall
from keyhole.learners.positions.head_split import Unsplit
from keyhole.learners.positions.layer_plans import (
    SIZES,
    estimate_layer_queries,
    limit_layer_queries,
)
from keyhole.learners.positions.measuring import Measuring
from keyhole.learners.positions.placed import Asking, LinearPart
from keyhole.learners.positions.question_design import Setting
from keyhole.learners.positions.wide.shift_split import WideSearch
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AttentionLayer, Gated, Norm, TransformerBlock, Wiring
from keyhole.models.last_token.even_parts import EVEN_PARTS
from keyhole.models.layers.wiring import USUAL_EPS
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_SETTLED = 1e-9  # what a fit may leave
_NARROWEST = 6
_ADDED = 1e-2  # of a huge token, that a block adds to it at most
_UNMOVED = 1e-6  # by what a LayerNorm takes off
_DISPLACEMENTS = 64
_USUAL = Wiring(
    norm="rms", eps=USUAL_EPS, positions="rope", residual=True, sinks=False, qk_norm=False
)


@dataclass(frozen=True, slots=True)
class GatedBlock:
    """Learner of a pre-norm block with RMSNorm, rotary positions and a gated network, no biases.

    Args:
        wiring: what is told of it; eps is 1e-5 and the base 10,000 where they are not told.
        hidden: hidden units to plan for, 8/3 of the width when absent; `run` finds their number.
        heads: how many heads to plan for; `run` finds their number.
        tries: subspaces that are tried for the network, at most.
        activation: of the gates: gelu, gelu_tanh or silu; found when absent.
        until: the stage after which the recovery ends: network; the last when absent.
    """

    wiring: Wiring | None = None
    hidden: int | None = None
    heads: int = 4
    tries: int = 3
    activation: str | None = None
    until: str | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """Activations in question."""
        return tuple(EVEN_PARTS) if self.activation is None else (self.activation,)

    @property
    def told(self) -> Wiring:
        """What is told, completed by what is usual."""
        return replace(_USUAL, **(self.wiring or Wiring()).told)

    def __post_init__(self) -> None:
        if self.activation not in (None, *EVEN_PARTS):
            raise InvalidInput(
                f"the activation of a gate is {', '.join(EVEN_PARTS)}; got {self.activation!r}."
            )
        if min(self.tries, self.heads) < 1 or (self.hidden is not None and self.hidden < 1):
            raise InvalidInput(
                "tries, heads and hidden are whole numbers from 1 on; got"
                f" {self.tries}, {self.heads}, {self.hidden}."
            )
        check_stage(self.until, ("network",))
        _refuse_other_wirings(self.wiring or Wiring())

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """So many heads and units; the most is that of the largest network."""
        d = max(_NARROWEST, width)
        k = max(1, min(self.hidden or 8 * d // 3, limit_gates(d)))
        rank = guess_rank(d)
        heads = d // rank
        wiring = replace(self.told, groups=self.told.groups or heads)
        layer = estimate_layer_queries(
            wiring, d, rank, heads=heads, displacements=_DISPLACEMENTS, biased=False
        )
        by_phase = {
            "zeros": 2 + count_zero_queries(),
            **count_gate_queries(d, k),
            "lone": _count_lone_queries(d, k),
            **{phase: layer[phase] for phase in ("split", "keys", "queries")},
            "verify": QUERIES + count_extreme_queries(heads),
        }
        freedom = gated_block_freedom(wiring, d, heads=heads, rank=rank, hidden=k)
        return Plan(
            by_phase=choose_stages(by_phase, self.until),
            at_most=self._bound_queries(d),
            degrees_of_freedom=freedom,
            outputs=max(1, outputs),
        )

    def _bound_queries(self, width: int) -> int:
        lone = _count_lone_queries(width, limit_gates(width))
        network = self.tries * (bound_gate_queries(width) + lone)
        layer = limit_layer_queries(self.told, width, width, _DISPLACEMENTS)
        return 2 + bound_zero_queries() + network + layer + count_extreme_queries(width) + QUERIES

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[TransformerBlock]:
        """Recover a block."""
        return _GatedSession(self, oracle, rng).recover()


def _count_lone_queries(width: int, hidden: int) -> int:
    """Lone tokens that settle gates, others, outputs and the sum of the value maps."""
    return count_numbers(hidden * 3 * width + width**2, width) + 8


def _refuse_other_wirings(wiring: Wiring) -> None:
    """Raise where a wiring is told that this learner does not know."""
    free = ("eps", "groups", "rope_base", "rotary_share", "softcap")
    known = _USUAL.told
    differing = [
        name
        for name, value in wiring.told.items()
        if name not in free and (name not in known or value != known[name])
    ]
    if differing:
        raise InvalidInput(
            "this learner knows blocks with a residual, RMSNorms before attention and network, and"
            f" rotary positions; told otherwise: {', '.join(differing)}."
        )
    if wiring.eps == 0.0:
        raise InvalidInput(
            "a norm with eps = 0 lets tokens be read on a sphere only; tell its eps."
        )


class _GatedSession:
    """One recovery under way."""

    def __init__(self, learner: GatedBlock, oracle: Oracle, rng: np.random.Generator) -> None:
        self.learner = learner
        self.oracle = Counted(oracle)
        self.rng = rng
        self.wiring = learner.told
        none = np.zeros((0, oracle.width))
        self.lone = LoneAnswers(none, none)
        self.eps = USUAL_EPS if self.wiring.eps is None else self.wiring.eps
        lengths = read_imperfection(oracle).lengths
        self.longest = None if lengths is None else lengths[1]
        told = (learner.wiring or Wiring()).told
        words = "told" if "eps" in told else "taken as usual"
        self.report = BlockReport(
            self.oracle,
            "A pre-norm block with RMSNorm, rotary positions and gated units was tried;"
            f" eps {self.eps:g} was {words}.",
            learner.until,
        )

    def recover(self) -> Recovery[TransformerBlock]:
        """The block, as far as it is found."""
        return self.report.recover(self._measure_block, self.rng)

    def _measure_block(self) -> TransformerBlock:
        check_exactness(self.oracle)
        check_room(self.oracle, _NARROWEST, LENGTH)
        asking = FarTokens(self.oracle, NormBall.of(self.oracle.width, "rms", self.eps))
        with self.oracle.phase("zeros"):
            self._check_front(asking)
        known = self._find_network(asking)
        self.report.keep_stage(
            "network",
            f"{len(known.g)} gated units of {known.activation}",
            network_A=known.g,
            network_B=known.u,
            network_C=known.D.T,
        )
        return self._assemble(known, self._find_attention(asking.ball, known))

    def _check_front(self, asking: FarTokens) -> None:
        """Raise unless huge tokens tell a residual and no LayerNorm, and zeros are inert."""
        y = asking.draw_on_sphere(1, self.rng)
        added, shifted = asking.ask_lone(np.concatenate([y, y + 1.0]))
        if not linalg.norm(added) < _ADDED * FAR * asking.radius:
            raise Unfound(Status.BLOCK_DISAGREES, NO_RESIDUAL)
        if linalg.norm(added - shifted) < _UNMOVED * linalg.norm(added):
            raise Unfound(Status.BLOCK_DISAGREES, _CENTRED)
        if not zeros_are_inert(asking, rng=self.rng):
            raise Unfound(Status.BLOCK_DISAGREES, _NOT_INERT)

    def _find_network(self, asking: FarTokens) -> GateMap:
        """Subspaces one after the other, until lone tokens bear one out."""
        seen: int | None = None
        for _ in range(self.learner.tries):
            sought = search_gates(asking, self.learner.kinds, rng=self.rng)
            seen = seen if sought.units is None else sought.units
            if sought.network is not None:
                known, left = self._settle_network(sought.network)
                if left < _SETTLED:
                    return known
            if sought.units is None:
                break
        raise Unfound(
            Status.UNITS_UNSEPARATED, _describe_gates(seen, limit_gates(asking.dimension))
        )

    def _settle_network(self, network: GateMap) -> tuple[GateMap, float]:
        k, d = network.g.shape
        check_size(_count_lone_queries(d, k), d)
        self._ask_lone(_count_lone_queries(d, k) - len(self.lone.x))
        return GateFit(self.eps, self.lone).fit(network)

    def _ask_lone(self, more: int) -> None:
        """So many more lone tokens of sizes about 1, over a decade."""
        if more <= 0:
            return
        size = np.exp(self.rng.uniform(np.log(0.3), np.log(3.0), size=(more, 1)))
        x = size * self.rng.normal(size=(more, self.oracle.width))
        with self.oracle.phase("lone"):
            answers = self.oracle.ask(x[:, None]) - x
        known = self.lone
        self.lone = LoneAnswers(
            np.concatenate([known.x, x]), np.concatenate([known.answers, answers])
        )

    def _find_attention(self, ball: NormBall, known: GateMap) -> AttentionLayer:
        """The attention as a layer, with smaller tokens where scores are large."""
        asking = Asking(PeeledBlock(self.oracle, known, self.eps), ball, residual=True)
        linear = LinearPart(np.zeros(len(known.M)), known.M)
        setting = Setting(self.wiring, _DISPLACEMENTS, self.longest, last=share_of_ball(self.eps))
        wide, best = WideSearch(), None
        for size in SIZES:
            work = Measuring(self.oracle, asking, linear, setting, wide, size=size, rng=self.rng)
            try:
                heads = work.measure_heads()
            except Unsplit:
                continue
            best = work.assemble(heads.maps)
            if all(heads.found):
                break
        if best is None:
            raise Unfound(Status.UNSEPARATED, _UNSPLIT)
        return best

    def _assemble(self, known: GateMap, layer: AttentionLayer) -> TransformerBlock:
        """The block with gains folded into its maps."""
        wiring = replace(layer.wiring, norm="none", residual=False, eps=None)
        units, none = np.zeros(len(known.g)), np.zeros(len(known.M))
        network = Gated(known.g, units, known.u, units, known.D.T, none, known.activation)
        norm = Norm("rms", self.eps)
        return TransformerBlock(replace(layer, wiring=wiring), network, norm, norm)


_CENTRED = "Adding one number to all entries of a huge token changes nothing: a LayerNorm."
_NOT_INERT = (
    "Zero tokens do more than take weight: biases, several layers, a window, or no block of this"
    " build."
)
_UNSPLIT = (
    "The network was found, and behind it no heads could be told apart: other positions, groups of"
    " more heads than a head is large, or heads that share outputs."
)


def _describe_gates(seen: int | None, most: int) -> str:
    shown = "did not show how many there are" if seen is None else f"showed {seen} gated units"
    return (
        f"Second differences {shown}; at this width up to {most} are told apart. Plain units, and"
        " gates other than GELU, its tanh form and SiLU, bend otherwise."
    )
