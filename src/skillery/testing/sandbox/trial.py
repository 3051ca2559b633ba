"""Tools of the cases: a host that keeps blobs in memory, and shortcuts to run code and skills."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import secrets
import socket
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skillery.backends import (
    BlobMount,
    Call,
    CodeCall,
    InputFile,
    Job,
    KeepsWarm,
    KeptFile,
    Language,
    Limits,
    Outcome,
    PackageMount,
    RunHost,
    Sandbox,
    SkillCall,
    SkillMount,
    Workspace,
)
from skillery.errors import BlobNotFound, NotAllowed
from skillery.testing.contracts import Contract
from skillery.testing.sandbox.leftovers import Traces, assert_none_since, traces

QUICK = Limits(timeout_ms=300_000, memory_mb=256)  # a loaded machine is slow


class MemoryBlobWriter:
    """The BlobWriter of MemoryHost."""

    def __init__(self, host: MemoryHost, kind: str, path: str | None) -> None:
        self._host = host
        self._kind = kind
        self._path = path
        self._content = bytearray()

    async def write(self, chunk: bytes) -> None:
        self._content += chunk

    async def commit(self) -> str:
        blob_id = f"blob:{secrets.token_urlsafe(16)}"
        self._host.blobs[blob_id] = bytes(self._content)
        self._host.kinds[blob_id] = self._kind
        if self._path is not None:
            self._host.paths[self._path] = blob_id
        return blob_id

    async def abort(self) -> None:
        self._host.aborted += 1


class MemoryHost(RunHost):
    """A RunHost that keeps the blobs and the workspace of a run in memory."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.kinds: dict[str, str] = {}
        self.paths: dict[str, str] = {}
        """Blob ids by path, for blobs that have a path."""
        self.aborted = 0
        self.listed: list[KeptFile] = []
        """The files of the workspace that was saved last."""
        self.left_out: list[str] = []
        """The names of files of this workspace that could not be saved."""
        self.contents: dict[str, bytes] = {}
        """The contents of these files by digest."""
        self.callable: dict[tuple[str, str], Callable[..., Any]] = {}
        """Functions for `call_skill`, by skill and function. A SkilleryError from one of them goes to the code."""

    async def begin_blob(self, kind: str, path: str | None = None) -> MemoryBlobWriter:
        return MemoryBlobWriter(self, kind, path)

    async def read_blob(self, blob_id: str) -> bytes:
        if blob_id not in self.blobs:
            raise BlobNotFound(f"no blob {blob_id}")
        return self.blobs[blob_id]

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        self.listed, self.left_out = list(files), list(left_out)
        position_by_digest = {file.sha256: number for number, file in reversed(list(enumerate(files))) if file.is_file}
        self._needed = sorted(number for digest, number in position_by_digest.items() if digest not in self.contents)
        return self._needed

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        contents = b"".join([piece async for piece in pieces])
        for number in self._needed:
            file = self.listed[number]
            self.contents[file.sha256], contents = contents[: file.size_bytes], contents[file.size_bytes :]

    def workspace(self, *, saves: bool = True) -> Workspace:
        """Return the workspace that was saved last, for another run."""
        files = tuple(self.listed)

        async def contents() -> AsyncIterator[bytes]:
            for file in files:
                if file.is_file:
                    yield self.contents[file.sha256]

        return Workspace(files, contents, saves)

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        target = self.callable.get((skill, function))
        if target is None:
            raise NotAllowed(f"{function} of {skill} must not be called")
        call = json.loads(args)
        result = target(*call["args"], **call["kwargs"])
        if inspect.isawaitable(result):
            result = await result
        return json.dumps(result).encode()


class Listening(MemoryHost):
    """A host that is told when a run prints its first text."""

    def __init__(self) -> None:
        super().__init__()
        self.has_printed = asyncio.Event()

    def printed(self, piece: bytes) -> None:
        self.has_printed.set()


