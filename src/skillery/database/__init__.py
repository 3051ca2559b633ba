"""The database: its engine, its tables and its migrations, for SQLite and Postgres."""

from skillery.database.engine import (
    Change,
    Database,
    Statement,
    as_stored,
    before_commit,
    in_utc,
    parse_database_url,
    take_turns,
)

__all__ = [
    "Change",
    "Database",
    "Statement",
    "as_stored",
    "before_commit",
    "in_utc",
    "parse_database_url",
    "take_turns",
]
