"""The number of waiting reviews in the navigation of each page that a reviewer opens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery.errors import Unavailable
from skillery.skills.figures import count_waiting_reviews

if TYPE_CHECKING:
    from skillery.web.frame import PageRequest

MOST_WAITING = 200
"""The queue shows this number of versions. The navigation shows no larger number."""


async def waiting_reviews(request: PageRequest) -> str:
    """Return the number of versions that the caller may review, or "" if there are none or the caller does not review.

    This is one read of a partial index, without a cache: a decision changes the number at once.
    """
    if not request.may("review"):
        return ""
    identity = request.identity
    try:
        count = await request.site.core.registry.read(
            lambda connection: count_waiting_reviews(connection, identity, MOST_WAITING)
        )
    except Unavailable:
        return ""  # the page of this failure has no number
    return f"{count}+" if count == MOST_WAITING else str(count or "")
