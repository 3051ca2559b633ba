"""The routes of the catalogue. `GET /` answers programs with JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from skillery.http.operations import Route
from skillery.http.requests import only, send_bytes
from skillery.web.catalogue.show import hide_steps, show
from skillery.web.page_routes import page_route
from skillery.web.sending import VERSION
from skillery.web.site import Site

_JSON = "application/json"
_HEADERS = (("vary", "Accept"),)
_LINKS = {"rpc": "/rpc", "mcp": "/mcp", "tools": "/tools", "openapi": "/v1/openapi.json", "openrpc": "/openrpc.json"}


def routes(site: Site) -> list[Route]:
    page = page_route(site, "/", (), {"GET": show, "POST": hide_steps}, for_visitors=True)

    async def answer(scope: Any, receive: Any, send: Any, headers: dict[str, str]) -> None:
        only(scope, "GET", "POST")
        if scope["method"] != "POST" and "text/html" not in headers.get("accept", ""):
            body = msgspec.json.encode({"name": "skillery", "version": VERSION, "links": _LINKS})
            await send_bytes(send, 200, body, _JSON, _HEADERS)
        else:
            await page.endpoint(scope, receive, send, headers)

    return [page._replace(endpoint=answer)]
