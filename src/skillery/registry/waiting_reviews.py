"""The number of versions that wait for a review, for the navigation of the pages."""

from __future__ import annotations

from functools import lru_cache

from sqlalchemy import Connection, bindparam, false, literal_column, or_, select

from skillery.backends import Identity
from skillery.database import Statement
from skillery.database.tables import catalogue
from skillery.identity import access
from skillery.registry.catalogue_rows import LISTED
from skillery.registry.visibility import View, in_grants, parameters, view_of

# The literals let both databases use the partial index of versions that are not listed, which are few.
_IN_REVIEW = (
    catalogue.c.status.not_in([literal_column(f"'{one}'") for one in LISTED]),
    catalogue.c.status == literal_column("'in_review'"),
)


def count_waiting_reviews(connection: Connection, identity: Identity, most: int) -> int:
    """Return how many versions in review the identity may review, at most `most`."""
    names = [namespace for namespace in identity.namespaces if not namespace.endswith("*")]
    given = parameters(identity) | {f"name_{place}": name for place, name in enumerate(names)}
    rows = _statement(view_of(identity), len(names)).rows(connection, most=most, **given)
    return sum(access.reviews(identity, name) for (name,) in rows)


@lru_cache(256)
def _statement(view: View | None, names: int) -> Statement:
    """Return the statement for identities with this view and with grants for this number of single skills.

    To build and compile it takes ten times as long as to execute it.
    """
    asked = select(catalogue.c.name).where(*_IN_REVIEW).limit(bindparam("most"))
    if view is not None and not view.grants_all:
        named = [catalogue.c.name == bindparam(f"name_{place}") for place in range(names)]
        asked = asked.where(or_(false(), *named, *in_grants(view, catalogue)))
    return Statement(asked)
