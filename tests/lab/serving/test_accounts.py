"""Budget and rate per client, with a clock that is wound by hand."""

import pytest

from keyhole.errors import InvalidInput
from keyhole.lab.serving.accounts import Accounts, Denied


def test_a_budget_is_each_clients_own_and_kept_to_the_sequence():
    accounts = Accounts(budget=10)
    accounts.charge("a", 7)
    with pytest.raises(Denied, match="has 3 left, not 4") as denied:
        accounts.charge("a", 4)
    assert denied.value.after is None
    accounts.charge("a", 3)
    accounts.charge("b", 10)


def test_a_rate_lets_a_debt_be_waited_off():
    now = [0.0]
    accounts = Accounts(rate=10.0, clock=lambda: now[0])
    accounts.charge("a", 35)  # 25 in debt
    with pytest.raises(Denied, match="10 queries a second") as denied:
        accounts.charge("a", 1)
    assert denied.value.after == 3
    now[0] = 3.0
    accounts.charge("a", 1)


def test_clients_without_number_share_one_account():
    accounts = Accounts(budget=5, most=2)
    for client in "abc":
        accounts.charge(client, 5)
    with pytest.raises(Denied):
        accounts.charge("d", 1)


@pytest.mark.parametrize("options", [{"budget": -1}, {"rate": 0.0}, {"rate": float("nan")}])
def test_limits_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidInput):
        Accounts(**options)
