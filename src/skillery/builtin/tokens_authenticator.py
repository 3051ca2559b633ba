"""`tokens`: callers send a token of this registry, `Authorization: Bearer sky_…`.

A valid token is cached for REMEMBERED_SECONDS. A revocation by this server takes effect at once. A revocation by
another process takes effect within that time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

from skillery import hookimpl
from skillery.backends import Authenticator, Credentials, Identity, Offer, Place, Tokens, VerifiedToken
from skillery.errors import NotAuthenticated, SkilleryError, StartupError, TooManyFailedLogins
from skillery.formats.network import network_of
from skillery.formats.tokens import PREFIX, REMEMBERED_SECONDS

# -- A limit on the failed logins of each address, with bounded memory -------------------------------------------------


MOST_ADDRESSES = 10_000


class _Allowance(NamedTuple):
    """The failed logins that an address may still make, at the monotonic time `at`."""

    left: float
    at: float
    """Time of the last failure in seconds of the monotonic clock."""


class FailedLogins:
    """The number of failed logins that each address may still make. It grows evenly, up to `per_minute` within a
    minute.

    Above MOST_ADDRESSES, the addresses with the oldest failures are forgotten first.
    """

    def __init__(self, per_minute: int) -> None:
        self._most = float(per_minute)
        self._allowances: OrderedDict[str, _Allowance] = OrderedDict()

    def note(self, address: str) -> float | None:
        """Record a failed login. Return None if it is within the limit, else the seconds to wait before the next."""
        network = network_of(address)
        now = time.monotonic()
        allowance = self._allowances.pop(network, None) or _Allowance(self._most, now)
        logins_left = min(self._most, allowance.left + (now - allowance.at) * self._most / 60)
        may = logins_left >= 1
        self._allowances[network] = _Allowance(logins_left - 1 if may else logins_left, now)
        if len(self._allowances) > MOST_ADDRESSES:
            self._allowances.popitem(last=False)
        return None if may else (1 - logins_left) * 60 / self._most


log = logging.getLogger(__name__)
MOST_REMEMBERED = 10_000
USE_NOTED_EVERY_SECONDS = 60.0
HINT = (
    "Send 'Authorization: Bearer sky_…' (in a shell --token, SKILLERY_TOKEN or `skillery login`). An admin makes "
    "tokens: skillery token create."
)


class TokensSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of `[backends.authenticator.tokens]`."""

    failures_per_minute: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Failed logins of an address within a minute. Further attempts get 429. Valid tokens are never refused."""
    bootstrap: bool = True
    """Whether the first start prints an admin token."""


class TokensAuthenticator(Authenticator):
    """See `skillery.backends.Authenticator`. Callers send a token of this registry."""

    loopback_only = False
    is_local = True

    def __init__(self, tokens: Tokens, settings: TokensSettings) -> None:
        self._tokens = tokens
        self._settings = settings
        self._failures = FailedLogins(settings.failures_per_minute)
        self._memory = _Memory()
        self._noted: OrderedDict[str, float] = OrderedDict()
        self._noting: set[asyncio.Task[None]] = set()

    def recognizes(self, credentials: Credentials) -> bool:
        """Return whether the credentials have the form of a token of a Skillery server."""
        scheme, _, token = credentials.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and token.strip().startswith(PREFIX)

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the token.

        Raise NotAuthenticated if the token is missing or invalid, TooManyFailedLogins after too many failures,
        Unavailable if the database cannot be reached.
        """
        header = credentials.headers.get("authorization")
        if header is None:
            # A missing header is not a failed login: many clients first send a request without one to learn the scheme.
            raise NotAuthenticated("this server wants a token", hint=HINT)
        digest = hashlib.sha256(header.encode()).digest()
        cached = self._memory.find(digest)
        if cached is not None:
            return cached
        scheme, _, token = header.partition(" ")
        age = self._memory.age
        try:
            verified = await self._tokens.verify(token.strip() if scheme.lower() == "bearer" else "")
        except NotAuthenticated as error:
            raise self._refused(credentials, error) from None
        self._memory.keep(digest, verified, age)
        self._note_use(verified.token_id)
        return verified.identity

    def forget(self) -> None:
        """Forget all cached tokens, because a token was revoked."""
        self._memory.forget()

    def note_failure(self, address: str) -> float | None:
        return self._failures.note(address)

    def first_token(self) -> str | None:
        """Return a new admin token if the registry never had a token and the settings allow it; otherwise None.
        Blocking.
        """
        return self._tokens.first_token() if self._settings.bootstrap else None

    def _refused(self, credentials: Credentials, error: NotAuthenticated) -> NotAuthenticated:
        refused = self._with_hint(credentials, error.message)
        refused.token = error.token
        return refused

    def _with_hint(self, credentials: Credentials, why: str) -> NotAuthenticated:
        wait = self._failures.note(credentials.address)
        if wait is None:
            return NotAuthenticated(why, hint=HINT)
        return TooManyFailedLogins(
            f"{why}, and too many logins from this address have failed",
            hint="Correct the token before you try again. A valid token is accepted at any time.",
            retry_after_ms=max(1, round(wait * 1000)),
        )

    def _note_use(self, token_id: str) -> None:
        """Record the use in the background, at most once a minute."""
        now = time.monotonic()
        if now - self._noted.get(token_id, -USE_NOTED_EVERY_SECONDS) < USE_NOTED_EVERY_SECONDS:
            return
        self._noted[token_id] = now
        self._noted.move_to_end(token_id)
        if len(self._noted) > MOST_REMEMBERED:
            self._noted.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._write_use(token_id))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, token_id: str) -> None:
        try:
            await self._tokens.note_use(token_id)
        except SkilleryError as error:
            log.warning("the use of the token %s could not be noted: %s", token_id, error)


class _Memory:
    """A cache of valid tokens for REMEMBERED_SECONDS. The keys are digests of the header Authorization."""

    def __init__(self) -> None:
        self.age = 0
        """Changes with each `forget`, so that earlier look-ups are not cached."""
        self._known: OrderedDict[bytes, tuple[float, VerifiedToken]] = OrderedDict()

    def find(self, digest: bytes) -> Identity | None:
        cached_until, verified = self._known.get(digest, (0.0, None))
        if verified is None or time.monotonic() >= cached_until:
            return None
        if verified.expires_at is not None and verified.expires_at <= datetime.now(UTC):
            return None
        return verified.identity

    def keep(self, digest: bytes, verified: VerifiedToken, age: int) -> None:
        if age != self.age:
            return
        self._known[digest] = time.monotonic() + REMEMBERED_SECONDS, verified
        self._known.move_to_end(digest)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def forget(self) -> None:
        self.age += 1
        self._known.clear()


def _open(settings: TokensSettings, place: Place) -> TokensAuthenticator:
    if place.tokens is None:
        raise StartupError("the authenticator 'tokens' needs the server's database, and was opened without a database")
    return TokensAuthenticator(place.tokens, settings)


@hookimpl
def skillery_authenticator() -> Offer:
    return Offer("tokens", _open, TokensSettings)
