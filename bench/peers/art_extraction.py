"""One run of ART's FunctionallyEquivalentExtraction against a network stored in an .npz file;
prints one JSON line.

It runs in the environment of ART (bench/art.py makes it), so it needs nothing of ours.
Work-arounds, without which ART 1.20.1 does not run on a callable or is never right: its undeclared
dependency `packaging`; a shim that is both a black box and a neural network; answers kept in
float64, where ART would cast them to float32. The width is given to it.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
from art.attacks.extraction import FunctionallyEquivalentExtraction
from art.estimators.classification.blackbox import BlackBoxClassifierNeuralNetwork


class Target(BlackBoxClassifierNeuralNetwork):
    """A callable as a classifier that counts what it is asked and answers in float64."""

    asked = 0

    def predict(self, x, batch_size=128, **kwargs):
        """Answers to a batch."""
        self.asked += len(x)
        return self._predict_fn(x)


def main() -> None:
    """Extract, and compare on points of the file."""
    path, seed, cap = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (cap, cap + 1))
    net = np.load(path)

    def answers(x):
        return np.maximum(x @ net["W1"].T + net["b1"], 0.0) @ net["W2"].T + net["b2"]

    np.random.seed(seed)  # noqa: NPY002  (what ART draws from)
    width, outputs = net["W1"].shape[1], len(net["W2"])
    target = Target(answers, (width,), outputs, channels_first=False)
    attack, start = (
        FunctionallyEquivalentExtraction(target, num_neurons=len(net["W1"])),
        time.process_time(),
    )
    found, why = True, ""
    try:
        with np.errstate(all="ignore"):
            attack.extract(
                np.random.default_rng(seed).normal(size=(10 * len(net["W1"]) + 100, width))
            )
    except (AssertionError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        found, why = False, str(error)
    values = []
    if found:
        hidden = np.maximum(net["x"] @ attack.w_0 + attack.b_0[:, 0], 0.0)
        values = (hidden @ attack.w_1 + attack.b_1[:, 0]).tolist()
    seconds = time.process_time() - start
    print(
        json.dumps(
            {
                "found": found,
                "why": why,
                "queries": target.asked,
                "seconds": seconds,
                "values": values,
            }
        )
    )


if __name__ == "__main__":
    main()
