"""the status of purged versions

Revision: 0026, after 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

BEFORE = "status IN ('draft', 'in_review', 'published', 'deprecated', 'yanked', 'rejected')"
AFTER = BEFORE.replace(")", ", 'purged')")
IS_PURGED = sa.text("status = 'purged'")


def upgrade() -> None:
    _set_check(BEFORE, AFTER)
    op.create_index(
        "ix_skill_versions_purged",
        "skill_versions",
        ["digest"],
        postgresql_where=IS_PURGED,
        sqlite_where=IS_PURGED,
    )


def downgrade() -> None:
    op.drop_index("ix_skill_versions_purged", table_name="skill_versions")
    # No status of before describes a purged version better: it was refused, and never becomes usable again.
    op.execute(sa.text("UPDATE skill_versions SET status = 'rejected' WHERE status = 'purged'"))
    _set_check(AFTER, BEFORE)


def _set_check(before: str, after: str) -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_skill_versions_status"), "skill_versions", type_="check")
        op.create_check_constraint(op.f("ck_skill_versions_status"), "skill_versions", after)
        return
    # SQLite changes no constraint of a table. Its manual describes this way for a change of a CHECK, which changes no
    # row: https://www.sqlite.org/lang_altertable.html#otheralter. A copy of the table would break the foreign keys.
    number = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.execute(
        sa.text(
            "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) "
            "WHERE type = 'table' AND name = 'skill_versions' AND instr(sql, :before) > 0"
        ),
        {"before": before, "after": after},
    )
    if changed.rowcount != 1:
        raise RuntimeError("the table skill_versions does not have the CHECK on its status that this migration changes")
    connection.exec_driver_sql(f"PRAGMA schema_version = {number + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
