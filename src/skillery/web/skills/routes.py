"""The routes of the pages of one skill."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web.page_routes import page_route
from skillery.web.site import Site
from skillery.web.skills.about import show_about
from skillery.web.skills.changes import change, show_versions
from skillery.web.skills.files import show_file, show_files
from skillery.web.skills.raw import show_raw


def routes(site: Site) -> list[Route]:
    return [
        page_route(site, "/s", ("/s/{ref:str}",), {"GET": show_about, "POST": change}, for_visitors=True),
        page_route(site, "/s/files", ("/s/{ref:str}/files",), {"GET": show_files}, for_visitors=True),
        page_route(site, "/s/file", ("/s/{ref:str}/files/{path:path}",), {"GET": show_file}, for_visitors=True),
        page_route(site, "/s/raw", ("/s/{ref:str}/raw/{path:path}",), {"GET": show_raw}, for_visitors=True),
        page_route(site, "/s/versions", ("/s/{ref:str}/versions",), {"GET": show_versions}, for_visitors=True),
    ]
