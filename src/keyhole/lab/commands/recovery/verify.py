"""The verify job: fresh queries to a target against a saved model."""

from __future__ import annotations

import time

from keyhole.errors import OracleError
from keyhole.lab.commands.recovery.learn import record_target_failure
from keyhole.lab.commands.shared import REFUSED, choose_exit_code, seed_generator
from keyhole.lab.jobs import VerifyJob
from keyhole.lab.runs import records
from keyhole.lab.runs.records import Record
from keyhole.lab.runs.rows import list_fresh_error_rows
from keyhole.lab.targets.opening import (
    load_askable_model,
    open_target,
    read_declarations,
    simulate_policies,
)
from keyhole.learners.verifying.saved_model import verify
from keyhole.models.files import load_bars
from keyhole.oracles import Budgeted, Counted, Declared, count_asked_again


def run_verify(job: VerifyJob) -> Record:
    """Ask a target fresh queries and compare its answers with a saved model's."""
    start = time.perf_counter()
    model = load_askable_model(job.model)
    target = open_target(
        job.target, width=job.width if job.width is not None else model.width, reaching=job
    )
    timed = Counted(
        Declared(simulate_policies(target, job.simulate, job.seed), read_declarations(job))
    )
    try:
        # Verification costs queries like everything else.
        oracle = timed if job.budget is None else Budgeted(timed, job.budget)
        seen = verify(oracle, model, rng=seed_generator(job.seed), bars=load_bars(job.model))
    except OracleError as error:
        data = record_target_failure(
            error, timed.ledger.total().sequences + count_asked_again(target)
        ) | {"seed": job.seed}
        return Record(data, REFUSED)
    sentence = " ".join(part for part in (seen.detail, seen.verdict.value) if part)
    data = {
        "verdict": seen.verdict.name,
        "sentence": sentence,
        "fresh_error": records.record_fresh_error(seen.fresh),
        "counterexample": records.record_counterexample(seen.counterexample),
        "queries": records.record_queries(seen.ledger, count_asked_again(target)),
        "seconds": {"total": time.perf_counter() - start, "oracle": timed.ledger.total().seconds},
        "seed": job.seed,
        "target": job.target,
        "model": job.model,
    }
    rows = (("verdict", seen.verdict.name), *list_fresh_error_rows(data))
    return Record(data, choose_exit_code(data), rows)
