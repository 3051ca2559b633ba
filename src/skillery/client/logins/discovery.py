"""Find the identity provider of a server (RFC 9728, RFC 8414, OpenID Connect Discovery 1.0)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from skillery.client.logins.errors import LoginError
from skillery.client.logins.login import is_safe, server_of
from skillery.client.logins.requests import request

RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
OFFLINE = "offline_access"
T = TypeVar("T")


class ResourceMetadata(msgspec.Struct, frozen=True):
    """The metadata of a server about logins (RFC 9728)."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] = ()
    skillery_cli_client_id: str = ""


class ProviderMetadata(msgspec.Struct, frozen=True):
    """The metadata of an identity provider."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    device_authorization_endpoint: str = ""
    revocation_endpoint: str = ""
    scopes_supported: tuple[str, ...] = ()
    code_challenge_methods_supported: tuple[str, ...] | None = None
    authorization_response_iss_parameter_supported: bool = False


class Provider(NamedTuple):
    """The identity provider of a server, and the client that a login uses there."""

    metadata: ProviderMetadata
    resource: str
    client_id: str
    scopes: tuple[str, ...]

    @property
    def wants_refresh_token(self) -> bool:
        return OFFLINE in self.scopes

    def parameters(self) -> dict[str, str]:
        """Return the parameters that every request for a login has."""
        given = {"client_id": self.client_id, "resource": self.resource}
        return given | ({"scope": " ".join(self.scopes)} if self.scopes else {})


def find_provider(server: str, client_id: str | None) -> Provider | None:
    """Return the provider of a server, or None if the server names none.

    `client_id` overrides the client that the server publishes. Raise LoginError if the metadata are not valid,
    ConnectionFailed if a request fails.
    """
    resource = _resource_metadata(server)
    if resource is None or not resource.authorization_servers:
        return None
    issuer = resource.authorization_servers[0]
    client = client_id or resource.skillery_cli_client_id
    if not client:
        raise LoginError(
            f"{server} does not publish the client id of the command line at {issuer}",
            hint="Pass the client id with --client-id, or ask an admin to set 'cli_client_id' of the authenticator.",
        )
    metadata = _provider_metadata(issuer)
    # Many providers give a refresh token only for this scope (OpenID Connect Core 1.0 §11).
    more = (OFFLINE,) if OFFLINE in metadata.scopes_supported else ()
    return Provider(metadata, server, client, tuple(dict.fromkeys((*resource.scopes_supported, *more))))


def _resource_metadata(server: str) -> ResourceMetadata | None:
    if not is_safe(server):
        raise LoginError(
            f"{server} is not encrypted, so it cannot name an identity provider", hint="Use https://, or --token."
        )
    address = server + RESOURCE_METADATA
    answer = request("GET", address)
    if 400 <= answer.status < 500:
        return None
    found = _decoded(answer.status, answer.body, address, ResourceMetadata)
    # Otherwise another server could get a token that is meant for this one (RFC 9728 §3.3).
    if server_of(found.resource) != server:
        raise LoginError(
            f"the server at {server} calls itself '{found.resource}'", hint="Log in at that address: use it as --url."
        )
    return found


def _provider_metadata(issuer: str) -> ProviderMetadata:
    answers = []
    for address in _addresses(issuer):
        answer = request("GET", address)
        if answer.status == 200:
            found = _decoded(200, answer.body, address, ProviderMetadata)
            if found.issuer != issuer:
                raise LoginError(f"the identity provider '{issuer}' calls itself '{found.issuer}' at {address}")
            return found
        answers.append(f"{address} answered HTTP {answer.status}")
    raise LoginError(f"the identity provider '{issuer}' publishes no metadata: {', '.join(answers)}")


def _addresses(issuer: str) -> Iterator[str]:
    """Yield the addresses of the metadata of an issuer. RFC 8414 puts the path of the issuer at the end."""
    try:
        url = httpx.URL(issuer)
    except httpx.InvalidURL:
        raise LoginError(f"the server names the identity provider '{issuer}', which is not an address") from None
    path = url.path.rstrip("/")
    origin = str(url.copy_with(path="/", query=None, fragment=None)).rstrip("/")
    yield f"{origin}{OAUTH}{path}"
    yield from dict.fromkeys((f"{origin}{OPENID}{path}", f"{origin}{path}{OPENID}"))


def _decoded(status: int, body: bytes, address: str, form: type[T]) -> T:
    if status != 200:
        raise LoginError(f"{address} answered HTTP {status}")
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoginError(f"the metadata at {address} are not valid: {error}") from None
