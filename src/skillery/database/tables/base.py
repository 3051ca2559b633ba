"""The metadata and the column types that all tables share."""

from __future__ import annotations

from sqlalchemy import BigInteger, DateTime, Integer, MetaData, String, Text
from sqlalchemy.dialects.postgresql import TSVECTOR

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Names are compared and sorted by their bytes on both databases, independent of the locale.
Name = String(255).with_variant(String(255, collation="C"), "postgresql")
# A 64-bit key on Postgres; on SQLite only INTEGER makes the primary key the row id.
Key = BigInteger().with_variant(Integer(), "sqlite")
Moment = DateTime(timezone=True)
# Words separated by blanks.
Words = Text().with_variant(TSVECTOR(), "postgresql")
