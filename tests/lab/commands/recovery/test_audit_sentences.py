"""What an audit comes to, counted as a person counts."""

import msgspec
import pytest

from keyhole.lab.commands.recovery.audit_outcome import describe_outcome
from keyhole.lab.runs.recovery_records import PolicyRecord
from support.run_records import ATTEMPT


def policy(name, protects):
    told = {"policy": name, "simulate": [], "protects": protects, "verdict": "said"}
    return msgspec.convert(told | {"attempts": [ATTEMPT]}, PolicyRecord)


@pytest.mark.parametrize(
    ("protecting", "said"),
    [
        ([False, True], "1 of 2 output policies does not protect it; policy 1 protects it."),
        ([False, False, True], "2 of 3 output policies do not protect it; policy 2 protects it."),
        ([True, True], "is known to give it away; policy 0 and policy 1 protect it."),
        ([None], "No output policy that was tried is known to give it away. This extractor"),
    ],
)
def test_policies_are_counted_in_whole_sentences(protecting, said):
    tried = [policy(f"policy {k}", protects) for k, protects in enumerate(protecting)]
    assert said in describe_outcome([policy("full precision", False), *tried], "W")
