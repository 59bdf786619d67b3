"""Between a client and a server anything may happen to an answer: each run is got over, or ends in
a sentence, soon.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pytest

from keyhole.errors import KeyholeError
from keyhole.models import load, save
from keyhole.oracles.http.attempts import Patience
from keyhole.oracles.http.service import HttpService
from support.fault_proxy import Proxy
from support.faults import CASES, FALSE
from support.outcomes import find_faults_of_sentence, print_counts
from support.served_head import HEAD, WIDTH, serving

TIMEOUT = 0.3
PATIENCE = Patience(attempts=3, first=0.01)
SOON = 2 * TIMEOUT + 5
EVERY, ONCE = range(1, 1 << 30), (2,)


def tell_case(case):
    name, _, place, query, which = case
    return f"{name}, {which}, at {place}{query}"


def open_proxy(case, address):
    _, fault, place, _, which = case
    # A model and its server are described once: there the first time is the only one.
    second = EVERY if which == "always" else ONCE if place == "/infer" else (1,)
    return Proxy(urlsplit(address).port, fault, place, second)


def ask_through(case, address, X):
    """How three batches fare: "answered", "other numbers", or the kind of the error."""
    with open_proxy(case, address) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/v2/models/head{case[3]}"
        oracle = HttpService(url, timeout=TIMEOUT, patience=PATIENCE, connections=2)
        answers = np.concatenate([oracle.ask(batch) for batch in np.split(X, 3)])
        oracle.close()
    right = answers.shape == (len(X), HEAD.outputs) and np.allclose(answers, HEAD(X), rtol=1e-12)
    return "answered" if right else "other numbers"


def meet_case(case, address, X):
    """The outcome, and what is wrong with it."""
    start = time.monotonic()
    wrong = []
    try:
        outcome = ask_through(case, address, X)
    except KeyholeError as error:
        outcome = type(error).__name__
        wrong += find_faults_of_sentence(str(error))
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
        wrong.append("no sentence")
    spent = time.monotonic() - start
    if spent > SOON:
        wrong.append(f"took {spent:.1f} s")
    if outcome == "other numbers" and case[0] not in FALSE:
        wrong.append("false answers")
    return outcome, wrong


def choose_quick_cases():
    """Every fault at one of its places: one time always, another time once."""
    chosen = {}
    for number, case in enumerate(CASES):
        chosen.setdefault(case[0], []).append((number, case))
    return [places[-(i % len(places)) - 1][1] for i, places in enumerate(chosen.values())]


def test_there_are_more_than_four_hundred_faults():
    assert len({(name, place) for name, _, place, _, _ in CASES}) > 400


def meet_cases(cases, rng):
    """Every case, a few at a time, and their counts."""
    X = rng.normal(size=(6, 3, WIDTH))
    with serving() as (address, _), ThreadPoolExecutor(8) as pool:
        met = list(pool.map(lambda case: meet_case(case, address, X), cases))
    counts = Counter(outcome for outcome, _ in met)
    print_counts("faults of a proxy, at an oracle", counts)
    assert not {tell_case(case): met for case, met in zip(cases, met, strict=True) if met[1]}
    # Neither are all got over, nor is none.
    assert min(counts["answered"], len(cases) - counts["answered"]) > len(cases) / 8


def test_every_fault_of_a_proxy_is_got_over_or_told_in_time(rng):
    meet_cases(choose_quick_cases(), rng)


@pytest.mark.slow
def test_every_fault_is_got_over_or_told_at_every_place(rng):
    meet_cases(CASES, rng)


def run_through(command, case, address, keyhole, out):
    """A command at a server behind a fault, and how long it took beside its requests."""
    with open_proxy(case, address) as proxy:
        url = f"http://127.0.0.1:{proxy.port}/v2/models/head{case[3]}"
        start = time.monotonic()
        ran = keyhole(command, url, "--timeout", TIMEOUT, "--json", *OPTIONS[command](out))
        # Recovering from another format than the server has takes hundreds of requests.
        return ran, time.monotonic() - start - 0.05 * proxy.requests


# What each command is told besides the address; `verify` holds it against the head itself.
OPTIONS = {
    "learn": lambda out: ("--max-seconds", 3, "--out", out),
    "audit": lambda out: ("--max-seconds", 1, "--budget", 1500, "--out", out),
    "verify": lambda out: (HEAD_FILE,),
}
HEAD_FILE = "head.safetensors"


def judge_run(ran, spent, asked, model, X):
    """What is wrong with a finished command."""
    wrong = find_faults_of_sentence(ran.err + ran.json["sentence"])
    if ran.code not in (0, 2, 3):
        wrong.append(f"exit code {ran.code}")
    if spent > SOON:
        wrong.append(f"took {spent:.1f} s")
    if ran.code == 0 and model.exists() and not np.allclose(load(model)(X), HEAD(X), atol=1e-6):
        wrong.append("a wrong model")
    # What was refused before a run began has no account.
    if "queries" in ran.json and ran.json["queries"]["total"] < asked:
        wrong.append(f"{asked} asked, {ran.json['queries']['total']} accounted for")
    return wrong


def run_under(command, cases, keyhole, tmp_path, rng):
    """Counts by exit code, and the cases that went wrong."""
    X = rng.normal(size=(20, 4, WIDTH))
    counts, bad = Counter(), {}
    save(HEAD, tmp_path / HEAD_FILE)
    # Libraries are loaded once.
    keyhole("--version")
    for number, case in enumerate(cases):
        out = tmp_path / f"run{number}"
        with serving() as (address, black):
            ran, spent = run_through(command, case, address, keyhole, out)
            wrong = judge_run(ran, spent, black.queries, out / "model.safetensors", X)
        # Answers that are a little off each time are those of another head, and it is found.
        wrong = [one for one in wrong if one != "a wrong model" or case[0] not in FALSE]
        counts[f"exit code {ran.code}"] += 1
        if wrong:
            bad[tell_case(case)] = wrong
    return counts, bad


@pytest.mark.parametrize(("command", "every"), [("learn", 400), ("audit", 800), ("verify", 300)])
def test_a_command_ends_with_a_documented_code_whatever_happens_to_its_answers(
    command, every, keyhole, tmp_path, rng
):
    counts, bad = run_under(command, CASES[7::every], keyhole, tmp_path, rng)
    print_counts(f"faults of a proxy, at {command}", counts)
    assert not bad


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("command", ["learn", "verify"])
def test_every_fault_ends_a_command_with_a_documented_code(command, part, keyhole, tmp_path, rng):
    counts, bad = run_under(command, CASES[part::8], keyhole, tmp_path, rng)
    print_counts(f"faults of a proxy, at {command}, part {part}", counts)
    assert not bad


# An audit is many recoveries: a tenth of the faults.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_faults_end_an_audit_with_a_documented_code(part, keyhole, tmp_path, rng):
    counts, bad = run_under("audit", CASES[part * 11 :: 21], keyhole, tmp_path, rng)
    print_counts(f"faults of a proxy, at audit, part {part}", counts)
    assert not bad
