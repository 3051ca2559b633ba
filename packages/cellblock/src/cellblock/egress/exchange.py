"""One connection from the code to the proxy, with one request: a TLS tunnel, or one plain HTTP request and its
response.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from cellblock.egress import http_heads
from cellblock.egress.clienthello import BadHello, server_name
from cellblock.egress.http_heads import BadHead, Body, Request
from cellblock.egress.log import Event, sentence
from cellblock.egress.policy import Denied, Target, parse_target, shown
from cellblock.egress.streams import PIECE, Spent, Stream, both, carry_in, carry_out

if TYPE_CHECKING:
    from cellblock.egress.process import RunProxy

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ACCESS_DENIED_ALERT = bytes((21, 3, 3, 0, 2, 2, 49))
FAREWELL_SECONDS = 2.0
MAX_TRAILERS = 32


class Exchange:
    """One connection of the code. `run` reads the request, checks the host and forwards the bytes. Call `run` once."""

    def __init__(self, run: RunProxy, client: Stream) -> None:
        self._run = run
        self._client = client
        self._spent = Spent(run.caps, run.spent)
        self._where = ("", 0)
        self._speaks = "http"
        """The form of a refusal for the client: an HTTP response, a TLS alert, or none."""

    async def run(self) -> None:
        try:
            request = await self._request()
            self._where = (shown(request.target), 0)
            await (self._tunnel(request) if request.method == b"CONNECT" else self._forward(request))
        except BadHead as problem:
            await self._refuse(Denied(f"a malformed request: {problem}", status=400))
        except Denied as denied:
            await self._refuse(denied)

    async def _request(self) -> Request:
        seconds = self._run.caps.head_seconds
        try:
            async with asyncio.timeout(seconds):
                head = await self._client.until(http_heads.END, http_heads.MAX_HEAD)
        except TimeoutError:
            raise BadHead(f"it was not there after {seconds:.0f} seconds") from None
        if head is None:
            raise BadHead(f"a head of more than {http_heads.MAX_HEAD} bytes")
        return http_heads.parse_request(head)

    async def _refuse(self, denied: Denied) -> None:
        host = self._where[0]
        reason = denied.reason if host in denied.reason else f"{host}: {denied.reason}"
        self._run.tell(Event(*self._where, False, reason, denied.advice))
        if self._speaks == "http":
            await self._client.send(http_heads.refusal(denied.status, sentence(reason, denied.advice)))
        elif self._speaks == "tls":
            await self._client.send(ACCESS_DENIED_ALERT)
        await self._client.end_gently(FAREWELL_SECONDS)

    # -- https -------------------------------------------------------------------------------------------------

    async def _tunnel(self, request: Request) -> None:
        target = parse_target("https", request.target)
        self._where = (target.host, target.port)
        check_connect(request, target)
        rule = self._run.admit(target)
        upstream = await self._run.connect(target)
        try:
            await self._client.send(ESTABLISHED)
            self._speaks = "tls"
            await self._check_hello(target)
            self._speaks = "nothing"
            await self._carry(rule, carry_out(self._client, upstream, self._spent), upstream, inward_ends=False)
        finally:
            upstream.close()

    async def _check_hello(self, target: Target) -> None:
        """Check that the client begins TLS for the allowed host. Raise Denied if it does not."""
        try:
            async with asyncio.timeout(self._run.caps.head_seconds):
                while (name := server_name(self._client.buffered)) is None:
                    await self._client.more()
        except BadHello as problem:
            raise Denied(f"{target.origin}: {problem}") from None
        except (EOFError, TimeoutError):
            raise Denied(f"{target.origin}: no TLS began in the tunnel") from None
        if name != target.host:
            raise Denied(f"{target.origin}: TLS is for another host (SNI), '{shown(name)}'")

    # -- plain http --------------------------------------------------------------------------------------------

    async def _forward(self, request: Request) -> None:
        target, path = http_heads.forward_target(request)
        self._where = (target.host, target.port)
        body = http_heads.body_of(request)
        rule = self._run.admit(target)
        upstream = await self._run.connect(target)
        try:
            if any(value.lower() == b"100-continue" for value in request.values(b"expect")):
                await self._client.send(CONTINUE)
            head = http_heads.forwarded_head(request, target, path)
            await self._carry(rule, self._ask(head, body, upstream), upstream, inward_ends=True)
            await self._client.end_gently(FAREWELL_SECONDS)  # the client may still be sending an unread body
        finally:
            upstream.close()

    async def _ask(self, head: bytes, body: Body, upstream: Stream) -> None:
        with contextlib.suppress(ConnectionError):  # the host may answer before it has read the body
            self._spent.out(len(head))
            await upstream.send(head)
            if body.kind == "length":
                await self._send_length(body.size, upstream)
            elif body.kind == "chunked":
                await self._send_chunks(upstream)

    async def _send_length(self, size: int, upstream: Stream) -> None:
        while size:
            piece = await self._client.some(min(size, PIECE))
            if not piece:
                raise BadHead("the body ended early")
            size -= len(piece)
            self._spent.out(len(piece))
            await upstream.send(piece)

    async def _send_chunks(self, upstream: Stream) -> None:
        """Forward a chunked body. Chunks are parsed strictly and encoded again. An extension is refused, trailers are
        dropped.
        """
        while size := http_heads.chunk_size(await self._line()):
            await upstream.send(b"%x\r\n" % size)
            await self._send_length(size, upstream)
            if await self._line():
                raise BadHead("a chunk that is longer than it says")
            await upstream.send(b"\r\n")
        for _ in range(MAX_TRAILERS):
            if not await self._line():
                await upstream.send(b"0\r\n\r\n")
                return
        raise BadHead("too many trailers")

    async def _line(self) -> bytes:
        line = await self._client.until(b"\r\n", 4096)
        if line is None:
            raise BadHead("a line without an end")
        return line

    async def _answer(self, upstream: Stream) -> None:
        status = 100
        while 100 <= status < 200:  # only the final response is forwarded
            head = await upstream_head(upstream)
            self._spent.into(len(head))
            try:
                status, answered = http_heads.answered_head(head)
            except BadHead as problem:
                raise Denied(f"{self._where[0]}: {problem}", status=502) from None
            if status == 101:
                raise Denied(f"{self._where[0]} changed to a protocol that was not requested", status=502)
        self._speaks = "nothing"
        await self._client.send(answered)
        await carry_in(upstream, self._client, self._spent)

    # -- both --------------------------------------------------------------------------------------------------

    async def _carry(
        self, rule: str, outward: Coroutine[Any, Any, None], upstream: Stream, *, inward_ends: bool
    ) -> None:
        self._run.tell(Event(*self._where, True, rule))
        inward = self._answer(upstream) if inward_ends else carry_in(upstream, self._client, self._spent)
        try:
            await both(
                asyncio.create_task(outward),
                asyncio.create_task(inward),
                self._spent,
                self._run.caps.idle_seconds,
                inward_ends=inward_ends,
            )
        finally:
            carried = (self._spent.bytes_out, self._spent.bytes_in)
            self._run.tell(Event(*self._where, True, rule, "", True, *carried))


def check_connect(request: Request, target: Target) -> None:
    """Check a CONNECT request. Raise BadHead if it has a body or two Host headers, Denied if its Host header names
    another host.
    """
    if request.values(b"content-length") or request.values(b"transfer-encoding"):
        raise BadHead("CONNECT with a body")
    hosts = request.values(b"host")
    if len(hosts) > 1:
        raise BadHead("two Host headers")
    if hosts and parse_target("https", hosts[0].decode("latin-1")).host != target.host:
        raise Denied("the Host header and the target of CONNECT name different hosts")


async def upstream_head(upstream: Stream) -> bytes:
    try:
        head = await upstream.until(http_heads.END, http_heads.MAX_HEAD)
    except EOFError:
        raise Denied("the host closed the connection without an answer", status=502) from None
    if head is None:
        raise Denied("the head of the answer is too large", status=502)
    return head
