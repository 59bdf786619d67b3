"""Records: what a job returns, as one JSON object and as a few lines for a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import numpy as np

from keyhole.claims import Certificate
from keyhole.learners.base import Counterexample, Fresh, Jumps, Recovery
from keyhole.models import AbsAffine, Head, Model, MultiHead, OneLayer
from keyhole.oracles import Ledger


@dataclass(frozen=True, slots=True)
class Record:
    """What a job returns.

    Args:
        data: the JSON object.
        code: the exit code it stands for.
        lines: the same for a person, as (name, value) rows under the sentence.
    """

    data: Mapping[str, Any]
    code: int = 0
    lines: tuple[tuple[str, str], ...] = field(default=())

    def json(self) -> bytes:
        """One line of JSON; non-finite numbers are null."""
        # One line, so that records can be appended to a file and read line by line.
        return msgspec.json.encode(self.data, enc_hook=_encode_array)

    def text(self) -> str:
        """The sentence, then aligned rows; what would steer a terminal is spelt out."""
        width = max((len(name) for name, _ in self.lines), default=0)
        rows = [f"  {name:<{width}}  {value}" for name, value in self.lines]
        return "\n".join(map(_escape_controls, [str(self.data.get("sentence", "")), *rows]))


def _escape_controls(text: str) -> str:
    """Text on one line: control characters, which a file or a target may have sent, as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast(Any, value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a record")


def record_queries(ledger: Ledger, lost: int = 0) -> dict[str, Any]:
    """Costs as the contract names them; what a kill lost is a phase of its own."""
    phases = {name: entry.sequences for name, entry in ledger.phases.items()}
    if lost:
        phases["lost"] = lost
    return {"total": sum(phases.values()), "tokens": ledger.total().tokens, "by_phase": phases}


def record_fresh_error(fresh: Fresh | None) -> dict[str, Any] | None:
    """Agreement on fresh queries, as the contract names it."""
    if fresh is None:
        return None
    return {"max": fresh.max, "relative": fresh.relative, "sequences": fresh.sequences}


def record_counterexample(case: Counterexample | None) -> dict[str, Any] | None:
    """A refuting sequence with the target's answer and the model's."""
    if case is None:
        return None
    return {
        "tokens": case.tokens,
        "answer": case.answer,
        "predicted": case.predicted,
        "gap": case.gap,
    }


def record_jumps(seen: Jumps | None) -> dict[str, Any] | None:
    """Steps on a half circle as data."""
    if seen is None:
        return None
    return {"angles": seen.angles, "sizes": seen.sizes, "start": seen.start}


def record_recovery_certificate(recovery: Recovery[Any]) -> dict[str, Any] | None:
    """The certificate of a recovery as data, where it has one."""
    return None if recovery.certificate is None else record_certificate(recovery.certificate)


def record_certificate(held: Certificate) -> dict[str, Any]:
    """A certificate as data."""
    checks = {
        part: [
            {"name": c.name, "measured": c.measured, "limit": c.limit, "holds": c.holds}
            for c in rows
        ]
        for part, rows in (("assumptions", held.assumptions), ("conclusion", held.conclusion))
    }
    return {
        "theorem": held.theorem,
        "outcome": held.outcome.name,
        "sampled": held.sampled or None,
        **checks,
    }


_KINDS: dict[type, str] = {
    Head: "head",
    MultiHead: "multihead",
    AbsAffine: "relu",
    OneLayer: "onelayer",
}


def _name_model_class(recovery: Recovery[Any]) -> str:
    """The class of model that was decided on; a single head where there is none."""
    held = recovery.certificate
    # The type of the model does not tell a whole layer from heads; its certificate does.
    if held is not None and held.theorem == "keyhole/whole-layer":
        return "layer"
    model: Model | None = recovery.model
    return _KINDS.get(type(model), "head")


def _measure_error_bar(recovery: Recovery[Any]) -> float | None:
    """Frobenius norm of the standard errors of W, relative to that of W."""
    bar = recovery.bars.get("W")
    W = getattr(recovery.model, "W", None)
    if bar is None or W is None or not np.asarray(W).any():
        return None
    # Error bars may be one number for all entries: it counts for each of them.
    W = np.asarray(W)
    return float(np.linalg.norm(np.broadcast_to(bar, W.shape))) / float(np.linalg.norm(W))


def _count_heads(model: Model | None) -> int | None:
    if isinstance(model, MultiHead):
        return len(model.W)
    return 1 if isinstance(model, Head | OneLayer) else None


def record_recovery(recovery: Recovery[Any], *, lost: int = 0) -> dict[str, Any]:
    """The part of a learn record that comes from the recovery itself."""
    model = recovery.model
    return {
        "status": recovery.status.name,
        "verdict": recovery.verdict.name,
        "sentence": recovery.sentence,
        "class": _name_model_class(recovery),
        "reason": recovery.reason,
        "determined": recovery.determined,
        "counterexample": record_counterexample(recovery.counterexample),
        "width": None if model is None else model.width,
        "outputs": None if model is None else model.outputs,
        "heads": _count_heads(model),
        "rank": recovery.rank,
        "queries": record_queries(recovery.ledger, lost),
        "degrees_of_freedom": recovery.degrees_of_freedom,
        "fresh_error": record_fresh_error(recovery.fresh),
        "error_bar": _measure_error_bar(recovery),
        "certificate": record_recovery_certificate(recovery),
        "jumps": record_jumps(recovery.jumps),
    }
