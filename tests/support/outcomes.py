"""What every fault may end in, and how the ends are counted."""

import re
import sys

# As in keyhole.errors, written anew: what a terminal would obey, or read backwards.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST = 2500


def find_faults_of_sentence(text):
    """What is wrong with the words that a person is told."""
    wrong = []
    if not text.strip():
        wrong.append("no words")
    if "Traceback" in text or "Please report" in text:
        wrong.append(f"a traceback: {text[-500:]}")
    if found := _OBEYED.search(text):
        wrong.append(f"the control {found[0]!r}")
    if len(text) > LONGEST:
        wrong.append(f"{len(text)} letters")
    return wrong


def print_counts(title, counts):
    """How often each outcome was met; pytest shows it with -rP or -s."""
    told = ", ".join(f"{count:,} {name}" for name, count in counts.most_common())
    sys.stdout.write(f"\n{title}: {counts.total():,} in all: {told}\n")
