"""The interface between Skillery and its backends and plugins: Protocols, and the frozen values that they exchange.

Plugin packages may import this module, `skillery.errors`, `skillery.hookimpl`, `skillery.sandboxing` (parts of
sandboxes) and `skillery.testing`. All other modules of Skillery are private.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

import msgspec

from skillery.failure_types import FailureType as FailureType  # noqa: PLC0414 - the boundary exports it

API_VERSION = 1
"""The version of the hook API. A release with another version may break plugins for an earlier version. A plugin states
its version as `api_version` in its module.
"""

# -- who is calling ----------------------------------------------------------------------------------------------

Scope = Literal["read", "run", "publish", "review", "admin"]
ALL_SCOPES: frozenset[Scope] = frozenset({"read", "run", "publish", "review", "admin"})


class Provenance(msgspec.Struct, frozen=True):
    """The CI job that published a version, from signed claims. A field without a claim is ""."""

    issuer: str
    subject: str
    repository: str = ""
    repository_id: str = ""
    owner_id: str = ""
    workflow: str = ""
    ref: str = ""
    commit: str = ""
    environment: str = ""
    run: str = ""
    """Id of the run or pipeline."""


class Identity(msgspec.Struct, frozen=True):
    """The name, kind, scopes and namespace grants of a caller.

    The grants are in `namespaces`: `sales.*` covers every skill name that starts with `sales.`, `sales.report` only
    this skill, and `*` all names. A grant for one skill applies to publishing, not to listings.
    """

    name: str
    kind: Literal["person", "agent"] = "person"
    scopes: frozenset[Scope] = frozenset()
    namespaces: tuple[str, ...] = ()
    provenance: Provenance | None = None
    """The CI job, if the caller is a CI job. Versions that the job publishes record this value."""


class Credentials(msgspec.Struct, frozen=True):
    """The data of a request that identify the caller: the headers by lower-case name, and the IP address."""

    headers: Mapping[str, str]
    address: str


@runtime_checkable
class Authenticator(Protocol):
    loopback_only: bool
    """True: the server must listen on loopback addresses only, because this backend accepts any client that can
    connect.
    """

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the caller. Raise NotAuthenticated if the credentials are missing or not valid."""
        ...


@runtime_checkable
class RecognizesCredentials(Protocol):
    """An Authenticator that says which credentials are its own, so that it can be combined with others."""

    def recognizes(self, credentials: Credentials) -> bool:
        """Return whether the credentials are meant for this backend, whether they are valid or not. Do not block.

        If the result is False, the server asks the next authenticator of the setting `auth`. If it is True, this
        backend decides alone.
        """
        ...


@runtime_checkable
class KeepsTokens(Protocol):
    """An Authenticator that accepts tokens of the registry. An authenticator may implement this Protocol too."""

    def forget(self) -> None:
        """Drop all cached tokens, because a token was revoked."""
        ...

    def first_token(self) -> str | None:
        """Return the text of a new admin token, or None if there was ever a token or the settings do not ask for
        one. Blocking.
        """
        ...


@runtime_checkable
class LimitsFailures(Protocol):
    """An Authenticator that limits the failed logins of an address."""

    def note_failure(self, address: str) -> float | None:
        """Count a failed login that another part of the server noticed. Do not block.

        Return None if it is within the limit, else the seconds to wait before the next attempt.
        """
        ...


class Resource(msgspec.Struct, frozen=True):
    """How clients get a token for this server: the protected resource metadata of RFC 9728."""

    address: str
    """The public address of this server, without a slash at the end: `https://skills.example.org`."""
    authorization_servers: tuple[str, ...]
    """The issuers whose tokens this server accepts."""
    scopes: tuple[str, ...] = ()
    """The scopes that a client requests from the issuer. Empty: clients request none."""
    cli_client_id: str = ""
    """The public client of `skillery login` at the first issuer. Empty: users name a client with --client-id."""


@runtime_checkable
class DescribesResource(Protocol):
    """An Authenticator that tells clients where they get a token.

    The server publishes the result below `/.well-known/oauth-protected-resource`, and refers to it in responses with
    status 401. The server calls `resource` once, before it accepts requests.
    """

    def resource(self) -> Resource | None:
        """Return the description, or None if clients cannot get a token by themselves. Do not block."""
        ...


@runtime_checkable
class UsesService(Protocol):
    """An Authenticator or Secrets that uses a service over the network, for example an identity provider.

    A server calls `start` before it accepts requests, and `close` at its end. `skillery doctor` and `skillery plugins
    show` call both. Commands that open a home without a server call both for a Secrets, and only `close` for an
    Authenticator. `skillery secret` calls only `close`. Without `start`, a backend connects when a method needs the
    service.
    """

    async def start(self) -> None:
        """Connect to the service. Raise StartupError with a message that names the wrong setting."""
        ...

    async def close(self) -> None: ...


