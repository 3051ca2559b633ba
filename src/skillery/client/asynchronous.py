"""AsyncClient. `synchronous.py` is made from this file by `make client`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import httpx

from skillery.client import results
from skillery.client.async_transfers import AsyncTransfers
from skillery.client.batches import Collected, Pending
from skillery.client.errors import AnsweredError, ClientError, NotAuthenticated
from skillery.client.pictures import Pictures
from skillery.client.retrying import Patience, Retries
from skillery.client.tool_calls import TOOLS, ModelMistake, offered_names, read_tool_call
from skillery.client.waiting import sleep_async
from skillery.client.wire import (
    JSON,
    Call,
    address_of,
    authorization,
    batch_body,
    connection_errors,
    is_loopback,
    is_plain,
    keepalive,
    list_of,
    make_call,
    object_of,
    replies_of,
    result_of,
    text_of,
    timeout_of,
)

WAIT_MS = 10_000
"""How long one request waits for a run. A shorter time would cost requests, a longer one would hide a dead server."""


class AsyncClient(AsyncTransfers):
    """Client of a Skillery server, with all methods of the server.

    `url` and `token` default to SKILLERY_URL and SKILLERY_TOKEN. With `token=""`, no token is sent. `timeout` limits
    how long the connection may be idle, in seconds. It does not limit the whole call. Without `timeout`, a run may take
    as long as the server allows, and TCP keep-alive detects a dead server. `transport` is an httpx transport, for
    special certificates or a proxy. Raises ClientError: AnsweredError and its subclasses, ConnectionFailed,
    StrangeAnswer.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float | None = None,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = address_of(url)
        self._retries = retries or Retries()
        self._offered = dict.fromkeys(TOOLS)
        # A proxy would resolve a loopback address on its own host. A plain address does not need the certificate store,
        # which takes time to load.
        plain, options = is_plain(self.url), keepalive()
        if transport is None and (is_loopback(self.url) or options is not None):
            transport = httpx.AsyncHTTPTransport(verify=not plain, socket_options=options)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=authorization(token),
            timeout=timeout_of(timeout),
            transport=transport,
            trust_env=not plain,
            verify=not plain,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- methods -------------------------------------------------------------------------------------------------

    async def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None
    ) -> Any:
        """Call any method by its name and return its result. Use it for methods that this client does not have."""
        given = await self._with_uploads(params or {})
        call = make_call(method, given, idempotency_key, may_repeat=self._retries.has_retries)
        patience = Patience(self._retries, repeatable=call.is_repeatable)
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.post("/rpc", content=call.body(), headers=call.headers())
                return result_of(response)
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    def batch(self) -> AsyncBatch:
        """Return a batch for `async with client.batch() as batch:`. The calls are sent at the end of the block."""
        return AsyncBatch(self)

    async def is_ready(self) -> bool:
        """Return whether the server is ready (`GET /readyz` answers 200)."""
        try:
            return (await self._http.get("/readyz")).status_code == 200
        except httpx.TransportError:
            return False

    # -- tools of a model ----------------------------------------------------------------------------------------

    async def prompt(self) -> str:
        """Return the system prompt that the protocol recommends for a model with the tools."""
        return text_of(await self._get("/prompt"))

    async def tools(
        self, form: Literal["openai", "anthropic", "mcp", "jsonschema"], *, include: Sequence[str] = ()
    ) -> list[Any]:
        """Return the eight tools of the protocol in the format of an SDK. `include` adds methods as tools, for
        example `search_skills` to find skills among many."""
        more = f"&include={quote(','.join(include))}" if include else ""
        found = list_of(await self._get(f"/tools?format={quote(form)}{more}"))
        self._offered |= dict.fromkeys(offered_names(found))
        return found

    async def handle(self, tool_call: Any, *, images: bool = True) -> dict[str, Any]:
        """Execute a tool call of a model and return the message to append. The message is a `tool` message for
        OpenAI, a `tool_result` block for Anthropic, and the result of `tools/call` for MCP. Errors that a model can
        correct are part of the message: arguments that are not JSON, unknown tools, and errors of the server.
        Connection errors and NotAuthenticated are raised. Only the eight tools and those included by `tools` can be
        called. For Anthropic and MCP, small pictures among the files of a run are part of the message. With
        `images=False` they are not, for models that accept no images."""
        asked = read_tool_call(tool_call)
        try:
            asked.check_name(self._offered)
            result = await self.call(asked.name, asked.params())
            return asked.answered(result, await self._pictures(result) if images and asked.shows_images else ())
        except ModelMistake as mistake:
            return asked.refused(mistake.error)
        except NotAuthenticated:
            raise
        except AnsweredError as error:
            return asked.refused(error.object)

    async def _pictures(self, result: Any) -> list[tuple[str, str]]:
        """Return media type and base64 content of small pictures among the files of a run."""
        pictures = Pictures()
        for file in pictures.candidates(result):
            try:
                pictures.add(file, await self.read_blob(file["blob_id"], mode="full"))
            except AnsweredError:  # the token may not read blobs, or the blob has expired
                break
        return pictures.found

    # -- requests ------------------------------------------------------------------------------------------------

    async def wait_run(self, run_id: str) -> results.RunRecord:
        """Return a run when it has ended. A lost connection is made again."""
        while True:
            run = await self.get_run(run_id, wait_ms=WAIT_MS)
            if run["finished_at"] is not None:
                return run

    async def follow_run(self, run_id: str, after: int = 0) -> AsyncGenerator[results.RunLog, None]:
        """Yield the log of a run from the offset `after`, part by part, until the run has ended.

        The last part has `ended`. It may have no text. A lost connection is made again, and no text is lost.
        """
        while True:
            part = await self.read_run_log(run_id, after=after, wait_ms=WAIT_MS)
            yield part
            if part["ended"]:
                return
            after = part["next"]

    async def _get(self, address: str) -> httpx.Response:
        patience = Patience(self._retries, repeatable=True)
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.get(address)
                if response.status_code >= 400:
                    object_of(response)
                return response
            except ClientError as error:
                await sleep_async(patience.wait_after(error))

    async def _send(self, portion: Sequence[Pending[Any]]) -> None:
        calls: list[Call] = [pending.call for pending in portion]
        patience = Patience(self._retries, repeatable=all(call.is_repeatable for call in calls))
        while True:
            try:
                with connection_errors(self._http):
                    response = await self._http.post("/rpc", content=batch_body(calls), headers=JSON)
                for pending, reply in zip(portion, replies_of(response, len(portion)), strict=True):
                    pending.settle(reply)
                return
            except ClientError as error:
                await sleep_async(patience.wait_after(error))


class AsyncBatch(Collected):
    """Batch of calls in one request. A batch above the limit of the server is sent as several requests in sequence."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__()
        self._client = client

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            return
        for portion in self._portions():
            await self._client._send(portion)


__all__ = ["AsyncBatch", "AsyncClient"]
