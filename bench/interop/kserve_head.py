"""A head behind KServe; `broken` answers NaN. Runs in the environment of KServe, where keyhole is
not.
"""

import sys

import numpy as np
import uvicorn
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

WEIGHTS = np.load("head.npz")


def attend(X: np.ndarray) -> np.ndarray:
    """One head, written down anew."""
    scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ WEIGHTS["W"].T)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", shares / shares.sum(axis=1, keepdims=True), X) @ WEIGHTS["V"]


class Head(Model):
    """The head as KServe calls it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    async def get_input_types(self) -> list[dict]:
        """What goes in, for the metadata."""
        return [{"name": "tokens", "datatype": "FP64", "shape": [-1, -1, len(WEIGHTS["V"])]}]

    async def get_output_types(self) -> list[dict]:
        """What comes out, for the metadata."""
        return [{"name": "answers", "datatype": "FP64", "shape": [-1, WEIGHTS["V"].shape[1]]}]

    def predict(self, payload: InferRequest, headers: dict | None = None) -> InferResponse:
        """Answers to a batch, in bytes; those of the broken model in JSON, where KServe writes NaN
        as null.
        """
        answers = attend(payload.inputs[0].as_numpy())
        answers = answers * np.nan if self.name == "broken" else answers
        output = InferOutput(name="answers", shape=list(answers.shape), datatype="FP64")
        output.set_data_from_numpy(answers, binary_data=self.name != "broken")
        return InferResponse(
            response_id=payload.id or "0", model_name=self.name, infer_outputs=[output]
        )


def on_loopback(*arguments, **options) -> uvicorn.Config:
    """The configuration KServe makes, which would listen everywhere, on this machine only."""
    return _config(*arguments, **(options | {"host": "127.0.0.1"}))


if __name__ == "__main__":
    _config, uvicorn.Config = uvicorn.Config, on_loopback
    ModelServer(http_port=int(sys.argv[1]), enable_grpc=False, workers=1).start(
        [Head("head"), Head("broken")]
    )
