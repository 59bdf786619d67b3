"""Feed-forward networks and norms of a torch model, found by the names of their projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from keyhole.errors import InvalidInput
from keyhole.oracles.inside.described import NetworkPart, NormPart
from keyhole.oracles.inside.torch_wiring import name_class, name_format
from keyhole.oracles.part_names import GATED, PAIRS
from keyhole.oracles.torch_found import is_matrix, read_matrix_sizes
from keyhole.oracles.torch_module import torch

_ACTS = ("act", "act_fn", "activation", "activation_fn", "gelu_impl", "nonlinearity", "act_func")
_ACTS += ("intermediate.intermediate_act_fn", "intermediate_act_fn")
_EPS = ("eps", "variance_epsilon", "epsilon")


@dataclass(frozen=True, eq=False, slots=True)
class Network:
    """A network found in a model: down(act(up x)), or down(act(gate x) * up x).

    Args:
        name: the module that holds nothing else, or the first projection.
        gate: the projection in front of the activation, where another stands beside it.
        up: the projection to the hidden units.
        act: the activation; None where it was not found.
        down: the projection behind it.
        layout: names of the projections.
    """

    name: str
    gate: Any
    up: Any
    act: Callable[[Any], Any] | None
    down: Any
    layout: str

    def answer(self, tokens: Any) -> Any:
        """The network at the last token.

        Raises:
            InvalidInput: its activation was not found.
        """
        if self.act is None:
            raise InvalidInput(
                f"{self.name} has no activation between {self.layout} that is a part of its own:"
                " wrap it in a callable, and name that as TARGET."
            )
        last = tokens[:, -1]
        if self.gate is None:
            return self.down(self.act(self.up(last)))
        return self.down(self.act(self.gate(last)) * self.up(last))

    def describe(self) -> NetworkPart:
        """Sizes and activation."""
        width, hidden = read_matrix_sizes(self.up)
        biased = any(part is not None and part.bias is not None for part in self._list_linear())
        return NetworkPart(
            name=self.name,
            layout=self.layout,
            width=width,
            hidden=hidden,
            outputs=read_matrix_sizes(self.down)[1],
            activation=None if self.act is None else name_activation(self.act),
            gated=self.gate is not None,
            biases=biased,
            dtype=name_format(self.up.weight),
        )

    def gather_modules(self) -> Any:
        """All modules that take part in an answer, as one."""
        parts = (*self._list_linear(), self.act)
        return torch.nn.ModuleList([part for part in parts if isinstance(part, torch.nn.Module)])

    def _list_linear(self) -> tuple[Any, Any, Any]:
        return self.gate, self.up, self.down


def list_networks(model: Any) -> list[Network]:
    """All feed-forward networks of a model, in its order."""
    return [net for name, module in model.named_modules() for net in _find_networks(name, module)]


def _find_networks(name: str, module: Any) -> Iterator[Network]:
    for gate, up, down in GATED:
        if _have_matrices(module, gate, up, down):
            yield _read_network(name, module, gate, up, down)
            return
    for up, down in PAIRS:
        if _have_matrices(module, up, down):
            yield _read_network(name, module, None, up, down)
            return
    if isinstance(module, torch.nn.Sequential):
        yield from _find_in_sequence(name, module)


def _have_matrices(module: Any, *paths: str) -> bool:
    return all(is_matrix(_reach(module, path)) for path in paths)


def _reach(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module


def _read_network(name: str, module: Any, gate: str | None, up: str, down: str) -> Network:
    paths = [path for path in (gate, up, down) if path is not None]
    parts = {path: _reach(module, path) for path in paths}
    known = {id(w) for part in parts.values() for w in part.parameters()}
    # Where the module holds more, the first projection tells it apart.
    alone = all(id(w) in known for w in module.parameters())
    acts = (_reach(module, path) for path in _ACTS)
    return Network(
        name if alone else f"{name}.{paths[0]}".lstrip("."),
        None if gate is None else parts[gate],
        parts[up],
        next((act for act in acts if callable(act)), None),
        parts[down],
        ", ".join(paths),
    )


def _find_in_sequence(name: str, module: Any) -> Iterator[Network]:
    """Linear, activation and linear in a row, dropout between them or not."""
    steps = [
        (key, part)
        for key, part in module.named_children()
        if not isinstance(part, torch.nn.Dropout)
    ]
    for (first, up), (_, act), (last, down) in zip(steps, steps[1:], steps[2:], strict=False):
        linear = isinstance(up, torch.nn.Linear) and isinstance(down, torch.nn.Linear)
        if linear and not is_matrix(act) and not any(True for _ in act.parameters()):
            whole = name if len(steps) == 3 else f"{name}.{first}".lstrip(".")
            yield Network(whole, None, up, act, down, f"{first}, {last}")


def name_activation(act: Callable[[Any], Any]) -> str:
    """The name of an activation, told by its values where it is a known one."""
    z = torch.linspace(-4.0, 4.0, 41, dtype=torch.float64)
    functional = torch.nn.functional
    known = {
        "relu": functional.relu(z),
        "gelu": functional.gelu(z),
        "gelu_tanh": functional.gelu(z, approximate="tanh"),
        "silu": functional.silu(z),
        "quick_gelu": z * torch.sigmoid(1.702 * z),
        "tanh": torch.tanh(z),
        "sigmoid": torch.sigmoid(z),
        "identity": z,
    }
    try:
        with torch.no_grad():
            got = act(z.clone())
    # An activation with weights of its own, or none of one number, has only a name.
    except Exception:
        return name_class(act)
    # Models write constants with eight digits.
    near = [
        name for name, values in known.items() if torch.allclose(got, values, rtol=0, atol=1e-6)
    ]
    return near[0] if near else getattr(act, "__name__", name_class(act))


def list_norms(model: Any) -> list[tuple[str, NormPart]]:
    """All norms of a model, with their names."""
    return [
        (name, part)
        for name, module in model.named_modules()
        if (part := _read_norm_module(name, module)) is not None
    ]


def _read_norm_module(name: str, module: Any) -> NormPart | None:
    """A module without parts that says it is a norm of tokens, and has a gain for each number."""
    kind = name_class(module).lower()
    gain: Any = getattr(module, "weight", None)
    if "norm" not in kind or getattr(gain, "ndim", 0) != 1:
        return None
    if any(word in kind for word in ("batch", "group", "instance")):
        return None
    eps = next((e for key in _EPS if isinstance(e := getattr(module, key, None), float)), None)
    norm = "layer" if _ignores_the_mean(module, gain) else "rms"
    return NormPart(name=name, width=len(gain), norm=norm, eps=eps, dtype=name_format(gain))


def _ignores_the_mean(module: Any, gain: Any) -> bool:
    """Whether tokens that differ by a constant are normed alike; names do not tell.

    T5's LayerNorm has no mean to take off, for one.
    """
    # Weights without numbers cannot be asked.
    if gain.device.type == "meta":
        return "rms" not in name_class(module).lower()
    tokens = torch.linspace(-1.0, 1.0, 2 * len(gain), device=gain.device)
    tokens = torch.stack([tokens[::2], tokens[::2] + 0.5]).to(gain.dtype)
    with torch.no_grad():
        plain, moved = module(tokens).double()
    gap = float((plain - moved).abs().max())
    return gap <= 0.05 * float(plain.abs().max())
