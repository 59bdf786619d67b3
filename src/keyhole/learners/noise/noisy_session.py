"""One recovery from answers with errors under way, and what is told of it when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from keyhole._arrays import Array
from keyhole.identify import head_freedom
from keyhole.learners.base import Recovery, Status
from keyhole.learners.noise.noisy_readout import (
    Errors,
    NoisyReading,
    estimate_noise,
    measure_noisy_readout,
)
from keyhole.learners.noise.tilted_simplex import certify_tilted_simplex
from keyhole.learners.noise.weighted_fit import WeightedFit, begin_fit, measure_weights
from keyhole.learners.verifying.ending import Account, Ending, conclude
from keyhole.models import Head
from keyhole.oracles import Counted, Imperfection


@dataclass(slots=True)
class NoisySession:
    """One recovery under way; `full` where every bias is measured, visible or not."""

    rank: int | None
    repeats: int
    oracle: Counted
    stated: Imperfection
    rng: np.random.Generator
    full: bool = False
    errors: Errors = field(init=False)
    guessed: bool = field(default=False, init=False)
    reading: NoisyReading | None = field(default=None, init=False)
    fit: WeightedFit | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.errors = Errors.of(self.stated)

    def measure(self) -> None:
        """Read out, then measure W and h."""
        with self.oracle.phase("read"):
            # Noise that is declared without a size is estimated first.
            if np.isnan(self.stated.noise):
                self.guessed = True
                self.errors = replace(self.errors, noise=estimate_noise(self.oracle, rng=self.rng))
            self.reading = measure_noisy_readout(
                self.oracle,
                self.errors,
                bound=self.stated.token_bound,
                repeats=self.repeats,
                rng=self.rng,
                full=self.full,
            )
        if self.reading is None or self.reading.readout.blind:
            return
        with self.oracle.phase("scale"):
            self.fit = begin_fit(
                self.oracle,
                self.reading,
                self.errors,
                repeats=self.repeats,
                bounded=self.stated.token_bound is not None,
                rng=self.rng,
            )
        with self.oracle.phase("measure"):
            measure_weights(self.fit, self.rank, self.rng)

    @property
    def lost(self) -> bool:
        """Whether errors hide most of what was asked of W."""
        return self.fit is not None and any(
            self.fit.prober.lost(block) for block in self.fit.blocks
        )

    @property
    def head(self) -> Head | None:
        """The head as far as it was measured; None before anything was read."""
        if self.reading is None:
            return None
        readout = self.reading.readout
        zero = np.zeros((self.oracle.width,) * 2)
        W, h = (zero, None) if self.fit is None else self.fit.weights()
        return Head(W, readout.V, h, readout.c if readout.c.any() else None, readout.U)


def conclude_noisy(
    session: NoisySession, ending: Ending, bars: dict[str, Array] | None = None
) -> Recovery[Head]:
    """The recovery as it stands, with the error bars of its tensors."""
    rank = claimed = None
    bars = bars or {}
    if session.fit is not None:
        rank = session.fit.rank
        bounded = session.stated.token_bound is not None
        claimed = certify_tilted_simplex(session.fit, bars, ending.verdict, bounded=bounded)
    return conclude(
        session.oracle,
        ending,
        Account(
            model=session.head,
            reason=_explain_noisy_head(session),
            determined=_describe_known_weights(session, ending.status),
            degrees_of_freedom=_count_noisy_freedom(session, rank),
            rank=rank,
            certificate=claimed,
            bars=bars,
        ),
    )


def _count_noisy_freedom(session: NoisySession, rank: int | None) -> int | None:
    if session.reading is None or rank is None:
        return None
    readout = session.reading.readout
    d, o = readout.V.shape
    return head_freedom(
        d,
        outputs=o,
        rank=rank,
        score_bias=d if readout.biased else 0,
        constant=bool(readout.c.any()),
        residual=readout.U is not None,
    )


def _name_errors(session: NoisySession) -> str:
    errors = session.errors
    said = "estimated" if session.guessed else "declared"
    parts = list[str]()
    if errors.noise:
        parts.append(f"random errors of standard deviation {errors.noise:.1e}")
    if errors.tolerance:
        parts.append(f"errors up to {errors.tolerance:.1e}")
    # The rounding of float64 is nobody's to declare.
    if errors.roundoff > 1e-15:
        parts.append(f"relative rounding of {errors.roundoff:.1e}")
    return f"{' and '.join(parts)} ({said})" if parts else "no errors"


def _describe_tokens(session: NoisySession) -> str:
    bound = session.stated.token_bound
    if bound is not None:
        return f"tokens up to norm {bound:.3g}"
    longest = 0.0 if session.reading is None else session.reading.length
    return f"tokens of any norm (up to {longest:.1e} was asked)"


def _explain_noisy_head(session: NoisySession) -> str:
    errors = _name_errors(session)
    return f"One head was tried; answers carry {errors}; {_describe_tokens(session)}."


def describe_accuracy(session: NoisySession, head: Head, bars: dict[str, Array]) -> str:
    """What errors and tokens let be known of W."""
    size = float(np.linalg.norm(np.asarray(head.W)))
    error = float(np.linalg.norm(bars.get("W", np.zeros(1))))
    if size > 2.0 * error:
        known = f"W is known to {error / size:.1e} of its norm"
    else:
        known = f"W cannot be told from zero, its standard error being {error:.1e}"
    return f"Answers carry {_name_errors(session)}, with {_describe_tokens(session)}; {known}."


def _describe_known_weights(session: NoisySession, status: Status) -> str:
    if session.reading is None:
        return "No answer depends on the tokens beyond its errors; nothing is determined of W."
    if session.reading.readout.blind:
        return "V is zero beyond the errors; any W fits."
    if status is Status.DISAGREES:
        return "The model is the nearest one found; nothing of it is certain."
    if session.fit is None or session.fit.rank is None:
        return (
            "V is determined within its error bars; W only along the directions measured, zero"
            " elsewhere."
        )
    return "All parameters are determined within their error bars (one standard error each)."
