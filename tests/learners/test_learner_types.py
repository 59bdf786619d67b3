"""What an editor knows of a recovery: the class of its model, by the learner that was named."""

import json
import subprocess
import sys

import pytest

from keyhole.learners.registry import LEARNERS
from support.paths import ROOT

# The checks of shapes that tests add wrap overloads, which then cannot be told apart.
READ = """
import json, typing
from keyhole.learners.choosing import learn
from keyhole.learners.registry import LEARNERS

def read_model(function):
    return str(typing.get_args(typing.get_type_hints(function)["return"])[0])

promised = {}
for one in typing.get_overloads(learn):
    names = typing.get_args(typing.get_type_hints(one)["learner"])
    promised |= {name: read_model(one) for name in names if isinstance(name, str)}
kept = {name: read_model(entry.load_class().run) for name, entry in LEARNERS.items()}
print(json.dumps([promised, kept]))
"""


def test_the_overload_for_every_learner_promises_what_it_hands_out():
    done = subprocess.run(
        [sys.executable, "-c", READ], capture_output=True, text=True, timeout=120, check=True
    )
    promised, kept = json.loads(done.stdout)
    assert kept.keys() == LEARNERS.keys()
    assert promised == kept


REVEALED = """
import keyhole

box = keyhole.Local(keyhole.Head.random(4, rng=0))
reveal_type(keyhole.learn(box, rng=0, learner="exact", budget=99).unwrap())
reveal_type(keyhole.learn(box, rng=0, learner="several-heads").unwrap())
reveal_type(keyhole.learn(box, rng=0, learner=keyhole.LowRank(rank=2)).unwrap())
reveal_type(keyhole.learn(box, rng=0, learner=keyhole.GatedNetwork()).unwrap())
reveal_type(keyhole.learn(box, rng=0))
keyhole.learn(box, rng=0, learner="exact", bugdet=99)
keyhole.learn(box, learner="exact")
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_model_and_sees_a_misspelt_option(tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "asking.py").write_text(REVEALED)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "asking.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    revealed = [one["message"].split('"')[-2] for one in found if one["severity"] == "information"]
    assert revealed == ["Head", "MultiHead", "Head", "Gated | AbsAffine", "Recovery[Any]"]
    wrong = [one["range"]["start"]["line"] for one in found if one["severity"] == "error"]
    assert sorted(set(wrong)) == [9, 10]
