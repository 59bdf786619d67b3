"""A head behind MLServer; `broken` answers NaN. Runs in the environment of MLServer, where keyhole
is not.
"""

import asyncio
import sys

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

WEIGHTS = np.load("head.npz")


def attend(X: np.ndarray) -> np.ndarray:
    """One head, written down anew."""
    scores = np.einsum("bnd,bd->bn", X, X[:, -1] @ WEIGHTS["W"].T)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.einsum("bn,bnd->bd", shares / shares.sum(axis=1, keepdims=True), X) @ WEIGHTS["V"]


class Head(MLModel):
    """The head as MLServer calls it."""

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Answers to a batch."""
        answers = attend(NumpyCodec.decode_input(payload.inputs[0]))
        answers = answers * np.nan if self.name == "broken" else answers
        return InferenceResponse(
            model_name=self.name, outputs=[NumpyCodec.encode_output("answers", answers)]
        )


async def main(port: int) -> None:
    """Serve both models on this machine until told to stop."""
    width, outputs = WEIGHTS["V"].shape
    ends = {
        "inputs": [{"name": "tokens", "datatype": "FP64", "shape": [-1, -1, width]}],
        "outputs": [{"name": "answers", "datatype": "FP64", "shape": [-1, outputs]}],
    }
    ports = {
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "metrics_endpoint": None,
    }
    server = MLServer(Settings(host="127.0.0.1", parallel_workers=0, **ports))
    made = {"implementation": "mlserver_head.Head", **ends}
    await server.start([ModelSettings(name=name, **made) for name in ("head", "broken")])


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
