"""What all pages share: the parts of the site, the request and the answer of a page, and the pages of failures."""

from __future__ import annotations

import gzip
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from skillery.backends import Authenticator, Credentials, Identity, Scope
from skillery.context.request import current, current_id
from skillery.edge.gate import ANONYMOUS, FORBIDDEN, Gate
from skillery.edge.http import HttpRefusal, address_of, send_bytes, send_refusal
from skillery.edge.routing import Route
from skillery.edge.run_streams import OpenStreams, RunStreams
from skillery.errors import NotAllowed, NotAuthenticated, SkilleryError
from skillery.methods.answers import Answers, held_answer
from skillery.methods.budgets import Bodies
from skillery.methods.core import Core
from skillery.methods.errors import CODES, INVALID_REQUEST, plain_error
from skillery.methods.execution import perform
from skillery.web.assets import Assets, accepts_gzip
from skillery.web.cookies import Cookies, Header, cookie_of, cookies_of
from skillery.web.display import language_of
from skillery.web.forms import MOST_FORM_BYTES, safe_next
from skillery.web.headers import HTML, page_headers
from skillery.web.rendered_texts import RenderedTexts
from skillery.web.rendering import Templates
from skillery.web.visits import Visit, Visits
from skillery.web.waiting import waiting_reviews

BUILT = ("skills", "runs", "review", "publish", "admin")
"""The parts of the main navigation that have pages."""
THEMES = ("system", "light", "dark")
THEME_COOKIE = "skillery-theme"
DONE_COOKIE = "skillery-done"
DONE_SECONDS = 60
SMALLEST_COMPRESSED = 1024
_STATUS_OF = dict(CODES.values())
VERSION = version("skillery")


class Site(NamedTuple):
    """The parts of the server that pages use."""

    core: Core
    gate: Gate
    authenticator: Authenticator
    visits: Visits
    bodies: Bodies
    answers: Answers
    templates: Templates
    assets: Assets
    texts: RenderedTexts
    public_pages: bool
    """Whether callers without a login see pages of public skills (the setting `public_downloads`)."""
    streams: RunStreams
    extras: Mapping[str, Any] = {}
    """Parts that only some pages use, by name."""


