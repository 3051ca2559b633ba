"""The routes of all web pages, of the sign-in and of the static files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from skillery.backends import Scope
from skillery.client_source.openrpc import document, words_of_type
from skillery.errors import Conflict, InvalidParams, NotAllowed, NotAuthenticated, NotFound, Refused, TooLarge
from skillery.http.operations import Route
from skillery.http.requests import HttpRefusal
from skillery.http.run_streams import OpenStreams
from skillery.identity import access
from skillery.methods.errors import NOT_FOUND, codes_of, plain_error
from skillery.web import (
    account,
    admin,
    admin_now,
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


class Row(NamedTuple):
    """A page: the name and the path of its route, who may open it, and its handlers."""

    name: str
    path: str
    opens: Scope | Literal["visitors"] | Callable[[PageRequest], bool] | None
    """The scope of its callers. With `visitors`, callers without a login see the page too, if the setting
    `public_downloads` permits it. With a function, callers for whom it returns False get 404, as for an unknown
    address.
    """
    show: Handler
    change: Handler | None = None
    """The handler of its form."""
    for_auditors: bool = False
    """Whether the scope `audit` suffices too."""


def make_pages(site: Site) -> list[Route]:
    """Return the routes of all pages, of the sign-in and of the static files."""
    start = page_route(site, Row("/", "", "visitors", catalogue.show, catalogue.change))
    events = partial(run_log.send_events, OpenStreams(run_log.LIMITS))
    framed = partial(skill_files.show_raw, for_frame=True)
    framed_blob = partial(run_parts.send_blob, for_frame=True)
    rows = [
        Row("/s", "/s/{ref:str}", "visitors", skill_about.show_about, skill_changes.change),
        Row("/s/files", "/s/{ref:str}/files", "visitors", skill_files.show_file),
        Row("/s/file", "/s/{ref:str}/files/{path:path}", "visitors", skill_files.show_file),
        Row("/s/raw", "/s/{ref:str}/raw/{path:path}", "visitors", skill_files.show_raw),
        Row("/s/frame", "/s/{ref:str}/frame/{path:path}", "visitors", framed),
        Row("/s/examples", "/s/{ref:str}/examples/{number:str}/{blob:str}", "visitors", skill_about.send_example_file),
        Row("/s/versions", "/s/{ref:str}/versions", "visitors", skill_changes.show_versions),
        Row("/s/diff", "/s/{ref:str}/diff/{older:str}", "visitors", reviews.show_diff),
        Row("/s/insight", "/s/{ref:str}/insight", insight.shows_skill, insight.show_skill),
        Row("/s/try", "/s/{ref:str}/try", "run", run_form.show_try, run_form.start_run),
        Row("/s/scripts", "/s/{ref:str}/scripts/{path:path}", "run", run_form.show_script, run_form.start_script),
        Row("/api", "/api", "visitors", show_api),
        Row("/review", "/review", "review", reviews.show_queue),
        Row("/review/waivers", "/review/waivers", "review", reviews.show_waivers, reviews.change_waivers),
        Row("/review/version", "/review/{ref:str}", None, reviews.show_review, reviews.decide),
        Row("/runs", "/runs", "read", run_page.show_runs, for_auditors=True),
        Row("/runs/new", "/runs/new", "run", run_form.show_new, run_form.start_code),
        Row("/runs/run", "/runs/{id:str}", "read", run_page.show_run, run_page.change_run, for_auditors=True),
        Row("/runs/events", "/runs/{id:str}/events", "read", events, for_auditors=True),
        Row("/runs/parts", "/runs/{id:str}/parts/{name:path}", "read", run_parts.show_part),
        Row("/runs/raw", "/runs/{id:str}/raw/{name:path}", "read", run_parts.send_part),
        Row("/runs/compare", "/runs/{id:str}/compare/{other:str}", "read", run_parts.show_comparison),
        Row("/runs/files", "/runs/{id:str}/files.zip", "read", run_parts.send_archive),
        Row("/runs/blobs", "/runs/{id:str}/blobs/{blob:str}", "read", run_parts.send_blob),
        Row("/runs/frame", "/runs/{id:str}/frame/{blob:str}", "read", framed_blob),
        Row("/publish", "/publish", "publish", publish_check.show_start, publish_check.receive_upload),
        Row(
            "/publish/upload",
            "/publish/{upload:str}",
            "publish",
            publish_check.show_upload,
            publish_check.change_upload,
        ),
        Row("/account", "/account", None, account.show_account, account.change_account),
        _insight("/insight", "overview"),
        *(_insight(f"/insight/{key}", key) for key in insight.TABS if key != "overview"),
        _admin("/admin", admin_now.show_overview),
        _admin("/admin/tokens", admin.show_tokens, admin.change_tokens),
        _admin("/admin/secrets", admin.show_secrets, admin.change_secrets),
        _admin("/admin/quotas", admin.show_quotas),
        _admin("/admin/plugins", admin.show_plugins),
        _admin("/admin/storage", admin.show_storage, admin.collect),
        _admin("/admin/environments", admin.show_environments, admin.change_environments),
        _admin("/admin/webhooks", admin.show_webhooks, admin.change_webhooks),
        _admin("/admin/audit", admin.show_audit, admin.verify_audit, scope="audit"),
        _admin("/admin/incident", admin.show_incident),
    ]
    return [
        *login.login_routes(site),
        Route(STATIC, site.assets.answer, (), is_mount=True, is_guarded=False),
        Route(ICON, site.assets.answer, (), is_guarded=False),
        catalogue.with_links(start),
        *(page_route(site, row) for row in rows),
    ]


def _insight(path: str, key: str) -> Row:
    return Row(path, path, insight.shows(key), partial(insight.show, key=key))


def _admin(path: str, show: Handler, change: Handler | None = None, scope: Scope = "admin") -> Row:
    return Row(path, path, lambda request: request.may(scope), show, change)


async def show_api(_: PageRequest) -> Page:
    """Return the page with all methods of JSON-RPC, their params and scopes."""
    return Page("api.html", "API", {"methods": document()["methods"], "words_of_type": words_of_type})


# -- The route of a page: who may open it, its handlers, and its answers to failures -----------------------------------


def page_route(site: Site, row: Row) -> Route:
    """Return the route of a page."""

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        request = await request_of(site, scope, receive, headers)
        if request.known is None and not (row.opens == "visitors" and site.public_pages):
            await _refuse_visitor(request, send)
            return
        _check(request, row)
        is_form = row.change is not None and scope["method"] == "POST"
        await send_answer(request, send, await (_answer_to_form(request, row) if is_form else row.show(request)))

    methods = ("GET", "HEAD", "POST") if row.change else ("GET", "HEAD")
    return Route(row.name, endpoint, (), (row.path,) if row.path else (), methods, fail=failing(site))


def _check(request: PageRequest, row: Row) -> None:
    """Raise HttpRefusal 404 for a hidden page, or NotAllowed for a missing scope, with an entry in the audit trail."""
    if callable(row.opens):
        if not row.opens(request):
            hint = "JSON-RPC is at POST /rpc."
            raise HttpRefusal(404, plain_error(NOT_FOUND, "this path does not exist", "not_found", hint))
    elif row.opens is not None and row.opens != "visitors" and not (row.for_auditors and request.may("audit")):
        try:
            access.require(request.identity, row.opens)
        except NotAllowed as error:
            request.site.gate.note_refusal(request.known, f"{request.method} {row.name}", "", error)
            raise


async def _refuse_visitor(request: PageRequest, send: Any) -> None:
    """Send a caller without a login to the login page, which carries the text of a sent form."""
    if request.method == "POST" and has_login(request.site):
        unsent = await read_unsent(request)
        if "hx-request" not in request.headers:
            await send_page(request, send, sign_in_again(request, ENDED, unsent))
            return
    await ask_for_login(request, send)


async def _answer_to_form(request: PageRequest, row: Row) -> Answer:
    """Return the answer of the handler to a form.

    If the form is refused, return its page with the messages and the text of the form. If the form does not fit the
    session, return a page with the text of the form.
    """
    try:
        return await (row.change or row.show)(request)
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
    page = await row.show(request)
    return page._replace(status=status) if isinstance(page, Page) else page


_SHOWN_AT_FORMS = (InvalidParams, Conflict, NotFound, Refused, TooLarge)
"""Errors that the page of a form shows. Other errors have a page of their own."""
