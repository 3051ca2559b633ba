"""Calls of mounted skills with permissions. Each call is a separate run with the permissions of the called skill alone.

The two runs do not share network or secrets.
"""

from __future__ import annotations

import asyncio
import keyword
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Protocol

import msgspec

from skillery.backends import Job, Limits, Outcome, Progress, RunHost, SkillCall
from skillery.contents.blob_rows import BlobRow
from skillery.context.threads import BIG_TEXT, JSON
from skillery.errors import InvalidParams, NotAllowed, SkillFailed, TooLarge
from skillery.formats.texts import new_run_id
from skillery.formats.wording import quoted
from skillery.registry.version_rows import VersionRow
from skillery.runs.run_host import Host, Writer, live_output


def called_job(
    caller: Job, version: VersionRow, network: tuple[str, ...], function: str, args: bytes, limits: Limits
) -> Job:
    """Return the job of a called skill. The job has the blobs of the caller whose ids are in `args`.

    No other skill of the caller is mounted: its code on `sys.path` could use the permissions of the called skill.
    """
    mounts = [mount for mount in caller.skills if mount.name == version.name]
    return Job(
        run_id=new_run_id(),
        call=SkillCall(version.name, function, spread=True),
        args=args,
        skills=tuple(msgspec.structs.replace(mount, stub=False) for mount in mounts),
        blobs=tuple(blob for blob in caller.blobs if blob.blob_id.encode() in args),
        limits=limits,
        network=network,
    )


class CalledHost(RunHost):
    """The `RunHost` of a called run. It uses the blobs of the calling run, and cannot call skills."""

    def __init__(self, caller: Host, job: Job) -> None:
        self._caller = caller
        self.live = live_output(job)
        self.written: list[BlobRow] = []
        """Always empty: the blobs are recorded with the run that calls."""

    def printed(self, piece: bytes) -> None:
        self.live.add(piece)

    def progressed(self, progress: Progress) -> None:
        self.live.set_progress(progress)

    async def begin_blob(self, kind: str, path: str | None = None) -> Writer:
        return await self._caller.begin_blob(kind, path)

    async def read_blob(self, blob_id: str) -> bytes:
        return await self._caller.read_blob(blob_id)

    async def blob_pieces(self, blob_id: str) -> tuple[int, AsyncIterator[bytes]]:
        return await self._caller.blob_pieces(blob_id)

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed(f"a called skill cannot call '{skill[:128]}'")

    async def keep(self, content: bytes, kind: str) -> str | None:
        """Store no blob and return None.

        No blob is needed: the code of the calling run receives the whole result. The record of the called run has a
        preview.
        """


class RunCalled(Protocol):
    """Runs a called skill."""

    def __call__(self, version: VersionRow, function: str, args: bytes, left_ms: int) -> Awaitable[Outcome]: ...


class Calls:
    """The skill calls of one run.

    Any code in the sandbox can send a call. So each call is checked: only skills that the run mounts as stubs can be
    called.
    """

    def __init__(self, stubs: Mapping[str, VersionRow], limits: Limits, run: RunCalled) -> None:
        self._stubs = stubs
        self._limits = limits
        self._run = run
        self._made = 0
        self._until = time.monotonic() + limits.timeout_ms / 1000
        self._alone = asyncio.Lock()

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        """See `RunHost.call_skill`. Calls run one after another. Waiting counts towards the time limit of the
        calling run.
        """
        version = self._stubs.get(skill)
        if version is None:
            raise NotAllowed(f"this run mounts no skill {quoted(skill[:128])} that has permissions")
        if not function.isidentifier() or keyword.iskeyword(function):
            raise InvalidParams(f"{quoted(function[:128])} is not the name of a function")
        if len(args) > BIG_TEXT:
            await JSON.run(check_args, args)
        else:
            check_args(args)
        if self._made >= self._limits.calls:
            raise TooLarge(f"this run has called skills {self._made} times, which is its limit")
        self._made += 1
        async with self._alone:
            left_ms = max(1, int((self._until - time.monotonic()) * 1000))
            outcome = await self._run(version, function, args, left_ms)
        if outcome.failure is not None:
            raise SkillFailed(outcome.failure.message, failed_as=outcome.failure.type)
        return outcome.result or b"null"


class _Args(msgspec.Struct, forbid_unknown_fields=True):
    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]


def check_args(args: bytes) -> None:
    """Raise InvalidParams if the arguments of a call do not have the form `{"args": […], "kwargs": {…}}`."""
    try:
        msgspec.json.decode(str(args, "utf-8"), type=_Args)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        form = '{"args": [...], "kwargs": {...}}'
        raise InvalidParams(f"the arguments of a call are not JSON of the form {form}") from None
