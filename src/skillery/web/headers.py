"""The headers of all pages, and of files that are shown as they are."""

from __future__ import annotations

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
RAW_HEADERS: tuple[tuple[str, str], ...] = (
    (
        "content-security-policy",
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "frame-ancestors 'none'",
    ),
    *_ALWAYS,
)
"""Headers of files of skills and of blobs. The sandbox without tokens stops scripts and gives the file no origin."""


def page_headers(nonce: str) -> list[tuple[str, str]]:
    """Return the headers of a page whose script has this nonce."""
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types htmx"
    )
    return [("content-security-policy", policy), *_OF_PAGES]
