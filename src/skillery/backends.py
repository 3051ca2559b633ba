"""The interface of backends and plugins: four Protocols, and the immutable values that they exchange.

Plugin packages import only these modules of Skillery: this one, `skillery.errors`, `skillery.hookimpl`,
`skillery.sandboxing` (parts of sandboxes) and `skillery.testing`.
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
    """The identity of a caller. `namespaces` are grants: `sales.*` covers names that start with `sales.`, `*` covers
    all names.
    """

    name: str
    kind: Literal["person", "agent"] = "person"
    scopes: frozenset[Scope] = frozenset()
    namespaces: tuple[str, ...] = ()


class Credentials(msgspec.Struct, frozen=True):
    """The data by which an authenticator identifies the sender: request headers by lower-case name, and network
    address.
    """

    headers: Mapping[str, str]
    address: str


@runtime_checkable
class Authenticator(Protocol):
    loopback_only: bool
    """True if the server may only listen on loopback addresses, because the backend accepts any client."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the caller. Raise NotAuthenticated if the credentials are missing or invalid."""
        ...


@runtime_checkable
class KeepsTokens(Protocol):
    """An Authenticator that accepts the tokens of the registry."""

    def forget(self) -> None:
        """Forget all remembered tokens, because an admin revoked a token."""
        ...

    def first_token(self) -> str | None:
        """Return a new admin token if the settings ask for one and no token was ever made; otherwise None. Blocking."""
        ...


class VerifiedToken(msgspec.Struct, frozen=True):
    """A valid token of the registry."""

    token_id: str
    identity: Identity
    expires_at: datetime | None
    """None if the token never expires."""


class Tokens(Protocol):
    """The tokens of the registry, which admins create with `create_token`. Backends get this object as
    `Place.tokens`.
    """

    async def verify(self, token: str) -> VerifiedToken:
        """Return the identity and the expiry of a token.

        Raise NotAuthenticated with a message for the caller, Unavailable if the database cannot be reached. Each call
        reads
        the registry. An authenticator may remember a result for a second; a revocation then calls `KeepsTokens.forget`.
        """
        ...

    async def note_use(self, token_id: str) -> None:
        """Record that the token is used now. The time is written at most once a minute."""
        ...

    def first_token(self) -> str | None:
        """Create an admin token and return its text; None if the registry ever had a token. Blocking.

        If several servers start at the same time, one of them gets the token.
        """
        ...


# -- contents by digest ------------------------------------------------------------------------------------------


