"""Through HTTP: every fault of a service is got over, or refused with a sentence; no sequence is
paid for wrongly.
"""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest

from keyhole.errors import BudgetSpent, InvalidInput, TargetFailed
from keyhole.lab.jobs import LearnJob
from keyhole.lab.running import run_job
from keyhole.models import load
from keyhole.oracles import Budgeted, Chunked, Recorded
from keyhole.oracles.http.attempts import Patience
from keyhole.oracles.http.service import HttpService
from support import faulty
from support.faulty import WIDTH, Faulty, attend

QUICK = Patience(attempts=3, first=0.01)


@pytest.fixture
def learn(tmp_path):
    def learning(service, **options):
        return run_job(LearnJob(service.address, out=str(tmp_path / "run"), **options)).data

    return learning


@pytest.mark.parametrize("fault", [429, 502, 503, 504, "reset", "silent", "slow"])
def test_a_passing_fault_is_got_over_and_paid_for_to_the_sequence(fault, learn):
    with Faulty({2: fault, 5: fault}).running() as service:
        data = learn(service, timeout=0.4)
    assert data.verdict == "EXACT"
    assert data.queries.total == data.asked == service.answered
    assert ("lost" in data.queries.by_phase) == (fault != 429)


@pytest.mark.parametrize("fault", [400, 404, 500, "truncated", "page", "shape", "nothing"])
def test_a_fault_that_stays_is_refused_with_a_sentence_and_resumed_without_asking_again(
    fault, learn
):
    with Faulty({4: fault}).running() as service:
        data = learn(service)
        assert data.verdict == "UNVERIFIED"
        assert data.status in ("TARGET_FAILED", "BAD_ANSWER")
        assert "use --resume" in data.sentence
        assert data.queries.total == service.answered
        before, service.faults = Counter(service.seen), {}
        again = learn(service, resume=True)
    assert again.verdict == "EXACT"
    assert again.queries.total == service.answered
    repeated = Counter(service.seen) - before
    assert before
    assert not before & repeated


def test_a_null_is_refused_as_an_answer(learn):
    with Faulty(dict.fromkeys(range(4, 99), "null")).running() as service:
        data = learn(service)
    assert (data.status, data.verdict) == ("BAD_ANSWER", "UNVERIFIED")
    assert "must be finite" in data.sentence


@pytest.mark.parametrize("fault", ["reset", 503, 429])
@pytest.mark.parametrize("budget", [23, 41])
def test_no_budget_is_exceeded_by_asking_again(fault, budget, learn):
    with Faulty(dict.fromkeys((2, 5, 6, 9), fault)).running() as service:
        data = learn(service, budget=budget)
        assert data.verdict in ("BUDGET_SPENT", "UNVERIFIED", "EXACT")
        assert data.queries.total == service.answered <= budget
        service.faults = {}
        again = learn(service, budget=budget + 260, resume=True)
    assert again.verdict == "EXACT"
    assert again.queries.total == service.answered <= budget + 260


def test_without_a_transcript_the_accounts_are_the_same(learn):
    with Faulty({2: "reset", 4: 429, 6: 503}).running() as service:
        data = learn(service, record=False)
    assert data.queries.total == data.asked == service.answered


def test_a_service_that_is_not_there_is_refused_at_once(tmp_path):
    with Faulty().running() as service:
        address = service.address
    start = time.monotonic()
    with pytest.raises(TargetFailed, match=r"cannot be reached .* Is the server running"):
        run_job(LearnJob(address, out=str(tmp_path / "run")))
    assert time.monotonic() - start < 5


def test_a_service_that_was_never_reached_costs_nothing(tmp_path, rng):
    with Faulty().running() as service:
        oracle = HttpService(service.address, patience=QUICK)
        X = rng.normal(size=(6, 2, WIDTH))
        recorded = Recorded(oracle, tmp_path / "t.sqlite", {})
        budgeted = Budgeted(Chunked(recorded), 10)
        budgeted.ask(X[:2])
    with pytest.raises(TargetFailed, match="tried 3 times"):
        budgeted.ask(X)
    assert (budgeted.spent, recorded.charged, recorded.lost) == (2, 2, 0)
    recorded.close()
    oracle.close()


