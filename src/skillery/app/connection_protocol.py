"""The HTTP protocol of uvicorn, with limits on the size and duration of each phase of a connection.

uvicorn parses requests and writes responses. It does not limit the size of heads and trailers, and closes no slow
client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from skillery.app.connection_admission import ConnectionAdmission
from skillery.app.connection_transport import Bounds, ClosingTransport, Timer

# Requests with `Upgrade`. A server may ignore this header (RFC 9110 §7.8), and this server has no other protocol.


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
    """Return the head of the current request as bytes, without the header Upgrade."""
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


PIECE_BYTES = 8 * 1024
"""Bytes of input that are parsed at once. Sizes are checked between two pieces, because the parser joins the parts
of a header.
"""
HEADER_BYTES = 100
"""Bytes of memory that a header takes in addition to its own bytes."""
BODY_PIECE_BYTES = 64 * 1024
"""Bytes that are parsed at once in a body with a Content-Length, which contains no chunk sizes and trailers."""
INVALID = "Invalid HTTP request received."


class _TooMuch(Exception):
    """Raised by a callback of the parser to stop parsing. `Connection._problem` has the text of the response."""


class Connection(HttpToolsProtocol):
    """One HTTP/1 connection. In each phase, either the application works on a request or a timer limits the phase.

    - Head (request line and headers): from connecting, later from the first byte of a head. Between requests, uvicorn's
      keep-alive timer runs.
    - Framing: chunk sizes, chunk extensions and trailers. Trailers are discarded and never become headers.
    - Body: a minimum rate, unless the application has paused reading or has begun to respond.
    - Response: a minimum rate while the write buffer is full.
    - Closing: see `ClosingTransport`. If a request's body was not read completely, the connection is closed.
    """

    _line: ClosingTransport

    def __init__(self, *args: Any, admission: ConnectionAdmission, bounds: Bounds, **more: Any) -> None:
        super().__init__(*args, **more)
        self._admission = admission
        self._bounds = bounds
        self._unanswered: deque[RequestResponseCycle] = deque()
        """Unanswered requests, in the order of their responses. uvicorn keeps only the newest request."""
        self._in_head = True
        self._ignores_input = False
        """Whether input is ignored until earlier requests are answered."""
        self._may_keep_alive = False
        """Whether the connection may stay open after the current request."""
        self._head_bytes = self._framing_bytes = self._body_bytes = 0
        self._has_length = False
        """Whether the request has a Content-Length. The parser refuses a request that also has Transfer-Encoding."""
        self._after_size = False
        """Whether the last parsed item is a chunk size."""
        self._has_body_bytes = False
        """Whether the last piece of input contained body bytes."""
        self._was_paused = False
        self._problem = INVALID
        self._head_timer = Timer(self.loop, bounds.head_seconds, self._end_slow_head)
        self._framing_timer = Timer(self.loop, bounds.framing_seconds, self._end_slow_framing)
        self._body_timer = Timer(self.loop, bounds.window_seconds, self._measure_body)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wrap the transport, and close the connection if it is not admitted."""
        self._line = ClosingTransport(
            transport,
            self.loop,
            self._bounds,
            is_unread=lambda: self._ignores_input or not self._in_head,
            on_closing=self._stop,
            on_slow=lambda: self._note("the client did not read the response"),
        )
        super().connection_made(self._line)
        if self._admission.open(self, self._host):
            self._head_timer.start()
        else:
            self._line.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._admission.close(self)
        self._line.lost()
        self.pipeline.clear()
        for cycle in self._unanswered:
            self._disconnect(cycle)
        super().connection_lost(exc)

    def evict(self) -> None:
        self._line.abort()

    def shutdown(self) -> None:
        self._may_keep_alive = False
        if self._line.lingers:
            self._line.abort()
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Parse the input in pieces, while a request needs input. Discard it if the connection is closing."""
        self._unset_keepalive_if_required()
        if self._line.lingers:
            self._line.discard(len(data))
            return
        unparsed = memoryview(data)
        while unparsed and not self._ignores_input and not self.transport.is_closing():
            parsed_bytes = self._feed(
                unparsed[: BODY_PIECE_BYTES if self._has_length and not self._in_head else PIECE_BYTES]
            )
            unparsed = unparsed[parsed_bytes:]
        if self._ignores_input:
            # Reading resumes when the application requests more of the body.
            self.flow.pause_reading()
        elif not self.transport.is_closing():
            self._start_timers()

    def _feed(self, piece: memoryview) -> int:
        """Parse the beginning of a piece of input, and return the number of bytes parsed."""
        self._has_body_bytes = False
        if self._in_head:
            self._head_bytes += len(piece)
        try:
            parsed_bytes = self._parse(piece)
        except httptools.HttpParserError:
            self._give_up(self._problem)
            return len(piece)
        self._check_sizes(parsed_bytes)
        return parsed_bytes

    def _parse(self, piece: memoryview) -> int:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            decline_upgrade(self)
            end: int = upgrade.args[0]
            return end
        return len(piece)

    def _check_sizes(self, size: int) -> None:
        """Stop parsing if the head or the framing is larger than its limit."""
        # The piece that ends a head may also contain body: only an unfinished head can be too long.
        if self._in_head:
            if self._head_bytes > self._bounds.head_bytes or len(self.headers or ()) > self._bounds.headers:
                self._give_up("The headers of this request are too long.")
            elif self._head_bytes and not self._unanswered:
                self._admission.hold(self, self._head_bytes + HEADER_BYTES * len(self.headers or ()))
            return
        self._framing_bytes = 0 if self._has_body_bytes else self._framing_bytes + size
        if self._framing_bytes > self._bounds.framing_bytes:
            self._give_up("The chunk extensions or trailers of this request are too long.")

    def _start_timers(self) -> None:
        if self._in_head:
            self._time_head()
            return
        self._body_timer.start()
        if self._has_body_bytes and not self._after_size:
            self._framing_timer.stop()
        elif not self.flow.read_paused:
            self._framing_timer.start()

    def _time_head(self) -> None:
        # For a head that arrives during an earlier response, the time starts at the end of that response.
        if self._head_bytes and not self._unanswered:
            self._unset_keepalive_if_required()
            self._head_timer.start()

    # Callbacks of the parser.
    def on_message_begin(self) -> None:
        if len(self._unanswered) > self._bounds.pipelined:
            self._refuse("Too many requests wait on this connection.")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the head, and hand the request to the application."""
        if self.parser.get_method() == b"CONNECT":
            self._refuse("This server is not a proxy.")
        names = [name for name, _ in self.headers]
        if len(names) > self._bounds.headers:
            self._refuse("This request has too many headers.")
        if b"transfer-encoding" in names and not all(
            value.strip().lower() == b"chunked" for name, value in self.headers if name == b"transfer-encoding"
        ):
            self._refuse("This server reads only the transfer coding chunked.")
        # RFC 9112, section 3.2. A proxy may read the first of two hosts, and this server the second.
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and self.parser.get_http_version() == "1.1"):
            self._refuse("This request has no Host, or more than one.")
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._in_head, self._has_body_bytes, self._after_size = False, True, False
        self._head_timer.stop()
        self._admission.work(self)
        self._unanswered.append(self.cycle)
        # uvicorn reads keep_alive when a response begins: a response before the end of the body closes the connection.
        self._may_keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, False
        self._has_length = b"content-length" in names
        # The parser reports trailers as headers: they go to a list that nothing reads.
        self.headers = []
        self._framing_bytes = self._body_bytes = 0
        self._was_paused = self.flow.read_paused

    def on_chunk_header(self) -> None:
        self._after_size = True

    def on_body(self, body: bytes) -> None:
        self._has_body_bytes, self._after_size = True, False
        self._body_bytes += len(body)
        super().on_body(body)
        self._was_paused = self._was_paused or self.flow.read_paused

    def on_chunk_complete(self) -> None:
        self._has_body_bytes, self._after_size = True, False

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head, self._head_bytes = True, 0
        self.headers = []  # trailers are discarded
        self._body_timer.stop()
        self._framing_timer.stop()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._may_keep_alive
        super().on_message_complete()

    def _refuse(self, problem: str) -> None:
        self._problem = problem
        raise _TooMuch

    # Callbacks of the response.
    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if not self._unanswered and not self.transport.is_closing():
            self._admission.rest(self)
            self._time_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._line.watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._line.unwatch_sending()

    # End of a connection.
    def _give_up(self, problem: str) -> None:
        """Close the connection after invalid input. If earlier requests wait, answer them first. Otherwise, send a
        response 400, unless a response has begun.
        """
        self._note(problem)
        broken = None if self._in_head else self._drop_newest()
        if self._unanswered:
            self._unanswered[-1].keep_alive = False
            self._ignores_input = True
        elif broken is not None and broken.response_started:
            self.transport.close()
        else:
            self._ignores_input = True
            self.send_400_response(problem)

    def _drop_newest(self) -> RequestResponseCycle:
        """Remove the newest request, because its body is not valid. Return the request."""
        broken = self.cycle
        self._unanswered.remove(broken)
        self.pipeline = deque(waiting for waiting in self.pipeline if waiting[0] is not broken)
        self._disconnect(broken)
        return broken

    def _disconnect(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = not cycle.response_complete
        cycle.message_event.set()

    def _end_slow_head(self) -> None:
        # No log line for connections without input: browsers open connections early, and load balancers probe the port.
        if self._head_bytes:
            self._note("the head did not arrive in time")
        self.transport.close()

    def _end_slow_framing(self) -> None:
        self._note("the trailers of the request did not arrive in time")
        self._line.abort()

    def _measure_body(self) -> None:
        """Close the connection if the client sends the body more slowly than the minimum rate."""
        is_awaited = not (self.cycle.response_started or self.cycle.waiting_for_100_continue or self._was_paused)
        if is_awaited and self._body_bytes < self._bounds.least_bytes:
            self._note("the body of the request arrived too slowly")
            self._line.abort()
            return
        self._body_bytes, self._was_paused = 0, self.flow.read_paused
        self._body_timer.start()

    def _stop(self) -> None:
        for timer in (self._head_timer, self._framing_timer, self._body_timer):
            timer.stop()
        self._unset_keepalive_if_required()
        self._admission.rest(self)

    def _note(self, reason: str) -> None:
        self._admission.notes.note(self._host, reason)

    @property
    def _host(self) -> str:
        return self.client[0] if self.client else ""
