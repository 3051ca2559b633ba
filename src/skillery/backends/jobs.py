"""A job: one run, as a sandbox gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec


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
    version: str = ""
    digest: str = ""
    """The version and its digest, for the record of the run. "" if the files are not those of a version."""


class BlobMount(msgspec.Struct, frozen=True):
    """A blob that a run can read at `/blobs/<blob_id>`."""

    blob_id: str
    path: Path
    """Local file with the content of the blob."""
    sha256: str = ""
    """SHA-256 of the content in hex, or "" if the core does not know it."""


class InputFile(msgspec.Struct, frozen=True):
    """A file that the sandbox copies to `/workspace/<path>` before the code starts. The code may change the copy."""

    path: str
    """Path below /workspace. The core has checked it with the rules for bundle paths (`formats.paths`)."""
    source: Path
    """Local file with the content."""
    size_bytes: int
    executable: bool = False
    sha256: str = ""
    """SHA-256 of the content in hex, or "" if the core does not know it."""


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
    """Whether the host gets the files at the end (`RunHost.list_workspace`), however the run ends."""
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
    kind: Literal["python", "node"] = "python"
    """`node`: packages of npm, of which a run has at most one mount, at `/packages/node_modules`. `/node_modules` links
    to it.
    """

    @property
    def name(self) -> str:
        """The name of the folder below `/packages`."""
        return self.lock if self.kind == "python" else "node_modules"


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
    python: str = ""
    """The interpreter of a Python file, from `Sandbox.pythons`. "" means that of the sandbox."""
    in_skill: bool = False
    """True: the working directory is the read-only folder of the skill instead of `/workspace`."""


Call = SkillCall | CodeCall | HandlerCall | ScriptCall


def is_program(call: Call) -> bool:
    """Return whether a separate process runs all code of the call. A handler in Python may be a function."""
    if isinstance(call, HandlerCall):
        return not call.path.endswith(".py")
    return isinstance(call, ScriptCall) or (isinstance(call, CodeCall) and call.language != "python")


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
