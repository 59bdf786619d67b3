"""What the owner of a language model may answer, from the most generous policy on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from keyhole.learners.logits.reading import Reading
from keyhole.oracles import Noisy, Oracle, Rounded
from keyhole.oracles.tokens.answer_policies import LogProbabilities, TopAnswers
from keyhole.oracles.tokens.remembered import Remembered

# Services let callers raise logits by this. Where answers reach further the audit goes beyond it:
# who audits a larger scale allows a larger bias.
_BIAS = 100.0
_REACH = 4.0
_NOISE = 0.1
TOP = 5  # likeliest ids that services answer

Wrap = Callable[[Remembered, int], Oracle]


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """One policy.

    Args:
        name: what a person calls it.
        wrap: the target behind it, for a seed of its noise.
        reading: how its answers are read.
        rounds: whether it answers what a finer policy of its kind does, rounded.
    """

    name: str
    wrap: Wrap
    reading: Reading
    rounds: bool = True


def list_token_policies(vocabulary: int) -> list[TokenPolicy]:
    """What is tried; each next one tells a person less."""
    logits = Reading("logits", vocabulary)
    log_probabilities = Reading("log-probabilities", vocabulary)
    listed = [
        TokenPolicy("full logits", lambda target, seed: target, logits),
        *(TokenPolicy(f"logits to {_spell_decimals(k)}", _round(k), logits) for k in (6, 4, 2, 1)),
        TokenPolicy(
            f"logits with noise of {_NOISE:g}",
            lambda target, seed: Noisy(target, _NOISE, seed),
            logits,
            rounds=False,
        ),
        TokenPolicy(
            "log-probabilities", lambda target, seed: LogProbabilities(target), log_probabilities
        ),
        *(
            TokenPolicy(
                f"log-probabilities to {_spell_decimals(k)}",
                _round(k, lambda target, seed: LogProbabilities(target)),
                log_probabilities,
            )
            for k in (4, 2, 1)
        ),
    ]
    # The likeliest few of a vocabulary that is no larger are all of it.
    if vocabulary > TOP:
        listed += _list_top_policies(vocabulary)
    return listed


def _list_top_policies(vocabulary: int) -> list[TokenPolicy]:
    raised = Reading("raised", vocabulary, TOP)
    return [
        *(
            TokenPolicy(
                f"the {TOP} likeliest with a bias, to {_spell_decimals(k)}",
                _round(k, _raise_any),
                raised,
            )
            for k in (4, 2)
        ),
        TokenPolicy(
            f"the {TOP} likeliest, no bias",
            lambda target, seed: TopAnswers(target, TOP),
            Reading("likeliest", vocabulary, TOP),
        ),
    ]


def _raise_any(target: Remembered, seed: int) -> Oracle:
    """The likeliest few, where a caller may raise any id above all others."""
    return TopAnswers(target, TOP, max(_BIAS, _REACH * target.largest))


def _round(decimals: int, first: Wrap = lambda target, seed: target) -> Wrap:
    return lambda target, seed: Rounded(first(target, seed), decimals)


def _spell_decimals(count: int) -> str:
    return f"{count} decimal{'s' * (count > 1)}"
