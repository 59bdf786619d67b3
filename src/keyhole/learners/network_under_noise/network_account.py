"""What is said of a network that was fitted to answers with errors."""

from __future__ import annotations

import numpy as np

from keyhole._arrays import EPS
from keyhole.claims import Certificate, Check, Verdict
from keyhole.learners.verifying.certifying import assume_class
from keyhole.models import AbsAffine
from keyhole.oracles import Imperfection


def describe_errors(stated: Imperfection, noise: float) -> str:
    """Say which errors answers carry; `noise` is the random part, declared or estimated."""
    guessed = " (estimated)" if np.isnan(stated.noise) else ""
    parts: list[str] = []
    if noise:
        parts += [f"random errors of standard deviation {noise:.1e}{guessed}"]
    if stated.tolerance:
        parts += [f"errors up to {stated.tolerance:.1e}"]
    if stated.roundoff > EPS:
        parts += [f"relative rounding of {stated.roundoff:.1e}"]
    return " and ".join(parts) or "no errors"


def describe_scatter(by: float) -> str:
    """Say that answers scatter more than was declared."""
    return f"Answers to one sequence scatter by {by:.1e}, which is more than was declared."


def describe_shortfall(left: float, sigma: float) -> str:
    """Say how much more a model leaves than errors explain."""
    return f"It leaves {left:.1e}, and the errors explain {sigma:.1e}."


def explain_network_found(model: AbsAffine | None, radius: float | None) -> str:
    """Say what was found, in a ball of that radius or, for None, at tokens of any length."""
    if model is None:
        return "A network with one hidden ReLU layer was tried."
    where = "far away, and near the origin,"
    if radius is not None:
        where = f"in the ball of radius {radius:.3g}"
    return (
        f"A network with {model.hidden} hidden units explains the answers {where} within their"
        " errors."
    )


def describe_determined_network(
    model: AbsAffine | None, verdict: Verdict, radius: float | None, off: float
) -> str:
    """Say what answers fix of the network; `off` is what fresh points may leave unseen."""
    if model is None:
        return "Nothing was determined."
    if not verdict.verified:
        return "The model is the best one found; nothing of it is certain."
    where = ""
    if radius is not None:
        where = f" inside the ball of radius {radius:.3g}, and nothing outside,"
    return (
        f"{model.hidden} hyperplanes n, t, their jumps D and the affine part are"
        f" determined{where} within error bars, up to order and signs of (n, t). On average"
        f" over fresh points the model may be off by {off:.1e}, root mean square, beyond its"
        " error bars; units that act less than that are not seen."
    )


def certify_grown_network(
    verdict: Verdict, excess: float, count: int, *, sigma: float, radius: float
) -> Certificate:
    """The claim of grown networks, confronted with one run of `count` fresh numbers.

    Args:
        verdict: what came of the run.
        excess: mean square of fresh errors in units of the declared ones.
        count: of fresh numbers.
        sigma: standard deviation of the declared errors.
        radius: of the ball that fresh points are drawn from.
    """
    # The mean of n squares of variance 1 has standard deviation sqrt(2 / n); four of them.
    limit = 1.0 + 4.0 * (2.0 / count) ** 0.5
    return Certificate(
        "keyhole/grown-network",
        assumptions=(assume_class("answers that were not explained", verdict),),
        conclusion=(
            Check(
                "mean square of fresh errors beside the declared ones", excess, limit, judged=True
            ),
        ),
        given={"standard deviation": sigma, "radius": radius, "room": limit - 1.0},
    )
