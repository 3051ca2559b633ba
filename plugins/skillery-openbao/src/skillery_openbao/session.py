"""The token of this process: requested at the first request, renewed before it ends, replaced when it is refused."""

from __future__ import annotations

import asyncio
import logging
import math
import time

from skillery_openbao.failures import ServiceFailed
from skillery_openbao.logins import Login, Token, look_up, token_of
from skillery_openbao.service import Answer, Service

log = logging.getLogger(__name__)
LONGEST_SLEEP = 1.0
PAUSE_AFTER_FAILURE = 5.0
SHORTENED = 0.5
"""If a renewed token gets less than this part of its first life, its longest life is nearly over."""


class Session:
    """Sends requests with a token. All methods run in one event loop."""

    def __init__(self, service: Service, login: Login) -> None:
        self._service = service
        self._login = login
        self._token: Token | None = None
        self._changing = asyncio.Lock()
        self._next_try = 0.0

    async def send(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request with the token. If the token has ended or was revoked, log in again.

        Raise ServiceFailed if there is no answer, or no login.
        """
        token = await self.token()
        answer = await self._service.send(method, path, token, body)
        if answer.status != 403 or await self._is_accepted(token):
            return answer
        self._forget(token)
        return await self._service.send(method, path, await self.token(), body)

    async def token(self) -> str:
        """Return a token that has not ended. Log in if necessary."""
        async with self._changing:
            token = self._token
            if token is None or token.ends <= time.monotonic() or self._login.has_changed():
                token = self._token = await self._login.begin()
            return token.text

    async def keep_alive(self) -> None:
        """Renew the token before it ends, until this coroutine is cancelled."""
        while True:
            await asyncio.sleep(min(max(self._due() - time.monotonic(), 0.05), LONGEST_SLEEP))
            if self._token is not None and self._due() <= time.monotonic():
                await self._try_to_renew(self._token)

    async def end(self) -> None:
        """Revoke the token if a login of this process made it. Ignore failures, because the token ends by itself."""
        token, self._token = self._token, None
        if token is not None and self._login.makes_tokens:
            try:
                await self._service.send("POST", "auth/token/revoke-self", token.text, once=True)
            except ServiceFailed as failure:
                log.info("the token of OpenBao is not revoked: %s", failure)

    def _due(self) -> float:
        return math.inf if self._token is None else max(self._token.renew_at, self._next_try)

    async def _try_to_renew(self, token: Token) -> None:
        try:
            renewed = await self._renewed(token)
        except ServiceFailed as failure:
            log.warning("the token of OpenBao is not renewed: %s", failure)
            self._next_try = time.monotonic() + min(PAUSE_AFTER_FAILURE, token.seconds / 10)
            return
        if self._token is token:
            self._token = renewed

    async def _renewed(self, token: Token) -> Token:
        """Return the renewed token, or a new token if the present token cannot be renewed."""
        if token.is_renewable:
            answer = await self._service.send("POST", "auth/token/renew-self", token.text, {})
            if answer.status == 200:
                longer = token_of(token.text, answer.part("auth"))
                if longer.seconds >= SHORTENED * token.seconds:
                    return longer._replace(seconds=token.seconds)
        if self._login.makes_tokens or self._login.has_changed():
            return await self._login.begin()
        seconds_left = max(token.ends - time.monotonic(), 0)
        log.warning(
            "the token in token_file ends in %.0f s and cannot be renewed: write a new one into the file", seconds_left
        )
        return token._replace(renew_at=math.inf)

    async def _is_accepted(self, token: str) -> bool:
        return (await look_up(self._service, token)).status == 200

    def _forget(self, token: str) -> None:
        if self._token is not None and self._token.text == token:
            self._token = None
