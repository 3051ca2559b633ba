"""the script of a run, and the results of examples

Revision: 0050, after 0049
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(255).with_variant(sa.String(255, collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("runs", sa.Column("script", NAME, nullable=True))
    op.create_table(
        "example_results",
        sa.Column("version_id", KEY, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("output_json", sa.Text(), nullable=True),
        sa.Column("files_json", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["skill_versions.id"], name=op.f("fk_example_results_version_id_skill_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "number", name=op.f("pk_example_results")),
        comment="What the examples of a version returned when they passed.",
    )


def downgrade() -> None:
    op.drop_table("example_results")
    op.drop_column("runs", "script")
