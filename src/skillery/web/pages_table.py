"""The routes of all web pages, of the sign-in and of the static files."""

from __future__ import annotations

from skillery.http.operations import Route
from skillery.web import (
    account,
    admin,
    admin_tokens,
    catalogue,
    login,
    publish,
    reviews,
    run_form,
    run_page,
    skill_about,
    skill_changes,
    skill_files,
)
from skillery.web.failures import failing
from skillery.web.frame import Handler
from skillery.web.page_routes import page_route
from skillery.web.site import ICON, STATIC, Site

Handlers = dict[str, Handler]
"""The handlers of a page by the HTTP method, GET and POST."""
FOR_VISITORS: dict[tuple[str, str], Handlers] = {
    ("/s", "/s/{ref:str}"): {"GET": skill_about.show_about, "POST": skill_changes.change},
    ("/s/files", "/s/{ref:str}/files"): {"GET": skill_files.show_files},
    ("/s/file", "/s/{ref:str}/files/{path:path}"): {"GET": skill_files.show_file},
    ("/s/raw", "/s/{ref:str}/raw/{path:path}"): {"GET": skill_files.show_raw},
    ("/s/versions", "/s/{ref:str}/versions"): {"GET": skill_changes.show_versions},
    ("/s/diff", "/s/{ref:str}/diff/{older:str}"): {"GET": reviews.show_diff},
}
"""The pages of skills, by the name and the path of the route. Callers without a login see them if the setting
`public_downloads` permits it.
"""
ADMIN: dict[str, Handlers] = {
    "/admin": {"GET": admin.show_overview},
    "/admin/tokens": {"GET": admin_tokens.show_tokens, "POST": admin_tokens.change_tokens},
    "/admin/secrets": {"GET": admin_tokens.show_secrets, "POST": admin_tokens.change_secrets},
    "/admin/quotas": {"GET": admin.show_quotas},
    "/admin/plugins": {"GET": admin.show_plugins},
    "/admin/storage": {"GET": admin.show_storage},
    "/admin/environments": {"GET": admin.show_environments, "POST": admin.change_environments},
    "/admin/webhooks": {"GET": admin.show_webhooks, "POST": admin.change_webhooks},
    "/admin/audit": {"GET": admin_tokens.show_audit, "POST": admin_tokens.verify_audit},
    "/admin/gc": {"GET": admin.show_garbage, "POST": admin.collect},
}


def make_pages(site: Site) -> list[Route]:
    """Return the routes of all pages, of the sign-in and of the static files."""
    start: Handlers = {"GET": publish.show_start, "POST": publish.receive_upload}
    upload: Handlers = {"GET": publish.show_upload, "POST": publish.change_upload}
    waivers: Handlers = {"GET": reviews.show_waivers, "POST": reviews.change_waivers}
    review: Handlers = {"GET": reviews.show_review, "POST": reviews.decide}
    attempt: Handlers = {"GET": run_form.show_try, "POST": run_form.start_run}
    run: Handlers = {"GET": run_page.show_run, "POST": run_page.change_run}
    me: Handlers = {"GET": account.show_account, "POST": account.change_account}
    return [
        *login_routes(site),
        Route(STATIC, site.assets.answer, (), is_mount=True, is_guarded=False),
        Route(ICON, site.assets.answer_icon, (), is_guarded=False),
        catalogue.route(site),
        *(page_route(site, name, (path,), row, for_visitors=True) for (name, path), row in FOR_VISITORS.items()),
        page_route(site, "/review", ("/review",), {"GET": reviews.show_queue}, needs="review"),
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
        *(admin.admin_route(site, path, row) for path, row in ADMIN.items()),
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
