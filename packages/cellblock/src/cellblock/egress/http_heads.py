"""Heads of HTTP/1.1 messages (RFC 9112). The parser refuses every input that two parsers could read differently."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cellblock.egress.policy import Denied, Target, parse_target

MAX_HEAD = 64 * 1024
MAX_FIELDS = 200
END = b"\r\n\r\n"

_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
_ABSOLUTE = re.compile(r"(?i:http)://([^/?#]*)(/[^#]*|\?[^#]*)?")
_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"proxy-authorization",
    b"proxy-authenticate",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
    b"expect",
}

Fields = list[tuple[bytes, bytes]]


class BadHead(Exception):
    """Raised if a head, a chunk or a trailer is malformed, too large, late or cut off, or if two parsers could read the
    message differently.
    """


@dataclass(frozen=True, slots=True)
class Body:
    """The framing of a body: no body, `size` bytes, or chunks."""

    kind: Literal["none", "length", "chunked"]
    size: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    method: bytes
    target: str
    fields: Fields
    """The header fields, with their names as the client wrote them."""

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name]


def parse_request(head: bytes) -> Request:
    """Return the parsed request head. `head` has no final empty line. Raise BadHead if it is invalid."""
    first, *rest = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(first)
    if match is None:
        raise BadHead("the first line is not METHOD TARGET HTTP/1.1")
    return Request(match[1], match[2].decode("ascii"), parse_fields(rest))


def parse_fields(lines: Sequence[bytes]) -> Fields:
    if len(lines) > MAX_FIELDS:
        raise BadHead(f"more than {MAX_FIELDS} header fields")
    fields: Fields = []
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadHead("a header field is malformed")
        fields.append((match[1], match[2].strip(b" \t")))
    return fields


def body_of(request: Request) -> Body:
    """Return the framing of the request body. Raise BadHead if its length is ambiguous (RFC 9112 §6.3)."""
    lengths, codings = request.values(b"content-length"), request.values(b"transfer-encoding")
    if lengths and codings:
        raise BadHead("both Content-Length and Transfer-Encoding")
    if len(lengths) > 1 or len(codings) > 1:
        raise BadHead("two headers that say how long the body is")
    if codings:
        if codings[0].lower() != b"chunked":
            raise BadHead("a Transfer-Encoding other than chunked")
        return Body("chunked")
    if not lengths:
        return Body("none")
    if not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
        raise BadHead("a Content-Length that is not a number")
    return Body("length", int(lengths[0]))


def forward_target(request: Request) -> tuple[Target, str]:
    """Return the target of a request in absolute form, and the path for the upstream. Raise BadHead or Denied if
    invalid.
    """
    match = _ABSOLUTE.fullmatch(request.target)
    if match is None:
        raise BadHead("the target of a request to a proxy is http://HOST/PATH; for https there is CONNECT")
    target = parse_target("http", match[1])
    hosts = request.values(b"host")
    if len(hosts) != 1:
        raise BadHead(f"{len(hosts)} Host headers; one is needed")
    if parse_target("http", hosts[0].decode("latin-1")) != target:
        raise Denied("the Host header and the target of the request name different hosts")
    path = match[2] or "/"
    return target, path if path.startswith("/") else "/" + path


def forwarded_head(request: Request, target: Target, path: str) -> bytes:
    """Return the request head for the upstream: in origin form, with the checked host, and without fields for the
    proxy.
    """
    port = "" if target.port == 80 else f":{target.port}"
    lines = [b"%s %s HTTP/1.1" % (request.method, path.encode("ascii")), f"Host: {target.host}{port}".encode()]
    return join_head(lines, end_to_end(request.fields, {b"host"}))


def end_to_end(fields: Fields, also: set[bytes]) -> Fields:
    """Return the fields without hop-by-hop fields, and without the fields that Connection names.

    Connection cannot remove Host and the fields with the length of the body.
    """
    named = {
        word.strip().lower() for key, value in fields if key.lower() == b"connection" for word in value.split(b",")
    } - {b"content-length", b"transfer-encoding", b"host"}
    return [(key, value) for key, value in fields if key.lower() not in _HOP | named | also]


def answered_head(head: bytes) -> tuple[int, bytes]:
    """Return the status of the upstream's response, and the response head for the client. Raise BadHead if it is
    invalid.
    """
    first, *rest = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise BadHead("the answer is not HTTP/1.1")
    return int(match[1]), join_head([first], end_to_end(parse_fields(rest), set()))


def join_head(lines: list[bytes], fields: Fields) -> bytes:
    """Return a head with `Connection: close`, because each connection carries one request."""
    shown = [b"%s: %s" % field for field in fields]
    return b"\r\n".join([*lines, *shown, b"Connection: close"]) + END


def chunk_size(line: bytes) -> int:
    """Return the size in the first line of a chunk. Raise BadHead if the line is invalid or has an extension."""
    if not re.fullmatch(rb"[0-9A-Fa-f]{1,12}", line):
        raise BadHead("a chunk without a plain size")
    return int(line, 16)


def refusal(status: int, message: str) -> bytes:
    """Return a response of the proxy. The message is also in the status line, because clients show only that for
    CONNECT.
    """
    words = {
        400: "Bad Request",
        403: "Forbidden",
        502: "Bad Gateway",
        503: "Service Unavailable",
        504: "Gateway Timeout",
    }
    message = "".join(character if character.isprintable() else "?" for character in message)
    body = message.encode("utf-8", "replace") + b"\n"
    line = f"HTTP/1.1 {status} {words.get(status, 'Refused')}: {message}".encode("ascii", "replace")
    fields: Fields = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Content-Length", str(len(body)).encode()),
        (b"X-Cellblock-Egress", b"denied" if status in {400, 403} else b"failed"),
    ]
    return join_head([line], fields) + body
