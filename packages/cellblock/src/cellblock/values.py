"""Values of a run: its limits, its mounts, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal


class Busy(Exception):
    """Raised if all host uids for runs are in use. The caller may try again later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run, for all its processes together."""

    timeout_ms: int = 300_000
    """Elapsed time from the start of the code."""
    memory_mb: int = 512
    processes: int = 64
    """Limit of processes and threads together."""
    cpus: float = 1.0
    disk_mb: int = 256
    """Size of `/workspace`."""
    disk_files: int = 16_384
    tmp_mb: int = 64
    """Size of `/tmp`."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or a file of the host that a run can read at `/<kind>/<name>`."""

    kind: Literal["skills", "packages", "blobs"]
    name: str
    source: Path
    lasting: bool = False
    """Whether the source never changes, so that its real path may be cached."""


class FailureKind(StrEnum):
    """Why a run failed."""

    EXCEPTION = "exception"
    """The code raised an exception. `Failure.type` is its class name."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    CPU_TIME = "cpu_time"
    """One process used more CPU time than the timeout allows."""
    EXITED = "exited"
    """The process ended with an exit status before it returned a result."""
    KILLED = "killed"
    """A signal ended the process before it returned a result."""
    OUTPUT = "output"
    """The result is not valid, or the code wrote to the result channel."""
    SANDBOX = "sandbox"
    """The sandbox could not be prepared, or was ended from outside."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason of a failed run."""

    kind: FailureKind
    message: str
    type: str = ""
    """The name of the exception: of the code, or `TimeoutError`. "" for other failures."""
    traceback: str = ""
    """The traceback of the exception, only with frames of user code."""


@dataclass(frozen=True, slots=True)
class Log:
    """The log of a run. Of a long log, only head and tail are stored."""

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Number of bytes that are missing between head and tail."""


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """Connections of a run to one host and port with the same outcome."""

    host: str
    """The host as the code requested it. If the text is not a host name, it is escaped and shortened."""
    port: int
    allowed: bool
    reason: str
    """The pattern that allowed the connections, or the reason of the refusal."""
    connections: int = 1
    bytes_out: int = 0
    """Bytes from the code to the host."""
    bytes_in: int = 0


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used, as far as the sandbox measures it. None: not measured."""

    prepared_ms: float | None = None
    """Time from the request to the start of the code."""
    memory_bytes: int | None = None
    """The most memory of all processes of the run together, with the files in `/workspace` and `/tmp`."""
    processes: int | None = None
    """The most processes and threads at one time."""
    disk_bytes: int | None = None
    """Size of the files in `/workspace` at the end of the code. The code could falsify this value."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run. Exactly one of `raw` and `failure` is not None."""

    raw: bytes | None = None
    """The returned value as compact JSON in UTF-8."""
    failure: Failure | None = None
    summary: str | None = None
    """The text that the code set with `runtime.summary(text)`."""
    log: Log = Log()
    duration_ms: float = 0.0
    degraded: tuple[str, ...] = ()
    """Limits that this host enforces only by weaker means, such as `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every allowed or refused connection of the run, grouped by target and outcome."""
    used: Used = Used()


@dataclass(frozen=True, slots=True)
class Probe:
    """A test of the host. `fix` says what to do if it fails. A failed `required` probe prevents runs."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True