def test_a_server_that_is_started_anew_in_the_middle_is_waited_for(learn):
    service, lines = Faulty(), []
    with service.running():
        port = service.port
        thread = threading.Thread(target=lambda: lines.append(learn(service, rate=60.0)))
        thread.start()
        while service.requests < 3:
            time.sleep(0.005)
    time.sleep(0.3)
    with service.running(port):
        thread.join(60)
    assert lines[0].verdict == "EXACT"
    assert lines[0].queries.total >= service.answered >= len(set(service.seen))


def killed_after(service, requests, arguments):
    """`keyhole learn` in a process of its own, killed once the service has had so many requests
    more.
    """
    command = [
        sys.executable,
        "-m",
        "keyhole",
        "learn",
        service.address,
        *arguments,
        "--rate",
        "150",
    ]
    wanted = service.requests + requests
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while service.requests < wanted and running.poll() is None:
        time.sleep(0.002)
    running.kill()
    return running.wait()


def test_a_client_killed_in_the_middle_asks_no_written_batch_again_and_keeps_its_budget(
    learn, tmp_path
):
    with Faulty().running() as quiet:
        run_job(LearnJob(quiet.address, out=str(tmp_path / "quiet"), budget=400))
    out = ["--out", str(tmp_path / "run"), "--budget", "400"]
    with Faulty().running() as service:
        assert killed_after(service, 3, out) == -signal.SIGKILL
        assert killed_after(service, 4, [*out, "--resume"]) == -signal.SIGKILL
        data = learn(service, resume=True, budget=400)
    assert data.verdict == "EXACT"
    # what no undisturbed run asks was under way when the client died, was never written down, and
    # is paid for
    extra, lost = (
        Counter(service.seen) - Counter(quiet.seen),
        data.queries.by_phase.get("lost", 0),
    )
    assert sum(extra.values()) <= lost < 40
    assert quiet.answered + lost == data.queries.total <= 400
    assert service.answered <= data.queries.total <= service.answered + lost


def test_a_tight_budget_is_kept_to_the_sequence_over_a_kill_and_a_restart(learn, tmp_path):
    service, out = Faulty(), ["--out", str(tmp_path / "run"), "--budget", "23"]
    with service.running():
        port = service.port
        killed_after(service, 3, out)
    with service.running(port):
        data = learn(service, resume=True, budget=23)
    assert data.verdict in ("BUDGET_SPENT", "UNVERIFIED")
    assert data.queries.total == 23
    assert 23 - data.queries.by_phase.get("lost", 0) <= service.answered <= 23


def test_large_requests_are_halved_until_they_fit(learn, rng):
    with Faulty(largest=3000).running() as service:
        data = learn(service)
        assert (data.verdict, data.queries.total) == ("EXACT", service.answered)
        oracle = HttpService(service.address)
        X = rng.normal(size=(200, 3, WIDTH))
        np.testing.assert_allclose(oracle.ask(X), attend(X), rtol=1e-12)
        assert oracle.request_bytes < 1 << 20
        with pytest.raises(TargetFailed, match="One sequence is as little as can be asked"):
            oracle.ask(rng.normal(size=(1, 400, WIDTH)))
        oracle.close()


def test_answers_stand_in_order_however_many_requests_are_under_way(rng):
    faults = dict.fromkeys((1, 4), "slow") | {3: 503, 7: "reset"}
    with Faulty(faults).running() as service:
        oracle = HttpService(service.address, request_bytes=1000, connections=4)
        X = rng.normal(size=(60, 2, WIDTH))
        np.testing.assert_allclose(oracle.ask(X), attend(X), rtol=1e-12)
        assert service.answered == 60 + oracle.meters.total
        oracle.close()


