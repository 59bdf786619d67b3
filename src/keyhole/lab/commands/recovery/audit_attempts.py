"""Attempts of an audit: each policy is tried by learn jobs, and what they reach is measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from keyhole._arrays import Matrix, Stack, rms
from keyhole.identify import distance
from keyhole.lab.commands.recovery.audit_outcome import is_attempt_verified
from keyhole.lab.commands.recovery.learn import run_learn
from keyhole.lab.jobs import AuditJob, LearnJob
from keyhole.lab.jobs.job_parts import WIRING, Declaring
from keyhole.lab.runs.reading import read_run
from keyhole.lab.runs.record_parts import Given
from keyhole.lab.runs.recovery_records import AttemptRecord, LearnRecord, PolicyRecord
from keyhole.lab.targets.policies import (
    Policy,
    describe_policy,
    find_nearer_attempt,
    judge_policy,
    list_policies,
)
from keyhole.models import Head, Model, SelfAttention, load

# An attempt on anything but one head may ask so many times what exact answers take: behind coarse
# answers learners of larger classes search for long, and a copy that dear is no copy.
_TIMES = 16
# What an attempt on a layer is told of its wiring.
_WIRED = ("norm", "eps", "residual", "positions", "rope_base", "rotary_share", "window", "softcap")


def list_declarations() -> tuple[str, ...]:
    """What an audit and its attempts declare of the target."""
    return tuple(item.name for item in fields(Declaring))


class AuditSpent(Exception):
    """The budget of the audit ended an attempt, which therefore says nothing of its policy."""


class TargetStopped(Exception):
    """The target failed in the middle of an attempt, whose record says how."""

    def __init__(self, record: LearnRecord) -> None:
        super().__init__(record.sentence)
        self.record = record


class Attempts:
    """Attempts made against the policies, each a learn job in a directory of its own."""

    def __init__(
        self, job: AuditJob, directory: Path, X: list[Stack], truth: list[Matrix], asked: int
    ) -> None:
        self.job = job
        self.asked = asked  # to have the answers to held-out sequences
        self.directory = directory
        self.X = X
        self.truth = truth
        # Errors of W need a W: of other classes only answers are compared.
        self.reference: Head | None = None
        self.made: dict[Path, LearnRecord] = {}
        self.done = 0
        self.cap: int | None = None
        self.wiring: dict[str, Given] = {}
        self.untried: list[str] = []

    def try_everything(self, bound: float) -> list[PolicyRecord]:
        """Every policy in turn, the first one giving what the others are compared with."""
        # What it costs without any policy is the yardstick of budgets.
        first = self.attempt("full precision", (), {})
        verified = is_attempt_verified(first)
        model = _load_attempt_model(first.model) if verified else None
        self.reference = model if isinstance(model, Head) else None
        # One head is learned at a cost that is known beforehand; of other classes it is not.
        self.cap = None if self.reference is not None else _TIMES * first.queries
        self.wiring = self._read_found_wiring() if verified else {}
        listed = list_policies(
            first.queries - first.verification,
            self.size,
            bound,
        )
        # Where even exact answers give no model away, policies have nothing to keep back.
        listed = listed if verified else listed[:1]
        tried: list[tuple[Policy, list[AttemptRecord]]] = []
        for policy in listed:
            try:
                tried.append((policy, self.try_policy(policy, len(listed))))
            except AuditSpent:
                self.untried = [one.name for one in listed[len(tried) :]]
                break
        lasts = [(policy, self._judge(policy, made).nearest) for policy, made in tried]
        return [
            self._judge(policy, [*made, *find_nearer_attempt(policy, lasts, self.size)])
            for policy, made in tried
        ]

    @property
    def size(self) -> float:
        """Root mean square of the held-out answers."""
        return rms(np.concatenate([t.ravel() for t in self.truth]))

    def try_policy(self, policy: Policy, count: int) -> list[AttemptRecord]:
        """All attempts against one policy, told as they end."""
        made = [self.attempt(policy.name, policy.simulate, options) for options in policy.attempts]
        self.done += 1
        sys.stderr.write(f"{self.done}/{count} {self._judge(policy, made).verdict}\n")
        return made

    def _judge(self, policy: Policy, made: list[AttemptRecord]) -> PolicyRecord:
        """What the attempts against a policy come to."""
        of = "answers" if self.reference is None else "W"
        judged = is_attempt_verified(self._summarise_first())
        said = describe_policy(policy, made, of, judged=judged)
        record = PolicyRecord(
            policy=policy.name,
            simulate=list(policy.simulate),
            protects=None,
            verdict=said,
            attempts=made,
        )
        shown = judge_policy(policy, record.nearest, of) if judged else None
        return structs.replace(record, protects=shown)

    def _summarise_first(self) -> AttemptRecord:
        return self._summary(next(iter(self.made.values())), {})

    def attempt(
        self, name: str, simulate: tuple[str, ...], options: Mapping[str, int]
    ) -> AttemptRecord:
        """One learn job, taken from its record where it was finished before."""
        about = "-".join([name, *(f"{key}-{value}" for key, value in options.items())])
        place = self.directory / "".join(c if c.isalnum() else "-" for c in about).strip("-")
        # The first attempt is also that of the first policy, and is not made twice.
        if place not in self.made:
            left = self.count_left()
            self.made[place] = (
                _read_finished_attempt(place, self.job.max_seconds) if self.job.resume else None
            ) or self._learn(place, simulate, options)
            # Cut short by the whole audit, an attempt shows nothing of its policy.
            if self.made[place].queries.total == left and len(self.made) > 1:
                raise AuditSpent
        return self._summary(self.made[place], options)

    def _learn(
        self, place: Path, simulate: tuple[str, ...], options: Mapping[str, int]
    ) -> LearnRecord:
        """A learn job in a directory of its own.

        Raises:
            TargetStopped: the target itself failed.
        """
        shared = {
            key: getattr(self.job, key)
            for key in (
                *list_declarations(),
                *WIRING,
                "width",
                "outputs",
                "seed",
                "resume",
                "rate",
                "timeout",
                "in_flight",
                "layer",
                "max_seconds",
            )
        }
        job = LearnJob(
            self.job.target,
            simulate=simulate,
            out=str(place),
            force=not self.job.resume,
            **shared,
        )
        job = self._tell_wiring(replace(job, **options))
        record = run_learn(replace(job, budget=self._limit_attempt(job.budget))).data
        if _has_target_failed(record):
            # All further attempts would fail alike.
            raise TargetStopped(record)
        return record

    def _read_found_wiring(self) -> dict[str, Given]:
        """How the layer is wired, as exact answers showed it; empty for other classes."""
        found = next(iter(self.made.values())).wiring
        wired = found is not None and (found.told | found.found).get("norm") is not None
        known = {} if found is None or not wired else found.found
        return {name: value for name, value in known.items() if name in _WIRED}

    def _tell_wiring(self, job: LearnJob) -> LearnJob:
        """An attempt that knows how a layer is built: that is no secret an owner can count on."""
        # No learner of layers takes absolute errors, labels or tokens of bounded length.
        cast = all(name.startswith("answers=") for name in job.simulate)
        if not self.wiring or not job.simulate or not cast:
            return job
        untold: Any = {name: v for name, v in self.wiring.items() if getattr(job, name) is None}
        return replace(job, learner="wired-layer", **untold)

    def _limit_attempt(self, asked: int | None) -> int | None:
        """The budget of an attempt: what its policy, the cap and the whole audit leave."""
        limits = [one for one in (asked, self.cap, self.count_left()) if one is not None]
        return min(limits, default=None)

    def count_left(self) -> int | None:
        """Queries that are left of the budget of the audit.

        Raises:
            AuditSpent: none are.
        """
        if self.job.budget is None:
            return None
        left = self.job.budget - self.count_asked()
        if left < 1:
            raise AuditSpent
        return left

    def count_asked(self) -> int:
        """Queries that attempts and held-out sequences cost."""
        attempts = sum(record.queries.total for record in self.made.values())
        return attempts + self.asked

    def _summary(self, record: LearnRecord, options: Mapping[str, int]) -> AttemptRecord:
        model = _load_attempt_model(record.model)
        function = None if model is None else self._function_error(model)
        error = function if self.reference is None else self._weight_error(model)
        if model is not None and error == 0.0:
            error = record.error_bar  # the reference itself, known to its own error bar
        return AttemptRecord(
            options=dict(options),
            queries=record.queries.total,
            verification=record.queries.by_phase.get("verify", 0),
            error=error,
            function_error=function,
            verdict=record.verdict,
            status=record.status,
            sentence=record.sentence,
            model=record.model,
            run=record.run,
            seconds=record.seconds,
        )

    def _weight_error(self, model: Model | None) -> float | None:
        """Relative error of W against what full precision gives away."""
        if not isinstance(model, Head) or self.reference is None:
            return None
        return distance(self.reference, model).W

    def _function_error(self, model: Model) -> float:
        """Relative error on held-out sequences, up to a positive factor per output."""
        truth = np.concatenate(self.truth)
        said = np.concatenate([model(X) for X in self.X])
        squares = np.maximum((said * said).sum(axis=0), 1e-300)
        # Labels do not show the scale of V: it is fitted before answers are compared.
        scale = np.maximum((truth * said).sum(axis=0) / squares, 0.0)
        return rms(truth - scale * said) / max(rms(truth), 1e-300)


def _read_finished_attempt(place: Path, seconds: float) -> LearnRecord | None:
    """The record of an attempt that came to its end, if only to that of as much own time."""
    path = place / "record.json"
    record = read_run(str(place)).data if path.exists() else None
    if not isinstance(record, LearnRecord) or _has_target_failed(record):
        return None
    early = record.status == "OUT_OF_TIME" and (record.max_seconds or 0.0) < seconds
    return None if early else record


def _has_target_failed(record: LearnRecord) -> bool:
    """Whether the target raised, or answered nonsense of its own accord."""
    # A policy can push answers out of a format's range; then it is to blame, not the target.
    return record.status == "TARGET_FAILED" or (
        record.status == "BAD_ANSWER" and not record.options.get("simulate")
    )


def _load_attempt_model(path: str | None) -> Model | None:
    model = load(path) if path else None
    # A whole layer answers every row; held-out answers are of the last one.
    return model.read_last() if isinstance(model, SelfAttention) else model
