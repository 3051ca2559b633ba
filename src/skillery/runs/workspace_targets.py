"""The workspace that a request names, and whether the skill may run in it."""

from __future__ import annotations

from skillery.backends import Identity
from skillery.errors import WorkspaceNotAccepted
from skillery.formats.manifest import Manifest
from skillery.runs.permissions import has_permissions
from skillery.runs.requests import CodeRequest, SkillRequest, ToolRequest
from skillery.workspaces.usage import RunWorkspaces, Target


class WorkspaceTargets:
    """Finds the workspaces of requests."""

    def __init__(self, workspaces: RunWorkspaces) -> None:
        self._workspaces = workspaces

    async def find(
        self, identity: Identity, request: SkillRequest | CodeRequest | ToolRequest, manifest: Manifest | None = None
    ) -> Target | None:
        """Return the workspace that the request names, or None if it names none. `manifest` belongs to the skill.

        Raise WorkspaceNotFound or SnapshotNotFound if there is no such workspace or snapshot. Raise
        WorkspaceNotAccepted if the skill has permissions and its manifest does not accept a workspace.
        """
        if not request.workspace:
            return None
        if manifest is not None and has_permissions(manifest) and not manifest.permissions.workspace:
            raise _no_workspace(manifest.name)
        return await self._workspaces.find(identity, request.workspace, request.workspace_mode)


def _no_workspace(name: str) -> WorkspaceNotAccepted:
    # The files of a workspace come from other code: they could steer what the skill does with its permissions.
    return WorkspaceNotAccepted(
        f"'{name}' has permissions, and its manifest does not accept a workspace",
        hint="Leave 'workspace' out, and pass single files in 'files'. The author can accept workspaces with "
        "'workspace = true' in [runtime].",
        name=name,
    )
