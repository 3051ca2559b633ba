"""The shared files of pages: the style sheet and the script bundle, `/static/{digest}/{name}`, and `/favicon.ico`.

The digest in the address changes with the content, so browsers may keep each file for a year.

Pages have no link to the icon: a link adds a request to the first visit, and Chromium requests the icon later anyway.
"""

from __future__ import annotations

import gzip
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

from skillery.http.requests import HttpRefusal, only, send_bytes
from skillery.methods.errors import NOT_FOUND, plain_error

STATIC = "/static"
ICON = "/favicon.ico"
_FOLDER = files("skillery.web") / "static"
_VENDORED = ("htmx-4.0.1.min.js", "hx-csp-4.0.1.min.js")
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


class _Asset(NamedTuple):
    """A file with its media type. `compressed` is its content in gzip."""

    kind: str
    content: bytes
    compressed: bytes


class Assets:
    """The style sheet, the script bundle and the icon, read once at start."""

    def __init__(self) -> None:
        contents = {
            "style.css": b"\n".join(_contents_of("styles")),
            "skillery.js": b"\n;\n".join([_htmx(), *_contents_of("scripts")]),
        }
        self._icon = (_FOLDER / "favicon.ico").read_bytes()
        self._by_address: dict[str, _Asset] = {}
        self._addresses: dict[str, str] = {}
        for name, content in contents.items():
            address = f"{STATIC}/{sha256(content).hexdigest()[:16]}/{name}"
            kind = _KINDS[name.rpartition(".")[2]]
            self._by_address[address] = _Asset(kind, content, gzip.compress(content, 9, mtime=0))
            self._addresses[name] = address

    def address(self, name: str) -> str:
        """Return the path of the asset `name`, for example "style.css". Raise KeyError for an unknown name."""
        return self._addresses[name]

    async def answer(self, scope: Any, _receive: Any, send: Any, headers: dict[str, str]) -> None:
        """Send the asset of the path, compressed if the browser accepts gzip. Raise HttpRefusal 404 for other paths."""
        only(scope, "GET", "HEAD")
        # In a mount, `path` lacks the prefix of the mount, so the raw path is used.
        asset = self._by_address.get(scope["raw_path"].partition(b"?")[0].decode("latin-1"))
        if asset is None:
            raise HttpRefusal(404, plain_error(NOT_FOUND, "this file does not exist", "not_found", "Reload the page."))
        headers_of_asset = [
            ("cache-control", "public, max-age=31536000, immutable"),
            ("cross-origin-resource-policy", "same-origin"),
            ("vary", "Accept-Encoding"),
        ]
        if accepts_gzip(headers):
            await send_bytes(send, 200, asset.compressed, asset.kind, [*headers_of_asset, ("content-encoding", "gzip")])
        else:
            await send_bytes(send, 200, asset.content, asset.kind, headers_of_asset)

    async def answer_icon(self, scope: Any, _receive: Any, send: Any, _headers: dict[str, str]) -> None:
        """Send the icon. After the first page of a server, browsers request the icon once, without a link to it."""
        only(scope, "GET", "HEAD")
        headers_of_icon = [
            ("cache-control", "public, max-age=604800"),
            ("cross-origin-resource-policy", "same-origin"),
        ]
        await send_bytes(send, 200, self._icon, "image/x-icon", headers_of_icon)


def accepts_gzip(headers: dict[str, str]) -> bool:
    """Return whether the header Accept-Encoding permits gzip."""
    offers = headers.get("accept-encoding", "").lower().replace(" ", "").split(",")
    return any(offer == "gzip" or (offer.startswith("gzip;") and offer != "gzip;q=0") for offer in offers)


def _contents_of(folder: str) -> list[bytes]:
    """Return the contents of the files in a folder of static files, in the order of their names."""
    return [path.read_bytes() for path in sorted((_FOLDER / folder).iterdir(), key=lambda path: path.name)]


def _htmx() -> bytes:
    """Return the script that starts htmx in a task of its own, on pages that use htmx.

    Other pages do not execute htmx, which takes most of the time of the script bundle. With one bundle, a page needs
    one request.
    """
    vendored = b"\n;\n".join((_FOLDER / "vendor" / name).read_bytes() for name in _VENDORED)
    return b'if (document.querySelector("[hx-get], [hx-post]")) setTimeout(() => {\n' + vendored + b"\n});"
