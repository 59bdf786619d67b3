"""Whether an attention layer of torch answers as the formula of its projections does.

A layer may rotate positions into its queries, scale, cap or mask its scores, and its projections
say nothing of that. So it is run on two random batches: by itself, and where it needs more than
tokens inside the nearest module around it that runs on tokens or on token ids alone, hooks putting
the question in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from keyhole._arrays import Stack
from keyhole.errors import InvalidInput, KeyholeError
from keyhole.oracles.torch_found import Attention, reach_module
from keyhole.oracles.torch_hooks import Hooked
from keyhole.oracles.torch_module import TorchModule, torch

# Sequences, and tokens of each.
SHORT = (3, 5)
# Tokens of the second batch: the first that the layer takes.
LONG = (300, 150, 75, 37, 18, 9)
# Of the largest score in either batch: plain, and where caps bend.
SIZES = (1.0, 8.0)
# Roundings of a score that formula and layer may be apart.
ROUNDINGS = 16.0


@dataclass(frozen=True, slots=True)
class Run:
    """A way to run a layer.

    Args:
        model: the model the layer is in.
        layer: the layer.
        place: the name of the module that is called: the layer's own, or one around it.
        words: whether it is called with token ids instead of tokens.
    """

    model: Any
    layer: Attention
    place: str
    words: bool

    def __call__(self, batch: int, length: int) -> Any:
        """Run it on zeros, in whose place hooks put the question."""
        like = next(self.layer.module.parameters())
        place = reach_module(self.model, self.place)
        if self.words:
            return place(torch.zeros(batch, length, dtype=torch.long, device=like.device))
        sizes = (batch, length, self.layer.width)
        return place(torch.zeros(sizes, dtype=like.dtype, device=like.device))

    @property
    def alone(self) -> bool:
        """Whether the layer is called by itself."""
        return self.place == self.layer.name and not self.words

    @property
    def code(self) -> str:
        """The same in Python, as the argument `around`."""
        like = next(self.layer.module.parameters())
        sizes = "batch, length" if self.words else f"batch, length, {self.layer.width}"
        dtype = torch.long if self.words else like.dtype
        sizes += "" if dtype == torch.get_default_dtype() else f", dtype={dtype}"
        sizes += "" if like.device.type == "cpu" else f", device={str(like.device)!r}"
        place = f"model.get_submodule({self.place!r})" if self.place else "model"
        return f"lambda batch, length: {place}(torch.zeros({sizes}))"


def check_formula(model: Any, layer: Attention, *, head: int | None = None) -> None:
    """Refuse a layer that answers two random batches otherwise than its projections say.

    Args:
        model: the model the layer is in.
        layer: the layer.
        head: the head that is wanted; None for the whole layer.

    Raises:
        InvalidInput: with the gap and the call that asks the layer itself, or why there is none.
    """
    said = ""
    for run in list_runs(model, layer):
        try:
            gaps = _measure_gaps(run, head)
        except KeyholeError as error:
            # It needs more than tokens, or than token ids: the next module around it may not.
            said = said or str(error).rstrip(".")
            continue
        beyond = [pair for pair in gaps if not pair[0] <= pair[1]]
        if beyond:
            raise InvalidInput(_explain_gap(run, head, *max(beyond)))
        return
    raise InvalidInput(
        f"{layer.name or 'the layer'} cannot be compared with the formula of its projections, "
        "since neither it nor a module around it runs on tokens or token ids alone "
        f"({said}). Give around=, a function of batch and length that runs the model, to ask it as "
        "the model does."
    )


def list_runs(model: Any, layer: Attention) -> Iterator[Run]:
    """Ways to run a layer, the nearest first; a projection beside it is run by what holds both."""
    if layer.fused:
        yield Run(model, layer, layer.name, False)
        return
    # The nearest module first: it needs least of the model, and its question is the layer's own.
    parts = layer.name.split(".") if layer.name else []
    places = [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
    places = [*places[1:], places[0]] if layer.beside else places
    for place in places:
        yield Run(model, layer, place, False)
        if place != layer.name:
            yield Run(model, layer, place, True)


def _measure_gaps(run: Run, head: int | None) -> list[tuple[float, float]]:
    """The gap of either batch, and what rounding allows."""
    # A fixed seed: whether a layer is accepted must not depend on luck.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(*SHORT, run.layer.width))
    return [_measure_gap(run, head, X, SIZES[0]), _measure_long_gap(run, head, rng)]


def _measure_long_gap(run: Run, head: int | None, rng: np.random.Generator) -> tuple[float, float]:
    """The second batch: one sequence, as long as the layer takes it, so that windows show."""
    X = rng.normal(size=(1, LONG[0], run.layer.width))
    for length in LONG:
        try:
            return _measure_gap(run, head, X[:, :length], SIZES[1])
        except KeyholeError:
            # Longer than its positions.
            continue
    return _measure_gap(run, head, X[:, : SHORT[1]], SIZES[1])


def _measure_gap(run: Run, head: int | None, X: Stack, size: float) -> tuple[float, float]:
    """The relative gap of layer and formula at scores of a size, and what rounding allows."""
    formula, truth = (_ask_as_torch(run, ask) for ask in _split_sides(run, head))
    X, largest = _scale_tokens(run, X, size)
    expected = truth.ask(X)
    told = formula.ask(X)
    # Compared before numbers are: broadcasting would hide a layer with other outputs.
    if expected.shape != told.shape:
        raise InvalidInput(f"it answers {expected.shape[1:]} numbers, not {told.shape[1:]}")
    # Relative to the larger side, and to 1 where both are silent.
    size = max(float(np.abs(expected).max()), float(np.abs(told).max())) or 1.0
    gap = float(np.abs(expected - told).max()) / size
    return gap, ROUNDINGS * formula.imperfection.roundoff * (1.0 + largest)


def _ask_as_torch(run: Run, ask: Callable[[Any], Any]) -> TorchModule:
    return TorchModule(ask, run.layer.width, None, within=run.model)


def _scale_tokens(run: Run, X: Stack, size: float) -> tuple[Stack, float]:
    """Tokens stretched until their largest score is about that size, and the score."""
    scores = _ask_as_torch(run, lambda tokens: run.layer.scores(tokens).flatten(1))
    # Scores are quadratic but for biases: a few rounds come close enough.
    for _ in range(3):
        largest = float(np.abs(scores.ask(X)).max())
        X = X * float(np.clip((size / largest) ** 0.5 if largest else 1.0, 0.05, 20.0))
    return X, float(np.abs(scores.ask(X)).max())


def _split_sides(run: Run, head: int | None) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Formula and layer: whole answers, or heads side by side where these are wanted or run."""
    layer = run.layer
    if layer.fused:
        return layer.answer, lambda tokens: _run_fused(layer, tokens)
    unprojected = layer.output is None or (layer.beside and run.alone)
    if head is None and not unprojected:
        hooked = Hooked(run, layer.module, layer.end, name=layer.name)
        return layer.answer, lambda tokens: _take_last(hooked(tokens))
    leave = layer.module if unprojected else layer.output
    hooked = Hooked(run, layer.module, leave, name=layer.name, before=not unprojected)
    return lambda tokens: layer.mixed(tokens).flatten(1), lambda tokens: _take_last(hooked(tokens))


