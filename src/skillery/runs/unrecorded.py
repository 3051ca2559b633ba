"""Runs of the server's own code, which checks unpublished files. These runs have no record and no permissions."""

from __future__ import annotations

from skillery.backends import Identity, Outcome, RunHost
from skillery.context.queue import Queue
from skillery.errors import BlobNotFound, NotAllowed
from skillery.formats.texts import new_blob_id
from skillery.runs.execution import Execution
from skillery.runs.preparation import Preparer
from skillery.runs.trials import Trial

UNBOUNDED = 1 << 40
"""The length of the queue, which is never reached: the server already limits the requests of its callers."""


class UnrecordedRuns:
    """Executes checks of unpublished files, at most `at_once` at a time.

    They have their own queue, so that long runs do not delay a publisher. Callers take turns.
    """

    def __init__(self, preparer: Preparer, execution: Execution, at_once: int) -> None:
        self._preparer = preparer
        self._execution = execution
        self._queue = Queue(at_once, UNBOUNDED, UNBOUNDED)

    async def run(self, identity: Identity, trial: Trial, code: str) -> Outcome:
        """Run `code` with `trial.args`, and return the outcome. The skill and its packages are mounted.

        If the sandbox cannot run the code, the outcome has a failure. Raise Unavailable if the client disconnects while
        the run waits. Cancelling the call ends the run.
        """
        prepared = await (await self._preparer.trial(trial, code)).with_packages()
        slot = await self._queue.enter(identity.name, 0)
        try:
            return await self._execution.execute_unrecorded(prepared.for_caller(identity), DroppingHost())
        finally:
            slot.leave()


class DroppingHost(RunHost):
    """A host that accepts blobs and does not store them. Code that is imported by a check may write blobs."""

    async def begin_blob(self, kind: str, path: str | None = None) -> DroppedBlob:
        return DroppedBlob()

    async def read_blob(self, blob_id: str) -> bytes:
        raise BlobNotFound(f"no blob {blob_id[:80]}")

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed("a file cannot call skills while it is imported")


class DroppedBlob:
    """The `BlobWriter` of a blob that is not stored."""

    async def write(self, chunk: bytes) -> None:
        """Discard the chunk."""

    async def commit(self) -> str:
        return new_blob_id()

    async def abort(self) -> None:
        """Do nothing."""
