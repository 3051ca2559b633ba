"""The discovery of a server's identity provider (RFC 9728, RFC 8414, OpenID Connect Discovery 1.0), and requests for
tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from skillery.client.errors import ConnectionFailed
from skillery.client.logins.login import Login, LoginError, ProviderLogin, is_safe, server_of
from skillery.client.wire import is_plain

# -- Requests to a server and to its identity provider, with limits of time and size -----------------------------------


SECONDS = 10.0
"""The maximum time of each step of a request, in seconds."""
TOTAL_SECONDS = 30.0
MAX_BYTES = 1024 * 1024
PLAIN = "identity"
"""The only accepted content coding: two kilobytes that are compressed twice could become gigabytes."""
_HEADERS = {"accept": "application/json", "accept-encoding": PLAIN}


class Answer(NamedTuple):
    """A response: its HTTP status and body."""

    status: int
    body: bytes


def request(method: str, address: str, form: Mapping[str, str] | None = None) -> Answer:
    """Send a request, and return the response. Redirects are not followed.

    Raise ConnectionFailed if the connection fails. Raise LoginError if the address is not safe, or if the response is
    too large or compressed.
    """
    if not is_safe(address):
        raise LoginError(
            f"'{address}' is not encrypted", hint="Addresses must begin with https://, except on this computer."
        )
    # A proxy would resolve a loopback address on its own host.
    plain = is_plain(address)
    try:
        with (
            httpx.Client(timeout=SECONDS, verify=not plain, trust_env=not plain) as http,
            http.stream(method, address, data=form, headers=_HEADERS) as response,
        ):
            return Answer(response.status_code, b"".join(_bounded(response, address)))
    except httpx.TransportError as error:
        raise ConnectionFailed(f"cannot reach {address}: {str(error) or type(error).__name__}", sent=True) from None
    except httpx.HTTPError as error:
        raise LoginError(f"{address} answered a response that cannot be read ({type(error).__name__})") from None


def _bounded(response: httpx.Response, address: str) -> Iterator[bytes]:
    """Yield the pieces of a response. Raise LoginError or ConnectionFailed if it is too large or too slow."""
    if response.headers.get("content-encoding", PLAIN) != PLAIN:
        raise LoginError(f"{address} answered a compressed body, which the client did not ask for")
    size, end = 0, time.monotonic() + TOTAL_SECONDS
    for piece in response.iter_raw():
        size += len(piece)
        if size > MAX_BYTES:
            raise LoginError(f"{address} answered more than {MAX_BYTES} bytes")
        if time.monotonic() > end:
            raise ConnectionFailed(f"{address} did not answer within {TOTAL_SECONDS:g} s", sent=True)
        yield piece


RESOURCE_METADATA = "/.well-known/oauth-protected-resource"
OAUTH = "/.well-known/oauth-authorization-server"
OPENID = "/.well-known/openid-configuration"
OFFLINE = "offline_access"
T = TypeVar("T")


class ResourceMetadata(msgspec.Struct, frozen=True):
    """The metadata that a server publishes about logins (RFC 9728)."""

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
    """The identity provider of a server, and the OAuth client that a login uses there."""

    metadata: ProviderMetadata
    resource: str
    client_id: str
    scopes: tuple[str, ...]

    @property
    def wants_refresh_token(self) -> bool:
        return OFFLINE in self.scopes

    def parameters(self) -> dict[str, str]:
        """Return the parameters that all requests for a login have."""
        values = {"client_id": self.client_id, "resource": self.resource}
        return values | ({"scope": " ".join(self.scopes)} if self.scopes else {})


def find_provider(server: str, client_id: str | None) -> Provider | None:
    """Return the provider of a server, or None if the server names none.

    `client_id` replaces the client id that the server publishes. Raise LoginError if the metadata are invalid, and
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
    offline_scope = (OFFLINE,) if OFFLINE in metadata.scopes_supported else ()
    return Provider(metadata, server, client, tuple(dict.fromkeys((*resource.scopes_supported, *offline_scope))))


def _resource_metadata(server: str) -> ResourceMetadata | None:
    """Return the metadata of a server, or None if it publishes none. Raise LoginError if they are invalid."""
    if not is_safe(server):
        raise LoginError(
            f"{server} is not encrypted, so it cannot name an identity provider", hint="Use https://, or --token."
        )
    address = server + RESOURCE_METADATA
    answer = request("GET", address)
    if 400 <= answer.status < 500:
        return None
    metadata = _decoded(answer.status, answer.body, address, ResourceMetadata)
    # Otherwise another server could get a token that is meant for this one (RFC 9728 §3.3).
    if server_of(metadata.resource) != server:
        raise LoginError(
            f"the server at {server} calls itself '{metadata.resource}'",
            hint="Log in at that address: use it as --url.",
        )
    return metadata


