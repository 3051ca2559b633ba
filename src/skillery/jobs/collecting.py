"""Collection: keep the output files of a run that was stopped before its code could keep them, and save its workspace.

A separate process collects. It sees the workspace, and executes no code of the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from cellblock.host import sessions
from cellblock.host.channel import BrokenSetup, Channel
from cellblock.host.dialogue import header
from cellblock.host.plan import cpu_seconds
from skillery.backends import Job, Limits, RunHost
from skillery.jobs.dialogue import Dialogue
from skillery.jobs.header import MEBIBYTE
from skillery.jobs.outcomes import RunSession, limits_of

log = logging.getLogger(__name__)
LIMITS = Limits(timeout_ms=30_000)
"""Limits of the collecting process."""
SECONDS = 10.0
BYTES_PER_SECOND = 20 << 20
"""An ending run waits for a collection of at least this speed."""


class Collection(msgspec.Struct, frozen=True):
    """The files to collect from an ended run, and the folder in which the collecting process sees them."""

    job: Job
    kept: Iterable[str] | None
    """Paths of the files that the code kept before it was stopped. None if the code kept all its files itself."""
    folder: str = "/workspace"
    lock_folder: str = "/tmp"  # noqa: S108 - a path of the sandbox
    """Any folder that the collecting process can open."""

    @property
    def seconds(self) -> float:
        """Time limit of the collection in seconds."""
        return SECONDS + (self.job.limits.disk_mb << 20) / BYTES_PER_SECOND

    def header(self) -> dict[str, Any]:
        """Return the header for the collecting process."""
        order = {
            "collect": {
                "folder": self.folder,
                "outputs": list(self.job.outputs),
                "gathers": self.kept is not None,
                "kept": list(self.kept or ()),
                "workspace": {"most_bytes": self.job.limits.disk_mb << 20} if saves(self.job) else None,
            }
        }
        described = header(timeout_ms=0, result_bytes=MEBIBYTE, workspace=self.lock_folder, guest=order)
        return described | {
            "cpu_seconds": cpu_seconds(limits_of(LIMITS)),
            "memory_bytes": LIMITS.memory_mb << 20,
        }


def saves(job: Job) -> bool:
    """Return whether the workspace of the job is saved when its run has ended."""
    return job.workspace is not None and job.workspace.saves


def collecting_dialogue(channel: Channel, collection: Collection, host: RunHost) -> Dialogue:
    """Return the dialogue with the collecting process."""
    return Dialogue(channel, msgspec.structs.replace(collection.job, files=(), workspace=None), host, collects=True)


def collection_of(
    session: RunSession | sessions.RunSession,
    job: Job,
    folder: str = "/workspace",
    lock_folder: str = "/tmp",  # noqa: S108 - as above
) -> Collection | None:
    """Return the files to collect from an ended run, or None if no file is collected."""
    dialogue = session.dialogue
    if not isinstance(dialogue, Dialogue):  # the code could not start
        return None
    gathers = dialogue.heard_at is None
    if not (gathers or saves(job)):
        return None
    return Collection(job, frozenset(dialogue.kept) if gathers else None, folder, lock_folder)


async def collect(dialogue: Dialogue) -> None:
    """Let the collecting process begin, and pass the files to the host until it ends. Raise BrokenSetup if it fails.

    The process must have received its header.
    """
    await dialogue.go()
    await dialogue.listen()
    if dialogue.failure is not None or dialogue.result is None:
        raise BrokenSetup(dialogue.failure.message if dialogue.failure else "the collecting process ended")


async def try_to_collect(work: Any, collection: Collection) -> None:
    """Await `work` until it ends, or until the time limit of the collection is over.

    An error is logged and does not change the outcome of the run. Its uncollected files are lost.
    """
    try:
        async with asyncio.timeout(collection.seconds):
            await work
    except Exception as error:  # noqa: BLE001 - the backend is ending a run
        log.warning("the files of %s could not be collected: %s", collection.job.run_id, error or type(error).__name__)