class Trial:
    """A sandbox under test, with a folder for the skills, packages and files that its runs get."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.host = MemoryHost()
        self._folder = folder

    def skill(
        self, name: str, files: Mapping[str, str], entrypoint: str | None = "code/main.py", *, stub: bool = False
    ) -> SkillMount:
        """Return a mount for a skill with these files (path to text)."""
        folder = self._folder / "skills" / name
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
        return SkillMount(name=name, folder=folder, entrypoint=entrypoint, stub=stub)

    def packages(self, files: Mapping[str, str]) -> PackageMount:
        """Return a mount for packages with these files."""
        lock = secrets.token_hex(32)
        folder = self._folder / "packages" / lock
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
        return PackageMount(lock, folder)

    def blob(self, blob_id: str, content: bytes) -> BlobMount:
        path = self._folder / f"blob-{secrets.token_hex(4)}"
        path.write_bytes(content)
        return BlobMount(blob_id=blob_id, path=path)

    def file(self, path: str, content: bytes, *, executable: bool = False) -> InputFile:
        """Return an input file with this content, for `files`."""
        source = self._folder / f"file-{secrets.token_hex(4)}"
        source.write_bytes(content)
        return InputFile(path, source, len(content), executable)

    async def code(
        self,
        code: str,
        args: Any = None,
        *,
        skills: tuple[SkillMount, ...] = (),
        blobs: tuple[BlobMount, ...] = (),
        limits: Limits = QUICK,
        environment: Mapping[str, str] | None = None,
        function: str = "main",
        language: Language = "python",
        network: tuple[str, ...] = (),
        packages: tuple[PackageMount, ...] = (),
        preload: tuple[str, ...] = (),
        files: tuple[InputFile, ...] = (),
        outputs: tuple[str, ...] = (),
        workspace: Workspace | None = None,
    ) -> Outcome:
        """Run `code` like run_code. Any common indentation is removed."""
        call = CodeCall(textwrap.dedent(code), function, language)
        return await self.call(
            call,
            args,
            skills=skills,
            blobs=blobs,
            limits=limits,
            environment=environment,
            network=network,
            packages=packages,
            preload=preload,
            files=files,
            outputs=outputs,
            workspace=workspace,
        )

    async def execute(
        self, skill: SkillMount, args: Any = None, *others: SkillMount, function: str = "main", limits: Limits = QUICK
    ) -> Outcome:
        """Run a skill like execute_skill, with `others` mounted."""
        return await self.call(SkillCall(skill.name, function), args, skills=(skill, *others), limits=limits)

    async def ask(self, skill: SkillMount, function: str, *args: Any, **kwargs: Any) -> Outcome:
        """Call a function of a skill with arguments, as a stub of the skill calls it."""
        call = SkillCall(skill.name, function, spread=True)
        return await self.call(call, {"args": args, "kwargs": kwargs}, skills=(skill,))

    async def call(
        self,
        call: Call,
        args: Any = None,
        *,
        skills: tuple[SkillMount, ...] = (),
        blobs: tuple[BlobMount, ...] = (),
        limits: Limits = QUICK,
        environment: Mapping[str, str] | None = None,
        network: tuple[str, ...] = (),
        packages: tuple[PackageMount, ...] = (),
        preload: tuple[str, ...] = (),
        files: tuple[InputFile, ...] = (),
        outputs: tuple[str, ...] = (),
        workspace: Workspace | None = None,
    ) -> Outcome:
        """Run one call in the sandbox, and return its outcome. `args` are its arguments, before JSON."""
        encoded = json.dumps({} if args is None else args).encode()
        run_id = f"run_{secrets.token_hex(8)}"
        job = Job(
            run_id,
            call,
            encoded,
            skills,
            blobs,
            limits,
            environment or {},
            network,
            packages,
            preload,
            files=files,
            outputs=outputs,
            workspace=workspace,
        )
        return await self.sandbox.run(job, self.host)

    async def value(self, code: str, args: Any = None, **options: Any) -> Any:
        """Return the value of `code`. The test fails if the run fails."""
        return value_of(await self.code(code, args, **options))

    async def is_well(self) -> None:
        """Check that the next run works, and that it sees nothing of other runs."""
        code = "import os\ndef main(args): return [args['x'], os.listdir(), 'API_KEY' in os.environ]"
        assert await self.value(code, {"x": 1}) == [1, [], False]


def value_of(outcome: Outcome) -> Any:
    """Return the value of a run. The test fails if the run has failed."""
    assert outcome.failure is None, outcome.failure
    assert outcome.result is not None
    return json.loads(outcome.result)


def log_of(outcome: Outcome) -> str:
    return (outcome.log.head + outcome.log.tail).decode("utf-8", "replace")


def failure_type(outcome: Outcome) -> str | None:
    return outcome.failure.type if outcome.failure else None


# -- Fixtures that all groups of cases share ---------------------------------------------------------------------------


OpenWith = Callable[[Mapping[str, tuple[str, ...]], tuple[str, ...]], Awaitable[Sandbox]]
"""Function that returns a started backend.

Its arguments are the addresses of host names, which are used instead of DNS, and the private addresses that are
allowed.
"""


class SandboxCases(Contract):
    """Base class of all cases.

    Override `sandbox` with a fixture that yields your started backend and closes it, once per case (with
    `SharedSandbox`, once for all cases). Put the server's process id into the names of its cgroups, so that leftover
    cgroups are found. If runs can use the network, override `open_with` as well.
    """

    @pytest.fixture
    async def sandbox(self) -> Sandbox:
        raise NotImplementedError("override the fixture `sandbox`")

    @pytest.fixture
    def open_with(self) -> OpenWith | None:
        """None means that no run of this backend has a network."""
        return None

    @pytest.fixture(autouse=True)
    async def whole(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[Traces | None]:
        """Check that a closed backend leaves nothing behind, and that the server process is unchanged.

        Yield the traces from before the backend is opened.
        """
        folder = tmp_path_factory.mktemp("temporary")
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        before, state = traces() if sys.platform == "linux" else None, state_of_server()
        yield before
        assert state_of_server() == state, "a run changed the server process"
        assert [path.name for path in folder.iterdir()] == [], "temporary files were not removed"
        if before is not None:
            await assert_none_since(before, closed=True)

    @pytest.fixture
    async def trial(self, whole: Traces | None, sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Trial]:
        """Yield a Trial. Each case ends with a run that checks the sandbox, and with a check for leftovers."""
        before = None if whole is None else traces(whole.processes, with_groups=False)
        trial = Trial(sandbox, tmp_path)
        yield trial
        await trial.is_well()
        keeps_imports = (
            isinstance(sandbox, KeepsWarm) and sandbox.warm()
        )  # warm processes stay until the backend is closed
        if before is not None and not keeps_imports:
            await assert_none_since(before)


def state_of_server() -> tuple[object, ...]:
    """Return properties of the server process that a run might change."""
    umask = os.umask(0o022)
    os.umask(umask)
    return Path.cwd(), umask, os.getpriority(os.PRIO_PROCESS, 0), socket.gethostname()
