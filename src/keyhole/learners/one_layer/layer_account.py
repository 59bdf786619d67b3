"""What is known of a one-layer Transformer while it is recovered, and the recovery that says so."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Matrix, rms
from keyhole.claims import Verdict
from keyhole.identify import one_layer_freedom
from keyhole.learners.base import Recovery
from keyhole.learners.found_units import FoundUnits
from keyhole.learners.one_layer.attention import Attention
from keyhole.learners.verifying.ending import (
    Account,
    Ending,
    conclude,
)
from keyhole.learners.verifying.own_answers import Remembered
from keyhole.models import AbsAffine, Head, OneLayer
from keyhole.models.transformer import Network
from keyhole.oracles import Counted, Oracle, read_imperfection


@dataclass(slots=True)
class OneLayerSession:
    """One recovery under way: what is known so far, so that a spent budget leaves a part of it."""

    oracle: Counted
    roundoff: float
    remembered: Remembered
    G: Network | None = field(default=None, init=False)
    found: Attention | None = field(default=None, init=False)
    units: FoundUnits | None = field(default=None, init=False)

    @property
    def unseen(self) -> bool:
        """Whether nothing that comes before the last token acts on any answer."""
        return self.flat or (
            self.found is not None and self.found.M is not None and not self.found.M.any()
        )

    @property
    def flat(self) -> bool:
        """Whether all lone tokens are answered alike."""
        G = self.G
        return isinstance(G, AbsAffine) and max(rms(G.D), rms(G.P)) <= 1e-13 * rms(G.q)

    @classmethod
    def open(cls, oracle: Oracle) -> OneLayerSession:
        """A session that keeps every answer, for the fit at its end."""
        remembered = Remembered(oracle)
        return cls(Counted(remembered), read_imperfection(oracle).roundoff, remembered)

    def ask_lone(self, x: Matrix) -> Matrix:
        """Answers to lone tokens."""
        return self.oracle.ask(x[:, None])

    def model(self) -> OneLayer | None:
        """What is known of the layer; W is zero where it was not measured."""
        if self.G is None:
            return None
        d = self.G.width
        found = self.found or Attention(np.zeros((d, d)), None, None, 0, 0)
        if found.M is None:
            return OneLayer(Head(found.W, np.eye(d), found.h), self.G)
        return OneLayer(Head(found.W, found.M.T, found.h, U=-found.M.T), self.G, residual=True)


def conclude_layer(session: OneLayerSession, ending: Ending) -> Recovery[OneLayer]:
    """A recovery that says what is known."""
    return conclude(
        session.oracle,
        ending,
        Account(
            model=session.model(),
            reason=_explain_layer_found(session),
            determined=_describe_determined_layer(session, ending.verdict),
            degrees_of_freedom=_count_layer_freedom(session),
            rank=session.found.rank if session.found is not None else None,
            units=session.units,
        ),
    )


def _explain_layer_found(session: OneLayerSession) -> str:
    G, found = session.G, session.found
    if G is None:
        return "A one-layer Transformer was tried: lone tokens were to show its network."
    bends = "hyperplanes" if isinstance(G, AbsAffine) else f"{G.activation} units"
    parts = [f"Lone tokens are answered by a network with {G.hidden} {bends}"]
    if not G.hidden:
        parts = ["Lone tokens are answered by an affine map, so that this is a single head"]
    if session.unseen and not session.flat:
        parts += ["tokens before the last change no answer: it is that network alone"]
    elif found is not None:
        parts += ["a residual acts" if found.M is not None else "no residual acts"]
        parts += ["a score bias acts" if found.h is not None else "no sign of a score bias"]
        parts += [f"W has rank {found.rank}"]
    return "; ".join(parts) + "."


def _describe_determined_layer(session: OneLayerSession, verdict: Verdict) -> str:
    if session.G is None:
        return "Nothing was determined."
    if session.flat:
        return (
            "Every lone token has the same answer; the network is constant, and W and h are not"
            " determined."
        )
    if session.unseen:
        return (
            "The network is determined, and that only the last token meets it; W and h are not: any"
            " values fit."
        )
    if session.found is None:
        return "The network a lone token meets is determined; W is not, and zero in the model."
    if verdict is Verdict.UNVERIFIED:
        return "The model is the nearest one found; nothing of it is certain."
    parts = {"h": session.found.h, "the mixing M": session.found.M}
    names = ", ".join(["W", *(name for name, part in parts.items() if part is not None)])
    return (
        f"{names} and the network G(x) = g(Tx + c) that a lone token meets are determined; how G"
        " splits into values and network, a key bias, and how W splits into queries and keys are"
        f" not. {'' if session.units is None else session.units.sentence}".rstrip()
    )


def _count_layer_freedom(session: OneLayerSession) -> int | None:
    G, found = session.G, session.found
    if G is None or found is None:
        return None
    bias = 0
    if found.h is not None:
        # A bias outside the range of W brings a whole vector, one inside it only coordinates there.
        bias = G.width if found.joint > found.rank else found.rank
    return one_layer_freedom(
        G.width,
        hidden=G.hidden,
        outputs=G.outputs,
        rank=found.rank,
        score_bias=bias,
        residual=found.M is not None,
    )
