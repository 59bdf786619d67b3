"""The page of an audit: every policy named in full."""

from keyhole.lab.pages import audit_page
from support.run_records import AUDIT, LESS
from support.typed import typed


def test_a_policy_of_an_audit_is_named_in_full():
    policies = [
        AUDIT["policies"][1]
        | {
            "policy": "a budget below 1,087 queries",
            "attempts": [LESS, LESS | {"queries": 9}],
        }
    ]
    page = audit_page.draw_audit_page(typed(AUDIT | {"policies": policies}))
    # As the name of its row on a wide and on a narrow page, and at the end of its line.
    assert page.count(">a budget below 1,087 queries</text>") == 3
