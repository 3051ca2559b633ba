"""Models behind the HTTP interfaces of OpenAI (chat completions) and Anthropic (messages).

An answer is foreign: its size, its time and the cost of its parsing are limited. Requests go only to the address of the
model, without redirects.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec

from skillery.errors import Unavailable
from skillery.evaluations.dialects import DIALECTS, Api, Chat, Message, decoded
from skillery.evaluations.trials import Budget, BudgetUsed, Tokens
from skillery.formats.wording import one_line, quoted

MOST_BYTES = 4 * 1024 * 1024
"""The maximum size of an answer."""
SECONDS = 300.0
"""The maximum time of one request."""
RETRIES = 5
MOST_WAIT = 60.0
"""The maximum time before a retry, in seconds."""
_LEAST_KEY = 12
"""The length from which a key in an answer is replaced."""
_BYTES_PER_TOKEN = 3
"""Fewer bytes than a token has on average, so that a reservation suffices."""


class Model(msgspec.Struct, frozen=True):
    """A model and its endpoint. The key is not a part of it, so that it can be shown and stored."""

    api: Api
    url: str
    """The address without `/chat/completions` or `/messages`."""
    name: str
    input_price: float = 0.0
    """The price of a million tokens that the model reads."""
    output_price: float = 0.0
    concurrent: int = 4
    """The maximum number of requests at a time."""

    def cost(self, tokens: Tokens) -> float:
        return (tokens.read * self.input_price + tokens.written * self.output_price) / 1_000_000

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc


def check_address(url: str) -> None:
    """Raise ValueError with the reason if `url` cannot be the address of a model."""
    parts = urlsplit(url)
    if parts.scheme not in {"https", "http"} or not parts.hostname:
        raise ValueError(f"{quoted(url)} is not an http or https address")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("the address of a model has no user, no query and no fragment")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ValueError(f"{quoted(url)}: http is permitted on loopback only: use https")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- Requests ----------------------------------------------------------------------------------------------------------


class Reply(NamedTuple):
    """The answer of a model, and what the request has used."""

    message: Message
    tokens: Tokens
    cost: float


class ModelFailed(Unavailable):
    """Raised if an endpoint refuses a request, or gives no usable answer. The evaluation is `failed`."""


class _Failed(Exception):
    """Raised if a request failed. `used` is what it may have used. With `again`, it can be sent again after `wait`
    seconds; None means a time that grows from retry to retry.
    """

    def __init__(self, reason: str, used: Tokens, *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.used = used
        self.again = again
        self.wait = wait


@asynccontextmanager
async def open_model(model: Model, key: str, *, trust_env: bool = False) -> AsyncIterator[ModelClient]:
    """Context manager: yield a client of a model. With `trust_env`, the proxies of the environment are used."""
    tls = await asyncio.to_thread(httpx.create_ssl_context)
    async with httpx.AsyncClient(verify=tls, trust_env=trust_env, timeout=SECONDS) as http:
        yield ModelClient(model, key, http)


class ModelClient:
    """Sends requests to a model, at most `model.concurrent` at a time."""

    def __init__(self, model: Model, key: str, http: httpx.AsyncClient) -> None:
        self.model = model
        self._key = key
        self._http = http
        self._turns = asyncio.Semaphore(model.concurrent)
        self._dialect = DIALECTS[model.api]()

    async def ask(self, chat: Chat, budget: Budget) -> Reply:
        """Return the answer of the model. Raise ModelFailed, or BudgetUsed before a request is sent.

        A refused or cut request is sent again up to RETRIES times, after the time that the endpoint names.
        """
        async with self._turns:
            for attempt in range(RETRIES + 1):
                try:
                    return await self._paid(chat, budget)
                except _Failed as error:
                    if not error.again or attempt == RETRIES:
                        raise ModelFailed(f"the model at {self.model.host} failed: {error}") from None
                    seconds = 2**attempt if error.wait is None else error.wait
                await asyncio.sleep(min(seconds, MOST_WAIT))
        raise AssertionError("unreachable")

    async def _paid(self, chat: Chat, budget: Budget) -> Reply:
        """Send a request within the budget."""
        content = msgspec.json.encode(self._dialect.request(self.model.name, chat))
        most = Tokens(len(content) // _BYTES_PER_TOKEN + 1, chat.answer_tokens)
        await budget.reserve(most, self.model.cost(most))
        used = most  # the endpoint may charge for an answer that does not arrive
        try:
            reply = await self._exchange(content, most)
            used = reply.tokens
            return reply
        except _Failed as error:
            used = error.used
            raise
        finally:
            await budget.settle(most, self.model.cost(most), used, self.model.cost(used))

    async def _exchange(self, content: bytes, most: Tokens) -> Reply:
        try:
            async with asyncio.timeout(SECONDS):
                status, wait, body = await self._post(content)
        except httpx.ConnectError:
            raise _Failed("it cannot be reached", Tokens(), again=True) from None
        except (httpx.HTTPError, TimeoutError) as error:
            raise _Failed(f"its answer does not arrive ({type(error).__name__})", most, again=True) from None
        if status == 429 or status >= 500:
            raise _Failed(f"it answers with status {status}", Tokens(), again=True, wait=wait)
        if status != 200:
            reason = self._reason(body)
            text = f"it answers with status {status}{reason and f': {reason}'}"
            has_learned = status == 400 and self._dialect.has_learned(reason)
            raise _Failed(text, Tokens(), again=has_learned, wait=0.0)
        if len(body) > MOST_BYTES:
            raise _Failed(f"it answers with more than {MOST_BYTES} bytes", most)
        try:
            message, tokens = self._dialect.reply(body)
        except ValueError as error:
            raise _Failed(f"it does not answer as {self.model.api} does: {one_line(str(error), 200)}", most) from None
        if not tokens.total:  # some servers do not count
            tokens = Tokens(most.read, len(body) // _BYTES_PER_TOKEN)
        return Reply(message, tokens, self.model.cost(tokens))

    async def _post(self, content: bytes) -> tuple[int, float | None, bytes]:
        """Return the status, the seconds until a retry, and the body, of which at most MOST_BYTES + 1 are kept."""
        # A small compressed answer could have gigabytes.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        body = bytearray()
        address = self.model.url.rstrip("/") + self._dialect.path
        async with self._http.stream(
            "POST", address, content=content, headers=headers | self._dialect.headers(self._key)
        ) as response:
            async for piece in response.aiter_raw():
                body += piece[: MOST_BYTES + 1 - len(body)]
                if len(body) > MOST_BYTES:
                    break
        wait = response.headers.get("retry-after", "")
        # Answers are stored and shown. A short key may be a word of them.
        answer = bytes(body).replace(self._key.encode(), b"*") if len(self._key) >= _LEAST_KEY else bytes(body)
        return response.status_code, float(wait) if wait.isascii() and wait.isdigit() else None, answer

    def _reason(self, body: bytes) -> str:
        """Return the message of a refusal, or "". It does not contain the key."""
        try:
            refusal = decoded(body, _Refusal)
        except ValueError:
            return ""
        text = refusal.error.message
        return one_line(text.replace(self._key, "…") if self._key else text, 200)


class _RefusalText(msgspec.Struct):
    message: str = ""


class _Refusal(msgspec.Struct):
    error: _RefusalText


# -- A budget of one process -------------------------------------------------------------------------------------------


class TokenBudget:
    """The Budget of one command: a number of tokens."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._reserved = 0
        self.used = Tokens()
        self.cost = 0.0

    async def reserve(self, tokens: Tokens, cost: float) -> None:
        if self.used.total + self._reserved + tokens.total > self._most:
            raise BudgetUsed(f"{self.used.total:,} of {self._most:,} tokens are used")
        self._reserved += tokens.total

    async def settle(self, reserved: Tokens, reserved_cost: float, used: Tokens, cost: float) -> None:
        self._reserved -= reserved.total
        self.used = self.used.plus(used)
        self.cost += cost
