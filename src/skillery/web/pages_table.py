"""The routes of all web pages, of the sign-in and of the static files."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web import account, login
from skillery.web.admin import tokens, upkeep
from skillery.web.admin.upkeep import admin_route
from skillery.web.catalogue import show as catalogue
from skillery.web.failures import failing
from skillery.web.frame import Handler
from skillery.web.page_routes import page_route
from skillery.web.publish import pages as publish
from skillery.web.reviews import decision
from skillery.web.runs import run_page, trying
from skillery.web.site import ICON, STATIC, Site
from skillery.web.skills import about, changes, files

Handlers = dict[str, Handler]
"""The handlers of a page by the HTTP method, GET and POST."""
FOR_VISITORS: dict[tuple[str, str], Handlers] = {
    ("/s", "/s/{ref:str}"): {"GET": about.show_about, "POST": changes.change},
    ("/s/files", "/s/{ref:str}/files"): {"GET": files.show_files},
    ("/s/file", "/s/{ref:str}/files/{path:path}"): {"GET": files.show_file},
    ("/s/raw", "/s/{ref:str}/raw/{path:path}"): {"GET": files.show_raw},
    ("/s/versions", "/s/{ref:str}/versions"): {"GET": changes.show_versions},
    ("/s/diff", "/s/{ref:str}/diff/{older:str}"): {"GET": decision.show_diff},
}
"""The pages of skills, by the name and the path of the route. Callers without a login see them if the setting
`public_downloads` permits it.
"""
ADMIN: dict[str, Handlers] = {
    "/admin": {"GET": upkeep.show_overview},
    "/admin/tokens": {"GET": tokens.show_tokens, "POST": tokens.change_tokens},
    "/admin/secrets": {"GET": tokens.show_secrets, "POST": tokens.change_secrets},
    "/admin/quotas": {"GET": upkeep.show_quotas},
    "/admin/plugins": {"GET": upkeep.show_plugins},
    "/admin/storage": {"GET": upkeep.show_storage},
    "/admin/environments": {"GET": upkeep.show_environments, "POST": upkeep.change_environments},
    "/admin/webhooks": {"GET": upkeep.show_webhooks, "POST": upkeep.change_webhooks},
    "/admin/audit": {"GET": tokens.show_audit, "POST": tokens.verify_audit},
    "/admin/gc": {"GET": upkeep.show_garbage, "POST": upkeep.collect},
}


def make_pages(site: Site) -> list[Route]:
    """Return the routes of all pages, of the sign-in and of the static files."""
    start: Handlers = {"GET": publish.show_start, "POST": publish.receive_upload}
    upload: Handlers = {"GET": publish.show_upload, "POST": publish.change_upload}
    waivers: Handlers = {"GET": decision.show_waivers, "POST": decision.change_waivers}
    review: Handlers = {"GET": decision.show_review, "POST": decision.decide}
    attempt: Handlers = {"GET": trying.show_try, "POST": trying.start_run}
    run: Handlers = {"GET": run_page.show_run, "POST": run_page.change_run}
    me: Handlers = {"GET": account.show_account, "POST": account.change_account}
    return [
        *login_routes(site),
        Route(STATIC, site.assets.answer, (), is_mount=True, is_guarded=False),
        Route(ICON, site.assets.answer_icon, (), is_guarded=False),
        catalogue.route(site),
        *(page_route(site, name, (path,), row, for_visitors=True) for (name, path), row in FOR_VISITORS.items()),
        page_route(site, "/review", ("/review",), {"GET": decision.show_queue}, needs="review"),
        page_route(site, "/review/waivers", ("/review/waivers",), waivers, needs="review"),
        page_route(site, "/review/version", ("/review/{ref:str}",), review),
        page_route(site, "/s/try", ("/s/{ref:str}/try",), attempt, needs="run"),
        page_route(site, "/runs", ("/runs",), {"GET": run_page.show_runs}, needs="read"),
        page_route(site, "/runs/run", ("/runs/{id:str}",), run, needs="read"),
        page_route(site, "/runs/events", ("/runs/{id:str}/events",), {"GET": run_page.Events().send}, needs="read"),
        page_route(
            site, "/runs/blobs", ("/runs/{id:str}/blobs/{blob:str}",), {"GET": run_page.send_blob}, needs="read"
        ),
        page_route(site, "/publish", ("/publish",), start, needs="publish"),
        page_route(site, "/publish/upload", ("/publish/{upload:str}",), upload, needs="publish"),
        page_route(site, "/account", ("/account",), me),
        *(admin_route(site, path, row) for path, row in ADMIN.items()),
    ]


def login_routes(site: Site) -> list[Route]:
    """Return the routes of the sign-in, which exist with the setting `web = false` too."""
    pages, elsewhere = login.LoginPages(site), login.ProviderLogin(site)
    fail = failing(site)
    return [
        Route("/login", pages.answer, login.LOGIN_OPERATIONS, fail=fail),
        Route("/logout", pages.sign_out, login.LOGOUT_OPERATIONS, fail=fail),
        Route(
            "/login/{name}",
            elsewhere.begin,
            login.BEGIN,
            login.BEGIN_PATHS,
            ("GET",),
            fail=fail,
        ),
        Route(
            "/login/{name}/callback",
            elsewhere.finish,
            login.FINISH,
            login.FINISH_PATHS,
            ("GET",),
            fail=fail,
        ),
    ]
