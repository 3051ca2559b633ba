"""The registry: which skills and versions there are. Rules and SQL; no sandbox, no publishing checks."""

from skillery.registry.checks import CheckedExample, CheckFinding, Checks, checks_of, compare_permissions, with_examples
from skillery.registry.cursors import cursor_key
from skillery.registry.describing import describe_skill
from skillery.registry.inserting import NewVersion, insert_version, version_if_taken
from skillery.registry.lifecycle import (
    approve_version,
    deprecate_skill,
    look_at_approval,
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
from skillery.registry.waivers import Waiver, judge, list_waivers, revoke_waiver, waive_finding

__all__ = [
    "CheckFinding",
    "CheckedExample",
    "Checks",
    "NewVersion",
    "VersionRow",
    "Visibility",
    "Waiver",
    "approve_version",
    "checks_of",
    "compare_permissions",
    "cursor_key",
    "deprecate_skill",
    "describe_skill",
    "files_of",
    "insert_version",
    "judge",
    "list_skills",
    "list_waivers",
    "look_at_approval",
    "read_skill_file",
    "reject_version",
    "resolve",
    "revoke_waiver",
    "set_visibility",
    "submit_version",
    "undeprecate_skill",
    "unyank_version",
    "version_if_taken",
    "waive_finding",
    "with_examples",
    "yank_version",
]
