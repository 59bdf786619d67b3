"""What the page may ask for: plain data, checked at the border before anything is started."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from typing import TypeVar

import msgspec

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import BoundJob

T = TypeVar("T")
Content = bytes | msgspec.Raw

WIDTH, HEADS, SEED = 64, 4, 2**31  # largest, for a page that answers at once
SIZES = {
    "length": 4096,
    "q": 256,
    "width": 64,
    "modulus": 10**6,
    "radius": 16,
    "nodes": 64,
    "symbols": 1024,
    "hops": 16,
}
_BOUNDS = {
    "embed": 2**20,
    "bits": 64,
    "heads": 4096,
    "value_width": 2**20,
    "layers": 64,
    "order": 8,
    "seed": SEED,
}
_UNSEEN = ("out", "force", "hidden", "state_bits")  # fields of a bound that the page does not set


@dataclass(frozen=True)
class Recover:
    """Hide a random head, or several, and recover them.

    Args:
        width: size of a token.
        rank: rank of each W; full when absent.
        heads: how many heads.
        policy: what is done to answers: exact, noise, decimals, f32, f16, bf16 or labels.
        amount: the standard deviation of noise, or the number of decimals.
        budget: never ask more sequences than this.
        seed: of the hidden weights; the learner draws with the next one.
    """

    _: KW_ONLY
    width: int
    rank: int | None = None
    heads: int = 1
    policy: str = "exact"
    amount: float = 0.0
    budget: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_within("width", self.width, 2, WIDTH)
        check_within("heads", self.heads, 1, HEADS)
        check_within("seed", self.seed, 0, SEED)
        if self.rank is not None:
            check_within("rank", self.rank, 1, self.width)
        if self.budget is not None:
            check_within("budget", self.budget, 0, 10**9)
        if self.policy not in POLICIES:
            raise InvalidInput(f"policy is one of {', '.join(POLICIES)}; got {self.policy!r:.80}.")
        if self.policy == "noise" and not 0 < self.amount <= 1:
            raise InvalidInput(f"noise lies above 0 and is at most 1; got {self.amount}.")
        if self.policy == "decimals":
            check_within("decimals", self.amount, 0, 15)

    @property
    def simulate(self) -> tuple[str, ...]:
        """The same as the command line says it."""
        form = POLICIES[self.policy]
        return () if form is None else (form.format(amount=self.amount, whole=int(self.amount)),)


@dataclass(frozen=True)
class Watch:
    """Recover the target that the explorer was started with.

    Args:
        budget: never ask more sequences than this.
        seed: of the learner.
        run: the directory of a stopped run to go on with.
    """

    _: KW_ONLY
    budget: int | None = None
    seed: int = 0
    run: str | None = None

    def __post_init__(self) -> None:
        check_within("seed", self.seed, 0, SEED)
        if self.budget is not None:
            check_within("budget", self.budget, 0, 10**9)


POLICIES = {
    "exact": None,
    "noise": "noise={amount:g}",
    "decimals": "decimals={whole}",
    **{name: f"answers={name}" for name in ("f32", "f16", "bf16")},
    "labels": "labels",
}


def check_within(name: str, value: float, least: float, most: float) -> None:
    """Raise unless a number is whole and lies between."""
    # In Python True is 1, and a float may be whole.
    if isinstance(value, bool) or value != int(value) or not least <= value <= most:
        raise InvalidInput(f"{name} is a whole number from {least:,} to {most:,}; got {value}.")


def read_recover_wish(content: Content) -> Recover:
    """A recovery from JSON."""
    return read_request(Recover, content)


def read_watch_wish(content: Content) -> Watch:
    """What is wished of the target, from JSON."""
    return read_request(Watch, content)


def read_bound_wish(content: Content) -> BoundJob:
    """A bound from JSON; it writes nothing."""
    if given := sorted(set(_list_names(content)) & set(_UNSEEN)):
        raise InvalidInput(f"the page does not set {', '.join(given)}.")
    job = read_request(BoundJob, content)
    for name, most in (SIZES | _BOUNDS).items():
        value = getattr(job, name)
        if value is not None:
            check_within(name, value, 0 if name in ("seed", "radius") else 1, most)
    return job


def _list_names(content: Content) -> list[str]:
    try:
        return list(msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{error}.") from error


def read_request(kind: type[T], content: Content) -> T:
    """JSON as a dataclass; unknown names and values of another type are refused."""
    names = {item.name for item in fields(kind)}  # pyright: ignore[reportArgumentType]
    if extra := sorted(set(_list_names(content)) - names):
        raise InvalidInput(
            f"there is no {', '.join(extra)[:200]} here; there is {', '.join(sorted(names))}."
        )
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        # A dataclass that refuses its values says why; msgspec would wrap the sentence.
        if isinstance(error.__cause__, InvalidInput):
            raise error.__cause__ from None
        raise InvalidInput(f"{error}.") from error
