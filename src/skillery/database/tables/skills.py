"""Skills, versions, labels, waivers, aliases of imports, files and exports."""

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
    # Of the latest version: what list_skills sorts and filters by.
    Column("namespace", Name, nullable=False, server_default=""),
    # Kept in the transaction that publishes; None while nothing is there to resolve to.
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
    # Asked of each row for whom something may be hidden: without it here the row itself would be looked up.
    skills.c.visibility,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
)
# The same for whom something may be hidden: skillery.registry.visibility.
Index(
    "ix_skills_seen_listing",
    skills.c.visibility,
    skills.c.namespace,
    skills.c.name,
    skills.c.latest_version_id,
    postgresql_where=skills.c.latest_version_id.is_not(None),
    sqlite_where=skills.c.latest_version_id.is_not(None),
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
    # In the order in which skills were first published.
    Column("id", Key, primary_key=True, autoincrement=True),
    # What the skill is called where names know no dots: skillery.formats.agent_skill.
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
    # SemVer order as an order of bytes: skillery.formats.semver.
    Column("precedence", LargeBinary, nullable=False),
    Column("is_release", Boolean, nullable=False),
    Column("status", String(16), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("namespace", Name, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    # Immutable answers, stored ready to send.
    Column("manifest_json", Text, nullable=False),
    Column("frontmatter_json", Text, nullable=False),
    Column("warnings_json", Text, nullable=False),
    Column("names_json", Text, nullable=False),
    Column("summary_json", Text, nullable=False),
    Column("publisher", String(255), nullable=False),
    Column("publisher_kind", String(16), nullable=False, server_default="person"),
    Column("created_at", Moment, nullable=False),
    # What describe_skill says beside the status, by key: approval, rejected, yanked, deprecated. None: nothing.
    Column("standing_json", Text, nullable=True),
    # Of a SKILL.md that lies in the storage: as much of its body as can be searched. None where it is small.
    Column("skill_md_start", Text, nullable=True),
    # What was found when it was checked: skillery.registry.checks. None: nothing to say.
    Column("checks_json", Text, nullable=True),
    # The method that wrote it for its publisher, where that was not create_skill.
    Column("made_by", String(16), nullable=True),
    # Versions that differ only in build metadata are one version.
    UniqueConstraint("skill_id", "precedence"),
    CheckConstraint("status IN ('draft', 'in_review', 'published', 'deprecated', 'yanked', 'rejected')", name="status"),
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
Index("ix_skill_versions_digest", skill_versions.c.skill_id, skill_versions.c.digest)
# For the sum over a namespace: skillery.identity.quotas.
Index("ix_skill_versions_size", skill_versions.c.skill_id, skill_versions.c.size_bytes)
# What waits for its author or a reviewer: little, in a registry of any size.
_is_waiting_literal = text("status IN ('draft', 'in_review')")
Index(
    "ix_skill_versions_waiting",
    skill_versions.c.status,
    skill_versions.c.id,
    postgresql_where=_is_waiting_literal,
    sqlite_where=_is_waiting_literal,
)
# Whose private skills these are.
Index("ix_skill_versions_publisher", skill_versions.c.publisher, skill_versions.c.skill_id)

version_steps = Table(
    "version_steps",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=False),
    Column("step", String(16), nullable=False),
    # After the step.
    Column("status", String(16), nullable=False),
    # Of what the step was about: an approval holds for these contents and no others.
    Column("digest", String(71), nullable=False),
    Column("identity", String(255), nullable=False),
    Column("identity_kind", String(16), nullable=False),
    # The reason, the note or the message that was given with it.
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
    # What it points to from then on; None: it was removed.
    Column("version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    Column("previous_version_id", Key, ForeignKey("skill_versions.id"), nullable=True),
    # The move to which a rollback goes back. Without a foreign key: nothing is ever deleted here.
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
    # Its last move.
    Column("move_id", Key, ForeignKey("label_moves.id"), nullable=False),
    comment="Where each label points now.",
)
Index("ix_labels_version", labels.c.version_id)
waivers = Table(
    "waivers",
    metadata,
    Column("id", Key, primary_key=True, autoincrement=True),
    # The name that others know it by.
    Column("waiver", String(32), nullable=False),
    # Of a skill, which may not be there yet.
    Column("name", Name, nullable=False),
    Column("rule", String(255), nullable=False),
    # None: whatever the file, whatever the version.
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
    # The namespace that was given to the import.
    Column("namespace", Name, primary_key=True),
    # Where the tree comes from, and the path of the skill in it: skillery.importing.identity.path_key. A path that
    # begins with "/" is that of an import before there were sources: only the stated name behind it is known.
    Column("source", Name, primary_key=True),
    Column("path", Text().with_variant(Text(collation="C"), "postgresql"), primary_key=True),
    # The name that the skill states: skillery.formats.foreign_skill.alias_key.
    Column("stated", Name, nullable=False),
    # The skill in the registry.
    Column("name", Name, nullable=False),
    # False if the skill belongs to another source, and this one has only a copy of it.
    Column("owns", Boolean, nullable=False),
    # The version that was last published from this alias, and the digest of the files it was made from.
    Column("version", Text, nullable=False),
    Column("source_digest", String(71), nullable=False),
    # Since when its versions are yanked because the source does not hold it any more.
    Column("removed_at", Moment, nullable=True),
    # Since when the source does not hold it any more.
    Column("absent_at", Moment, nullable=True),
    Column("identity", String(255), nullable=False),
    Column("imported_at", Moment, nullable=False),
    comment="Imported skills: the source and path of each, and which skill of the registry it is.",
)
Index("ix_import_aliases_name", import_aliases.c.name)
Index("ix_import_aliases_namespace_stated", import_aliases.c.namespace, import_aliases.c.stated)

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

exports = Table(
    "exports",
    metadata,
    Column("version_id", Key, ForeignKey("skill_versions.id"), primary_key=True, autoincrement=False),
    # Which release of skillery.exports made it; made anew by another.
    Column("maker", Integer, nullable=False),
    # What an export of this version is: digests, sizes, the description.
    Column("facts_json", Text, nullable=False),
    comment="What is known of versions as Agent Skills. It follows from their files and is made when it is wanted.",
)
