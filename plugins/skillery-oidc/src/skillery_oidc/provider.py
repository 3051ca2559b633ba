"""Requests to the provider: its metadata, its keys, and introspection."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import httpx
import msgspec

from skillery_oidc.settings import OidcSettings, is_safe

MOST_BYTES = 1024 * 1024
DISCOVERY = "/.well-known/openid-configuration"
NO_ANSWER = "no answer in time"
# Providers on Node.js close idle connections after 5 s, and a request on a connection that closes fails.
LIMITS = httpx.Limits(keepalive_expiry=2)
PLAIN = "identity"
"""The only content coding that is accepted: two kilobytes that are compressed twice could become gigabytes."""


class ProviderFailed(Exception):
    """Raised if the provider gives no usable answer. The message is one line and names the setting or the address."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status` is the HTTP status of an answer that is an error or no JSON, else 0."""
        super().__init__(message)
        self.status = status


class Metadata(msgspec.Struct, frozen=True):
    """The part of the provider's metadata (OpenID Connect Discovery 1.0 §3, RFC 8414 §2) that this plugin uses."""

    issuer: str
    jwks_uri: str
    introspection_endpoint: str = ""
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    code_challenge_methods_supported: tuple[str, ...] = ("S256",)
    """Many providers support PKCE without this member."""
    authorization_response_iss_parameter_supported: bool = False
    """Whether the provider names itself in the return of a login (RFC 9207)."""


class Provider:
    """The provider of the setting `issuer`."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def read_metadata(self) -> Metadata:
        """Return the metadata of the provider. Raise ProviderFailed if they are not usable."""
        issuer = self._settings.issuer
        address = issuer.rstrip("/") + DISCOVERY
        try:
            answer = await self._request("GET", address)
            metadata = msgspec.convert(answer, Metadata)
        except msgspec.ValidationError as error:
            raise ProviderFailed(f"issuer '{issuer}': {address} is no metadata of a provider: {error}") from None
        except ProviderFailed as error:
            if not 200 <= error.status < 500:
                raise
            raise ProviderFailed(
                f"issuer '{issuer}': {error}: set issuer to the address before {DISCOVERY}, with its path, such as "
                "/realms/NAME"
            ) from None
        if metadata.issuer != issuer:
            raise ProviderFailed(
                f"issuer is '{issuer}', but the provider there calls itself '{metadata.issuer[:200]}': set issuer to "
                "exactly this text"
            )
        for name in ("jwks_uri", "introspection_endpoint", "authorization_endpoint", "token_endpoint"):
            endpoint = getattr(metadata, name)
            if endpoint and not is_safe(endpoint):
                raise ProviderFailed(f"issuer '{issuer}': its {name} '{endpoint[:200]}' does not begin with https://")
        return metadata

    async def read_keys(self, metadata: Metadata) -> list[dict[str, Any]]:
        """Return the key set of the provider (RFC 7517 §5). Raise ProviderFailed if it is not usable."""
        answer = await self._request("GET", metadata.jwks_uri)
        keys = answer.get("keys")
        if not isinstance(keys, list):
            raise ProviderFailed(f"{metadata.jwks_uri} is not a key set")
        return [key for key in keys if isinstance(key, dict)]

    async def introspect(self, metadata: Metadata, token: str) -> dict[str, Any]:
        """Return the answer of the provider about a token (RFC 7662 §2.2). Raise ProviderFailed if there is none."""
        if not metadata.introspection_endpoint:
            raise ProviderFailed(f"issuer '{self._settings.issuer}' has no introspection_endpoint in its metadata")
        form = {"token": token, "token_type_hint": "access_token"}
        auth = (self._settings.client_id, self._secret())
        try:
            return await self._request("POST", metadata.introspection_endpoint, form, auth)
        except ProviderFailed as error:
            if error.status not in {401, 403}:
                raise
            raise ProviderFailed(
                f"client_id, client_secret: {metadata.introspection_endpoint} refuses the client "
                f"'{self._settings.client_id}' (status {error.status})"
            ) from None

    async def redeem(self, metadata: Metadata, form: dict[str, str]) -> dict[str, Any]:
        """Return the answer of the token endpoint: tokens, or a member `error` (RFC 6749 §5).

        Raise ProviderFailed if there is no answer.
        """
        client_id, auth = self._settings.client_id, None
        if not (self._settings.client_secret or self._settings.client_secret_file):
            form = {**form, "client_id": client_id}
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            auth = (quote_plus(client_id), quote_plus(self._secret()))  # RFC 6749 §2.3.1
        else:
            form = {**form, "client_id": client_id, "client_secret": self._secret()}
        return await self._request("POST", metadata.token_endpoint, form, auth, frozenset({200, 400, 401}))

    async def _request(
        self,
        method: str,
        address: str,
        form: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        statuses: frozenset[int] = frozenset({200}),
    ) -> dict[str, Any]:
        """Return the JSON object of an answer whose status is in `statuses`. Raise ProviderFailed
        for everything else.
        """
        try:
            # The limit of httpx is for each read: an answer that drips would never reach it.
            async with asyncio.timeout(self._settings.request_seconds):
                async with self._open().stream(method, address, data=form, auth=auth) as response:
                    return await _json_of(response, address, statuses)
        except TimeoutError:
            raise ProviderFailed(f"issuer '{self._settings.issuer}': {address}: {NO_ANSWER}") from None
        except httpx.HTTPError as error:
            raise ProviderFailed(f"issuer '{self._settings.issuer}': {address}: {_reason(error)}") from None
        except ssl.SSLError as error:
            raise ProviderFailed(f"issuer '{self._settings.issuer}': {address}: {error.reason}") from None

    def _open(self) -> httpx.AsyncClient:
        """Return the HTTP client, which the first call opens."""
        if self._client is None:
            ca_file = self._settings.ca_file
            verify: Any = ssl.create_default_context(cafile=ca_file) if ca_file else True
            # Redirects are not followed: metadata and keys come from the stated address, or not at all.
            self._client = httpx.AsyncClient(
                verify=verify,
                timeout=self._settings.request_seconds,
                limits=LIMITS,
                headers={"accept-encoding": PLAIN},
            )
        return self._client

    def _secret(self) -> str:
        """Return the client secret. The file is read for each request, because it may change."""
        if self._settings.client_secret:
            return self._settings.client_secret
        try:
            return Path(self._settings.client_secret_file).read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ProviderFailed("the file of the setting client_secret_file cannot be read") from None


async def _json_of(response: httpx.Response, address: str, statuses: frozenset[int]) -> dict[str, Any]:
    """Return the JSON object in a response. Raise ProviderFailed if the status, the size or the content is not
    acceptable.
    """
    if response.status_code not in statuses:
        raise ProviderFailed(f"{address} answers with status {response.status_code}", response.status_code)
    if response.headers.get("content-encoding", PLAIN) != PLAIN:
        raise ProviderFailed(f"{address} answers with a compressed body, which this server does not ask for")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ProviderFailed(f"{address} answers with more than {MOST_BYTES} bytes")
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ProviderFailed(f"{address} does not answer with a JSON object", response.status_code)
    return answer


def _reason(error: httpx.HTTPError) -> str:
    """Return why a request failed, as a part of one line."""
    if isinstance(error, httpx.TimeoutException):
        return NO_ANSWER
    text = " ".join(str(error).split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        _, _, reason = text.partition("certificate verify failed: ")
        return f"its certificate is not valid: {reason.partition(' (_ssl')[0]}"
    return text or type(error).__name__
