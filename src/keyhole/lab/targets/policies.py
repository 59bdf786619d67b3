"""Output policies an owner may choose, what is tried against each, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from keyhole.drawing.html import format_number
from keyhole.lab.runs.recovery_records import AttemptRecord

# Errors are of W, or of answers where there is no single W; both relative.
NOTHING = 1e-6  # up to this a policy keeps nothing back
LITTLE = 1e-2  # up to this hardly anything
PROTECTS = 0.3  # from this on what was recovered is of little use


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy and the attempts made against it.

    Args:
        name: what a person calls it.
        simulate: how the target is wrapped.
        attempts: options of the learn job, one set per attempt, the dearest last.
        why: why the outcome is what it is, for a person.
    """

    name: str
    simulate: tuple[str, ...]
    why: str
    attempts: tuple[Mapping[str, int], ...] = field(default=({},))


_LONGER = (
    "tokens may be as long as one likes, and an absolute error counts for less the longer they are"
)
_BALANCE = (
    "floats are dense near zero, so queries balanced to answer almost nothing show the digits that"
    " rounding hides"
)
_BITS = (
    "a label is one bit, and bisection spends about one for each binary digit; only the scale of"
    " the read-out stays"
)
_BALL = "inside the ball scores are weaker but answers are sharp"
_BOTH = (
    "with tokens bounded and answers blurred no query is better than another, and only repeating"
    " helps, slowly"
)
_ROUNDED = (
    "with tokens bounded rounding hides what is below the last decimal, and asking again shows"
    " nothing new"
)
_COUNT = "what was not asked for is not known: there are fewer answers than parameters"


def list_policies(cost: int, size: float, bound: float) -> list[Policy]:
    """What is tried, for answers of typical `size` that `cost` queries give away."""
    inside = f"token-bound={bound!r}"
    # A hundredth of the answers: what an owner might accept; one digit reads well.
    noise = float(f"{0.01 * size:.0e}")
    # Budgets below what exact recovery takes; at the full cost a budget is no policy.
    shares = tuple({"budget": max(1, int(share * cost))} for share in (0.25, 0.5, 0.75))
    # Averaging over n answers shrinks noise by sqrt(n): 16 show the trend.
    repeats = tuple({"repeats": count} for count in (1, 4, 16))
    return [
        Policy("full precision", (), "nothing is kept back"),
        Policy(f"a budget below {cost:,} queries", (), _COUNT, shares),
        *(
            Policy(f"answers in {name}", (f"answers={name}",), _BALANCE)
            for name in ("f32", "f16", "bf16")
        ),
        *(Policy(f"rounding to {_spell_decimals(k)}", (f"decimals={k}",), _LONGER) for k in (3, 1)),
        Policy(f"noise of {noise:g}", (f"noise={noise!r}",), _LONGER),
        Policy("labels only", ("labels",), _BITS, tuple({"bits": bits} for bits in (10, 20, 40))),
        Policy(f"tokens up to norm {bound:.3g}", (inside,), _BALL),
        *(
            Policy(
                f"rounding to {_spell_decimals(k)}, tokens up to norm {bound:.3g}",
                (f"decimals={k}", inside),
                _ROUNDED,
            )
            for k in (6, 3, 1)
        ),
        Policy(
            f"noise of {noise:g}, tokens up to norm {bound:.3g}",
            (f"noise={noise!r}", inside),
            _BOTH,
            repeats,
        ),
    ]


def _spell_decimals(count: int) -> str:
    return f"{count} decimal{'s' * (count > 1)}"


def judge_error(error: float | None) -> str:
    """What an error of W, or of answers, means for the owner."""
    if error is None:
        return "the extractor got no model"
    if error <= NOTHING:
        return "no protection"
    if error <= LITTLE:
        return "hardly any protection"
    if error < PROTECTS:
        return "a blurred copy leaks"
    return "protection against this extractor, at this cost"


def judge_policy(policy: Policy, last: AttemptRecord, of: str) -> bool | None:
    """Whether a policy protects; None where this extractor failed, and a better one may not.

    Args:
        policy: the policy.
        last: the attempt behind it that came nearest.
        of: what errors are of, W or answers.
    """
    if last.error is not None and last.error < PROTECTS:
        return False
    # Own time that ran out is this machine's limit, and hides nothing.
    if last.status == "OUT_OF_TIME":
        return None
    # One head is learned behind every policy. Of larger classes a copy that its own examination
    # does not bear out shows what the learner lacks, not what the answers hide.
    shown = of == "W" or last.verdict == "WITHIN_TOLERANCE" or "budget" in policy.attempts[-1]
    return True if shown else None


