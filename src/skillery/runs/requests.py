"""The parsed requests for runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from skillery.backends import Language
from skillery.formats.version_spec import VersionSpec
from skillery.workspaces.run_files import RunFile

WorkspaceMode = Literal["write", "read"]
Method = Literal["execute_skill", "run_code", "call_tool"]


class SkillRequest(msgspec.Struct, frozen=True):
    """The request of execute_skill."""

    name: str
    version: str
    args: Mapping[str, Any]
    input_blobs: Sequence[str]
    timeout_ms: int | None
    script: str = ""
    """A file to be run as a program, for a skill without an entrypoint. "" means none."""
    environment: str | None = None
    """The named environment for a skill that declares no packages. "" means none; None means the default
    environment.
    """
    files: Sequence[RunFile] = ()
    outputs: Sequence[str] = ()
    """Globs of files that the run keeps."""
    workspace: str = ""
    """The id of a workspace, or the digest of a snapshot; "" for none."""
    workspace_mode: WorkspaceMode = "write"
    """With `read`, nothing is saved, and other runs may write the workspace."""
    module: str = ""
    """A module to be run like `python -m`, for a skill without an entrypoint. "" means none."""
    in_skill: bool = False
    """Whether a script or module starts in the folder of its skill."""
    background: bool = False
    """Whether the caller gets the answer as soon as the run has a record, instead of at the end of the run."""


class CodeRequest(msgspec.Struct, frozen=True):
    """The request of run_code."""

    code: str
    entrypoint: str
    args: Mapping[str, Any]
    mount_skills: Sequence[str]
    input_blobs: Sequence[str]
    limits: Mapping[str, Any]
    language: Language = "python"
    environment: str | None = None
    """The named environment. "" means none; None means the default environment."""
    files: Sequence[RunFile] = ()
    outputs: Sequence[str] = ()
    """Globs of files that the run keeps."""
    workspace: str = ""
    """The id of a workspace, or the digest of a snapshot; "" for none."""
    workspace_mode: WorkspaceMode = "write"
    """With `read`, nothing is saved, and other runs may write the workspace."""
    background: bool = False
    """Like `SkillRequest.background`."""


class ToolRequest(msgspec.Struct, frozen=True):
    """The request of call_tool."""

    name: str
    args: Mapping[str, Any]
    skill: tuple[str, VersionSpec] | None = None
    """The skill of the tool, with a version spec. If None, the tool is looked up by its name alone."""
    session: str = ""
    input_blobs: Sequence[str] = ()
    timeout_ms: int | None = None
    environment: str | None = None
    """Like `SkillRequest.environment`."""
    files: Sequence[RunFile] = ()
    outputs: Sequence[str] = ()
    """Globs of files that the run keeps."""
    workspace: str = ""
    """The id of a workspace, or the digest of a snapshot; "" for none."""
    workspace_mode: WorkspaceMode = "write"
    """With `read`, nothing is saved, and other runs may write the workspace."""
    background: bool = False
    """Like `SkillRequest.background`."""
