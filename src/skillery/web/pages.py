"""The pages of sign-in as HTML without scripts, and the headers of all pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple
from urllib.parse import quote

from skillery.edge.http import send_bytes

HTML = "text/html; charset=utf-8"
_POLICY = (
    "default-src 'none'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_FEATURES = (
    "accelerometer, autoplay, camera, clipboard-read, display-capture, encrypted-media, fullscreen, geolocation, "
    "gyroscope, hid, magnetometer, microphone, midi, payment, picture-in-picture, publickey-credentials-get, "
    "screen-wake-lock, serial, usb, web-share, xr-spatial-tracking"
)
HEADERS: tuple[tuple[str, str], ...] = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    # With no-referrer, browsers would send forms with `Origin: null`.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", ", ".join(f"{one}=()" for one in _FEATURES.split(", "))),
    # no-store, because the pages have form tokens, and answers set cookies.
    ("cache-control", "private, no-store"),
    ("vary", "Cookie"),
)


class Link(NamedTuple):
    """A link to the login of an authenticator at another address."""

    name: str
    """The name of the authenticator."""
    title: str


class Problem(NamedTuple):
    """The reason why a sign-in has failed, for the user."""

    message: str
    hint: str = ""


def sign_in_page(
    *, takes_token: bool, links: Sequence[Link], form_token: str, next_address: str, problem: Problem | None
) -> str:
    """Return the page with a form for a token, and a link for each other login."""
    parts = [] if problem is None else [_alert(problem)]
    # Links, because `form-action 'self'` stops a form whose answer leads to another host.
    parts += [_link(one, next_address) for one in links]
    if takes_token:
        parts.append(_token_form(form_token, next_address))
    return _page("Sign in", "\n".join(parts))


def signed_in_page(*, name: str, kind: str, form_token: str, next_address: str) -> str:
    """Return the page of a user who is signed in."""
    onward = f'<p><a href="{escape(next_address)}">Continue</a></p>\n' if next_address else ""
    return _page(
        "Signed in",
        f"<p>You are signed in as <strong>{escape(name)}</strong> ({escape(kind)}).</p>\n{onward}"
        f'<form method="post" action="/logout">{_hidden("form_token", form_token)}<button>Sign out</button></form>',
    )


def failed_page(problem: Problem) -> str:
    """Return the page for a login that cannot continue."""
    return _page("Sign in", f'{_alert(problem)}\n<p><a href="/login">Start again</a></p>')


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title} · Skillery</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head>\n'
        f"<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _alert(problem: Problem) -> str:
    return f'<p role="alert">{escape(problem.message)}. {escape(problem.hint)}</p>'


def _link(link: Link, next_address: str) -> str:
    query = f"?next={quote(next_address, safe='')}" if next_address else ""
    return f'<p><a href="/login/{quote(link.name, safe="")}{query}">Sign in with {escape(link.title)}</a></p>'


def _token_form(form_token: str, next_address: str) -> str:
    return (
        f'<form method="post" action="/login">{_hidden("form_token", form_token)}{_hidden("next", next_address)}\n'
        '<p><label for="token">Token</label>\n'
        '<input id="token" name="token" type="password" autocomplete="off" required autofocus></p>\n'
        "<p>A token begins with <code>sky_</code>. The server keeps no copy of it.</p>\n"
        "<button>Sign in</button></form>"
    )


def _hidden(name: str, value: str) -> str:
    return f'<input type="hidden" name="{name}" value="{escape(value)}">'


async def send_page(send: Any, status: int, page: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    await send_bytes(send, status, page.encode(), HTML, [*HEADERS, *headers])


async def send_to(send: Any, address: str, headers: Iterable[tuple[str, str]] = ()) -> None:
    """Answer 303: the browser opens the address with GET."""
    await send_bytes(send, 303, b"", HTML, [*HEADERS, ("location", address), *headers])