def _provider_metadata(issuer: str) -> ProviderMetadata:
    """Return the metadata of an issuer. Raise LoginError if it publishes none, or names another issuer."""
    answers = []
    for address in _addresses(issuer):
        answer = request("GET", address)
        if answer.status == 200:
            metadata = _decoded(200, answer.body, address, ProviderMetadata)
            if metadata.issuer != issuer:
                raise LoginError(f"the identity provider '{issuer}' calls itself '{metadata.issuer}' at {address}")
            return metadata
        answers.append(f"{address} answered HTTP {answer.status}")
    raise LoginError(f"the identity provider '{issuer}' publishes no metadata: {', '.join(answers)}")


def _addresses(issuer: str) -> Iterator[str]:
    """Yield the possible addresses of an issuer's metadata.

    RFC 8414 puts the path of the issuer at the end.
    """
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


# -- Requests for tokens at an identity provider (RFC 6749) ------------------------------------------------------------


UNSTATED_SECONDS = 300.0
"""The assumed lifetime of a token if the provider states none."""
LONGEST_SECONDS = 10 * 365 * 86_400.0
"""A longer lifetime of a token is reduced to this one, because no date is after the year 9999."""
MAX_TEXT = 300
MAX_TOKEN = 65_536


class Refusal(LoginError):
    """Raised if the provider answers with an error. `error` is its code, such as `access_denied`."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class _Tokens(msgspec.Struct, frozen=True):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None


class _Error(msgspec.Struct, frozen=True):
    error: str
    error_description: str = ""


def ask_for_tokens(provider: Provider, form: Mapping[str, str]) -> Login:
    """Send a grant to the token endpoint, and return the login. Raise Refusal if the provider answers with an error."""
    metadata = provider.metadata
    provider_login = ProviderLogin(
        metadata.issuer, provider.client_id, provider.resource, metadata.token_endpoint, metadata.revocation_endpoint
    )
    return login_for(
        provider_login, {"client_id": provider_login.client_id, "resource": provider_login.resource, **form}
    )


def login_for(kept: ProviderLogin, form: Mapping[str, str]) -> Login:
    """Send a form to the token endpoint of a login, and return the login with the new tokens.

    Raise Refusal, LoginError or ConnectionFailed if the provider returns no tokens.
    """
    answer = request("POST", kept.token_endpoint, form)
    if answer.status != 200:
        raise refusal(answer, kept.token_endpoint)
    try:
        tokens = msgspec.json.decode(answer.body, type=_Tokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The message of the decoder could contain a part of a token.
        raise LoginError(f"{kept.token_endpoint} answered no valid tokens") from None
    if tokens.token_type.lower() != "bearer":
        raise LoginError(f"{kept.issuer} issued a token of the type '{tokens.token_type[:40]}', not a bearer token")
    if not is_header_text(tokens.access_token) or len(tokens.refresh_token or "") > MAX_TOKEN:
        raise LoginError(f"{kept.issuer} issued a token that is too long, or that no header can hold")
    # A response without a refresh token leaves the old one valid (RFC 6749 §6).
    renewed = replace(kept, refresh_token=tokens.refresh_token or kept.refresh_token)
    return Login(tokens.access_token, time.time() + _seconds(tokens.expires_in), renewed)


def _seconds(stated: float | str | None) -> float:
    try:
        return min(max(0.0, float(stated)), LONGEST_SECONDS) if stated is not None else UNSTATED_SECONDS
    except ValueError:
        return UNSTATED_SECONDS


def is_header_text(token: str) -> bool:
    """Return whether a header can hold the token: visible ASCII characters without spaces."""
    return 0 < len(token) <= MAX_TOKEN and all("!" <= character <= "~" for character in token)


def refusal(answer: Answer, address: str) -> LoginError:
    """Return the error for a failed request to a provider. Raise ConnectionFailed if the provider is unavailable."""
    try:
        failure = msgspec.json.decode(answer.body, type=_Error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if answer.status >= 500 or answer.status == 429:
            raise ConnectionFailed(f"{address} answered HTTP {answer.status}", sent=True) from None
        return LoginError(f"{address} answered HTTP {answer.status}")
    if failure.error in {"server_error", "temporarily_unavailable"} or answer.status >= 500:
        raise ConnectionFailed(f"{address} answered '{failure.error[:MAX_TEXT]}'", sent=True)
    return refused(failure.error, failure.error_description, address)


def refused(error: str, description: str, address: str) -> Refusal:
    description_text = f": {description[:MAX_TEXT]}" if description else ""
    return Refusal(error, f"the identity provider answered '{error[:MAX_TEXT]}'{description_text} ({address})")
