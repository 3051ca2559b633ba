"""aliases of imported skills belong to a source and a path

Revision: 0020, after 0019

Until now an alias was found by the name that a skill states. Its path was not recorded, and its source only if a folder
was synchronised. Such an alias gets the path `/NAME`, which no imported skill can have: the first import that states
the name gives it the path and the source of the skill (skillery.importing.identity).
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

UPLOADED = "(a version of it)"
"""What 0.x called the alias of versions that were uploaded to /v1/skills/NAME/versions."""


def upgrade() -> None:
    op.create_table(
        "import_aliases",
        sa.Column("namespace", _name(), nullable=False),
        sa.Column("source", _name(), nullable=False),
        sa.Column("path", _path(), nullable=False),
        sa.Column("stated", _name(), nullable=False),
        sa.Column("name", _name(), nullable=False),
        sa.Column("owns", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("source_digest", sa.String(length=71), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("absent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("imported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "source", "path", name=op.f("pk_import_aliases")),
        comment="Imported skills: the source and path of each, and which skill of the registry it is.",
    )
    op.create_index(op.f("ix_import_aliases_name"), "import_aliases", ["name"])
    op.create_index(op.f("ix_import_aliases_namespace_stated"), "import_aliases", ["namespace", "stated"])
    _copy()
    op.drop_table("imports")


def downgrade() -> None:
    op.create_table(
        "imports",
        sa.Column("namespace", _name(), nullable=False),
        sa.Column("stated", _name(), nullable=False),
        sa.Column("name", _name(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("source_digest", sa.String(length=71), nullable=False),
        sa.Column("source", _name(), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("imported_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "stated", name=op.f("pk_imports")),
        comment="Imported skills: what each is called where it comes from, and which skill of the registry it is.",
    )
    op.create_index(op.f("ix_imports_name"), "imports", ["name"])
    where = sa.text("source IS NOT NULL")
    op.create_index("ix_imports_source", "imports", ["source"], postgresql_where=where, sqlite_where=where)
    _copy_back()
    op.drop_table("import_aliases")


def _copy() -> None:
    """`owns` is true for each: nothing else is known about the skills that were imported before."""
    op.get_bind().execute(
        sa.text(
            "INSERT INTO import_aliases (namespace, source, path, stated, name, owns, version, source_digest, "
            "removed_at, absent_at, identity, imported_at) SELECT namespace, "
            "CASE WHEN stated = :uploaded THEN '/v1' ELSE COALESCE(source, '') END, "
            "CASE WHEN stated = :uploaded THEN stated ELSE '/' || stated END, "
            "stated, name, stated <> :uploaded, version, source_digest, removed_at, NULL, identity, imported_at "
            "FROM imports"
        ),
        {"uploaded": UPLOADED},
    )


def _copy_back() -> None:
    """Of several aliases with one namespace and stated name, keep the one with the lowest source and path."""
    op.get_bind().execute(
        sa.text(
            "INSERT INTO imports (namespace, stated, name, version, source_digest, source, removed_at, identity, "
            "imported_at) SELECT namespace, stated, name, version, source_digest, NULLIF(source, ''), removed_at, "
            "identity, imported_at FROM import_aliases AS one WHERE NOT EXISTS (SELECT 1 FROM import_aliases AS other "
            "WHERE other.namespace = one.namespace AND other.stated = one.stated AND (other.source < one.source "
            "OR (other.source = one.source AND other.path < one.path)))"
        )
    )


def _name() -> sa.types.TypeEngine[str]:
    return sa.String(length=255).with_variant(sa.String(length=255, collation="C"), "postgresql")


def _path() -> sa.types.TypeEngine[str]:
    return sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
