"""The routes of publishing."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web.frame import Handler
from skillery.web.page_routes import page_route
from skillery.web.publish.pages import change_upload, receive_upload, show_start, show_upload
from skillery.web.site import Site


def routes(site: Site) -> list[Route]:
    start: dict[str, Handler] = {"GET": show_start, "POST": receive_upload}
    upload: dict[str, Handler] = {"GET": show_upload, "POST": change_upload}
    return [
        page_route(site, "/publish", ("/publish",), start, needs="publish"),
        page_route(site, "/publish/upload", ("/publish/{upload:str}",), upload, needs="publish"),
    ]
