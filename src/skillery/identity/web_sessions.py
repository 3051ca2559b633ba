"""Sessions of browsers, for all authenticators.

A session is cached for REMEMBERED_SECONDS. If this server ends a session or revokes a token, the change takes effect
at once. A change by another process takes effect within that time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

from skillery.backends import Authenticator, KeepsTokens, LoggedIn, LogsInBrowsers
from skillery.database import Database
from skillery.database.backend_values import keep_value
from skillery.errors import NotAuthenticated, SkilleryError
from skillery.formats.tokens import REMEMBERED_SECONDS
from skillery.identity import web_session_rows as rows
from skillery.identity.web_session_rows import SeenSession, SignedIn, WebSession

log = logging.getLogger(__name__)
MOST_REMEMBERED = 10_000
_SECRET = re.compile(r"[0-9A-Za-z_-]{43}")


class WebSessions:
    """Finds, starts and ends sessions of browsers, with a cache."""

    def __init__(self, database: Database, authenticators: Mapping[str, Authenticator]) -> None:
        """`authenticators` are the authenticators of the setting `auth`, by name. A session of any other authenticator
        is not valid.
        """
        self._database = database
        self._keepers = [
            name for name, authenticator in authenticators.items() if isinstance(authenticator, KeepsTokens)
        ]
        self.logins = {
            name: authenticator
            for name, authenticator in authenticators.items()
            if isinstance(authenticator, LogsInBrowsers) and authenticator.login_title() is not None
        }
        """The authenticators whose users log in at another address, by name."""
        self._known: OrderedDict[bytes, tuple[float, WebSession]] = OrderedDict()
        self._age = 0
        self._noted: OrderedDict[bytes, float] = OrderedDict()
        self._noting: set[asyncio.Task[None]] = set()

    @property
    def accept_tokens(self) -> bool:
        """Whether users can sign in with a token of the registry."""
        return bool(self._keepers)

    async def find(self, secret: str) -> WebSession | None:
        """Return the session of a cookie. Return None if no session has this cookie, or the session has ended.

        Raise Unavailable if the database is unavailable.
        """
        session = self._remembered(rows.hash_of(secret)) or await self._read(secret)
        if session is None:
            return None
        login = self.logins.get(session.authenticator)
        if login is None:
            return session
        try:
            await login.check_login(session.identity)
        except NotAuthenticated:
            return None
        return session

    async def _read(self, secret: str) -> WebSession | None:
        """Read a session from the database and cache it. Return None if it has ended, or if its authenticator is not
        configured.
        """
        if not _SECRET.fullmatch(secret):
            return None
        age = self._age
        session = await self._database.read(partial(rows.find_session, hashed=rows.hash_of(secret)))
        if session is None or not (session.authenticator in self._keepers or session.authenticator in self.logins):
            return None
        self._remember(session, age)
        self._note_seen(session.hash)
        return session

    async def sign_in_with_token(self, token: str, replaced: str | None) -> SignedIn:
        """Start a session with the rights of a token of the registry. `replaced` is the secret in the browser's earlier
        cookie: its session ends. Raise NotAuthenticated if the token is not valid, NotAllowed for the token of a CI
        job.
        """
        return await self._started(
            partial(
                rows.sign_in_with_token,
                token=token,
                authenticator=self._keepers[0],
                replaced=_hash_or_none(replaced),
            )
        )

    async def sign_in(self, authenticator: str, login: LoggedIn, replaced: str | None) -> SignedIn:
        """Start a session for a user whom an authenticator has logged in. `replaced` is the secret of an earlier
        session, which ends.
        """
        return await self._started(
            partial(rows.sign_in, login=login, authenticator=authenticator, replaced=_hash_or_none(replaced))
        )

    async def _started(self, work: partial[SignedIn]) -> SignedIn:
        signed_in = await self._database.write(work)
        self.forget()
        return signed_in

    async def sign_out(self, secret: str) -> bool:
        """End a session. Return False if the session had already ended."""
        ended = await self._database.write(partial(rows.sign_out, hashed=rows.hash_of(secret)))
        self.forget()
        return ended

    async def of_identity(self, name: str) -> list[SeenSession]:
        """Return the sessions of an identity, the most recently used first."""
        return await self._database.read(partial(rows.list_sessions, name=name))

    async def end_others(self, session: WebSession) -> int:
        """End all other sessions of the user of a session. Return the number of ended sessions."""
        ended = await self._database.write(partial(rows.end_other_sessions, session=session))
        self.forget()
        return ended

    def forget(self) -> None:
        """Forget all cached sessions, because a session or a token has ended."""
        self._age += 1
        self._known.clear()

    def _remembered(self, hashed: bytes) -> WebSession | None:
        cached_until, session = self._known.get(hashed, (0.0, None))
        return session if time.monotonic() < cached_until else None

    def _remember(self, session: WebSession, age: int) -> None:
        """Cache a session. `age` is the value of `_age` before the read: if `forget` was called since, do not cache."""
        if age != self._age:
            return
        seconds_left = (session.ends_at - datetime.now(UTC)).total_seconds()
        self._known[session.hash] = time.monotonic() + min(REMEMBERED_SECONDS, seconds_left), session
        self._known.move_to_end(session.hash)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _note_seen(self, hashed: bytes) -> None:
        """Record the use in the background, at most once a minute."""
        now, interval = time.monotonic(), rows.SEEN_EVERY.total_seconds()
        if now - self._noted.get(hashed, -interval) < interval:
            return
        self._noted[hashed] = now
        self._noted.move_to_end(hashed)
        if len(self._noted) > MOST_REMEMBERED:
            self._noted.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._write_seen(hashed))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_seen(self, hashed: bytes) -> None:
        try:
            await self._database.write(partial(rows.note_seen, hashed=hashed))
        except SkilleryError as error:
            log.warning("the use of a session could not be noted: %s", error)


def _hash_or_none(secret: str | None) -> bytes | None:
    return None if secret is None else rows.hash_of(secret)


# -- Texts that the server signs and gives to browsers: form tokens, and the values of an unfinished login -------------


KEY_NAME = "web_key"
SALT_CHARACTERS = 22
_FORM, _VALUE = b"form\0", b"value\0"


def web_key(connection: Connection) -> bytes:
    """Return the signing key of this registry for browsers. The first call generates and stores the key."""
    return keep_value(connection, KEY_NAME, secrets.token_bytes(32))


class Signer:
    """Signs with the key of the registry, which all servers of a database share."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def form_token(self, session: str) -> str:
        """Return a token for the forms of one page. `session` is the cookie of the session, or "" without one."""
        salt = secrets.token_urlsafe(16)
        return salt + self._mac(_FORM, session, salt)

    def is_form_token(self, session: str, token: str) -> bool:
        """Return whether `form_token` has returned the token for this session."""
        salt, mac = token[:SALT_CHARACTERS], token[SALT_CHARACTERS:]
        return _equal(mac, self._mac(_FORM, session, salt))

    def signed(self, value: bytes) -> str:
        """Return the value and its signature as text. The value can be read without the key, but not changed."""
        payload = _encoded(value)
        return f"{payload}.{self._mac(_VALUE, payload)}"

    def verified(self, text: str) -> bytes | None:
        """Return the value that was passed to `signed`, or None if `signed` did not return the text."""
        payload, _, mac = text.partition(".")
        if not _equal(mac, self._mac(_VALUE, payload)):
            return None
        try:
            return base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
        except (binascii.Error, ValueError):
            return None

    def _mac(self, purpose: bytes, *parts: str) -> str:
        # The lengths separate the parts: other parts never give the same bytes.
        framed = b"".join(len(raw).to_bytes(4, "big") + raw for raw in (part.encode() for part in parts))
        return _encoded(hmac.digest(self._key, purpose + framed, hashlib.sha256))


def _equal(text: str, expected: str) -> bool:
    return hmac.compare_digest(text.encode(), expected.encode())


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
