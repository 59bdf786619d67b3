"""What is known of a served model before it is asked: its metadata, and what the caller says."""

from __future__ import annotations

from dataclasses import dataclass

from keyhole.errors import InvalidInput
from keyhole.oracles.base import LARGEST
from keyhole.oracles.http import wire
from keyhole.oracles.http.addresses import Address


@dataclass(frozen=True, slots=True)
class Description:
    """What is known of the model before it is asked."""

    width: int
    outputs: int | None
    input: str
    input_type: str
    output: str | None
    output_type: str
    binary: bool

    @classmethod
    def read_metadata(
        cls, told: wire.Metadata, parts: Address, binary: bool, size: int | None, count: int | None
    ) -> Description:
        """What metadata and the caller say together.

        Raises:
            InvalidInput: they contradict each other, or the model is not one that can be asked
                sequences.
        """
        taken = _choose_tensor(told.inputs, parts.input, "input", parts.url)
        given = _choose_tensor(told.outputs, parts.output, "output", parts.url)
        width = _find_last_size(taken, 3)
        outputs = _find_last_size(given, 2)
        if size is not None and width not in (None, size):
            raise InvalidInput(f"{parts.url} has tokens of width {width}; --width says {size}.")
        if count is not None and outputs not in (None, count):
            raise InvalidInput(f"{parts.url} answers {outputs} numbers; --outputs says {count}.")
        width = size if width is None else width
        if width is None or width < 1:
            raise InvalidInput(f"{parts.url} does not say how wide its tokens are. Give --width.")
        outputs = count if outputs is None else outputs
        if max(width, outputs or 1) > LARGEST:
            raise InvalidInput(
                f"{parts.url} speaks of tokens of width {width} and {outputs or 'any number of'}"
                f" outputs; keyhole asks models of up to {LARGEST} each. Is it the right one?"
            )
        # A server that lists no tensors is taken to hold what keyhole would ask it: float64.
        input_type = "FP64" if taken is None else taken.datatype
        if input_type not in wire.FLOATS:
            raise InvalidInput(
                f"{parts.url} takes {input_type:.40}; keyhole asks vectors of"
                f" {', '.join(wire.FLOATS)}."
            )
        return cls(
            width,
            outputs,
            parts.input or ("input" if taken is None else taken.name),
            input_type,
            parts.output or (None if given is None else given.name),
            "FP64" if given is None else given.datatype,
            binary,
        )


def _choose_tensor(
    tensors: list[wire.Tensor], name: str | None, what: str, url: str
) -> wire.Tensor | None:
    """The tensor that is meant; None where the server lists none."""
    fitting = [tensor for tensor in tensors if name in (None, tensor.name)]
    if len(fitting) == 1 or not tensors:
        return fitting[0] if fitting else None
    names = ", ".join(tensor.name for tensor in tensors)[:200]
    raise InvalidInput(f"{url} has the {what}s {names}: name one of them with ?{what}=NAME.")


def _find_last_size(tensor: wire.Tensor | None, axes: int) -> int | None:
    """Size of the last axis, where it is told."""
    # Answers of shape (batch,) are one number each, which the first answer shows.
    if tensor is None or not tensor.shape or (axes == 2 and len(tensor.shape) == 1):
        return None
    if len(tensor.shape) != axes:
        wanted = "(batch, length, width) in" if axes == 3 else "(batch, outputs) out"
        raise InvalidInput(
            f"{tensor.name:.80} has shape {str(tensor.shape)[:80]}; keyhole needs {wanted}."
        )
    # -1 is how the protocol writes a size that is free.
    return tensor.shape[-1] if tensor.shape[-1] > 0 else None
