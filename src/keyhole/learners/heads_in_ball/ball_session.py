"""One recovery of a sum of heads, all of whose tokens keep a bound."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Matrix, PerSequence, Sequences, Stack
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent
from keyhole.learners.base import Recovery, Status, Verdict
from keyhole.learners.heads_in_ball.noisy_fit import FittedHeads, fit_noisy_heads
from keyhole.learners.heads_in_ball.slices import (
    Ball,
    measure_heads_in_ball,
    read_ball,
    sign_heads,
    soften_ball,
)
from keyhole.learners.several_heads.pairs import Unresolved
from keyhole.learners.several_heads.session import SeveralHeadsSession
from keyhole.learners.verifying.ending import DECLARED_ERRORS, Ending, settle
from keyhole.learners.verifying.examination import Ruler, examine_model
from keyhole.learners.verifying.questions import read_limits
from keyhole.models import MultiHead
from keyhole.oracles import read_imperfection

ATTEMPTS = 8
_PER_PARAMETER = 10  # queries that the claim allows
_LENGTHS = (2, 3, 4)
ANSWERS = 4  # to fit, per number of the model
_SIGMAS = 6.0
_VAGUE = "Errors of the answers hide what the model says: many other sums would agree as well."


@dataclass(slots=True)
class BallSession(SeveralHeadsSession):
    """One recovery under way, all of whose tokens keep the bound."""

    @property
    def radius(self) -> float:
        """The bound."""
        return float("inf") if self.bound is None else self.bound

    @property
    def deviation(self) -> float:
        """The standard error of an answer; of a tolerance, its largest."""
        stated = read_imperfection(self.oracle)
        return float(np.hypot(stated.noise, stated.tolerance))

    def recover(self, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Attempts until fresh queries agree; every way to stop ends in a Recovery."""
        measuring, checking = rng.spawn(2)
        try:
            with self.oracle.phase("read"):
                noise = self.deviation
                ball = read_ball(self.oracle, self.radius, self.roundoff, noise)
            for _ in range(ATTEMPTS):
                if any(
                    self._confirm_model(model, checking) for model in self._models(ball, measuring)
                ):
                    return self._conclude_examined()
                self.failed += 1
            return self._conclude_refused()
        except BudgetSpent:
            return self._end_spent()

    def _models(self, ball: Ball, rng: np.random.Generator) -> Iterator[MultiHead]:
        """The model of one attempt; then, where fresh queries almost confirm it, one fitted."""
        with suppress(Unresolved):
            with self.oracle.phase("scale"):
                ball = soften_ball(ball, rng)
            W, D = measure_heads_in_ball(ball, rng)
            with self.oracle.phase("signs"):
                model = sign_heads(ball, W, D, rng)
            yield model
            if self.almost:
                yield self.polish_model(rng)

    def _promise(self, model: MultiHead) -> tuple[str, Check, float]:
        heads, d = model.W.shape[:2]
        few = Check("heads found, which must not outnumber the width", float(heads), float(d))
        return "keyhole/hessian-pencil", few, _PER_PARAMETER * heads * (d * d + d) + 200


@dataclass(slots=True)
class NoisyBallSession(BallSession):
    """The same from answers with declared random errors: fitted, with an error bar per entry."""

    fitted: FittedHeads | None = field(default=None, init=False)

    def _models(self, ball: Ball, rng: np.random.Generator) -> Iterator[MultiHead]:
        """The model of one attempt, fitted to answers of its own."""
        with suppress(Unresolved):
            with self.oracle.phase("scale"):
                ball = soften_ball(ball, rng)
            W, D = measure_heads_in_ball(ball, rng)
            with self.oracle.phase("signs"):
                rough = sign_heads(ball, W, D, rng)
            with self.oracle.phase("fit"):
                asked = self._ask_to_fit(ball, rough, rng)
                self.fitted = fit_noisy_heads(rough, asked, self.deviation)
            yield self.fitted.model

    def _ask_to_fit(
        self, ball: Ball, model: MultiHead, rng: np.random.Generator
    ) -> list[tuple[Stack, Matrix]]:
        """Sequences of tokens half to all of the way to the bound, where heads are not all hard."""
        count = -(-ANSWERS * (model.W.size + model.V.size + 1) // (len(_LENGTHS) * model.outputs))
        drawn = [rng.normal(size=(count, length, model.width)) for length in _LENGTHS]
        lengths = [ball.radius * rng.uniform(0.5, 1.0, size=(*X.shape[:2], 1)) for X in drawn]
        tokens = [
            X * (size / np.linalg.norm(X, axis=2, keepdims=True))
            for X, size in zip(drawn, lengths, strict=True)
        ]
        return [(X, self.oracle.ask(X.copy())) for X in tokens]

    def _confirm_model(self, model: MultiHead, rng: np.random.Generator) -> bool:
        """Whether fresh answers are as far off as errors and error bars explain."""
        self.model = model
        fitted = self.fitted
        if fitted is None:
            return False
        drawing = rng.spawn(1)[0]

        def allowance(X: Sequences) -> PerSequence:
            spread = fitted.measure_spread(X, drawing)
            return _SIGMAS * np.hypot(self.deviation, spread)

        with self.oracle.phase("verify"):
            self.seen = examine_model(
                self.oracle,
                model,
                ruler=Ruler(self.tolerance, self.roundoff, allowance),
                rng=rng,
                limits=read_limits(self.oracle, bound=self.bound),
            )
        return self.seen.passed

    def _certificate(self, verdict: Verdict) -> Certificate | None:
        """SILENT: the theorem is of exact answers."""
        held = BallSession._certificate(self, verdict)
        if held is None:
            return None
        random = Check("standard deviation of random errors", self.deviation, 0.0)
        return replace(held, assumptions=(*held.assumptions, random))

    def _conclude_examined(self) -> Recovery[MultiHead]:
        """The recovery, with its error bars."""
        seen, model, fitted = self.seen, self.model, self.fitted
        if seen is None or model is None or fitted is None:
            return self._conclude(Ending(status=Status.HIDDEN))
        W = float(np.median(fitted.bars["W"])) / max(float(np.median(np.abs(model.W))), 1e-300)
        hidden = Ending(status=Status.IMPRECISE, detail=_VAGUE)
        ending = settle(
            self.oracle,
            seen,
            lines=DECLARED_ERRORS,
            refuse=lambda: Ending(status=Status.UNRESOLVED),
            blind=not model.V.any(),
            reservation=hidden if W > 1.0 else None,
            words=f"Entries of W are known to {W:.1e} of their size, one standard error.",
        )
        return replace(self._conclude(ending), bars=fitted.bars)
