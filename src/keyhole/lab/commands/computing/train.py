"""The training job: seeds trained, measured on fresh inputs, kept as numpy models."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from keyhole._arrays import Matrix
from keyhole._files import write_atomically
from keyhole.constructions import save
from keyhole.errors import DifferentRun, InvalidInput
from keyhole.lab.commands.shared import seed_generator
from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.directories import open_run_directory
from keyhole.lab.runs.record_parts import Given, Seconds
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.rows import list_training_rows
from keyhole.lab.runs.task_records import Curve, TrainRecord
from keyhole.lab.targets.round_trip import READABLE, make_round_trip
from keyhole.lab.targets.tasks import pose_task
from keyhole.lab.training.constructed import measure_constructed
from keyhole.lab.training.inputs.labelling import choose_lesson
from keyhole.lab.training.inputs.lessons import Lesson
from keyhole.lab.training.inputs.streams import Purpose
from keyhole.lab.training.options import CONSTRUCTED, check_options
from keyhole.lab.training.outcomes import Trained, describe_training, format_train_command
from keyhole.lab.training.time_left import TimeLeft
from keyhole.models.baselines import PASSES

if TYPE_CHECKING:
    from keyhole.lab.training.choosing import Choice
    from keyhole.lab.training.loop import Trainer

NEEDED = "needs the torch extra: pip install 'keyhole[torch]'."


def run_train(job: TrainJob) -> Record[TrainRecord]:
    """Train, measure, write where asked to, return the record.

    Raises:
        InvalidInput: torch is not installed, or sizes do not fit.
    """
    start = time.perf_counter()
    check_training_job(job)
    lesson = choose_lesson(pose_task(job.task, job), job.inputs)
    _check_measures(job, lesson)
    # Torch is loaded only where something is trained.
    choice = None if job.model == CONSTRUCTED else _choose_net(job, lesson)
    with _open_training_directory(job) as directory:
        came, sizes = _train_or_construct(job, lesson, choice, directory)
        data = _measure_trained_models(
            describe_training(job, lesson, sizes, came), job, lesson, came
        )
        if directory is not None:
            data = _write_seed_models(data, came, directory)
        data = structs.replace(
            data,
            seconds=Seconds(total=time.perf_counter() - start),
            command=format_train_command(job),
            torch=None if choice is None else _find_torch_version(),
        )
        record = Record(data, 0, (*list_training_rows(data), *_list_file_rows(data)))
        if directory is not None:
            # Sweeps train without a page, and then need not load what draws it.
            from keyhole.lab.pages import training_page

            write_atomically(directory / "record.json", record.json() + b"\n")
            write_atomically(
                directory / "report.html",
                training_page.draw_training_page(data, came.pictures).encode(),
            )
        return record


def _train_or_construct(
    job: TrainJob, lesson: Lesson[Any], choice: Choice | None, directory: Path | None
) -> tuple[Trained, dict[str, Given]]:
    if choice is None:
        return measure_constructed(job, lesson)
    return train_seeds(job, lesson, choice, directory), choice.sizes


def _list_file_rows(data: TrainRecord) -> list[tuple[str, str]]:
    """Where the best model and the page are, where they were written."""
    if data.run is None or data.model is None:
        return []
    return [("best", data.model), ("page", f"{data.run}/report.html")]


def _measure_trained_models(
    data: TrainRecord, job: TrainJob, lesson: Lesson[Any], came: Trained
) -> TrainRecord:
    """With the round trip of the best model and effective bits of every one, where asked for."""
    best = came.models[int(np.argmin(came.errors))]
    rng = seed_generator(job.seed)
    if job.round_trip:
        data = structs.replace(data, round_trip=make_round_trip(best, lesson.task, rng=rng))
    if job.effective_bits:
        from keyhole.lab.training.coarseness import measure_coarseness

        coarse = measure_coarseness(came.models, lesson, rng=rng)
        data = structs.replace(data, effective_bits=coarse)
    return data


def check_training_job(job: TrainJob) -> None:
    """Raise unless the numbers of a job make sense, and say something to its model."""
    check_options(job)
    least = {"steps": 1, "batch": 1, "warm_up": 0, "seeds": 1, "tests": 1, "heads": 1, "layers": 1}
    least |= dict.fromkeys(
        ("embed", "hidden", "code_width", "samples", "check_every", "patience"), 1
    )
    least |= {"checkpoint_every": 1, "passes": 1, "state_bits": 1}
    for name, smallest in least.items():
        value = getattr(job, name)
        if value is not None and value < smallest:
            raise InvalidInput(
                f"--{name.replace('_', '-')} is a whole number >= {smallest}; got {value}."
            )
    for name, most in (("passes", PASSES), ("state_bits", 16)):
        if (getattr(job, name) or 1) > most:
            raise InvalidInput(
                f"--{name.replace('_', '-')} is at most {most}; got {getattr(job, name)}."
            )
    for name in ("rate", "temperature"):
        value = getattr(job, name)
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"--{name} is a positive number; got {value}.")
    if job.lengths and (
        job.codes not in ("random", "resampled") or not job.model.endswith("attention")
    ):
        raise InvalidInput(
            "--lengths needs attention with --codes random or resampled, which any length can be"
            " given."
        )
    if any(length < 2 for length in job.lengths):
        raise InvalidInput(
            f"--lengths are whole numbers >= 2; got {', '.join(map(str, job.lengths))}."
        )
    # Raises where the seed makes no sense.
    seed_generator(job.seed)


# Said before anything is trained: what cannot be measured afterwards would cost the whole training.
def _check_measures(job: TrainJob, lesson: Lesson[Any]) -> None:
    """Raise unless what is to be measured of the trained models can be."""
    if job.effective_bits and job.model not in ("attention", "layers", CONSTRUCTED):
        raise InvalidInput(
            "--effective-bits is for models of standard attention: attention and layers."
        )
    if job.round_trip and not _can_be_hidden(job, lesson):
        raise InvalidInput(
            f"--round-trip is for models of which {READABLE}: attention, third-order, layers with"
            " --layers 1 and --heads 1."
        )
    if job.lengths and lesson.labels:
        raise InvalidInput(
            "--lengths is for sparse-average: a unit on labels cannot know codes it was not"
            " trained on."
        )
    for length in job.lengths:
        # A task checks its own sizes: a length it refuses is refused now.
        replace(lesson.task, length=length)


def _can_be_hidden(job: TrainJob, lesson: Lesson[Any]) -> bool:
    # Behind labels stands a sigmoid: there the attention alone is hidden, of any number of heads.
    if job.model == "layers":
        return job.layers == 1 and (job.heads == 1 or lesson.labels)
    return job.model in ("attention", "third-order", CONSTRUCTED)


def _choose_net(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    try:
        from keyhole.lab.training.choosing import choose_net
    except ImportError as error:
        raise InvalidInput(f"keyhole train {NEEDED}") from error
    return choose_net(job, lesson)


def _find_torch_version() -> str:
    import torch

    # The build, such as +cpu, is the machine's business.
    return str(torch.__version__).partition("+")[0]


def _open_training_directory(job: TrainJob) -> AbstractContextManager[Path | None]:
    if job.keep is False:
        return nullcontext()
    if job.resume and job.model == CONSTRUCTED:
        raise InvalidInput("constructed weights are not trained: leave --resume away.")
    if job.resume and job.out is not None:
        _check_resumable(Path(job.out), job.seed)
    return open_run_directory(f"train-{job.task}", out=job.out, resume=job.resume, force=job.force)


def _check_resumable(directory: Path, seed: int) -> None:
    """Raise where a directory holds a run, but none with checkpoints that begin with this seed."""
    # An empty directory may be resumed: a sweep always says so.
    held = [*directory.glob("checkpoint-*.safetensors"), *directory.glob("record.json")]
    if held and not (directory / f"checkpoint-{seed}.safetensors").is_file():
        raise DifferentRun(
            f"{directory} holds another run, none with --seed {seed}. Use --force to start anew."
        )


def train_seeds(
    job: TrainJob, lesson: Lesson[Any], choice: Choice, directory: Path | None
) -> Trained:
    """Every seed trained, so many at a time as are fastest, and measured."""
    from keyhole.lab.training.longer import join_length_errors
    from keyhole.lab.training.loop import STACKED, pin_torch_thread

    seeds = range(job.seed, job.seed + job.seeds)
    groups = [tuple(seeds[k : k + STACKED]) for k in range(0, len(seeds), STACKED)]
    shown = TimeLeft(job.model, job.steps, len(groups))
    with pin_torch_thread():
        parts = [
            _train_group(job, lesson, choice, directory, group, partial(shown.tell, k, group))
            for k, group in enumerate(groups)
        ]
    curves = [part.curve for part in parts]
    # Groups that were stopped early have fewer checks.
    curve = Curve(
        steps=max((curve.steps for curve in curves), key=len),
        errors=[row for one in curves for row in one.errors],
        aligned=[row for one in curves for row in one.aligned],
        best_steps=[step for one in curves for step in one.best_steps],
        stopped=[step for one in curves for step in one.stopped],
    )
    models = [m for part in parts for m in part.models]
    errors = [e for part in parts for e in part.errors]
    return replace(
        parts[0],
        errors=errors,
        curve=curve,
        models=models,
        last_errors=[e for part in parts for e in part.last_errors],
        lengths=join_length_errors([part.lengths for part in parts]),
    )


def _train_group(
    job: TrainJob,
    lesson: Lesson[Any],
    choice: Choice,
    directory: Path | None,
    seeds: tuple[int, ...],
    shown: Callable[[int], None],
) -> Trained:
    from keyhole.lab.training.choosing import choose_rate
    from keyhole.lab.training.longer import measure_at_lengths
    from keyhole.lab.training.loop import LAST, Course, Trainer
    from keyhole.lab.training.supply import Supply

    rate = choose_rate(job.model, lesson.labels) if job.rate is None else job.rate
    # Twenty checks make a curve and cost little beside the training.
    every = job.check_every or max(1, job.steps // 20)
    course = Course(
        job.steps, rate, job.warm_up, every, job.patience, keep_every=job.checkpoint_every
    )
    supply = Supply(lesson, choice.net.reading, seeds, job.batch, job.samples)
    trainer = Trainer(choice.net, supply, course, identity=_identify_checkpoint(job, seeds))
    path = None if directory is None else directory / f"checkpoint-{seeds[0]}.safetensors"
    if path is not None and job.resume and path.is_file():
        trainer.go_on(path)
    # Jobs of a sweep report through their driver.
    trainer.run(path, shown if job.keep is not False else lambda step: None)
    trainer.progress.pictures |= _find_ideal_attention(trainer, lesson)
    if path is not None:
        trainer.keep(path)
    tests = supply.held_out(Purpose.TESTS, job.tests)
    errors = [float(error) for error in trainer.errors(trainer.best, tests)]
    return Trained(
        errors,
        _record_curve(trainer),
        lesson.lines(tests.examples(0), trainer.checks.examples(0)),
        measure_at_lengths(job, trainer) if job.lengths else None,
        [choice.net.exported(trainer.best_of(k)) for k in range(len(seeds))],
        trainer.parameters,
        trainer.progress.pictures,
        [float(error) for error in trainer.errors(trainer.best, tests, LAST)],
    )


def _identify_checkpoint(job: TrainJob, seeds: tuple[int, ...]) -> str:
    """What a checkpoint must be of, to be gone on with."""
    return (
        # Where and how often a run is kept does not change what it computes.
        replace(job, keep=None, out=None, resume=False, force=False, checkpoint_every=1).key
        + f"-{seeds[0]}"
    )


def _record_curve(trainer: Trainer) -> Curve:
    """What was seen at the checks, one row per seed."""
    progress = trainer.progress
    return Curve(
        steps=progress.steps,
        errors=[list(row) for row in zip(*progress.errors, strict=True)],
        aligned=[list(row) for row in zip(*progress.aligned, strict=True)],
        best_steps=progress.best_steps,
        stopped=[None if step < 0 else step for step in progress.stopped],
    )


def _find_ideal_attention(trainer: Trainer, lesson: Lesson[Any]) -> dict[int, Matrix]:
    """What attention should be on the input that is shown, under -1, where the task says so."""
    shown = trainer.progress.pictures
    named = lesson.members(trainer.checks.X[0, :1].double().numpy()) if shown else None
    return {} if named is None else {-1: named[0] / named[0].sum(axis=1, keepdims=True)}


def _write_seed_models(data: TrainRecord, came: Trained, directory: Path) -> TrainRecord:
    """With the model of every seed as a file, the best one as model.safetensors."""
    paths = [
        str(directory / f"seed-{(data.seed or 0) + k}.safetensors") for k in range(len(came.models))
    ]
    for path, model in zip(paths, came.models, strict=True):
        save(model, path)
    best = directory / "model.safetensors"
    save(came.models[int(np.argmin(came.errors))], best)
    return structs.replace(data, run=str(directory), model=str(best), models=paths)