class Upload(Protocol):
    """A content that is being stored. Readers do not see the content before `commit`.

    After a crash, temporary files may be left. The next start removes them.
    """

    def write(self, chunk: bytes) -> None: ...

    def commit(self, digest: str) -> None:
        """Make the content durable, and visible under `digest`: 64 hex digits of SHA-256, which the caller computed."""
        ...

    def abort(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Immutable contents by their SHA-256. Blocking: several worker threads call the methods at the same time.

    If the disk is full, methods raise StorageFull and store nothing.
    """

    def begin(self) -> Upload: ...

    def open(self, digest: str) -> BinaryIO:
        """Return a seekable stream of the content. Raise ContentMissing if the storage does not have it."""
        ...

    def local_path(self, digest: str) -> Path | None:
        """Return the path of a read-only file with the content on this machine; None if the storage has no such
        file.
        """
        ...

    def delete(self, digest: str) -> None:
        """Delete the content. Do nothing if the storage does not have the content.

        During the call, no transaction is open and no upload of the same content is active. If the call raises an
        exception,
        the server repeats the call later.
        """
        ...

    def check(self) -> None:
        """Raise an exception if the storage is unusable now."""
        ...


@runtime_checkable
class ListsContents(Protocol):
    """A Storage that can list its contents. Without this list, files of a killed server are never removed."""

    def stored_before(self, moment: datetime) -> Iterator[tuple[str, int]]:
        """Yield the digest and the size in bytes of every content stored before `moment`, in any order.

        Contents that are stored or deleted during the call may be yielded or not.
        """
        ...


@runtime_checkable
class KnowsRegistry(Protocol):
    """A Storage with a mark of the registry that it belongs to, so that a server detects the storage of another
    registry.
    """

    def mark(self, made: str) -> str:
        """Return the mark of the storage. A storage without a mark gets the mark `made`.

        If several servers call at the same time, one mark is set, and all get this mark.
        """
        ...

    def find_mark(self) -> str | None: ...


# -- values that a backend keeps ---------------------------------------------------------------------------------


class Transaction(Protocol):
    """An open transaction of the registry's database. A backend only passes this object to `Values`."""


class Values(Protocol):
    """Small values by key in the registry's database, for example sessions, keys and cached answers.

    Backends get this object as `Place.values`. Each backend has separate keys, which all servers of a database share.
    Blocking: use `asyncio.to_thread` in a coroutine. A key has 1 to 255 characters, a value at most 1 MiB; otherwise
    ValueError is raised. From `expires_at` on, the value does not exist. Every method raises Unavailable if the
    database
    cannot be reached.
    """

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with this prefix, sorted by their bytes."""
        ...

    def set(
        self, key: str, value: bytes, expires_at: datetime | None = None, within: Transaction | None = None
    ) -> bool:
        """Store a value under a key, and replace the earlier value. Return whether there was an earlier value.

        With `within`, the change is a part of this transaction.
        """
        ...

    def add(self, key: str, value: bytes, expires_at: datetime | None = None) -> bytes:
        """Store a value if the key has no value. Return the value that the key has after the call.

        If several servers add a value at the same time, one value is stored, and all servers get this value.
        """
        ...

    def take(self, key: str, within: Transaction | None = None) -> bytes | None:
        """Remove the value and return it; None if there is no value. If several callers take it at once, only one
        gets it.
        """
        ...


# -- secrets -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Secrets(Protocol):
    """Secret values by name. Blocking: several worker threads call the methods at the same time.

    Exceptions and log lines of a backend never contain a value. A backend that cannot be reached raises Unavailable.
    """

    read_only: bool
    """True if values are set outside of Skillery. Then `set` and `remove` raise NotAllowed, with a hint that says
    where.
    """

    def get(self, name: str) -> str | None:
        """Return the value of a secret; None if the secret has no value."""
        ...

    def names(self) -> list[str]:
        """Return the sorted names of all secrets with a value."""
        ...

    def set(self, name: str, value: str) -> None:
        """Set the value of a secret, and replace the earlier value."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the value of a secret. Return whether there was a value."""
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A Secrets that keeps its values in `Place.values`. Then a change and its audit entry are one transaction.

    Both methods block. The returned functions are called inside the transaction of the audit entry.
    """

    def setting(self, name: str, value: str) -> Callable[[Transaction], bool]:
        """Return a function that sets the value in a transaction, and returns whether there was an earlier value."""
        ...

    def removing(self, name: str) -> Callable[[Transaction], bool]:
        """Return a function that removes the value in a transaction, and returns whether there was a value."""
        ...


class SecretValues(dict[str, str]):
    """Secret values of a run by name. The repr shows only the names."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


# -- runs --------------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """The limits of one run. They hold for all processes of the run together."""

    timeout_ms: int = 300_000
    """Wall-clock time from the start of the code. Time in the queue does not count."""
    memory_mb: int = 512
    processes: int = 64
    """Number of processes and threads."""
    cpus: float = 1.0
    disk_mb: int = 256
    """Size of `/workspace`."""
    disk_files: int = 16_384
    tmp_mb: int = 64
    """Size of `/tmp`."""
    blobs: int = 1_000
    blobs_mb: int = 256
    calls: int = 100
    """Number of calls to mounted skills that run in separate sandboxes."""
    log_kb: int = 1_024
    """Size of the log that is kept. Further output is counted, dropped, and does not slow down the code."""
    result_mb: int = 16
    callbacks_per_second: int = 8_000
    """Requests of the code to the server, for example for blobs and calls. Code with more requests waits."""


class SkillMount(msgspec.Struct, frozen=True):
    """A skill that is mounted read-only at `/skills/<name>/`."""

    name: str
    folder: Path
    """The folder with the skill's files on this machine: immutable, complete, shared between runs."""
    entrypoint: str | None = None
    """Path of the entrypoint inside the skill (`code/main.py`). The code imports it as `skills.<name>`. None if the
    skill can
    only be read.
    """
    stub: bool = False
    """True if the skill declares permissions that this run does not have. Importing a stub runs no code of the skill
    and adds
    no folder to `sys.path`. Its functions are proxies that call `RunHost.call_skill`.
    """


class BlobMount(msgspec.Struct, frozen=True):
    """A blob that is mounted read-only at `/blobs/<blob_id>`."""

    blob_id: str
    path: Path
    """The file with the content on this machine."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the sandbox copies to `/workspace/<path>` before the code starts. The run may change the copy."""

    path: str
    """A valid bundle path (see `formats.paths`)."""
    source: Path
    """The file with the content on this machine."""
    size_bytes: int
    executable: bool = False


class PackageMount(msgspec.Struct, frozen=True, weakref=True):
    """Installed packages, mounted read-only at `/packages/<lock>/`.

    Python finds them after the standard library and before skills. The folder stays on disk as long as this object is
    referenced, so a sandbox must keep a reference while the folder is mounted.
    """

    lock: str
    """SHA-256 of the lock in 64 hex digits. The same lock means the same packages on every server."""
    folder: Path
    """The folder with the packages: immutable, complete, shared between runs."""


class SkillCall(msgspec.Struct, frozen=True, tag="skill"):
    """Import the entrypoint of the mounted skill `skill` and call `function(args)`."""

    skill: str
    function: str
    spread: bool = False
    """If True, call `function(*args, **kwargs)` with the two members of the job's `args`. Only functions that a stub of
    this
    skill offers can be called. Another name raises AttributeError before any code of the skill runs.
    """


Language = Literal["python", "javascript", "bash"]


class CodeCall(msgspec.Struct, frozen=True, tag="code"):
    """Call `function(args)` in `code`, a Python module or an ES module (`javascript`).

    `bash` code has no functions. It gets the args on stdin, and its stdout is the result.
    """

    code: str
    function: str
    language: Language = "python"


class HandlerCall(msgspec.Struct, frozen=True, tag="handler"):
    """Run the file `path` of the mounted skill `skill` with the args, as a handler of Skill Tools.

    `.js` and `.mjs` files have the handler as their default export, `.py` files as the function `handler`. A `.py` file
    without this function, and any other file, is a program: it gets the args on stdin and as an argument, and its
    stdout
    is the result. The backend sets the arg `__workDir`.
    """

    skill: str
    path: str


class ScriptCall(msgspec.Struct, frozen=True, tag="script"):
    """Run the file `path` of the mounted skill `skill` as a program. Its suffix or its `#!` line selects the
    interpreter.

    The result is an object:

    - `exit_code`: 128 plus the signal number after a signal.
    - `stdout`, `stderr`: text. Over 64 KiB, an object `{"blob_id", "size_bytes", "preview"}`, which also has
      `dropped_bytes` if the stream exceeds the limit of a result.
    - `files`: at most 100 files below /workspace/out, each `{"path", "blob_id", "size_bytes"}`. `left_out` has the
      names of
      further files.

    If an argument or a variable is a path in /workspace/out, this folder exists before the program starts. A run fails
    only
    if the program cannot be started or is stopped. The log also contains the output of the program.
    """

    skill: str
    path: str
    argv: tuple[str, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    """Variables in addition to those of the job."""
    module: str = ""
    """If not "", run this module of the skill as `python -m` does. `path` is the file of the module."""
    in_skill: bool = False
    """If True, start in the read-only folder of the skill instead of `/workspace`."""


Call = SkillCall | CodeCall | HandlerCall | ScriptCall


class Job(msgspec.Struct, frozen=True):
    """One run, as the sandbox backend gets it."""

    run_id: str
    call: Call
    args: bytes
    """The args as a JSON object."""
    skills: tuple[SkillMount, ...] = ()
    """The skills to mount, in this order. An executed skill is the first."""
    blobs: tuple[BlobMount, ...] = ()
    limits: Limits = Limits()
    environment: Mapping[str, str] = {}
    """Variables in addition to those of the sandbox, for example secrets. The backend must not log their values, and no
    other
    process may be able to read them.
    """
    network: tuple[str, ...] = ()
    """The hosts that the code may connect to, in the notation of `permissions.network`. Empty means no network."""
    packages: tuple[PackageMount, ...] = ()
    """The packages on `sys.path`, in this order. No two of them contain the same file."""
    preload: tuple[str, ...] = ()
    """Modules from the first entry of `packages` that a backend may import before the run starts. Each module must
    behave as if
    the code imported it first. Preloading is optional.
    """
    private_network: bool = False
    """True if an admin named the hosts of `network`. Such hosts may have private addresses, and addresses of this
    machine.
    """
    identity: str = ""
    """Name of the identity that requested the run; "" for work of the server. A backend divides resources between
    identities
    by this name. The code does not see it.
    """
    files: tuple[InputFile, ...] = ()
    """Files that the sandbox copies to `/workspace` before the code starts. They count towards `disk_mb` and
    `disk_files`. If a
    file does not fit, the run fails with a SandboxError that names the file, and no code runs.
    """


class Failure(msgspec.Struct, frozen=True):
    """The reason why a run failed. `type` is a `FailureType`, or the class name of the exception that the code
    raised.
    """

    type: str
    message: str
    traceback: str = ""
    """Frames of user code only."""


class Log(msgspec.Struct, frozen=True):
    """The log of a run: stdout, stderr and `runtime.log` in the order of writing. Of a long log, only the start and the
    end
    are kept.
    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Number of bytes between `head` and `tail` that were dropped."""


class Progress(msgspec.Struct, frozen=True):
    """The progress that the code of a run reported with `runtime.progress`."""

    done: float
    total: float | None = None
    """None if the code does not know the total."""
    text: str = ""


class NetworkUse(msgspec.Struct, frozen=True):
    """The connections of a run to one target with one outcome."""

    host: str
    """The requested host. A text that is not a host name is escaped and cut."""
    port: int
    allowed: bool
    reason: str
    """The pattern that allowed the connections, or the reason for the refusal."""
    connections: int = 1
    bytes_out: int = 0
    """Bytes from the code to the host."""
    bytes_in: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a run. Exactly one of `result` and `failure` is set."""

    result: bytes | None = None
    """The returned value as compact JSON in UTF-8."""
    failure: Failure | None = None
    summary: str | None = None
    """The text that the code set with `runtime.summary(text)`."""
    log: Log = Log()
    duration_ms: float = 0.0
    degraded: tuple[str, ...] = ()
    """Limits that this host enforces less strictly than other hosts, such as `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every allowed and every refused connection, grouped by target and outcome."""


class BlobWriter(Protocol):
    """A blob that a run is writing."""

    async def write(self, chunk: bytes) -> None:
        """Write a chunk. Raise TooLarge if the run exceeds its limit."""
        ...

    async def commit(self) -> str:
        """Store the blob. Return its id."""
        ...

    async def abort(self) -> None: ...


class RunHost(Protocol):
    """The requests that the code in a sandbox can make to the server.

    If a method raises a SkilleryError, the code gets an exception. The run and the server continue.
    """

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        """Start a blob. `path` is untrusted: a path below /workspace/out or the name of a picture, chosen by the
        code.
        """
        ...

    async def read_blob(self, blob_id: str) -> bytes:
        """Return the content of a blob that this run wrote. Raise BlobNotFound for every other id."""
        ...

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill that this run mounts as a stub. Return the JSON of its return value.

        The function runs in a separate sandbox with the permissions of its skill. `args` is the JSON
        `{"args": [...], "kwargs": {...}}`. Raise SkillFailed if the function failed, another SkilleryError if it could
        not be
        called. If this coroutine is cancelled, the call ends.
        """
        ...


@runtime_checkable
class StreamsBlobs(Protocol):
    """A RunHost that reads blobs in pieces. With other hosts, a blob that the code requests is in memory as a whole."""

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return the size in bytes of a blob that this run wrote, and an iterator over its content.

        Raise BlobNotFound for every other id.
        """
        ...


@runtime_checkable
class FollowsLog(Protocol):
    """A RunHost that gets the log while the code runs.

    A sandbox that passes the log to such a host leaves `Outcome.log` empty. A sandbox may also pass nothing: then the
    log
    is visible only after the run has ended.
    """

    def printed(self, piece: bytes) -> None:
        """Add the next bytes of stdout, stderr or `runtime.log`. The method must return at once and never raise."""
        ...


@runtime_checkable
class FollowsProgress(Protocol):
    """A RunHost that gets the progress of the code."""

    def progressed(self, progress: Progress) -> None:
        """Record the progress that the code reported last. The method must return at once and never raise."""
        ...


class Probe(msgspec.Struct, frozen=True):
    """One property that a backend needs, and the result of testing it."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """How to fix the property if `ok` is False."""
    required: bool = True
    """False if runs are safe without the property, but `degraded`."""


class Capability(StrEnum):
    """A feature or a guarantee of a sandbox.

    A run that needs a missing feature is refused, and the error names the capability. If a guarantee (LIMITS) is
    missing,
    `degraded` of every run lists it.
    """

    PYTHON = "python"
    """Runs Python: the entrypoints of skills, and the code of `run_code`."""
    JAVASCRIPT = "javascript"
    """Runs JavaScript, if the host has Node.js."""
    BASH = "bash"
    """Runs bash, if the host has bash."""
    BLOBS = "blobs"
    """Mounts the input blobs of a run as files."""
    FILES = "files"
    """Copies `Job.files` to the workspace of the run."""
    SECRETS = "secrets"
    """Passes environment variables to the code without an argument or a file that other processes could read."""
    NETWORK = "network"
    """Lets the code connect to the hosts of `Job.network`."""
    PACKAGES = "packages"
    """Mounts installed packages (`Job.packages`), and hides the packages of the host."""
    STUBS = "stubs"
    """Lets the code call skills in other sandboxes (`SkillMount.stub`) by `RunHost.call_skill`."""

    ISOLATION = "isolation"
    """Gives the code access only to the parts of the host that its job names."""
    MEMORY_TREE = "memory_tree"
    """Enforces `memory_mb` for all processes of a run together and at all times, not by occasional checks."""
    PROCESSES = "processes"
    """Enforces `processes`, including threads."""
    CPUS = "cpus"
    """Enforces `cpus`."""
    DISK = "disk"
    """Enforces `disk_mb` and `tmp_mb`."""
    DISK_FILES = "disk_files"
    """Enforces `disk_files`."""


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
"""The capabilities that every job needs: isolation and enforced limits."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs each job in a new environment that is destroyed afterwards."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the sandbox on this host: values of `Capability`, and possibly others.

        The set is complete after `start` has returned.
        """
        ...

    def probe(self) -> list[Probe]:
        """Test every property that the sandbox needs (`skillery doctor`). Blocking."""
        ...

    async def start(self) -> None:
        """Prepare for runs. A second call does nothing.

        Raise SandboxUnavailable if this host cannot enforce what the sandbox promises.
        """
        ...

    async def run(self, job: Job, host: RunHost) -> Outcome:
        """Run the job and return its outcome.

        The method never raises an exception because of the code. A fault of the host is a Failure of the type
        SandboxError. If
        the coroutine is cancelled, it kills the run and returns when all processes of the run have ended.
        """
        ...

    async def close(self) -> None: ...


# -- how a plugin offers a backend -------------------------------------------------------------------------------


@runtime_checkable
class Measured(Protocol):
    """A Sandbox that has figures for `/metrics`."""

    def figures(self) -> Mapping[str, float]:
        """Return some figures by snake_case name. Every call returns the same names."""
        ...


class Warm(msgspec.Struct, frozen=True):
    """A process that has imported the modules of `Job.preload` for one lock. The sandbox keeps it for later runs."""

    lock: str
    preload: tuple[str, ...]
    state: Literal["starting", "ready", "failed"]
    memory_mb: float = 0.0
    """Memory of the process, which the runs forked from it share."""
    message: str = ""
    """The reason why the process could not start; "" if it runs. Runs then import the modules themselves."""


@runtime_checkable
class KeepsWarm(Protocol):
    """A Sandbox that keeps processes with imported packages."""

    def warm(self) -> list[Warm]:
        """Return the processes that are kept, and those that failed recently."""
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a backend without settings."""


class Place(msgspec.Struct, frozen=True):
    """The home folder and the services that a server gives to a backend when it opens the backend."""

    home: Path
    """The folder with the server's data. A backend stores its files in a subfolder with the name of the backend."""
    allow_degraded: bool = False
    values: Values | None = None
    """The backend's values in the registry's database. None if the backend is opened without a database, for example by
    `skillery doctor`. A backend must not use them before `open` has returned, because the database may not be migrated
    yet.
    """
    tokens: Tokens | None = None
    """The tokens of the registry, for authenticators. None if the backend is opened without a database."""


class Offer(msgspec.Struct, frozen=True):
    """A backend that a plugin offers. The settings choose the backend by its name.

    `open(settings, place)` creates the backend. `settings` is an immutable msgspec Struct that forbids unknown fields.
    The
    server fills it from the section `[backends.<kind>.<name>]` of skillery.toml, and checks it at start.
    """

    name: str
    open: Callable[[Any, Place], Any]
    settings: type[msgspec.Struct] = NoSettings
    unsafe: bool = False
    """True if the backend does not isolate runs. The server refuses it unless `allow_unsafe_sandbox` is true."""


# -- events ------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """A result of a check. Severity `error` refuses the version, unless a reviewer has waived the rule for the
    version.
    """

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
    """A version that will be published (`before_publish`) or was just published (`after_publish`)."""

    name: str
    version: str
    digest: str
    manifest: Mapping[str, Any]
    files: tuple[PublishedFile, ...]
    identity: Identity


class FinishedRun(msgspec.Struct, frozen=True):
    """A run that has ended, for the hook `run_finished`."""

    run_id: str
    method: Literal["execute_skill", "run_code", "call_tool"]
    status: Literal["completed", "failed"]
    skill: str | None
    version: str | None
    duration_ms: float
    error_type: str | None
    identity: Identity
    parent_run_id: str | None = None
    """Id of the run whose code called this run; None for a run that a caller requested."""
    tool: str | None = None
    """Name of the tool that `call_tool` called; None for other runs."""


class Events(Protocol):
    """The events that the core reports. The core does not know the plugins behind them."""

    async def before_publish(self, publication: Publication) -> list[Finding]: ...

    async def after_publish(self, publication: Publication) -> None: ...

    async def run_finished(self, run: FinishedRun) -> None: ...
