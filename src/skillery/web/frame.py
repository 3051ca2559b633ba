"""The parts that all pages share: their request, calls of methods with the rights of the caller, and the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import msgspec

from skillery.backends import Credentials, Identity, Scope
from skillery.context.request import current
from skillery.errors import NotAllowed, NotAuthenticated, SkilleryError, Unavailable
from skillery.http.gate import ANONYMOUS
from skillery.http.requests import HttpRefusal, address_of, read_body
from skillery.identity import access
from skillery.method import Json, Params
from skillery.methods.errors import INVALID_REQUEST, plain_error
from skillery.methods.execution import execute
from skillery.web.display import language_of
from skillery.web.site import Site
from skillery.web.visits import (
    FORM_TOKEN,
    MOST_FORM_BYTES,
    Cookies,
    Header,
    OutdatedForm,
    Pairs,
    Visit,
    check_form_type,
    check_same_origin,
    cookie_of,
    cookies_of,
    kept_fields,
    pairs_of,
)

P = TypeVar("P", bound=Params)
R = TypeVar("R", bound=msgspec.Struct)
RECENT = timedelta(minutes=15)
"""The maximum age of a sign-in that may change tokens, secrets and garbage."""


class Page(NamedTuple):
    """An answer that is a page: a template and its values."""

    template: str
    title: str
    values: Mapping[str, Any] = {}
    section: str = ""
    """The current part of the main navigation: skills, runs, review, publish, admin, or ""."""
    status: int = 200
    headers: tuple[Header, ...] = ()


class Undo(msgspec.Struct, frozen=True):
    """A form with one button that takes back the change that the message is about."""

    label: str
    action: str
    fields: dict[str, str]


class Done(msgspec.Struct, frozen=True):
    """The message about a change, which the next page shows."""

    text: str
    undo: Undo | None = None
    page: str = ""
    """The page of the changed object, if the next page is another one."""


class SeeOther(NamedTuple):
    """The answer to a form: a redirect to a page, which shows the message `done`."""

    address: str
    done: Done | None = None
    headers: tuple[Header, ...] = ()


class Direct(NamedTuple):
    """An answer that is not a page, such as a file or a stream. The function `send` takes the ASGI function `send`."""

    send: Callable[[Any], Awaitable[None]]


Answer = Page | SeeOther | Direct


class Form(NamedTuple):
    """The fields of a sent form, in order. A field can occur several times."""

    pairs: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        """Return the first value of a field, or `default`."""
        return next(iter(self.all(name)), default)

    def all(self, name: str) -> list[str]:
        """Return all values of a field, in order. Line ends are line feeds, as the user has typed them."""
        # Browsers send line ends of text areas as CR LF.
        return [value.replace("\r\n", "\n") for key, value in self.pairs if key == name]

    def has(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)


class FormRefused(Exception):
    """Raised for a form with invalid fields. The page of the form shows the messages.

    `problems` are messages by the id of their field, or by "" for the whole form.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(*problems.values())
        self.problems = dict(problems)