class ExplainedCheck(msgspec.Struct, frozen=True):
    """One check of credentials: its subject, its outcome, and the reason."""

    subject: str
    outcome: Literal["ok", "failed", "skipped"]
    detail: str


class Explanation(msgspec.Struct, frozen=True):
    """How an authenticator decides about credentials. It must not contain the credentials or a part of a signature."""

    checks: tuple[ExplainedCheck, ...]
    identity: Identity | None
    """None if the credentials are refused."""


@runtime_checkable
class ExplainsCredentials(Protocol):
    """An Authenticator that explains its decision, for `skillery auth explain`."""

    async def explain(self, credentials: Credentials) -> Explanation:
        """Return the checks in their order. Raise Unavailable if a service is unavailable."""
        ...


@runtime_checkable
class RevokesIdentities(Protocol):
    """An Authenticator that keeps a list of revoked identities, for `skillery auth revoke` and `revoke_identity`.
    The methods block.

    A revoked identity is refused within a second on every server, even if its credentials are still valid.
    """

    def revoke(self, name: str, within: Transaction) -> bool:
        """Add an identity to the list. Return False if it is already there. The change is a part of `within`."""
        ...

    def restore(self, name: str, within: Transaction) -> bool:
        """Remove an identity from the list. Return False if it is not there. The change is a part of `within`."""
        ...

    def revoked(self) -> list[str]:
        """Return the names of all revoked identities, sorted."""
        ...


class LoginStart(msgspec.Struct, frozen=True):
    """The start of a login at another address."""

    address: str
    """The address that the browser opens."""
    kept: Mapping[str, str] = {}
    """Values that `finish_login` gets again, at most 1,500 bytes in all.

    The server keeps them for 10 minutes in a cookie of this browser. The cookie is signed, but not encrypted.
    """


class LoginReturn(msgspec.Struct, frozen=True):
    """The return of a browser to this server, after a login at another address."""

    query: Mapping[str, str]
    """The parameters of the request, without parameters that occur twice."""
    kept: Mapping[str, str]
    """The values of `LoginStart`. The server has checked that this browser got them within the last 10 minutes."""
    callback: str
    """The same address as in `begin_login`."""
    address: str
    """The IP address of the client."""


class LoggedIn(msgspec.Struct, frozen=True):
    """A user who has logged in with a browser."""

    identity: Identity
    subject: str
    """The id of the user at the service, at most 255 characters. The audit trail shows it."""
    expires_at: datetime | None
    """The latest end of the session. None: the server ends the session after its own longest time."""


@runtime_checkable
class LogsInBrowsers(Protocol):
    """An Authenticator whose users log in with a browser, at another address.

    The server makes the pages, the cookies and the sessions. The authenticator makes and checks the parameters of the
    other address.
    """

    def login_title(self) -> str | None:
        """Return the name of the service for a link "Sign in with …", or None to offer no login with a browser."""
        ...

    async def begin_login(self, callback: str) -> LoginStart:
        """Return the address that the browser opens. `callback` is the address of this server for its return.

        Raise Unavailable if the service is unavailable.
        """
        ...

    async def finish_login(self, answer: LoginReturn) -> LoggedIn:
        """Return the user. Raise NotAuthenticated if the login has failed, TooManyFailedLogins to slow the address
        down, and Unavailable if the service is unavailable.

        The authenticator checks that the parameters belong to `kept`.
        """
        ...

    async def check_login(self, identity: Identity) -> None:
        """Raise NotAuthenticated if the sessions of an identity are no longer valid.

        The server calls the method for each request of a session, so the method must be fast.
        """
        ...


class VerifiedToken(msgspec.Struct, frozen=True):
    """A token of the registry that has not expired and was not revoked."""

    token_id: str
    identity: Identity
    expires_at: datetime | None
    """None if the token never expires."""


class Tokens(Protocol):
    """The tokens of the registry, which admins create with `create_token`. A backend gets this object as
    `Place.tokens`.
    """

    async def verify(self, token: str) -> VerifiedToken:
        """Return the token with its identity. `token` is the text that the caller sent.

        Raise NotAuthenticated with a message for the caller if the token is not valid. Raise Unavailable if the
        database is unavailable. Each call reads the database. An authenticator may cache the result for a second, if it
        has `forget` (`KeepsTokens`) for revocations.
        """
        ...

    async def note_use(self, token_id: str) -> None:
        """Record that the token was used at the present time. At most one record per minute is stored."""
        ...

    def first_token(self) -> str | None:
        """Create an admin token and return its text, or return None if there was ever a token. Blocking.

        If several servers start at the same time, only one of them gets the token.
        """
        ...


