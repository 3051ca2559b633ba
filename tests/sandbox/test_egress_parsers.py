"""The two parsers for bytes of untrusted senders, TLS ClientHellos and HTTP heads: bounded, and strict where two
readers could differ.
"""

from __future__ import annotations

import os
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.egress import http_heads
from cellblock.egress.clienthello import MAX_BYTES, BadHello, server_name
from cellblock.egress.http_heads import BadHead, Body, Request
from cellblock.egress.policy import Denied

fuzzed = settings(max_examples=int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "100")), deadline=None)


def real_hello(host: str | None) -> bytes:
    """Return the first bytes that OpenSSL sends."""
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=host).do_handshake()
    return outgoing.read()


def vector(size: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return len(body).to_bytes(size, "big") + body


def extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2, "big") + vector(2, body)


def names(*hosts: bytes) -> bytes:
    return extension(0, vector(2, *(b"\0" + vector(2, host) for host in hosts)))


def hello(*extensions: bytes, tail: bytes = b"") -> bytes:
    body = b"\x03\x03" + b"r" * 32 + vector(1) + vector(2, b"\x13\x01") + vector(1, b"\0") + vector(2, *extensions)
    return b"\x01" + vector(3, body + tail)


def records(message: bytes, size: int = 1 << 14) -> bytes:
    pieces = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def test_the_name_in_a_real_hello_is_read() -> None:
    assert server_name(real_hello("api.example.com")) == "api.example.com"
    assert server_name(records(hello(names(b"API.example.com")))) == "api.example.com"


