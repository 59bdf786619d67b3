"""keyhole: what an attention layer can compute, and what its answers give away.

Names are loaded when first used, so that importing the package is quick and pulls in nothing optional.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyhole.claims import THEOREMS, Certificate, Check, Outcome, Theorem, Verdict
    from keyhole.errors import (
        BadAnswer,
        BudgetSpent,
        DifferentRun,
        InvalidInput,
        KeyholeError,
        OracleError,
        RecoveryFailed,
        TargetFailed,
    )
    from keyhole.identify import Distance, Symmetry, Twin, canonical, freedom, twins
    from keyhole.identify import distance as compare
    from keyhole.learners.auto import Verification, learn, verify
    from keyhole.learners.base import Counterexample, Fresh, Plan, Recovery, Status
    from keyhole.learners.exact import Exact
    from keyhole.learners.grid import Grid
    from keyhole.learners.layer import WholeLayer
    from keyhole.learners.low_rank import LowRank
    from keyhole.learners.nuclear import NuclearNorm
    from keyhole.learners.nystrom import Nystrom
    from keyhole.learners.orthogonal import Orthogonal
    from keyhole.learners.repetition import Repetition
    from keyhole.learners.restricted import Restricted
    from keyhole.models.attention import Factored, Head, MultiHead, SelfAttention
    from keyhole.models.files import load, save
    from keyhole.oracles.base import Imperfection, Ledger, Oracle
    from keyhole.oracles.local import Local
    from keyhole.oracles.transcript import Recorded
    from keyhole.oracles.wrappers import Budgeted, Chunked, Counted, Declared, Watched

__version__ = "0.1.0"

_HOME = {
    "keyhole.claims": ("THEOREMS", "Certificate", "Check", "Outcome", "Theorem", "Verdict"),
    "keyhole.errors": (
        "BadAnswer",
        "BudgetSpent",
        "DifferentRun",
        "InvalidInput",
        "KeyholeError",
        "OracleError",
        "RecoveryFailed",
        "TargetFailed",
    ),
    "keyhole.identify": ("Distance", "Symmetry", "Twin", "canonical", "freedom", "twins"),
    "keyhole.learners.auto": ("Verification", "learn", "verify"),
    "keyhole.learners.base": ("Counterexample", "Fresh", "Plan", "Recovery", "Status"),
    "keyhole.learners.exact": ("Exact",),
    "keyhole.learners.grid": ("Grid",),
    "keyhole.learners.layer": ("WholeLayer",),
    "keyhole.learners.low_rank": ("LowRank",),
    "keyhole.learners.nuclear": ("NuclearNorm",),
    "keyhole.learners.nystrom": ("Nystrom",),
    "keyhole.learners.orthogonal": ("Orthogonal",),
    "keyhole.learners.repetition": ("Repetition",),
    "keyhole.learners.restricted": ("Restricted",),
    "keyhole.models.attention": ("Factored", "Head", "MultiHead", "SelfAttention"),
    "keyhole.models.files": ("load", "save"),
    "keyhole.oracles.base": ("Imperfection", "Ledger", "Oracle"),
    "keyhole.oracles.local": ("Local",),
    "keyhole.oracles.transcript": ("Recorded",),
    "keyhole.oracles.wrappers": ("Budgeted", "Chunked", "Counted", "Declared", "Watched"),
}
_WHERE = {name: (module, name) for module, names in _HOME.items() for name in names}
_WHERE["compare"] = ("keyhole.identify", "distance")

__all__ = [  # noqa: RUF022
    "BadAnswer",
    "BudgetSpent",
    "Budgeted",
    "Certificate",
    "Check",
    "Chunked",
    "Counted",
    "Counterexample",
    "Declared",
    "DifferentRun",
    "Distance",
    "Exact",
    "Factored",
    "Fresh",
    "Grid",
    "Head",
    "Imperfection",
    "InvalidInput",
    "KeyholeError",
    "Ledger",
    "Local",
    "LowRank",
    "MultiHead",
    "NuclearNorm",
    "Nystrom",
    "Oracle",
    "OracleError",
    "Orthogonal",
    "Outcome",
    "Plan",
    "Recorded",
    "Recovery",
    "RecoveryFailed",
    "Repetition",
    "Restricted",
    "SelfAttention",
    "Status",
    "Symmetry",
    "THEOREMS",
    "TargetFailed",
    "Theorem",
    "Twin",
    "Verdict",
    "Verification",
    "Watched",
    "WholeLayer",
    "canonical",
    "compare",
    "freedom",
    "learn",
    "load",
    "save",
    "twins",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'keyhole' has no attribute {name!r}")
    module, attribute = _WHERE[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return __all__
