"""The feed of advisories: records of OSV about withdrawn versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import Connection, Row, select

from skillery.attestations.run_leaves import head_of_advisories
from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.tables import advisories, skill_versions, skills
from skillery.proof.seals import Position
from skillery.registry.version_rows import Severity
from skillery.registry.visibility import parameters, sees_each, view_of

SCHEMA_VERSION = "1.6.7"
ECOSYSTEM = "Skillery"
MOST_DIGESTS = 50
"""The maximum number of digests in one request."""
MOST_RECORDS = 500
"""The maximum number of records in one page."""


# -- Records of OSV (https://ossf.github.io/osv-schema). Its list of ecosystems does not have ours ---------------------


class Package(msgspec.Struct, frozen=True):
    """The skill of an advisory."""

    name: str
    ecosystem: str = ECOSYSTEM


class Affected(msgspec.Struct, frozen=True):
    """The versions of a skill that an advisory is about."""

    package: Package
    versions: list[str]


class Details(msgspec.Struct, frozen=True):
    """The facts for which OSV has no members. `seq` is the number of the last change, for `after`."""

    seq: int
    severity: Severity
    action: Literal["yank", "purge"]
    digests: list[str]
    fixed: str | None


class OsvRecord(msgspec.Struct, frozen=True):
    """An advisory as a record of OSV."""

    schema_version: str
    id: str
    published: datetime
    modified: datetime
    summary: str
    affected: list[Affected]
    database_specific: Details
    withdrawn: Annotated[datetime | UnsetType, Meta(description="If the version was unyanked")] = UNSET


class AdvisoryPage(msgspec.Struct, frozen=True):
    """A page of advisories, in the order of their last change. The next page is the one after `seq`."""

    advisories: list[OsvRecord]
    seq: int
    more: bool
    head: Annotated[Position | None, Meta(description="The newest change of any advisory, as seals name it")]


_ADVISORIES = (
    select(advisories, skills.c.name, skill_versions.c.version, skill_versions.c.digest)
    .join_from(advisories, skill_versions, skill_versions.c.id == advisories.c.version_id)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .order_by(advisories.c.seq)
    .limit(MOST_RECORDS + 1)
)


def read_advisories(connection: Connection, identity: Identity, *, after: int, digests: Sequence[str]) -> AdvisoryPage:
    """Return the advisories whose last change has a number above `after`, in the order of these numbers.

    With `digests`, return the advisories about bundles with these digests: a caller who has a copy may know its flaw.
    Without, return the advisories about skills that the identity sees.
    """
    head = head_of_advisories(connection)  # before the rows, which then have all changes up to it
    chosen, values, view = _ADVISORIES.where(advisories.c.seq > after), {}, view_of(identity)
    if digests:
        chosen = chosen.where(skill_versions.c.digest.in_(digests))
    elif view is not None:
        chosen, values = chosen.where(sees_each(view, skills, skills.c.id)), parameters(identity)
    rows = connection.execute(chosen, values).all()
    page = rows[:MOST_RECORDS]
    records, seq = [_record(row) for row in page], page[-1].seq if page else after
    return AdvisoryPage(records, seq, len(rows) > len(page), head)


def _record(row: Row[Any]) -> OsvRecord:
    published, withdrawn = in_utc(row.at), in_utc(row.withdrawn_at)
    return OsvRecord(
        SCHEMA_VERSION,
        row.advisory,
        published,
        withdrawn or published,
        row.reason,
        [Affected(Package(row.name), [row.version])],
        Details(row.seq, row.severity, row.action, [row.digest], row.fixed),
        withdrawn or UNSET,
    )
