"""The routes of all web pages, of the sign-in and of the static files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from skillery.backends import Scope
from skillery.client_source.openrpc import document, words_of_type
from skillery.errors import Conflict, InvalidParams, NotAllowed, NotAuthenticated, NotFound, Refused, TooLarge
from skillery.http.operations import Route
from skillery.http.requests import HttpRefusal
from skillery.identity import access
from skillery.methods.errors import NOT_FOUND, codes_of, plain_error
from skillery.web import (
    account,
    admin,
    admin_now,
    admin_tokens,
    catalogue,
    insight,
    login,
    publish_check,
    reviews,
    run_form,
    run_log,
    run_page,
    run_parts,
    skill_about,
    skill_changes,
    skill_files,
)
from skillery.web.failures import (
    ENDED,
    TOO_OLD,
    Unsent,
    ask_for_login,
    failing,
    read_unsent,
    sign_in_again,
    unsent_page,
)
from skillery.web.frame import Answer, FormRefused, Handler, OldSignIn, Page, PageRequest, message_of, request_of
from skillery.web.sending import has_login, send_answer, send_page
from skillery.web.site import ICON, STATIC, Site
from skillery.web.visits import OutdatedForm, kept_fields

# -- The table of the pages --------------------------------------------------------------------------------------------


Handlers = dict[str, Handler]
"""The handlers of a page by the HTTP method, GET and POST."""
FOR_VISITORS: dict[tuple[str, str], Handlers] = {
    ("/s", "/s/{ref:str}"): {"GET": skill_about.show_about, "POST": skill_changes.change},
    ("/s/files", "/s/{ref:str}/files"): {"GET": skill_files.show_file},
    ("/s/file", "/s/{ref:str}/files/{path:path}"): {"GET": skill_files.show_file},
    ("/s/raw", "/s/{ref:str}/raw/{path:path}"): {"GET": skill_files.show_raw},
    ("/s/frame", "/s/{ref:str}/frame/{path:path}"): {"GET": partial(skill_files.show_raw, for_frame=True)},
    ("/s/examples", "/s/{ref:str}/examples/{number:str}/{blob:str}"): {"GET": skill_about.send_example_file},
    ("/s/versions", "/s/{ref:str}/versions"): {"GET": skill_changes.show_versions},
    ("/s/diff", "/s/{ref:str}/diff/{older:str}"): {"GET": reviews.show_diff},
}
"""The pages of skills, by the name and the path of the route. Callers without a login see them if the setting
`public_downloads` permits it.
"""
RUN_PARTS: dict[tuple[str, str], Handlers] = {
    ("/runs/parts", "/runs/{id:str}/parts/{name:path}"): {"GET": run_parts.show_part},
    ("/runs/raw", "/runs/{id:str}/raw/{name:path}"): {"GET": run_parts.send_part},
    ("/runs/blobs", "/runs/{id:str}/blobs/{blob:str}"): {"GET": run_parts.send_blob},
    ("/runs/frame", "/runs/{id:str}/frame/{blob:str}"): {"GET": partial(run_parts.send_blob, for_frame=True)},
}
"""The parts of the result of a run, by the name and the path of the route."""
INSIGHT: dict[str, Handlers] = {
    "/insight" if key == "overview" else f"/insight/{key}": {"GET": partial(insight.show, key=key)}
    for key in insight.TABS
}
ADMIN: dict[str, Handlers] = {
    "/admin": {"GET": admin_now.show_overview},
    "/admin/tokens": {"GET": admin_tokens.show_tokens, "POST": admin_tokens.change_tokens},
    "/admin/secrets": {"GET": admin_tokens.show_secrets, "POST": admin_tokens.change_secrets},
    "/admin/quotas": {"GET": admin.show_quotas},
    "/admin/plugins": {"GET": admin.show_plugins},
    "/admin/storage": {"GET": admin.show_storage, "POST": admin.collect},
    "/admin/environments": {"GET": admin.show_environments, "POST": admin.change_environments},
    "/admin/webhooks": {"GET": admin.show_webhooks, "POST": admin.change_webhooks},
    "/admin/audit": {"GET": admin_tokens.show_audit, "POST": admin_tokens.verify_audit},
}


def make_pages(site: Site) -> list[Route]:
    """Return the routes of all pages, of the sign-in and of the static files."""
    start_page: Handlers = {"GET": catalogue.show, "POST": catalogue.hide_steps}
    start: Handlers = {"GET": publish_check.show_start, "POST": publish_check.receive_upload}
    upload: Handlers = {"GET": publish_check.show_upload, "POST": publish_check.change_upload}
    waivers: Handlers = {"GET": reviews.show_waivers, "POST": reviews.change_waivers}
    review: Handlers = {"GET": reviews.show_review, "POST": reviews.decide}
    attempt: Handlers = {"GET": run_form.show_try, "POST": run_form.start_run}
    script: Handlers = {"GET": run_form.show_script, "POST": run_form.start_script}
    run: Handlers = {"GET": run_page.show_run, "POST": run_page.change_run}
    new: Handlers = {"GET": run_form.show_new, "POST": run_form.start_code}
    me: Handlers = {"GET": account.show_account, "POST": account.change_account}
    return [
        *login.login_routes(site),
        Route(STATIC, site.assets.answer, (), is_mount=True, is_guarded=False),
        Route(ICON, site.assets.answer_icon, (), is_guarded=False),
        catalogue.with_links(page_route(site, "/", (), start_page, for_visitors=True)),
        *(page_route(site, name, (path,), row, for_visitors=True) for (name, path), row in FOR_VISITORS.items()),
        page_route(site, "/api", ("/api",), {"GET": show_api}, for_visitors=True),
        page_route(site, "/review", ("/review",), {"GET": reviews.show_queue}, needs="review"),
        page_route(site, "/review/waivers", ("/review/waivers",), waivers, needs="review"),
        page_route(site, "/review/version", ("/review/{ref:str}",), review),
        page_route(site, "/s/try", ("/s/{ref:str}/try",), attempt, needs="run"),
        page_route(site, "/s/scripts", ("/s/{ref:str}/scripts/{path:path}",), script, needs="run"),
        page_route(site, "/runs", ("/runs",), {"GET": run_page.show_runs}, needs="read"),
        page_route(site, "/runs/new", ("/runs/new",), new, needs="run"),
        page_route(site, "/runs/run", ("/runs/{id:str}",), run, needs="read"),
        page_route(site, "/runs/events", ("/runs/{id:str}/events",), {"GET": run_log.Events().send}, needs="read"),
        *(page_route(site, name, (path,), row, needs="read") for (name, path), row in RUN_PARTS.items()),
        page_route(site, "/publish", ("/publish",), start, needs="publish"),
        page_route(site, "/publish/upload", ("/publish/{upload:str}",), upload, needs="publish"),
        page_route(site, "/account", ("/account",), me),
        *(hidden_route(site, path, row, insight.shows(path)) for path, row in INSIGHT.items()),
        *(hidden_route(site, path, row, lambda request: request.may("admin")) for path, row in ADMIN.items()),
    ]


async def show_api(_: PageRequest) -> Page:
    """Return the page with all methods of JSON-RPC, their params and scopes."""
    return Page("api.html", "API", {"methods": document()["methods"], "words_of_type": words_of_type})


def hidden_route(
    site: Site, path: str, handlers: Mapping[str, Handler], is_shown: Callable[[PageRequest], bool]
) -> Route:
    """Return the route of a page for some callers. All others get 404, as for an unknown address."""
    return page_route(site, path, (path,), {name: _hidden(handler, is_shown) for name, handler in handlers.items()})


def _hidden(handler: Handler, is_shown: Callable[[PageRequest], bool]) -> Handler:
    """Return the handler with a check of the caller: it raises HttpRefusal 404 unless the page `is_shown`."""

    async def answer(request: PageRequest) -> Answer:
        if not is_shown(request):
            hint = "JSON-RPC is at POST /rpc."
            raise HttpRefusal(404, plain_error(NOT_FOUND, "this path does not exist", "not_found", hint))
        return await handler(request)

    return answer


# -- The route of a page: who may open it, its handlers, and its answers to failures -----------------------------------


def page_route(
    site: Site,
    name: str,
    paths: tuple[str, ...],
    handlers: Mapping[str, Handler],
    *,
    needs: Scope | None = None,
    for_visitors: bool = False,
) -> Route:
    """Return the route of a page. `handlers` has the function for `GET`, for `POST`, or for both.

    `needs` is the scope of the caller. With `for_visitors`, callers without a login see the page too, if the setting
    `public_downloads` permits it.
    """

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        request = await request_of(site, scope, receive, headers)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if request.known is None and not (for_visitors and site.public_pages):
            await _refuse_visitor(request, send)
            return
        if needs is not None:
            _require(request, needs, name)
        answer = await (_answer_to_form(request, handlers) if method == "POST" else handlers[method](request))
        await send_answer(request, send, answer)

    methods = ("GET", "HEAD", "POST") if len(handlers) == 2 else ("GET", "HEAD") if "GET" in handlers else ("POST",)
    return Route(name, endpoint, (), paths, methods, fail=failing(site))


def _require(request: PageRequest, needs: Scope, name: str) -> None:
    """Raise NotAllowed if the caller does not have the scope, and record the refusal in the audit trail."""
    try:
        access.require(request.identity, needs)
    except NotAllowed as error:
        request.site.gate.note_refusal(request.known, f"{request.method} {name}", "", error)
        raise


async def _refuse_visitor(request: PageRequest, send: Any) -> None:
    """Send a caller without a login to the login page, which carries the text of a sent form."""
    if request.method == "POST" and has_login(request.site):
        unsent = await read_unsent(request)
        if "hx-request" not in request.headers:
            await send_page(request, send, sign_in_again(request, ENDED, unsent))
            return
    await ask_for_login(request, send)


async def _answer_to_form(request: PageRequest, handlers: Mapping[str, Handler]) -> Answer:
    """Return the answer of the handler to a form.

    If the form is refused, return its page with the messages and the text of the form. If the form does not fit the
    session, return a page with the text of the form.
    """
    try:
        return await handlers["POST"](request)
    except OutdatedForm as error:
        return unsent_page(request, Unsent(request.address, error.pairs), 403)
    except OldSignIn:
        return sign_in_again(request, TOO_OLD, Unsent(request.address, kept_fields(request.sent or ())))
    except FormRefused as refused:
        request.problems, status = refused.problems, 400
    except _SHOWN_AT_FORMS as error:
        field, names = str(error.data.get("param", "")), {name for name, _ in request.sent or ()}
        request.problems, status = {field if field in names else "": message_of(error)}, codes_of(error).http
    except (HttpRefusal, NotAuthenticated, NotAllowed) as error:
        is_ended = not isinstance(error, HttpRefusal) or error.status in {401, 403}
        if request.known is not None or request.sent is None or not is_ended:
            raise
        return sign_in_again(request, ENDED, Unsent(request.address, kept_fields(request.sent)))
    page = await handlers["GET"](request)
    return page._replace(status=status) if isinstance(page, Page) else page


_SHOWN_AT_FORMS = (InvalidParams, Conflict, NotFound, Refused, TooLarge)
"""Errors that the page of a form shows. Other errors have a page of their own."""
