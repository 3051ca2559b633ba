"""Conversion of limits, failures, logs, results and probes between Skillery and `cellblock`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

from cellblock import doctor
from cellblock.host import logs, sessions
from cellblock.host.dialogue import Dialogue
from cellblock.values import Failure as CellFailure
from cellblock.values import FailureKind, Result
from cellblock.values import Limits as CellLimits
from cellblock.values import Log as CellLog
from cellblock.values import NetworkUse as CellNetworkUse
from cellblock.values import Probe as CellProbe
from cellblock.values import Used as CellUsed
from skillery.backends import (
    CodeCall,
    Failure,
    FailureType,
    FollowsLog,
    Job,
    Limits,
    Log,
    NetworkUse,
    Outcome,
    Probe,
    RunHost,
    Used,
)

LIMITS: dict[str, str | None] = {
    "timeout_ms": "timeout_ms",
    "memory_mb": "memory_mb",
    "processes": "processes",
    "cpus": "cpus",
    "disk_mb": "disk_mb",
    "disk_files": "disk_files",
    "tmp_mb": "tmp_mb",
    "blobs": None,
    "blobs_mb": None,
    "calls": None,
    "log_kb": "log_kb",
    "result_mb": None,
    "callbacks_per_second": None,
}
"""The name in `cellblock` of each limit of a job. None: the dialogue or the backend enforces the limit."""
FAILURES: dict[FailureKind, FailureType | None] = {
    FailureKind.EXCEPTION: None,
    FailureKind.TIMEOUT: FailureType.TIMEOUT,
    FailureKind.MEMORY: FailureType.MEMORY_LIMIT_EXCEEDED,
    FailureKind.CPU_TIME: FailureType.CPU_TIME_EXCEEDED,
    FailureKind.EXITED: FailureType.PROCESS_EXITED,
    FailureKind.KILLED: FailureType.PROCESS_KILLED,
    FailureKind.OUTPUT: FailureType.INVALID_OUTPUT,
    FailureKind.SANDBOX: FailureType.SANDBOX_ERROR,
}
"""The failure type of each kind of failure. None: the type is the class name of the exception."""
KINDS = {str(failure_type): kind for kind, failure_type in FAILURES.items() if failure_type is not None}


@lru_cache(maxsize=64)
def limits_of(limits: Limits) -> CellLimits:
    """Return the limits that the sandbox enforces."""
    return CellLimits(**{name: getattr(limits, field) for field, name in LIMITS.items() if name is not None})


def failure_of(failure: CellFailure) -> Failure:
    return Failure(FAILURES[failure.kind] or failure.type, failure.message, failure.traceback)


def outcome_of(result: Result) -> Outcome:
    """Return the outcome of a result of `cellblock`."""
    return Outcome(
        result=result.raw,
        failure=failure_of(result.failure) if result.failure is not None else None,
        summary=result.summary,
        log=log_of(result.log_parts),
        duration_ms=result.duration_ms,
        degraded=result.degraded,
        network=tuple(
            NetworkUse(use.host, use.port, use.allowed, use.reason, use.connections, use.bytes_out, use.bytes_in)
            for use in result.network
        ),
        used=Used(result.used.prepared_ms, result.used.memory_bytes, result.used.processes, result.used.disk_bytes),
    )


def log_of(log: CellLog) -> Log:
    return Log(log.head, log.tail, log.dropped)


def probe_of(probe: CellProbe) -> Probe:
    return Probe(probe.name, probe.ok, probe.detail, probe.fix, probe.required)


def with_stack(failure: Failure, log: Log) -> tuple[Failure, Log]:
    """Return the failure of a stopped run with the stack of its code, and the log without this stack."""
    stopped_failure, log_without_stack = sessions.with_stack(
        _cell_failure(failure), CellLog(log.head, log.tail, log.dropped)
    )
    return Failure(failure.type, stopped_failure.message, stopped_failure.traceback), log_of(log_without_stack)


def _cell_failure(failure: Failure) -> CellFailure:
    return CellFailure(KINDS.get(failure.type, FailureKind.EXCEPTION), failure.message, failure.type, failure.traceback)


class LogPipe(logs.LogPipe):
    """The server's end of the pipe for the code's output. A host that follows the log (`FollowsLog`) gets each
    piece.
    """

    def __init__(self, limit: int = 0, host: RunHost | None = None) -> None:
        """If `host` does not follow the log, this object keeps the log, up to `limit` bytes."""
        super().__init__(limit, sink_of(host))


def sink_of(host: RunHost | None) -> logs.Sink | None:
    """Return the method of the host that gets the log, or None if the host does not follow the log."""
    return host.printed if _follows_log(host) else None


def _follows_log(host: RunHost | None) -> TypeGuard[FollowsLog]:
    # `issubclass` remembers its answers for a Protocol; `isinstance` looks up every method again.
    return issubclass(type(host), FollowsLog)


class RunSession:
    """A run of a job, from the start of its code to its outcome. Call `follow` when the code can start, and `outcome`
    after the run has ended.
    """

    def __init__(self, limits: Limits) -> None:
        self._session = sessions.RunSession(limits_of(limits))

    @property
    def stopped(self) -> Failure | None:
        """The failure of a run that was stopped, or that did not start."""
        return failure_of(self._session.stopped) if self._session.stopped is not None else None

    @stopped.setter
    def stopped(self, failure: Failure | None) -> None:
        self._session.stopped = _cell_failure(failure) if failure is not None else None

    @property
    def status(self) -> int | None:
        """The wait status of the code's process, if it ended without a result."""
        return self._session.status

    @status.setter
    def status(self, status: int | None) -> None:
        self._session.status = status

    async def follow(
        self,
        dialogue: Dialogue,
        ended: Callable[[], Awaitable[int | None]],
        exceeds: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        """See `cellblock.host.sessions.RunSession.follow`."""
        await self._session.follow(dialogue, ended, exceeds)

    @property
    def dialogue(self) -> Dialogue | None:
        """The dialogue of a run whose code could start."""
        return self._session.dialogue

    @property
    def disk_bytes(self) -> int | None:
        """The size of the files in the workspace, as the process of the code has measured it at its end."""
        return self._session.disk_bytes

    def outcome(
        self,
        *,
        log: CellLog,
        degraded: tuple[str, ...],
        oom_killed: bool = False,
        network: tuple[CellNetworkUse, ...] = (),
        used: CellUsed | None = None,
    ) -> Outcome:
        return outcome_of(
            self._session.result(log=log, degraded=degraded, oom_killed=oom_killed, network=network, used=used)
        )


# -- probes: a run in each language -----------------------------------------------------------------------------------


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


def language_probes(outcomes: Sequence[Outcome], reason: str) -> list[Probe]:
    """Return the probes for the outcomes of the jobs in JOBS. `reason` says why outcomes lack."""
    return [probe_of(probe) for probe in doctor.language_probes([_end_of(outcome) for outcome in outcomes], reason)]


def _end_of(outcome: Outcome) -> tuple[bytes | None, str]:
    return outcome.result, outcome.failure.message if outcome.failure else ""


def run_probes(run_jobs: RunJobs) -> list[Probe]:
    """Run a job in each language, and a job that does nothing. Return the probes."""
    outcomes, reason = doctor.run_apart(run_jobs, [NO_OP, *JOBS])
    ran = (*_end_of(outcomes[0]), outcomes[0].duration_ms) if outcomes else (None, reason, 0.0)
    return [*language_probes(outcomes[1:], reason), probe_of(doctor.whole_run_probe(*ran))]
