"""The parameters of the methods for workspaces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skillery.method import Cursor, PageLimit, Params, about
from skillery.methods.params import RunFile

WORKSPACE_METHODS = (
    "create_workspace",
    "list_workspaces",
    "describe_workspace",
    "read_workspace_file",
    "reset_workspace",
    "delete_workspace",
)
Id = Annotated[str, Meta(min_length=1, max_length=64)]
LIFETIME, LONGEST_LIFETIME = 7 * 86_400, 90 * 86_400


class CreateWorkspace(Params, frozen=True, kw_only=True):
    """Create a workspace: files that stay from run to run."""

    origin: Annotated[
        str, about("Workspace (ws_…) or snapshot (sha256:…) to fork, or a run (run_…) whose snapshot to fork")
    ] = ""
    name: Annotated[str, Meta(max_length=200), about("Any text, shown in lists")] = ""
    files: Annotated[list[RunFile], about("Blobs to copy into a new workspace")] = msgspec.field(default_factory=list)
    ttl: Annotated[
        int, Meta(ge=60, le=LONGEST_LIFETIME), about("Seconds after its last use until it expires", default=LIFETIME)
    ] = LIFETIME


class ListWorkspaces(Params, frozen=True, kw_only=True):
    """List your workspaces."""

    limit: PageLimit = 50
    cursor: Cursor = ""


class DescribeWorkspace(Params, frozen=True, kw_only=True):
    """Describe a workspace, its files and its snapshots."""

    workspace: Annotated[Id, about("The workspace's id")]
    path: Annotated[str, about("Only files at or below this path")] = ""
    limit: Annotated[int, Meta(ge=1, le=1000), about("Maximum number of files", default=200)] = 200
    cursor: Cursor = ""


class ReadWorkspaceFile(Params, frozen=True, kw_only=True):
    """Read a file of a workspace."""

    workspace: Annotated[Id, about("The workspace's id")]
    path: Annotated[str, about("Path of the file (e.g., 'data/orders.csv')")]


class ResetWorkspace(Params, frozen=True, kw_only=True):
    """Return a workspace to an earlier snapshot: undo runs with bad results."""

    workspace: Annotated[Id, about("The workspace's id")]
    snapshot: Annotated[str, about("Digest of the snapshot (e.g., 'before' of a run)")]


class DeleteWorkspace(Params, frozen=True, kw_only=True):
    """Delete a workspace and its snapshots."""

    workspace: Annotated[Id, about("The workspace's id")]


_RUN: Mapping[str, Any] = {
    "workspace": {
        "type": "string",
        "description": "Workspace whose files are in /workspace and stay for later runs (ws_…), or a snapshot of one",
    },
    "workspace_mode": {
        "type": "string",
        "enum": ["write", "read"],
        "description": "'read': save nothing, so that other runs may use the workspace",
        "default": "write",
    },
}


def with_workspaces(
    shown: Mapping[str, Mapping[str, Any]], methods: Collection[str]
) -> Mapping[str, Mapping[str, Any]]:
    """Return the additional properties of tools. If a model gets a method of WORKSPACE_METHODS, its tools that run code
    also show `workspace`.
    """
    if not any(name in methods for name in WORKSPACE_METHODS):
        return shown
    return {**shown, **{name: {**shown.get(name, {}), **_RUN} for name in ("run_code", "execute_skill")}}
