"""From the TARGET a person names to an oracle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyhole._arrays import Matrix
from keyhole._files import find_file, read_file, refuse_damage
from keyhole.errors import InvalidInput
from keyhole.lab.jobs.job_parts import Declaring, Reaching
from keyhole.lab.targets.importing import import_target
from keyhole.lab.targets.inspecting import (
    describe_layers_inside,
    name_layers,
    open_layer,
    refuse_pickles,
)
from keyhole.models import SelfAttention, TensorAttention, load
from keyhole.models.files import read_metadata
from keyhole.models.layers.tensor_row import read_last_row
from keyhole.oracles import (
    Advised,
    Bounded,
    Cast,
    Declared,
    Disturbed,
    Examining,
    Imperfection,
    Local,
    Noisy,
    Oracle,
    Rounded,
    Signs,
    Sized,
    oracle_of,
)
from keyhole.oracles.tokens.ids import TokenIds

_FORMS = (
    "a .safetensors or .onnx file, package.module:callable, or http(s)://HOST:PORT/v2/models/NAME"
)
TOKEN = "KEYHOLE_TOKEN"  # noqa: S105


def open_target(
    target: str,
    *,
    width: int | None = None,
    outputs: int | None = None,
    reaching: Reaching | None = None,
    layer: str | None = None,
    last: bool = False,
) -> Oracle:
    """The oracle a TARGET names; `reaching` says how to ask a service.

    Args:
        target: what a person names.
        width: size of a token, where it was told.
        outputs: numbers of an answer, where they were told.
        reaching: how to ask a service.
        layer: one layer of a torch or ONNX model, instead of the whole.
        last: read a sequence that a torch module answers at its last position.

    Raises:
        InvalidInput: nothing usable is there; the message says what was looked for.
        TargetFailed: a service does not answer.
    """
    if layer is not None:
        return _check_oracle_sizes(target, _open_layer(target, layer), width, outputs)
    if target.startswith(("http://", "https://")):
        return _open_service(target, width, outputs, reaching or Reaching())
    if target.endswith(".onnx"):
        return _open_onnx_file(target, width, outputs)
    # A path with a colon in it is still taken for package.module:NAME.
    if target.endswith(".safetensors") or (os.sep in target and ":" not in target):
        return _check_oracle_sizes(target, Local(load_askable_model(target)), width, outputs)
    refuse_pickles(target)
    if ":" not in target:
        raise InvalidInput(f"TARGET must be {_FORMS}; got {target!r}.")
    return _open_in_process(target, width, outputs, last)


def _open_layer(target: str, layer: str) -> Oracle:
    if target.startswith(("http://", "https://")):
        raise InvalidInput(
            f"--layer takes one layer of a torch or ONNX model on this machine; {target} is a"
            " service, which answers as it does."
        )
    return open_layer(target, layer)


def open_token_target(target: str, vocabulary: int | None) -> Oracle:
    """The oracle of a target on token ids: a callable or torch module of this process, or a file.

    Raises:
        InvalidInput: nothing usable is there, or its vocabulary is not known.
    """
    if target.endswith(".onnx"):
        try:
            from keyhole.oracles.tokens.onnx_ids import open_onnx_ids
        except ImportError as error:
            raise InvalidInput(str(error)) from error
        return open_onnx_ids(target, vocabulary)
    if ":" not in target or target.startswith(("http://", "https://")):
        raise InvalidInput(
            "a TARGET on token ids is a model of your own in this process: package.module:callable"
            f" or an .onnx file; got {target!r}."
        )
    found = import_target(target)
    return found if isinstance(found, Oracle) else TokenIds(found, vocabulary)


def _open_in_process(target: str, width: int | None, outputs: int | None, last: bool) -> Oracle:
    """What `package.module:NAME` holds: a callable, a torch module, or an oracle."""
    found = import_target(target)
    inside = describe_layers_inside(found)
    try:
        oracle = oracle_of(found, width, outputs, last=last)
    except InvalidInput as error:
        raise InvalidInput(f"{error}{inside}") from error
    return _check_oracle_sizes(
        target, Advised(oracle, inside) if inside else oracle, width, outputs
    )


def _check_oracle_sizes(
    target: str, oracle: Oracle, width: int | None, outputs: int | None
) -> Oracle:
    """The oracle, where it has the sizes that were said."""
    if width not in (None, oracle.width):
        raise InvalidInput(f"{target} has tokens of width {oracle.width}; --width says {width}.")
    # Many targets learn how many numbers they answer only with the first answer.
    if None not in (outputs, oracle.outputs) and outputs != oracle.outputs:
        raise InvalidInput(f"{target} answers {oracle.outputs} numbers; --outputs says {outputs}.")
    return oracle


def load_askable_model(path: str) -> Any:
    """A saved model as it is asked: a layer by its last row."""
    model = _load_layer(path) if _holds_layers(path) else load(path)
    layers = SelfAttention | TensorAttention
    return read_last_row(model) if isinstance(model, layers) else model


def _holds_layers(path: str) -> bool:
    """Whether a file holds layers with token maps, for which the constructions are loaded."""
    try:
        return "layers" in read_metadata(Path(path))
    # Whoever loads it says what is wrong with it.
    except InvalidInput:
        return False


def _load_layer(path: str) -> Any:
    """The layer of a Transformer that has one; any other model as it is.

    The token map in front of a built or trained layer is not hidden: tokens are asked as it gives
    them. A layer with a residual or a trained network behind it is refused: recovered alone, it
    would not be the model.
    """
    from keyhole.constructions import load
    from keyhole.constructions.shared.coded_tokens import Perceptron
    from keyhole.models.stack import Transformer

    model = load(path)
    if not isinstance(model, Transformer):
        return model
    layer = model.blocks[0].layer if len(model.blocks) == 1 else None
    if not isinstance(layer, SelfAttention | TensorAttention):
        raise InvalidInput(
            f"{path} is a Transformer; only one layer of attention, with heads of order 2 or one"
            " unit of higher order, is asked as a TARGET."
        )
    if model.blocks[0].residual or isinstance(model.out, Perceptron):
        raise InvalidInput(
            f"{path} has a residual or a network behind its attention layer, which asking the layer"
            " would leave out. A callable of your own, package.module:NAME, can ask any part of"
            " keyhole.load(PATH)."
        )
    return layer


def _open_service(
    address: str, width: int | None, outputs: int | None, reaching: Reaching
) -> Oracle:
    try:
        from keyhole.oracles.http.service import HttpService
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    # A token on the command line would be seen by every user of the machine.
    token = os.environ.get(TOKEN) or None
    return HttpService(
        address,
        width,
        outputs,
        rate=reaching.rate,
        timeout=reaching.timeout,
        connections=reaching.in_flight,
        answers=reaching.answers if isinstance(reaching, Declaring) else "f64",
        token=token,
    )


def _open_onnx_file(path: str, width: int | None, outputs: int | None) -> Oracle:
    try:
        from keyhole.oracles.onnx_file import OnnxFile
    except ImportError as error:
        raise InvalidInput(str(error)) from error
    try:
        return OnnxFile(path, width, outputs)
    except InvalidInput as error:
        raise InvalidInput(f"{error}{name_layers(path)}") from error


def choose_chunk_size(target: str) -> int:
    """Numbers of one entry of the transcript: few where an answer lost is an answer waited for."""
    # What a kill loses is at most one chunk: over a network that is dear.
    return 1 << 19 if target.startswith(("http://", "https://")) else 1 << 22


def read_declarations(job: Declaring, *, learned: bool = True) -> Imperfection:
    """What a job declares of its target, and whether it can be learned with that."""
    stated = Imperfection.cast(job.answers)
    if job.decimals is not None:
        stated = stated.combined(Imperfection.decimals(job.decimals))
    levels = 2 if job.labels else None
    return stated.combined(
        Imperfection(
            noise=job.noise,
            tolerance=job.tolerance,
            levels=levels,
            token_bound=job.token_bound,
            lengths=None if job.lengths is None else read_lengths(job.lengths, learned=learned),
        )
    )


def read_lengths(text: str, *, learned: bool = True) -> tuple[int, int]:
    """The two numbers of MIN:MAX.

    Raises:
        InvalidInput: they are not two whole numbers, not in order, or too few for a learner.
    """
    shortest, _, longest = text.partition(":")
    if not (shortest.isdecimal() and longest.isdecimal()):
        raise InvalidInput(f"--lengths takes MIN:MAX, two whole numbers; got {text!r}.")
    lengths = int(shortest), int(longest)
    if learned and (lengths[0] > 1 or lengths[1] < 2):
        raise InvalidInput(
            f"learners need sequences of one and of two tokens; --lengths {text} allows"
            f" {lengths[0]} to {lengths[1]}."
        )
    return lengths


def declare_target(target: Oracle, job: Declaring, *, learned: bool = True) -> Oracle:
    """The target with what a job states of it; lengths that may not be asked are refused."""
    stated = read_declarations(job, learned=learned)
    oracle: Oracle = Declared(target, stated)
    if stated.lengths is not None:
        oracle = Sized(oracle, stated.lengths)
    return oracle if job.verify is None else Examining(oracle, job.verify)


_POLICIES: dict[str, Callable[[Oracle, str, int], Oracle]] = {
    "noise": lambda oracle, value, seed: Noisy(oracle, float(value), seed),
    "tolerance": lambda oracle, value, seed: Disturbed(oracle, float(value), seed),
    "decimals": lambda oracle, value, seed: Rounded(oracle, int(value)),
    "answers": lambda oracle, value, seed: Cast(oracle, value),
    "token-bound": lambda oracle, value, seed: Bounded(oracle, float(value)),
    "labels": lambda oracle, value, seed: Signs(oracle),
}


def simulate_policies(oracle: Oracle, policies: Sequence[str], seed: int) -> Oracle:
    """The oracle behind output policies, the first one innermost; each declares itself.

    Raises:
        InvalidInput: a policy is not known, or its value makes no sense.
    """
    # Both --simulate a,b and --simulate a --simulate b are understood.
    for policy in ",".join(policies).split(",") if policies else ():
        name, _, value = policy.partition("=")
        if name not in _POLICIES:
            raise InvalidInput(
                f"--simulate takes {', '.join(_POLICIES)}, as NAME=VALUE; got {policy!r}."
            )
        try:
            oracle = _POLICIES[name](oracle, value, seed)
        except ValueError as error:
            raise InvalidInput(f"--simulate {name}= needs a number; got {value!r}.") from error
    return oracle


def resume_noise(oracle: Any, asked: int) -> None:
    """Let simulated noise go on from where a run that is resumed had come to."""
    # Noise is drawn by position; a resumed run must not draw the same noise for new questions.
    while oracle is not None:
        if isinstance(oracle, Noisy):
            oracle.position = asked
        oracle = getattr(oracle, "inner", None)


def load_tokens(path: str) -> Matrix:
    """A vocabulary: one token per row of a .npy, .csv (or .txt) or .safetensors file."""
    file = find_file(
        Path(path),
        f"no token file at {path}. Give a .npy, .csv or .safetensors file with one token per row.",
    )
    with refuse_damage(path, "file of tokens"):
        tokens = _TOKEN_FILES[file.suffix](file) if file.suffix in _TOKEN_FILES else np.zeros(0)
    if tokens.ndim != 2 or not tokens.size or not np.isfinite(tokens).all():
        raise InvalidInput(
            f"{path} must hold one finite matrix with one token per row (.npy, .csv, .txt or"
            f" .safetensors); got shape {tokens.shape}."
        )
    return tokens


def load_bases(path: str) -> tuple[Matrix, ...]:
    """Bases of subspaces, one per head, from a .safetensors or .npy file."""
    from safetensors.numpy import load

    file = find_file(
        Path(path),
        f"no file of bases at {path}. Give a .safetensors or .npy file with one basis per head.",
    )
    with refuse_damage(path, "file of bases"):
        if file.suffix == ".safetensors":
            held: Any = [basis for _, basis in sorted(load(file.read_bytes()).items())]
        else:
            held = np.load(file, allow_pickle=False)
        found = [np.asarray(basis, dtype=np.float64) for basis in held]
    if not found or any(basis.ndim != 2 for basis in found):
        shapes = [basis.shape for basis in found]
        raise InvalidInput(
            f"{path} must hold bases, one matrix per head, width x rank; got {shapes}."
        )
    return tuple(found)


def _load_only_tensor(file: Path) -> Matrix:
    from safetensors.numpy import load

    tensors = load(file.read_bytes())
    if len(tensors) != 1:
        raise ValueError(f"it holds {len(tensors)} tensors, not one")
    return np.asarray(next(iter(tensors.values())), dtype=np.float64)


_TOKEN_FILES: dict[str, Callable[[Path], Any]] = {
    ".npy": lambda file: np.asarray(np.load(file, allow_pickle=False), dtype=np.float64),
    ".csv": lambda file: np.loadtxt(file, delimiter=",", ndmin=2),
    ".txt": lambda file: np.loadtxt(file, ndmin=2),
    ".safetensors": _load_only_tensor,
}


def hash_file(target: str) -> str | None:
    """SHA-256 of a file target, so that a changed file is not taken for the same run."""
    try:
        return hashlib.sha256(read_file(Path(target), "no file")).hexdigest()
    # What is no file (a module, an address) has no digest; one that cannot be read says so later.
    except InvalidInput:
        return None


def label_target(target: str) -> str:
    """A short name for run directories."""
    name = target.rpartition(":")[2]
    if os.sep in target or target.endswith((".safetensors", ".onnx")):
        name = Path(target).stem
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name) or "target"
