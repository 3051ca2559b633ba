"""The registry: which skills and versions there are. Rules and SQL; no sandbox, no publishing checks."""

from skillery.registry.cursors import cursor_key
from skillery.registry.describing import describe_skill
from skillery.registry.inserting import NewVersion, insert_version, version_if_taken
from skillery.registry.lifecycle import (
    approve_version,
    deprecate_skill,
    reject_version,
    set_visibility,
    submit_version,
    undeprecate_skill,
    unyank_version,
    yank_version,
)
from skillery.registry.listing import list_skills
from skillery.registry.reading import files_of, read_skill_file
from skillery.registry.resolving import VersionRow, resolve
from skillery.registry.seeing import Visibility
from skillery.registry.usage import Usage, count_run, usage_of

__all__ = [
    "NewVersion",
    "Usage",
    "VersionRow",
    "Visibility",
    "approve_version",
    "count_run",
    "cursor_key",
    "deprecate_skill",
    "describe_skill",
    "files_of",
    "insert_version",
    "list_skills",
    "read_skill_file",
    "reject_version",
    "resolve",
    "set_visibility",
    "submit_version",
    "undeprecate_skill",
    "unyank_version",
    "usage_of",
    "version_if_taken",
    "yank_version",
]
