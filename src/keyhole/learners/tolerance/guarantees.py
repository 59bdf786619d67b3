r"""What Theorem 6.1 of [BSHK26] promises of a head recovered from answers wrong by up to tau.

Assume $|W|_F \le B$, $|v_i| \ge \mu$, and every answer within $\tau < \mu$ of $f$. Ask $[e_i]$,
answered $\hat v_i$, and with $a = 1/2$, $b = 1/B$ ask $[b e_i + a e_j;\ a e_j]$, answered $\hat
y_{ij}$. The pair identity makes the share of the first token $\alpha = \sigma(ab W_{ij})$, and

$$\hat\alpha = \frac{\hat y_{ij} - a \hat v_j}{b \hat v_i}
  \quad \text{cut to } [\sigma(-\tfrac12), \sigma(\tfrac12)],
  \qquad \hat W_{ij} = \mathrm{logit}(\hat\alpha)/(ab) .$$

**Bound.** Write $\hat v = v + \delta$ and $\hat y = y + \epsilon$, all of them at most $\tau$ in
size.

1. $y = a v_j + \alpha b v_i$, so before cutting
   $\hat\alpha - \alpha = \big(\!-\alpha \delta_i + B(\epsilon - \delta_j/2)\big)/\hat v_i$. That is
   at most $\tau(\alpha + 1.5 B)/|\hat v_i|$, for $i = j$ too.
2. $|W_{ij}| \le |W|_F \le B$ puts the logit $W_{ij}/(2B)$ into $[-1/2, 1/2]$ whatever B is, so
   $\alpha \le \sigma(1/2) = 0.6225$ lies inside the cut, and cutting moves $\hat\alpha$ no farther
   from it.
3. The slope of logit is $1/(\alpha(1 - \alpha)) = 2 + 2 \cosh t$ at the logit t, at most
   $L = 2 + 2\cosh(1/2) = 4.2553$ between the cuts. Dividing by $ab = 1/(2B)$:
   $$|\hat W_{ij} - W_{ij}| \le 2 B L\, (1.5 B + \sigma(\tfrac12))\, \tau/|\hat v_i| =: E_i .$$
4. $|\hat v_i| \ge \mu - \tau$, and there are $d^2$ entries:
   $$|\hat W - W|_F \le 2 L d B (1.5 B + \sigma(\tfrac12)) \frac{\tau}{\mu - \tau}, \qquad
     |\hat v - v|_2 \le \sqrt d\, \tau .$$

With cuts at 0.2764 and 0.7236 L is 5, which gives the constant $10 d B(1.5 B + 0.63)$; cutting
where the shares can be makes it $8.52 d B (1.5 B + 0.6225)$. It is nearly sharp: for $W = 0$, $v_i
= \mu$, $\delta_i = -\tau$ and $\epsilon = \tau$ the error is $8 d B(1.5 B + 0.5)\tau/(\mu - \tau)$
to first order. Only $|W_{ij}| \le B$ was used, and once $\hat v$ is known step 3 needs no margin:
error bars are $E_i$, at most the theorem's where $|\hat v_i| \ge \mu - \tau$.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Vector
from keyhole.claims import Check
from keyhole.errors import InvalidInput
from keyhole.oracles.base import Imperfection

PAIR_LENGTH = 0.5  # a, the length of y; that of x is 1/B
ROUNDING = 8.0  # roundings of the largest value that an answer and its inversion may carry
# The least share there can be; the greatest is 1 less this.
LEAST_SHARE = 1.0 / (1.0 + math.exp(0.5))
_SLOPE = 2.0 + 2.0 * math.cosh(0.5)


def evaluate_entry_constant(norm_bound: float) -> float:
    """2 B L (1.5 B + sigma(1/2)): the error of an entry of W over tau / |v_i|."""
    return 2.0 * norm_bound * _SLOPE * (1.5 * norm_bound + 1.0 - LEAST_SHARE)


def check_positive(name: str, value: float) -> None:
    """Raise unless `value` is finite and above zero."""
    if not (value > 0 and math.isfinite(value)):
        raise InvalidInput(f"{name} is a finite number > 0; got {value}.")


def _check_not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise InvalidInput(f"{name} is a number >= 0; got {value}.")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What Theorem 6.1 promises.

    Args:
        eps_W: largest Frobenius norm of the error of W; infinite where nothing is promised.
        eps_v: largest norm of the error of v.
    """

    eps_W: float  # noqa: N815
    eps_v: float

    # The mean of x_i . dv is at most R eps_v. Score differences (x_i - x_k)^T dW x_N are at most D
    # = 2 R^2 eps_W, so the share of any set of tokens moves by at most sigma(D/2) - sigma(-D/2) =
    # tanh(D/4), and a mean of values, which lie within 2 R |v| of each other, by that part of 2 R
    # |v|.
    def answers(self, token_bound: float, readout: float) -> float:
        r"""How far answers to tokens of norm at most R can be from those of the recovered head.

        $$R\, \epsilon_v + 2 R |v| \tanh(R^2 \epsilon_W / 2)$$

        Args:
            token_bound: R, largest norm of a token.
            readout: |v|, of either head.
        """
        check_positive("a bound on the norm of tokens", token_bound)
        return token_bound * (
            self.eps_v + 2.0 * readout * math.tanh(0.5 * token_bound**2 * self.eps_W)
        )


