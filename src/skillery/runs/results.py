"""Results of the methods that run skills, code and tools, and of the methods that read runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from skillery.backends import Language, NetworkUse, Progress
from skillery.contents.blob_rows import OutputFile
from skillery.context.queue import PackageWait
from skillery.identity.access import Who
from skillery.registry.cursors import NextCursor
from skillery.runs.failures import FailureGroup
from skillery.runs.packages import GivenEnvironment
from skillery.workspaces.usage import WorkspaceUse

Status = Literal["queued", "started", "completed", "failed"]
EndStatus = Literal["completed", "failed"]
State = Literal["waiting_for_packages"]
T = TypeVar("T")


class Waiting(TypedDict, total=False):
    """The fields of an answer about a run that waits for its packages."""

    state: State
    packages: PackageWait


def waiting_for(packages: PackageWait | None) -> Waiting:
    """Return the fields for a run that waits for packages, or no fields if it does not wait for packages."""
    return {"state": "waiting_for_packages", "packages": packages} if packages is not None else {}


def if_set(value: T | UnsetType) -> T | None:
    """Return the value of an optional field, or None if the field is omitted."""
    return None if value is UNSET else value


class RunError(Struct, frozen=True):
    """The reason why a run failed."""

    type: Annotated[str, Meta(description="A failure type, or the class name of the exception")]
    message: str
    traceback: Annotated[str | UnsetType, Meta(description="Frames of user code only")] = UNSET


class ExactSkill(Struct, frozen=True):
    """A skill in an exact version."""

    name: str
    version: str
    digest: str


class Run(Struct, frozen=True, kw_only=True):
    """A run that has ended, or a run that was started in the background. A failed run is a result, not an error."""

    status: Annotated[Status, Meta(description="queued and started only for a run in the background")]
    run_id: str
    summary: str
    output: Annotated[Any, Meta(description="What the code returned; over 4096 bytes a blob_id, size_bytes, preview")]
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float
    error: RunError | UnsetType = UNSET
    skill: ExactSkill | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET
    waited_for_packages_ms: float | UnsetType = UNSET
    degraded: list[str] | UnsetType = UNSET
    network: list[NetworkUse] | UnsetType = UNSET
    logs_blob: str | UnsetType = UNSET
    files: list[OutputFile] | UnsetType = UNSET
    warnings: Annotated[list[str] | UnsetType, Meta(description="Undeclared args, for example")] = UNSET
    workspace: WorkspaceUse | UnsetType = UNSET
    state: Annotated[State | UnsetType, Meta(description="Only while the run waits for packages")] = UNSET
    packages: PackageWait | UnsetType = UNSET

    @property
    def end_status(self) -> EndStatus:
        """The status of a run that has ended."""
        return "completed" if self.status == "completed" else "failed"


class RunUse(Struct, frozen=True):
    """What an ended run has used. null: not measured."""

    queued_ms: Annotated[float | None, Meta(description="Time in the queue; null if the run did not wait")]
    prepared_ms: Annotated[float | None, Meta(description="Time in the sandbox before the code started")]
    memory_bytes: Annotated[int | None, Meta(description="The most memory of all processes together, with their files")]
    processes: Annotated[int | None, Meta(description="The most processes and threads at one time")]
    disk_bytes: Annotated[int | None, Meta(description="Size of the files in /workspace at the end of the code")]


class KeptCode(Struct, frozen=True):
    """The code of `run_code`, as far as it is kept."""

    language: Language
    entrypoint: str
    code: str
    is_cut: Annotated[bool, Meta(description="Whether the code was longer than the kept 64 KiB")]


CheckOf = Annotated[
    str | None, Meta(description="NAME@VERSION, if the run was an example in a check or an evaluation of a version")
]


class RunRecord(Struct, frozen=True, kw_only=True):
    """The record of a run."""

    status: Status
    run_id: str
    summary: str
    output: Any
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float | None
    error: RunError | UnsetType = UNSET
    skill: ExactSkill | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET
    degraded: list[str] | UnsetType = UNSET
    network: list[NetworkUse]
    logs_blob: str | None
    method: str
    tool: Annotated[str | None, Meta(description="The tool, if the run was a call of one")]
    script: Annotated[str | UnsetType, Meta(description="The script that ran, or -m and the module")] = UNSET
    check_of: CheckOf
    identity: Who
    client: Annotated[str, Meta(description='The program of the caller, such as claude-code; "" if unknown')]
    parent_run_id: str | None
    called_runs: Annotated[list[str] | UnsetType, Meta(description="Runs of skills that the code called")] = UNSET
    started_at: datetime | None
    finished_at: datetime | None
    limits: Any
    cancel_requested_at: datetime | UnsetType = UNSET
    progress: Annotated[Progress | UnsetType, Meta(description="What the code said last, until the run ends")] = UNSET
    files: list[OutputFile] | UnsetType = UNSET
    workspace: WorkspaceUse | UnsetType = UNSET
    used: RunUse | UnsetType = UNSET
    code: Annotated[KeptCode | UnsetType, Meta(description="The code of a run of run_code; not with wait_ms")] = UNSET
    same_failure: Annotated[
        FailureGroup | UnsetType, Meta(description="Failed runs of all callers like this one; not with wait_ms")
    ] = UNSET
    state: Annotated[State | UnsetType, Meta(description="Only while the run waits for packages")] = UNSET
    packages: PackageWait | UnsetType = UNSET


class RunLog(Struct, frozen=True):
    """A part of the log of a run."""

    run_id: str
    status: Status
    text: Annotated[str, Meta(description="The log from start to next; control characters are escaped")]
    start: Annotated[int, Meta(description="Offset of the text in the log, in bytes")]
    next: Annotated[int, Meta(description="Offset behind the text: pass it as after to read on")]
    dropped_bytes: Annotated[int, Meta(description="Bytes between after and start that were not kept")]
    ended: Annotated[bool, Meta(description="Whether the run has ended and there is no more text")]
    progress: Progress | UnsetType = UNSET
    state: Annotated[State | UnsetType, Meta(description="Only while the run waits for packages")] = UNSET
    packages: PackageWait | UnsetType = UNSET


class RunRow(Struct, frozen=True):
    """A run in a list."""

    run_id: str
    status: Status
    method: str
    tool: str | None
    skill: ExactSkill | None
    check_of: CheckOf
    summary: str
    error_type: str | None
    identity: Who
    parent_run_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    duration_ms: float | None


class RunPage(Struct, frozen=True):
    """A page of runs, newest first."""

    runs: Sequence[RunRow]
    next_cursor: NextCursor


class ToolResult(Struct, frozen=True):
    """The result of a tool. A failed tool is a result, not an error."""

    result: Annotated[Any, Meta(description='What the agent gets: the handler\'s value, or {"error": "…"}')]
    is_error: bool
    skill: Annotated[ExactSkill | None, Meta(description="null for a tool of a session")]
    run_id: Annotated[str | None, Meta(description="null if there was nothing to run")]
    logs_preview: str
    output_blobs: list[str]
    files: list[OutputFile] | UnsetType = UNSET
    workspace: WorkspaceUse | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET
    status: Annotated[Status | UnsetType, Meta(description="queued or started, for a run in the background")] = UNSET
    warnings: Annotated[list[str] | UnsetType, Meta(description="Undeclared args, for example")] = UNSET
    state: Annotated[State | UnsetType, Meta(description="Only while the run waits for packages")] = UNSET
    packages: PackageWait | UnsetType = UNSET
