"""Fresh queries against a model somebody already has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keyhole._arrays import Array, Matrix, Rng, as_generator
from keyhole.claims import Verdict
from keyhole.errors import InvalidInput
from keyhole.learners.base import Counterexample, Examined, Fresh, Status
from keyhole.learners.findings import Witness
from keyhole.learners.verifying.declared_errors import SIGMAS, choose_ruler
from keyhole.learners.verifying.ending import ONE_HEAD, Doubt, resolve_doubt, settle
from keyhole.learners.verifying.examination import Examination, examine_model, measure_scatter
from keyhole.learners.verifying.questions import read_limits
from keyhole.models import Model
from keyhole.models.layers.token_heads import TokenHeads
from keyhole.oracles import Counted, Imperfection, Ledger, Oracle, oracle_of, read_imperfection


def as_oracle(target: Oracle | Callable[[Any], Any]) -> Oracle:
    """An oracle as it is; a model, a torch module or a callable with a `width` behind one."""
    return oracle_of(target)


@dataclass(frozen=True, eq=False, slots=True)
class Verification:
    """What fresh queries say of a model somebody already has."""

    verdict: Verdict
    fresh: Fresh
    counterexample: Counterexample | Witness | None
    ledger: Ledger
    detail: str = ""
    examined: Examined | None = None


def verify(
    oracle: Oracle | Callable[[Any], Any],
    model: Model,
    *,
    rng: Rng,
    bars: Mapping[str, Array] | None = None,
) -> Verification:
    """Ask fresh sequences and compare the answers with `model`.

    Args:
        oracle: a black box, or a callable with a `width` attribute; what it declares of its answers
            is allowed for.
        model: the model to compare with.
        rng: source of the fresh sequences.
        bars: standard errors of the model's tensors, allowed for where answers carry errors.

    Raises:
        InvalidInput: the model's width or outputs are not the target's, or the target answers with
            labels.
    """
    rng = as_generator(rng)
    counted = Counted(as_oracle(oracle))
    stated = read_imperfection(counted)
    _check_verifiable(counted, model, stated)
    with counted.phase("verify"):
        first = counted.ask(np.zeros((1, 1, model.width)))
        if first.shape[1] != model.outputs:
            raise InvalidInput(
                f"the target answers {first.shape[1]} numbers, the model {model.outputs}."
            )
        ruler = choose_ruler(stated, model, bars or {}, rng=rng.spawn(1)[0])
        seen = examine_model(
            counted,
            model,
            ruler=ruler,
            rng=rng,
            limits=read_limits(counted, tokens=_list_ids(model)),
        )
        return _judge_saved(counted, stated, seen)


def _list_ids(model: Model) -> Matrix | None:
    """The only tokens that a model on ids takes; nothing for any other."""
    if not isinstance(model, TokenHeads):
        return None
    return np.arange(model.outputs, dtype=np.float64)[:, None]


def _check_verifiable(oracle: Counted, model: Model, stated: Imperfection) -> None:
    if oracle.width != model.width:
        raise InvalidInput(
            f"the target's tokens have width {oracle.width}, the model's {model.width}."
        )
    if stated.levels is not None:
        raise InvalidInput(
            "labels do not show how close a model is; learn the target with --labels instead."
        )
    if np.isnan(stated.noise):
        raise InvalidInput("verification needs the size of the noise; give --noise a number.")


def _judge_saved(oracle: Counted, stated: Imperfection, seen: Examination) -> Verification:
    """The verdict; a sequence that disagrees is asked again."""
    # A part of the questions shows as little as answers that rounding hides.
    hidden = seen.hidden or not seen.complete
    doubt = Doubt(Status.DISAGREES, seen.worst, "The model is not the target.", refutes=True)
    ending = settle(
        oracle,
        replace(seen, hidden=hidden),
        lines=ONE_HEAD,
        refuse=lambda: resolve_doubt(
            oracle, doubt, repeat=lambda: _describe_contradiction(oracle, stated, seen.worst)
        ),
    )
    detail = ending.detail
    if ending.status is Status.HIDDEN:
        hiding = "Rounding of the answers hides the token values."
        detail = hiding if seen.complete else "The budget ran out."
    return Verification(
        ending.verdict, seen.fresh, ending.counterexample, oracle.ledger, detail, seen.examined
    )


def _describe_contradiction(
    oracle: Counted, stated: Imperfection, case: Counterexample | None
) -> str:
    """How the target answered one question in two ways beyond what it declares, or nothing."""
    cases = [] if case is None else [(case.tokens[None], case.answer[None])]
    gap = measure_scatter(oracle, cases, stated.roundoff)
    allowed = 2.0 * stated.tolerance + 2.0 * SIGMAS * stated.noise
    if gap <= allowed:
        return ""
    return f"The target answered the same question differently (by {gap:.1e})."
