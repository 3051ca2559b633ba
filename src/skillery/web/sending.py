"""The answers of pages as HTTP: the frame of a page, redirects after a form, and the message about a change."""

from __future__ import annotations

import asyncio
import gzip
import secrets
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, BinaryIO

import msgspec

from skillery.errors import Unavailable
from skillery.http.requests import send_bytes, send_pieces, send_stream
from skillery.skills.insight import has_insight
from skillery.versions.versions import count_waiting_reviews
from skillery.web.frame import Answer, Direct, Done, Page, PageRequest, SeeOther, path_of
from skillery.web.site import Site, accepts_gzip, compiled_templates
from skillery.web.views.kinds import BINARY, HEAD_BYTES, SVG, TEXT, ContentKind, disposition, framed_kind, kind_of
from skillery.web.visits import Header, cookie_of

# -- The headers of all pages, and of files that are shown as they are -------------------------------------------------


HTML = "text/html; charset=utf-8"
_FEATURES = (
    "accelerometer, autoplay, camera, clipboard-read, display-capture, encrypted-media, fullscreen, geolocation, "
    "gyroscope, hid, magnetometer, microphone, midi, payment, picture-in-picture, publickey-credentials-get, "
    "screen-wake-lock, serial, usb, xr-spatial-tracking"
)
_ALWAYS: tuple[tuple[str, str], ...] = (
    # With no-referrer, browsers would send forms with `Origin: null`.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)
_OF_PAGES: tuple[tuple[str, str], ...] = (
    *_ALWAYS,
    ("permissions-policy", ", ".join(f"{part}=()" for part in _FEATURES.split(", "))),
    # no-store, because the pages have form tokens, and a page must not be readable after sign-out.
    ("cache-control", "private, no-store"),
    ("vary", "Cookie, Accept-Encoding"),
)
_SANDBOX = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; form-action 'none'; "
    "base-uri 'none'; frame-ancestors "
)
RAW_HEADERS: tuple[tuple[str, str], ...] = (("content-security-policy", f"{_SANDBOX}'none'"), *_ALWAYS)
"""The headers of files of skills and blobs. A CSP sandbox without tokens stops scripts and gives no origin."""
_IN_FRAME: tuple[tuple[str, str], ...] = (("content-security-policy", f"{_SANDBOX}'self'"), *_ALWAYS)


def page_headers(nonce: str) -> list[tuple[str, str]]:
    """Return the headers of a page. `nonce` is the one of its script."""
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; frame-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx"
    )
    return [("content-security-policy", policy), *_OF_PAGES]


THEMES = ("system", "light", "dark")
THEME_COOKIE = "skillery-theme"
KEYS_COOKIE = "skillery-keys"
DONE_COOKIE = "skillery-done"
DONE_SECONDS = 60
SMALLEST_COMPRESSED = 1024
MOST_WAITING = 200
"""The maximum number of versions in the queue of reviews, and the largest number in the navigation."""
VERSION = version("skillery")


async def send_answer(request: PageRequest, send: Any, answer: Answer) -> None:
    """Send the answer of a handler."""
    if isinstance(answer, Direct):
        await answer.send(send)
    elif isinstance(answer, SeeOther):
        cookies = [] if answer.done is None else [_done_cookie(request, answer.done)]
        headers = [*page_headers(""), ("location", answer.address), *cookies, *answer.headers]
        await send_bytes(send, 303, b"", HTML, headers)
    else:
        await send_page(request, send, answer)


async def send_page(request: PageRequest, send: Any, page: Page) -> None:
    """Send a page, with the message about the last change, compressed if the browser accepts gzip."""
    nonce = secrets.token_urlsafe(16)
    done, dropped = _done_of(request)
    waiting = await waiting_reviews(request)
    values = {**_frame_values(request, page, nonce, done), "reviews_waiting": waiting, **page.values}
    text = compiled_templates().get_template(page.template).render(values).encode()
    headers = [*page_headers(nonce), *dropped, *page.headers]
    if len(text) >= SMALLEST_COMPRESSED and accepts_gzip(request.headers):
        text = gzip.compress(text, 4, mtime=0)
        headers.append(("content-encoding", "gzip"))
    status = 400 if request.problems and page.status == 200 else page.status
    await send_bytes(send, status, text, HTML, headers)


def _frame_values(request: PageRequest, page: Page, nonce: str, done: Done | None) -> dict[str, Any]:
    """Return the template values that all pages have."""
    return {
        "title": page.title,
        "section": page.section,
        "nonce": nonce,
        "done": done,
        "form_token": request.site.core.signer.form_token(request.visit.secret or ""),
        "who": request.known,
        "can_sign_in": has_login(request.site),
        "may": request.may,
        "publishes": request.publishes,
        "has_insight": has_insight(request.identity),
        "notes_searches": request.known is not None and request.site.core.contents.uses.searches.keeps,
        "asset": request.site.assets.address,
        "theme": next((theme for theme in THEMES if theme == cookie_of(request.headers, THEME_COOKIE)), THEMES[0]),
        "language": request.language,
        "keys_on": cookie_of(request.headers, KEYS_COOKIE) != "off",
        "here": request.address,
        "with_query": request.with_query,
        "server": request.server,
        "skillery_version": VERSION,
        "path_of": path_of,
        "problems": request.problems,
        "typed": request.typed,
    }