def guarantee(width: int, norm_bound: float, margin: float, tolerance: float) -> Guarantee:
    r"""The accuracy that a tolerance guarantees (Theorem 6.1).

    $$\epsilon_W = 2 L d B (1.5 B + \sigma(\tfrac12)) \frac{\tau}{\mu - \tau},
      \qquad \epsilon_v = \sqrt d\, \tau$$

    Args:
        width: d.
        norm_bound: B, with |W|_F <= B.
        margin: mu, with |v_i| >= mu for every entry.
        tolerance: tau, largest error of an answer.

    Returns:
        The bounds; that on W is infinite from tau = mu on.
    """
    check_positive("a norm bound", norm_bound)
    check_positive("a margin", margin)
    _check_not_negative("a tolerance", tolerance)
    eps_v = math.sqrt(width) * tolerance
    # An entry of v may then be answered as zero, and a share divided by it.
    if tolerance >= margin:
        return Guarantee(math.inf, eps_v)
    constant = width * evaluate_entry_constant(norm_bound)
    return Guarantee(constant * tolerance / (margin - tolerance), eps_v)


def largest_tolerance(
    width: int, norm_bound: float, margin: float, eps_W: float, eps_v: float
) -> float:
    r"""The largest tolerance that still guarantees an accuracy: the inverse of `guarantee`.

    $$\tau = \min\Big\{ \frac{\mu\, \epsilon_W}{k + \epsilon_W},\ \frac{\epsilon_v}{\sqrt d} \Big\},
      \qquad k = 2 L d B (1.5 B + \sigma(\tfrac12))$$

    Args:
        width: d.
        norm_bound: B, with |W|_F <= B.
        margin: mu, with |v_i| >= mu for every entry.
        eps_W: wanted bound on the Frobenius norm of the error of W; infinite where any will do.
        eps_v: wanted bound on the norm of the error of v; infinite where any will do.
    """
    check_positive("a norm bound", norm_bound)
    check_positive("a margin", margin)
    _check_not_negative("an accuracy", eps_W)
    _check_not_negative("an accuracy", eps_v)
    k = width * evaluate_entry_constant(norm_bound)
    by_scores = margin / (1.0 + k / eps_W) if eps_W > 0 else 0.0
    return min(by_scores, eps_v / math.sqrt(width))


@dataclass(frozen=True, slots=True)
class HeadBounds:
    """What Theorem 6.1 assumes of a head.

    Args:
        norm_bound: B, with |W|_F <= B.
        margin: mu, with |v_i| >= mu for every entry.
    """

    norm_bound: float
    margin: float

    def __post_init__(self) -> None:
        check_positive("a norm bound", self.norm_bound)
        check_positive("a margin", self.margin)

    @property
    def longest(self) -> float:
        """Norm of the longest token the theorem asks: max(1, 1/2 + 1/B)."""
        return max(1.0, PAIR_LENGTH + 1.0 / self.norm_bound)

    def effective(self, stated: Imperfection, readout: Vector) -> float:
        """The declared tolerance, and what rounding adds to it in the theorem's answers."""
        size = self.longest * float(np.abs(readout).max(initial=0.0))
        return stated.tolerance + ROUNDING * stated.roundoff * size


def compare_with_margin(tau: float, margin: float) -> Check:
    """Theorem 6.1 assumes tau < mu, strictly."""
    return Check("tolerance against the margin", tau, math.nextafter(margin, 0.0))
