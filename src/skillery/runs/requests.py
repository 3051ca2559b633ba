"""What callers ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from skillery.backends import Language
from skillery.formats.version_spec import VersionSpec
from skillery.runs.input_files import RunFile

Method = Literal["execute_skill", "run_code", "call_tool"]


class SkillRequest(msgspec.Struct, frozen=True):
    name: str
    version: str
    args: Mapping[str, Any]
    input_blobs: Sequence[str]
    timeout_ms: int | None
    script: str = ""
    """A file of a skill without `[runtime]` that is run as a program; "" calls the skill's entrypoint."""
    environment: str | None = None
    """A named environment, for a skill that declares no packages; "" is none, None the default."""
    files: Sequence[RunFile] = ()
    module: str = ""
    """A module of a skill without `[runtime]` that is run as `python -m` does, in place of `script`."""
    in_skill: bool = False
    """Whether a script or module starts in the folder of its skill."""


class CodeRequest(msgspec.Struct, frozen=True):
    code: str
    entrypoint: str
    args: Mapping[str, Any]
    mount_skills: Sequence[str]
    input_blobs: Sequence[str]
    limits: Mapping[str, Any]
    language: Language = "python"
    environment: str | None = None
    """A named environment; "" is none, None the default."""
    files: Sequence[RunFile] = ()


class ToolRequest(msgspec.Struct, frozen=True):
    name: str
    args: Mapping[str, Any]
    skill: tuple[str, VersionSpec] | None = None
    """None: whichever the bare name means."""
    session: str = ""
    input_blobs: Sequence[str] = ()
    timeout_ms: int | None = None
    environment: str | None = None
    """As of a SkillRequest."""
    files: Sequence[RunFile] = ()