class OldSignIn(Exception):
    """Raised if the sign-in of the user is too old for a change."""


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
        self.method: str = scope["method"]
        self.read = site.core.registry.read
        """Function that runs a function with SQL. `read_page` is for functions that may read many rows."""
        self.read_page = site.core.registry.read_page
        self.known = identity
        """The caller, or None if the caller has not signed in and the authenticator knows no one."""
        self.pairs = _query_of(scope)
        self.query = dict(self.pairs)
        """The fields of the query by name. If a field occurs several times, its last value counts."""
        self.language = language_of(headers.get("accept-language", ""))
        self.sent: Pairs | None = None
        """The fields of the form, once `form` or `read_multipart` has read them."""
        self.problems: Mapping[str, str] = {}
        """Messages about the form or the query, by the id of their field, or by "" for the whole form."""

    @property
    def identity(self) -> Identity:
        """The caller, or ANONYMOUS for a caller without a login."""
        return self.known or ANONYMOUS

    @property
    def address(self) -> str:
        """The path with the query, for links back to this page."""
        raw: bytes = self.scope.get("raw_path") or self.scope["path"].encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        query = self.scope.get("query_string", b"").decode("latin-1")
        return f"{path}?{query}" if query else path

    def with_query(self, **changes: str) -> str:
        """Return the address with some fields of the query changed."""
        return f"{self.address.partition('?')[0]}?{urlencode({**self.query, **changes})}"

    @property
    def server(self) -> str:
        """The origin of this server as the browser knows it, such as `https://skills.example.com`."""
        return f"{self.scope['scheme']}://{self.headers.get('host', '').lower()}"

    def parameter(self, name: str) -> str:
        """Return a parameter of the path, which the router has decoded."""
        return str(self.scope["path_params"][name]).removeprefix("/")

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has a scope. The scope `admin` includes all scopes.

        Templates ask this, so that a page offers only actions that the caller may perform.
        """
        return self.known is not None and access.allows(self.known, scope)

    def publishes(self, name: str) -> bool:
        """Return whether the caller may publish versions of a skill, and so change it."""
        return access.publishes(self.identity, name)

    async def do(
        self, method: Callable[[Any, Identity, P], Awaitable[Json[R] | R]], params: P, *, key: str | None = None
    ) -> R:
        """Call a method with the rights of the caller and an idempotency key. Return its result. Raise its errors."""
        result: R = await execute(self.site.core, self.identity, method, params, key)
        return result

    async def form(self, most_bytes: int = MOST_FORM_BYTES, most_fields: int = 20) -> Form:
        """Return the fields of a form, without its token.

        Raise HttpRefusal if a page of another origin has sent the form, or if the form cannot be read. Raise
        OutdatedForm if the form belongs to another session.
        """
        check_same_origin(self.scope, self.headers)
        check_form_type(self.headers)
        pairs = pairs_of(await read_body(self.receive, self.headers, most_bytes), most_fields)
        if not self.is_own_form([value for name, value in pairs if name == FORM_TOKEN]):
            raise OutdatedForm(kept_fields(pairs))
        self.sent = [(name, value) for name, value in pairs if name != FORM_TOKEN]
        return Form(tuple(self.sent))

    def is_own_form(self, tokens: list[str]) -> bool:
        """Return whether a form belongs to the session. `tokens` are the values of its field `form_token`."""
        return len(tokens) == 1 and self.site.core.signer.is_form_token(self.visit.secret or "", tokens[0])

    @property
    def typed(self) -> Form:
        """The fields of a form with problems, for the user to correct. Empty if there is no problem."""
        return Form(tuple(kept_fields(self.sent or ()) if self.problems else ()))

    def require_recent_sign_in(self) -> None:
        """Raise OldSignIn if the session is too old to change tokens, secrets and garbage.

        Callers without a session cannot sign in, so their requests pass.
        """
        session = self.visit.session
        if session is not None and datetime.now(UTC) - session.made_at > RECENT:
            raise OldSignIn


Handler = Callable[[PageRequest], Awaitable[Answer]]


def message_of(error: SkilleryError) -> str:
    """Return the message and the hint of an error as one text, which a form shows at a field."""
    return f"{error.message}. {error.hint or ''}".strip()


@contextmanager
def at_field(field: str) -> Iterator[None]:
    """Context manager that shows an error of the core at a field of the form. Raise NotAllowed for a missing right."""
    try:
        yield
    except NotAllowed:
        raise
    except SkilleryError as error:
        raise FormRefused({field: message_of(error)}) from None


def path_of(*segments: str) -> str:
    """Return a path with encoded segments, such as `/s/text.csv@1.0/a%20b.py`. The last one keeps its slashes."""
    *first, last = segments
    return "/" + "/".join([*(quote(segment, safe="@") for segment in first), quote(last, safe="@/")])


def _query_of(scope: Any) -> list[tuple[str, str]]:
    """Return the fields of the query, in order. Raise HttpRefusal 400 if there are too many."""
    text = scope.get("query_string", b"").decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=100, errors="replace")
    except ValueError:
        message = "the query has too many fields"
        raise HttpRefusal(400, plain_error(INVALID_REQUEST, message, "invalid_query", "Start again.")) from None


# -- The caller of a page: the user of a session, or a caller that the authenticator knows without a login -------------


async def request_of(site: Site, scope: Any, receive: Any, headers: dict[str, str]) -> PageRequest:
    """Return the request of a page, with its session and caller. Note the caller for the log of requests."""
    try:
        cookies = cookies_of(scope, headers)
    except HttpRefusal:
        cookies = None  # an unencrypted connection: browsers can read what visitors may read, and not sign in
    secret = cookie_of(headers, cookies.session) if cookies is not None else None
    session = await site.sessions.find(secret) if secret is not None else None
    visit = Visit(cookies or Cookies(False), secret, session)
    identity = session.identity if session is not None else await _without_session(site, scope, headers)
    request = current.get()
    if request is not None:
        request.agent = ""  # people read pages: reads are counted for programs
        if identity is not None:
            request.identity = identity.name
    return PageRequest(site, scope, receive, headers, visit, identity)


async def is_still_caller(request: PageRequest) -> bool:
    """Return whether the request would have the same caller now.

    Return True if the database is unavailable, because nothing has changed then.
    """
    try:
        again = await request_of(request.site, request.scope, request.receive, request.headers)
    except Unavailable:
        return True
    return again.known == request.known


async def _without_session(site: Site, scope: Any, headers: dict[str, str]) -> Identity | None:
    """Return the caller that the authenticator knows without a token, or None.

    The authenticator `open` knows such callers, or one behind an authenticating proxy.
    """
    without_token = {name: value for name, value in headers.items() if name != "authorization"}
    try:
        return await site.core.identities.authenticator.authenticate(Credentials(without_token, address_of(scope)))
    except NotAuthenticated:
        return None
