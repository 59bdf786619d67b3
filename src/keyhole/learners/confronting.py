"""Certificates confronted with the truth: what a theorem concludes, measured on the hidden model.

In the field a certificate rests on fresh questions. Tests, sweeps and the demo hold the truth, and
here it takes the place of whatever a run said of itself: a wrong model is REFUTED however well its
own questions agreed, and so is a refusal of a target that is of the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Matrix, rms
from keyhole.claims import Certificate, Check, Verdict
from keyhole.errors import InvalidInput
from keyhole.identify import distance, matrix_rank
from keyhole.learners.base import Recovery, Status
from keyhole.learners.networks.chords import draw_in_ball
from keyhole.learners.tolerance.guarantees import compare_with_margin, guarantee
from keyhole.learners.verifying.examination import EXACT, Ruler, examine_model
from keyhole.models import AbsAffine, AttentionLayer, Gated, Head, MultiHead, OneLayer, ReluNet
from keyhole.models.layers.tensor_row import TensorRow
from keyhole.models.transformer import Network
from keyhole.oracles import Local

# The truth draws questions of its own: ten times the line of an examination keeps two draws apart.
CLOSE = 10 * EXACT
_POINTS = 20_000  # of a ball
_ROOM = 4.0  # standard deviations, or standard errors

Checks = Iterator[Check]


@dataclass(frozen=True, slots=True)
class Confrontation:
    """How one theorem is held against the truth.

    Args:
        admits: whether a truth is of the class that the theorem is about.
        conclude: (truth, model, certificate of the run, rng) -> its conclusion, measured.
        assume: (truth, certificate of the run) -> what else it assumes of the truth.
        beside: endings that are no verified model, and yet keep what the theorem promises.
    """

    admits: Callable[[Any], bool]
    conclude: Callable[[Any, Any, Certificate, np.random.Generator], Checks]
    assume: Callable[[Any, Certificate], Checks] = lambda truth, held: iter(())
    beside: tuple[Status, ...] = ()

    def promises(self, recovery: Recovery[Any]) -> bool:
        """Whether the theorem says something of the model of this run."""
        return recovery.verdict.verified or recovery.status in self.beside


def confront(
    truth: Any, recovery: Recovery[Any], *, rng: np.random.Generator
) -> Certificate | None:
    """The certificate of a recovery with its conclusion measured against the truth.

    SILENT where the truth is not of the theorem's class, or the run said itself that it stopped
    short. REFUTED, which is a bug, where a verified model is wrong, or a truth of the class was
    refused.

    Args:
        truth: the model that answered.
        recovery: what a learner made of its answers.
        rng: draws sequences, which are asked of both models.

    Returns:
        The certificate; None where the run claims no theorem.
    """
    held = recovery.certificate
    if held is None:
        return None
    rule = CONFRONTATIONS[held.theorem]
    admitted = rule.admits(truth)
    promised = rule.promises(recovery)
    refused = recovery.verdict in (Verdict.CLASS_REFUTED, Verdict.NOT_IDENTIFIABLE)
    assumptions = [
        Check("truth of another class", float(not admitted), 0.0),
        Check("run that stopped short", float(not promised and not refused), 0.0),
    ]
    conclusion = [Check("refusal of a truth of the class", float(refused), 0.0)]
    # Of another class neither assumptions nor errors are defined.
    if admitted:
        assumptions += rule.assume(truth, held)
    if admitted and promised:
        conclusion += rule.conclude(truth, recovery.model, held, rng)
    return held.confront(assumptions, conclusion)


def measure_function_gap(truth: Any, model: Any, *, rng: np.random.Generator) -> float:
    """The worst relative gap on questions scaled by the truth, and on others scaled by the model.

    A part of the truth that the model lacks shows on the first, a part that only the model has on
    the second.
    """
    sizes = [(one.width, one.outputs) for one in (truth, model)]
    if sizes[0] != sizes[1]:
        return math.inf
    # A constant that was read from answers is rounding where the truth has none.
    ruler = Ruler(constant=True)
    return max(
        examine_model(Local(asked), held, ruler=ruler, rng=rng).fresh.relative
        for asked, held in ((model, truth), (truth, model))
    )


def _conclude_same_function(
    truth: Any, model: Any, held: Certificate, rng: np.random.Generator
) -> Checks:
    del held
    gap = measure_function_gap(truth, model, rng=rng)
    yield Check("worst relative gap to the truth", gap, CLOSE)


def _conclude_same_layer(
    truth: AttentionLayer, model: AttentionLayer, held: Certificate, rng: np.random.Generator
) -> Checks:
    """The same function, as far as answers that were rounded show it."""
    gap = measure_function_gap(truth, model, rng=rng)
    yield Check("worst relative gap to the truth", gap, max(CLOSE, held.conclusion[0].limit))


def _conclude_same_network(
    truth: Any, model: Any, held: Certificate, rng: np.random.Generator
) -> Checks:
    """The same function, beyond every hyperplane of either network as well."""
    yield from _conclude_same_function(truth, model, held, rng)
    if truth.width == model.width and truth.outputs == model.outputs:
        x = np.concatenate([_find_points_beyond(net) for net in (truth, model)])[:, None]
        gap = np.abs(truth(x) - model(x)).max(axis=1)
        size = truth.magnitude(x)
        worst = float((gap / np.where(size > 0, size, 1.0)).max(initial=0.0))
        yield Check("worst relative gap beyond the hyperplanes", worst, CLOSE)


def _find_points_beyond(net: ReluNet | AbsAffine) -> Matrix:
    """For every hyperplane the foot of the origin on it, twice as far out, and its mirror image.

    A unit that bends so far away that no fresh question meets it has acted on one of the two.
    """
    normals, offsets = (net.n, net.t) if isinstance(net, AbsAffine) else (net.W1, -net.b1)
    square = (normals**2).sum(axis=1)
    acting = square > 0
    foot = normals[acting] * (offsets[acting] / square[acting])[:, None]
    return np.concatenate([2.0 * foot, -2.0 * foot])


def _conclude_bounded_errors(
    truth: Head, model: Head, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Theorem 6.1: errors of W and v within what the tolerance guarantees."""
    del rng
    promised = _read_guarantee(truth, held)
    off = float(np.linalg.norm(np.asarray(model.W) - np.asarray(truth.W)))
    yield Check("error of W", off, promised.eps_W)
    yield Check("error of v", float(np.linalg.norm(model.V - truth.V)), promised.eps_v)


