r"""Read-outs to rounding, once scores are known to a hundredth.

For any token z and a few last tokens whose scores are known, H equations choose a last token y with
$z^\top W_h y > 0$ for one head and $< 0$ for all others, each by its usual size. No switch is near
then, so on hard pairs
$$G(z, y) = V_h^\top z$$
to rounding. All z of a basis give $V_h$. Where heads write into spaces that are well apart, a few z
tell these, and read-outs are the parts of their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Matrix, Stack, pin_one_thread
from keyhole.learners.joint_heads.hard_pairs import HardPairs
from keyhole.learners.joint_heads.moved_plateaus import Readouts
from keyhole.learners.joint_heads.road import Separated
from keyhole.learners.joint_heads.score_columns import ScoreColumns

_CONDITION = 30.0  # of the spaces of heads side by side, up to which read-outs are parts of a sum
_SPARE = 2  # tokens z beyond the largest rank
_RANK = 2.0**7  # roundings of the largest singular value of read-outs: what is below is none
_ROUGH = 2.0**14  # the same of read-outs before routes
_MET = 0.5  # of the scores that a route asks for, what it may miss
_WRONG = 0.05  # of the largest read-out at z, by which an answer may differ from what was expected
_FEW = 0.1  # of the answers, that may differ so


def renew_readouts(
    seen: Separated, rough: Readouts, columns: ScoreColumns, rng: np.random.Generator
) -> Readouts | None:
    """Read-outs to rounding, each from answers in which that head alone looks at x.

    None where no last token routes so.
    """
    if rough.idle is not None:
        return None
    B = seen.pairs.lone.B
    with pin_one_thread():
        Z = np.linalg.qr(rng.normal(size=(len(B), len(B))))[0].T
        routes = Routes(seen.pairs, rough.V, columns)
        V = routes.split_sum(Z, B, residual=seen.residual)
        if V is None:
            V = routes.measure_all(Z, B, residual=seen.residual)
    if V is None:
        return None
    return Readouts(V, None, B - V.sum(axis=0) if seen.residual else None)


@dataclass(frozen=True, eq=False, slots=True)
class Routes:
    """Hard pairs in which chosen heads look at a token z.

    Args:
        pairs: how to ask.
        V: read-outs, roughly.
        columns: scores along a few last tokens.
    """

    pairs: HardPairs
    V: Stack
    columns: ScoreColumns

    @property
    def alone(self) -> Matrix:
        """Signs of scores at which one head is on, for every head."""
        return 2.0 * np.eye(len(self.V)) - 1.0

    @property
    def roundoff(self) -> float:
        """Of the answers."""
        return self.pairs.lone.roundoff

    def measure_all(self, Z: Matrix, B: Matrix, *, residual: bool) -> Stack | None:
        """Read-outs from all of them but one along all directions; all where a residual acts."""
        asked = self.alone if residual else self.alone[:-1]
        found = self.measure(Z, asked)
        if found is None:
            return None
        V = np.einsum("nd,hno->hdo", Z, found)
        if not residual:
            V = np.concatenate([V, (B - V.sum(axis=0))[None]])
        return np.stack([_cut_rank(part, _RANK * self.roundoff) for part in V])

    def split_sum(self, Z: Matrix, B: Matrix, *, residual: bool) -> Stack | None:
        """Read-outs as parts of their sum in the spaces they write into, where most are apart.

        Those that are not are read alone along all directions.
        """
        spaces = [_span_rows(part, _ROUGH * self.roundoff) for part in self.V]
        alone = _choose_alone(spaces)
        rest = [at for at in range(len(spaces)) if at not in alone]
        if len(alone) > len(rest):
            return None
        few = self.measure(Z[: max(len(spaces[at]) for at in rest) + _SPARE], self.alone[rest])
        whole = self.measure(Z, np.ones((1, len(self.V)))) if residual else None
        own = self.measure(Z, self.alone[alone]) if alone else np.zeros((0, *B.shape))
        if few is None or own is None or (residual and whole is None):
            return None
        V = np.zeros((len(spaces), *B.shape))
        for at, part in zip(alone, own, strict=True):
            V[at] = _cut_rank(Z.T @ part, _RANK * self.roundoff)
        left = (B if whole is None else Z.T @ whole[0]) - V.sum(axis=0)
        kept = [_span_rows(part, _RANK * self.roundoff) for part in few]
        parts = left @ np.linalg.pinv(np.concatenate(kept))
        cuts = np.cumsum([len(space) for space in kept])[:-1]
        split = zip(np.split(parts, cuts, axis=1), kept, strict=True)
        V[rest] = [part @ space for part, space in split]
        return V

    def measure(self, Z: Matrix, signs: Matrix) -> Stack | None:
        """What heads that are on write of every row of Z: signs by rows by outputs.

        None where scores of the wanted signs do not exist, or most answers are others' sums.
        """
        last = self._choose_last_tokens(Z, signs)
        if last is None:
            return None
        x = np.repeat(Z, len(signs), axis=0)
        found = self.pairs.ask(x, last.reshape(len(x), -1)).reshape(len(Z), len(signs), -1)
        written = np.einsum("nd,hdo->nho", Z, self.V)
        expected = np.einsum("sh,nho->nso", (signs + 1.0) / 2.0, written)
        most = _WRONG * np.linalg.norm(written, axis=2).max(axis=1)
        wrong = np.linalg.norm(found - expected, axis=2) > most[:, None]
        if wrong.mean() > _FEW:
            return None
        return np.where(wrong[..., None], expected, found).swapaxes(0, 1)

    def _choose_last_tokens(self, Z: Matrix, signs: Matrix) -> Stack | None:
        """Last tokens of length one: rows of Z by signs by width."""
        C = self.columns.C
        forms = np.einsum("nd,khd->nkh", Z, C)
        forms /= np.sqrt((forms**2).mean(axis=(0, 1)))
        inverse: Stack = np.asarray(np.linalg.pinv(forms), dtype=np.float64)
        along: Stack = signs @ inverse
        if not np.abs(along @ forms - signs).max() <= _MET:
            return None
        last = along @ self.columns.Y[: len(C)]
        return last / np.linalg.norm(last, axis=2, keepdims=True)


def _span_rows(rows: Matrix, share: float) -> Matrix:
    """Orthonormal rows of what is more than a share of the largest singular value."""
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    return right[: int((values > share * values[0]).sum())]


def _choose_alone(spaces: list[Matrix]) -> list[int]:
    """Heads without which a vector is split into parts in the spaces of the others."""
    alone: list[int] = []
    while len(alone) < len(spaces) - 1:
        rest = [at for at in range(len(spaces)) if at not in alone]
        left, values, _ = np.linalg.svd(np.concatenate([spaces[at] for at in rest]))
        if len(left) == len(values) and values[-1] * _CONDITION >= values[0]:
            break
        # The head with most part in what depends on the others.
        cuts = np.cumsum([len(spaces[at]) for at in rest])[:-1]
        shares = [float(np.linalg.norm(part)) for part in np.split(left[:, -1], cuts)]
        alone.append(rest[int(np.argmax(shares))])
    return alone


def _cut_rank(V: Matrix, share: float) -> Matrix:
    """The nearest matrix without singular values below a share of the largest."""
    left, values, right = np.linalg.svd(V, full_matrices=False)
    return (left * np.where(values > share * values[0], values, 0.0)) @ right
