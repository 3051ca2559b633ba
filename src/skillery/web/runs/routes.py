"""The routes of runs: try a skill, list runs, follow one run, its events and its files."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web.page_routes import page_route
from skillery.web.runs.events import Events
from skillery.web.runs.one import change_run, send_blob, show_run, show_runs
from skillery.web.runs.trying import show_try, start_run
from skillery.web.site import Site


def routes(site: Site) -> list[Route]:
    return [
        page_route(site, "/s/try", ("/s/{ref:str}/try",), {"GET": show_try, "POST": start_run}, needs="run"),
        page_route(site, "/runs", ("/runs",), {"GET": show_runs}, needs="read"),
        page_route(site, "/runs/run", ("/runs/{id:str}",), {"GET": show_run, "POST": change_run}, needs="read"),
        page_route(site, "/runs/events", ("/runs/{id:str}/events",), {"GET": Events().send}, needs="read"),
        page_route(site, "/runs/blobs", ("/runs/{id:str}/blobs/{blob:str}",), {"GET": send_blob}, needs="read"),
    ]
