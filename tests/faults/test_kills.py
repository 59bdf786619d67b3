"""Commands killed again and again, at any moment, and resumed until they are done: nothing that was
answered is lost or asked again, and no budget is exceeded.
"""

import sqlite3
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.outcomes import print_counts

SWEEP = """job = "trial"
[base]
model.kind = "head"
model.width = 3
[grid]
seed.range = [0, 12]
"""
SIZES = ("--length", 4, "--modulus", 5, "--batch", 8, "--tests", 64, "--seeds", 1)
RUN = ("--out", "run", "--json")
IDS = ("targets:counting_ids", "--tokens-in", "--vocabulary", 16)
COMMANDS = {
    "learn": ("learn", "targets:counting", "--width", 4, "--budget", 2500, *RUN),
    "learn-ids": ("learn", *IDS, "--budget", 2500, *RUN),
    "audit": ("audit", "targets:counting", "--width", 4, *RUN),
    "audit-ids": ("audit", *IDS, "--against", IDS[0], "--prompts", 128, *RUN),
    "sweep": ("sweep", "sweep.toml", "--workers", 0, *RUN),
    "train": ("train", "match2", *SIZES, "--steps", 40, "--checkpoint-every", 5, *RUN),
}
# Seconds after which the first kill may come, or those of a whole run where that is quicker; torch
# takes most of them to be loaded.
SPANS = {
    "learn": 0.25,
    "learn-ids": 0.25,
    "audit": 1.0,
    "audit-ids": 1.0,
    "sweep": 0.4,
    "train": 4.0,
}


class Killed:
    """One command in one directory, and how often it was killed before it was done."""

    def __init__(self, commands, folder, name, whole=np.inf):
        self.commands, self.folder, self.name, self.kills = commands, folder, name, 0
        self.span = min(SPANS[name], whole)
        self.command = COMMANDS[name]
        (folder / "sweep.toml").write_text(SWEEP)

    def run(self, *more, timeout=120):
        # A store of a sweep is gone on with by itself.
        resume = () if self.name == "sweep" or not (self.folder / "run").exists() else ("--resume",)
        return self.commands(self.folder, *self.command, *resume, *more, timeout=timeout)

    def finish(self, rng, most):
        """Kill up to `most` times, later and later, then let it end."""
        while self.kills < most:
            span = self.span * 1.1 ** (self.kills / 4)
            try:
                # The first comes early, so that there is one.
                most_of_span = 1.0 if self.kills else 0.5
                return self.run(timeout=float(rng.uniform(0.1, most_of_span)) * span)
            except TimeoutError:
                self.kills += 1
        # Undisturbed at last, and beside whatever else the machine has to do.
        return self.run(timeout=600)

    @property
    def asked(self):
        log = self.folder / "asked.log"
        return sum(map(int, log.read_text().split())) if log.exists() else 0


def read_jobs(folder):
    with closing(sqlite3.connect(folder / "run" / "store.sqlite")) as store:
        return store.execute("SELECT key, job, state, record FROM job ORDER BY key").fetchall()


def compare_questions(killed, ran, quiet, calm):
    """Nothing lost, nothing asked twice but what was in flight, nothing over the account."""
    told, undisturbed = ran.json["queries"], calm.json["queries"]
    lost = told["total"] - undisturbed["total"]
    assert ran.json["verdict" if "verdict" in ran.json else "sentence"]
    assert 0 <= lost <= killed.kills * 300
    assert quiet.asked <= killed.asked <= told["total"]
    assert told["total"] - lost <= killed.asked
    if killed.name == "audit-ids":
        assert ran.json["tokens"]["policies"] == calm.json["tokens"]["policies"]
    if killed.name.startswith("learn"):
        assert told["by_phase"].get("lost", 0) == lost
        assert told["total"] <= 2500


def compare_rows(killed, ran, quiet, calm):
    assert ran.code == calm.code
    assert len(read_jobs(killed.folder)) == 12
    assert read_jobs(killed.folder) == read_jobs(quiet.folder)


def compare_weights(killed, ran, quiet, calm):
    models = sorted(path.name for path in (quiet.folder / "run").glob("*.safetensors"))
    assert models
    for name in models:
        ours, theirs = (load_file(one.folder / "run" / name) for one in (killed, quiet))
        assert ours.keys() == theirs.keys()
        for tensor, value in theirs.items():
            np.testing.assert_allclose(ours[tensor], value, rtol=1e-12, err_msg=tensor)


COMPARED = {
    "learn": compare_questions,
    "learn-ids": compare_questions,
    "audit": compare_questions,
    "audit-ids": compare_questions,
    "sweep": compare_rows,
    "train": compare_weights,
}


def kill_and_compare(name, commands, tmp_path, rounds, kills, seed):
    """Undisturbed once, killed `rounds` times; kills by command."""
    rng = np.random.default_rng(seed)
    folders = [tmp_path / str(number) for number in range(rounds + 2)]
    for folder in folders:
        folder.mkdir()
        (folder / "targets.py").write_text((tmp_path / "targets.py").read_text())
    quiet = Killed(commands, folders[0], name)
    calm = quiet.run()
    assert calm.code in (0, 3), calm.err
    # Timed in a second run, since the first of a process takes longer than those that are killed.
    begun = time.monotonic()
    Killed(commands, folders[1], name).run()
    whole = time.monotonic() - begun
    done = Counter()
    for folder in folders[2:]:
        killed = Killed(commands, folder, name, whole)
        ran = killed.finish(rng, kills)
        assert ran.code == calm.code, ran.err
        assert "Traceback" not in ran.err
        COMPARED[name](killed, ran, quiet, calm)
        done[f"kills of {name}"] += killed.kills
        done["runs"] += 1
    print_counts(f"killed and resumed: {name}", done)
    return done


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize(
    ("name", "kills"), [("learn", 6), pytest.param("sweep", 3, marks=pytest.mark.slow)]
)
def test_a_command_that_is_killed_again_and_again_ends_as_if_it_never_was(
    name, kills, commands, tmp_path
):
    assert kill_and_compare(name, commands, tmp_path, 3, kills, 1)[f"kills of {name}"] > 0


# A thousand kills in all, in parts.
SLOW = [
    *[("learn", 20), ("learn-ids", 10), ("audit", 10), ("audit-ids", 10)],
    *[("sweep", 10), ("train", 8)],
]


@pytest.mark.slow
@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize("seed", range(2, 7))
@pytest.mark.parametrize(("name", "kills"), SLOW)
def test_a_thousand_kills_lose_nothing(name, kills, seed, commands, tmp_path):
    rounds = 2 if name in ("audit", "audit-ids", "train") else 6
    done = kill_and_compare(name, commands, tmp_path, rounds, kills, seed)
    assert done[f"kills of {name}"] > rounds