def test_a_batch_that_cannot_be_asked_again_within_the_budget_ends_it(rng):
    with Faulty({1: "reset"}).running() as service:
        oracle = HttpService(service.address)
        budgeted = Budgeted(oracle, 7)
        with pytest.raises(BudgetSpent, match="the budget of 7 queries is spent"):
            budgeted.ask(rng.normal(size=(4, 2, WIDTH)))
        with pytest.raises(BudgetSpent):
            budgeted.ask(rng.normal(size=(1, 2, WIDTH)))
        assert service.answered == 4
        oracle.close()


def test_a_service_that_wants_to_be_left_alone_for_long_is(rng):
    with Faulty({1: 429}).running() as service:
        oracle = HttpService(service.address, patience=Patience(obeyed=-1.0))
        with pytest.raises(
            TargetFailed, match="It asks to be left alone for 0 s: try later, with a smaller --rate"
        ):
            oracle.ask(rng.normal(size=(4, 2, WIDTH)))
        oracle.close()


def test_a_rate_is_kept(rng):
    with Faulty().running() as service:
        oracle = HttpService(service.address, rate=50.0)
        start = time.monotonic()
        oracle.ask(rng.normal(size=(100, 2, WIDTH)))
        oracle.close()
    assert time.monotonic() - start > 0.95
    assert max(size for _, size in service.times) <= 50


def test_what_a_server_says_cannot_colour_the_terminal(rng):
    with Faulty({1: 500}).running() as service:
        oracle = HttpService(service.address)
        with pytest.raises(TargetFailed, match=r"answered 500: boom\\x1b\[31m\.") as caught:
            oracle.ask(rng.normal(size=(4, 2, WIDTH)))
        assert "\x1b" not in str(caught.value)
        oracle.close()


def test_a_token_is_taken_from_the_environment_and_kept_out_of_records(
    learn, monkeypatch, tmp_path
):
    monkeypatch.setenv("KEYHOLE_TOKEN", "sesame-8713")
    with Faulty(token="sesame-8713").running() as service:  # noqa: S106
        data = learn(service)
        assert data.verdict == "EXACT"
        monkeypatch.setenv("KEYHOLE_TOKEN", "wrong")
        with pytest.raises(TargetFailed, match=r"answered 401: who are you.*KEYHOLE_TOKEN"):
            HttpService(service.address)
    for file in (tmp_path / "run").iterdir():
        assert b"sesame-8713" not in file.read_bytes()


def test_the_recovered_model_is_the_one_behind_the_service(learn):
    with Faulty().running() as service:
        data = learn(service)
    model = load(data.model)
    np.testing.assert_allclose(model.W, faulty.W, atol=1e-10)
    np.testing.assert_allclose(model.V, faulty.V, atol=1e-10)


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("http://127.0.0.1:1", "the address of a model is http://HOST:PORT/v2/models/NAME"),
        ("http://127.0.0.1:99999/v2/models/x", "the address of a model is"),
        ("http://127.0.0.1:1/v2/models/", "the address of a model is"),
        ("http://me:secret@127.0.0.1:1/v2/models/x", "an address carries no password"),
        ("http://127.0.0.1:1/v2/models/x?color=red", "got color"),
        ("http://127.0.0.1:1/v2/models/x?binary=maybe", "is true or false"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(address, sentence):
    with pytest.raises(InvalidInput, match=sentence) as caught:
        HttpService(address)
    assert "secret" not in str(caught.value)


def test_a_model_that_is_not_there_is_misuse():
    with (
        Faulty().running() as service,
        pytest.raises(InvalidInput, match=r"there is no model at .*/boat"),
    ):
        HttpService(service.address.replace("/head", "/boat"))


@pytest.mark.parametrize("options", [{"size": 5}, {"count": 3}])
def test_a_width_or_outputs_the_server_contradicts_are_misuse(options):
    with Faulty().running() as service, pytest.raises(InvalidInput, match="says"):
        HttpService(service.address, **options)
