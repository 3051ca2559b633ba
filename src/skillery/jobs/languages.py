"""The languages that runs can use, found by a run in each language."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cellblock import doctor
from skillery.backends import CodeCall, Job, Limits, Outcome, Probe
from skillery.jobs.outcomes import probe_of

RunJobs = Callable[[Sequence[Job]], Coroutine[Any, Any, list[Outcome]]]
NO_OP = Job(
    run_id="run_0",
    call=CodeCall("def main(args): return True", "main"),
    args=b"{}",
    limits=Limits(timeout_ms=10_000, memory_mb=256),
)
JOBS = [
    Job("run_0", CodeCall(code, "main", language), b"{}", limits=Limits(timeout_ms=20_000, memory_mb=256))
    for language, code in doctor.WHO_ARE_YOU.items()
]


def language_probes(outcomes: Sequence[Outcome]) -> list[Probe]:
    """Return the probes for the outcomes of the jobs in JOBS."""
    return [probe_of(probe) for probe in doctor.language_probes([_end_of(outcome) for outcome in outcomes])]


def _end_of(outcome: Outcome) -> tuple[bytes | None, str]:
    return outcome.result, outcome.failure.message if outcome.failure else "nothing could be run"


def run_probes(run_jobs: RunJobs) -> list[Probe]:
    """Run a job in each language, and a job that does nothing. Return the probes."""
    outcomes = doctor.run_apart(run_jobs, [NO_OP, *JOBS])
    no_op = outcomes[0] if outcomes else Outcome()
    whole_run = doctor.whole_run_probe(*_end_of(no_op), no_op.duration_ms)
    return [*language_probes(outcomes[1:]), probe_of(whole_run)]
