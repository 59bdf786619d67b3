"""Random models of every kind, as a person describes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.lab.jobs.job_parts import RandomModel
from keyhole.models import Head, MultiHead, OneLayer, ReluNet


def draw_random_model(model: RandomModel, *, rng: np.random.Generator) -> Any:
    """The random model that is described."""
    for name in ("width", "heads", "outputs"):
        if getattr(model, name) < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {getattr(model, name)}.")
    if model.rank is not None and not 0 <= model.rank <= model.width:
        raise InvalidInput(f"--rank lies between 0 and the width {model.width}; got {model.rank}.")
    hidden = 4 * model.width if model.hidden is None else model.hidden
    shared: dict[str, Any] = {"outputs": model.outputs, "scale": model.scale, "rng": rng}
    # Functions, so that only the model that is asked for draws from the generator.
    makers: dict[str, Callable[[], Any]] = {
        "head": lambda: Head.random(model.width, rank=model.rank, biases=model.biases, **shared),
        "multihead": lambda: MultiHead.random(
            model.width, heads=model.heads, rank=model.rank, **shared
        ),
        "relu": lambda: ReluNet.random(model.width, hidden=hidden, **shared),
        "onelayer": lambda: OneLayer.random(
            model.width, hidden=hidden, rank=model.rank, biases=model.biases, **shared
        ),
    }
    if model.kind not in makers:
        raise InvalidInput(f"KIND is head, multihead, relu or onelayer; got {model.kind!r}.")
    return makers[model.kind]()
