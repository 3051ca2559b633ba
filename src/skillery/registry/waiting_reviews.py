"""The number of versions that wait for a review, for the navigation of the pages."""

from __future__ import annotations

from sqlalchemy import Connection, literal_column, or_, select

from skillery.backends import Identity
from skillery.database.tables import catalogue
from skillery.identity import access
from skillery.registry.catalogue_rows import LISTED
from skillery.registry.visibility import in_grants, parameters, view_of

# The literals let both databases use the partial index of versions that are not listed, which are few.
_IN_REVIEW = (
    catalogue.c.status.not_in([literal_column(f"'{one}'") for one in LISTED]),
    catalogue.c.status == literal_column("'in_review'"),
)


def count_waiting_reviews(connection: Connection, identity: Identity, most: int) -> int:
    """Return how many versions in review the identity may review, at most `most`."""
    asked = select(catalogue.c.name).where(*_IN_REVIEW).limit(most)
    view = view_of(identity)
    if view is not None and not view.grants_all:
        asked = asked.where(or_(catalogue.c.name.in_(identity.namespaces), *in_grants(view, catalogue)))
    names = connection.scalars(asked, parameters(identity))
    return sum(access.reviews(identity, name) for name in names)
