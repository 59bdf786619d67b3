"""What each client of a served model has asked, against a budget and a rate."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from keyhole.errors import InvalidInput

# No address has a space in it.
_OTHERS = "everyone else"


class Denied(Exception):
    """A client may not ask this now.

    Args:
        sentence: why.
        after: seconds after which it may; None where waiting does not help.
    """

    def __init__(self, sentence: str, after: int | None) -> None:
        super().__init__(sentence)
        self.after = after


@dataclass(slots=True)
class _Account:
    """One client: sequences asked, and how many it may ask at once."""

    room: float
    when: float
    asked: int = 0


@dataclass(slots=True)
class Accounts:
    """Budget and rate per client; those that come too late share one account.

    The rate is a bucket that holds one second's worth and is refilled evenly. A request passes
    while something is in it and may leave a debt, so that a large request waits for its turn but is
    not refused for ever.

    Args:
        budget: sequences a client may ask in all.
        rate: sequences a client may ask a second.
        most: how many clients are told apart.
        clock: seconds that only grow.
    """

    budget: int | None = None
    rate: float | None = None
    most: int = 4096
    clock: Callable[[], float] = time.monotonic
    _clients: dict[str, _Account] = field(default_factory=dict[str, _Account], init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise InvalidInput(f"a budget is a whole number of queries >= 0; got {self.budget}.")
        if self.rate is not None and not (self.rate > 0 and math.isfinite(self.rate)):
            raise InvalidInput(f"a rate is a finite number > 0; got {self.rate}.")

    def charge(self, client: str, sequences: int) -> None:
        """Book sequences before they are answered.

        Raises:
            Denied: the budget or the rate does not allow them; nothing is booked.
        """
        # Requests are answered in threads: two must not spend the same rest of a budget.
        with self._lock:
            account = self._account(client)
            if self.budget is not None and account.asked + sequences > self.budget:
                left = self.budget - account.asked
                raise Denied(
                    f"the budget of {self.budget} queries per client has {left} left, not"
                    f" {sequences}.",
                    None,
                )
            if self.rate is not None:
                self._pass(account, sequences, self.rate)
            account.asked += sequences

    def _account(self, client: str) -> _Account:
        if client not in self._clients and len(self._clients) >= self.most:
            # A stranger with many addresses must not fill the memory.
            client = _OTHERS
        return self._clients.setdefault(client, _Account(max(1.0, self.rate or 0.0), self.clock()))

    def _pass(self, account: _Account, sequences: int, rate: float) -> None:
        now = self.clock()
        account.room = min(max(1.0, rate), account.room + rate * (now - account.when))
        account.when = now
        if account.room <= 0:
            raise Denied(
                f"{rate:g} queries a second are allowed per client.",
                max(1, math.ceil(-account.room / rate)),
            )
        # It may fall below zero: a large request passes, and the next one waits longer.
        account.room -= sequences
