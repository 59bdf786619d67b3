"""Stops of the tour that hide a model of some class and recover it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from keyhole.identify import distance
from keyhole.identify.blocks import block_distance
from keyhole.lab.commands.recovery.compare import measure_model_gap
from keyhole.lab.commands.recovery.learn import run_learn
from keyhole.lab.jobs import LearnJob
from keyhole.lab.runs.record_parts import CertificateRecord, Number
from keyhole.lab.runs.recording import record_certificate, record_jumps
from keyhole.lab.runs.recovery_records import CurvePoint, Stop
from keyhole.lab.runs.rows import count_fewest_queries, count_learning_queries
from keyhole.learners.base import Recovery
from keyhole.learners.choosing import learn
from keyhole.learners.confronting import confront
from keyhole.models import (
    AbsAffine,
    Head,
    MultiHead,
    OneLayer,
    ReluNet,
    TransformerBlock,
    load,
    save,
)
from keyhole.models.blocks.random_blocks import random_block
from keyhole.oracles import Bounded, Budgeted, Cast, Local, Noisy, Oracle, Signs

_STEPS = 12  # budgets at which the error is measured
_DIGITS = 40  # binary digits that are learnt from labels
Hidden = Head | MultiHead | ReluNet | OneLayer
_STEMS: dict[type, str] = {MultiHead: "heads", ReluNet: "network"}


def visit_exact_stops(rng: np.random.Generator, directory: Path) -> list[Stop]:
    """Heads of low rank, with biases, and several of them."""
    hidden: dict[str, Head | MultiHead] = {
        "a head of rank 3, the rank unknown": Head.random(48, rank=3, rng=rng),
        "a head with 8 outputs, a score bias and a constant": Head.random(
            32, outputs=8, biases=True, rng=rng
        ),
        "two heads, their number unknown": MultiHead.random(8, heads=2, rng=rng),
    }
    return [_visit_recovery_stop(name, model, rng, directory) for name, model in hidden.items()]


def visit_network_stops(rng: np.random.Generator, directory: Path) -> list[Stop]:
    """A network with one hidden layer, and attention in front of one."""
    hidden: dict[str, Hidden] = {
        "a ReLU network of 8 hidden units": ReluNet.random(6, hidden=8, rng=rng),
        "a one-layer Transformer, 6 hidden units": OneLayer.random(4, hidden=6, rng=rng),
    }
    return [_visit_recovery_stop(name, model, rng, directory) for name, model in hidden.items()]


def visit_block_stop(rng: np.random.Generator, directory: Path, seed: int) -> Stop:
    """A whole Transformer block, whose recovery is a run of its own."""
    truth = random_block(8, style="gpt2", heads=2, hidden=8, rng=rng)
    target, out = directory / "block-truth.safetensors", directory / "block"
    save(truth, target)
    job = LearnJob(str(target), seed=seed, out=str(out), force=True, record=False)
    data = run_learn(job).data
    errors = {} if data.model is None else _measure_block_parts(truth, load(data.model))
    asked, limit = count_learning_queries(data), count_fewest_queries(data)
    worst = max(errors.values(), default=None)
    told = "no model" if worst is None else f"relative error of weights {worst:.0e}"
    name = "a Transformer block, its kind unknown"
    return Stop(
        name=name,
        verdict=data.verdict,
        queries=asked,
        limit=limit,
        error=worst,
        truth=target.name,
        model=f"{out.name}/model.safetensors",
        run=out.name,
        errors=dict[str, Number](errors),
        sentence=f"{name}: {data.verdict}, {asked:,} queries, limit {limit or 0:,}, {told}",
    )


def _measure_block_parts(truth: TransformerBlock, found: object) -> dict[str, float]:
    """How far each part of a block is from the truth, modulo what answers do not determine."""
    if not isinstance(found, TransformerBlock):
        return {}
    apart = block_distance(truth, found)
    return {
        "scores": apart.attention.scores,
        "values": apart.attention.values,
        "units": apart.network.largest,
        "norms": apart.norms,
    }


def visit_imperfect_stops(model: Head, rng: np.random.Generator) -> list[Stop]:
    """What output policies leave to be found: W within its error, V where labels show it."""
    target = Local(model)
    # Numbers of W and V: a head without biases has no others.
    count = model.width**2 + model.width
    behind: dict[str, tuple[Oracle, int]] = {
        "answers with noise 1e-4, tokens up to norm 3": (
            Noisy(Bounded(target, 3.0), 1e-4, 0),
            count,
        ),
        "answers in bf16": (Cast(target, "bf16"), count),
        "labels only": (Signs(target), _DIGITS * (count - 1)),  # a bit each, V up to a factor
    }
    return [
        _visit_policy_stop(name, model, oracle, limit, rng)
        for name, (oracle, limit) in behind.items()
    ]


def _visit_policy_stop(
    name: str, model: Head, oracle: Oracle, limit: int, rng: np.random.Generator
) -> Stop:
    found = learn(oracle, rng=rng)
    asked = found.ledger.total(without="verify").sequences
    off = None if found.model is None else distance(model, found.model).W
    error = "no model" if off is None else f"relative error of W {off:.0e}"
    sentence = (
        f"a head of width {model.width}, {name}: {found.verdict.name}, {asked:,} queries, limit"
        f" {limit:,}, {error}"
    )
    return Stop(
        name=name,
        verdict=found.verdict.name,
        queries=asked,
        limit=limit,
        error=off,
        sentence=sentence,
        certificate=confront_stop(model, found, rng),
    )


def _visit_recovery_stop(
    name: str, model: Hidden, rng: np.random.Generator, directory: Path
) -> Stop:
    found = learn(Local(model), rng=rng)
    asked = found.ledger.total(without="verify").sequences
    said, limit, error = found.status.value, None, None
    # Only of a verified model the tour gives an error; of others it gives the reason.
    if found.model is not None and found.verdict.verified and found.degrees_of_freedom is not None:
        limit = -(-found.degrees_of_freedom // model.outputs)
        error = measure_model_gap(model, found.model)[1].largest
        said = f"{asked:,} queries, limit {limit:,}, relative error of weights {error:.0e}"
    stop = Stop(
        name=name,
        verdict=found.verdict.name,
        queries=asked,
        limit=limit,
        error=error,
        sentence=f"{name}: {found.verdict.name}, {said}",
        certificate=confront_stop(model, found, rng),
    )
    return _keep_models(stop, model, found, directory)


def confront_stop(
    truth: Hidden, found: Recovery[Any], rng: np.random.Generator
) -> CertificateRecord | None:
    """The certificate of a recovery held against the hidden model, as data."""
    # Spawned, so that the questions of later stops stay the same.
    return record_certificate(confront(truth, found, rng=rng.spawn(1)[0]))


def _keep_models(stop: Stop, model: Hidden, found: Recovery[Any], directory: Path) -> Stop:
    """With what the page compares, as files: several heads, and a network."""
    stem = _STEMS.get(type(model))
    made: Any = found.model
    if stem is None or not isinstance(made, MultiHead | AbsAffine):
        return stop
    truth_file, model_file = f"{stem}-truth.safetensors", f"{stem}-model.safetensors"
    save(model, directory / truth_file)
    save(made, directory / model_file)
    return structs.replace(
        stop,
        truth=truth_file,
        model=model_file,
        distance=measure_model_gap(model, made)[1].largest,
        # Only heads switch on a half circle; a network has no jumps to draw.
        jumps=record_jumps(found.jumps) if isinstance(model, MultiHead) else None,
    )


def measure_error_curve(truth: Head, asked: int, rng: np.random.Generator) -> list[CurvePoint]:
    """Error of W after so many queries: the same learner, stopped by budgets.

    Args:
        truth: the hidden head.
        asked: queries the learner asks when it is not stopped, verification apart.
        rng: of the learner; every budget starts from the same state, so that it asks the same
            questions.
    """
    # Every budget starts from the same state, and so asks the same questions.
    seed = int(rng.integers(2**32))
    budgets = sorted({max(1, round(asked * k / _STEPS)) for k in range(1, _STEPS + 1)})
    return [
        _measure_error_at_budget(truth, budget, np.random.default_rng(seed)) for budget in budgets
    ]


def _measure_error_at_budget(truth: Head, budget: int, rng: np.random.Generator) -> CurvePoint:
    found = learn(Budgeted(Local(truth), budget), rng=rng)
    # Without a model nothing of W is known, which counts as W = 0.
    error = distance(truth, found.model).W if isinstance(found.model, Head) else 1.0
    return CurvePoint(
        queries=found.ledger.total().sequences, error=float(error), status=found.status.name
    )
