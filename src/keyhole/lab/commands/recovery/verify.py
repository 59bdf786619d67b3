"""The verify job: fresh queries to a target against a saved model."""

from __future__ import annotations

import time

from keyhole.errors import OracleError
from keyhole.lab.commands.recovery.learn import failed
from keyhole.lab.commands.shared import REFUSED, code_of, seeded
from keyhole.lab.jobs import VerifyJob
from keyhole.lab.runs import records
from keyhole.lab.runs.records import Record
from keyhole.lab.targets.opening import open_target, saved, simulated, stated_by
from keyhole.learners.verifying.saved_model import verify
from keyhole.models.files import load_bars
from keyhole.oracles import Budgeted, Counted, Declared, asked_again


def run_verify(job: VerifyJob) -> Record:
    """Ask a target fresh queries and compare its answers with a saved model's."""
    start = time.perf_counter()
    model = saved(job.model)
    target = open_target(job.target, width=job.width if job.width is not None else model.width, reaching=job)
    timed = Counted(Declared(simulated(target, job.simulate, job.seed), stated_by(job)))
    try:
        oracle = timed if job.budget is None else Budgeted(timed, job.budget)
        seen = verify(oracle, model, rng=seeded(job.seed), bars=load_bars(job.model))
    except OracleError as error:
        data = failed(error, timed.ledger.total().sequences + asked_again(target)) | {"seed": job.seed}
        return Record(data, REFUSED)
    sentence = " ".join(part for part in (seen.detail, seen.verdict.value) if part)
    data = {
        "verdict": seen.verdict.name,
        "sentence": sentence,
        "fresh_error": records.fresh_error(seen.fresh),
        "counterexample": records.counterexample(seen.counterexample),
        "queries": records.queries(seen.ledger, asked_again(target)),
        "seconds": {"total": time.perf_counter() - start, "oracle": timed.ledger.total().seconds},
        "seed": job.seed,
        "target": job.target,
        "model": job.model,
    }
    fresh = f"{seen.fresh.relative:.1e} relative, over {seen.fresh.sequences} sequences"
    return Record(data, code_of(data), (("verdict", seen.verdict.name), ("fresh error", fresh)))
