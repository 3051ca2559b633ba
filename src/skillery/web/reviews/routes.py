"""The routes of reviews and of the diff of two versions."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web.frame import Handler
from skillery.web.page_routes import page_route
from skillery.web.reviews.decision import decide, show_review
from skillery.web.reviews.queue import change_waivers, show_diff, show_queue, show_waivers
from skillery.web.site import Site

WAIVERS: dict[str, Handler] = {"GET": show_waivers, "POST": change_waivers}


def routes(site: Site) -> list[Route]:
    return [
        page_route(site, "/s/diff", ("/s/{ref:str}/diff/{older:str}",), {"GET": show_diff}, for_visitors=True),
        page_route(site, "/review", ("/review",), {"GET": show_queue}, needs="review"),
        page_route(site, "/review/waivers", ("/review/waivers",), WAIVERS, needs="review"),
        page_route(site, "/review/version", ("/review/{ref:str}",), {"GET": show_review, "POST": decide}),
    ]