async def waiting_reviews(request: PageRequest) -> str:
    """Return the number of versions that the caller may review, as text. "" if there are none, or if the caller does
    not review.

    The database reads partial indexes. The number is not cached, because a decision changes it at once.
    """
    if not request.may("review"):
        return ""
    identity = request.identity
    try:
        count = await request.read(lambda connection: count_waiting_reviews(connection, identity, MOST_WAITING))
    except Unavailable:
        return ""  # the page of this failure has no number
    return f"{count}+" if count == MOST_WAITING else str(count or "")


def has_login(site: Site) -> bool:
    """Return whether browsers can sign in to this server."""
    return site.sessions.accept_tokens or bool(site.sessions.logins)


def _done_cookie(request: PageRequest, done: Done) -> Header:
    """Return the header that stores the message about a change for the next page."""
    text = request.site.core.signer.signed(msgspec.json.encode(done))
    return request.visit.cookies.setting(DONE_COOKIE, text, DONE_SECONDS)


def _done_of(request: PageRequest) -> tuple[Done | None, list[Header]]:
    """Return the message about the last change, or None, and the headers that remove it from the browser."""
    text = cookie_of(request.headers, DONE_COOKIE)
    if text is None:
        return None, []
    value = request.site.core.signer.verified(text)
    dropped = [request.visit.cookies.dropping(DONE_COOKIE)]
    try:
        return (msgspec.json.decode(value, type=Done) if value is not None else None), dropped
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None, dropped


# -- Files of skills and of runs, as they are -----------------------------------------------------------------------


def raw_file(
    request: PageRequest,
    path: str,
    sha256: str,
    size_bytes: int,
    opens: Callable[[], BinaryIO],
    *,
    for_frame: bool = False,
) -> Direct:
    """Send a file, or only its headers for HEAD. Browsers show texts and images, and store other files.

    With `for_frame`, browsers show HTML and PDF in a frame of a page, and store the file in all other cases.
    If the browser has the file already (If-None-Match), send 304. `opens` returns a seekable stream.
    """
    is_framed = for_frame and request.headers.get("sec-fetch-dest") == "iframe"
    etag = f'"{sha256}{"-frame" * is_framed}"'
    common = [("etag", etag), ("cache-control", "private, no-cache"), ("vary", "Cookie, Sec-Fetch-Dest")]

    async def send_it(send: Any) -> None:
        if etag in request.headers.get("if-none-match", ""):
            await _send_headers(send, 304, common)  # the other headers are those of the stored answer
            return
        stream = await asyncio.to_thread(opens)
        try:
            head = await asyncio.to_thread(stream.read, min(HEAD_BYTES, size_bytes))
            kind = kind_of(path, head, size_bytes)
            if for_frame:
                kind = framed_kind(path, head, size_bytes) if is_framed else BINARY
            headers = [
                ("content-type", kind.media_type),
                ("content-length", str(size_bytes)),
                ("content-disposition", disposition(path, kind)),
                *(RAW_HEADERS if kind is BINARY or not is_framed else _IN_FRAME),
                *common,
            ]
            if request.method == "HEAD":
                await _send_headers(send, 200, headers)
                return
            await asyncio.to_thread(stream.seek, 0)
            await send_stream(send, 200, _raw(headers), stream, size_bytes)
        finally:
            await asyncio.to_thread(stream.close)

    return Direct(send_it)


def sent_content(name: str, content: bytes | Iterator[bytes], kind: ContentKind) -> Direct:
    """Send a value of an output, a picture of a notebook, or an archive in pieces that are made while they are sent."""
    headers = [*RAW_HEADERS, ("content-disposition", disposition(name, kind)), ("cache-control", "private, no-store")]

    async def send_it(send: Any) -> None:
        if isinstance(content, bytes):
            await send_bytes(send, 200, content, kind.media_type, headers)
        else:
            await send_pieces(send, _raw([("content-type", kind.media_type), *headers]), content)

    return Direct(send_it)


async def _send_headers(send: Any, status: int, headers: list[tuple[str, str]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": _raw(headers)})
    await send({"type": "http.response.body", "body": b""})


def _raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


def start_of(opens: Callable[[], BinaryIO], path: str, size_bytes: int, most: int) -> bytes:
    """Return at most the first `most` bytes of a text, or the head of another file. Blocking."""
    with opens() as stream:
        head = stream.read(min(HEAD_BYTES, size_bytes))
        if kind_of(path, head, size_bytes) in {TEXT, SVG}:
            head += stream.read(min(most, size_bytes) - len(head))
        return head
