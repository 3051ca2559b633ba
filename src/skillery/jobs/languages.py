"""The languages that runs can use, found by a run in each language."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cellblock.host.probes import host_probes
from skillery.backends import CodeCall, Job, Language, Limits, Outcome, Probe
from skillery.jobs.outcomes import probe_of

RunJobs = Callable[[Sequence[Job]], Coroutine[Any, Any, list[Outcome]]]
# Each returns [path of its interpreter, its version].
WHO_ARE_YOU: dict[Language, str] = {
    "python": "import sys, platform\ndef main(args): return [sys.executable, platform.python_version()]",
    "javascript": "export const main = () => [process.execPath, process.versions.node];",
    "bash": 'printf \'["%s", "%s"]\' "$BASH" "$BASH_VERSION"',
}
PLACE = "beneath /usr, or beneath the prefix of the Python that runs the server"
FIXES: dict[Language, str] = {
    "python": "see what is missing above",
    "javascript": f"install Node.js 20.19 or later {PLACE}; only runs in that language need it",
    "bash": f"install bash {PLACE}; only runs in that language need it",
}
NO_OP = Job(
    run_id="run_0",
    call=CodeCall("def main(args): return True", "main"),
    args=b"{}",
    limits=Limits(timeout_ms=10_000, memory_mb=256),
)
JOBS = [
    Job("run_0", CodeCall(code, "main", language), b"{}", limits=Limits(timeout_ms=20_000, memory_mb=256))
    for language, code in WHO_ARE_YOU.items()
]


def run_apart(run_jobs: RunJobs, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs in the event loop of a new thread. Return their outcomes, or [] if the sandbox raises an error."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.extend(asyncio.run(run_jobs(jobs))))
    thread.start()
    thread.join()
    return outcomes


def language_probes(outcomes: Sequence[Outcome]) -> list[Probe]:
    """Return the probes for the outcomes of the jobs in JOBS."""
    return [
        language_probe(language, outcome)
        for language, outcome in zip(WHO_ARE_YOU, [*outcomes, *[None] * len(JOBS)], strict=False)
    ]


def language_probe(language: Language, outcome: Outcome | None) -> Probe:
    """Return the probe of a language: its interpreter and version, or how to install it."""
    name = f"language {language}"
    if outcome is None or outcome.result is None:
        failure = outcome.failure if outcome else None
        return Probe(name, False, failure.message if failure else "nothing could be run", FIXES[language], False)
    path, version = json.loads(outcome.result)
    return Probe(name, True, f"{path}, version {version}", required=False)


def run_probes(run_jobs: RunJobs) -> list[Probe]:
    """Run a job in each language, and a job that does nothing. Return the probes."""
    outcomes = run_apart(run_jobs, [NO_OP, *JOBS])
    no_op_outcome = outcomes[0] if outcomes else Outcome()
    ok = no_op_outcome.result == b"true"
    detail = (
        f"took {no_op_outcome.duration_ms:.1f} ms in the sandbox"
        if ok
        else no_op_outcome.failure.message
        if no_op_outcome.failure
        else "raised"
    )
    run_probe = Probe("a whole run", ok, detail, "" if ok else "see what is missing above")
    return [*language_probes(outcomes[1:]), run_probe]


def all_probes(run_jobs: RunJobs) -> list[Probe]:
    """Return the probes of this host. If the host is supported, also return the probes of runs."""
    probes = [probe_of(probe) for probe in host_probes()]
    return [*probes, *run_probes(run_jobs)] if len(probes) > 1 else probes
