"""Attestations of versions: how they are read."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from skillery.backends import Identity
from skillery.database.tables import attestations
from skillery.formats.version_spec import VersionSpec
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow


class Envelopes(NamedTuple):
    """A version, and the envelopes of its attestations."""

    row: VersionRow
    envelopes: list[str]


def read_envelopes(
    connection: Connection, identity: Identity, *, name: str, spec: VersionSpec, predicate: str
) -> Envelopes:
    """Return the envelopes of a version that were not withdrawn, oldest first. `predicate` is a word, or "" for all.

    Raise the errors of `resolve`.
    """
    row = resolve(connection, identity, name, spec, manages=True)
    of_version = attestations.c.version_id == row.version_id, attestations.c.ended_at.is_(None)
    chosen = [attestations.c.predicate == predicate] if predicate else []
    oldest_first = select(attestations.c.envelope).where(*of_version, *chosen).order_by(attestations.c.id)
    return Envelopes(row, list(connection.scalars(oldest_first)))
