r"""All heads of a sum from answers of seven digits: read roughly, routed, and read again.

Moves of x divide rounding by their length, and what read-outs are off by goes into all scores. So a
few columns of scores, known to a hundredth, serve to route, which gives the read-outs to rounding.
What was asked before is then read by these, and the rest asked: ranks are decided beside the errors
of a column that is measured twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from keyhole._arrays import Answers, Sequences, Vector
from keyhole.learners.base import Jumps
from keyhole.learners.coarse_heads.routed_readouts import renew_readouts
from keyhole.learners.joint_heads.hard_pairs import Dependent, LoneTokens, Unseparated
from keyhole.learners.joint_heads.road import (
    Progress,
    assemble_model,
    recover_heads_jointly,
    separate_heads,
)
from keyhole.learners.joint_heads.score_columns import (
    ScoreColumns,
    complete_columns,
    start_columns,
)
from keyhole.learners.joint_heads.shared_answers import JointScores
from keyhole.learners.joint_heads.token_groups import choose_token_groups
from keyhole.models import MultiHead
from keyhole.oracles import Counted
from keyhole.oracles.base import Imperfection

_FINEST = 2.0**-22  # coarsest rounding at which this has digits enough
_COLUMNS = 2  # that route, over the heads


@dataclass(slots=True)
class Recalling:
    """An oracle that is not asked twice the same.

    Args:
        inner: what is asked.
    """

    inner: Counted
    _known: dict[bytes, Vector] = field(default_factory=dict[bytes, Vector], init=False)

    @property
    def width(self) -> int:
        """Size of a token."""
        return self.inner.width

    @property
    def outputs(self) -> int | None:
        """Numbers per answer."""
        return self.inner.outputs

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch."""
        names = [x.tobytes() for x in X]
        fresh = [at for at, name in enumerate(names) if name not in self._known]
        if fresh:
            answers = self.inner.ask(X[fresh])
            self._known |= {names[at]: answer for at, answer in zip(fresh, answers, strict=True)}
        return np.stack([self._known[name] for name in names])


def can_read_at_once(stated: Imperfection, lone: LoneTokens) -> bool:
    """Whether answers are exact, or vectors of seven digits without an error that stays."""
    return not lone.coarse or can_read_coarsely(stated, len(lone.c))


def can_read_coarsely(stated: Imperfection, outputs: int) -> bool:
    """Whether answers are vectors of seven digits, without an error that does not shrink."""
    return outputs > 1 and stated.roundoff <= _FINEST and not stated.absolute and not stated.levels


def recover_heads_at_once(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator, progress: Progress | None = None
) -> tuple[MultiHead, Jumps | None]:
    """One try, of exact answers or coarse ones: the sum of heads, not yet examined, and its steps.

    Args:
        oracle: the black box, counting.
        lone: what lone tokens told, and how coarse answers are.
        rng: source of half circles and directions.
        progress: where what is known is kept on the way.

    Raises:
        Unseparated: this half circle did not tell the heads apart; another may.
        Dependent: none will.
    """
    if not lone.coarse:
        return recover_heads_jointly(oracle, lone, rng, progress=progress)
    try:
        return _read_twice(oracle, lone, rng, progress or Progress()), None
    except np.linalg.LinAlgError as error:
        raise Unseparated("A decomposition did not converge.") from error


def _read_twice(
    oracle: Counted, lone: LoneTokens, rng: np.random.Generator, progress: Progress
) -> MultiHead:
    with oracle.phase("switches"):
        seen = separate_heads(oracle, lone, rng)
    heads, outputs = seen.switches.jumps.shape
    if heads >= outputs:
        raise Dependent("There are more heads than answers tell apart.")
    with oracle.phase("readouts"):
        readouts = progress.readouts = seen.read_heads(rng)
    with oracle.phase("measure"):
        tokens = choose_token_groups(readouts.V, rng, coarse=True)
        scores = JointScores(Recalling(oracle), lone, tokens, readouts.V, readouts.idle)
        columns = progress.columns = ScoreColumns.random(scores, oracle.width, rng)
        start_columns(columns, seen.sizes)
        columns.measure(min(_COLUMNS * heads, oracle.width) - 1)
    with oracle.phase("route"):
        renewed = renew_readouts(seen, readouts, columns, rng)
    with oracle.phase("measure"):
        if renewed is not None:
            readouts = progress.readouts = renewed
            scores.renew(readouts.V)
            columns.read_again()
        W = complete_columns(columns, outputs // heads, rng=rng)
    return assemble_model(lone, readouts, W, columns.h)
