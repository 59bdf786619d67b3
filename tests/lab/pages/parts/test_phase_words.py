"""What the questions of a phase were for."""

import re
from pathlib import Path

import keyhole
from keyhole.lab.pages.parts.phase_words import describe_phase

SOURCE = Path(keyhole.__file__).parent / "learners"


def test_every_phase_that_a_learner_asks_in_is_told_in_words():
    asked = {
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r'phase\("([a-z ]+)"\)', path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 30
    assert {name for name in asked if not describe_phase(name, None)} == set()


def test_a_phase_of_a_class_is_told_as_that_class_asks_it():
    assert describe_phase("scores", "tensor") != describe_phase("scores", "block")
    assert "last norm" in describe_phase("norm", "block")
