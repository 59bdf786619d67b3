r"""The published baseline for H heads [KKG26]: rational interpolation in the repetition ratio.

n copies of y + x and k copies of y give, above what y alone gives,
$$G(u) = \sum_h b_h \frac{u}{u + p_h}, \qquad u = n/k,\; b_h = V_h^\top x,\;
p_h = e^{-x^\top W_h y}.$$
With $D(u) = \prod_h (u + p_h)$ and $N(u) = u \cdot$ (a polynomial of degree H - 1), $N - G D = 0$
at 2H ratios is a linear system for the coefficients. Roots of D are $-p_h$, and the $b_h$ follow by
least squares. Heads are told apart along one x by their $b_h$, and across $x_i$ by asking $x_1 +
x_i$ as well, where b and the scores add up.

Exact on paper. In floating point the system is exponentially ill-conditioned in H: the learner
measures by how much it amplified rounding, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from keyhole._arrays import (
    Array,
    Matrix,
    Sequences,
    Stack,
    Vector,
    find_power_of_two,
    pin_one_thread,
)
from keyhole.claims import Certificate, Check
from keyhole.errors import BudgetSpent, InvalidInput
from keyhole.learners.base import Plan, Recovery, Status
from keyhole.learners.one_head.probes import Saturated
from keyhole.learners.one_head.readout import NotAHead, Readout, Scattered, measure_readout
from keyhole.learners.one_head.scales import find_scale
from keyhole.learners.verifying.certifying import assume_class, conclude_agreement
from keyhole.learners.verifying.ending import SPENT, Ending, end_scattered
from keyhole.learners.verifying.examination import EXACT
from keyhole.learners.verifying.questions import QUERIES
from keyhole.learners.verifying.sums_of_heads import conclude_sum, judge_sum, refuse_affine
from keyhole.models import MultiHead
from keyhole.oracles import Counted, Oracle
from keyhole.oracles.base import read_imperfection

_REASON = "Tokens were repeated, and answers interpolated by a rational function of the ratio."
_PROBES = 4  # pairs looked at to find the token lengths
_SCALING = 200  # queries that finding them takes at most
_RATIO = 2.0**-6  # |y| / |x|
_TRUSTED = 1e6  # an amplification of rounding up to which a disagreement is the target's
_STEPS = 4  # of Gauss and Newton


class _NoPoles(Exception):
    """The interpolant has poles that no heads have."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """Recovers a known number of heads with one output; a comparison, not a recommendation.

    Args:
        heads: how many heads there are.
    """

    heads: int

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise InvalidInput(f"the number of heads is a whole number >= 1; got {self.heads}.")

    def plan(self, width: int, *, outputs: int = 1) -> Plan:
        """D + 5 queries to read out, a few to scale, 2H at each of 2d^2 - d pairs, verification."""
        measure = 2 * self.heads * (2 * width * width - width)
        by_phase = {"read": width + 5, "scale": 2 * _PROBES, "measure": measure, "verify": QUERIES}
        most = 3 * (width + 5) + _SCALING + measure + QUERIES + 8
        return Plan(
            by_phase=by_phase, at_most=most, degrees_of_freedom=self.heads * (width * width + width)
        )

    def run(self, oracle: Oracle, *, rng: np.random.Generator) -> Recovery[MultiHead]:
        """Recover all heads; certificate KKG26/repetition."""
        counted = Counted(oracle)
        run = _RepetitionRun(self.heads)
        measuring, checking = rng.spawn(2)
        model = None
        try:
            with pin_one_thread():
                model = run.measure(counted, measuring)
            ending = judge_sum(counted, model, probe=run.probe, rng=checking)
        except BudgetSpent:
            ending = SPENT
        except Scattered as found:
            ending = end_scattered(found.gap)
        except NotAHead as refusal:
            ending = refuse_affine(counted, refusal.counterexample, rng=checking)
        except (_NoPoles, Saturated) as refusal:
            ending = Ending(status=Status.IMPRECISE, detail=str(refusal))
        recovery = conclude_sum(counted, model, run.add_amplification(ending), _REASON)
        certificate = self._certificate(recovery, counted.width, run.amplified)
        return replace(recovery, certificate=certificate)

    def _certificate(
        self, recovery: Recovery[MultiHead], width: int, amplified: float
    ) -> Certificate | None:
        if recovery.fresh is None:
            return None
        stated = recovery.ledger["read"].sequences + recovery.ledger["measure"].sequences
        published = 4 * self.heads * width * width - 2 * self.heads + 1
        return Certificate(
            "KKG26/repetition",
            assumptions=(
                assume_class("answers that so many heads do not give", recovery.verdict),
                Check("rounding after amplification", amplified * 2.0**-53, EXACT),
                Check("queries that read and measure", stated, published + 5),
            ),
            conclusion=(conclude_agreement(recovery.fresh),),
        )


class _RepetitionRun:
    """One recovery under way."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.amplified = 0.0
        self.probe: tuple[Sequences, Matrix] | None = None

    def measure(self, oracle: Counted, rng: np.random.Generator) -> MultiHead:
        """The heads, fitted and not yet verified."""
        roundoff = read_imperfection(oracle).roundoff
        with oracle.phase("read"):
            readout = measure_readout(oracle, roundoff=roundoff, rng=rng)
        self.probe = readout.probe
        if readout.V.shape[1] != 1 or readout.biased or readout.U is not None:
            raise _NoPoles(
                "Repetition takes heads with one output, without score biases and without a"
                " residual."
            )
        d = oracle.width
        x, y = (np.linalg.qr(rng.normal(size=(d, d)))[0].T for _ in range(2))
        with oracle.phase("scale"):
            sx, sy = _find_token_lengths(oracle, readout, rng)
        with oracle.phase("measure"):
            b, a = self._pairs(oracle, readout, sx * x, sy * y)
            # With one coordinate there is one x, and nothing to match.
            if d > 1:
                sums = self._pairs(oracle, readout, sx * (x[:1] + x[1:]), sy * y)
                b, a = _pair_heads(b, a, *sums)
        # x and y are orthonormal, so that their transposes solve for V and W.
        V: Matrix = (x.T @ b / sx).T
        W: Stack = x.T @ a.transpose(2, 0, 1) @ y / (sx * sy)
        return MultiHead(W, V[:, :, None], None, readout.c if readout.c.any() else None)

    def _pairs(
        self, oracle: Counted, readout: Readout, x: Matrix, y: Matrix
    ) -> tuple[Matrix, Array]:
        """Residues b (x by heads) and scores a (x by y by heads), heads sorted by b along each x.

        Along one x all y have the same b: it is taken where rounding was amplified least, and
        scores fitted to it.
        """
        H = self.heads
        counts = [(n, 2 * H + 1 - n) for n in range(1, 2 * H + 1)]
        G = np.stack([_ask_repeated_tokens(oracle, readout, x, y, n, k) for n, k in counts], axis=2)
        u = np.array([n / k for n, k in counts])
        fits = [[self._interpolate_pair(u, g) for g in row] for row in G]
        b = np.array([min(row, key=lambda fit: fit[2])[0] for row in fits])
        scores = [
            [_sharpen_scores(u, g, r, fit[1]) for g, fit in zip(row, these, strict=True)]
            for row, these, r in zip(G, fits, b, strict=True)
        ]
        return b, np.array(scores)

    def _interpolate_pair(self, u: Vector, G: Vector) -> tuple[Vector, Vector, float]:
        """Residues and scores of one pair, by residue, and how much rounding was amplified."""
        powers = u[:, None] ** np.arange(self.heads + 1)
        system = np.hstack([powers[:, 1:], -G[:, None] * powers[:, :-1]])
        try:
            found = np.linalg.solve(system, G * powers[:, -1])
        except np.linalg.LinAlgError as error:
            self.amplified = np.inf
            raise _NoPoles(
                "Two heads are not told apart by repetition at one pair of tokens."
            ) from error
        roots = np.asarray(np.roots(np.append(1.0, found[self.heads :][::-1])), dtype=np.complex128)
        p = -roots.real
        if roots.imag.any() or not (p > 0).all():
            # Without poles only the linear system is left to measure by, its columns at one scale.
            amplified = float(np.linalg.cond(system / np.abs(system).max(axis=0)))
            self.amplified = max(self.amplified, amplified)
            raise _NoPoles(
                "The interpolant has poles that no heads have: rounding was amplified beyond its"
                " reach."
            )
        basis = u[:, None] / (u[:, None] + p)
        b = np.asarray(np.linalg.lstsq(basis, G, rcond=None)[0], dtype=np.float64)
        # Derivatives in log b and in the scores: the least of them is what rounding is divided by.
        derivative = np.hstack([basis * b, basis * p / (u[:, None] + p) * b])
        least = float(np.linalg.svd(derivative, compute_uv=False)[-1])
        amplified = float(np.linalg.norm(G)) / max(least, np.finfo(float).tiny)
        self.amplified = max(self.amplified, amplified)
        order = np.argsort(b)
        return b[order], -np.log(p[order]), amplified

    def add_amplification(self, ending: Ending) -> Ending:
        """The ending, with what was done to rounding: what that explains refutes nothing."""
        if self.amplified == 0.0:
            return ending
        detail = (
            f"Rational interpolation amplified rounding up to {self.amplified:.0e} times."
            f" {ending.detail}".strip()
        )
        if ending.status is Status.HEADS_DISAGREE and self.amplified > _TRUSTED:
            return Ending(status=Status.IMPRECISE, fresh=ending.fresh, detail=detail)
        return replace(ending, detail=detail)


