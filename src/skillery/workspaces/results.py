"""Results of the methods for workspaces."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skillery.backends import KeptFile
from skillery.workspaces.rows import WorkspaceRow


class WorkspaceInfo(msgspec.Struct, frozen=True):
    """A workspace."""

    id: str
    name: str
    snapshot: Annotated[str, Meta(description="Digest of its current snapshot")]
    size_bytes: int
    files: int
    created_at: datetime
    expires_at: Annotated[datetime, Meta(description="Later by its ttl after each use")]
    run_id: Annotated[str | None, Meta(description="The run that writes it now")]
    parent: Annotated[str | None, Meta(description="The workspace, snapshot or run that it was forked from")]


class DeletedWorkspace(msgspec.Struct, frozen=True):
    """A deleted workspace."""

    id: str


class WorkspacePage(msgspec.Struct, frozen=True):
    """A page of workspaces."""

    workspaces: list[WorkspaceInfo]
    next_cursor: str | None


class WorkspaceFile(msgspec.Struct, frozen=True):
    """A file, an empty folder or a symbolic link of a workspace."""

    path: str
    kind: Literal["file", "folder", "link"]
    size_bytes: int
    sha256: str
    executable: bool


class Snapshot(msgspec.Struct, frozen=True):
    """A kept state of a workspace."""

    snapshot: str
    size_bytes: int
    files: int
    run_id: Annotated[str | None, Meta(description="The run that left it")]
    created_at: datetime


class DescribedWorkspace(msgspec.Struct, frozen=True):
    """A workspace with a page of its files and its snapshots, newest first."""

    workspace: WorkspaceInfo
    entries: list[WorkspaceFile]
    next_cursor: str | None
    snapshots: list[Snapshot]


class WorkspaceFileContent(msgspec.Struct, frozen=True):
    """The content of a file of a workspace."""

    content: str
    encoding: Literal["utf-8", "base64"]


def info(row: WorkspaceRow) -> WorkspaceInfo:
    """Return a workspace as the methods show it."""
    return WorkspaceInfo(
        row.id,
        row.name,
        row.snapshot,
        row.size_bytes,
        row.files,
        row.created_at,
        row.expires_at,
        row.run_id,
        row.parent,
    )


def shown(file: KeptFile) -> WorkspaceFile:
    """Return a manifest entry as describe_workspace shows it."""
    kind: Literal["file", "folder", "link"] = "file" if file.is_file else "link" if file.target else "folder"
    return WorkspaceFile(file.path, kind, file.size_bytes, file.sha256, file.mode == "100755")