def test_a_hello_is_understood_however_it_is_cut() -> None:
    whole = real_hello("api.example.com")
    assert [server_name(whole[:size]) for size in range(len(whole))] == [None] * len(whole)
    for parts in (1, 2, 7, 16):
        assert server_name(records(whole[5:], -(-len(whole[5:]) // parts))) == "api.example.com"


def test_a_hello_in_many_records_is_refused() -> None:
    """After each received piece, the proxy parses from the start again, in one process for all runs. So the number of
    records is limited.
    """
    with pytest.raises(BadHello, match="more than 16 records"):
        server_name(records(real_hello("api.example.com")[5:], 1))


def test_server_name_ignores_records_after_client_hello() -> None:
    assert server_name(real_hello("a.com") + b"\x17\x03\x03\x00\x01x") == "a.com"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x80\x2e\x01\x00\x02",
        b"\x15\x03\x01\x00\x02\x02\x28",
        b"\x16\x02\x00\x00\x05",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        records(b"\x02" + vector(3, b"server hello")),
        records(hello()),
        records(hello(names())),
        records(hello(names(b"a.com", b"b.com"))),
        records(hello(names(b"a.com"), names(b"b.com"))),
        records(hello(names(b"a.com"), extension(0xFE0D, b"secret"))),
        records(hello(names(b"\xd0\xb0.com"))),
        records(hello(extension(0, vector(2, b"\1" + vector(2, b"a.com"))))),
        records(hello(extension(0, vector(2, b"\0" + vector(2, b"a.com")) + b"x"))),
        records(hello(names(b"a.com"), tail=b"x")),
        records(hello(names(b"a.com")) + hello(names(b"b.com"))),
        records(b"\x01\x00\x00\x03abc"),
        records(b"\x01\xff\xff\xff" + b"\0" * 16380) + b"\x16\x03\x01\x40\x00",
    ],
)
def test_all_that_is_no_plain_hello_is_refused(data: bytes) -> None:
    with pytest.raises(BadHello):
        server_name(data)


def test_a_hello_of_tiny_records_is_refused_at_its_size_limit() -> None:
    drip = b"\x16\x03\x01\x00\x01\x01" + b"\x16\x03\x01\x00\x01\x00" * (MAX_BYTES // 6 + 1)
    with pytest.raises(BadHello):
        server_name(drip)


@fuzzed
@given(st.binary(max_size=600))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    try:
        name = server_name(data)
    except BadHello:
        return
    assert name is None or name.isascii()


@fuzzed
@given(st.data())
def test_changed_client_hello_never_names_absent_host(data: st.DataObject) -> None:
    whole = bytearray(records(hello(names(b"a.example.com"), extension(16, b"\0\x03\x02h2"))))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        name = server_name(bytes(whole))
    except BadHello:
        return
    assert name is None or name.encode() in bytes(whole).lower()


# -- HTTP ----------------------------------------------------------------------------------------------------------


def parsed(*lines: bytes) -> Request:
    return http_heads.parse_request(b"\r\n".join(lines))


GET = b"GET http://a.com/x?y HTTP/1.1"


def test_request_in_absolute_form_is_forwarded_in_origin_form() -> None:
    request = parsed(
        b"POST http://A.com:8080/x?y=1 HTTP/1.1",
        b"Host: a.com:8080",
        b"Content-Length: 3",
        b"Proxy-Authorization: Basic secret",
        b"Proxy-Connection: keep-alive",
        b"Connection: keep-alive, X-Mine, Content-Length",
        b"X-Mine: 1",
        b"TE: trailers",
        b"Upgrade: websocket",
        b"Accept: */*",
    )
    target, path = http_heads.forward_target(request)

    assert http_heads.forwarded_head(request, target, path) == (
        b"POST /x?y=1 HTTP/1.1\r\nHost: a.com:8080\r\nContent-Length: 3\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("target", "path"), [("http://a.com", "/"), ("HTTP://a.com?q", "/?q"), ("http://a.com//b", "//b")]
)
def test_the_path_is_kept(target: str, path: str) -> None:
    assert http_heads.forward_target(parsed(f"GET {target} HTTP/1.1".encode(), b"Host: a.com"))[1] == path


@pytest.mark.parametrize(
    "lines",
    [
        [b"GET / HTTP/1.1", b"Host: a.com"],
        [b"GET //a.com/ HTTP/1.1", b"Host: a.com"],
        [b"GET https://a.com/ HTTP/1.1", b"Host: a.com"],
        [b"GET ftp://a.com/ HTTP/1.1", b"Host: a.com"],
        [b"GET http://a.com/#x HTTP/1.1", b"Host: a.com"],
        [b"OPTIONS * HTTP/1.1", b"Host: a.com"],
        [GET],
        [GET, b"Host: a.com", b"Host: a.com"],
        [GET, b"Host: a.com", b"host: evil.com"],
    ],
)
def test_a_request_that_names_its_host_oddly_is_malformed(lines: list[bytes]) -> None:
    with pytest.raises(BadHead):
        http_heads.forward_target(parsed(*lines))


@pytest.mark.parametrize(
    "lines",
    [
        [GET, b"Host: evil.com"],
        [GET, b"Host: a.com:8080"],
        [GET, b"Host:"],
        [GET, b"Host: a.com, evil.com"],
        [b"GET http://evil.com@a.com/ HTTP/1.1", b"Host: a.com"],
        [b"GET http://a.com@evil.com/ HTTP/1.1", b"Host: a.com"],
        [b"GET http://127.0.0.1/ HTTP/1.1", b"Host: 127.0.0.1"],
        [b"GET http://[::1]/ HTTP/1.1", b"Host: [::1]"],
        [b"GET http:///x HTTP/1.1", b"Host: a.com"],
        [b"GET http://a.com\\@evil.com/ HTTP/1.1", b"Host: a.com"],
    ],
)
def test_request_with_invalid_target_or_mismatched_host_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(Denied):
        http_heads.forward_target(parsed(*lines))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET",
        b"GET http://a.com/",
        b"GET http://a.com/ HTTP/2.0",
        b"GET http://a.com/ HTTP/1.1 ",
        b"GET  http://a.com/ HTTP/1.1",
        b"GET http://a.com/ x HTTP/1.1",
        b"G\x00T http://a.com/ HTTP/1.1",
        b"GET http://a.com/\xc3\xa4 HTTP/1.1",
        b"\r\n" + GET,
        GET + b"\r\nHost : a.com",
        GET + b"\r\n Host: a.com",
        GET + b"\r\nHost: a.com\r\n folded",
        GET + b"\r\nHost: a.com\nX: y",
        GET + b"\nHost: a.com",
        GET + b"\r\nHost: a.com\rX: y",
        GET + b"\r\nX: a\x00b",
        GET + b"\r\nX",
        GET + b"\r\n: x",
        GET + b"\r\nX\xc3: y",
        GET + b"\r\nX: y" * (http_heads.MAX_FIELDS + 1),
    ],
)
def test_a_malformed_head_is_refused(head: bytes) -> None:
    with pytest.raises(BadHead):
        http_heads.parse_request(head)


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ([], Body("none")),
        ([b"Content-Length: 0"], Body("length", 0)),
        ([b"content-LENGTH:  12  "], Body("length", 12)),
        ([b"Transfer-Encoding: Chunked"], Body("chunked")),
    ],
)
def test_body_framing_is_read_from_headers(lines: list[bytes], body: Body) -> None:
    assert http_heads.body_of(parsed(GET, *lines)) == body


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 1", b"Transfer-Encoding: chunked"],
        [b"Content-Length: 1", b"Content-Length: 1"],
        [b"Content-Length: 1, 1"],
        [b"Content-Length: +1"],
        [b"Content-Length: -1"],
        [b"Content-Length: 0x1"],
        [b"Content-Length: 1_0"],
        [b"Content-Length:"],
        [b"Content-Length: " + b"9" * 19],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"],
        [b"Transfer-Encoding: gzip, chunked"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"Transfer-Encoding:"],
    ],
)
def test_body_with_ambiguous_framing_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(BadHead):
        http_heads.body_of(parsed(GET, *lines))