# What a policy takes from an answer of size 1, or from any: half of the last digit that is left.
_CASTS = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# So many times finer, an answer that is rounded again is nearly always the coarse one.
_FINER = 8.0


def gives_no_less(one: Policy, other: Policy, size: float) -> bool:
    """Whether the answers behind `other` can be made from those behind `one`, of typical `size`.

    Digits can be dropped, noise added, long tokens left out: what is learned behind a coarse policy
    is learned behind every finer one too.
    """
    if any("budget" in policy.attempts[-1] for policy in (one, other)) or one == other:
        return False
    mine, theirs = _read_simulation(one), _read_simulation(other)
    if "token-bound" in mine and "token-bound" not in theirs:
        return False
    if mine.items() <= theirs.items():
        return True
    if "labels" in mine:
        return False
    # The sign of a number is kept by casts alone.
    if "labels" in theirs:
        return not mine.keys() & {"decimals", "noise"}
    # Casts of long answers lose more than any absolute error; within the ball answers are short.
    if "answers" in mine and "answers" not in theirs and "token-bound" not in theirs:
        return False
    if "answers" in theirs and mine.keys() & {"decimals", "noise"}:
        return False
    return _FINER * _measure_loss(mine, size) <= _measure_loss(theirs, size)


def _read_simulation(policy: Policy) -> dict[str, str]:
    parts = [told.partition("=") for told in policy.simulate]
    return {name: value for name, _, value in parts}


def _measure_loss(told: Mapping[str, str], size: float) -> float:
    if "answers" in told:
        return _CASTS[told["answers"]] * size
    if "decimals" in told:
        return 0.5 * 10.0 ** -int(told["decimals"])
    return float(told.get("noise", 0.0))


def find_nearer_attempt(
    policy: Policy, lasts: Sequence[tuple[Policy, AttemptRecord]], size: float
) -> list[AttemptRecord]:
    """The attempt behind a coarser policy that comes nearer, where one means more to the owner."""
    own = next(attempt.error for held, attempt in lasts if held == policy)
    found = [
        (attempt.error, coarser.name, attempt)
        for coarser, attempt in lasts
        if attempt.error is not None and gives_no_less(policy, coarser, size)
    ]
    if not found:
        return []
    error, name, attempt = min(found, key=lambda one: one[0])
    if own is not None and (own <= error or judge_error(own) == judge_error(error)):
        return []
    return [structs.replace(attempt, behind=name)] if error < PROTECTS else []


def describe_policy(
    policy: Policy, attempts: Sequence[AttemptRecord], of: str, *, judged: bool = True
) -> str:
    """One paragraph on a policy, from what the attempts reached.

    Args:
        policy: the policy.
        attempts: those made behind it, the dearest last; the nearest copy decides.
        of: what errors are of, W or answers.
        judged: whether the target was learned as it stands, and policies have a yardstick.
    """
    known = [(one.error, k) for k, one in enumerate(attempts) if one.error is not None]
    last = attempts[min(known)[1] if known else -1]
    verdict = judge_error(last.error)
    if judge_policy(policy, last, of) is None:
        verdict = "beyond this extractor, which does not show that it protects"
    if not judged:
        verdict = "not judged, since the target was not learned"
    said = f"{policy.name[0].upper()}{policy.name[1:]}: {verdict}."
    if last.behind:
        said += f" Its answers can be coarsened to {last.behind}:"
        return f"{said} there {_tell_copy(last, of)}."
    if last.error is None:
        # What else a run says of itself is in its own record.
        why = last.sentence.partition(". ")[0].rstrip(".")
        return f"{said} {last.queries:,} queries ended with {last.verdict}. {why}."
    # The first and the dearest attempt show what asking more buys.
    shown = [a for a in (attempts[0], attempts[-1]) if a.error is not None][-len(attempts) :]
    reached = ", ".join(_tell_copy(attempt, of) for attempt in shown)
    # Reasons are those of one head, where W is known.
    return f"{said} {reached}: {policy.why}." if of == "W" else f"{said} {reached}."


def _tell_copy(attempt: AttemptRecord, of: str) -> str:
    error = format_number(attempt.error or 0.0)
    return f"{attempt.queries:,} queries give {of} with a relative error of {error}"
