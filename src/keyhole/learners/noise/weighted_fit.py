r"""From answers with errors to W and h, with standard errors.

All of W: its columns along an orthonormal basis, measured one by one. Low rank: k columns $C = W Y$
show the rank, r of the singular values standing above the noise edge $1.15\,s(\sqrt d + \sqrt k)$;
then $B = Q^\top W$ on the other directions, Q the range of C, gives the row space V of W; then $C_2
= W V$ is measured and $W = C_2 V^\top$. To first order its error is that of $C_2$ and of V, about
$\sqrt{2r/d}$ of what measuring all of W gives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Array, Matrix, Stack, Vector, pin_one_thread, rms
from keyhole.learners.noise.bounded_probes import Block, NoisyProber, aim_prober
from keyhole.learners.noise.noisy_readout import Errors, NoisyReading
from keyhole.learners.one_head.columns import Directions
from keyhole.learners.one_head.designs import Design, build_frame_design, choose_span_design
from keyhole.learners.one_head.readout import Readout
from keyhole.models import Factored, Head
from keyhole.oracles import Counted

_WORTH = 0.38  # share of the columns beyond which measuring all of them costs no more
_SMALL = 12  # width below which all columns are measured
_EDGE = 1.15  # share of the largest singular value that noise alone has, above which one counts
# Times the edge that the least of them has; below that others may hide, and all of W is measured.
_CLEAR = 4.0
_SPARE = 3  # singular values below the edge that show that the range is complete
_DIRECTIONS = 8  # columns measured at a time
_TOGETHER = 8  # vectors asked together, where errors count for nothing
_CUT = 1e-3  # directions V sees less than this share of its best are not used for reading
_DRAWS = 100  # fits with errors drawn anew
# Of them, those whose answers are compared: a spread need not be known as closely as an error bar.
_ANSWERED = 20
_WORK = 60 * 256**3  # entries a matrix product may cost over all of them

Weights = tuple[Matrix | Factored, Vector | None]


@dataclass(frozen=True, eq=False, slots=True)
class _Whole:
    """Columns along the first directions, the others being taken for zero."""

    directions: Directions
    sy: float

    def weights(self, blocks: list[Block], readout: Readout, answers: list[Stack]) -> Weights:
        """W and h from the columns."""
        C = _join_block_columns(blocks, readout, answers) / self.directions.weight
        M = C.T @ self.directions.O[: len(C)]
        if not readout.biased:
            return M, None
        return M[:, :-1] * (np.sqrt(len(M)) / self.sy), M[:, -1]


@dataclass(frozen=True, eq=False, slots=True)
class _Low:
    """W = C2 V^T: the last block holds C2, measured along V; those before it show V.

    Errors of V come in through its projector, by which the measured rows are multiplied.
    """

    Q: Matrix
    V: Matrix
    directions: Directions

    def weights(self, blocks: list[Block], readout: Readout, answers: list[Stack]) -> Weights:
        """The factors of W."""
        V = find_row_basis(blocks[:-1], readout, answers[:-1], self.Q, self.directions)
        C2 = blocks[-1].columns(readout, answers[-1])
        return Factored(C2.T, V @ (V.T @ self.V)), None


def _join_block_columns(blocks: list[Block], readout: Readout, answers: list[Stack]) -> Matrix:
    return np.concatenate([b.columns(readout, a) for b, a in zip(blocks, answers, strict=True)])


def find_row_basis(
    blocks: list[Block], readout: Readout, answers: list[Stack], Q: Matrix, directions: Directions
) -> Matrix:
    """An orthonormal basis of the rows of W: the last block holds columns along Q, others whole."""
    whole = _join_block_columns(blocks[:-1], readout, answers[:-1]) @ Q
    B = np.concatenate([whole, blocks[-1].columns(readout, answers[-1])])
    return np.linalg.svd(B.T @ directions.O, full_matrices=False)[2].T


@dataclass(slots=True)
class WeightedFit:
    """What was measured of W, and how weights follow from it.

    Args:
        prober: how forms are measured.
        assembly: how weights follow from what was measured.
        design: vectors that measure whole columns.
    """

    prober: NoisyProber
    assembly: _Whole | _Low
    design: Design
    blocks: list[Block] = field(default_factory=list[Block], init=False)
    rank: int | None = field(default=None, init=False)

    @property
    def whole(self) -> bool:
        """Whether W is put together from whole columns."""
        return isinstance(self.assembly, _Whole)

    def weights(self) -> Weights:
        """W and h from what was measured; zero along directions that were not."""
        with pin_one_thread():
            answers = [block.answers for block in self.blocks]
            return self._assemble(self.prober.reading.readout, answers)

    def _assemble(self, readout: Readout, answers: list[Stack]) -> Weights:
        if not answers:
            return np.zeros((len(readout.V),) * 2), None
        return self.assembly.weights(self.blocks, readout, answers)

    def drawn(self, rng: np.random.Generator) -> tuple[Readout, Weights]:
        """Read-out and weights as they might have come out, had the errors fallen differently."""
        readout = self.prober.reading.drawn(rng)
        answers = [
            b.answers + self.prober.deviation(b) * rng.normal(size=b.answers.shape)
            for b in self.blocks
        ]
        return readout, self._assemble(readout, answers)


def begin_fit(
    oracle: Counted,
    reading: NoisyReading,
    errors: Errors,
    *,
    repeats: int,
    bounded: bool,
    rng: np.random.Generator,
) -> WeightedFit:
    """Nothing measured yet: the design and the lengths of tokens are chosen."""
    readout = reading.readout
    most = 1 if bounded or readout.biased else min(_TOGETHER, readout.V.shape[1])
    design = build_frame_design(readout.V, most=most, cut=_CUT)
    prober = aim_prober(oracle, reading, design, errors, repeats=repeats, bounded=bounded, rng=rng)
    directions = Directions.random(oracle.width, biased=readout.biased, rng=rng)
    return WeightedFit(prober, _Whole(directions, prober.ly), design)


def measure_weights(fit: WeightedFit, rank: int | None, rng: np.random.Generator) -> None:
    """Measure W, as far as its rank asks for."""
    # Tokens of any length show no scores.
    if fit.prober.ly == 0.0:
        fit.rank = 0
        return
    low = _find_visible_range(fit, rank, rng)
    if low is None:
        fit.rank = _count_visible_values(fit, rng)
    else:
        _measure_along_range(fit, low)


def _find_visible_range(
    fit: WeightedFit, rank: int | None, rng: np.random.Generator
) -> Matrix | None:
    """Whole columns until their range is complete: its basis, or None when all were measured.

    Where no singular value stands clear of the edge, more of W may hide below it, so all of it is
    measured.
    """
    directions = fit.assembly.directions
    d = directions.Y.shape[1]
    known = 0
    # A score bias adds its own column to the range, and narrow targets gain nothing.
    whole = directions.weight != 1.0 or d < _SMALL
    while known < len(directions.Y):
        count = 4 if rank is None else rank + 4 - known
        whole = whole or known + count > _WORTH * d
        count = _DIRECTIONS if whole else count
        fit.blocks.append(fit.prober.block(fit.design, directions.Y[known : known + count]))
        known = min(known + count, len(directions.Y))
        if not whole:
            U, S = _decompose_columns(fit)
            edge = _estimate_noise_edge(fit, known, rng)
            above = int((edge < S).sum()) if rank is None else rank
            if above <= known - _SPARE:
                whole = rank is None and (above == 0 or S[above - 1] < _CLEAR * edge)
                if not whole:
                    return U[:, :above]
    return None


def _decompose_columns(fit: WeightedFit) -> tuple[Matrix, Vector]:
    with pin_one_thread():
        readout = fit.prober.reading.readout
        C = _join_block_columns(fit.blocks, readout, [block.answers for block in fit.blocks])
        U, S, _ = np.linalg.svd(C.T, full_matrices=False)
        return U, S


def _estimate_noise_edge(fit: WeightedFit, known: int, rng: np.random.Generator) -> float:
    """Largest singular value that errors alone give so many columns, with a margin."""
    readout = fit.prober.reading.readout
    last = fit.blocks[-1]
    shaken = last.answers + fit.prober.deviation(last) * rng.normal(size=last.answers.shape)
    with pin_one_thread():
        deviation = rms(last.columns(readout, shaken) - last.columns(readout, last.answers))
    return _EDGE * deviation * float(np.sqrt(len(readout.V)) + np.sqrt(known))


def _count_visible_values(fit: WeightedFit, rng: np.random.Generator) -> int:
    """How many singular values of W stand above the noise edge, W being measured whole."""
    W = np.asarray(fit.weights()[0])
    with pin_one_thread():
        deviation = rms(np.asarray(fit.drawn(rng)[1][0]) - W)
        edge = 2.0 * _EDGE * deviation * np.sqrt(len(W))
        return int((np.linalg.svd(W, compute_uv=False) > edge).sum())


def _measure_along_range(fit: WeightedFit, Q: Matrix) -> None:
    """The rows of W along Q, then its columns along those rows."""
    fit.rank = Q.shape[1]
    if fit.rank == 0:
        return
    directions = fit.assembly.directions
    known = sum(len(b.Y) for b in fit.blocks)
    readout = fit.prober.reading.readout
    inner = choose_span_design(readout.V, Q, most=fit.design.X.shape[1], cut=_CUT)
    blocks = [*fit.blocks, fit.prober.block(inner, directions.Y[known:])]
    with pin_one_thread():
        V = find_row_basis(blocks, readout, [b.answers for b in blocks], Q, directions)
    blocks.append(fit.prober.block(fit.design, np.ascontiguousarray(V.T)))
    fit.blocks = blocks
    fit.assembly = _Low(Q, V, directions)


def replicate_fits(
    fit: WeightedFit | None,
    reading: NoisyReading,
    head: Head,
    asked: list[Stack],
    rng: np.random.Generator,
) -> tuple[dict[str, Array], list[Array]]:
    """Standard errors of tensors, and of answers to sequences, from fits with errors drawn anew."""
    draws = int(np.clip(_WORK // head.width**3, _ANSWERED, _DRAWS))
    sums = {name: np.zeros(np.shape(t)) for name, t in _name_tensors(head).items()}
    spread = [np.zeros(len(X)) for X in asked]
    centre = [head(X) for X in asked]
    for draw in range(draws):
        other = _draw_replicate(fit, reading, head, rng)
        for name, tensor in _name_tensors(other).items():
            sums[name] += (tensor - _name_tensors(head)[name]) ** 2
        for at, X in enumerate(asked if draw < _ANSWERED else []):
            spread[at] += ((other(X) - centre[at]) ** 2).max(axis=1) / _ANSWERED
    # So few draws make 95 % intervals a little short.
    more = 1.0 + 1.2 / draws
    bars = {name: more * np.sqrt(total / draws) for name, total in sums.items()}
    return bars, [np.sqrt(s) for s in spread]


def _draw_replicate(
    fit: WeightedFit | None, reading: NoisyReading, head: Head, rng: np.random.Generator
) -> Head:
    readout, (W, h) = (reading.drawn(rng), (head.W, head.h)) if fit is None else fit.drawn(rng)
    return Head(W, readout.V, h, None if head.c is None else readout.c, readout.U)


def _name_tensors(head: Head) -> dict[str, Array]:
    named = {"W": np.asarray(head.W), "V": head.V, "h": head.h, "c": head.c, "U": head.U}
    return {name: tensor for name, tensor in named.items() if tensor is not None}