def _run_fused(layer: Attention, tokens: Any) -> Any:
    across = tokens if layer.batch_first else tokens.transpose(0, 1)
    answers = layer.module(across, across, across, need_weights=False)[0]
    return answers[:, -1] if layer.batch_first else answers[-1]


def _take_last(answers: Any) -> Any:
    if answers.ndim != 3:
        raise InvalidInput(f"it answers {tuple(answers.shape)}, not (batch, length, outputs)")
    return answers[:, -1]


def _explain_gap(run: Run, head: int | None, gap: float, allowed: float) -> str:
    layer = run.layer
    heads = f"{layer.heads} heads" if (layer.heads or 0) > 1 else "one head"
    return (
        f"{layer.name or 'the layer'} does not compute the scaled dot-product attention of {heads} "
        f"that its projections make up: on random tokens its own answers are a relative {gap:.2g} "
        f"away, and rounding explains {allowed:.1g}. Ask it itself: {_write_call(run, head)}"
    )


def _write_call(run: Run, head: int | None) -> str:
    """The call that asks the layer itself."""
    name = repr(run.layer.name)
    if run.layer.fused:
        return f"keyhole.torch_layer(model, {name})"
    whole = head is None and run.layer.end is run.layer.module
    if run.alone and (whole or run.layer.output is None or run.layer.beside):
        return f"keyhole.torch_block(model, {name}, width={run.layer.width})"
    if head is None:
        return f"keyhole.torch_layer(model, {name}, around={run.code})"
    return f"keyhole.torch_head(model, {name}, {head}, heads={run.layer.heads}, around={run.code})"
