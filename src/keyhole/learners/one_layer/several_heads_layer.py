r"""Several heads before a network without biases: the odd part, then means chosen at will.

**Scores.** $\phi(t) - \phi(-t) = t$ for ReLU, GELU, SiLU and softplus, and X and -X have the same
softmax weights, so that
$$f(X) - f(-X) = \sum_h \mathrm{softmax}(X W_h x_N)^\top X V_h A^\top C^\top$$
for $f = C \phi(A \sum_h V_h^\top z_h)$: a sum of heads with the outputs of the network, learned
as one at two questions each. It does not give the network: the rows $V_h a_j$ stay free.

**Network.** With $W_h$ known the means $z_h$ that the heads see are known too, and f is a network
$g(z_1, \dots, z_H)$ on $\mathbb{R}^{Hd}$. It is asked at any point: on $[x_1; \dots; x_H; y]$ with
$x_h W_h y = 45$ and $x_g W_h y = -45$ for $g \ne h$ every head h looks at $x_h$ alone, to more
digits than there are. These are $H^2$ linear equations for y. With ReLU units g is homogeneous,
but for a constant that zero tokens answer, so that the x may be as long as need be, and y short,
and its own scores are zero. Where lone tokens, the diagonal of g, show that it is not, y is longer
and has scores of its own to look away from (chosen_means).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Matrix, Stack, pin_one_thread
from keyhole.claims import Verdict
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.identify import head_freedom, matrix_rank
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.networks.kinks import Unresolved
from keyhole.learners.networks.learner import Network, explain_missing_network
from keyhole.learners.networks.lines import learn_network
from keyhole.learners.one_layer.antisymmetric import Odd
from keyhole.learners.one_layer.chosen_means import choose_last_tokens
from keyhole.learners.several_heads.heads_account import RANK_SHARE
from keyhole.learners.several_heads.learner import SeveralHeads
from keyhole.learners.smooth_network.all_units import learn_smooth_units
from keyhole.learners.smooth_network.learner import SmoothNetwork
from keyhole.learners.verifying.ending import (
    ONE_LAYER,
    SPENT,
    Account,
    Doubt,
    Ending,
    conclude,
    resolve_doubt,
    settle,
)
from keyhole.learners.verifying.examination import examine_model
from keyhole.learners.verifying.questions import QUERIES
from keyhole.models import AbsAffine, MultiHead, ReluNet
from keyhole.models.layers.heads_before_network import HeadsBeforeNetwork
from keyhole.models.relu import network_freedom
from keyhole.oracles import Counted, Oracle, read_imperfection

_LOOK = 45.0  # score by which a head looks at its own token, and away from others
_LENGTH = 2.0**30  # of tokens; beside them the last one is nothing
_ATTEMPTS = 3  # at the network
_CLOSE = 1e-6  # relative error of a network up to which the layer is examined
_FINE = 3e-11  # the same of smooth units where no other attempt is due
_SCALES = tuple(10.0**k for k in range(-3, 4))  # of tokens at which units may bend
_BENDS = 1e-9  # of the odd part: a departure from a linear map
_TIMES = 4  # what one recovery of the odd part takes
_BENT = "Lone tokens and their opposites do not differ by a linear map: units have biases."
_UNSEEN = "No last token was found beside which every head looks at a token of its own."
_CAPPED = "The odd part of f was looked at as a sum of heads: "


@dataclass(frozen=True, slots=True)
class SeveralHeadsLayer:
    """Recovers several heads before a network of one layer whose units have no biases.

    Args:
        heads: heads to plan for; `run` finds their number by itself.
        hidden: hidden units to plan for; 4 per coordinate when absent.
    """

    heads: int = 2
    hidden: int | None = None

    def __post_init__(self) -> None:
        if self.heads < 1 or (self.hidden is not None and self.hidden < 1):
            raise InvalidInput(
                f"heads and hidden must be at least 1; got {self.heads} and {self.hidden}."
            )

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """Twice what a sum of heads costs, then a network that takes all means side by side."""
        several = SeveralHeads()
        odd = several.plan(width, outputs=outputs, heads=self.heads)
        largest = several.plan(width, outputs=outputs, heads=max(1, int(np.sqrt(width))))
        wide = self.heads * width
        hidden = 4 * width if self.hidden is None else self.hidden
        network = Network(hidden).plan(wide, outputs=outputs)
        smooth = SmoothNetwork(hidden=hidden).plan(wide, outputs=outputs)
        return Plan(
            by_phase={**network.by_phase, "odd": 2 * odd.queries, "verify": QUERIES},
            at_most=2 * _TIMES * largest.queries
            + _ATTEMPTS * max(network.at_most, smooth.at_most)
            + QUERIES
            + 7 * len(_SCALES)
            + 1,
            degrees_of_freedom=self.heads * width * width
            + hidden * (wide + outputs)
            + outputs * (wide + 1),
            outputs=outputs,
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[HeadsBeforeNetwork]:
        """Recover heads and network."""
        session = _LayerOfHeads(Counted(oracle), read_imperfection(oracle).roundoff)
        attending, learning, checking = rng.spawn(3)
        try:
            with pin_one_thread():
                ending = session.learn_scores(attending) or session.learn_network(learning)
            return session.conclude(ending or session.examine(checking))
        except BudgetSpent:
            return session.conclude(SPENT)


@dataclass(slots=True)
class _LayerOfHeads:
    """One recovery under way."""

    oracle: Counted
    roundoff: float
    W: Stack | None = field(default=None, init=False)
    G: AbsAffine | ReluNet | None = field(default=None, init=False)
    constant: Matrix = field(default_factory=lambda: np.zeros((1, 1)), init=False)

    def learn_scores(self, rng: np.random.Generator) -> Ending | None:
        """W of every head from the odd part, or why there is none."""
        odd = Odd(self.oracle)
        with self.oracle.phase("odd"):
            if not _is_odd_part_linear(odd, rng):
                return Ending(status=Status.NO_ODD_PART, detail=_BENT)
            found = _learn_odd_part(odd, rng)
        if found.verdict is Verdict.BUDGET_SPENT:
            return SPENT
        if found.status is Status.UNCHECKED:
            return Ending(status=Status.UNCHECKED)
        model = found.model
        if model is None or not found.verdict.verified or model.h is not None:
            return Ending(status=Status.NO_ODD_PART, detail=_CAPPED + found.status.value)
        if len(model.W) == 0 or len(model.W) ** 2 > self.oracle.width:
            detail = f"It has {len(model.W)} heads; their square may be the width at most."
            return Ending(status=Status.UNRESOLVED, detail=detail)
        self.W = model.W
        return None

    def learn_network(self, rng: np.random.Generator) -> Ending | None:
        """The network on the means of all heads, or why there is none."""
        if self.W is None:
            return Ending(status=Status.NO_ODD_PART)
        with self.oracle.phase("kinks"):
            self.constant = self.oracle.ask(np.zeros((1, 1, self.oracle.width)))
        if self.is_smooth(rng):
            return self.learn_smooth_network(self.W, rng)
        status = Status.NO_NETWORK
        # Units without biases all bend at the origin, and an unlucky line passes close by.
        for child in rng.spawn(_ATTEMPTS):
            learned = learn_network(
                self.ask_means,
                len(self.W) * self.oracle.width,
                self.constant.shape[1],
                rng=child,
                roundoff=self.roundoff,
                phase=self.oracle.phase,
            )
            self.G = learned.model
            if learned.spent:
                return SPENT
            if self.G is not None and learned.gap <= _CLOSE:
                return None
            status = explain_missing_network(learned)
        return Ending(status=status)

    def is_smooth(self, rng: np.random.Generator) -> bool:
        """Whether answers to lone tokens, a constant aside, do not grow as these do."""
        x = np.array(_SCALES)[:, None] * rng.normal(size=self.oracle.width)
        grown = self.oracle.ask(x[:, None]) - self.constant
        share = grown / np.array(_SCALES)[:, None]
        # Beside a constant short tokens are rounded.
        rounding = _BENDS * np.abs(self.constant).max() / np.array(_SCALES)
        allowed = _BENDS * np.abs(share).max() + rounding[:, None]
        return bool((np.abs(share - share[-1]) > allowed).any())

    def learn_smooth_network(self, W: Stack, rng: np.random.Generator) -> Ending | None:
        """The network of smooth units on the means of all heads, or why there is none."""
        choosing, *learning = rng.spawn(1 + _ATTEMPTS)

        def ask(Z: Matrix) -> Answers:
            tokens = Z.reshape(len(Z), len(W), -1)
            last = choose_last_tokens(W, tokens, rng=choosing)
            return self.oracle.ask(np.concatenate([tokens, last[:, None]], axis=1))

        least = _CLOSE
        for child in learning:
            try:
                learned = learn_smooth_units(
                    ask,
                    len(W) * self.oracle.width,
                    self.constant.shape[1],
                    rng=child,
                    roundoff=self.roundoff,
                    phase=self.oracle.phase,
                )
            except Unresolved:
                return Ending(status=Status.UNRESOLVED, detail=_UNSEEN)
            if learned.spent:
                return SPENT
            if learned.form is not None and learned.left <= least:
                self.G, least = learned.form.network(), learned.left
            if least <= _FINE:
                break
        return None if self.G is not None else Ending(status=Status.NO_SMOOTH_NETWORK)

    def ask_means(self, Z: Matrix) -> Answers:
        """Answers where head h sees the h-th part of every row of Z."""
        if self.W is None:
            raise InvalidInput("no scores are known yet.")
        size = np.linalg.norm(Z, axis=1, keepdims=True)
        # But for a constant the network is homogeneous; powers of two cost no digits.
        stretch = 2.0 ** np.round(np.log2(_LENGTH / np.where(size > 0, size, _LENGTH)))
        tokens = (Z * stretch).reshape(len(Z), len(self.W), -1)
        last = _choose_short_last_tokens(self.W, tokens)
        answers = self.oracle.ask(np.concatenate([tokens, last[:, None]], axis=1))
        return (answers - self.constant) / stretch + self.constant

    def model(self) -> HeadsBeforeNetwork | None:
        """What is known, in the form whose read-outs put the means of all heads side by side."""
        if self.W is None or self.G is None:
            return None
        heads, width, _ = self.W.shape
        V = np.eye(heads * width).reshape(heads, width, heads * width)
        return HeadsBeforeNetwork(MultiHead(self.W, V), self.G)

    def examine(self, rng: np.random.Generator) -> Ending:
        """What fresh sequences say."""
        model = self.model()
        if model is None:
            return Ending(status=Status.NOT_ONE_LAYER)
        with self.oracle.phase("verify"):
            seen = examine_model(self.oracle, model, ruler=ONE_LAYER.ruler(self.oracle), rng=rng)
        return settle(
            self.oracle,
            seen,
            lines=ONE_LAYER,
            refuse=lambda: resolve_doubt(self.oracle, Doubt(Status.NOT_ONE_LAYER, seen.worst)),
            blind=False,
            words="",
        )

    def conclude(self, ending: Ending) -> Recovery[HeadsBeforeNetwork]:
        """The recovery, however it came to its end."""
        model = self.model()
        ranks = [] if self.W is None else [matrix_rank(W, RANK_SHARE) for W in self.W]
        found = "A sum of heads was looked for in the odd part, f(X) - f(-X)."
        if ranks:
            found = f"The odd part is a sum of {len(ranks)} heads, with W of rank {max(ranks)}."
        if self.G is not None:
            units = "hyperplanes"
            if isinstance(self.G, ReluNet):
                units = f"units of {self.G.activation}"
            found += f" What they see meets a network with {self.G.hidden} {units}."
        determined = "Nothing was determined."
        if model is not None and ending.verdict.verified:
            determined = (
                "W of every head and the network of the means of all heads are determined; how it"
                " splits into values and network, and the order of heads, are not."
            )
        account = Account(
            model=model,
            reason=found,
            determined=determined,
            degrees_of_freedom=self._count_freedom(ranks),
            rank=max(ranks, default=None),
        )
        return conclude(self.oracle, ending, account)

    def _count_freedom(self, ranks: list[int]) -> int | None:
        G = self.G
        if G is None:
            return None
        width = self.oracle.width
        scores = sum(head_freedom(width, rank=rank, value_rank=0) for rank in ranks)
        widths = G.hidden if isinstance(G, ReluNet) else 0
        return scores + widths + network_freedom(G.width, hidden=G.hidden, outputs=G.outputs)


def _is_odd_part_linear(odd: Odd, rng: np.random.Generator) -> bool:
    """Whether f(x) - f(-x) of lone tokens is linear: a unit with a bias bends it somewhere."""
    x, y = rng.normal(size=(2, len(_SCALES), odd.width)) * np.array(_SCALES)[:, None]
    one, other, both = np.split(odd.ask(np.concatenate([x, y, x + y])[:, None]), 3)
    gap = np.abs(one + other - both).max(axis=1)
    return bool((gap <= _BENDS * np.maximum(np.abs(one), np.abs(other)).max(axis=1)).all())


def _learn_odd_part(odd: Odd, rng: np.random.Generator) -> Recovery[MultiHead]:
    """The odd part as a sum of heads, with no more questions than a few attempts take."""
    most = max(1, int(np.sqrt(odd.width)))
    plan = SeveralHeads().plan(odd.width, outputs=odd.outputs or 1, heads=most)
    return SeveralHeads(most=most, queries=_TIMES * plan.queries).run(odd, rng=rng)


def _choose_short_last_tokens(W: Stack, tokens: Stack) -> Matrix:
    """Last tokens beside which head h looks at the h-th token of every row.

    Where two heads are given one token, the shortest y that comes nearest: either may look at it.
    """
    heads = len(W)
    forms = np.einsum("nge,hef->nhgf", tokens, W).reshape(len(tokens), heads * heads, -1)
    wanted = _LOOK * (2.0 * np.eye(heads) - 1.0).ravel()
    inverse = np.asarray(np.linalg.pinv(forms), dtype=np.float64)
    return inverse @ wanted
