"""Which options of a training say something to which model; the others are refused."""

from __future__ import annotations

from dataclasses import fields

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import TrainJob

CONSTRUCTED = "constructed"  # weights that are built instead of trained
_READ = frozenset({"codes", "code_width"})
_UNIT = _READ | {"embed", "heads", "tied", "temperature"}
_RECURRENT = _READ | {"hidden", "layers", "passes", "state_bits"}
# How long and on what to train says something to every model that is trained.
_COURSE = frozenset(
    ("samples", "steps", "batch", "rate", "warm_up", "check_every", "patience", "checkpoint_every")
)
# Sizes and readings.
APPLY: dict[str, frozenset[str]] = {
    "attention": _UNIT,
    "linear-attention": _UNIT,
    "third-order": _READ | {"embed"},
    "mlp": _READ | {"hidden", "layers"},
    "gru": _RECURRENT,
    "lstm": _RECURRENT,
    "layers": _READ | {"embed", "heads", "layers", "hidden", "places"},
    CONSTRUCTED: frozenset(),
}
_CHOSEN = frozenset[str]().union(*APPLY.values())


def check_options(job: TrainJob) -> None:
    """Raise where an option was given that the model has no use for.

    Raises:
        InvalidInput: it says which, for which models they are, and what this one takes.
    """
    if job.model not in APPLY:
        raise InvalidInput(f"--model is one of {', '.join(APPLY)}; got {job.model!r}.")
    given = [item.name for item in fields(job) if getattr(job, item.name) != item.default]
    for name in given:
        if name in _COURSE and job.model == CONSTRUCTED:
            raise InvalidInput(
                f"{_spell(name)} says nothing to --model {CONSTRUCTED}, whose weights are built:"
                " leave it away."
            )
        if name in _CHOSEN - APPLY[job.model]:
            meant = ", ".join(model for model, names in APPLY.items() if name in names)
            raise InvalidInput(
                f"{_spell(name)} says nothing to --model {job.model}: it is for {meant}. Leave it"
                f" away; {job.model} takes {_list_options(job.model)}."
            )


def _list_options(model: str) -> str:
    return ", ".join(map(_spell, sorted(APPLY[model]))) or "none of these"


def _spell(name: str) -> str:
    return f"--{name.replace('_', '-')}"
