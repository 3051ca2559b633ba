"""The interface of backends and plugins: four Protocols, and the frozen values that they exchange.

Plugin packages import this module, `skillery.errors`, `skillery.hookimpl`, `skillery.sandboxing` (parts of sandboxes)
and `skillery.testing`, and nothing else of Skillery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
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
    """The caller. `namespaces` are grants: `sales.*` covers every name that starts with `sales.`, `*` covers all."""

    name: str
    kind: Literal["person", "agent"] = "person"
    scopes: frozenset[Scope] = frozenset()
    namespaces: tuple[str, ...] = ()


class Credentials(msgspec.Struct, frozen=True):
    """The data of a request that identify its sender: the headers by lower-case name, and the network address."""

    headers: Mapping[str, str]
    address: str


@runtime_checkable
class Authenticator(Protocol):
    loopback_only: bool
    """True: serve on loopback addresses only, because any client that can connect is accepted."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the caller. Raises NotAuthenticated."""
        ...


@runtime_checkable
class KeepsTokens(Protocol):
    """An Authenticator that accepts tokens of the registry."""

    def forget(self) -> None:
        """Forget remembered tokens, because one was revoked."""
        ...

    def first_token(self) -> str | None:
        """Return a new admin token if no token was ever made and the settings ask for one, else None. Blocking."""
        ...


class VerifiedToken(msgspec.Struct, frozen=True):
    """A token of the registry that is valid now."""

    token_id: str
    identity: Identity
    expires_at: datetime | None
    """None: the token never expires."""


class Tokens(Protocol):
    """The tokens of the registry, which admins make with `create_token`. `Place.tokens` has them."""

    async def verify(self, token: str) -> VerifiedToken:
        """Return whose token it is. Raises NotAuthenticated with a message for the caller, and Unavailable.

        The registry is asked each time. An authenticator may remember the answer for a second, and has `forget`
        (`KeepsTokens`) for revocations.
        """
        ...

    async def note_use(self, token_id: str) -> None:
        """Note that the token is used now, at most once a minute."""
        ...

    def first_token(self) -> str | None:
        """Make an admin token and return its text, or return None if there was ever a token. Blocking.

        If several servers start at once, one of them gets the token.
        """
        ...


# -- contents by digest ------------------------------------------------------------------------------------------


