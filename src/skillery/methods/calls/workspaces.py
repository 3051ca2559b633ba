"""Methods for workspaces."""

from __future__ import annotations

from skillery.backends import Identity
from skillery.formats.paths import plain_path
from skillery.methods import workspace_params as params
from skillery.methods.calls.values import run_files
from skillery.methods.core import Core
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.workspaces.methods import GivenFile
from skillery.workspaces.results import (
    DeletedWorkspace,
    DescribedWorkspace,
    WorkspaceFileContent,
    WorkspaceInfo,
    WorkspacePage,
)


async def create_workspace(core: Core, identity: Identity, asked: params.CreateWorkspace) -> WorkspaceInfo:
    files = [GivenFile(file.path, file.blob_id, file.executable) for file in run_files(asked.files)]
    return await core.workspaces.create(
        identity, origin=asked.origin, name=asked.name, files=files, ttl_seconds=asked.ttl
    )


async def list_workspaces(core: Core, identity: Identity, asked: params.ListWorkspaces) -> WorkspacePage:
    key, bound_to = core.registry.cursor_key, ("list_workspaces", identity.name)
    after = read_cursor(key, bound_to, asked.cursor, 1)[0] if asked.cursor else ""
    found = await core.workspaces.list_workspaces(identity, after, asked.limit + 1)
    page = found[: asked.limit]
    more = make_cursor(key, bound_to, (page[-1].id,)) if len(found) > len(page) else None
    return WorkspacePage(page, more)


async def describe_workspace(core: Core, identity: Identity, asked: params.DescribeWorkspace) -> DescribedWorkspace:
    key, bound_to = core.registry.cursor_key, ("describe_workspace", identity.name, asked.workspace, asked.path)
    after = read_cursor(key, bound_to, asked.cursor, 1)[0] if asked.cursor else ""
    about, found, snapshots = await core.workspaces.describe(
        identity, asked.workspace, asked.path, after, asked.limit + 1
    )
    page = found[: asked.limit]
    more = make_cursor(key, bound_to, (page[-1].path,)) if len(found) > len(page) else None
    return DescribedWorkspace(about, page, more, snapshots)


async def read_workspace_file(core: Core, identity: Identity, asked: params.ReadWorkspaceFile) -> WorkspaceFileContent:
    return await core.workspaces.read_file(identity, asked.workspace, plain_path(asked.path))


async def reset_workspace(core: Core, identity: Identity, asked: params.ResetWorkspace) -> WorkspaceInfo:
    return await core.workspaces.reset(identity, asked.workspace, asked.snapshot)


async def delete_workspace(core: Core, identity: Identity, asked: params.DeleteWorkspace) -> DeletedWorkspace:
    return await core.workspaces.delete(identity, asked.workspace)
