"""The learn job: a target wrapped, a learner run, a model written, a record made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from msgspec import structs

from keyhole import __version__
from keyhole._arrays import Array
from keyhole.claims import Verdict
from keyhole.errors import BadAnswer, InvalidInput, OracleError
from keyhole.lab.commands.recovery.finishing import finish_recovery_run
from keyhole.lab.commands.shared import (
    check_budget_left,
    check_vocabulary_option,
    choose_exit_code,
    seed_generator,
)
from keyhole.lab.jobs import LearnJob
from keyhole.lab.jobs.job_parts import DECLARATIONS, HINTS, WIRING, Hinting, Wired
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Given, Queries, Seconds, WiringRecord
from keyhole.lab.runs.recording import record_recovery
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.recovery_records import LearnRecord, RecoveryRecord
from keyhole.lab.runs.rows import list_recovery_rows
from keyhole.lab.runs.summaries import restore_command
from keyhole.lab.targets.opening import (
    choose_chunk_size,
    declare_target,
    hash_file,
    label_target,
    load_bases,
    load_tokens,
    open_target,
    open_token_target,
    resume_noise,
    simulate_policies,
)
from keyhole.lab.targets.wirings import read_wiring_options
from keyhole.learners.base import Learner, Recovery
from keyhole.learners.choosing import choose_learner, learn
from keyhole.learners.registry import Hints
from keyhole.models import AttentionLayer, TransformerBlock, Wiring, save
from keyhole.models.files import write_tensors
from keyhole.oracles import (
    Budgeted,
    Chunked,
    Counted,
    Oracle,
    Recorded,
    Watched,
    count_asked_again,
    read_imperfection,
)

R = TypeVar("R", bound=RecoveryRecord)


_IDS = "tokens"  # the only class that ids are learned as, found or not

# Options besides hints and declarations that say what is asked, and how it answers.
_OTHERS = ("simulate", "outputs", "layer", "tokens_in", "vocabulary", "until")


@dataclass(frozen=True)
class _Begun:
    """What a job asks, and how.

    Args:
        target: what answers, with what is simulated of it.
        timed: the same with a ledger, and with what is declared of its answers.
        hints: what the job knows beforehand.
        learner: the one named, or the first that `auto` goes by: plans of all would load all.
        queries: what it plans to ask, which progress goes by.
        rng: draws the questions.
    """

    target: Oracle
    timed: Counted
    hints: Hints
    learner: Learner
    queries: int
    rng: np.random.Generator

    def count_asked(self) -> int:
        """Sequences the target was asked, those again whose answers were lost included."""
        return self.timed.ledger.total().sequences + count_asked_again(self.target)


def run_learn(job: LearnJob) -> Record[LearnRecord]:
    """Recover what is behind the target, write the run directory, return the record."""
    start = time.perf_counter()
    begun = _begin_job(job)
    place = open_run_directory(
        label_target(job.target), out=job.out, resume=job.resume, force=job.force
    )
    with place as directory:
        with ExitStack() as stack:
            data = _learn_target(job, begun, directory, stack)
        data = structs.replace(
            data,
            width=begun.timed.width,
            seconds=Seconds(
                total=time.perf_counter() - start, oracle=begun.timed.ledger.total().seconds
            ),
            asked=begun.count_asked(),
            budget=job.budget,
            max_seconds=job.max_seconds,
            options=_list_given_options(job),
            seed=job.seed,
            target=job.target,
            learner=job.learner,
            run=str(directory),
        )
        data = structs.replace(data, command=restore_command(data))
        rows = (*list_recovery_rows(data), ("written to", str(directory)))
        return finish_recovery_run(Record(data, choose_exit_code(data.verdict), rows), directory)


def _begin_job(job: LearnJob) -> _Begun:
    """Open the target and choose the learner; nothing is asked yet."""
    rng = seed_generator(job.seed)
    check_vocabulary_option(job)
    target = simulate_policies(_open_target(job), job.simulate, job.seed)
    # Counted innermost: these are the questions the target itself was asked.
    timed = Counted(declare_target(target, job))
    hints = read_hints(job)
    learner = _choose_learner(job, hints, timed)
    plan = learner.plan(timed.width, outputs=timed.outputs or 1)
    return _Begun(target, timed, hints, learner, plan.queries, rng)


def _learn_target(job: LearnJob, begun: _Begun, directory: Path, stack: ExitStack) -> LearnRecord:
    """What came of asking, a failure of the target included."""
    oracle, recorded = _wrap_target(job, begun.timed, directory, stack)
    if recorded is not None:
        resume_noise(begun.target, recorded.charged)
    watched = stack.enter_context(
        Watched(oracle, begun.queries, title=f"learning {label_target(job.target)}")
    )
    try:
        recovery = learn(
            watched,
            rng=begun.rng,
            learner=begun.learner if job.tokens_in or job.until else job.learner,
            hints=begun.hints,
            max_seconds=job.max_seconds,
        )
    # Refused before anything was asked: an empty transcript would block the directory.
    except InvalidInput:
        if recorded is not None:
            recorded.discard_if_empty()
        raise
    # A target that fails is a finding: what was answered is kept and can be resumed.
    except OracleError as error:
        asked = begun.count_asked() if recorded is None else recorded.charged
        data = record_target_failure(error, asked, LearnRecord)
    else:
        lost = count_asked_again(begun.target) if recorded is None else recorded.lost_when_finished
        data = _write_recovery(job, recovery, begun.hints, lost, directory)
    return structs.replace(data, outputs=watched.outputs)


def _write_recovery(
    job: LearnJob, recovery: Recovery[Any], hints: Hints, lost: int, directory: Path
) -> LearnRecord:
    """Save what was found, and record it."""
    data = structs.replace(
        record_recovery(recovery, LearnRecord, lost=lost),
        model=write_model(recovery, directory),
        parts=_write_parts(recovery, directory),
        wiring=describe_wiring(recovery, hints.wiring),
    )
    return structs.replace(data, model_class=_IDS) if job.tokens_in else data


def _open_target(job: LearnJob) -> Oracle:
    if job.tokens_in:
        return open_token_target(job.target, job.vocabulary)
    return open_target(
        job.target, width=job.width, outputs=job.outputs, reaching=job, layer=job.layer
    )


def _choose_learner(job: LearnJob, hints: Hints, oracle: Oracle) -> Learner:
    """The learner of the job; ids have one of their own, since nothing else may be asked of them.

    Raises:
        InvalidInput: another learner was named for ids, or their answers are declared coarse.
    """
    stated = read_imperfection(oracle)
    if job.until is not None:
        return _end_after_stage(job.until, choose_learner(job.learner, hints, stated))
    if not job.tokens_in:
        return choose_learner(job.learner, hints, stated)
    if job.learner != "auto" or not stated.perfect:
        raise InvalidInput(
            "token ids are learned from exact logits, by a learner of their own: leave --learner"
            " and what is declared or simulated of answers away."
        )
    from keyhole.learners.tokens.learner import TokenLayer

    return TokenLayer(hints.heads)


def _end_after_stage(stage: str, learner: Learner) -> Learner:
    """The learner of a block that ends after a stage.

    Raises:
        InvalidInput: it is no learner of blocks, or has no such stage.
    """
    if "until" not in getattr(learner, "__dataclass_fields__", {}):
        raise InvalidInput(
            "only recoveries of blocks have stages: add --learner pre-norm-block, gated-block or"
            f" post-norm-block, or leave --until {stage} away."
        )
    return replace(cast("Any", learner), until=stage)


def _list_given_options(job: LearnJob) -> dict[str, Given]:
    """Hints and declarations that were given, as the command line names them."""
    usual = LearnJob(job.target)
    named = (*HINTS, *WIRING, *DECLARATIONS, *_OTHERS)
    given = {name: getattr(job, name) for name in named}
    return {
        name.replace("_", "-"): list(job.simulate) if name == "simulate" else value
        for name, value in given.items()
        if value != getattr(usual, name)
    }


def read_hints(job: Hinting) -> Hints:
    """What the job knows of the target beforehand."""
    known = {name: getattr(job, name) for name in HINTS if name not in ("tokens", "bases")}
    tokens = None if job.tokens is None else load_tokens(job.tokens)
    bases = None if job.bases is None else load_bases(job.bases)
    return Hints(**known, tokens=tokens, bases=bases, wiring=_read_wiring(job))


def _read_wiring(job: Hinting) -> Wiring | None:
    """The wiring that was told, where anything was."""
    wiring = read_wiring_options(job) if isinstance(job, Wired) else Wiring()
    return wiring if wiring.told else None


def describe_wiring(recovery: Recovery[Any], told: Wiring | None) -> WiringRecord | None:
    """What was told of the wiring of a layer, and what its answers showed beside that."""
    model = recovery.model
    layer = model.front if isinstance(model, TransformerBlock) else model
    if not isinstance(layer, AttentionLayer):
        return None
    given = {} if told is None else told.told
    whole = layer.wiring.told
    return WiringRecord(
        told=given, found={name: value for name, value in whole.items() if name not in given}
    )


def _wrap_target(
    job: LearnJob, timed: Counted, directory: Path, stack: ExitStack
) -> tuple[Oracle, Recorded | None]:
    """Target < transcript < chunks < budget: no chunk is asked twice."""
    oracle: Oracle = timed
    recorded = None
    if job.record:
        identity = {
            "target": job.target,
            # Another file under the same name is another target.
            "digest": hash_file(job.target),
            "width": timed.width,
            **{
                name: getattr(job, name)
                for name in (*HINTS, *WIRING, *DECLARATIONS, "simulate", "learner", "seed")
            },
            "tokens": None if job.tokens is None else hash_file(job.tokens),
            "bases": None if job.bases is None else hash_file(job.bases),
            "version": __version__,
        }
        # Told only where it is used: transcripts made before go on.
        identity |= {} if job.layer is None else {"layer": job.layer}
        identity |= {} if job.until is None else {"until": job.until}
        identity |= {"vocabulary": timed.outputs} if job.tokens_in else {}
        oracle = recorded = Recorded(oracle, directory / "transcript.sqlite", identity)
        stack.callback(recorded.close)
        # A resumed run counts what it has asked already.
        check_budget_left(job.budget, recorded.charged, directory)
    oracle = Chunked(oracle, choose_chunk_size(job.target))
    if job.budget is not None:
        oracle = Budgeted(oracle, job.budget, recorded.lost if recorded is not None else 0)
    return oracle, recorded


def write_model(recovery: Recovery[Any], directory: Path) -> str | None:
    """Save the recovered model with its error bars, where there is one, and say where."""
    if recovery.model is None:
        return None
    path = directory / "model.safetensors"
    save(recovery.model, path, bars=recovery.bars)
    return str(path)


def _write_parts(recovery: Recovery[Any], directory: Path) -> str | None:
    """Save what the stages of a block found, where that is all there is, and say where."""
    parts: Mapping[str, Array] = getattr(recovery, "parts", {})
    if recovery.verdict.verified or not parts:
        return None
    path = directory / "parts.safetensors"
    write_tensors(path, {"kind": "parts"}, parts)
    return str(path)


def record_target_failure(error: OracleError, asked: int, kind: type[R]) -> R:
    """The record of a run that the target ended."""
    status = "BAD_ANSWER" if isinstance(error, BadAnswer) else "TARGET_FAILED"
    sentence = (
        f"The run stopped: {error} What was answered before is kept; mend the target and use"
        " --resume."
    )
    return kind(
        status=status,
        verdict=Verdict.UNVERIFIED.name,
        sentence=sentence,
        queries=Queries(total=asked),
    )
