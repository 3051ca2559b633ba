"""Targets that a run with a network list must not reach: names, addresses, and requests that name two targets."""

# ruff: noqa: S104 - no server binds to these addresses

from __future__ import annotations

HERE = ("127.0.0.1",)
LOOKALIKES = (
    "api.test",
    "evilapi.test",
    "a.api.test.evil.test",
    "a.api.test..",
    "a..api.test",
    ".api.test",
    "*.api.test",
    "evil.test/.api.test",
    "evil.test#.api.test",
    "evil.test?.api.test",
    "evil.test\\.api.test",
    "evil.test\0.api.test",
    "evil.test%00.api.test",
    "evil.test%2e.api.test",
    "a%2eapi.test",
    "a.api.test@evil.test",
    "evil.test@a.api.test",
    "а.api.test",
    "a.api。test",
    "evil.test\t.api.test",
    "a_b.api.test",
    "a" * 64 + ".api.test",
)
"""Names that are not below `api.test`, or are not valid."""
ADDRESSES = (
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "0",
    "0.0.0.0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[::1%25lo]",
    "localhost",
)
INSIDE = {
    "loopback": HERE,
    "loopback of version 6": ("::1",),
    "a public address before it": ("8.8.8.8", "127.0.0.1"),
    "a public address behind it": ("127.0.0.1", "8.8.8.8"),
    "translated": ("64:ff9b::7f00:1",),
    "mapped": ("::ffff:127.0.0.1",),
    "the unspecified address": ("0.0.0.0",),
    "link-local": ("169.254.169.254",),
    "private": ("10.0.0.1", "172.16.0.1", "192.168.0.1"),
}
HOSTS: dict[str, tuple[str, ...]] = {
    **{name.removesuffix("."): HERE for name in (*LOOKALIKES, *ADDRESSES) if name.isascii() and name.isprintable()},
    **dict.fromkeys(("a.api.test", "b.api.test", "other.test", "evil.test"), HERE),
}
# Requests written by hand, with contradictory targets. {port} is the allowed port, {other} is another port.
CONTRADICTIONS = {
    "another port": "GET http://a.api.test:{other}/ HTTP/1.1\r\nHost: a.api.test:{other}\r\n\r\n",
    "no port": "GET http://a.api.test/ HTTP/1.1\r\nHost: a.api.test\r\n\r\n",
    "another scheme": "CONNECT a.api.test:{port} HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "another Host": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: evil.test:{port}\r\n\r\n",
    "two Hosts": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nHost: evil.test\r\n\r\n",
    "no Host": "GET http://a.api.test:{port}/ HTTP/1.1\r\n\r\n",
    "only a Host": "GET / HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "a user": "GET http://evil.test@a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n\r\n",
    "two lengths": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nContent-Length: 3\r\n"
    "Content-Length: 30\r\n\r\nabc",
    "a length and chunks": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\nContent-Length: 3\r\n"
    "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET http://evil.test/ HTTP/1.1\r\n\r\n",
    "an odd coding": "POST http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n"
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a folded line": "GET http://a.api.test:{port}/ HTTP/1.1\r\nHost: a.api.test:{port}\r\n evil.test\r\n\r\n",
    "bare line feeds": "GET http://a.api.test:{port}/ HTTP/1.1\nHost: a.api.test:{port}\n\n\r\n\r\n",
    "no HTTP": "\x16\x03\x01\x00\x05hello\r\n\r\n",
}
