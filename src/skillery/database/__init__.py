"""The database: its engine, its tables and its migrations, for SQLite and Postgres."""

from skillery.database.drivers import parse_database_url, without_password
from skillery.database.engine import Database, take_turns
from skillery.database.statements import (
    Change,
    ListStatement,
    Statement,
    as_list,
    as_stored,
    in_utc,
    is_among,
    is_past,
    select_row,
)
from skillery.database.transactions import before_commit

__all__ = [
    "Change",
    "Database",
    "ListStatement",
    "Statement",
    "as_list",
    "as_stored",
    "before_commit",
    "in_utc",
    "is_among",
    "is_past",
    "parse_database_url",
    "select_row",
    "take_turns",
    "without_password",
]
