"""Kinds on which verdicts are still false, or stay open; a kind that no longer is must go."""

from collections.abc import Iterator
from dataclasses import dataclass

from hunt.judge import Fault


@dataclass(frozen=True)
class Shortfall:
    """Why a kind has a fault, and on which share of its targets it was seen."""

    share: float
    reason: str


SHORT = "Fresh questions are at most 32 tokens long."
COPIES = "Fresh questions hold no equal tokens."
ZEROS = "Fresh questions hold no zero tokens."
LEVELS = "Fresh questions have no scores at high common levels."
SPREADS = "Fresh questions have no scores so far apart that such weights show."
FAR = "Fresh questions are not so far out."
ROUGH = "Recovered networks behind attention are polished to some 1e-9 of their answers."
COARSE = "Answers of the run are compared at a millionth of their size."

WRONG = {
    SHORT: {
        "context cut to 100": 1.0,
        "context cut to 200": 1.0,
        "top-32": 1.0,
        "top-128": 1.0,
        "constant from length 20": 0.25,
        "x 1.001 beyond 128": 1.0,
    },
    COPIES: {
        "equal neighbours doubled": 0.6,
        "duplicates once": 0.6,
        "repeats from 4 halved": 1.0,
    },
    ZEROS: {"zero tokens masked": 1.0},
    LEVELS: {
        "scores clipped at 15": 0.1,
        "scores clipped at 30": 0.2,
        "scores clipped at 60": 0.2,
    },
    SPREADS: {"weights under 1e-6 dropped": 0.5, "weights under 1e-8 dropped": 0.6},
    FAR: {"entries clipped at 1e3": 0.1},
    ROUGH: {"one layer, no biases": 0.05},
}
AGAINST = {
    COARSE: {
        "weights under 1e-6 dropped": 0.3,
        "weights under 1e-8 dropped": 0.1,
        "entries clipped at 1e3": 0.1,
        "heads, rank one in one row space": 0.1,
    },
    ROUGH: {"one layer, no biases": 0.05},
}
OPEN = {
    "Several heads are learned without score biases, and without a residual.": {
        "heads, biases": 1.0,
        "heads, residual": 1.0,
    },
    "Heads that cancel each other at small scores are not told apart.": {
        "heads, near-equal and opposite": 1.0,
    },
    "Behind attention only ReLU networks are learned.": {"one layer, gelu": 1.0},
}


def list_shortfalls() -> Iterator[tuple[tuple[str, Fault], Shortfall]]:
    for fault, reasons in (
        (Fault.WRONG, WRONG),
        (Fault.AGAINST_OWN_ANSWERS, AGAINST),
        (Fault.UNVERIFIED, OPEN),
    ):
        for reason, kinds in reasons.items():
            for name, share in kinds.items():
                yield (name, fault), Shortfall(share, reason)


SHORTFALLS = dict(list_shortfalls())
