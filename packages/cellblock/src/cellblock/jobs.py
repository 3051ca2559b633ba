"""A `Job` in a cell: check it, describe it to the process inside, and run it."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from cellblock.egress.policy import Policy
from cellblock.host.channel import Channel
from cellblock.host.dialogue import Dialogue, header
from cellblock.host.engine import Capabilities, CellRun, Needs
from cellblock.host.plan import mount_entries
from cellblock.host.sessions import run_whole
from cellblock.values import Busy, Host, Job, Language, Mount, Result, Template

LANGUAGES: tuple[Language, ...] = ("python", "javascript", "bash")
PYTHON_ENDING = ".py"
PACKAGES = "/packages/own"
CROWDED = {errno.EMFILE, errno.ENFILE, errno.EAGAIN}
"""Errors of a host on which no descriptor or process is free."""

# -- Checks of the arguments -------------------------------------------------------------------------------------------


def check_job(job: Job, template: Template) -> None:
    """Raise ValueError if the job is not valid. The message names the argument and its value."""
    if (job.code is None) == (job.entry is None):
        raise ValueError("a job has either `code` or `entry`")
    if job.language not in LANGUAGES:
        raise ValueError(f"language is {job.language!r}; it must be one of {', '.join(LANGUAGES)}")
    for argument, text in (("args are", job.args), ("guest is", job.guest)):
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{argument} not JSON: {error}") from None
    job.limits.check()
    for mount in job.mounts:
        check_mount(mount, template)
    targets = [mount.target for mount in job.mounts]
    if len(set(targets)) < len(targets):
        raise ValueError("two mounts have the same target")
    if job.entry is not None:
        mount_of(job, job.entry)
    for name, value in job.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"environment: {name!r} is not a name, or its value has a NUL")
    Policy.parse(job.network)


def check_mount(mount: Mount, template: Template) -> None:
    """Raise ValueError if the target is not below a point of the template, or the source does not exist."""
    point, _, name = mount.target.rpartition("/")
    if point not in template.points or not is_name(name):
        points = ", ".join(template.points)
        raise ValueError(f"mount target {mount.target!r}: write POINT/NAME; the points are {points}")
    try:
        exists = mount.source.exists()
    except OSError:  # such as a name that is too long
        exists = False
    if not exists:
        raise ValueError(f"mount source {str(mount.source)!r} does not exist, or this process cannot see it")


def is_name(name: str) -> bool:
    """Return whether the text can be the name of a file in a folder."""
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name and len(name.encode()) < 256


def mount_of(job: Job, path: str) -> Mount:
    """Return the mount with the path. Raise ValueError if there is none."""
    for mount in job.mounts:
        if ".." not in path.split("/") and (path + "/").startswith(mount.target + "/"):
            return mount
    raise ValueError(f"entry {path!r} is not below the target of a mount")


# -- The run -----------------------------------------------------------------------------------------------------------


def program_of(job: Job) -> dict[str, Any] | None:
    """Return the description of the program of a job, or None if the job calls a Python function."""
    entry = PurePosixPath(job.entry or "/")
    if job.code is not None and job.language != "python":
        return {"form": "code", "language": job.language, "code": job.code, "entrypoint": job.function}
    if job.entry is not None and not job.entry.endswith(PYTHON_ENDING):  # also Python: `.py` as the whole name
        return {"form": "file", "name": entry.name, "path": job.entry, "root": mount_of(job, job.entry).target}
    return None


def header_of(job: Job, template: Template, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of a job for the process inside the sandbox, without the arguments."""
    program = program_of(job)
    return header(
        timeout_ms=job.limits.timeout_ms,
        result_bytes=job.limits.result_kb * 1024,
        code=job.code if program is None else None,
        file=(job.entry or "") if program is None else "",
        function=job.function if program is None else None,
        program={**program, "memory_mb": job.limits.memory_mb} if program else None,
        environment={**environment, **job.environment},
        packages=[PACKAGES] if template.packages is not None else [],
        guest=json.loads(job.guest),
        waits=template.guest is not None,
    )


def method(host: Host | None, name: str) -> Any:
    """Return a method of the host, or None if the class of the host does not define it."""
    return getattr(host, name, None) if getattr(type(host), name, None) is not getattr(Host, name) else None


class JobRun(CellRun):
    """A checked `Job` in a cell."""

    def __init__(self, capabilities: Capabilities, template: Template, job: Job, host: Host | None) -> None:
        sink = method(host, "log")
        is_program = program_of(job) is not None
        needs = Needs(job.limits, job.network, job.private_network, sink=sink, is_program=is_program)
        super().__init__(capabilities, needs)
        self._job = job
        self._template = template
        self._ask = method(host, "ask")
        self.busy: Busy | None = None
        """Set if the host had no room for the run."""

    def _mounts(self) -> Sequence[Mount]:
        return self._job.mounts

    def _entries(self) -> list[dict[str, Any]]:
        packages = self._template.packages
        shared = (Mount(packages, PACKAGES),) if packages is not None else ()
        return mount_entries((*shared, *self._job.mounts), root=self._capabilities.root)

    def _header(self, environment: Mapping[str, str]) -> dict[str, Any]:
        return header_of(self._job, self._template, environment)

    def _args(self) -> bytes:
        return self._job.args

    def _dialogue(self, channel: Channel) -> Dialogue:
        limits = self._job.limits
        return Dialogue(
            channel,
            result_bytes=limits.result_kb * 1024,
            disk_bytes=limits.disk_mb << 20,
            memory_mb=limits.memory_mb,
            waits=self._template.guest is not None,
            ask=self._ask,
        )

    def _refuse(self, problem: Exception, message: str) -> None:
        super()._refuse(problem, message)
        if isinstance(problem, Busy) or (isinstance(problem, OSError) and problem.errno in CROWDED):
            self.busy = Busy(message)


async def run_job(capabilities: Capabilities, template: Template, job: Job, host: Host | None = None) -> Result:
    """Run a checked job to its end. Raise Busy if the host has no room for it."""
    run = JobRun(capabilities, template, job, host)
    result = await run_whole(run)
    if run.busy is not None:
        raise run.busy
    return result
