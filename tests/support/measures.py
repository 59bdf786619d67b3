"""How far a model that was found is from the one that was hidden, and what it cost."""

import numpy as np

from keyhole import MultiHead, Verdict, compare


def gap(found, truth):
    """The distance of two arrays, relative to the second."""
    truth = np.asarray(truth)
    return np.linalg.norm(np.asarray(found) - truth) / np.linalg.norm(truth)


def function_error(truth, model, rng, radii=(1.0,), points=300):
    """The largest disagreement at random points, relative to the spread of answers."""
    errors = []
    for radius in radii:
        x = radius * rng.normal(size=(points, model.width))
        answers = truth(x[:, None])
        spread = np.abs(answers - answers.mean(axis=0)).max()
        errors.append(np.abs(model.points(x) - answers).max() / spread)
    return max(errors)


def asked(recovery):
    """How many sequences were asked, those of the verification left out."""
    return recovery.ledger.total(without="verify").sequences


def rates(learnt, heads, width, seeds):
    """The errors of exact recoveries of random sums of heads, and queries per parameter."""
    found = [
        learnt(lambda rng: MultiHead.random(width, heads=heads, rng=rng), seed)
        for seed in range(seeds)
    ]
    assert all(recovery.verdict is Verdict.EXACT for _, recovery in found)
    errors = [compare(hidden, recovery.unwrap()).largest for hidden, recovery in found]
    spent = [asked(recovery) for _, recovery in found]
    return errors, np.median(spent) / (heads * (width * width + width))
