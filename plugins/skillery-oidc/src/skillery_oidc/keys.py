"""The keys of the provider: read, cached, and read again when they are rotated."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, JWKRegistry, Key, OKPKey, RSAKey

from skillery.errors import Unavailable
from skillery_oidc.provider import Metadata, Provider, ProviderFailed
from skillery_oidc.settings import OidcSettings

log = logging.getLogger(__name__)
SHORTEST_RSA_BITS = 2048
MOST_KEYS = 200
RETRY_SECONDS = 5.0
"""Time after a failed read in which the keys are not read again."""
_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_OF_CURVE = {
    "P-256": frozenset({"ES256"}),
    "P-384": frozenset({"ES384"}),
    "P-521": frozenset({"ES512"}),
    "Ed25519": frozenset({"EdDSA", "Ed25519"}),
}


class VerificationKey(NamedTuple):
    """A public key of the provider, and the algorithms that it may be used for."""

    kid: str | None
    key: Key
    algorithms: frozenset[str]


def usable_keys(jwks: Sequence[dict[str, Any]], allowed: frozenset[str]) -> tuple[VerificationKey, ...]:
    """Return the public signature keys of a key set. Leave out keys that are weak, symmetric, or for other purposes."""
    keys = (_usable(jwk, allowed) for jwk in jwks[:MOST_KEYS])
    return tuple(key for key in keys if key is not None)


def _usable(jwk: dict[str, Any], allowed: frozenset[str]) -> VerificationKey | None:
    try:
        return _verification_key(jwk, allowed)
    except (JoseError, ValueError, TypeError, KeyError):
        return None  # One key that is not valid must not make the others unusable.


def _verification_key(jwk: dict[str, Any], allowed: frozenset[str]) -> VerificationKey | None:
    """Return the key of a JSON Web Key, or None if it may not verify signatures with an allowed algorithm."""
    if jwk.get("use", "sig") != "sig" or "verify" not in jwk.get("key_ops", ("verify",)):
        return None
    if jwk.get("kty") not in {"RSA", "EC", "OKP"}:
        return None
    public = {name: value for name, value in jwk.items() if name in {"kty", "n", "e", "crv", "x", "y"}}
    with warnings.catch_warnings(action="ignore"):
        key = JWKRegistry.import_key(public)
        algorithms = _algorithms_of(key)
    algorithm, kid = jwk.get("alg"), jwk.get("kid")
    algorithms &= allowed if algorithm is None else allowed & {algorithm}
    return VerificationKey(kid if isinstance(kid, str) else None, key, algorithms) if algorithms else None


def _algorithms_of(key: Key) -> frozenset[str]:
    if isinstance(key, RSAKey):
        return _RSA if key.raw_value.key_size >= SHORTEST_RSA_BITS else frozenset()
    if isinstance(key, ECKey | OKPKey):
        return _OF_CURVE.get(key.curve_name, frozenset())
    return frozenset()


class ProviderKeys:
    """The keys and the metadata of the provider."""

    def __init__(self, provider: Provider, settings: OidcSettings, on_change: Callable[[], None]) -> None:
        """`on_change` is called when the keys have changed."""
        self._provider = provider
        self._settings = settings
        self._allowed = frozenset(settings.algorithms)
        self._on_change = on_change
        self._keys: tuple[VerificationKey, ...] = ()
        self._jwks: list[dict[str, Any]] | None = None
        self._metadata: Metadata | None = None
        self._read_at = self._failed_at = self._asked_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Read metadata and keys from the provider. Several callers share one read. Raise ProviderFailed."""
        await asyncio.shield(self._shared_read())

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def metadata(self) -> Metadata:
        """Return the metadata of the provider. Raise Unavailable if they were never read or are too old."""
        await self.make_current()
        assert self._metadata is not None
        return self._metadata

    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        """Return the keys that may have signed a token.

        If there is none, read the keys of the provider again, at most once in `unknown_key_seconds`. Raise Unavailable
        if the keys are too old, and the provider is unavailable.
        """
        await self.make_current()
        keys = self._matching(kid, algorithm)
        if not keys and time.monotonic() - self._asked_at >= self._settings.unknown_key_seconds:
            self._asked_at = time.monotonic()
            await self._try_to_read()
            keys = self._matching(kid, algorithm)
        elif not keys and self._reading is not None:
            await self._try_to_read()
            keys = self._matching(kid, algorithm)
        return keys

    def _matching(self, kid: str | None, algorithm: str) -> list[Key]:
        usable = [key for key in self._keys if algorithm in key.algorithms]
        if kid is not None:
            return [candidate.key for candidate in usable if candidate.kid == kid]
        # Without an id, more than one candidate would mean guessing.
        return [candidate.key for candidate in usable] if len(usable) == 1 else []

    async def make_current(self) -> None:
        """Read the keys again if they are old. Raise Unavailable if they are too old and cannot be read.

        If the provider has just failed, the read is in the background: logins do not wait while it is unavailable.
        """
        now = time.monotonic()
        if now - self._read_at < self._settings.keys_seconds:
            return
        has_failed = now - self._failed_at < self._settings.keys_seconds
        is_kept = now - self._read_at < self._settings.keys_kept_seconds
        if self._reading is not None or now - self._failed_at >= RETRY_SECONDS:
            reading = self._shared_read()
            if not (has_failed and is_kept):
                await self._wait_for(reading)
        if time.monotonic() - self._read_at >= self._settings.keys_kept_seconds:
            raise Unavailable(
                "the identity provider is unavailable", hint="Try again later. An admin finds the reason in the log."
            )

    def _shared_read(self) -> asyncio.Task[None]:
        """Return the present read of the keys, or begin one."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._forget_reading)
        return self._reading

    async def _try_to_read(self) -> None:
        await self._wait_for(self._shared_read())

    async def _wait_for(self, reading: asyncio.Task[None]) -> None:
        try:
            await asyncio.shield(reading)
        except ProviderFailed:
            return  # The read has logged the failure. The present keys stay in use.

    async def _read(self) -> None:
        """Read the metadata and the keys. Call `on_change` if the keys differ. Raise ProviderFailed."""
        try:
            metadata = await self._provider.read_metadata()
            jwks = await self._provider.read_keys(metadata)
            keys = usable_keys(jwks, self._allowed)
            if not keys:
                raise ProviderFailed(f"{metadata.jwks_uri} has no key for the algorithms of the setting 'algorithms'")
        except ProviderFailed as error:
            # At start, the caller reports the failure.
            if self._jwks is not None:
                log.warning("the keys of the identity provider cannot be read: %s", error)
            raise
        changed, self._jwks = jwks != self._jwks, jwks
        self._metadata, self._keys, self._read_at = metadata, keys, time.monotonic()
        if changed:
            self._on_change()

    def _forget_reading(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed_at = time.monotonic()
        if error is not None and not isinstance(error, ProviderFailed):
            log.error("the keys of the identity provider cannot be read", exc_info=error)
