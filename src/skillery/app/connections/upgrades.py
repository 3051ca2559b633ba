"""Requests with `Upgrade`. A server may ignore this header (RFC 9110 §7.8), and this server has no other protocol."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def decline_upgrade(connection: HttpToolsProtocol) -> None:
    """Parse the head of the current request again, without `Upgrade`.

    For a request with `Upgrade`, the parser assumes that there is no body and would parse the body as the next request.
    """
    head = _head_without_upgrade(connection)
    connection.parser = httptools.HttpRequestParser(connection)
    # Same setting as in uvicorn: input after a request with `Connection: close` does not cancel the response.
    connection.parser.set_dangerous_leniencies(lenient_data_after_close=True)
    connection.parser.feed_data(head)


def _head_without_upgrade(connection: HttpToolsProtocol) -> bytes:
    parser = connection.parser
    lines = [b"%s %s HTTP/%s" % (parser.get_method(), connection.url, parser.get_http_version().encode())]
    lines += [
        name + b": " + (_without_upgrade(value) if name == b"connection" else value)
        for name, value in connection.headers
        if name != b"upgrade"
    ]
    return b"\r\n".join([*lines, b"", b""])


def _without_upgrade(options: bytes) -> bytes:
    return b",".join(token for token in options.split(b",") if token.strip().lower() != b"upgrade")
