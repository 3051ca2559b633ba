"""Values of a run: what to run, its limits, its mounts, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal


class Busy(Exception):
    """Raised if no host uid or no descriptor is free for a run. The caller may try again later."""


class Unavailable(Exception):
    """Raised if this host cannot keep the promises of the sandbox. `probes` lists what is missing, and the remedies."""

    def __init__(self, message: str, probes: tuple[Probe, ...] = ()) -> None:
        super().__init__(message)
        self.probes = probes


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run, for all its processes together. Sizes are in MiB (`_mb`) and KiB (`_kb`)."""

    timeout_ms: int = 10_000
    """Elapsed time from the start of the code."""
    memory_mb: int = 256
    cpus: float = 1.0
    processes: int = 64
    """Limit of processes and threads together."""
    disk_mb: int = 64
    """Size of `/workspace`."""
    disk_files: int = 10_000
    tmp_mb: int = 16
    """Size of `/tmp`."""
    log_kb: int = 1024
    """Size of the kept log. Of a longer log, the run keeps the first and the last half."""
    result_kb: int = 1024
    """Size of the returned value as JSON."""

    def check(self) -> None:
        """Raise ValueError if a limit is not a positive number. `log_kb` may be 0."""
        for limit in fields(self):
            value = getattr(self, limit.name)
            lowest = 0 if limit.name == "log_kb" else 1 if limit.type == "int" else 0.01
            if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value < 1 << 40:
                raise ValueError(f"limits: {limit.name} is {value!r}; it must be a number of at least {lowest}")
            if limit.type == "int" and not isinstance(value, int):
                raise ValueError(f"limits: {limit.name} is {value!r}; it must be an integer")


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or a file of the host that a run can read at `target`, a path such as `/data/NAME`.

    The first part of `target` is a mount point of the `Template`.
    """

    source: Path
    target: str
    digest: str = ""
    """A digest of the content, if the source never changes. The real path of such a source is cached, and the source is
    scanned for sockets only once.
    """

    @property
    def point(self) -> str:
        """The first part of the target, without a slash."""
        return self.target.split("/", 2)[1]

    @property
    def name(self) -> str:
        """The last part of the target."""
        return self.target.split("/", 2)[2]


@dataclass(frozen=True, slots=True)
class Guest:
    """Code of the owner inside each run: the functions of the module `module` in `folder`, each of them optional.

    - `before(job, ask)` prepares the run, before any code of it, while its mounts are made. An error fails the set-up.
    - `start(job)` is called when all mounts are there, directly before the code. An error fails the run.
    - `replace(value)` returns a replacement for a returned value that is not JSON, or raises TypeError.
    - `after(job, ask, failure)` is called when the code has returned, or has raised `failure`. An error fails the run.
    - `modules(name)` returns the spec of a module that the code imports, or None.

    `job` is `Job.guest`, parsed. `ask(operation, header, body)` calls `Host.ask`, and returns its answer as bytes. The
    files of the folder are modules of the package `runtime` inside the run. The zygote imports `module` before it forks
    runs. The functions run with the rights of the run, and the code of the run can change or call them.
    """

    folder: Path
    module: str


@dataclass(frozen=True, slots=True)
class Template:
    """What all runs of one sandbox share."""

    points: tuple[str, ...] = ("/data",)
    """The folders in which the mounts of runs appear."""
    packages: Path | None = None
    """A folder of the host with Python packages that runs can import, such as the target of `pip install --target`."""
    private: tuple[Path, ...] = ()
    """Folders below /usr, or below the prefix of the interpreter, that runs see empty. Installed packages are always
    hidden.
    """
    guest: Guest | None = None
    node: Path | None = None
    """A program of Node.js for runs, in place of one below /usr. Runs also see the code of the npm next to it."""
    pythons: tuple[Path, ...] = ()
    """More interpreters of Python that programs of runs can start. Runs see the folder above the `bin` of each one."""
    etc: tuple[str, ...] = ()
    """More names in `/etc` of the host that runs see a copy of, such as `odbc.ini`. Only files that every user of the
    host may read are copied.
    """
    programs: Path | None = None
    """A folder of the host with files that runs can start by name, before programs of the host. They are copied."""


Language = Literal["python", "javascript", "bash"]


@dataclass(frozen=True, slots=True)
class Job:
    """What to run: `code`, or the file `entry` below a mount.

    - Python: the function `function` is called with the arguments. Its returned value is the value of the run.
    - JavaScript: the same with an exported function, which may be async.
    - bash: the arguments are on stdin. The output is the value: parsed if it is JSON, else as text.

    An `entry` that is not a Python file runs as a program: a JavaScript file must export a default function, and
    other files are like bash.
    """

    code: str | None = None
    entry: str | None = None
    function: str = "main"
    language: Language = "python"
    """The language of `code`. The language of `entry` follows its suffix or its first line."""
    args: bytes = b"{}"
    """A JSON value in UTF-8, usually an object."""
    limits: Limits = Limits()
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional environment variables of the code."""
    network: tuple[str, ...] = ()
    """The hosts that the code may reach: `https://HOST` or `http://HOST`, also with `:PORT` and `*.` before the host.
    """
    private_network: bool = False
    """Whether these hosts may have addresses that are not public."""
    guest: bytes = b"null"
    """A JSON value for the functions of the `Guest`."""


class Host:
    """The owner of a run, while the code runs. A subclass has one of these methods, or both."""

    def log(self, piece: bytes) -> None:
        """Take a piece of the output, of at most 64 KiB. The event loop calls this method, which must not block. The
        `Result` then has no log.
        """
        raise NotImplementedError

    async def ask(self, operation: str, header: Mapping[str, Any], body: bytes) -> bytes:
        """Answer a request of the guest. The code of the run can make the same requests, so do not trust them.

        `header` is any JSON object of at most 64 KiB, and `body` has at most `result_kb`. If this method raises an
        exception, the guest gets a HostError without its message.
        """
        raise NotImplementedError


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
    step: str = ""
    """The step of the set-up that failed, such as `mount tmpfs /tmp`. No code has run then."""


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


@dataclass(frozen=True)
class Result:
    """The end of a run. Exactly one of `raw` and `failure` is not None."""

    raw: bytes | None = None
    """The returned value as compact JSON in UTF-8."""
    failure: Failure | None = None
    summary: str | None = None
    """The text that the code set with `runtime.summary(text)`."""
    log_parts: Log = Log()
    """The log in two parts, if it was too long to keep completely."""
    duration_ms: float = 0.0
    """Time from the start of the code to its result."""
    degraded: tuple[str, ...] = ()
    """Limits that this host enforces only by weaker means, such as `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every allowed or refused connection of the run, grouped by target and outcome."""
    used: Used = Used()

    @property
    def ok(self) -> bool:
        """Whether the code returned a value."""
        return self.failure is None

    @cached_property
    def value(self) -> Any:
        """The returned value, parsed at the first use. Raise ValueError if the run failed."""
        if self.raw is None:
            reason = f"{self.failure.kind}: {self.failure.message}" if self.failure is not None else "it has no result"
            raise ValueError(f"the run has no value: {reason}")
        return json.loads(self.raw)

    @property
    def log(self) -> bytes:
        """The output of the code, stdout and stderr together."""
        return self.log_parts.head + self.log_parts.tail

    @property
    def log_dropped(self) -> int:
        """The number of bytes that are missing in the middle of the log."""
        return self.log_parts.dropped


@dataclass(frozen=True, slots=True)
class Probe:
    """A test of the host. `fix` says what to do if it fails. A failed `required` probe prevents runs."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True
