"""The registry: which skills and versions there are. Rules and SQL; no sandbox, no publishing checks."""

from skillery.registry.cursors import cursor_key
from skillery.registry.describing import describe_skill
from skillery.registry.inserting import NewVersion, insert_version, version_if_taken
from skillery.registry.listing import list_skills
from skillery.registry.reading import files_of, read_skill_file
from skillery.registry.resolving import VersionRow, resolve

__all__ = [
    "NewVersion",
    "VersionRow",
    "cursor_key",
    "describe_skill",
    "files_of",
    "insert_version",
    "list_skills",
    "read_skill_file",
    "resolve",
    "version_if_taken",
]
