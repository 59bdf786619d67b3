"""Keys mended until they single out every set: what is told while it takes its time."""

import re
from dataclasses import replace

import numpy as np

from keyhole.constructions.sparse_averages import mending
from keyhole.constructions.sparse_averages.sparse_average import MAX_MARGIN
from keyhole.tasks import SparseAverage


def test_building_tells_how_far_one_width_is(monkeypatch):
    monkeypatch.setattr(mending, "TELLING", 1)
    said = []
    task = SparseAverage(20, 3)
    replace(MAX_MARGIN, tell=said.append).build(
        task, accuracy=1 / 6, number_format="bits:16", embed=None, rng=np.random.default_rng(0)
    )
    counts = [re.search(r"of width \d+: ([\d,]+) of 1,140 sets", line) for line in said]
    assert next(found[1] for found in counts if found) == "1,024"
