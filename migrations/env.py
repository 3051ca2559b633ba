"""Runs migrations on the connection that Skillery hands over, or, for `alembic` by hand, on SKILLERY_DATABASE."""

from __future__ import annotations

from alembic import context

from skillery.database import Database
from skillery.database.migrate import is_in_tables
from skillery.database.tables import metadata
from skillery.settings.load import load_settings


def run(connection: object) -> None:
    context.configure(
        connection=connection,  # type: ignore[arg-type]
        target_metadata=metadata,
        compare_type=True,
        include_name=is_in_tables,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    database = Database(load_settings().settings.database_url)
    with database.engine.begin() as connection:
        run(connection)
    database.close()
