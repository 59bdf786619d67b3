"""Transcripts and stores with bytes of their files changed at random: what is read is what was
written, or nothing is.
"""

from collections import Counter

import numpy as np
import pytest

from keyhole.errors import KeyholeError
from keyhole.lab.runs.store import DONE, FAILED, About, Store, StoredRow, read_rows
from keyhole.models import Head
from keyhole.oracles import Local, Recorded
from support.outcomes import find_faults_of_sentence, print_counts

HEAD = Head.random(3, outputs=2, rng=0)
BATCHES = [np.random.default_rng(i).normal(size=(1 + i % 7, 2, 3)) for i in range(24)]
ROWS = [
    StoredRow(
        f"key{i}", b'{"width":%d}' % i, DONE, b'{"error":%d.5}' % i, None, About(seconds=i + 0.5)
    )
    for i in range(40)
]
ROWS += [StoredRow("lost", b'{"width":2}', FAILED, None, "it fell over", About())]


class Asked(Local):
    """A head that counts what it is asked."""

    def ask(self, X):
        self.counted.append(len(X))
        return super().ask(X)


def ask_all(path):
    """The answers to every batch, what was asked for them, and what the transcript says it cost."""
    oracle = Asked(HEAD)
    object.__setattr__(oracle, "counted", [])
    recorded = Recorded(oracle, path, {"seed": 1})
    try:
        answers = [recorded.ask(X) for X in BATCHES]
        return answers, sum(oracle.counted), recorded.charged
    finally:
        recorded.close()


def damage(data, rng):
    """Some bytes changed, a block zeroed, or the end lost."""
    spoilt = bytearray(data)
    how = rng.random()
    if how < 0.7:
        for place in rng.integers(0, len(data), size=rng.integers(1, 4)):
            spoilt[place] ^= int(rng.integers(1, 256))
    elif how < 0.85:
        start = int(rng.integers(0, len(data)))
        spoilt[start : start + 200] = bytes(len(spoilt[start : start + 200]))
    else:
        del spoilt[int(rng.integers(0, len(data))) :]
    return bytes(spoilt)


def resume_damaged(path, whole):
    """How a transcript fares: refused, or believed and right, and what is wrong with that."""
    before = sum(map(len, BATCHES))
    try:
        answers, asked, charged = ask_all(path)
    except KeyholeError as error:
        return type(error).__name__, find_faults_of_sentence(str(error))
    wrong = []
    if any(not np.array_equal(*pair) for pair in zip(answers, whole, strict=True)):
        wrong.append("other answers")
    # A file that was emptied is a new transcript; of one that was not no batch may be missing.
    if asked not in (0, before):
        wrong.append(f"{asked} sequences asked again")
    if charged < before:
        wrong.append(f"{charged} of {before} accounted for")
    return "replayed" if asked == 0 else "begun anew", wrong


def read_damaged(path, whole):
    """The same of a store of a sweep."""
    try:
        rows = list(read_rows(path))
        store = Store(path)
        store.close()
    except KeyholeError as error:
        return type(error).__name__, find_faults_of_sentence(str(error))
    return "read", [] if rows == whole else [f"{len(rows)} rows, or other ones"]


@pytest.fixture(scope="module")
def transcript(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "transcript.sqlite"
    answers, _, _ = ask_all(path)
    return path.read_bytes(), answers


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "store.sqlite"
    held = Store(path)
    for row in ROWS:
        held.put(row)
    held.close()
    return path.read_bytes(), list(read_rows(path))


def damage_many(count, good, judge, place, rng):
    data, whole = good
    counts, bad = Counter(), []
    for number in range(count):
        path = place / f"{number}.sqlite"
        path.write_bytes(damage(data, rng))
        outcome, wrong = judge(path, whole)
        counts[outcome] += 1
        bad += [(number, wrong)] if wrong else []
        for file in place.iterdir():
            file.unlink()
    return counts, bad


HOW_MANY = [(200, 1), *(pytest.param(1250, seed, marks=pytest.mark.slow) for seed in range(2, 6))]


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(("count", "seed"), HOW_MANY)
@pytest.mark.parametrize("kind", ["transcript", "store"])
def test_a_damaged_file_is_refused_or_what_it_holds_is_as_it_was(
    kind, count, seed, request, tmp_path
):
    judge = {"transcript": resume_damaged, "store": read_damaged}[kind]
    good = request.getfixturevalue(kind)
    counts, bad = damage_many(count, good, judge, tmp_path, np.random.default_rng(seed))
    print_counts(f"damaged files of a {kind}", counts)
    assert not bad[:5]
    assert counts["InvalidInput"] + counts["DifferentRun"] > count / 4
