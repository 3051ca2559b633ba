"""What the methods for runs and tools answer: skillery.api.rpc.results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from skillery.api.rpc.answer import Answer, Cursor, WhoDid
from skillery.backends import NetworkUse


class RunError(Answer):
    """Why a run failed."""

    type: str
    message: str
    traceback: str | UnsetType = UNSET


class RunSkill(Answer):
    """Which skill ran."""

    name: str
    version: str
    digest: str


class OutputFile(Answer):
    """A blob that a run wrote and has a name for: a path below /workspace/out, or the name of a picture."""

    path: str
    blob_id: str
    kind: str
    size_bytes: int


class GivenEnvironment(Answer):
    """The named environment of a run, and the lock that it had."""

    name: str
    lock: str | None


class Run(Answer):
    """A run that has ended."""

    status: Literal["completed", "failed"]
    run_id: str
    summary: str
    output: Annotated[Any, Meta(description="What the code returned; over 4096 bytes a blob_id, size_bytes, preview")]
    output_blobs: list[str]
    logs_preview: str
    duration_ms: float
    error: RunError | UnsetType = UNSET
    skill: RunSkill | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET
    waited_for_packages_ms: float | UnsetType = UNSET
    degraded: list[str] | UnsetType = UNSET
    network: list[NetworkUse] | UnsetType = UNSET
    logs_blob: str | UnsetType = UNSET
    files: list[OutputFile] | UnsetType = UNSET


class RunRecord(Answer, kw_only=True):
    """A run, and what else is on record of it."""

    status: Literal["queued", "started", "completed", "failed"]
    run_id: str
    summary: str | None
    output: Any
    output_blobs: list[str]
    logs_preview: str | None
    duration_ms: float | None
    error: RunError | UnsetType = UNSET
    skill: RunSkill | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET
    degraded: list[str] | UnsetType = UNSET
    network: list[NetworkUse]
    logs_blob: str | None
    method: str
    tool: str | None
    identity: WhoDid
    parent_run_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    limits: Any
    cancel_requested_at: datetime | UnsetType = UNSET
    files: list[OutputFile] | UnsetType = UNSET


class OfferedTool(Answer):
    """A tool of a skill, or of a session."""

    name: str
    skill: str | None
    version: str | None
    description: str
    parameters: Any


class OfferedTools(Answer):
    """A page of tools, by skill and name."""

    tools: list[OfferedTool]
    next_cursor: Cursor


class ToolResult(Answer):
    """What a tool gave."""

    result: Annotated[Any, Meta(description='What the agent gets: the handler\'s value, or {"error": "…"}')]
    is_error: bool
    skill: RunSkill | None
    run_id: str | None
    logs_preview: str
    output_blobs: list[str]
    files: list[OutputFile] | UnsetType = UNSET
    environment: GivenEnvironment | UnsetType = UNSET


class ListedRun(Answer):
    """A run in a list."""

    run_id: str
    status: Literal["queued", "started", "completed", "failed"]
    method: str
    tool: str | None
    skill: RunSkill | None
    summary: str | None
    error_type: str | None
    identity: WhoDid
    parent_run_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    duration_ms: float | None


class ListedRuns(Answer):
    """A page of runs, newest first."""

    runs: list[ListedRun]
    next_cursor: Cursor
