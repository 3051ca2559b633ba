"""The settings of the authenticator `oidc`, and their checks at start."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec

from skillery.backends import Scope
from skillery.errors import StartupError

SECTION = "[backends.authenticator.oidc]"
ASYMMETRIC = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""All algorithms that the settings may name. A verifier of public keys must never accept HMAC or `none`."""
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_GRANT = re.compile(r"\*|(?:[a-z0-9][a-z0-9_-]*|\{[^{}]+\})(?:\.(?:[a-z0-9][a-z0-9_-]*|\{[^{}]+\}))*\.\*")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~%/-]*)?")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `[[backends.authenticator.oidc.rules]]`. The first rule that matches a token decides."""

    identity: str
    """Name of the identity. `{claim}` is replaced by the text of a claim."""
    claims: dict[str, str | int | bool | tuple[str, ...]] = {}
    """Claims that the token must have: a value, or several values of which one is enough.

    A dot leads into an object: `realm_access.roles`. A claim with a list matches if the list contains the value. `*`
    matches every value. Without claims, the rule matches every token.
    """
    kind: Literal["person", "agent"] = "person"
    scopes: tuple[Scope, ...] = ("read",)
    namespaces: tuple[str, ...] = ()
    """Namespace grants: `sales.*`, `people.{preferred_username}.*`."""


class ScimSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[backends.authenticator.oidc.scim]`: the provider provisions accounts by SCIM 2.0."""

    claims: dict[str, Literal["userName", "externalId"]] = msgspec.field(
        default_factory=lambda: {"preferred_username": "userName"}
    )
    """Claims of tokens, and the attributes of SCIM with the same values. The first claim finds the user of a token."""
    groups: str = "groups"
    """The claim that the groups of SCIM replace."""
    required: bool = False
    """Whether users without an account are refused. A token without the first claim of `claims` has no user."""


class OidcSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the authenticator `oidc`, from `[backends.authenticator.oidc]`."""

    issuer: str
    """Address of the provider, exactly as in the claim `iss` of its tokens."""
    resource: str
    """Public address of this server: `https://skills.example.org`. Clients name it when they ask for a token."""
    rules: tuple[Rule, ...]
    audiences: tuple[str, ...] = ()
    """Accepted values of the claim `aud`. Empty: `resource` and `resource` with `/mcp`."""
    scopes: dict[str, tuple[Scope, ...]] = {}
    """Scopes of the provider, and the Skillery scopes that each of them allows. Empty: a token allows all scopes of its
    rule.
    """
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
    require_at_jwt: bool = False
    """Whether the header of a token must have the type `at+jwt` (RFC 9068)."""
    skew_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    """Accepted difference between the clocks of the provider and of this server."""
    keys_seconds: Annotated[float, msgspec.Meta(ge=1, le=86_400)] = 600.0
    """Time after which the keys of the provider are read again."""
    keys_kept_seconds: Annotated[float, msgspec.Meta(ge=1, le=604_800)] = 86_400.0
    """How long the last keys are used while the provider is unavailable."""
    unknown_key_seconds: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0
    """Shortest time between two reads of the keys because of a token with an unknown key."""
    request_seconds: Seconds = 5.0
    """Time limit of one request to the provider."""
    ca_file: str = ""
    """File with the certificates of the authorities that the provider's certificate may come from."""
    introspection: bool = False
    """Whether tokens that are not JSON Web Tokens are verified by introspection (RFC 7662)."""
    introspection_seconds: Seconds = 60.0
    """How long the answer of an introspection is used."""
    introspections_at_once: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    cli_client_id: str = ""
    """The public client at the provider that `skillery login` uses. The server publishes this id."""
    client_id: str = ""
    client_secret: str = ""
    client_secret_file: str = ""
    browser_login: bool = False
    """Whether users sign in with a browser: authorization code flow with PKCE, by the client `client_id`."""
    login_scopes: tuple[str, ...] = ()
    """Scopes that a login requests, next to `openid` and the names in `scopes`."""
    login_claims: Literal["access_token", "id_token"] = "access_token"
    """The token whose claims the rules see after a login with a browser. The session ends with this token."""
    login_resource: bool = True
    """Whether a login names `resource` to the provider (RFC 8707). Some providers refuse the parameter."""
    revoked: tuple[str, ...] = ()
    """Identities that are refused."""
    scim: ScimSettings | None = None
    failures_per_minute: Annotated[int, msgspec.Meta(ge=1)] = 20
    """Failed logins of an address within a minute. Further attempts get 429. Valid JSON Web Tokens always pass."""

    @property
    def accepted_audiences(self) -> frozenset[str]:
        return frozenset(self.audiences or (self.resource, f"{self.resource}/mcp"))


class VerifierSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the verifier, from `[backends.verifier.oidc]`. All have defaults."""

    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
    skew_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    keys_seconds: Seconds = 600.0
    unknown_key_seconds: Seconds = 60.0


def check_settings(settings: OidcSettings) -> None:
    """Raise StartupError if a setting is not valid. The message names the setting."""
    _check_address("issuer", settings.issuer)
    _check_address("resource", settings.resource)
    if settings.resource.endswith("/"):
        raise _wrong("resource", settings.resource, "must not end with a slash")
    _check_algorithms(settings)
    _check_rules(settings)
    _check_scim(settings)
    if settings.introspection and not (settings.client_id and (settings.client_secret or settings.client_secret_file)):
        raise StartupError(f"{SECTION}: introspection needs the settings client_id and client_secret_file")
    if settings.browser_login and not settings.client_id:
        raise StartupError(f"{SECTION}: browser_login needs the setting client_id")
    for name in ("ca_file", "client_secret_file"):
        path = getattr(settings, name)
        if path and not Path(path).is_file():
            raise _wrong(name, path, "is not a file")


def _check_address(name: str, address: str) -> None:
    if not _ADDRESS.fullmatch(address):
        raise _wrong(name, address, "must be an address like https://id.example.org")
    if not is_safe(address):
        raise _wrong(name, address, "must begin with https://; http:// is permitted on loopback addresses only")


def is_safe(address: str) -> bool:
    """Return whether requests to the address are encrypted, or stay on this computer."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(parts.hostname or ""))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_algorithms(settings: OidcSettings) -> None:
    unsafe = sorted(set(settings.algorithms) - ASYMMETRIC)
    if unsafe or not settings.algorithms:
        algorithms = ", ".join(unsafe) or "empty"
        raise _wrong("algorithms", algorithms, f"permitted are {', '.join(sorted(ASYMMETRIC))}")


def _check_rules(settings: OidcSettings) -> None:
    """Raise StartupError if there are no rules, or if a rule is not valid."""
    if not settings.rules:
        raise StartupError(f"{SECTION}: there are no rules, so every token would be refused: add one")
    for number, rule in enumerate(settings.rules, 1):
        if not rule.identity:
            raise StartupError(f"{SECTION}: rule {number}: 'identity' is empty")
        for grant in rule.namespaces:
            if not _GRANT.fullmatch(grant):
                raise StartupError(
                    f"{SECTION}: rule {number}: '{grant}' is not a namespace grant like 'sales.*' or '*'"
                )


def _check_scim(settings: OidcSettings) -> None:
    """Raise StartupError if no rule makes an identity of the claims in `scim.claims`.

    Otherwise no deactivation could end the tokens of the registry and the sessions of a user.
    """
    scim = settings.scim
    if scim is None:
        return
    needed = [set(re.findall(r"\{([^{}]+)\}", rule.identity)) for rule in settings.rules]
    if not any(names and names <= set(scim.claims) for names in needed):
        claims = ", ".join(scim.claims) or "none"
        raise StartupError(
            f"{SECTION}: no rule makes 'identity' of the claims in scim.claims ({claims}) alone: add them"
        )


def _wrong(name: str, value: str, problem: str) -> StartupError:
    return StartupError(f"{SECTION}: {name} is '{value}': {problem}")
