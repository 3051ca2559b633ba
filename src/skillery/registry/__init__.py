"""The registry: the rules and the SQL of stored skills and versions. Sandboxes and publishing checks are in other
folders.
"""

from skillery.registry.catalogue_counts import Counts, CountsCache, Facets, FacetValue, count_unlisted
from skillery.registry.catalogue_filters import CatalogueFilter, Facts, filter_of
from skillery.registry.catalogue_listings import CatalogueEntry, list_catalogue
from skillery.registry.checks import Checks, checks_of, with_examples
from skillery.registry.completions import Completions, complete_path, complete_skill, complete_version
from skillery.registry.creation_order import Order, cursor_after_creation, labelled_versions, list_by_creation
from skillery.registry.cursors import cursor_key
from skillery.registry.descriptions import describe_in_full, read_description
from skillery.registry.figures import BUNDLED_BY, count_host_uses, count_waiting_reviews
from skillery.registry.files import (
    FileRow,
    FoundFile,
    SkillFileContent,
    files_of,
    find_file,
    list_files,
    read_inline_file,
    read_stored_file,
)
from skillery.registry.import_aliases import (
    FILES_PART,
    AliasRecord,
    Imported,
    KnownPath,
    Removed,
    find_imported,
    find_same_files,
    known_paths,
    known_without_path,
    mark_absent,
    note_removed,
    record_import,
    taken_versions,
)
from skillery.registry.import_names import Alias, free_name, holder_of, is_free, is_owned
from skillery.registry.index_names import (
    Listed,
    find_in_index,
    list_index,
    list_unprepared,
    skills_with_index_name,
)
from skillery.registry.label_listings import Labels, read_labels
from skillery.registry.labels import MovedLabel, drop_label, point_label, restore_label
from skillery.registry.lifecycle import (
    approve,
    change_visibility,
    deprecate,
    find_approvable,
    reject,
    submit,
    undeprecate,
    unyank,
    yank,
    yank_skill,
)
from skillery.registry.listings import FirstSkill, cursor_after_skill, first_skills, read_skills
from skillery.registry.locks import Lock, Locked, Pin, Verified, check_lock, lock_skills
from skillery.registry.new_versions import NewVersion, insert_version, state_of
from skillery.registry.resolution import resolve
from skillery.registry.resources import (
    get_skill_entry,
    list_resources,
    list_skill_entries,
    read_directory,
    read_resource,
)
from skillery.registry.results import DescribedSkill, FoundSkillPage, SkillPage, ToolPage
from skillery.registry.search import find_skills
from skillery.registry.skill_usage import SkillUsage, SkillUsagePage, read_skill_usage
from skillery.registry.tool_listings import read_tools
from skillery.registry.tool_lookup import FoundTool, SessionTool, find_tool
from skillery.registry.usage import Usage, UsageDay, count_run, usage_by_day
from skillery.registry.version_diffs import digests_of, read_diff
from skillery.registry.version_rows import VersionRow
from skillery.registry.version_tables import (
    FindingCounts,
    TabledVersion,
    VersionFacts,
    VersionGroup,
    VersionTable,
    facts_for_page,
    resolve_for_page,
    table_of_versions,
)
from skillery.registry.versions import (
    ListedVersion,
    VersionPage,
    ages,
    cursor_after_version,
    descriptions_of,
    find_version,
    read_versions,
)
from skillery.registry.visibility import Visibility
from skillery.registry.waivers import Waiver, WaiverPage, apply_waivers, end_waiver, insert_waiver, read_waivers

__all__ = [
    "BUNDLED_BY",
    "FILES_PART",
    "Alias",
    "AliasRecord",
    "CatalogueEntry",
    "CatalogueFilter",
    "Checks",
    "Completions",
    "Counts",
    "CountsCache",
    "DescribedSkill",
    "FacetValue",
    "Facets",
    "Facts",
    "FileRow",
    "FindingCounts",
    "FirstSkill",
    "FoundFile",
    "FoundSkillPage",
    "FoundTool",
    "Imported",
    "KnownPath",
    "Labels",
    "Listed",
    "ListedVersion",
    "Lock",
    "Locked",
    "MovedLabel",
    "NewVersion",
    "Order",
    "Pin",
    "Removed",
    "SessionTool",
    "SkillFileContent",
    "SkillPage",
    "SkillUsage",
    "SkillUsagePage",
    "TabledVersion",
    "ToolPage",
    "Usage",
    "UsageDay",
    "Verified",
    "VersionFacts",
    "VersionGroup",
    "VersionPage",
    "VersionRow",
    "VersionTable",
    "Visibility",
    "Waiver",
    "WaiverPage",
    "ages",
    "apply_waivers",
    "approve",
    "change_visibility",
    "check_lock",
    "checks_of",
    "complete_path",
    "complete_skill",
    "complete_version",
    "count_host_uses",
    "count_run",
    "count_unlisted",
    "count_waiting_reviews",
    "cursor_after_creation",
    "cursor_after_skill",
    "cursor_after_version",
    "cursor_key",
    "deprecate",
    "describe_in_full",
    "descriptions_of",
    "digests_of",
    "drop_label",
    "end_waiver",
    "facts_for_page",
    "files_of",
    "filter_of",
    "find_approvable",
    "find_file",
    "find_imported",
    "find_in_index",
    "find_same_files",
    "find_skills",
    "find_tool",
    "find_version",
    "first_skills",
    "free_name",
    "get_skill_entry",
    "holder_of",
    "insert_version",
    "insert_waiver",
    "is_free",
    "is_owned",
    "known_paths",
    "known_without_path",
    "labelled_versions",
    "list_by_creation",
    "list_catalogue",
    "list_files",
    "list_index",
    "list_resources",
    "list_skill_entries",
    "list_unprepared",
    "lock_skills",
    "mark_absent",
    "note_removed",
    "point_label",
    "read_description",
    "read_diff",
    "read_directory",
    "read_inline_file",
    "read_labels",
    "read_resource",
    "read_skill_usage",
    "read_skills",
    "read_stored_file",
    "read_tools",
    "read_versions",
    "read_waivers",
    "record_import",
    "reject",
    "resolve",
    "resolve_for_page",
    "restore_label",
    "skills_with_index_name",
    "state_of",
    "submit",
    "table_of_versions",
    "taken_versions",
    "undeprecate",
    "unyank",
    "usage_by_day",
    "with_examples",
    "yank",
    "yank_skill",
]
