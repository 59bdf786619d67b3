"""From the MODEL a person names to what is inside it, or to one layer of it as an oracle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from keyhole._files import find_file
from keyhole.errors import InvalidInput
from keyhole.lab.targets.importing import import_target
from keyhole.oracles import Oracle
from keyhole.oracles.inside.described import Inside

_FORMS = (
    "a torch module as package.module:object (or a function without arguments that makes one), an"
    " .onnx file, or a .safetensors file"
)
# Files of torch and others that run code when they are opened.
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")


def inspect(model: Any) -> Inside:
    """Attention layers, networks and norms of a model: names, sizes and wiring, no weights.

    Args:
        model: a torch module, what MODEL is on the command line, or the path of a file.

    Raises:
        InvalidInput: nothing usable is there; the message says what was looked for.
    """
    if not isinstance(model, str | Path):
        return _look_inside_module(model, type(model).__name__)
    text = str(model)
    if text.endswith(".onnx"):
        return _import_onnx_reading().look_inside_onnx(text)
    if text.endswith(".safetensors"):
        from keyhole.oracles.inside.weight_reading import look_inside_weights

        return look_inside_weights(Path(text))
    refuse_pickles(text)
    return _look_inside_module(import_model(text), text)


def open_layer(model: Any, name: str) -> Oracle:
    """One layer of a model as an oracle that answers at the last position.

    The layer of a torch model is called by itself: masks, positions and what else it needs besides
    tokens are supplied. That of an ONNX file is cut out of its graph.

    Args:
        model: a torch module, what MODEL is on the command line, or the path of an .onnx file.
        name: the layer, as `keyhole.inspect` names it.

    Raises:
        InvalidInput: there is no such layer, or it cannot be asked; the message says what to wrap.
    """
    if isinstance(model, str | Path) and str(model).endswith(".onnx"):
        return _import_onnx_reading().carve_onnx_layer(str(model), name)
    if isinstance(model, str | Path) and str(model).endswith(".safetensors"):
        raise InvalidInput(
            f"{model} holds weights, which answer nothing; --layer asks a torch module"
            " (package.module:object) or an .onnx file."
        )
    if isinstance(model, str | Path):
        refuse_pickles(str(model))
        model = import_model(str(model))
    return _import_torch_reading().ask_torch_layer(model, name)


def read_layer_weights(model: str, name: str) -> Any:
    """The weights of one layer of a torch model as a model of ours, to be compared with others.

    Raises:
        InvalidInput: there is no such layer, or no model of ours computes it.
    """
    if not model.endswith((".onnx", ".safetensors")):
        refuse_pickles(model)
        return _import_torch_reading().read_torch_weights(import_model(model), name)
    raise InvalidInput(f"--layer reads the weights of a torch module; {model} is a file.")


def import_model(text: str) -> Any:
    """The torch module that package.module:object names, or makes.

    Raises:
        InvalidInput: there is none.
    """
    if ":" not in text:
        if Path(text).exists():
            raise InvalidInput(f"{text} is a file of another kind: MODEL is {_FORMS}.")
        raise InvalidInput(f"no file at {text}: MODEL is {_FORMS}.")
    found = import_target(text)
    return _import_torch_reading().make_torch_model(found, text)


def _look_inside_module(model: Any, where: str) -> Inside:
    reading = _import_torch_reading()
    return reading.look_inside_torch(reading.make_torch_model(model, where))


def refuse_pickles(text: str) -> None:
    """Refuse a file that would have to be unpickled.

    Raises:
        InvalidInput: with what to do instead.
    """
    # A colon may stand in a path too, but a pickle is told by how its name ends.
    if not text.endswith(_PICKLED):
        return
    find_file(Path(text), f"no file at {text}. MODEL is {_FORMS}.")
    raise InvalidInput(
        f"{text} is a pickle or a TorchScript archive: opening it can run code, so keyhole does"
        " not. Whoever trusts it writes my_model.py with `model = ...` (build the module, then"
        " `load_state_dict(torch.load(PATH, weights_only=True))`; a TorchScript archive by"
        " `torch.jit.load(PATH)`), and names my_model:model. keyhole.torch_weights(PATH) reads"
        " its tensors and nothing else."
    )


def _import_torch_reading() -> Any:
    try:
        from keyhole.oracles.inside import torch_reading
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return torch_reading


def _import_onnx_reading() -> Any:
    try:
        from keyhole.oracles.inside import onnx_reading
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    return onnx_reading


def describe_layers_inside(found: Any) -> str:
    """A sentence that names the layers inside a torch module; nothing where it is none."""
    torch = sys.modules.get("torch")
    own = torch is not None and isinstance(found, torch.nn.Module)
    return name_layers(found) if own else ""


def name_layers(model: Any) -> str:
    """A sentence that names the layers inside a model, to stand behind a complaint."""
    try:
        names = [part.name for part in inspect(model).attention if part.name and not part.cross]
    # The complaint must not be lost to one about looking inside.
    except Exception:
        return ""
    if not names:
        return ""
    many = f"{len(names)} attention layers" if len(names) > 1 else "an attention layer"
    return f" It holds {many}: --layer {names[0]} asks one; keyhole inspect lists them."
