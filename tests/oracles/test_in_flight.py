"""Several requests at once: answers in order, accounts exact, and a word in time."""

import time

import numpy as np
import pytest

from keyhole.errors import BudgetSpent, InvalidInput, TargetFailed
from keyhole.oracles import Budgeted
from keyhole.oracles.http import wire
from keyhole.oracles.http.attempts import Missed, Patience
from keyhole.oracles.http.service import HttpService
from support.faulty import WIDTH, Faulty, attend
from support.served_head import serving


@pytest.mark.parametrize("connections", [1, 2, 4, 9])
def test_answers_come_in_order_and_cost_the_same_however_many_are_in_flight(connections, rng):
    X = rng.normal(size=(267, 2, WIDTH))
    with Faulty().running() as service:
        oracle = HttpService(service.address, connections=connections)
        np.testing.assert_allclose(oracle.ask(X.copy()), attend(X), atol=1e-12)
        oracle.close()
    assert service.answered == 267
    assert service.requests == -(-267 // max(32, -(-267 // connections)))


@pytest.mark.parametrize("budget", [0, 5, 32, 140, 266])
def test_a_budget_is_kept_to_the_sequence_with_nine_in_flight_and_faults(budget, rng):
    X = rng.normal(size=(267, 2, WIDTH))
    with Faulty(dict.fromkeys((1, 2, 5), "reset")).running() as service:
        oracle = HttpService(service.address, connections=9, patience=Patience(first=0.01))
        with pytest.raises(BudgetSpent):
            Budgeted(oracle, budget).ask(X)
        oracle.close()
    assert service.answered <= budget


@pytest.mark.parametrize("count", [0, 65, -1])
def test_a_number_in_flight_that_makes_no_sense_is_refused(count):
    with Faulty().running() as service, pytest.raises(InvalidInput, match="from 1 to 64"):
        HttpService(service.address, connections=count)


def test_no_attempt_begins_later_than_was_said():
    missed = Missed("no", answered=False, again=True)
    patience = Patience(in_all=5.0)
    assert patience.wait(1, missed, time.monotonic()) == 0.1
    assert patience.wait(1, missed, time.monotonic() - 5.0) is None
    waiting = Missed("no", answered=False, again=True, after=6.0)
    assert patience.wait(1, waiting, time.monotonic()) is None


def test_a_service_that_stays_silent_is_given_up_after_two_attempts(rng):
    with Faulty(dict.fromkeys(range(1, 99), "slow")).running() as service:
        oracle = HttpService(service.address, timeout=0.3, patience=Patience(in_all=0.5))
        with pytest.raises(TargetFailed, match="tried 2 times"):
            oracle.ask(rng.normal(size=(3, 2, WIDTH)))
        oracle.close()


def answer_narrow(monkeypatch):
    """A server of ours that says FP64 and answers FP32."""
    write = wire.write_reply

    def narrow(Y, name, **options):
        body, headers = write(np.float32(Y).astype(float), name, **{**options, "binary": False})
        return body.replace(b'"FP64"', b'"FP32"'), headers

    monkeypatch.setattr(wire, "write_reply", narrow)


def test_answers_narrower_than_was_said_are_refused_with_what_to_declare(monkeypatch, rng):
    answer_narrow(monkeypatch)
    X = rng.normal(size=(3, 2, 4))
    with serving() as (address, _):
        oracle = HttpService(address)
        with pytest.raises(InvalidInput, match=r"says it answers FP64, and answered FP32.*f32"):
            oracle.ask(X)
        oracle.close()
        declared = HttpService(address, answers="f32")
        assert declared.ask(X).shape == (3, 2)
        declared.close()


@pytest.mark.parametrize("shape", [[-1, -1, 2**62], [-1, -1, 2**20 + 1]])
def test_a_served_width_nobody_has_is_refused(shape, monkeypatch):
    told = wire.Metadata(inputs=[wire.Tensor("x", shape, "FP64")])
    monkeypatch.setattr(
        HttpService, "_get", lambda self, url, kind, since: told if kind is wire.Metadata else None
    )
    with pytest.raises(InvalidInput, match="Is it the right one"):
        HttpService("http://127.0.0.1:9/v2/models/wide")


@pytest.mark.parametrize("field", ["name", "datatype"])
def test_names_and_datatypes_of_a_server_reach_nobody_with_their_controls(field, monkeypatch):
    words = {"name": "x", "datatype": "FP64", "shape": [3]} | {field: "\x1b]0;owned\x07\u202e"}
    told = wire.Metadata(
        inputs=[wire.Tensor(**words | {"shape": [-1, 3] if field == "name" else [-1, -1, 3]})]
    )
    monkeypatch.setattr(
        HttpService, "_get", lambda self, url, kind, since: told if kind is wire.Metadata else None
    )
    with pytest.raises(InvalidInput, match=r"\\x1b") as refused:
        HttpService("http://127.0.0.1:9/v2/models/loud")
    assert str(refused.value).isprintable()
