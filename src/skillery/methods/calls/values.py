"""Functions that convert params to values of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from skillery.formats.names import parse_skill_name
from skillery.formats.paths import plain_path
from skillery.formats.version_spec import VersionSpec, parse_version_spec
from skillery.methods import params
from skillery.runs import RunFile, parse_files

T = TypeVar("T")


def which(name: str, version: str) -> tuple[str, VersionSpec]:
    return parse_skill_name(name), parse_version_spec(version)


def run_files(files: Sequence[params.RunFile]) -> tuple[RunFile, ...]:
    """Return the files to copy into the workspace of a run. Raise InvalidPath or InvalidParams if a file is not
    valid.
    """
    return (
        parse_files([RunFile(plain_path(file.path), file.blob_id, file.executable) for file in files]) if files else ()
    )
