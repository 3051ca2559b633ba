"""The boundary to what admins can swap: four Protocols and the frozen values that cross them.

Plugin packages import this module, `skillery.errors`, `skillery.hookimpl`, `skillery.sandboxing` (what sandboxes are
built from) and `skillery.testing`, and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

import msgspec

from skillery.failure_types import FailureType as FailureType  # noqa: PLC0414 - the boundary exports it

# -- who is calling ----------------------------------------------------------------------------------------------

Scope = Literal["read", "run", "publish", "review", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset({"read", "run", "publish", "review", "admin"})


class Identity(msgspec.Struct, frozen=True):
    """Who makes a call. `namespaces` are grants: `sales.*` = every name that starts with `sales.`, `*` = all."""

    name: str
    kind: Literal["person", "agent"] = "person"
    scopes: frozenset[Scope] = frozenset()
    namespaces: tuple[str, ...] = ()


class Credentials(msgspec.Struct, frozen=True):
    """What a request shows of its sender: its headers (names in lower case) and its network address."""

    headers: Mapping[str, str]
    address: str


@runtime_checkable
class Authenticator(Protocol):
    loopback_only: bool
    """True where it may only be served on a loopback address (no login: everybody who can connect is let in)."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The identity behind the credentials. Raises NotAuthenticated."""
        ...


@runtime_checkable
class KeepsTokens(Protocol):
    """An Authenticator of tokens that this registry keeps itself; others have none of this."""

    def forget(self) -> None:
        """A token was revoked: whatever is remembered of any counts no longer."""
        ...

    def first_token(self) -> str | None:
        """An admin's token where there has never been any and the settings ask for one, else None. Blocking."""
        ...


# -- contents by digest ------------------------------------------------------------------------------------------


