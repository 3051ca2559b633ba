"""The tables, for both databases: one module for each subject."""

from skillery.database.tables.audit import audit, audit_head
from skillery.database.tables.base import metadata
from skillery.database.tables.catalogue import catalogue, catalogue_hosts, catalogue_tags, read_days, usage_days
from skillery.database.tables.contents import blobs, deletions, objects, uploads
from skillery.database.tables.environments import environment_rebuilds, environments, locks, named_locks
from skillery.database.tables.events import dead_letters, event_readers, events, webhooks
from skillery.database.tables.identity import (
    backend_values,
    exchanged_tokens,
    secret_grants,
    tokens,
    trust_rules,
    web_sessions,
)
from skillery.database.tables.runs import idempotency_keys, run_log_pieces, runs, servers, version_usage
from skillery.database.tables.search import (
    SEARCH_INDEX,
    search_postings,
    search_spellings,
    search_vectors,
    search_words,
)
from skillery.database.tables.skills import (
    FOREIGN_NAMESPACE,
    RESOLVABLE,
    exports,
    import_aliases,
    index_names,
    label_moves,
    labels,
    registry,
    skill_files,
    skill_versions,
    skills,
    version_steps,
    waivers,
)
from skillery.database.tables.tools import session_tools, tools
from skillery.database.tables.workspaces import workspace_contents, workspace_families, workspace_snapshots, workspaces

__all__ = [
    "FOREIGN_NAMESPACE",
    "RESOLVABLE",
    "SEARCH_INDEX",
    "audit",
    "audit_head",
    "backend_values",
    "blobs",
    "catalogue",
    "catalogue_hosts",
    "catalogue_tags",
    "dead_letters",
    "deletions",
    "environment_rebuilds",
    "environments",
    "event_readers",
    "events",
    "exchanged_tokens",
    "exports",
    "idempotency_keys",
    "import_aliases",
    "index_names",
    "label_moves",
    "labels",
    "locks",
    "metadata",
    "named_locks",
    "objects",
    "read_days",
    "registry",
    "run_log_pieces",
    "runs",
    "search_postings",
    "search_spellings",
    "search_vectors",
    "search_words",
    "secret_grants",
    "servers",
    "session_tools",
    "skill_files",
    "skill_versions",
    "skills",
    "tokens",
    "tools",
    "trust_rules",
    "uploads",
    "usage_days",
    "version_steps",
    "version_usage",
    "waivers",
    "web_sessions",
    "webhooks",
    "workspace_contents",
    "workspace_families",
    "workspace_snapshots",
    "workspaces",
]