@pytest.mark.parametrize("line", [b"", b" 5", b"5 ", b"5;x=y", b"0x5", b"-1", b"5\n", b"g", b"1" * 13])
def test_a_chunk_has_a_plain_size(line: bytes) -> None:
    assert http_heads.chunk_size(b"1F") == 31
    with pytest.raises(BadHead):
        http_heads.chunk_size(line)


def test_response_loses_hop_by_hop_headers() -> None:
    head = b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nKeep-Alive: timeout=5\r\nX-Hop: 1\r\nContent-Length: 2"
    assert http_heads.answered_head(head) == (
        200,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n",
    )
    with pytest.raises(BadHead):
        http_heads.answered_head(b"ICY 200 OK")


token = st.sampled_from(
    [b"GET", b" ", b"http://a.com", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"Host", b":", b"\0", b"b.com"]
)


@fuzzed
@given(st.one_of(st.binary(max_size=200), st.lists(token, max_size=24).map(b"".join)))
def test_any_bytes_are_refused_or_become_well_formed_head(data: bytes) -> None:
    try:
        request = http_heads.parse_request(data)
        target, path = http_heads.forward_target(request)
        http_heads.body_of(request)
    except (BadHead, Denied):
        return
    head = http_heads.forwarded_head(request, target, path)
    assert head.endswith(b"\r\n\r\n")
    lines = head[:-4].split(b"\r\n")
    assert not any(byte in line for line in lines for byte in (b"\r", b"\n", b"\0"))
    assert lines[0] == request.method + b" " + path.encode() + b" HTTP/1.1"
    assert [line for line in lines if line.lower().startswith(b"host:")] == [b"Host: " + target.origin[7:].encode()]


@fuzzed
@given(st.text(max_size=200))
def test_a_refusal_is_always_a_well_formed_answer(message: str) -> None:
    head, _, body = http_heads.refusal(403, message).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")
    assert http_heads.answered_head(head)[0] == 403
