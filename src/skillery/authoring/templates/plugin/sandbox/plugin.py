"""__DESCRIPTION__"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from cellblock.parts import HERE, BrokenSetup, Channel, run_whole
from skillery import hookimpl
from skillery.backends import LIMITS, Capability, Failure, FailureType, Job, Offer, Outcome, Probe, RunHost
from skillery.jobs import (
    GUEST,
    Collection,
    Dialogue,
    LogPipe,
    Places,
    RunSession,
    collect,
    collecting_dialogue,
    collection_of,
    filling_seconds,
    job_header,
    try_to_collect,
)

api_version = __API__
RUNNER = HERE
START = "import sys; sys.path.append('.'); from runtime import _run; _run.main(int(sys.argv[1]), *sys.argv[2:])"
SETUP_SECONDS = 20.0
LOG_SECONDS = 0.5
DEGRADED = (*sorted(LIMITS), "network")


class __CLASS__Sandbox:
    """See `skillery.backends.Sandbox`. Every outcome lists the missing limits in `degraded`."""

    # All features, and none of the guarantees in LIMITS. Add each guarantee that your isolation enforces.
    capabilities = frozenset(Capability) - LIMITS

    def probe(self) -> list[Probe]:
        return [Probe("isolation", False, "this sandbox isolates nothing", "Run only code you trust.", required=False)]

    async def start(self) -> None:
        """Check here whether this host supports your isolation. Raise SandboxUnavailable if the host does not."""

    async def run(self, job: Job, host: RunHost) -> Outcome:
        try:
            run = __CLASS__Run(job, host)
        except OSError as error:
            reason = f"the process could not be started: {error.strerror}"
            return Outcome(failure=Failure(FailureType.SANDBOX_ERROR, reason), degraded=DEGRADED)
        return await run_whole(run)

    async def close(self) -> None:
        """Release here what `start` has prepared."""


__RUN__


@hookimpl
def skillery_sandbox() -> Offer:
    return Offer("__OFFER__", lambda settings, place: __CLASS__Sandbox(), unsafe=True)
