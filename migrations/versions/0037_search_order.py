"""the successor of deprecated skills in the search, pairs of Chinese and Japanese characters, synonyms

Revision: 0037, after 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")
REBUILD = sa.text(
    "INSERT INTO registry (key, value) SELECT 'rebuild', :value WHERE EXISTS (SELECT 1 FROM skills) "
    "ON CONFLICT (key) DO NOTHING"
)


BEFORE = "The texts that search_skills looks in: rows are added and removed, never changed."
AFTER = "The texts that search_skills looks in: rows are added and removed, and only `successor` is changed."


def upgrade() -> None:
    op.add_column("search_words", sa.Column("successor", NAME, nullable=True))
    set_comment(BEFORE, AFTER)
    # The server computes the rows when it starts.
    op.get_bind().execute(REBUILD, {"value": b""})


def downgrade() -> None:
    set_comment(AFTER, BEFORE)
    op.drop_column("search_words", "successor")
    op.get_bind().execute(REBUILD, {"value": b""})


def set_comment(before: str, after: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.create_table_comment("search_words", after, existing_comment=before)