def _sharpen_scores(u: Vector, G: Vector, b: Vector, a: Vector) -> Vector:
    """Scores that fit G best for known residues, by a few Gauss-Newton steps from given ones."""
    for _ in range(_STEPS):
        with np.errstate(over="ignore"):
            share = 1.0 / (1.0 + np.exp(-a) / u[:, None])
        step = np.linalg.lstsq(share * (1.0 - share) * b, G - share @ b, rcond=None)[0]
        # A saturated share has no slope, and would send its score far away.
        a = a + np.clip(step, -1.0, 1.0)
    return a


def _ask_repeated_tokens(
    oracle: Counted, readout: Readout, x: Matrix, y: Matrix, n: int, k: int
) -> Matrix:
    """G for n copies of y + x and k of y, for every x (rows) and y (columns)."""
    last = np.tile(y, (len(x), 1))
    first = last + np.repeat(x, len(y), axis=0)
    copies = [np.repeat(first[:, None], n, axis=1), np.repeat(last[:, None], k, axis=1)]
    X = np.concatenate(copies, axis=1)
    return (oracle.ask(X) - readout.base(last))[:, 0].reshape(len(x), len(y))


def _find_token_lengths(
    oracle: Counted, readout: Readout, rng: np.random.Generator
) -> tuple[float, float]:
    """Token lengths at which the two tokens of random pairs have shares of comparable size."""
    x, y = rng.normal(size=(2, _PROBES, oracle.width))
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))

    def lengths(product: float) -> tuple[float, float]:
        sx = float(np.sqrt(product / _RATIO))
        return sx, product / sx

    def logits(product: float) -> Vector:
        sx, sy = lengths(product)
        pairs = np.stack([sx * x + sy * y, sy * y], axis=1)
        rise = (oracle.ask(pairs) - readout.base(sy * y))[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = rise / (sx * x @ readout.V[:, 0])
            t = np.log(share / (1.0 - share))
        return np.where(np.isfinite(t), t, np.inf)

    product = find_scale(logits, largest=1e40)
    if product is None:
        raise _NoPoles("No score acts on pairs of random tokens.")
    sx, sy = lengths(product)
    return find_power_of_two(sx), find_power_of_two(sy)


def _pair_heads(b: Matrix, a: Array, b_sum: Matrix, a_sum: Array) -> tuple[Matrix, Array]:
    """Heads of every x_i in the order of x_1, so that b and scores add up to those of the sum."""
    # Slow to import, and needed here alone.
    from scipy.optimize import linear_sum_assignment

    b, a = b.copy(), a.copy()
    for i in range(len(b_sum)):
        both_b = b[0][:, None] + b[i + 1][None, :]
        both_a = a[0][:, :, None] + a[i + 1][:, None, :]
        gap_b = np.abs(both_b[..., None] - b_sum[i]) / np.abs(b).max()
        gap_a = np.abs(both_a[..., None] - a_sum[i][:, None, None, :]).mean(axis=0)
        cost = (gap_b + gap_a / max(float(np.abs(a).max()), 1e-300)).min(axis=2)
        order = linear_sum_assignment(cost)[1]
        b[i + 1] = b[i + 1][order]
        a[i + 1] = a[i + 1][:, order]
    return b, a
