"""Small trainings that several files start from."""

from keyhole.lab.jobs import TrainJob

MATCH = {"task": "match2", "length": 6, "modulus": 7}
LOOKUP = {"task": "index-lookup", "q": None, "width": None, "symbols": 4}
BUILT = {"model": "constructed", "steps": 2000, "samples": None}
TINY = TrainJob(
    "sparse-average", length=6, q=2, width=2, steps=60, seeds=2, tests=50, samples=100, keep=False
)


def job(**changes):
    return TrainJob(**{**vars(TINY), **changes})
