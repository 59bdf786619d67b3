"""Wrappers that say, or enforce, what may be asked of a target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from keyhole._arrays import Answers, Sequences
from keyhole.errors import InvalidInput, TargetFailed
from keyhole.oracles.base import Imperfection
from keyhole.oracles.wrappers import Wrapper


@dataclass(slots=True)
class Bounded(Wrapper):
    """Refuses sequences with a token longer than `bound`, as a target with bounded inputs does."""

    bound: float

    @property
    def imperfection(self) -> Imperfection:
        """The bound."""
        return Imperfection(token_bound=self.bound)

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch whose tokens keep the bound up to rounding."""
        longest = float(np.sqrt(np.einsum("bld,bld->bl", X, X).max(initial=0.0)))
        # Tokens scaled to the bound may exceed it by rounding.
        if longest > self.bound * (1 + 1e-9):
            raise TargetFailed(
                f"a token has norm {longest:.6g}; the target takes tokens up to norm"
                f" {self.bound:.6g}."
            )
        return self.inner.ask(X)


@dataclass(slots=True)
class Sized(Wrapper):
    """Refuses sequences shorter or longer than declared, as a target with a context limit does."""

    lengths: tuple[int, int]

    @property
    def imperfection(self) -> Imperfection:
        """The lengths."""
        return Imperfection(lengths=self.lengths)

    def ask(self, X: Sequences) -> Answers:
        """Answers to a batch of a length that is allowed."""
        shortest, longest = self.lengths
        if not shortest <= X.shape[1] <= longest:
            raise TargetFailed(
                f"a question has {X.shape[1]} tokens; lengths {shortest} to {longest} were"
                " declared. Allow more with --lengths, or take a learner that asks shorter ones."
            )
        return self.inner.ask(X)


@dataclass(slots=True)
class Examining(Wrapper):
    """Says how many fresh questions a model is asked; changes nothing else."""

    questions: int

    def __post_init__(self) -> None:
        if self.questions < 1:
            raise InvalidInput(f"an examination has at least 1 question; got {self.questions}.")


@dataclass(slots=True)
class Advised(Wrapper):
    """Adds a sentence to the complaint of a target that cannot answer its first question."""

    advice: str

    def ask(self, X: Sequences) -> Answers:
        """Answers to the batch."""
        try:
            return self.inner.ask(X)
        except (InvalidInput, TargetFailed) as error:
            # A target that has answered before is no whole model mistaken for a layer.
            if self.inner.outputs is not None:
                raise
            raise InvalidInput(f"{error}{self.advice}") from error
