"""An ONNX file that takes token ids, as an oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keyhole.errors import InvalidInput
from keyhole.oracles.onnx_file import list_ends, open_session, require_one
from keyhole.oracles.tokens.ids import TokenIds

_DTYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def open_onnx_ids(path: str | Path, vocabulary: int | None = None) -> TokenIds:
    """A model in an ONNX file that maps ids (batch, length) to logits, the vocabulary last.

    Raises:
        InvalidInput: there is no such file, it takes no ids, or its vocabulary is not known.
    """
    session = open_session(Path(path))
    taken = require_one(list_ends(session.get_inputs, path), "input", path)
    # Models that are exported with their cache answer more than logits, which come first.
    given = next(iter(list_ends(session.get_outputs, path)), None)
    if taken.type not in _DTYPES or len(taken.shape or ()) != 2:
        raise InvalidInput(
            f"{path} takes {taken.type} of shape {taken.shape}; a model on token ids takes int64"
            " (batch, length). Leave --tokens-in away if it takes vectors."
        )
    if given is None:
        raise InvalidInput(f"{path} answers nothing: a model on token ids has an output, logits.")
    size = given.shape[-1] if given.shape else None
    if vocabulary is None and isinstance(size, int):
        vocabulary = size

    def answer(ids: Any) -> Any:
        return session.run([given.name], {taken.name: ids.astype(_DTYPES[taken.type])})[0]

    return TokenIds(answer, vocabulary)
