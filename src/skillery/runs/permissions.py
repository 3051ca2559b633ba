"""The permissions of a run. A version that was never published gets the permissions of its manifest only in some
runs: the caller could approve the version.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from skillery.backends import Failure, FailureType, Identity
from skillery.errors import NotExecutable, WorkspaceNotAccepted
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.identity import access
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED
from skillery.runs.requests import RunParams
from skillery.tools.tool_lookup import tool_run_by
from skillery.workspaces.usage import RunWorkspaces, Target


class Granted(NamedTuple):
    """The permissions of a run. `why_less` is the reason if they are fewer than in the manifest, else ""."""

    permissions: Permissions = Permissions()
    why_less: str = ""
    failure: Failure | None = None
    """Set if the skill declares secrets and gets none: the run then fails before its code starts."""

    @property
    def network(self) -> tuple[str, ...]:
        """The network addresses that the run may reach, in the form of `Job.network`."""
        return network_of(self.permissions)


def network_of(permissions: Permissions) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in permissions.network)


def has_permissions(manifest: Manifest) -> bool:
    """Return whether the skill declares permissions. Its runs may then have more permissions than code of run_code."""
    return bool(manifest.permissions.network or manifest.permissions.secrets)


def granted(identity: Identity, version: VersionRow, manifest: Manifest, rules: access.ApprovalRules) -> Granted:
    """Return the permissions of a run of the version that `identity` starts.

    A version that was never published gets network and secrets only if the caller could approve the version. Else
    authors could use both without a review.
    """
    could_approve = access.approves(identity, version.name, version.publisher, rules)
    permissions = manifest.permissions if version.status in WAS_PUBLISHED or could_approve else Permissions()
    if permissions == manifest.permissions:
        return Granted(permissions)
    why_less = _why_less(version, manifest.permissions)
    failure = Failure(FailureType.SECRET_NOT_GRANTED, why_less) if manifest.permissions.secrets else None
    return Granted(permissions, why_less, failure)


def _why_less(version: VersionRow, listed: Permissions) -> str:
    rights = " and ".join(word for word, some in (("network", listed.network), ("secrets", listed.secrets)) if some)
    return (
        f"'{version.name}' {version.version} is {version.status}: it gets its {rights} once a reviewer has approved "
        "it, or in a run of a reviewer's own"
    )


# -- Errors for skills and files that a request names and that cannot be executed that way -----------------------------


def not_executable(version: VersionRow, manifest: Manifest) -> NotExecutable:
    if manifest.kind == "instruction":
        return NotExecutable(
            f"'{version.name}' is an instruction skill: there is nothing to execute",
            hint="Read its SKILL.md with read_skill_file and follow it. If that names a script of the skill, pass "
            "its path as 'script'.",
            name=version.name,
        )
    return NotExecutable(
        f"'{version.name}' has no entrypoint: it offers tools",
        hint="Call one with call_tool, or pass the path of one of its files as 'script'.",
        name=version.name,
    )


def has_entrypoint(version: VersionRow, runtime: Runtime) -> NotExecutable:
    return NotExecutable(
        f"'{version.name}' has an entrypoint, {runtime.entrypoint}: no other file of it can be run as a script",
        hint="Leave 'script' out.",
        name=version.name,
    )


def check_no_handler(connection: Connection, version: VersionRow, path: str) -> None:
    """Raise NotExecutable if the file is the handler of a tool.

    The declared arguments of a tool limit what it does with secrets and network. So its handler starts only with them.
    """
    tool = tool_run_by(connection, version, path)
    if tool is not None:
        raise NotExecutable(
            f"{path} is the handler of the tool '{tool}' of '{version.name}', which has permissions",
            hint=f"Call it with call_tool: '{version.name}/{tool}'.",
            name=version.name,
        )


# -- The workspace that a request names, and whether the skill may run in it -------------------------------------------


class WorkspaceTargets:
    """Finds the workspaces of requests."""

    def __init__(self, workspaces: RunWorkspaces) -> None:
        self._workspaces = workspaces

    async def find(self, identity: Identity, request: RunParams, manifest: Manifest | None = None) -> Target | None:
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
