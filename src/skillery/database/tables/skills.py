"""The tables of skills, versions, labels, waivers, import aliases, files and exports."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from skillery.database.tables.base import Key, Moment, Name, metadata

# Also the marks "read only" and "rebuild".
registry = Table(
    "registry",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
    comment="What belongs to the registry as a whole: the key that signs cursors.",
)

skills = Table(
    "skills",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("name", Name, nullable=False),
    # The namespace of the latest version. list_skills sorts and filters by it.
    Column("namespace", Name, nullable=False, server_default=""),
    # Set in the transaction that publishes. None if no version resolves.
    Column("latest_version_id", Key, nullable=True),
    Column("created_at", Moment, nullable=False),
    # public, namespace or private: skillery.registry.visibility.
    Column("visibility", String(16), nullable=False, server_default="public"),
    UniqueConstraint("name"),
)
Index(
    "ix_skills_listing",
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    # In the index, so that the row need not be read for callers who may not see every skill.
    skills.c.visibility,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
# As above, for callers who may not see every skill: skillery.registry.visibility.
Index(
    "ix_skills_seen_listing",
    skills.c.visibility,
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
# Skills whose latest version states a namespace that is not part of its name: skillery.registry.visibility.
FOREIGN_NAMESPACE = "namespace <> '' AND substr(name, 1, length(namespace) + 1) <> namespace || '.'"
Index(
    "ix_skills_foreign_listing",
    skills.c.visibility,
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    postgresql_where=text(f"latest_version_id IS NOT NULL AND {FOREIGN_NAMESPACE}"),
    sqlite_where=text(f"latest_version_id IS NOT NULL AND {FOREIGN_NAMESPACE}"),
)
Index(
    "ix_skills_seen_names",
    skills.c.visibility,
    skills.c.name,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)

index_names = Table(
    "index_names",
    metadata,
    # Ids are in the order of first publication.
    Column("id", Key, primary_key=True, autoincrement=True),
    # The name of the skill in indexes that allow no dots: skillery.formats.agent_skill.
    Column("index_name", Name, nullable=False),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    UniqueConstraint("skill_id"),
    comment="Names in the indexes of Agent Skills: of several skills with one name the first stands in them.",
)
Index("ix_index_names_name", index_names.c.index_name, index_names.c.id)

skill_versions = Table(
    "skill_versions",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    Column("version", Text, nullable=False),
    # SemVer order as byte order: skillery.formats.semver.
    Column("precedence", LargeBinary, nullable=False),
    Column("is_release", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("namespace", Name, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # Immutable answers, stored as JSON text.
    Column("manifest_json", Text, nullable=False),
    Column("frontmatter_json", Text, nullable=False),
    Column("warnings_json", Text, nullable=False),
    Column("names_json", Text, nullable=False),
    Column("summary_json", Text, nullable=False),
    Column("publisher", String(255), nullable=False),
    Column("publisher_kind", String(16), nullable=False, server_default="person"),
    Column("created_at", Moment, nullable=False),
    # Further fields of describe_skill by key: approval, rejected, yanked, deprecated, purged. None: no fields.
    Column("standing_json", Text, nullable=True),
    # The searchable start of a SKILL.md that the storage holds. None if the SKILL.md is small.
    Column("skill_md_start", Text, nullable=True),
    # Results of the checks: skillery.versions.checks. None: no results.
    Column("checks_json", Text, nullable=True),
    # The method that made the version, if it was not create_skill.
    Column("made_by", String(16), nullable=True),
    # The CI job that published the version: skillery.backends.Provenance. None: no CI job.
    Column("provenance_json", Text, nullable=True),
    # For whom the author made it: people, models or internal (skillery.formats.foreign_skill). None: for all.
    Column("audience", String(16), nullable=True),
    # Versions that differ only in build metadata are one version.
    UniqueConstraint("skill_id", "precedence"),
    CheckConstraint(
        "status IN ('draft', 'in_review', 'published', 'deprecated', 'yanked', 'rejected', 'purged')", name="status"
    ),
    CheckConstraint("kind IN ('action', 'instruction')", name="kind"),
)
RESOLVABLE = ("published", "deprecated")
_is_resolvable_literal = text("status IN ('published', 'deprecated')")
Index(
    "ix_skill_versions_resolve",
    skill_versions.c.skill_id,
    skill_versions.c.is_release,
    skill_versions.c.precedence,
    postgresql_where=_is_resolvable_literal,
    sqlite_where=_is_resolvable_literal,
)
Index(
    "ix_skill_versions_audience",
    skill_versions.c.audience,
    skill_versions.c.id,
    skill_versions.c.skill_id,
    postgresql_where=skill_versions.c.audience.is_not(None),
    sqlite_where=skill_versions.c.audience.is_not(None),
)
Index("ix_skill_versions_digest", skill_versions.c.skill_id, skill_versions.c.digest)
# Covers the sum over a namespace: skillery.identity.quotas.
Index("ix_skill_versions_size", skill_versions.c.skill_id, skill_versions.c.size_bytes)
# Versions that wait for their author or a reviewer. They are few.
_is_waiting_literal = text("status IN ('draft', 'in_review')")
Index(
    "ix_skill_versions_waiting",
    skill_versions.c.status,
    skill_versions.c.id,
    postgresql_where=_is_waiting_literal,
    sqlite_where=_is_waiting_literal,
)
# Purged versions. They are few, and every server looks for their digests.
_is_purged_literal = text("status = 'purged'")
Index(
    "ix_skill_versions_purged",
    skill_versions.c.digest,
    postgresql_where=_is_purged_literal,
    sqlite_where=_is_purged_literal,
)
# For private skills, which are visible to their publishers.
Index("ix_skill_versions_publisher", skill_versions.c.publisher, skill_versions.c.skill_id)

version_steps = Table(
    "version_steps",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    Column("step", String(16), nullable=False),
    # Status after the step.
    Column("status", String(16), nullable=False),
    # Digest of the version: an approval holds for these contents only.
    Column("digest", String(71), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    # Reason, note or message of the step.
    Column("note", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    comment="Who took a version from one status to another, when and why.",
)
Index("ix_version_steps_version", version_steps.c.version_id, version_steps.c.id)

label_moves = Table(
    "label_moves",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("skill_id", Key, ForeignKey("skills.id"), nullable=False),
    Column("label", Name, nullable=False),
    Column("move", String(16), nullable=False),
    # The version that the label points to after the move. None: the label was removed.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    Column("previous_version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # The move to which a rollback goes back. No foreign key, because moves are never deleted.
    Column("back_id", Key, nullable=True),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    CheckConstraint("move IN ('set', 'rollback', 'remove')", name="move"),
    comment="Every move that a label has made, append-only.",
)
Index("ix_label_moves_label", label_moves.c.skill_id, label_moves.c.label, label_moves.c.id)
Index("ix_label_moves_skill", label_moves.c.skill_id, label_moves.c.id)

labels = Table(
    "labels",
    metadata,
    Column("skill_id", Key, ForeignKey("skills.id"), primary_key=True),
    Column("label", Name, primary_key=True),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    # The last move of the label.
    Column("move_id", Key, ForeignKey("label_moves.id"), nullable=False),
    comment="Where each label points now.",
)
Index("ix_labels_version", labels.c.version_id)
waivers = Table(
    "waivers",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # Public id of the waiver.
    Column("waiver", String(32), nullable=False),
    # Name of a skill, which need not exist yet.
    Column("name", Name, nullable=False),
    Column("rule", String(255), nullable=False),
    # None: the waiver holds for every file, or every version.
    Column("file", Text, nullable=True),
    Column("version", Text, nullable=True),
    Column("reason", Text, nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("until", Moment, nullable=True),
    Column("revoked_at", Moment, nullable=True),
    Column("revoked_by", String(255), nullable=True),
    UniqueConstraint("waiver"),
    comment="Findings that keep no version back, by whom, why and until when.",
)
Index("ix_waivers_name", waivers.c.name, waivers.c.id)

import_aliases = Table(
    "import_aliases",
    metadata,
    # Namespace of the import.
    Column("namespace", Name, primary_key=True),
    # Source of the tree, and path of the skill in it: skillery.importing.identity.path_key. A path that begins with "/"
    # is from a release without sources: only the stated name behind it is known.
    Column("source", Name, primary_key=True),
    Column("path", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    # Name that the SKILL.md states: skillery.formats.foreign_skill.alias_key.
    Column("stated", Name, nullable=False),
    # Skill of the registry.
    Column("name", Name, nullable=False),
    # False if the skill belongs to another source, and this source has only a copy.
    Column("owns", Boolean, nullable=False),
    # The version that was last published from this alias, and the digest of its source files.
    Column("version", Text, nullable=False),
    Column("source_digest", String(71), nullable=False),
    # Time at which its versions were yanked because the source no longer holds the skill.
    Column("removed_at", Moment, nullable=True),
    # Time since which the source no longer holds the skill.
    Column("absent_at", Moment, nullable=True),
    Column("identity", String(255), nullable=False),
    Column("imported_at", Moment, nullable=False),
    comment="Imported skills: the source and path of each, and which skill of the registry it is.",
)
Index("ix_import_aliases_name", import_aliases.c.name)
Index("ix_import_aliases_namespace_stated", import_aliases.c.namespace, import_aliases.c.stated)

namespaces = Table(
    "namespaces",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("title", Text, nullable=False),
    Column("text", Text, nullable=False),
    # How to reach the owners: an address of a web page, an email address, or words. "" if unknown.
    Column("contact", Text, nullable=False),
    # Names of skills, as a JSON array.
    Column("pinned_json", Text, nullable=False),
    Column("identity", String(255), nullable=False),
    Column("set_at", Moment, nullable=False),
    comment="What publishers say about a namespace. A namespace exists without a row here.",
)

skill_files = Table(
    "skill_files",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True),
    Column("path", Name, primary_key=True),
    Column("sha256", String(64), ForeignKey("objects.sha256"), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("executable", Boolean, nullable=False),
)
Index("ix_skill_files_sha256", skill_files.c.sha256)

example_results = Table(
    "example_results",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # Place of the example in the manifest, from 1.
    Column("number", Integer, primary_key=True, autoincrement=False),
    # None: the output is one of the files.
    Column("output_json", Text, nullable=True),
    # Blobs of the server with the files: skillery.versions.example_results.ResultFile.
    Column("files_json", Text, nullable=False),
    comment="What the examples of a version returned when they passed.",
)

exports = Table(
    "exports",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # The version number of the code that computed the facts. If the number has changed, they are computed again.
    Column("maker", Integer, nullable=False),
    # The export of this version: digests, sizes, description.
    Column("facts_json", Text, nullable=False),
    comment="What is known of versions as Agent Skills. It follows from their files and is made when it is wanted.",
)
