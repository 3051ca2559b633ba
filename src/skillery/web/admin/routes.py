"""The routes of these pages."""

from __future__ import annotations

from skillery.edge.routing import Route
from skillery.web.frame import Site


def routes(site: Site) -> list[Route]:
    return []
