"""The registry: the rules and the SQL of stored skills and versions. Sandboxes and publishing checks are in other
folders.
"""

from skillery.registry.catalogue_counts import Counts, CountsCache, Facets, FacetValue, count_unlisted
from skillery.registry.catalogue_entries import CatalogueEntry
from skillery.registry.catalogue_filters import CatalogueFilter, Facts, filter_of
from skillery.registry.catalogue_listings import list_catalogue
from skillery.registry.checks import Checks, checks_of, with_examples
from skillery.registry.completions import Completions, complete_path, complete_skill, complete_version
from skillery.registry.creation_order import Order, cursor_after_creation, labelled_versions, list_by_creation
from skillery.registry.cursors import cursor_key
from skillery.registry.descriptions import describe_in_full, describe_skill
from skillery.registry.files import (
    FileRow,
    FoundFile,
    SkillFileContent,
    files_of,
    find_file,
    list_files,
    read_inline_file,
    read_skill_file,
)
from skillery.registry.first_skills import BUNDLED_BY
from skillery.registry.host_uses import count_host_uses
from skillery.registry.import_aliases import (
    FILES_PART,
    AliasRecord,
    Imported,
    KnownPath,
    find_imported,
    find_same_files,
    known_paths,
    known_without_path,
    mark_absent,
    record_import,
    taken_versions,
)
from skillery.registry.import_names import Alias, free_name, holder_of, is_free, is_owned
from skillery.registry.import_removals import Removed, note_removed
from skillery.registry.index_names import (
    Listed,
    find_in_index,
    list_index,
    list_unprepared,
    skills_with_index_name,
)
from skillery.registry.label_listings import Labels, list_labels
from skillery.registry.labels import MovedLabel, remove_label, rollback_label, set_label
from skillery.registry.lifecycle import (
    approve_version,
    deprecate_skill,
    find_approvable,
    reject_version,
    set_visibility,
    submit_version,
    undeprecate_skill,
    unyank_version,
    yank_skill,
    yank_version,
)
from skillery.registry.listings import FirstSkill, cursor_after_skill, first_skills, list_skills
from skillery.registry.locks import Lock, Locked, Pin, Verified, resolve_skills, verify_lock
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
from skillery.registry.search import search_skills
from skillery.registry.skill_usage import SkillUsage, SkillUsagePage, list_skill_usage
from skillery.registry.tool_listings import list_tools
from skillery.registry.tool_lookup import FoundTool, SessionTool, find_tool
from skillery.registry.usage import Usage, count_run
from skillery.registry.usage_by_day import usage_by_day
from skillery.registry.usage_days import UsageDay
from skillery.registry.version_diffs import diff_versions, digests_of
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
    list_versions,
)
from skillery.registry.visibility import Visibility
from skillery.registry.waiting_reviews import count_waiting_reviews
from skillery.registry.waivers import Waiver, WaiverPage, apply_waivers, list_waivers, revoke_waiver, waive_finding

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
    "approve_version",
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
    "deprecate_skill",
    "describe_in_full",
    "describe_skill",
    "descriptions_of",
    "diff_versions",
    "digests_of",
    "facts_for_page",
    "files_of",
    "filter_of",
    "find_approvable",
    "find_file",
    "find_imported",
    "find_in_index",
    "find_same_files",
    "find_tool",
    "find_version",
    "first_skills",
    "free_name",
    "get_skill_entry",
    "holder_of",
    "insert_version",
    "is_free",
    "is_owned",
    "known_paths",
    "known_without_path",
    "labelled_versions",
    "list_by_creation",
    "list_catalogue",
    "list_files",
    "list_index",
    "list_labels",
    "list_resources",
    "list_skill_entries",
    "list_skill_usage",
    "list_skills",
    "list_tools",
    "list_unprepared",
    "list_versions",
    "list_waivers",
    "mark_absent",
    "note_removed",
    "read_directory",
    "read_inline_file",
    "read_resource",
    "read_skill_file",
    "record_import",
    "reject_version",
    "remove_label",
    "resolve",
    "resolve_for_page",
    "resolve_skills",
    "revoke_waiver",
    "rollback_label",
    "search_skills",
    "set_label",
    "set_visibility",
    "skills_with_index_name",
    "state_of",
    "submit_version",
    "table_of_versions",
    "taken_versions",
    "undeprecate_skill",
    "unyank_version",
    "usage_by_day",
    "verify_lock",
    "waive_finding",
    "with_examples",
    "yank_skill",
    "yank_version",
]