class Upload(Protocol):
    """One content on its way in. Nothing is visible before `commit`; a crash leaves nothing but rubbish that the
    next start sweeps."""

    def write(self, chunk: bytes) -> None: ...

    def commit(self, digest: str) -> None:
        """Make it durable and visible under `digest` (64 hex digits of SHA-256, computed by the caller)."""
        ...

    def abort(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Immutable contents, named by their SHA-256. Blocking: called from worker threads, by several at once.

    A full disk raises StorageFull and leaves nothing half-written.
    """

    def begin(self) -> Upload: ...

    def open(self, digest: str) -> BinaryIO:
        """A seekable stream from the start. Raises ContentMissing."""
        ...

    def local_path(self, digest: str) -> Path | None:
        """The content as a read-only file of this machine, or None where there is none to give."""
        ...

    def delete(self, digest: str) -> None:
        """Forget it; no error where there is nothing."""
        ...

    def check(self) -> None:
        """Raises where the store cannot be used now."""
        ...


@runtime_checkable
class ListsContents(Protocol):
    """A Storage that can say what it holds; in one that cannot, what a killed server left behind stays for ever."""

    def stored_before(self, moment: datetime) -> Iterator[tuple[str, int]]:
        """Digest and size in bytes of every content that was stored before, in any order. What comes or goes meanwhile
        may be among them or not."""
        ...


@runtime_checkable
class KnowsRegistry(Protocol):
    """A Storage that can be marked as one registry's, so that a server which is given another one notices."""

    def mark(self, made: str) -> str:
        """The mark that it has, else from now on `made`: of several who mark it at once one wins."""
        ...

    def find_mark(self) -> str | None: ...


# -- secrets -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Secrets(Protocol):
    """Values by name, for skills that were granted them. Blocking: called from worker threads, by several at once.

    No exception and no log line of a backend ever holds a value. One that cannot be reached raises Unavailable.
    """

    read_only: bool
    """True where values are set elsewhere: `set` and `remove` raise NotAllowed with a hint that says where."""

    def get(self, name: str) -> str | None:
        """The value, None where there is none."""
        ...

    def names(self) -> list[str]:
        """Every name that has a value, sorted."""
        ...

    def set(self, name: str, value: str) -> None:
        """Keep a value, in place of the one before."""
        ...

    def remove(self, name: str) -> bool:
        """Forget it; False where there was nothing."""
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A Secrets whose values lie in the registry's own database, so that a change and the record of it can be one
    transaction; others have none of this. Blocking; the work is for a connection of that database."""

    def setting(self, name: str, value: str) -> Callable[[Any], bool]:
        """`set`, as work for a transaction; it answers whether there was a value before."""
        ...

    def removing(self, name: str) -> Callable[[Any], bool]:
        """`remove`, as work for a transaction."""
        ...


class SecretValues(dict[str, str]):
    """Secrets by name, as a run gets them: their values don't show where it is printed."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


# -- runs --------------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """What one run may use, for its whole process tree."""

    timeout_ms: int = 300_000
    """Wall clock from the start of the code, not from queueing."""
    memory_mb: int = 512
    processes: int = 64
    """Processes and threads."""
    cpus: float = 1.0
    disk_mb: int = 256
    """`/workspace`."""
    disk_files: int = 16_384
    tmp_mb: int = 64
    """`/tmp`."""
    blobs: int = 1_000
    blobs_mb: int = 256
    calls: int = 100
    """Of mounted skills that run in a sandbox of their own."""
    log_kb: int = 1_024
    """Kept of the log; the rest is counted and never slows the code."""
    result_mb: int = 16
    callbacks_per_second: int = 8_000
    """What the code may ask of its host: blobs, calls. Code that asks more often waits."""


class SkillMount(msgspec.Struct, frozen=True):
    """A skill at `/skills/<name>/`, read-only."""

    name: str
    folder: Path
    """Its files on this machine: immutable, complete, shared between runs."""
    entrypoint: str | None = None
    """Path of the entrypoint inside the skill (`code/main.py`), importable as `skills.<name>`; None for a skill
    that is only there to be read."""
    stub: bool = False
    """It declares permissions of its own, which this run has not. Importing it runs nothing of it and puts no folder
    on `sys.path`: its functions are there as proxies that ask `RunHost.call_skill`."""


class BlobMount(msgspec.Struct, frozen=True):
    """A blob at `/blobs/<blob_id>`, read-only."""

    blob_id: str
    path: Path
    """Its content on this machine."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the sandbox copies to `/workspace/<path>` before the code starts. The run owns the copy."""

    path: str
    """A checked bundle path (`formats.paths`)."""
    source: Path
    """The content on this machine."""
    size_bytes: int
    executable: bool = False


class PackageMount(msgspec.Struct, frozen=True, weakref=True):
    """Installed packages at `/packages/<lock>/`, read-only, importable after the standard library and before skills.

    Its folder stays as long as anybody keeps this very value: whoever mounts it keeps it."""

    lock: str
    """The SHA-256 of their lock, in 64 hex digits: equal ones are the same packages, everywhere."""
    folder: Path
    """Immutable, complete, shared between runs."""


class SkillCall(msgspec.Struct, frozen=True, tag="skill"):
    """Import the entrypoint of the mounted skill `skill` and call `function(args)`."""

    skill: str
    function: str
    spread: bool = False
    """Call `function(*args, **kwargs)` with the two members of the job's `args`. Only a function that a stub of this
    skill would offer may be called so; any other is an AttributeError, and nothing of the skill has run."""


Language = Literal["python", "javascript", "bash"]


class CodeCall(msgspec.Struct, frozen=True, tag="code"):
    """Call `function(args)` of `code`: a module of Python, or an ES module (`javascript`).

    `bash` has no functions to call: the code runs with the args on stdin, and what it prints is the result."""

    code: str
    function: str
    language: Language = "python"


class HandlerCall(msgspec.Struct, frozen=True, tag="handler"):
    """Run the file `path` of the mounted skill `skill` with the args, as a handler of the Skill Tools convention.

    `.js` and `.mjs`: the default export. `.py`: the function `handler` where the module defines one. All else, `.sh`
    included, is a program with the args on stdin and as its argument; what it prints is the result. A backend sets the
    arg `__workDir`."""

    skill: str
    path: str


class ScriptCall(msgspec.Struct, frozen=True, tag="script"):
    """Run the file `path` of the mounted skill `skill` as a program, by its ending or its `#!` line.

    The result is an object: `exit_code` (128 and the number of the signal that ended it), `stdout` and `stderr`
    (texts; over 64 KiB `{"blob_id", "size_bytes", "preview"}`, and `dropped_bytes` past the limit of a result), and
    `files`, what it left below /workspace/out: `{"path", "blob_id", "size_bytes"}` each, at most 100; `left_out` names
    others. That folder is there beforehand where an argument or a variable is a path in it. A run fails only where the
    program could not be started or was stopped. The log has what it printed as well."""

    skill: str
    path: str
    argv: tuple[str, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    """Beside the job's own."""
    module: str = ""
    """If set, run this module of the skill as `python -m` does; `path` is its file."""
    in_skill: bool = False
    """Start in the read-only folder of the skill instead of `/workspace`."""


Call = SkillCall | CodeCall | HandlerCall | ScriptCall


class Job(msgspec.Struct, frozen=True):
    """All that a sandbox needs to know of one run."""

    run_id: str
    call: Call
    args: bytes
    """A JSON object."""
    skills: tuple[SkillMount, ...] = ()
    """In the order of mounting; an executed skill comes first."""
    blobs: tuple[BlobMount, ...] = ()
    limits: Limits = Limits()
    environment: Mapping[str, str] = {}
    """Variables beyond the sandbox's own (secrets). Never to be logged, nor put where another process can read it."""
    network: tuple[str, ...] = ()
    """What the executed skill may reach, as `permissions.network` writes it; empty: nothing."""
    packages: tuple[PackageMount, ...] = ()
    """On `sys.path` in this order. They clash in nothing."""
    preload: tuple[str, ...] = ()
    """Modules of the first of `packages` that a backend may have imported before the run came. The code finds them as
    if it were the first to import them; a backend that keeps nothing warm need not care."""
    private_network: bool = False
    """The hosts of `network` were named by the server's admin: they may have addresses that are not public, this
    machine's own included."""
    identity: str = ""
    """Name of the identity that asked for the run; empty for the server's own work. A backend shares out by identity
    what runs have in common. The code of the run is not told."""
    files: tuple[InputFile, ...] = ()
    """Copied to `/workspace` before the code starts. They count towards `disk_mb` and `disk_files`. A file that does
    not fit is a Failure of type SandboxError that names it; then no code has run."""


class Failure(msgspec.Struct, frozen=True):
    """Why a run failed. `type` is a `FailureType`, or the class name of the exception that the code raised."""

    type: str
    message: str
    traceback: str = ""
    """Frames of user code only."""


class Log(msgspec.Struct, frozen=True):
    """stdout, stderr and `log` in the order of writing; of a long log the head and the tail."""

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Bytes left out between the two."""


class NetworkUse(msgspec.Struct, frozen=True):
    """Connections of a run that had the same goal and the same fate."""

    host: str
    """As it was asked for; what is no host name is escaped and cut."""
    port: int
    allowed: bool
    reason: str
    """The pattern that allowed it, or why it was refused."""
    connections: int = 1
    bytes_out: int = 0
    """From the code to the host."""
    bytes_in: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended: exactly one of `result` and `failure` is set."""

    result: bytes | None = None
    """Compact UTF-8 JSON of what the function returned."""
    failure: Failure | None = None
    summary: str | None = None
    """What the code set with `runtime.summary(text)`."""
    log: Log = Log()
    duration_ms: float = 0.0
    degraded: tuple[str, ...] = ()
    """Limits that were held by weaker means than usual on this host, e.g. `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every connection that was let through or refused, counted together by goal and fate."""


class BlobWriter(Protocol):
    """One blob that a run is writing."""

    async def write(self, chunk: bytes) -> None:
        """Raises TooLarge past the run's limit."""
        ...

    async def commit(self) -> str:
        """Its blob id."""
        ...

    async def abort(self) -> None: ...


class RunHost(Protocol):
    """What the code in a sandbox can ask of the host while it runs. Errors it raises (SkilleryError) are shown to
    the code as exceptions; they never end the run nor the server."""

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        """`path` is what the code calls it: a path below /workspace/out, or the name of a picture. Untrusted."""
        ...

    async def read_blob(self, blob_id: str) -> bytes:
        """A blob that this run wrote. Raises BlobNotFound for every other id."""
        ...

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill that this run mounts as a stub, in a sandbox and with permissions of its own.

        `args` is the JSON `{"args": [...], "kwargs": {...}}`; answers the JSON of what the function returned. Raises
        SkillFailed where the function did, another SkilleryError where it was not called. Cancelling it ends the call.
        """
        ...


@runtime_checkable
class StreamsBlobs(Protocol):
    """A RunHost that reads blobs in pieces. Otherwise code that asks for a blob and does not read it holds memory."""

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return the size in bytes of a blob that this run wrote, and its content in pieces.
        Raises BlobNotFound for every other id."""
        ...


class Probe(msgspec.Struct, frozen=True):
    """One property that a backend needs, tried by doing it."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """How to mend it, where `ok` is false."""
    required: bool = True
    """False: without it runs are `degraded`, but safe."""


class Capability(StrEnum):
    """What a sandbox can do. A run that needs one of the first group that its backend lacks is refused by its name;
    one of LIMITS that it lacks stands in `degraded` of every run."""

    PYTHON = "python"
    """Runs Python: skills by their entrypoint, and the code of `run_code`."""
    JAVASCRIPT = "javascript"
    """Runs JavaScript, where the host has Node.js."""
    BASH = "bash"
    """Runs bash, where the host has it."""
    BLOBS = "blobs"
    """Shows the run its input blobs as files."""
    FILES = "files"
    """Copies `Job.files` to the workspace of the run."""
    SECRETS = "secrets"
    """Hands variables to the code that no process outside can read, and that no argument or file holds."""
    NETWORK = "network"
    """Lets the code reach the hosts of `Job.network`."""
    PACKAGES = "packages"
    """Shows the code installed packages, and nothing of the host's own (`Job.packages`)."""
    STUBS = "stubs"
    """Lets the code call skills that run elsewhere (`SkillMount.stub`), by `RunHost.call_skill`."""

    ISOLATION = "isolation"
    """Code reaches nothing of the host but what its job gives it."""
    MEMORY_TREE = "memory_tree"
    """`memory_mb` is held for the whole process tree at any moment, not by looking at it now and then."""
    PROCESSES = "processes"
    """`processes` is held, threads included."""
    CPUS = "cpus"
    """`cpus` is held."""
    DISK = "disk"
    """`disk_mb` and `tmp_mb` are held."""
    DISK_FILES = "disk_files"
    """`disk_files` is held."""


LIMITS: frozenset[str] = frozenset(
    {
        Capability.ISOLATION,
        Capability.MEMORY_TREE,
        Capability.PROCESSES,
        Capability.CPUS,
        Capability.DISK,
        Capability.DISK_FILES,
    }
)
"""The capabilities that no job asks for, because every job wants them: what is promised of `Limits`, and isolation."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs a job in a fresh place that nothing survives."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Of `Capability`; others may be added. Valid after `start`, before that perhaps less. Nothing is claimed that
        this host does not hold."""
        ...

    def probe(self) -> list[Probe]:
        """Blocking: every property the sandbox needs, each tried by doing it (`skillery doctor`)."""
        ...

    async def start(self) -> None:
        """Get ready; nothing where it is ready. Raises SandboxUnavailable where this host cannot enforce what is
        promised."""
        ...

    async def run(self, job: Job, host: RunHost) -> Outcome:
        """Never raises for what the code does. A fault of the host is a Failure of type SandboxError.
        Cancelling it kills the run and waits until nothing of it is left."""
        ...

    async def close(self) -> None: ...


# -- how a plugin offers a backend -------------------------------------------------------------------------------


@runtime_checkable
class Measured(Protocol):
    """A Sandbox that has figures of its own for `/metrics`."""

    def figures(self) -> Mapping[str, float]:
        """By name in snake_case: few, and always the same ones."""
        ...


class Warm(msgspec.Struct, frozen=True):
    """A process that a sandbox keeps, which has imported `Job.preload` of the packages of one lock."""

    lock: str
    preload: tuple[str, ...]
    state: Literal["starting", "ready", "failed"]
    memory_mb: float = 0.0
    """What it holds, shared by the runs that come of it."""
    message: str = ""
    """Why it failed: runs import for themselves then."""


@runtime_checkable
class KeepsWarm(Protocol):
    """A Sandbox that keeps processes with preloaded packages."""

    def warm(self) -> list[Warm]:
        """Those that there are, and those that failed of late."""
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For a backend without settings of its own."""


class Place(msgspec.Struct, frozen=True):
    """Where a backend may keep things."""

    home: Path
    """Lasting; a backend uses a folder of its own name in it."""
    allow_degraded: bool = False
    database: Any = None
    """The server's own database (skillery.database.Database), migrated before its first use. For built-in backends: its
    tables may change with every release."""


class Offer(msgspec.Struct, frozen=True):
    """A backend that a plugin offers under a name; the settings choose it by that name.

    `open(settings, place)` makes it; `settings` is a frozen msgspec Struct that forbids unknown fields, filled from
    the section `[backends.<kind>.<name>]` of skillery.toml and checked at start.
    """

    name: str
    open: Callable[[Any, Place], Any]
    settings: type[msgspec.Struct] = NoSettings
    unsafe: bool = False
    """True: it does not isolate, and is refused unless `allow_unsafe_sandbox` is set."""


# -- moments -----------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """What a check says about a version. Severity `error` refuses it, unless a reviewer has waived the rule there."""

    rule: str
    message: str
    severity: Literal["error", "warning", "info"] = "error"
    file: str | None = None
    line: int | None = None


class PublishedFile(msgspec.Struct, frozen=True):
    path: str
    content: bytes
    executable: bool = False


class Publication(msgspec.Struct, frozen=True):
    """A version on its way in (`before_publish`) or just published (`after_publish`)."""

    name: str
    version: str
    digest: str
    manifest: Mapping[str, Any]
    files: tuple[PublishedFile, ...]
    identity: Identity


class FinishedRun(msgspec.Struct, frozen=True):
    """For `run_finished`: what became of a run."""

    run_id: str
    method: Literal["execute_skill", "run_code", "call_tool"]
    status: Literal["completed", "failed"]
    skill: str | None
    version: str | None
    duration_ms: float
    error_type: str | None
    identity: Identity
    parent_run_id: str | None = None
    """The run whose code called it, where it was mounted there."""
    tool: str | None = None
    """The tool that `call_tool` called."""


class Events(Protocol):
    """The three moments as the core sees them: it asks, and knows nothing of who listens."""

    async def before_publish(self, publication: Publication) -> list[Finding]: ...

    async def after_publish(self, publication: Publication) -> None: ...

    async def run_finished(self, run: FinishedRun) -> None: ...
