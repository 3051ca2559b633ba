"""the audience of a version: people, models or internal

Revision: 0038, after 0037
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

READ = sa.text(
    "SELECT id, frontmatter_json FROM skill_versions WHERE frontmatter_json LIKE '%disable-model-invocation%' "
    "OR frontmatter_json LIKE '%user-invocable%' OR frontmatter_json LIKE '%internal%'"
)
SET = sa.text("UPDATE skill_versions SET audience = :audience WHERE id = :id")
FOR_SOME = sa.text("audience IS NOT NULL")


def upgrade() -> None:
    op.add_column("skill_versions", sa.Column("audience", sa.String(16), nullable=True))
    connection = op.get_bind()
    for number, text in connection.execute(READ).all():
        audience = audience_of(json.loads(text))
        if audience is not None:
            connection.execute(SET, {"id": number, "audience": audience})
    columns = ["audience", "id", "skill_id"]
    op.create_index(
        "ix_skill_versions_audience", "skill_versions", columns, postgresql_where=FOR_SOME, sqlite_where=FOR_SOME
    )


def downgrade() -> None:
    op.drop_index("ix_skill_versions_audience", "skill_versions")
    op.drop_column("skill_versions", "audience")


def audience_of(frontmatter: dict[str, object]) -> str | None:
    """Return the audience by the rules of this release, which later releases may change."""
    metadata = frontmatter.get("metadata")
    if is_text(frontmatter.get("disable-model-invocation"), "true"):
        return "people"
    if isinstance(metadata, dict) and is_text(metadata.get("internal"), "true"):
        return "internal"
    return "models" if is_text(frontmatter.get("user-invocable"), "false") else None


def is_text(value: object, text: str) -> bool:
    return isinstance(value, bool | str) and str(value).strip().lower() == text