# -- tokens of CI jobs -------------------------------------------------------------------------------------------


@runtime_checkable
class Verifier(Protocol):
    """Verifies signed tokens of issuers that trust rules name, for trusted publishing.

    A verifier reads the documents of an issuer only with `Place.fetch`, which bounds them and checks addresses.
    """

    async def check_issuer(self, issuer: str) -> None:
        """Read the metadata and the keys of an issuer. Raise InvalidParams with the reason if they are not usable."""
        ...

    async def verify(self, token: str, issuers: Collection[str], audience: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the issuers has signed for exactly this audience.

        The signature and the times of the token are valid, and the token is not an access token. The caller checks all
        other claims. Raise NotAuthenticated with a message without secrets if the token is not valid. Raise Unavailable
        if the keys of the issuer cannot be read.
        """
        ...


# -- contents by digest ------------------------------------------------------------------------------------------


class Upload(Protocol):
    """A content that is being stored. The content is not visible before `commit`.

    After a crash, only temporary files are left. The next start of the server removes them.
    """

    def write(self, chunk: bytes) -> None: ...

    def commit(self, digest: str) -> None:
        """Make the content durable and visible under `digest`: 64 hex digits of SHA-256, which the caller has
        computed.
        """
        ...

    def abort(self) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """Stores immutable contents by their SHA-256. Blocking: several worker threads call the methods at the same time.

    If the disk is full, the methods raise StorageFull and store nothing.
    """

    def begin(self) -> Upload: ...

    def open(self, digest: str) -> BinaryIO:
        """Return a seekable stream of the content. Raise ContentMissing if the storage does not have the content."""
        ...

    def local_path(self, digest: str) -> Path | None:
        """Return the path of a read-only local file with the content, or None if the storage has no such file."""
        ...

    def delete(self, digest: str) -> None:
        """Delete the content. Do nothing if the content is missing.

        During the call, the caller has no open transaction and no upload of the same content. If this method raises an
        exception, the call is repeated later.
        """
        ...

    def check(self) -> None:
        """Raise an exception if the storage does not work at present."""
        ...


@runtime_checkable
class ListsContents(Protocol):
    """A Storage that lists its contents.

    Without this Protocol, files that a killed server left in the storage are never removed.
    """

    def stored_before(self, moment: datetime) -> Iterator[tuple[str, int]]:
        """Yield the digest and the size in bytes of every content that was stored before `moment`, in any order.

        Contents that are stored or deleted during the call may be included or not.
        """
        ...


@runtime_checkable
class KnowsRegistry(Protocol):
    """A Storage that stores a mark: an id that ties the storage to one database.

    By the mark, a server notices that its storage belongs to another database.
    """

    def mark(self, made: str) -> str:
        """Return the mark of the storage. If there is no mark, store `made` and return it.

        If several servers call this method at the same time, only the mark of one of them is stored.
        """
        ...

    def find_mark(self) -> str | None: ...


@runtime_checkable
class RemovesUnfinished(Protocol):
    """A Storage that keeps the parts of an upload outside of this machine until the upload ends.

    Sweeps call the method, so that killed servers leave no parts forever.
    """

    def remove_unfinished(self, begun_before: datetime, dry_run: bool) -> int:
        """Remove the parts of all uploads that began before `begun_before` and have not ended. Return the number of
        uploads.

        If `dry_run` is true, only count them. Active uploads of any server begin later than `begun_before`.
        """
        ...


@runtime_checkable
class SignsDownloads(Protocol):
    """A Storage from which callers download contents directly, with an address that the storage has signed."""

    def sign(self, digest: str, seconds: int, headers: Mapping[str, str]) -> str | None:
        """Return an address that answers GET with the content, without other credentials, for `seconds` seconds.

        `headers` has the lower-case names and the values of headers that the answer must have: `content-type` and
        `content-disposition`. Return None if the storage cannot sign: the server then sends the content itself. The
        method does not check whether the content exists.
        """
        ...


# -- values that a backend keeps ---------------------------------------------------------------------------------


class Transaction(Protocol):
    """An open transaction of the registry's database. A backend only passes the transaction to a method of `Values`."""


class Values(Protocol):
    """Small values by key in the registry's database: sessions, keys, cached answers. A backend gets this object as
    `Place.values`.

    Each backend has its own keys, which all servers of one database share. The methods block: a coroutine calls them
    with `asyncio.to_thread`. After the time `expires_at`, a value no longer exists. The methods raise ValueError if a
    key does not have 1 to 255 characters or a value has more than 1 MiB, and Unavailable if the database is
    unavailable.
    """

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`, sorted by their bytes."""
        ...

    def set(
        self, key: str, value: bytes, expires_at: datetime | None = None, within: Transaction | None = None
    ) -> bool:
        """Store a value, and replace the present value if there is one. Return whether there was one.

        If `within` is given, the change is a part of this transaction.
        """
        ...

    def add(self, key: str, value: bytes, expires_at: datetime | None = None) -> bytes:
        """Store a value if the key has none. Return the value that the key has afterwards.

        If several servers call this method at the same time, one value is stored, and all servers get this value.
        """
        ...

    def take(self, key: str, within: Transaction | None = None) -> bytes | None:
        """Remove the value and return it, or return None if there is none.

        If several callers call this method at the same time, one gets the value and the others get None.
        """
        ...


# -- secrets -----------------------------------------------------------------------------------------------------


@runtime_checkable
class Secrets(Protocol):
    """Stores the values of secrets by name. Blocking: several worker threads call the methods at the same time.

    A backend must not put a value into an exception or the log. A backend that cannot be reached raises Unavailable.
    """

    read_only: bool
    """True: users set the values in another system. `set` and `remove` then raise NotAllowed, with a hint about that
    system.
    """

    def get(self, name: str) -> str | None:
        """Return the value of a secret, or None if the secret has no value."""
        ...

    def names(self) -> list[str]:
        """Return the sorted names of all secrets that have a value."""
        ...

    def set(self, name: str, value: str) -> None:
        """Store the value of a secret, and replace the present value if there is one."""
        ...

    def remove(self, name: str) -> bool:
        """Remove the value of a secret. Return whether there was one."""
        ...


@runtime_checkable
class KeepsSecrets(Protocol):
    """A Secrets that stores its values in `Place.values`, so that a change and its audit entry are in one transaction.

    The methods and the returned functions block. The caller calls a returned function in the transaction of the audit
    entry.
    """

    def setting(self, name: str, value: str) -> Callable[[Transaction], bool]:
        """Return a function that stores the value in a transaction, and returns whether it replaced a value."""
        ...

    def removing(self, name: str) -> Callable[[Transaction], bool]:
        """Return a function that removes the value in a transaction, and returns whether there was one."""
        ...


class SecretValues(dict[str, str]):
    """The values of secrets by name, for a run. Printing this dict shows only the names."""

    def __repr__(self) -> str:
        return f"SecretValues({', '.join(self)})"

    __str__ = __repr__


# -- runs --------------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True):
    """Limits of one run, for all its processes together."""

    timeout_ms: int = 300_000
    """Elapsed time from the start of the code, without the time in the queue."""
    memory_mb: int = 512
    processes: int = 64
    """Limit of processes and threads together."""
    cpus: float = 1.0
    disk_mb: int = 256
    """Size of `/workspace`."""
    disk_files: int = 16_384
    tmp_mb: int = 64
    """Size of `/tmp`."""
    blobs: int = 1_000
    blobs_mb: int = 256
    calls: int = 100
    """Limit of the calls of mounted skills that run in separate sandboxes."""
    log_kb: int = 1_024
    """Size of the stored log. Further output is counted and dropped, and does not slow the code."""
    result_mb: int = 16
    callbacks_per_second: int = 8_000
    """Limit of the requests of the code to its host, for example for blobs and calls. Above the limit, the code
    waits.
    """


class SkillMount(msgspec.Struct, frozen=True):
    """A skill that a run can read at `/skills/<name>/`."""

    name: str
    folder: Path
    """Folder with the files of the skill on this computer. Its content is complete, never changes, and is shared
    between runs.
    """
    entrypoint: str | None = None
    """Path of the entrypoint in the skill (`code/main.py`), which code imports as `skills.<name>`.

    None for a skill that can only be read.
    """
    stub: bool = False
    """Whether the skill declares permissions that this run does not have.

    Importing such a skill executes none of its code and adds no folder to `sys.path`. Its functions are stubs, which
    call `RunHost.call_skill`.
    """


class BlobMount(msgspec.Struct, frozen=True):
    """A blob that a run can read at `/blobs/<blob_id>`."""

    blob_id: str
    path: Path
    """Local file with the content of the blob."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the sandbox copies to `/workspace/<path>` before the code starts. The code may change the copy."""

    path: str
    """Path below /workspace. The core has checked it with the rules for bundle paths (`formats.paths`)."""
    source: Path
    """Local file with the content."""
    size_bytes: int
    executable: bool = False


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    """A file, an empty folder or a symbolic link of a workspace."""

    path: str
    """Below `/workspace`. Valid UTF-8 without control characters."""
    mode: Literal["100644", "100755", "040000", "120000"]
    """As in git: a file, an executable file, an empty folder, a symbolic link."""
    sha256: str
    """SHA-256 of the content of a file, of the target of a link, or of no bytes for a folder."""
    size_bytes: int = 0
    mtime_ns: int = 0
    target: str = ""
    """The target of a link: any text."""

    @property
    def is_file(self) -> bool:
        return self.mode.startswith("1006") or self.mode.startswith("1007")


class OpenContents(msgspec.Struct, frozen=True):
    """One open file with the contents of all files of a workspace. A backend may pass it to the sandbox instead of
    bytes.
    """

    descriptor: int
    """Open for reading only. The caller of the backend closes it after the run."""
    offsets: tuple[int, ...]
    """Where the content of each file of `Workspace.files` begins; 0 for entries without content."""


class Workspace(msgspec.Struct, frozen=True):
    """The files in `/workspace` when the code of a run starts, and whether they are saved when the run has ended.

    In such a run, `HOME` is an empty folder outside the workspace, and no interpreter imports from the workspace
    automatically.
    """

    files: tuple[KeptFile, ...]
    contents: Callable[[], AsyncIterator[bytes]]
    """Yields the contents of the regular files in `files`, one after the other, in pieces of any size."""
    saves: bool = True
    """Whether a host that keeps workspaces (`KeepsWorkspace`) gets the files at the end, however the run ends."""
    opened: OpenContents | None = None
    """The same contents as `contents` yields, if the server has them in memory. A backend may ignore this."""


class PackageMount(msgspec.Struct, frozen=True, weakref=True):
    """Installed packages that a run can read at `/packages/<lock>/`. Imports look there after the standard library and
    before skills.

    The folder exists as long as this object is referenced. Code that mounts the folder must therefore keep a reference.
    """

    lock: str
    """SHA-256 of the lock of packages in 64 hex digits. Everywhere, the same SHA-256 means the same packages."""
    folder: Path
    """Folder with the packages on this computer. Its content is complete, never changes, and is shared between runs."""


class SkillCall(msgspec.Struct, frozen=True, tag="skill"):
    """Call of a mounted skill: import the entrypoint of `skill` and call `function(args)`."""

    skill: str
    function: str
    spread: bool = False
    """True: call `function(*args, **kwargs)`; the job's `args` are an object with these two members.

    Only functions that a stub of this skill offers can be called in this way. For any other name, the run fails with an
    AttributeError before code of the skill has run.
    """


Language = Literal["python", "javascript", "bash"]


class CodeCall(msgspec.Struct, frozen=True, tag="code"):
    """Call of given code: `function(args)` in `code`, which is a Python module or an ES module (`javascript`).

    `bash` code has no functions: the code runs with the args on stdin, and its stdout is the result.
    """

    code: str
    function: str
    language: Language = "python"


class HandlerCall(msgspec.Struct, frozen=True, tag="handler"):
    """Call of the handler in the file `path` of the mounted skill `skill`, by the rules of Skill Tools.

    The handler in a `.js` or `.mjs` file is the default export. The handler in a `.py` file is the function `handler`,
    if the module defines it. Any other file is a program that gets the args on stdin and as its only argument, and
    prints the result to stdout. The backend sets the arg `__workDir`.
    """

    skill: str
    path: str


class ScriptCall(msgspec.Struct, frozen=True, tag="script"):
    """Call of the file `path` in the mounted skill `skill` as a program. Its suffix or its `#!` line selects the
    interpreter.

    The result is an object with `exit_code`, `stdout`, `stderr` and `files`. After a signal, `exit_code` is 128 plus
    the number of the signal. `stdout` and `stderr` are text; above 64 KiB, they are `{"blob_id", "size_bytes",
    "preview"}`, with `dropped_bytes` if they exceed the limit of a result. `files` are at most 100 files below
    /workspace/out, each `{"path", "blob_id", "size_bytes"}`. `left_out` names further files.

    If an argument or a variable is a path in /workspace/out, this folder exists before the program starts. The run
    fails only if the program cannot be started or is stopped. The log contains the output of the program too.
    """

    skill: str
    path: str
    argv: tuple[str, ...] = ()
    stdin: bytes = b""
    environment: Mapping[str, str] = {}
    """Environment variables, in addition to those of the job."""
    module: str = ""
    """If not "", run this module of the skill as `python -m` does. `path` is then the file of the module."""
    in_skill: bool = False
    """True: the working directory is the read-only folder of the skill instead of `/workspace`."""


Call = SkillCall | CodeCall | HandlerCall | ScriptCall


class Job(msgspec.Struct, frozen=True):
    """One run, as a sandbox gets it from the core."""

    run_id: str
    call: Call
    args: bytes
    """The args of the call as JSON: an object."""
    skills: tuple[SkillMount, ...] = ()
    """The mounted skills in order. If a skill is executed, it is the first."""
    blobs: tuple[BlobMount, ...] = ()
    limits: Limits = Limits()
    environment: Mapping[str, str] = {}
    """Environment variables with the values of secrets, in addition to the variables of the sandbox.

    A backend must not log them or make them readable for other processes.
    """
    network: tuple[str, ...] = ()
    """Hosts that the code may reach, in the notation of `permissions.network`. Empty: no host."""
    packages: tuple[PackageMount, ...] = ()
    """Packages on `sys.path`, in order. Their files do not conflict."""
    preload: tuple[str, ...] = ()
    """Modules of the first of `packages` that a backend may import before the run arrives. Preloading is optional.

    The code must not notice it: each module behaves as if the code imported it first.
    """
    private_network: bool = False
    """True: an admin of the server named the hosts of `network`. They may then have private addresses, including
    addresses of this computer.
    """
    identity: str = ""
    """Name of the identity that requested the run, or "" for work of the server itself.

    A backend uses the name to share resources fairly between identities. The code of the run does not see it.
    """
    files: tuple[InputFile, ...] = ()
    """Files to copy to `/workspace` before the code starts. They count towards `disk_mb` and `disk_files`.

    If a file does not fit, the run fails with a SandboxError that names the file, before any code has run.
    """
    outputs: tuple[str, ...] = ()
    """Globs below `/workspace`: matching files are stored as blobs when the run ends, however it ends, like the files
    in `/workspace/out`. `*` is any part of a segment, `**` any number of folders.
    """
    workspace: Workspace | None = None
    """The workspace of the caller in which the run works, or None. Its files count towards `disk_mb` and
    `disk_files`.
    """


class Failure(msgspec.Struct, frozen=True):
    """The reason of a failed run. `type` is a `FailureType`, or the class name of the exception that the code
    raised.
    """

    type: str
    message: str
    traceback: str = ""
    """The traceback of the exception, only with frames of user code."""


class Log(msgspec.Struct, frozen=True):
    """The log of a run: stdout, stderr and `log` lines in the order of writing. Of a long log, only head and tail
    are stored.
    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0
    """Number of bytes that are missing between head and tail."""


class Progress(msgspec.Struct, frozen=True):
    """The progress of a run, as its code has reported it with `runtime.progress`."""

    done: float
    total: float | None = None
    """None if the code does not know the total."""
    text: str = ""


class NetworkUse(msgspec.Struct, frozen=True):
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


class Used(msgspec.Struct, frozen=True):
    """What a run has used, as far as the sandbox measures it. None: not measured."""

    prepared_ms: float | None = None
    """Time from the call of `run` to the start of the code."""
    memory_bytes: int | None = None
    """The most memory of all processes of the run together, with the files in `/workspace` and `/tmp`."""
    processes: int | None = None
    """The most processes and threads at one time."""
    disk_bytes: int | None = None
    """Size of the files in `/workspace` at the end of the code. The code could falsify this value."""


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run. Exactly one of `result` and `failure` is not None."""

    result: bytes | None = None
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


class BlobWriter(Protocol):
    """A blob to which a run is writing."""

    async def write(self, chunk: bytes) -> None:
        """Append a chunk to the blob. Raise TooLarge if the blobs of the run exceed a limit."""
        ...

    async def commit(self) -> str:
        """Store the blob. Return its id."""
        ...

    async def abort(self) -> None: ...


class RunHost(Protocol):
    """Answers requests of the code in a sandbox. The core implements this Protocol, and the sandbox calls it.

    If a method raises a SkilleryError, the sandbox raises an exception in the code. The run and the server continue.
    """

    async def begin_blob(self, kind: str, path: str | None = None) -> BlobWriter:
        """Start to write a blob, and return its writer. `kind` is a media type.

        `path` is the name that the code gave to the blob: a path below /workspace/out or the name of a picture. The
        text is untrusted.
        """
        ...

    async def read_blob(self, blob_id: str) -> bytes:
        """Return a blob that this run wrote. Raise BlobNotFound for any other id."""
        ...

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """Call a function of a skill that this run mounts as a stub, and return the returned value as JSON.

        The function runs in a separate sandbox, with the permissions of its skill. `args` is the JSON `{"args": [...],
        "kwargs": {...}}`. Raise SkillFailed if the function failed. Raise another SkilleryError if the function could
        not be called. Cancelling this coroutine ends the call.
        """
        ...


@runtime_checkable
class StreamsBlobs(Protocol):
    """A RunHost that reads blobs in pieces.

    With other hosts, code that requests a blob but does not read it occupies memory of the server.
    """

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        """Return the size in bytes of a blob that this run wrote, and its content in pieces. Raise BlobNotFound for
        any other id.
        """
        ...


@runtime_checkable
class FollowsLog(Protocol):
    """A RunHost that gets the log while the code runs, and stores it.

    A sandbox that passes the log to such a host leaves `Outcome.log` empty. A sandbox need not do this: then, readers
    see the log only after the end of the run.
    """

    def printed(self, piece: bytes) -> None:
        """Take the next bytes of the log: stdout, stderr or `log` lines. Must return at once and never raise."""
        ...


@runtime_checkable
class KeepsWorkspace(Protocol):
    """A RunHost that saves the workspace of its run.

    The files come from a process in which no code of the run has ever been, after the run has ended.
    """

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        """Take the files of the workspace, and in `left_out` the paths of entries that cannot be saved. Return the
        positions in `files` of the contents that the host needs.
        """
        ...

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        """Take the contents that `list_workspace` requested, one after the other. The workspace is then complete."""
        ...


@runtime_checkable
class FollowsProgress(Protocol):
    """A RunHost that gets the progress of the code."""

    def progressed(self, progress: Progress) -> None:
        """Take the newest progress. Must return at once and never raise."""
        ...


class Probe(msgspec.Struct, frozen=True):
    """The result of a test of one property that a backend needs. The test uses the property."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    """The remedy if `ok` is false. If `off` is true: how to turn the part on."""
    required: bool = True
    """False: without the property, runs are `degraded`, but safe."""
    off: bool = False
    """Whether the settings turn this part off. `ok` is then true."""


class Capability(StrEnum):
    """A feature or a guarantee of a sandbox.

    If a run needs a feature that the sandbox does not have, the run is refused, and the error names the capability. If
    a guarantee is missing (one of LIMITS), the field `degraded` of every run names it.
    """

    PYTHON = "python"
    """Runs Python: the entrypoints of skills, and the code of `run_code`."""
    JAVASCRIPT = "javascript"
    """Runs JavaScript, if the host has Node.js."""
    BASH = "bash"
    """Runs bash, if the host has bash."""
    BLOBS = "blobs"
    """Lets the code read its input blobs as files."""
    FILES = "files"
    """Copies `Job.files` to the workspace of the run."""
    OUTPUTS = "outputs"
    """Keeps the files that `Job.outputs` names, and keeps the files in `/workspace/out` even if the run was killed."""
    WORKSPACE = "workspace"
    """Fills `/workspace` from `Job.workspace` and passes its files to the host when the run has ended."""
    SECRETS = "secrets"
    """Passes environment variables to the code, but not in arguments or files, so that no other process can read
    them.
    """
    NETWORK = "network"
    """Lets the code connect to the hosts in `Job.network`."""
    PACKAGES = "packages"
    """Lets the code import installed packages (`Job.packages`), but no packages of the host."""
    STUBS = "stubs"
    """Lets the code call skills in other sandboxes (`SkillMount.stub`) with `RunHost.call_skill`."""

    ISOLATION = "isolation"
    """The code can reach nothing of the host except the things that its job names."""
    MEMORY_TREE = "memory_tree"
    """Enforces `memory_mb` for all processes of a run together and at any time, not only by checks at intervals."""
    PROCESSES = "processes"
    """Enforces the limit `processes`, which includes threads."""
    CPUS = "cpus"
    """Enforces the limit `cpus`."""
    DISK = "disk"
    """Enforces the limits `disk_mb` and `tmp_mb`."""
    DISK_FILES = "disk_files"
    """Enforces the limit `disk_files`."""


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
"""The guarantees: if one of these capabilities is missing, runs are `degraded`."""


@runtime_checkable
class Sandbox(Protocol):
    """Runs each job in a new environment, which is destroyed afterwards."""

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities of the sandbox on this host: values of `Capability`, and possibly other words.

        The set is complete after `start` has returned.
        """
        ...

    def probe(self) -> list[Probe]:
        """Test every property that the sandbox needs, by using the property. `skillery doctor` shows the results.
        Blocking.
        """
        ...

    async def start(self) -> None:
        """Prepare for runs. A second call does nothing.

        Raise SandboxUnavailable if this host cannot enforce the guarantees of the sandbox.
        """
        ...

    async def run(self, job: Job, host: RunHost) -> Outcome:
        """Run the job and return its outcome. Never raise because of the code: its failures are part of the outcome.

        If the host fails, return a Failure of the type SandboxError. Cancelling this coroutine kills the run, and waits
        until all processes of the run have ended.
        """
        ...

    async def close(self) -> None: ...


# -- how a plugin offers a backend -------------------------------------------------------------------------------


@runtime_checkable
class Measured(Protocol):
    """A Sandbox that reports values for `/metrics`."""

    def figures(self) -> Mapping[str, float]:
        """Return a few values, by name in snake_case. The names must always be the same."""
        ...


@runtime_checkable
class LimitsRuns(Protocol):
    """A Sandbox that cannot take each run at any time, for example because other computers run the code."""

    def check_room(self, job: Job) -> None:
        """Raise Busy if the sandbox has no room for the job now, Unavailable if it cannot run the job at present.

        The server calls this when the run has its slot, before it records the start of the run. The caller gets the
        error, and the run has no record. Must not block. A sandbox that is not started does nothing.
        """
        ...


class Warm(msgspec.Struct, frozen=True):
    """A process that a sandbox keeps for later runs, with the modules in `preload` imported from the packages of one
    lock.
    """

    lock: str
    preload: tuple[str, ...]
    state: Literal["starting", "ready", "failed"]
    memory_mb: float = 0.0
    """Memory of the process in MB. Runs that are forked from the process share it."""
    message: str = ""
    """The reason if the process did not start. Runs then import the modules themselves."""


@runtime_checkable
class KeepsWarm(Protocol):
    """A Sandbox that keeps processes with imported packages for later runs."""

    def warm(self) -> list[Warm]:
        """Return the processes that the sandbox keeps, including processes that failed recently."""
        ...


class NoSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings type of a backend without settings."""


class Place(msgspec.Struct, frozen=True):
    """The folder and the services that a server gives to a backend, when the server opens the backend."""

    home: Path
    """The home of the server. A backend stores its data in a folder with its own name in the home."""
    allow_degraded: bool = False
    values: Values | None = None
    """Values of the backend in the registry's database. None if there is no database, as in some checks of `skillery
    doctor`.

    Use `values` only after `open` has returned, because the database may not be migrated before.
    """
    tokens: Tokens | None = None
    """The tokens of the registry, for authenticators. None if there is no database."""
    popular_skills: Callable[[int], Sequence[str]] | None = None
    """Return the names of the public skills with the most runs, at most the given number. For objects of
    `skillery_plugin`; None for backends. The function blocks.
    """
    fetch: Callable[[str], Awaitable[bytes]] | None = None
    """Return the document at an http(s) address, at most 512 KiB within 5 seconds, without redirects. For verifiers;
    None for other backends.

    Private addresses are refused, except for those in the setting `trust.allow_private`. `http` is permitted on
    loopback only. Raise Unavailable with the reason if the document cannot be read.
    """


class Offer(msgspec.Struct, frozen=True):
    """A backend that a plugin offers, or the object of `skillery_plugin`. The settings choose a backend by its `name`.

    `open(settings, place)` returns the backend. The argument `settings` is an instance of the type `settings`: a frozen
    msgspec Struct that forbids unknown fields. Its values come from the section `[backends.<kind>.<name>]` of
    skillery.toml (`[plugins.<name>]` for an object), and are checked at start.
    """

    name: str
    open: Callable[[Any, Place], Any]
    settings: type[msgspec.Struct] = NoSettings
    unsafe: bool = False
    """True: the backend does not isolate runs. The server refuses such a backend unless `allow_unsafe_sandbox` is
    set.
    """


# -- events ------------------------------------------------------------------------------------------------------


class Finding(msgspec.Struct, frozen=True):
    """One result of a check of a version. A finding of severity `error` refuses the version, unless a reviewer has
    waived its rule.
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
    """A version that will be published (in `before_publish`) or has been published (in `after_publish`)."""

    name: str
    version: str
    digest: str
    manifest: Mapping[str, Any]
    files: tuple[PublishedFile, ...]
    identity: Identity


class FinishedRun(msgspec.Struct, frozen=True):
    """A run that has ended. The hook `run_finished` gets this value."""

    run_id: str
    method: Literal["execute_skill", "run_code", "call_tool"]
    status: Literal["completed", "failed"]
    skill: str | None
    version: str | None
    duration_ms: float
    error_type: str | None
    identity: Identity
    parent_run_id: str | None = None
    """The run that called this run as a mounted skill, or None if a caller of the server started this run."""
    tool: str | None = None
    """The name of the called tool. None if `method` is not `call_tool`."""


EventType = Literal[
    "submitted",
    "approved",
    "rejected",
    "published",
    "yanked",
    "deprecated",
    "finding",
    "quota_near",
    "run_failed",
]


class Event(msgspec.Struct, frozen=True):
    """A fact that webhooks and the hook `events` get. docs/operate/webhooks.md lists the members of `data`."""

    id: str
    """The id is the same in every delivery of this event."""
    type: EventType
    at: datetime
    data: Mapping[str, Any]


class Events(Protocol):
    """The hooks of plugins, as the core calls them. The core knows this Protocol, but no plugins."""

    async def before_publish(self, publication: Publication) -> list[Finding]: ...

    async def after_publish(self, publication: Publication) -> None: ...

    async def run_finished(self, run: FinishedRun) -> None: ...

    @property
    def has_event_hooks(self) -> bool:
        """Whether a plugin implements the hook `events`."""
        ...

    async def events(self, event: Event) -> None: ...
