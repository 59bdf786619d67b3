"""From the words of a training job to a net."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import TrainJob
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.training.inputs.lessons import Lesson
from keyhole.lab.training.nets.flags import FlagUnit
from keyhole.lab.training.nets.layers import LayersNet
from keyhole.lab.training.nets.net import Net
from keyhole.lab.training.nets.networks import MlpNet, RecurrentNet
from keyhole.lab.training.nets.token_reading import TokenReading
from keyhole.lab.training.nets.units import ThirdOrderUnit, TiedUnit, Unit
from keyhole.models.baselines import STATES
from keyhole.tasks.base import Columns


@dataclass(frozen=True, slots=True)
class Choice:
    """A net, with the sizes that were chosen where the job gave none.

    Args:
        net: the net.
        sizes: its sizes by name.
    """

    net: Net
    sizes: dict[str, Given]


def choose_reading(job: TrainJob, lesson: Lesson[Any], embed: int) -> TokenReading:
    """How a job's net reads tokens."""
    columns: Columns = lesson.task.columns
    values = columns.values
    kind = job.codes or "one-hot"
    # Random codes of about 2 ln N numbers are already nearly orthogonal.
    usual = {"random": ceil(1 + 2 * log(values)), "learned": embed, "resampled": 128}.get(
        kind, values
    )
    return TokenReading(columns, kind, usual if job.code_width is None else job.code_width)


def _check_one_answer(lesson: Lesson[Any]) -> None:
    task = lesson.task
    if task.outputs > 1:
        raise InvalidInput(
            f"a token of {task.name} has {task.outputs} answers, and an attention unit gives one:"
            " take --model layers, mlp, gru or lstm."
        )


def _choose_unit(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    linear = job.model == "linear-attention"
    embed = job.embed or lesson.task.length
    task = lesson.task
    reading = choose_reading(job, lesson, embed)
    sizes: dict[str, Given] = {"embed": embed, "heads": job.heads, "tied": job.tied}
    if lesson.labels:
        _check_one_answer(lesson)
        # A flag unit has one head whose share is the answer.
        if linear or job.tied or job.heads > 1 or job.temperature != 1.0:
            raise InvalidInput(
                f"on {task.name} an attention unit answers the share of one head's weight on real"
                " tokens: leave --tied, --heads and --temperature away, take --model attention or"
                " third-order, or --model layers for several heads."
            )
        return Choice(FlagUnit(reading, embed), sizes)
    if job.tied and job.heads > 1:
        raise InvalidInput(
            f"--tied is for one head, whose query sums the codes of the positions named; got"
            f" --heads {job.heads}. Leave one of the two away."
        )
    if job.tied:
        return Choice(TiedUnit(reading, embed, linear, job.temperature), sizes)
    net = Unit(reading, task.outputs, embed, job.heads, linear, job.temperature)
    return Choice(net, sizes)


def _choose_third_order(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    embed = job.embed or lesson.task.length
    reading = choose_reading(job, lesson, embed)
    if lesson.labels:
        _check_one_answer(lesson)
        return Choice(FlagUnit(reading, embed, order=3), {"embed": embed})
    return Choice(ThirdOrderUnit(reading, lesson.task.outputs, embed), {"embed": embed})


def _choose_mlp(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    hidden = job.hidden or 256
    task = lesson.task
    reading = choose_reading(job, lesson, hidden)
    net = MlpNet(reading, task.length, task.outputs, hidden, job.layers, lesson.labels)
    return Choice(net, {"hidden": hidden, "layers": job.layers})


def _choose_recurrent(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    hidden = job.hidden or 128
    task = lesson.task
    reading = choose_reading(job, lesson, hidden)
    net = RecurrentNet(
        reading,
        task.outputs,
        job.model,
        hidden,
        job.layers,
        # Read twice by default: whoever reads once cannot be right but at the last token.
        passes=job.passes or 2,
        labels=lesson.labels,
        state_bits=job.state_bits,
    )
    state = STATES[job.model] * hidden * job.layers
    sizes: dict[str, Given] = {"hidden": hidden, "layers": job.layers, "passes": net.passes}
    # The bound of Theorem 11 counts bits of the whole state.
    bits = None if job.state_bits is None else state * job.state_bits
    return Choice(net, sizes | {"state": state, "bits": bits})


def _choose_layers(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    task = lesson.task
    embed = job.embed or 32
    hidden = job.hidden or 4 * embed
    reading = choose_reading(job, lesson, embed)
    net = LayersNet(
        reading,
        task.length,
        task.outputs,
        embed,
        job.heads,
        job.layers,
        hidden,
        job.places,
        lesson.labels,
    )
    return Choice(net, {"embed": embed, "heads": job.heads, "layers": job.layers, "hidden": hidden})


MODELS: dict[str, Callable[[TrainJob, Lesson[Any]], Choice]] = {
    "attention": _choose_unit,
    "linear-attention": _choose_unit,
    "third-order": _choose_third_order,
    "mlp": _choose_mlp,
    "gru": _choose_recurrent,
    "lstm": _choose_recurrent,
    "layers": _choose_layers,
}
_RATES = {"attention": 1e-2, "linear-attention": 1e-2, "third-order": 1e-2}  # others 1e-3
# A smaller rate leaves units on labels half-way.
_FLAG_RATES = {"attention": 0.3, "third-order": 0.02}


def choose_rate(model: str, labels: bool) -> float:
    """The learning rate of a net where the job gives none."""
    return (_FLAG_RATES if labels else {}).get(model, _RATES.get(model, 1e-3))


def choose_net(job: TrainJob, lesson: Lesson[Any]) -> Choice:
    """The net a job asks for.

    Raises:
        InvalidInput: its sizes do not fit.
    """
    if job.codes == "resampled" and (
        lesson.labels or job.model not in ("attention", "linear-attention")
    ):
        raise InvalidInput(
            "--codes resampled is for attention and linear-attention on sparse-average."
        )
    choice = MODELS[job.model](job, lesson)
    reading = choice.net.reading
    return Choice(choice.net, choice.sizes | {"codes": reading.kind, "code_width": reading.width})
