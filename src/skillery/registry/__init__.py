"""The registry: which skills and versions there are. Rules and SQL; no sandbox, no publishing checks."""

from skillery.registry.checks import CheckedExample, CheckFinding, Checks, checks_of, compare_permissions, with_examples
from skillery.registry.cursors import cursor_key
from skillery.registry.describing import describe_skill
from skillery.registry.index_names import Listed, find_in_index, list_index
from skillery.registry.inserting import NewVersion, insert_version, version_if_taken
from skillery.registry.labels import MovedLabel, list_labels, remove_label, rollback_label, set_label
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
from skillery.registry.locking import Locked, Pin, Verified, resolve_skills, verify_lock
from skillery.registry.reading import files_of, read_inline_file, read_skill_file
from skillery.registry.resolving import VersionRow, resolve
from skillery.registry.searching import search_skills
from skillery.registry.seeing import Visibility
from skillery.registry.usage import Usage, count_run, usage_of
from skillery.registry.versions import list_versions
from skillery.registry.waivers import Waiver, judge, list_waivers, revoke_waiver, waive_finding

__all__ = [
    "CheckFinding",
    "CheckedExample",
    "Checks",
    "Listed",
    "Locked",
    "MovedLabel",
    "NewVersion",
    "Pin",
    "Usage",
    "Verified",
    "VersionRow",
    "Visibility",
    "Waiver",
    "approve_version",
    "checks_of",
    "compare_permissions",
    "count_run",
    "cursor_key",
    "deprecate_skill",
    "describe_skill",
    "files_of",
    "find_in_index",
    "insert_version",
    "judge",
    "list_index",
    "list_labels",
    "list_skills",
    "list_versions",
    "list_waivers",
    "look_at_approval",
    "read_inline_file",
    "read_skill_file",
    "reject_version",
    "remove_label",
    "resolve",
    "resolve_skills",
    "revoke_waiver",
    "rollback_label",
    "search_skills",
    "set_label",
    "set_visibility",
    "submit_version",
    "undeprecate_skill",
    "unyank_version",
    "usage_of",
    "verify_lock",
    "version_if_taken",
    "waive_finding",
    "with_examples",
    "yank_version",
]