class CallFailed(Exception):
    """Raised if a method fails. Without a handler, the user gets a page with the error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = dict(error)
        self.message: str = error["message"]
        self.data: Mapping[str, Any] = error.get("data", {})
        self.type: str = self.data.get("type", "")
        self.hint: str = self.data.get("hint", "")
        self.status = _STATUS_OF.get(error["code"], 400)

    def refusal(self) -> HttpRefusal:
        return HttpRefusal(self.status, self.error)


class Page(NamedTuple):
    """The answer of a page."""

    template: str
    title: str
    values: Mapping[str, Any] = {}
    section: str = ""
    """The part of the main navigation that is marked as current: skills, runs, review, publish, admin."""
    status: int = 200
    headers: tuple[Header, ...] = ()


class Undo(msgspec.Struct, frozen=True):
    """A form with one button that takes back a change."""

    label: str
    action: str
    fields: dict[str, str]


class Done(msgspec.Struct, frozen=True):
    """The message of the next page about a change."""

    text: str
    undo: Undo | None = None


class SeeOther(NamedTuple):
    """The answer to a form: the browser opens another page, which shows what was done."""

    address: str
    done: Done | None = None
    headers: tuple[Header, ...] = ()


class Direct(NamedTuple):
    """An answer that is not a page, such as a file or a stream. `send` gets the ASGI function `send`."""

    send: Callable[[Any], Awaitable[None]]


Answer = Page | SeeOther | Direct


class Form(NamedTuple):
    """The fields of a form, in order. A field can occur several times."""

    pairs: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a field. Line ends are `\\n`, as the user has typed them."""
        return next((_lines(value) for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return [_lines(value) for key, value in self.pairs if key == name]

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)


class PageRequest:
    """The request of a page: the caller, the query, the form, and calls of methods with the rights of the caller."""

    def __init__(
        self, site: Site, scope: Any, receive: Any, headers: dict[str, str], visit: Visit, identity: Identity | None
    ) -> None:
        self.site = site
        self.scope = scope
        self.receive = receive
        self.headers = headers
        self.visit = visit
        self.known = identity
        """The caller, or None for a visitor without a login."""
        self.pairs = _query_of(scope)
        self.query = dict(self.pairs)
        """The fields of the query. The last value of a field counts."""
        self.language = language_of(headers.get("accept-language", ""))

    @property
    def identity(self) -> Identity:
        """The caller. ANONYMOUS for a visitor."""
        return self.known or ANONYMOUS

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method

    @property
    def path(self) -> str:
        path: str = self.scope["path"]
        return path

    @property
    def address(self) -> str:
        """The path with the query, for links back to this page."""
        raw: bytes = self.scope.get("raw_path") or self.path.encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        query = self.scope.get("query_string", b"").decode("latin-1")
        return f"{path}?{query}" if query else path

    @property
    def server(self) -> str:
        """The address of this server as the browser knows it, such as `https://skills.example.com`."""
        return f"{self.scope['scheme']}://{self.headers.get('host', '').lower()}"

    def parameter(self, name: str) -> str:
        """Return a parameter of the path. The router has decoded it."""
        return str(self.scope["path_params"][name]).removeprefix("/")

    def query_values(self, name: str) -> list[str]:
        """Return all values of a field of the query, in order."""
        return [value for key, value in self.pairs if key == name]

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has a scope. Actions that the caller may not perform are not on the page."""
        return self.known is not None and scope in self.known.scopes

    def require(self, scope: Scope) -> Identity:
        """Return the caller. Raise NotAuthenticated for a visitor, NotAllowed for a caller without the scope."""
        if self.known is None:
            raise NotAuthenticated("this page needs a login", hint="Sign in.")
        if scope not in self.known.scopes:
            raise NotAllowed(
                f"this needs the scope {scope}",
                hint=f"{self.known.name} has {', '.join(sorted(self.known.scopes))}. An admin can change that.",
            )
        return self.known

    async def call(self, method: str, /, params: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """Call a method with the rights of the caller, and return its result as dicts and lists.

        Params that are None are left out. `key` is an idempotency key. Raise CallFailed if the method fails.
        """
        given = {name: value for name, value in (params or {}).items() if value is not None}
        with self.site.answers.hold() as held:
            held_answer.set(held)
            raw = msgspec.Raw(msgspec.json.encode(given))
            parts, error = await perform(self.site.core, self.identity, method, raw, key)
            if parts is None:
                raise CallFailed(error)
            return msgspec.json.decode(b"".join(parts))

    async def form(self, most_bytes: int = MOST_FORM_BYTES, most_fields: int = 20) -> Form:
        """Return the fields of a form that this site has sent. Raise the errors of `Visits.read_pairs`."""
        pairs = await self.site.visits.read_pairs(
            self.scope, self.receive, self.headers, self.visit, most_bytes, most_fields
        )
        return Form(tuple(pairs))

    def form_token(self) -> str:
        """Return the value of the hidden field `form_token` for a form of this page."""
        return self.site.visits.form_token(self.visit)

    def with_query(self, **changes: str | None) -> str:
        """Return the address of this page with changed fields of the query. None removes a field."""
        pairs = [(name, value) for name, value in self.query.items() if name not in changes]
        pairs += [(name, value) for name, value in changes.items() if value]
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


Handler = Callable[[PageRequest], Awaitable[Answer]]


class Shared(Protocol):
    """The parts that pages share with the endpoints of `api`."""

    @property
    def gate(self) -> Gate: ...

    @property
    def bodies(self) -> Bodies: ...

    @property
    def answers(self) -> Answers: ...

    @property
    def streams(self) -> OpenStreams: ...

    @property
    def public_downloads(self) -> bool: ...


def open_site(core: Core, shared: Shared, extras: Mapping[str, Any]) -> Site:
    """Return the parts of the site. Compile all templates."""
    return Site(
        core=core,
        gate=shared.gate,
        authenticator=core.authenticator,
        visits=Visits(shared.gate, core.sessions, core.signer, shared.bodies),
        bodies=shared.bodies,
        answers=shared.answers,
        templates=Templates(),
        assets=Assets(),
        texts=RenderedTexts(),
        public_pages=shared.public_downloads,
        streams=RunStreams(core.runner, shared.streams),
        extras=extras,
    )


def page_route(
    site: Site,
    name: str,
    paths: tuple[str, ...],
    handlers: Mapping[str, Handler],
    *,
    needs: Scope | None = None,
    for_visitors: bool = False,
) -> Route:
    """Return the route of a page. `handlers` has a function for `GET`, for `POST`, or for both.

    `needs` is the scope of the caller. If `for_visitors`, callers without a login see the page, provided that the
    setting `public_downloads` admits them.
    """

    async def endpoint(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        request = await _request_of(site, scope, receive, headers)
        if request.known is None and not (for_visitors and site.public_pages):
            await _ask_for_login(request, send)
            return
        if needs is not None:
            try:
                request.require(needs)
            except NotAllowed as error:
                site.gate.note_refusal(request.known, f"{scope['method']} {name}", "", error)
                raise
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            answer = await handlers[method](request)
        except CallFailed as failed:
            raise failed.refusal() from None
        await send_answer(request, send, answer)

    methods = ("GET", "HEAD", "POST") if len(handlers) == 2 else ("GET", "HEAD") if "GET" in handlers else ("POST",)
    return Route(name, endpoint, (), paths, methods, fail=failing(site))


async def send_answer(request: PageRequest, send: Any, answer: Answer) -> None:
    if isinstance(answer, Direct):
        await answer.send(send)
    elif isinstance(answer, SeeOther):
        cookies = [] if answer.done is None else [_done_cookie(request, answer.done)]
        headers = [*page_headers(""), ("location", answer.address), *cookies, *answer.headers]
        await send_bytes(send, 303, b"", HTML, headers)
    else:
        await send_page(request, send, answer)


async def send_page(request: PageRequest, send: Any, page: Page) -> None:
    nonce = secrets.token_urlsafe(16)
    done, dropped = _done_of(request)
    waiting = await waiting_reviews(request)
    values = {**_frame_values(request, page, nonce, done), "waiting": waiting, **page.values}
    text = request.site.templates.render(page.template, values).encode()
    headers = [*page_headers(nonce), *dropped, *page.headers]
    if len(text) >= SMALLEST_COMPRESSED and accepts_gzip(request.headers):
        text = gzip.compress(text, 4, mtime=0)
        headers.append(("content-encoding", "gzip"))
    await send_bytes(send, page.status, text, HTML, headers)


def failing(site: Site) -> Callable[[Any, Any, dict[str, str], HttpRefusal], Awaitable[None]]:
    """Return the function that answers failed requests: with a page for browsers, with JSON for programs."""

    async def fail(scope: Any, send: Any, headers: dict[str, str], refusal: HttpRefusal) -> None:
        if "text/html" in headers.get("accept", ""):
            await send_failure(site, scope, send, headers, refusal)
        else:
            await send_refusal(send, refusal)

    return fail


async def send_failure(site: Site, scope: Any, send: Any, headers: dict[str, str], refusal: HttpRefusal) -> None:
    """Answer a failed request with a page: what happened, what to do next, and the id of the request."""
    identity = None
    visit = Visit(Cookies(False), None, None)
    if refusal.status not in {FORBIDDEN, 500, 503}:
        try:
            known = await _request_of(site, scope, None, headers)
            identity, visit = known.known, known.visit
        except (HttpRefusal, SkilleryError):
            pass  # the page of the first failure needs no name of a user
    request = PageRequest(site, scope, None, headers, visit, identity)
    if refusal.status == 401:
        await _ask_for_login(request, send)
        return
    error = refusal.error
    data = error.get("data", {})
    retry = data.get("retry_after_ms")
    values = {
        "status": refusal.status,
        "heading": _HEADINGS.get(refusal.status, "This did not work"),
        "message": error["message"],
        "hint": data.get("hint", ""),
        "similar": data.get("suggestions") or [],
        "retry_seconds": -(-retry // 1000) if retry else None,
        "request_id": current_id() or "",
    }
    page = Page("error.html", values["heading"], values, status=refusal.status, headers=tuple(refusal.headers))
    await send_page(request, send, page)


_HEADINGS = {
    400: "The server does not understand this request",
    403: "You may not do this",
    404: "Nothing here",
    405: "This address does not take this request",
    409: "This does not fit the current state",
    413: "Too large",
    415: "The server does not accept this kind of content",
    422: "A rule refuses this",
    429: "Too many failed logins",
    500: "An error happened on the server",
    503: "The server is busy",
}


async def _request_of(site: Site, scope: Any, receive: Any, headers: dict[str, str]) -> PageRequest:
    try:
        cookies = cookies_of(scope, headers)
    except HttpRefusal:
        cookies = None  # an unencrypted connection: browsers can read what visitors may read, and not sign in
    secret = cookie_of(headers, cookies.session) if cookies is not None else None
    session = await site.visits.sessions.find(secret) if secret is not None else None
    visit = Visit(cookies or Cookies(False), secret, session)
    identity = session.identity if session is not None else await _without_session(site, scope, headers)
    request = current.get()
    if identity is not None and request is not None:
        request.identity = identity.name
    return PageRequest(site, scope, receive, headers, visit, identity)


async def _without_session(site: Site, scope: Any, headers: dict[str, str]) -> Identity | None:
    """Return the caller that an authenticator knows without a token: with `open`, or behind an authenticating proxy."""
    without_token = {name: value for name, value in headers.items() if name != "authorization"}
    try:
        return await site.authenticator.authenticate(Credentials(without_token, address_of(scope)))
    except NotAuthenticated:
        return None


async def _ask_for_login(request: PageRequest, send: Any) -> None:
    """Send the browser to the page for a login. htmx gets a header instead of a redirect, which it could not show."""
    back = safe_next(request.address if request.method in {"GET", "HEAD"} else "")
    address = f"/login?next={quote(back, safe='')}" if back and back != "/" else "/login"
    if "hx-request" in request.headers:
        body = b"<!doctype html><title>Sign in</title><p>Your session has ended.</p>"
        await send_bytes(send, 401, body, HTML, [*page_headers(""), ("hx-redirect", address)])
        return
    await send_bytes(send, 303, b"", HTML, [*page_headers(""), ("location", address)])


def _frame_values(request: PageRequest, page: Page, nonce: str, done: Done | None) -> dict[str, Any]:
    return {
        "title": page.title,
        "section": page.section,
        "nonce": nonce,
        "done": done,
        "form_token": request.form_token(),
        "who": request.known,
        "is_signed_in": request.visit.session is not None,
        "can_sign_in": _has_login(request.site),
        "may": request.may,
        "asset": request.site.assets.address,
        "theme": _theme_of(request),
        "language": request.language,
        "keys_on": cookie_of(request.headers, "skillery-keys") != "off",
        "here": request.address,
        "server": request.server,
        "skillery_version": VERSION,
        "path_of": path_of,
        "built": BUILT,
    }


def _has_login(site: Site) -> bool:
    return site.visits.sessions.accept_tokens or bool(site.visits.sessions.logins)


def _theme_of(request: PageRequest) -> str:
    theme = cookie_of(request.headers, THEME_COOKIE)
    return theme if theme in THEMES else "system"


def path_of(*segments: str) -> str:
    """Return a path with each segment encoded, for example `/s/text.csv@1.0/files/a%20b.py`. Slashes in the last
    segment stay.
    """
    *first, last = segments
    return "/" + "/".join([*(quote(one, safe="@") for one in first), quote(last, safe="@/")])


def _done_cookie(request: PageRequest, done: Done) -> Header:
    text = request.site.visits.signer.signed(msgspec.json.encode(done))
    return request.visit.cookies.setting(DONE_COOKIE, text, DONE_SECONDS)


def _done_of(request: PageRequest) -> tuple[Done | None, list[Header]]:
    """Return the message of the last change, and the header that removes it from the browser."""
    text = cookie_of(request.headers, DONE_COOKIE)
    if text is None:
        return None, []
    value = request.site.visits.signer.verified(text)
    dropped = [request.visit.cookies.dropping(DONE_COOKIE)]
    try:
        return (msgspec.json.decode(value, type=Done) if value is not None else None), dropped
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None, dropped


def _query_of(scope: Any) -> list[tuple[str, str]]:
    """Return the fields of the query, in order. Raise HttpRefusal 400 if there are too many."""
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=100, errors="replace")
    except ValueError:
        message = "the query has too many fields"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_query", "Start again.")) from None


def _lines(value: str) -> str:
    # Browsers send line ends of text areas as CR LF.
    return value.replace("\r\n", "\n")
