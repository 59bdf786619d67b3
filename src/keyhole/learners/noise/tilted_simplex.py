r"""The certificate of keyhole/tilted-simplex: standard errors beside those of the best lengths.

With $|x|^2 = 2R^2/3$, $|y|^2 = R^2/3$ and $x \cdot v = |x||v|/\sqrt2$ a share is read to
$\sqrt2\,s/(|x||v|)$, a logit near zero to four times that, a form of unit vectors to
$4\sqrt2\,s/(|x|^2|y||v|) = 6\sqrt6\,s/(R^3|v|)$. Half of every squared length lies outside v, so
that solving for the column costs $\sqrt2$ more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from keyhole._arrays import Array, rms
from keyhole.claims import Certificate, Check, Verdict
from keyhole.learners.noise.weighted_fit import WeightedFit
from keyhole.learners.one_head.readout import Readout
from keyhole.learners.verifying.certifying import assume_class

_SMALL = 0.5  # root mean square of the logits up to which they count as small
_ROOM = 1.25  # what reading v, and logits that are not zero, may add


def certify_tilted_simplex(
    fit: WeightedFit, bars: Mapping[str, Array], verdict: Verdict, *, bounded: bool
) -> Certificate | None:
    """The theorem confronted with a finished measurement; None where W has no error bars."""
    if "W" not in bars or not fit.blocks:
        return None
    claimed = standard_error(fit)
    return Certificate(
        "keyhole/tilted-simplex",
        (
            assume_class("answers that no single head gives", verdict),
            Check("missing bounds on tokens", float(not bounded), 0.0),
            Check("outputs", float(fit.prober.reading.readout.V.shape[1]), 1.0),
            Check("biases and residuals", float(_count_extras(fit.prober.reading.readout)), 0.0),
            Check("measured columns missing", float(_count_missing_columns(fit)), 0.0),
            Check("size of the logits", _measure_logits(fit), _SMALL),
            Check("R / sqrt 3 over the shortest y", _measure_shortening(fit), 1.0 + 1e-9),
            Check("other errors beside the noise", _measure_other_errors(fit), 0.1),
        ),
        (Check("standard error of an entry of W", rms(bars["W"]), _ROOM * claimed),),
    )


def standard_error(fit: WeightedFit) -> float:
    """12 sqrt(3) s / (R^3 |v|), s being that of a mean over the repeats."""
    prober = fit.prober
    R = prober.reading.length
    seen = float(np.linalg.norm(prober.reading.readout.V)) * R
    return 12.0 * float(np.sqrt(3.0 / prober.repeats)) * prober.errors.noise / seen / R / R


def _count_extras(readout: Readout) -> int:
    return int(readout.biased) + int(readout.c.any()) + int(readout.U is not None)


def _count_missing_columns(fit: WeightedFit) -> int:
    """How many of the columns of W were not measured whole."""
    d = len(fit.prober.reading.readout.V)
    return d - sum(len(block.Y) for block in fit.blocks if len(block.design.X) == d and fit.whole)


def _measure_logits(fit: WeightedFit) -> float:
    readout = fit.prober.reading.readout
    return max(rms(block.logits(readout, block.answers)) for block in fit.blocks)


def _measure_shortening(fit: WeightedFit) -> float:
    shortest = min(float(np.abs(block.ly).min()) for block in fit.blocks)
    return fit.prober.reading.length / np.sqrt(3.0) / shortest if shortest > 0 else np.inf


def _measure_other_errors(fit: WeightedFit) -> float:
    """Deviation of an answer without the noise, as a share of the noise."""
    errors = fit.prober.errors
    noise = errors.noise / np.sqrt(fit.prober.repeats)
    whole = max(float(fit.prober.deviation(block).max()) for block in fit.blocks)
    others = float(np.sqrt(max(whole**2 - noise**2, errors.tolerance**2)))
    return others / noise if noise > 0 else np.inf