class Upload(Protocol):
    """A content that is being stored. It is not visible before `commit`. After a crash, only temporary files are left,
    which the next start removes.
    """

    def write(self, chunk: bytes) -> None: ...

    def commit(self, digest: str) -> None:
        """Make the content durable and visible under `digest`: 64 hex digits of SHA-256, computed by the caller."""
        ...

    def abort(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Immutable contents by their SHA-256. Blocking: several worker threads call the methods at once.

    If the disk is full, methods raise StorageFull and store nothing.
    """

    def begin(self) -> Upload: ...

    def open(self, digest: str) -> BinaryIO:
        """Return a seekable stream of the content. Raises ContentMissing."""
        ...

    def local_path(self, digest: str) -> Path | None:
        """Return the content as a read-only file of this machine, or None if there is no such file."""
        ...

    def delete(self, digest: str) -> None:
        """Delete the content. Deleting a missing content is not an error.

        No transaction is open during the call, and no upload of the same content. If the call raises, it is
        repeated later.
        """
        ...

    def check(self) -> None:
        """Raise if the storage cannot be used now."""
        ...


@runtime_checkable
class ListsContents(Protocol):
    """A Storage that lists its contents. From other storages, files that a killed server left are never removed."""

    def stored_before(self, moment: datetime) -> Iterator[tuple[str, int]]:
        """Yield digest and size in bytes of every content stored before, in any order. Contents that are stored or
        deleted during the call may be yielded or not.
        """
        ...


@runtime_checkable
class KnowsRegistry(Protocol):
    """A Storage that can be marked as belonging to one registry, so that a server with another storage notices."""

    def mark(self, made: str) -> str:
        """Return the mark of the storage. If it has none, set `made`. Of several servers at once, one sets its mark."""
        ...

    def find_mark(self) -> str | None: ...


# -- values that a backend keeps ---------------------------------------------------------------------------------


class Transaction(Protocol):
    """An open transaction of the registry's database. A backend only passes it on to `Values`."""


class Values(Protocol):
    """Small values by key in the registry's database: sessions, keys, cached answers. `Place.values` has them.

    Each backend has its own keys, and all servers of one database share them. Blocking: from a coroutine, call with
    `asyncio.to_thread`. A key has 1 to 255 characters, a value at most 1 MiB; ValueError otherwise. `expires_at` is
    the time from which the value no longer exists. Every method raises Unavailable if the database cannot be reached.
    """

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, sorted by their bytes."""
        ...

    def set(
        self, key: str, value: bytes, expires_at: datetime | None = None, within: Transaction | None = None
    ) -> bool:
        """Store a value in place of the one before, if any. Return whether there was one.

        With `within` the change is a part of that transaction.
        """
        ...

    def add(self, key: str, value: bytes, expires_at: datetime | None = None) -> bytes:
        """Store a value if the key has none. Return the value that the key has now.

        Of several servers that add at once, one stores its value, and all of them get that one.
        """
        ...

    def take(self, key: str, within: Transaction | None = None) -> bytes | None:
        """Remove the value and return it. Of several callers at once, one gets it and the others get None."""
        ...


# -- secrets -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Secrets(Protocol):
    """Secret values by name, for skills that were granted them. Blocking: several worker threads call the methods at
    once.

    No exception and no log line of a backend holds a value. A backend that cannot be reached raises Unavailable.
    """

    read_only: bool
    """True: values are set elsewhere. `set` and `remove` raise NotAllowed with a hint that says where."""

    def get(self, name: str) -> str | None:
        """Return the value, or None if there is none."""
        ...

    def names(self) -> list[str]:
        """Return all names that have a value, sorted."""
        ...

    def set(self, name: str, value: str) -> None:
        """Set a value in place of the one before, if any."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the value. Return whether there was one."""
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A Secrets that keeps its values in `Place.values`, so that a change and its audit entry are one transaction.

    Both methods block. The functions that they return are called within the transaction of the audit entry.
    """

    def setting(self, name: str, value: str) -> Callable[[Transaction], bool]:
        """Return a function that sets the value in a transaction, and returns whether there was a value before."""
        ...

    def removing(self, name: str) -> Callable[[Transaction], bool]:
        """Return a function that removes the value in a transaction, and returns whether there was a value."""
        ...


class SecretValues(dict[str, str]):
    """Secret values by name, for a run. Printing the mapping shows only the names."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


# -- runs --------------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """Limits of one run, for its whole process tree."""

    timeout_ms: int = 300_000
    """Wall-clock time from the start of the code, without the time in the queue."""
    memory_mb: int = 512
    processes: int = 64
    """Processes and threads."""
    cpus: float = 1.0
    disk_mb: int = 256
    """Size of `/workspace`."""
    disk_files: int = 16_384
    tmp_mb: int = 64
    """Size of `/tmp`."""
    blobs: int = 1_000
    blobs_mb: int = 256
    calls: int = 100
    """Calls of mounted skills that run in separate sandboxes."""
    log_kb: int = 1_024
    """Kept size of the log. The rest is counted and never slows the code."""
    result_mb: int = 16
    callbacks_per_second: int = 8_000
    """Requests of the code to its host: blobs, calls. Faster code waits."""


class SkillMount(msgspec.Struct, frozen=True):
    """A skill at `/skills/<name>/`, read-only."""

    name: str
    folder: Path
    """Files of the skill on this machine: immutable, complete, shared between runs."""
    entrypoint: str | None = None
    """Path of the entrypoint inside the skill (`code/main.py`), importable as `skills.<name>`. None for a skill that
    can only be read.
    """
    stub: bool = False
    """The skill declares permissions that this run does not have. Importing it runs none of its code and adds no folder
    to `sys.path`. Its functions are proxies that call `RunHost.call_skill`.
    """


class BlobMount(msgspec.Struct, frozen=True):
    """A blob at `/blobs/<blob_id>`, read-only."""

    blob_id: str
    path: Path
    """The content on this machine."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the sandbox copies to `/workspace/<path>` before the code starts. The run owns the copy."""

    path: str
    """A checked bundle path (`formats.paths`)."""
    source: Path
    """The content on this machine."""
    size_bytes: int
    executable: bool = False


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    """A file, an empty folder or a symbolic link of a workspace."""

    path: str
    """Below `/workspace`. Valid UTF-8 without control characters."""
    mode: Literal["100644", "100755", "040000", "120000"]
    """As in git: a file, an executable file, an empty folder, a symbolic link."""
    sha256: str
    """Of the content; of the target for a link; of nothing for a folder."""
    size_bytes: int = 0
    mtime_ns: int = 0
    target: str = ""
    """The target of a link: any text."""

    @property
    def is_file(self) -> bool:
        return self.mode.startswith("1006") or self.mode.startswith("1007")


class Workspace(msgspec.Struct, frozen=True):
    """What is in `/workspace` when the code starts, and whether it is saved when the run has ended.

    `HOME` is then an empty folder outside the workspace, and no interpreter imports from the workspace by itself.
    """

    files: tuple[KeptFile, ...]
    contents: Callable[[], AsyncIterator[bytes]]
    """Yields the contents of all files of `files`, one after the other, in pieces of any size."""
    saves: bool = True
    """Whether a host that keeps workspaces (`KeepsWorkspace`) gets the files at the end, however the run ends."""


class PackageMount(msgspec.Struct, frozen=True, weakref=True):
    """Installed packages at `/packages/<lock>/`, read-only, importable after the standard library and before skills.

    The folder stays while this very object is referenced. Code that mounts it keeps a reference.
    """

    lock: str
    """SHA-256 of the lock in 64 hex digits. Equal locks are the same packages everywhere."""
    folder: Path
    """Immutable, complete, shared between runs."""


class SkillCall(msgspec.Struct, frozen=True, tag="skill"):
    """Import the entrypoint of the mounted skill `skill` and call `function(args)`."""

    skill: str
    function: str
    spread: bool = False
    """Call `function(*args, **kwargs)` with the two members of the job's `args`. Only functions that a stub of this
    skill offers may be called. Any other name is an AttributeError, before code of the skill has run.
    """


Language = Literal["python", "javascript", "bash"]


class CodeCall(msgspec.Struct, frozen=True, tag="code"):
    """Call `function(args)` of `code`: a Python module, or an ES module (`javascript`).

    `bash` code has no functions. It runs with the args on stdin, and its stdout is the result.
    """

    code: str
    function: str
    language: Language = "python"


class HandlerCall(msgspec.Struct, frozen=True, tag="handler"):
    """Run the file `path` of the mounted skill `skill` with the args, as a handler of the Skill Tools convention.

    `.js` and `.mjs`: the default export. `.py`: the function `handler`, if the module defines it. Any other file is
    a program with the args on stdin and as its argument; its stdout is the result. A backend sets the arg
    `__workDir`.
    """

    skill: str
    path: str


class ScriptCall(msgspec.Struct, frozen=True, tag="script"):
    """Run the file `path` of the mounted skill `skill` as a program, chosen by its suffix or its `#!` line.

    The result is an object with `exit_code` (128 plus the signal number after a signal), `stdout` and `stderr`
    (text; over 64 KiB `{"blob_id", "size_bytes", "preview"}`, and `dropped_bytes` past the limit of a result), and
    `files`: at most 100 files below /workspace/out, each `{"path", "blob_id", "size_bytes"}`. `left_out` names
    further files.

    The folder /workspace/out exists before the program starts if an argument or a variable is a path in it. A run
    fails only if the program could not be started or was stopped. The log also holds what the program printed.
    """

    skill: str
    path: str
    argv: tuple[str, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    """In addition to the job's own variables."""
    module: str = ""
    """If set, run this module of the skill as `python -m` does; `path` is its file."""
    in_skill: bool = False
    """Start in the read-only folder of the skill instead of `/workspace`."""


Call = SkillCall | CodeCall | HandlerCall | ScriptCall


class Job(msgspec.Struct, frozen=True):
    """One run, as a sandbox gets it."""

    run_id: str
    call: Call
    args: bytes
    """A JSON object."""
    skills: tuple[SkillMount, ...] = ()
    """In the order of mounting. An executed skill comes first."""
    blobs: tuple[BlobMount, ...] = ()
    limits: Limits = Limits()
    environment: Mapping[str, str] = {}
    """Variables in addition to the sandbox's own (secrets). They must not be logged, nor be readable by another
    process.
    """
    network: tuple[str, ...] = ()
    """Hosts that the executed skill may reach, written as in `permissions.network`. Empty: none."""
    packages: tuple[PackageMount, ...] = ()
    """On `sys.path` in this order. Their files do not conflict."""
    preload: tuple[str, ...] = ()
    """Modules of the first of `packages` that a backend may import before the run arrives. The code must not notice:
    each module behaves as if the code imported it first. Preloading is optional.
    """
    private_network: bool = False
    """An admin of the server named the hosts of `network`. They may have addresses that are not public, of this machine
    too.
    """
    identity: str = ""
    """Name of the identity that requested the run, empty for the server's own work. A backend shares resources between
    identities by it. The code of the run does not see it.
    """
    files: tuple[InputFile, ...] = ()
    """Copied to `/workspace` before the code starts. They count towards `disk_mb` and `disk_files`. If a file does not
    fit, the run fails with a SandboxError that names it, and no code has run.
    """
    outputs: tuple[str, ...] = ()
    """Globs below `/workspace`: matching files are stored as blobs when the run ends, however it ends, like the files
    in `/workspace/out`. `*` is any part of a segment, `**` any number of folders.
    """
    workspace: Workspace | None = None
    """The kept files of the run. They count towards `disk_mb` and `disk_files`."""


class Failure(msgspec.Struct, frozen=True):
    """Why a run failed. `type` is a `FailureType`, or the class name of the exception that the code raised."""

    type: str
    message: str
    traceback: str = ""
    """Frames of user code only."""


class Log(msgspec.Struct, frozen=True):
    """stdout, stderr and `log` in the order of writing. A long log is reduced to its head and tail."""

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Bytes left out between head and tail."""


class Progress(msgspec.Struct, frozen=True):
    """How far the code of a run has come, as it says itself with `runtime.progress`."""

    done: float
    total: float | None = None
    """None if the code does not know it."""
    text: str = ""


class NetworkUse(msgspec.Struct, frozen=True):
    """Connections of a run with the same target and the same outcome."""

    host: str
    """Host as requested. Text that is not a host name is escaped and cut."""
    port: int
    allowed: bool
    reason: str
    """The pattern that allowed the connections, or why they were refused."""
    connections: int = 1
    bytes_out: int = 0
    """Bytes from the code to the host."""
    bytes_in: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended. Exactly one of `result` and `failure` is set."""

    result: bytes | None = None
    """Compact UTF-8 JSON of the returned value."""
    failure: Failure | None = None
    summary: str | None = None
    """The text that the code set with `runtime.summary(text)`."""
    log: Log = Log()
    duration_ms: float = 0.0
    degraded: tuple[str, ...] = ()
    """Limits that this host enforces less strictly than usual, such as `memory_tree`."""
    network: tuple[NetworkUse, ...] = ()
    """Every allowed or refused connection, grouped by target and outcome."""


class BlobWriter(Protocol):
    """A blob that a run is writing."""

    async def write(self, chunk: bytes) -> None:
        """Write a chunk. Raises TooLarge past the limit of the run."""
        ...

    async def commit(self) -> str:
        """Store the blob and return its id."""
        ...

    async def abort(self) -> None: ...


class RunHost(Protocol):
    """Requests of the code in a sandbox to its host.

    A SkilleryError that a method raises becomes an exception in the code. It ends neither the run nor the server.
    """

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        """Start a blob. `path` is the code's own name for it: a path below /workspace/out, or the name of a picture. It
        is untrusted.
        """
        ...

    async def read_blob(self, blob_id: str) -> bytes:
        """Return a blob that this run wrote. Raises BlobNotFound for every other id."""
        ...

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill that this run mounts as a stub. The function runs in a separate sandbox, with the
        permissions of its skill.

        `args` is the JSON `{"args": [...], "kwargs": {...}}`. Returns the JSON of the returned value. Raises
        SkillFailed if the function failed, and another SkilleryError if it was not called. Cancelling ends the
        call.
        """
        ...


@runtime_checkable
class StreamsBlobs(Protocol):
    """A RunHost that reads blobs in pieces. With other hosts, code that requests a blob and does not read it occupies
    memory.
    """

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return the size in bytes of a blob that this run wrote, and its content in pieces. Raises BlobNotFound for
        every other id.
        """
        ...


@runtime_checkable
class FollowsLog(Protocol):
    """A RunHost that gets the log while the code runs, and keeps it.

    A sandbox that passes the log to such a host leaves `Outcome.log` empty. A sandbox that does not is allowed: its log
    is shown when the run has ended.
    """

    def printed(self, piece: bytes) -> None:
        """Take the next bytes of stdout, stderr or `log`. Returns at once and never raises."""
        ...


@runtime_checkable
class KeepsWorkspace(Protocol):
    """A RunHost that saves the workspace of its run.

    The files come from a process in which no code of the run has ever been, after the run has ended.
    """

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        """Take the list of files, and the names of those that cannot be saved. Return the positions of the files whose
        contents are needed.
        """
        ...

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        """Take the contents of the needed files, one after the other. The workspace is then complete."""
        ...


@runtime_checkable
class FollowsProgress(Protocol):
    """A RunHost that is told how far the code has come."""

    def progressed(self, progress: Progress) -> None:
        """Take what the code said last. Returns at once and never raises."""
        ...


class Probe(msgspec.Struct, frozen=True):
    """One property that a backend needs, tested by using it."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """How to fix it if `ok` is false."""
    required: bool = True
    """False: without it, runs are `degraded`, but safe."""


class Capability(StrEnum):
    """A feature or a guarantee of a sandbox.

    If a run needs a feature that the backend does not have, the run is refused with the name of the capability. If a
    guarantee (LIMITS) is missing, `degraded` of every run lists it.
    """

    PYTHON = "python"
    """Runs Python: skills by their entrypoint, and the code of `run_code`."""
    JAVASCRIPT = "javascript"
    """Runs JavaScript, if the host has Node.js."""
    BASH = "bash"
    """Runs bash, if the host has it."""
    BLOBS = "blobs"
    """Shows the run its input blobs as files."""
    FILES = "files"
    """Copies `Job.files` to the workspace of the run."""
    OUTPUTS = "outputs"
    """Keeps the files that `Job.outputs` names, and those in `/workspace/out` also after a kill."""
    WORKSPACE = "workspace"
    """Fills `/workspace` from `Job.workspace` and passes its files to the host when the run has ended."""
    SECRETS = "secrets"
    """Passes variables to the code without an argument or a file, so that no other process can read them."""
    NETWORK = "network"
    """Lets the code reach the hosts of `Job.network`."""
    PACKAGES = "packages"
    """Shows the code installed packages (`Job.packages`), and no packages of the host."""
    STUBS = "stubs"
    """Lets the code call skills in other sandboxes (`SkillMount.stub`) by `RunHost.call_skill`."""

    ISOLATION = "isolation"
    """The code reaches nothing of the host except what its job gives it."""
    MEMORY_TREE = "memory_tree"
    """Enforces `memory_mb` for the whole process tree at all times, not by occasional checks."""
    PROCESSES = "processes"
    """Enforces `processes`, threads included."""
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
"""Capabilities that every job wants: enforced limits and isolation."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs each job in a new environment that is destroyed afterwards."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the sandbox on this host: values of `Capability`, and possibly others.

        The set is complete after `start`.
        """
        ...

    def probe(self) -> list[Probe]:
        """Test every property that the sandbox needs by using it (`skillery doctor`). Blocking."""
        ...

    async def start(self) -> None:
        """Prepare for runs. Calling it again does nothing. Raises SandboxUnavailable if this host cannot enforce what
        the sandbox promises.
        """
        ...

    async def run(self, job: Job, host: RunHost) -> Outcome:
        """Run the job. Never raises for what the code does. A fault of the host is a Failure of type SandboxError.

        Cancelling kills the run and waits until all its processes have ended.
        """
        ...

    async def close(self) -> None: ...


# -- how a plugin offers a backend -------------------------------------------------------------------------------


@runtime_checkable
class Measured(Protocol):
    """A Sandbox with figures for `/metrics`."""

    def figures(self) -> Mapping[str, float]:
        """Return a few figures by snake_case name. The names are always the same."""
        ...


class Warm(msgspec.Struct, frozen=True):
    """A process with `Job.preload` of one lock imported, which a sandbox keeps for later runs."""

    lock: str
    preload: tuple[str, ...]
    state: Literal["starting", "ready", "failed"]
    memory_mb: float = 0.0
    """Memory of the process, which the runs forked from it share."""
    message: str = ""
    """Why starting failed. Runs then import the modules themselves."""


@runtime_checkable
class KeepsWarm(Protocol):
    """A Sandbox that keeps processes with preloaded packages."""

    def warm(self) -> list[Warm]:
        """Return the kept processes, and those that failed recently."""
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a backend that has none."""


class Place(msgspec.Struct, frozen=True):
    """The folder and the services that a server gives to a backend when it opens the backend."""

    home: Path
    """The folder of the server's data, which is kept. A backend uses a folder with its own name in it."""
    allow_degraded: bool = False
    values: Values | None = None
    """What the backend keeps in the registry's database. None if the backend is opened without one, as `skillery
    doctor` may do. Use it after `open` has returned: the database may not be migrated before."""
    tokens: Tokens | None = None
    """The tokens of the registry, for authenticators. As `values`, None without a database."""


class Offer(msgspec.Struct, frozen=True):
    """A backend that a plugin offers under a name. The settings choose it by that name.

    `open(settings, place)` makes the backend. `settings` is a frozen msgspec Struct that forbids unknown fields. It
    is filled from the section `[backends.<kind>.<name>]` of skillery.toml and checked at start.
    """

    name: str
    open: Callable[[Any, Place], Any]
    settings: type[msgspec.Struct] = NoSettings
    unsafe: bool = False
    """True: the backend does not isolate. It is refused unless `allow_unsafe_sandbox` is set."""


# -- events ------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. Severity `error` refuses the version unless a reviewer has waived the rule for it."""

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
    """A run that has ended, for `run_finished`."""

    run_id: str
    method: Literal["execute_skill", "run_code", "call_tool"]
    status: Literal["completed", "failed"]
    skill: str | None
    version: str | None
    duration_ms: float
    error_type: str | None
    identity: Identity
    parent_run_id: str | None = None
    """The run whose code called this run, if the skill was mounted there."""
    tool: str | None = None
    """The tool that `call_tool` called."""


class Events(Protocol):
    """The hooks of plugins, as the core calls them. The core does not know the plugins."""

    async def before_publish(self, publication: Publication) -> list[Finding]: ...

    async def after_publish(self, publication: Publication) -> None: ...

    async def run_finished(self, run: FinishedRun) -> None: ...
