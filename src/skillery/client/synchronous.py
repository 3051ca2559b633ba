"""Client. Made by `make client`: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx

from skillery.client import results
from skillery.client.batches import Collected, Pending
from skillery.client.errors import AnsweredError, ClientError, NotAuthenticated
from skillery.client.limits import Patience, Retries, bounded, exchange, most_bytes_of, sleep
from skillery.client.tool_calls import FOR_MODELS, SEARCH, TOOLS, ModelMistake, Pictures, offered_names, read_tool_call
from skillery.client.transfers import Transfers
from skillery.client.wire import (
    JSON,
    LIMITS,
    Call,
    Token,
    address_of,
    batch_body,
    connection_errors,
    credentials,
    is_loopback,
    is_plain,
    keepalive,
    list_of,
    make_call,
    replies_of,
    result_of,
    text_of,
    timeout_of,
    without_error,
)

T = TypeVar("T")
WAIT_MS = 10_000
"""Milliseconds for which one request waits for the end of a run.

With a shorter time, more requests are needed. With a longer time, a dead server is noticed later.
"""


class Client(Transfers):
    """Client of a Skillery server, with all methods of the server. The client is a context manager that closes its
    connections.

    The defaults of `url` and `token` are SKILLERY_URL and SKILLERY_TOKEN. With `token=""`, no token is sent. If `token`
    is a function, such as `kept_token(url)` for the login of `skillery login`, the client calls it before each request.
    `timeout` limits how long the connection may be idle, in seconds. `deadline` limits the call of a method with its
    retries, in seconds. Without both, a run may take as long as the server allows, and TCP keep-alive detects a dead
    server. `max_answer_mb` limits an answer that is read at once, in MiB: by default SKILLERY_MAX_ANSWER_MB, or 64. A
    larger answer is a StrangeAnswer. Downloads have no limit. `transport` is an httpx transport, for example for a
    proxy or special certificates.

    The methods raise a ClientError if a call fails: AnsweredError or a subclass for an error of the server,
    ConnectionFailed, or StrangeAnswer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: Token | None = None,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        retries: Retries | None = None,
        max_answer_mb: int | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = address_of(url)
        self._retries = retries or Retries()
        self._deadline = deadline
        self._most_bytes = most_bytes_of(max_answer_mb)
        self._wait_ms = WAIT_MS if deadline is None else min(WAIT_MS, int(deadline * 500))
        self._offered = dict.fromkeys(TOOLS)
        # A proxy would resolve a loopback address on its own host. A plain address does not need the certificate store,
        # which takes time to load.
        plain, options = is_plain(self.url), keepalive()
        if transport is None and (is_loopback(self.url) or options is not None):
            transport = httpx.HTTPTransport(verify=not plain, limits=LIMITS, socket_options=options)
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_of(timeout),
            limits=LIMITS,
            transport=transport,
            event_hooks=bounded(self._most_bytes),
            trust_env=not plain,
            verify=not plain,
            **credentials(token),
        )
        self._http.headers["accept-encoding"] = "identity"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the server."""
        self._http.close()

    # -- methods -------------------------------------------------------------------------------------------------

    def call(self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None) -> Any:
        """Call a method by its name and return its result. This also works for methods that this client does not
        know.
        """
        values = self._with_uploads(params or {})
        call = make_call(method, values, idempotency_key, may_repeat=self._retries.has_retries)
        patience = self._patience(repeatable=call.is_repeatable)
        return self._exchange(patience, result_of, "POST", "/rpc", content=call.body(), headers=call.headers())

    def batch(self) -> Batch:
        """Return a batch, a context manager: `with client.batch() as batch:`.

        The calls are sent at the end of the block.
        """
        return Batch(self)

    def is_ready(self) -> bool:
        """Return whether the server is ready: `GET /readyz` answers 200."""
        try:
            return (self._http.get("/readyz", auth=None)).status_code == 200
        except httpx.TransportError:
            return False

    # -- tools of a model ----------------------------------------------------------------------------------------

    def prompt(self) -> str:
        """Return the system prompt for a model with the tools of `tools`: `GET /prompt`."""
        return text_of(self._get(f"/prompt?include={SEARCH}"))

    def tools(
        self,
        form: Literal["openai", "openai-responses", "anthropic", "mcp", "jsonschema"],
        *,
        include: Sequence[str] = (),
    ) -> list[Any]:
        """Return the schemas of the eight tools of the Skills Protocol and of `search_skills`, for a model SDK.

        `form` is the format of the SDK. `include` adds further methods as tools, for example `create_skill`.
        """
        included = ",".join(dict.fromkeys((SEARCH, *include)))
        schemas = list_of(self._get(f"/tools?format={quote(form)}&include={quote(included)}"))
        self._offered |= dict.fromkeys(offered_names(schemas))
        return schemas

    def handle(self, tool_call: Any, *, images: bool = True) -> dict[str, Any]:
        """Execute a tool call of a model, and return the message with the result for the model.

        The message is a `tool` message for OpenAI chat completions, a `function_call_output` item for OpenAI responses,
        a `tool_result` block for Anthropic, or the result of `tools/call` for MCP. Only the eight tools, and the tools
        that `tools` included, can be called. For Anthropic and MCP, the message contains small pictures that the run
        wrote, unless `images` is False.

        Errors that a model can correct are part of the message: arguments that are not JSON, unknown tools, and errors
        of the server. Raise ConnectionFailed or StrangeAnswer if the server does not answer. Raise NotAuthenticated if
        the token is not valid. Raise TypeError if `tool_call` is not a tool call.
        """
        tool = read_tool_call(tool_call)
        try:
            tool.check_name(self._offered)
            result = self.call(tool.name, FOR_MODELS.get(tool.name, {}) | tool.params())
            return tool.answered(result, self._pictures(result) if images and tool.shows_images else ())
        except ModelMistake as mistake:
            return tool.refused(mistake.error)
        except NotAuthenticated:
            raise
        except AnsweredError as error:
            return tool.refused(error.object)

    def _pictures(self, result: Any) -> list[tuple[str, str]]:
        """Return the media types and base64 contents of small pictures among the files of a run."""
        pictures = Pictures()
        for file in pictures.candidates(result):
            try:
                pictures.add(file, self.read_blob(file["blob_id"], mode="full"))
            except AnsweredError:  # the token may not read blobs, or the blob has expired
                break
        return pictures.found

    # -- requests ------------------------------------------------------------------------------------------------

    def wait_run(self, run_id: str) -> results.RunRecord:
        """Wait until a run has ended, and return the run. After a connection error, the client connects again."""
        while True:
            run = self.get_run(run_id, wait_ms=self._wait_ms)
            if run["finished_at"] is not None:
                return run

    def follow_run(self, run_id: str, after: int = 0) -> Generator[results.RunLog, None, None]:
        """Yield the log of a run in parts until the run has ended. `after` is the first offset in bytes.

        In the last part, `ended` is true and the text may be empty. After a connection error, the client connects
        again, and no text is lost.
        """
        while True:
            part = self.read_run_log(run_id, after=after, wait_ms=self._wait_ms)
            yield part
            if part["ended"]:
                return
            after = part["next"]

    def _get(self, address: str) -> httpx.Response:
        return self._exchange(self._patience(repeatable=True), without_error, "GET", address)

    def _send(self, portion: Sequence[Pending[Any]]) -> None:
        """Send a part of a batch, and settle its calls with the replies."""
        calls: list[Call] = [pending.call for pending in portion]
        patience = self._patience(repeatable=all(call.is_repeatable for call in calls))
        read = partial(replies_of, count=len(portion))
        replies = self._exchange(patience, read, "POST", "/rpc", content=batch_body(calls), headers=JSON)
        for pending, reply in zip(portion, replies, strict=True):
            pending.settle(reply)

    def _patience(self, *, repeatable: bool) -> Patience:
        return Patience(self._retries, repeatable=repeatable, seconds=self._deadline)

    def _exchange(
        self, patience: Patience, read: Callable[[httpx.Response], T], method: str, address: str, **parts: Any
    ) -> T:
        """Send a request and return the result of `read` for the response. Retry as `patience` allows."""
        while True:
            try:
                with connection_errors(self._http):
                    response = exchange(self._http, patience.deadline, method, address, **parts)
                return read(response)
            except ClientError as error:
                sleep(patience.wait_after(error))


class Batch(Collected):
    """Collects calls, and sends them in one request at the end of the `with` block.

    More than MAX_BATCH_CALLS are sent in several requests, in order. After an exception in the block, nothing is sent.
    """

    def __init__(self, client: Client) -> None:
        super().__init__()
        self._client = client

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        for portion in self._portions():
            self._client._send(portion)


__all__ = ["Batch", "Client"]