def _read_guarantee(truth: Head, held: Certificate) -> Any:
    bounds = (held.given[name] for name in ("norm bound", "margin", "tolerance"))
    return guarantee(truth.width, *bounds)


def _assume_bounds(truth: Head, held: Certificate) -> Checks:
    given = held.given
    yield compare_with_margin(given["tolerance"], given["margin"])
    yield Check("|W|_F", float(np.linalg.norm(np.asarray(truth.W))), given["norm bound"])
    yield Check("margin against the least |v_i|", given["margin"], float(np.abs(truth.V).min()))


def _conclude_labelled_head(
    truth: Head, model: Head, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Labels: W to the digits that were asked for, V up to a positive factor of every column."""
    del rng
    allowed = next(check.limit for check in held.conclusion if not check.judged)
    yield Check("relative error of W", distance(truth, model).W, allowed)
    turned = _normalise_columns(truth) - _normalise_columns(model)
    yield Check("error of the directions of V", float(np.abs(turned).max()), _ROOM * allowed)


def _normalise_columns(head: Head) -> Any:
    lengths = np.linalg.norm(head.V, axis=0)
    return head.V / np.where(lengths > 0, lengths, 1.0)


def _conclude_noisy_head(
    truth: Head, model: Head, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Random errors: W within a few of the standard errors that are claimed.

    The columns of W are measured apart, so that the mean square over d of them has a relative
    standard deviation of at most sqrt(2 / d).
    """
    del rng
    claimed = held.conclusion[0].limit
    limit = claimed * math.sqrt(1.0 + _ROOM * math.sqrt(2.0 / truth.width))
    off = rms(np.asarray(model.W) - np.asarray(truth.W))
    yield Check("root mean square error of an entry of W", off, limit)


def _conclude_cast_head(
    truth: Head, model: Head, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Casts: the error of W is a few of the bars that are claimed, relative to W."""
    del rng
    limit = _ROOM * held.conclusion[0].limit
    yield Check("relative error of W against the truth", distance(truth, model).W, limit)


def _conclude_network_in_ball(
    truth: Any, model: Any, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Chords: on all but the stated share of the ball, and of its surface, the same function."""
    x = draw_in_ball(_POINTS, truth.width, held.given["radius"], rng=rng)[:, None]
    gap = np.abs(truth(x) - model(x)).max(axis=1)
    wrong = gap > CLOSE * truth.magnitude(x)
    yield Check("share of the ball that is wrong", float(wrong.mean()), held.conclusion[-1].limit)


def _conclude_grown_network(
    truth: Any, model: Any, held: Certificate, rng: np.random.Generator
) -> Checks:
    """Errors: what the model lacks of the truth is hidden by what the mean square varies."""
    x = draw_in_ball(_POINTS, truth.width, held.given["radius"], rng=rng)[:, None]
    off = rms(truth(x) - model(x)) / held.given["standard deviation"]
    # Fresh errors vary by as much below what they are as above it.
    yield Check("mean square of the model's error", off**2, 2.0 * held.given["room"])


def _assume_readout(truth: Any, held: Certificate) -> Checks:
    del held
    yield Check("read-out that is zero", float(not truth.V.any()), 0.0)


def _assume_independent_readouts(truth: MultiHead, held: Certificate) -> Checks:
    del held
    ranks = sum(matrix_rank(V) for V in truth.V)
    yield Check("read-out ranks of all heads together", float(ranks), float(truth.outputs))


def _assume_acting_network(truth: OneLayer, held: Certificate) -> Checks:
    del held
    form = _find_normal_form(truth.net)
    acts = (form.P.any() or form.D.any()) and truth.head.V.any()
    yield Check("network that is constant", float(not acts), 0.0)


def _assume_odd_part(truth: OneLayer, held: Certificate) -> Checks:
    """Without biases |z| cancels in f(X) - f(-X), and what is left is the head V P."""
    del held
    form = _find_normal_form(truth.net)
    biases = [form.t.any(), truth.head.h is not None, truth.head.c is not None, truth.residual]
    yield Check("biases and residuals", float(sum(map(bool, biases))), 0.0)
    silent = not (truth.head.V @ form.P.T).any()
    yield Check("odd part that shows no attention", float(silent), 0.0)


def _is_learned_layer(truth: Any) -> bool:
    known = isinstance(truth, AttentionLayer)
    return known and truth.sinks is None and not truth.wiring.qk_norm


def _assume_independent_outputs(truth: AttentionLayer, held: Certificate) -> Checks:
    del held
    spaces = np.concatenate(list(truth.Wo), axis=1)
    shared = spaces.shape[1] - matrix_rank(spaces)
    yield Check("output directions that heads share", float(shared), 0.0)


def _find_normal_form(net: Network) -> AbsAffine:
    if isinstance(net, Gated):
        raise InvalidInput("a gated network is no sum of absolute values.")
    return net.normal_form() if isinstance(net, ReluNet) else net


def _is_head(truth: Any) -> bool:
    return isinstance(truth, Head)


def _are_heads(truth: Any) -> bool:
    return isinstance(truth, Head | MultiHead)


def _is_piecewise_linear(truth: Any) -> bool:
    return isinstance(truth, AbsAffine) or (
        isinstance(truth, ReluNet) and truth.activation == "relu"
    )


def _is_smooth(truth: Any) -> bool:
    return isinstance(truth, ReluNet) and truth.activation != "relu"


def _is_one_layer(truth: Any) -> bool:
    return isinstance(truth, OneLayer) and _is_piecewise_linear(truth.net)


def _is_smooth_layer(truth: Any) -> bool:
    return isinstance(truth, OneLayer) and (_is_smooth(truth.net) or isinstance(truth.net, Gated))


_HEAD = Confrontation(_is_head, _conclude_same_function, _assume_readout)
_HEADS = Confrontation(_are_heads, _conclude_same_function)
CONFRONTATIONS: Mapping[str, Confrontation] = {
    "BSHK26/4.1": _HEAD,
    "BSHK26/5.1": _HEAD,
    "BSHK26/6.1": Confrontation(
        _is_head,
        _conclude_bounded_errors,
        _assume_bounds,
        beside=(Status.IMPRECISE, Status.EMPTY_GUARANTEE),
    ),
    "BSHK26/membership": Confrontation(_is_head, _conclude_labelled_head, _assume_readout),
    "BSHK26/orthogonal-heads": _HEADS,
    "BSHK26/one-layer": Confrontation(_is_one_layer, _conclude_same_function, _assume_odd_part),
    "KKG26/repetition": _HEADS,
    "keyhole/tilted-simplex": Confrontation(_is_head, _conclude_noisy_head),
    "keyhole/null-balance": Confrontation(_is_head, _conclude_cast_head, _assume_readout),
    "keyhole/one-line": Confrontation(_is_piecewise_linear, _conclude_same_network),
    "keyhole/chords": Confrontation(_is_piecewise_linear, _conclude_network_in_ball),
    "keyhole/grown-network": Confrontation(_is_piecewise_linear, _conclude_grown_network),
    "keyhole/smooth-units": Confrontation(_is_smooth, _conclude_same_network),
    "keyhole/gated-units": Confrontation(
        lambda truth: isinstance(truth, Gated), _conclude_same_function
    ),
    "keyhole/third-order-recovery": Confrontation(
        lambda truth: isinstance(truth, TensorRow) and truth.unit.order == 3,
        _conclude_same_function,
    ),
    "keyhole/local-affine": Confrontation(
        _is_one_layer, _conclude_same_function, _assume_acting_network
    ),
    "keyhole/segment-scores": Confrontation(_is_smooth_layer, _conclude_same_function),
    "keyhole/saturate-and-isolate": _HEADS,
    "keyhole/joint-heads": _HEADS,
    "keyhole/hessian-pencil": _HEADS,
    "keyhole/whole-layer": Confrontation(
        lambda truth: isinstance(truth, MultiHead),
        _conclude_same_function,
        _assume_independent_readouts,
    ),
    "keyhole/layers-as-built": Confrontation(
        _is_learned_layer, _conclude_same_layer, _assume_independent_outputs
    ),
}
