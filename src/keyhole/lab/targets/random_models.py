"""Random models of every kind, as a person describes them."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.lab.jobs import SampleJob
from keyhole.lab.jobs.job_parts import RandomModel
from keyhole.lab.targets.wirings import read_wiring_options
from keyhole.models import (
    AttentionLayer,
    Gated,
    Head,
    MultiHead,
    OneLayer,
    ReluNet,
    TensorAttention,
    TransformerBlock,
)
from keyhole.models.baselines import UNROUNDED, Mlp, Recurrent
from keyhole.models.blocks.random_blocks import random_block
from keyhole.models.layers.random_layers import random_layer
from keyhole.models.registry import KINDS, ModelKind


def list_sampled_kinds() -> dict[str, ModelKind]:
    """The kinds of which random models are drawn, by the words that ask for them."""
    return {
        word: kind
        for kind in KINDS.values()
        if kind.sample is not None
        for word in kind.sampled_as or (kind.name,)
    }


def draw_random_model(model: RandomModel, *, rng: np.random.Generator) -> Any:
    """The random model that is described."""
    known = list_sampled_kinds()
    if model.kind not in known:
        *first, last = known
        raise InvalidInput(f"KIND is {', '.join(first)} or {last}; got {model.kind!r}.")
    return known[model.kind].load("sample")(model, rng)


def _check_sizes(model: RandomModel) -> None:
    for name in ("width", "heads", "outputs"):
        if getattr(model, name) < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {getattr(model, name)}.")
    if model.rank is not None and not 0 <= model.rank <= model.width:
        raise InvalidInput(f"--rank lies between 0 and the width {model.width}; got {model.rank}.")


def _choose_hidden(model: RandomModel) -> int:
    return 4 * model.width if model.hidden is None else model.hidden


class _Shared(TypedDict):
    """Options that random models of every kind take."""

    outputs: int
    scale: float
    rng: np.random.Generator


def _share_options(model: RandomModel, rng: np.random.Generator) -> _Shared:
    _check_sizes(model)
    return {"outputs": model.outputs, "scale": model.scale, "rng": rng}


def draw_head(model: RandomModel, rng: np.random.Generator) -> Head:
    """A random head."""
    shared = _share_options(model, rng)
    return Head.random(model.width, rank=model.rank, biases=model.biases, **shared)


def draw_heads(model: RandomModel, rng: np.random.Generator) -> MultiHead:
    """A random sum of heads."""
    shared = _share_options(model, rng)
    return MultiHead.random(model.width, heads=model.heads, rank=model.rank, **shared)


def draw_network(model: RandomModel, rng: np.random.Generator) -> ReluNet:
    """A random network with one hidden layer."""
    shared = _share_options(model, rng)
    return ReluNet.random(model.width, hidden=_choose_hidden(model), **shared)


def draw_smooth_network(model: RandomModel, rng: np.random.Generator) -> ReluNet:
    """A random network with one hidden layer of GELU units."""
    shared = _share_options(model, rng)
    return ReluNet.random(model.width, hidden=_choose_hidden(model), activation="gelu", **shared)


def draw_gated_network(model: RandomModel, rng: np.random.Generator) -> Gated:
    """A random network of SwiGLU units."""
    shared = _share_options(model, rng)
    return Gated.random(model.width, hidden=_choose_hidden(model), **shared)


def draw_tensor(model: RandomModel, rng: np.random.Generator) -> TensorAttention:
    """A random unit of third order, a sum of `rank` products, as many as the width when absent."""
    shared = _share_options(model, rng)
    embed = model.width if model.rank is None else model.rank
    return TensorAttention.random(model.width, embed=embed, **shared)


def draw_one_layer(model: RandomModel, rng: np.random.Generator) -> OneLayer:
    """A random head before a random network."""
    shared = _share_options(model, rng)
    hidden = _choose_hidden(model)
    return OneLayer.random(
        model.width, hidden=hidden, rank=model.rank, biases=model.biases, **shared
    )


def draw_layer(model: RandomModel, rng: np.random.Generator) -> AttentionLayer:
    """A random attention layer of the wiring that is described."""
    _check_sizes(model)
    if not isinstance(model, SampleJob):
        raise InvalidInput("a random layer is written by `keyhole sample` alone.")
    return random_layer(
        model.width,
        heads=model.heads,
        rank=model.rank,
        # One number would be too few for heads that are read apart.
        outputs=model.width if model.outputs == 1 else model.outputs,
        wiring=read_wiring_options(model),
        biases=model.biases,
        displacements=model.displacements,
        scale=model.scale,
        rng=rng,
    )


def draw_block(model: RandomModel, rng: np.random.Generator) -> TransformerBlock:
    """A random block of the family that is described."""
    _check_sizes(model)
    if not isinstance(model, SampleJob):
        raise InvalidInput("a random block is written by `keyhole sample` alone.")
    return random_block(
        model.width,
        style=model.style,
        heads=model.heads,
        groups=model.groups,
        hidden=model.hidden,
        eps=model.eps,
        scale=model.scale,
        rng=rng,
    )


def draw_mlp(model: RandomModel, rng: np.random.Generator) -> Mlp:
    """A random fully connected network, to attack."""
    job = _check_baseline(model)
    hidden = _choose_hidden(job)
    return Mlp.random(job.length, q=job.q, dimension=job.width, hidden=hidden, rng=rng)


def draw_recurrent(model: RandomModel, rng: np.random.Generator) -> Recurrent:
    """A random recurrent network, to attack."""
    job = _check_baseline(model)
    bits, units = job.state_bits, _choose_hidden(job)
    return Recurrent.random(
        job.kind, q=job.q, dimension=job.width, units=units, state_bits=bits, rng=rng
    )


def _check_baseline(model: RandomModel) -> SampleJob:
    """The description of a network to attack, whose sizes only a file's has."""
    if not isinstance(model, SampleJob):
        raise InvalidInput(f"a random {model.kind} is written by `keyhole sample` alone.")
    sizes = {"width": model.width, "length": model.length, "q": model.q}
    for name, size in {**sizes, "hidden": _choose_hidden(model)}.items():
        if size < 1:
            raise InvalidInput(f"--{name} is a whole number >= 1; got {size}.")
    # A state of more bits than a double has is not rounded at all.
    if not 1 <= model.state_bits <= UNROUNDED:
        raise InvalidInput(f"--state-bits lies between 1 and {UNROUNDED}; got {model.state_bits}.")
    return model
