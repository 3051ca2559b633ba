"""Which tokens are accepted. The attacks are those of RFC 8725 that concern a server that only verifies tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, Key, OctKey, RSAKey

from oidc_here import OidcProvider, bearer, new_key, refusal, settings_of, shared_provider
from skillery.backends import Credentials, Identity, Place
from skillery.errors import NotAuthenticated, StartupError, Unavailable
from skillery.testing import AuthenticatorContract
from skillery_oidc import open_authenticator
from skillery_oidc.authenticator import OidcAuthenticator
from tests.support.growth import check_growth
from tests.support.processes import eventually_async


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


@asynccontextmanager
async def opened_for(provider: OidcProvider, home: Path) -> AsyncIterator[OidcAuthenticator]:
    opened = open_authenticator(settings_of(provider), Place(home))
    await opened.start()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def authenticator(provider: OidcProvider, tmp_path: Path) -> AsyncIterator[OidcAuthenticator]:
    async with opened_for(provider, tmp_path) as opened:
        yield opened


class TestOidc(AuthenticatorContract):
    # The fixture of the contract is a plain function. This one closes what it has opened.
    @pytest_asyncio.fixture
    async def authenticator(  # type: ignore[override]
        self, provider: OidcProvider, tmp_path: Path
    ) -> AsyncIterator[OidcAuthenticator]:
        async with opened_for(provider, tmp_path) as opened:
            yield opened

    @pytest.fixture
    def good(self, provider: OidcProvider) -> Credentials:
        return bearer(provider.token())

    @pytest.fixture
    def bad(self, provider: OidcProvider) -> list[Credentials]:
        return [Credentials({}, "192.0.2.1"), bearer(""), bearer("a.b.c"), bearer(provider.sign(exp=1))]


async def test_a_token_of_the_provider_is_an_identity(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    identity = await authenticator.authenticate(bearer(provider.token()))

    assert identity == Identity("robot", "person", frozenset({"read", "run"}))


@pytest.mark.parametrize("kind", ["at+jwt", "AT+JWT", "application/at+jwt", "JWT", None])
async def test_types_of_access_tokens(
    kind: str | None, provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    assert (await authenticator.authenticate(bearer(provider.sign({"typ": kind})))).name == "robot"


def part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def public_pem(key: Key) -> bytes:
    assert isinstance(key, ECKey)
    return key.as_pem(private=False)


def with_hmac(secret: bytes, header: dict[str, Any], claims: dict[str, Any]) -> str:
    signed = f"{part(header)}.{part(claims)}"
    return f"{signed}.{part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def unsigned(provider: OidcProvider, algorithm: str) -> str:
    header = {"alg": algorithm, "typ": "at+jwt", "kid": provider.keys[0].kid}
    return f"{part(header)}.{part(provider.claims())}."


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_an_unsigned_token(algorithm: str, provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    assert "is not accepted" in await refusal(authenticator, unsigned(provider, algorithm))


async def test_a_token_without_its_signature(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    whole = provider.sign()

    assert "signature" in await refusal(authenticator, whole.rpartition(".")[0] + ".")
    assert "not a signed JSON Web Token" in await refusal(authenticator, f"{whole}.x.x")


@pytest.mark.parametrize("form", ["pem", "jwk", "point"])
async def test_hmac_with_the_public_key(form: str, provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    key = provider.keys[0]
    public = key.as_dict(private=False)
    secret = {
        "pem": public_pem(key),
        "jwk": json.dumps(public).encode(),
        "point": base64.urlsafe_b64decode(str(public["x"]) + "="),
    }[form]
    header = {"alg": "HS256", "typ": "at+jwt", "kid": key.kid}

    said = await refusal(authenticator, with_hmac(secret, header, provider.claims()))

    assert said == "the algorithm 'HS256' of the token is not accepted"


async def test_a_key_is_used_with_its_own_algorithm_only(
    provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    """A token of another algorithm that is accepted too, with the id of the provider's key."""
    other = new_key("RS256")

    said = await refusal(authenticator, provider.sign({"kid": provider.keys[0].kid}, key=other))

    assert "does not list" in said


async def test_an_algorithm_that_the_settings_leave_out(provider: OidcProvider, tmp_path: Path) -> None:
    strict = open_authenticator(settings_of(provider, algorithms=["RS256", "ES256"]), Place(tmp_path))

    assert "'ES384'" in await refusal(strict, provider.sign(key=new_key("ES384")))
    await strict.close()


async def test_a_changed_payload_and_a_changed_header(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    header, _, signature = provider.sign().split(".")
    admin = part(provider.claims(sub="admin"))
    _, payload, _ = provider.sign().split(".")
    renamed = part({"alg": "ES256", "kid": provider.keys[0].kid, "typ": "JWT"})

    assert "signature" in await refusal(authenticator, f"{header}.{admin}.{signature}")
    assert "signature" in await refusal(authenticator, f"{renamed}.{payload}.{signature}")


@pytest.mark.parametrize("member", ["jwk", "jku", "x5u", "x5c"])
async def test_keys_in_the_header_are_ignored(
    member: str, provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    own = new_key()
    header = {
        "jwk": own.as_dict(private=False),
        "jku": f"{provider.issuer}/jwks-of-the-attacker",
        "x5u": f"{provider.issuer}/certificate-of-the-attacker",
        "x5c": [part(b"certificate")],
    }

    foreign = sign_with_any_header(own, {member: header[member], "kid": provider.keys[0].kid}, provider.claims())
    unlisted = sign_with_any_header(own, {member: header[member], "kid": own.kid}, provider.claims())

    assert "signature" in await refusal(authenticator, foreign)
    assert "does not list" in await refusal(authenticator, unlisted)
    assert not [path for path in provider.control() if "attacker" in path]


def sign_with_any_header(key: Key, header: dict[str, Any], claims: dict[str, Any]) -> str:
    registry = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)
    full = {"alg": "ES256", "typ": "at+jwt", **header}
    return jws.serialize_compact(full, json.dumps(claims).encode(), key, registry=registry)


@pytest.mark.parametrize(
    "kid", ["../../../../dev/null", "' OR 1=1 --", "http://127.0.0.1/key", "\x00", "x" * 600, "", 7, ["key1"], {}, True]
)
@pytest.mark.full(after=6)
async def test_a_key_id_is_only_compared(kid: Any, provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    forged = f"{part({'alg': 'ES256', 'kid': kid})}.{part(provider.claims())}.{part(b'x' * 64)}"

    assert await refusal(authenticator, forged) in {
        "the token is signed with a key that the identity provider does not list",
        "the key id of the token is not valid",
    }


@pytest.mark.parametrize("name", ["crit", "b64", "zip", "enc"])
async def test_extensions_of_the_header_are_refused(
    name: str, provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    value = {"crit": ["exp"], "b64": False, "zip": "DEF", "enc": "A128GCM"}[name]
    header = {"alg": "ES256", "kid": provider.keys[0].kid, name: value}

    said = await refusal(authenticator, f"{part(header)}.{part(provider.claims())}.{part(b'x' * 64)}")

    assert f"'{name}', which this server does not support" in said


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"iss": ["x"]}, "another issuer"),
        ({"aud": "https://other.example"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": {"x": 1}}, "another audience"),
        ({"exp": 1}, "expired"),
        ({"exp": timedelta(minutes=-2)}, "expired"),
        ({"exp": None}, "no time of expiry"),
        ({"exp": "never"}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"nbf": timedelta(minutes=10)}, "not valid yet"),
        ({"iat": timedelta(minutes=10)}, "not valid yet"),
        ({"nbf": "now"}, "not a time"),
        ({"cnf": {"jkt": "x"}}, "bound to a key"),
        ({"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}, "reports an event"),
        ({"sub": None}, "needs the claim 'sub'"),
        ({"sub": ["robot"]}, "needs the claim 'sub'"),
        ({"sub": "skillery"}, "not a valid name"),
        ({"sub": "a\nb"}, "not a valid name"),
        ({"sub": " robot"}, "not a valid name"),
        ({"sub": "x" * 201}, "not a valid name"),
    ],
)
@pytest.mark.full(after=7)
async def test_a_signed_token_for_something_else(
    claims: dict[str, Any], said: str, provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    # The suite may reach this test long after its parameters were made, so a time in them is relative.
    now = int(time.time())
    given: dict[str, Any] = {
        name: now + round(value.total_seconds()) if isinstance(value, timedelta) else value
        for name, value in claims.items()
    }
    assert said in await refusal(authenticator, provider.sign(**given))


@pytest.mark.parametrize(
    ("kind", "claims"),
    [
        ("JWT", {"nonce": "n"}),
        ("JWT", {"at_hash": "h"}),
        (None, {"c_hash": "h"}),
        ("JWT", {"typ": "ID"}),
        ("JWT", {"typ": "Refresh"}),
        ("JWT", {"token_use": "id"}),
        ("id_token+jwt", {}),
        ("logout+jwt", {}),
        ("secevent+jwt", {}),
        ("dpop+jwt", {}),
        ("oauth-authz-req+jwt", {}),
    ],
)
@pytest.mark.full(after=7)
async def test_another_kind_of_token_of_the_same_issuer(
    kind: str | None, claims: dict[str, Any], provider: OidcProvider, authenticator: OidcAuthenticator
) -> None:
    """Cross-JWT confusion: the same keys sign ID tokens, logout tokens and others."""
    assert "access token" in await refusal(authenticator, provider.sign({"typ": kind}, **claims))


async def test_the_type_can_be_required(provider: OidcProvider, tmp_path: Path) -> None:
    strict = open_authenticator(settings_of(provider, require_at_jwt=True), Place(tmp_path))

    assert "type 'jwt'" in await refusal(strict, provider.sign({"typ": "JWT"}))
    assert (await strict.authenticate(bearer(provider.sign()))).name == "robot"
    await strict.close()


async def test_clocks_may_differ_a_little(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    now = int(time.time())

    for claims in ({"exp": now - 10}, {"nbf": now + 10}, {"iat": now + 10}, {"aud": ["other", provider.resource]}):
        assert (await authenticator.authenticate(bearer(provider.sign(**claims)))).name == "robot"


async def test_a_cached_token_expires(provider: OidcProvider, tmp_path: Path) -> None:
    strict = open_authenticator(settings_of(provider, skew_seconds=0), Place(tmp_path))
    assert (await strict.authenticate(bearer(provider.sign()))).name == "robot"  # reads the keys of the provider

    async def accepted() -> tuple[str, int] | None:
        """Return a token and its end, or None if the machine took longer than the token lives."""
        ends = int(time.time()) + 3
        token = provider.sign(exp=ends)
        with suppress(NotAuthenticated):
            assert (await strict.authenticate(bearer(token))).name == "robot"
            return token, ends
        return None

    token, ends = await eventually_async(accepted)
    await eventually_async(lambda: time.time() >= ends)

    assert await refusal(strict, token) == "the token has expired"
    await strict.close()


@pytest.mark.parametrize(
    "text",
    [
        "a.b.c",
        "....",
        "..",
        f"{part([])}.{part({})}.x",
        f"{part(b'{' * 5000)}.x.x",
        f"{part(b'[' * 5000)}.x.x",
        "é.é.é",
        "e30.e30.e30",
        f"{part({'alg': ['ES256']})}.e30.e30",
    ],
)
async def test_malformed_tokens_are_refused(text: str, authenticator: OidcAuthenticator) -> None:
    assert await refusal(authenticator, text)


async def test_a_huge_token(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    assert "longer than" in await refusal(authenticator, provider.sign(more="x" * 100_000))


async def test_payloads_that_are_no_claims(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    registry = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)
    header = {"alg": "ES256", "kid": provider.keys[0].kid}
    for payload in (b"[]", b"null", b"\xff", b"[" * 5000, b'{"exp": NaN}'):
        signed = jws.serialize_compact(header, payload, provider.keys[0], registry=registry)
        assert await refusal(authenticator, signed) == "the token does not contain claims"


async def test_weak_and_unfit_keys_of_the_provider_are_not_used(provider: OidcProvider, tmp_path: Path) -> None:
    """The key set has keys that must never verify a token, with the ids that the tokens name."""
    with pytest.warns(SecurityWarning):
        weak = RSAKey.generate_key(1024, {"kid": "weak", "alg": "RS256"})
    shared = OctKey.generate_key(256, {"kid": "shared", "alg": "HS256"})
    sealing = ECKey.generate_key("P-256", {"kid": "sealing", "use": "enc"})
    for_hmac = ECKey.generate_key("P-256", {"kid": "hmac", "alg": "HS256"})
    good = provider.keys[0]
    listed = [dict(key.as_dict(private=False)) for key in (weak, sealing, for_hmac, good)]
    provider.control(answers={"/jwks": {"body": json.dumps({"keys": [*listed, shared.as_dict()]})}})
    opened = open_authenticator(settings_of(provider), Place(tmp_path))

    for key in (weak, sealing, for_hmac):
        algorithm = "RS256" if key is weak else "ES256"
        assert "does not list" in await refusal(opened, provider.sign({"alg": algorithm}, key=key))
    header = {"alg": "HS256", "kid": "shared"}
    assert "not accepted" in await refusal(opened, with_hmac(shared.raw_value, header, provider.claims()))
    assert (await opened.authenticate(bearer(provider.sign()))).name == "robot"
    await opened.close()


async def test_a_token_without_a_key_id(provider: OidcProvider, authenticator: OidcAuthenticator) -> None:
    """Accepted if exactly one key fits: otherwise the server would try keys."""
    token = provider.sign({"kid": None})
    assert (await authenticator.authenticate(bearer(token))).name == "robot"

    provider.rotate(new_key(), keep=provider.keys)
    await authenticator.authenticate(bearer(provider.sign()))

    assert "does not list" in await refusal(authenticator, token)
    provider.rotate(new_key())


RULES: list[dict[str, Any]] = [
    {"claims": {"groups": "admins"}, "identity": "{sub}", "scopes": ["admin"], "namespaces": ["*"]},
    {
        "claims": {"client_id": "robot", "realm_access.roles": ["builder", "deployer"]},
        "identity": "ci-{client_id}",
        "kind": "agent",
        "scopes": ["read", "publish"],
        "namespaces": ["team.{department}.*"],
    },
    {"claims": {"verified": True, "https://x.example/team": "*"}, "identity": "{sub}", "scopes": ["review"]},
    {"claims": {"scope": "skills.run"}, "identity": "{sub}", "scopes": ["read", "run"]},
    {"claims": {"azp": "siem"}, "identity": "siem", "kind": "agent", "scopes": ["metrics", "audit"]},
]
BUILDER: dict[str, Any] = {"client_id": "robot", "realm_access": {"roles": ["x", "builder"]}, "department": "tools"}


@pytest_asyncio.fixture
async def ruled(provider: OidcProvider, tmp_path: Path) -> AsyncIterator[OidcAuthenticator]:
    opened = open_authenticator(settings_of(provider, rules=RULES), Place(tmp_path))
    yield opened
    await opened.close()


@pytest.mark.parametrize(
    ("claims", "identity"),
    [
        ({"groups": ["staff", "admins"]}, Identity("robot", "person", frozenset({"admin"}), ("*",))),
        ({"groups": "admins", **BUILDER}, Identity("robot", "person", frozenset({"admin"}), ("*",))),
        (BUILDER, Identity("ci-robot", "agent", frozenset({"read", "publish"}), ("team.tools.*",))),
        ({"verified": True, "https://x.example/team": 7}, Identity("robot", "person", frozenset({"review"}))),
        ({"scope": "other skills.run"}, Identity("robot", "person", frozenset({"read", "run"}))),
        ({"azp": "siem"}, Identity("siem", "agent", frozenset({"metrics", "audit"}))),
    ],
)
async def test_the_first_rule_that_matches_decides(
    claims: dict[str, Any], identity: Identity, provider: OidcProvider, ruled: OidcAuthenticator
) -> None:
    assert await ruled.authenticate(bearer(provider.sign(**claims))) == identity


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"groups": "admins staff"},
        {"groups": ["Admins"]},
        {"groups": {"admins": True}},
        {"verified": 1, "https://x.example/team": "x"},
        {"verified": "true", "https://x.example/team": "x"},
        {"verified": True},
        {"scope": "skills.run2"},
        {"client_id": "robot", "realm_access": "builder"},
        {"client_id": "robot", "realm_access": {"roles": "build"}},
    ],
)
async def test_no_rule_matches(claims: dict[str, Any], provider: OidcProvider, ruled: OidcAuthenticator) -> None:
    assert "no rule of this server matches" in await refusal(ruled, provider.sign(**claims))


@pytest.mark.parametrize("department", ["*", "a.b", "a.*", "", "ä", "A", 7, ["x"], None])
@pytest.mark.full(after=7)
async def test_a_claim_cannot_widen_a_namespace(
    department: Any, provider: OidcProvider, ruled: OidcAuthenticator
) -> None:
    assert "department" in await refusal(ruled, provider.sign(**{**BUILDER, "department": department}))


async def test_scopes_of_the_token_limit_those_of_the_rule(provider: OidcProvider, tmp_path: Path) -> None:
    known = {"skills.read": ["read"], "skills.run": ["read", "run"]}
    limited = open_authenticator(settings_of(provider, scopes=known), Place(tmp_path))

    async def scopes(stated: str | None) -> frozenset[str]:
        return (await limited.authenticate(bearer(provider.sign(scope=stated)))).scopes

    assert await scopes("skills.read unknown") == {"read"}
    assert await scopes("skills.read skills.run") == {"read", "run"}
    assert await scopes("unknown") == await scopes(None) == frozenset()
    await limited.close()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"issuer": "http://id.example.org"}, "issuer is 'http://id.example.org': must begin with https://"),
        ({"issuer": "id.example.org"}, "issuer is 'id.example.org': must be an address"),
        ({"resource": "https://x.example/"}, "resource is 'https://x.example/': must not end with a slash"),
        ({"resource": 'https://x.example/"x'}, "must be an address"),
        ({"algorithms": ["HS256"]}, "algorithms is 'HS256'"),
        ({"algorithms": ["ES256", "none"]}, "algorithms is 'none'"),
        ({"algorithms": []}, "algorithms is 'empty'"),
        ({"introspection": True}, "introspection needs the settings client_id and client_secret_file"),
        ({"ca_file": "/nowhere"}, "ca_file is '/nowhere': is not a file"),
        ({"rules": []}, "there are no rules"),
        ({"rules": [{"identity": ""}]}, "rule 1: 'identity' is empty"),
        ({"rules": [{"identity": "{sub}", "namespaces": ["Sales"]}]}, "'Sales' is not a namespace grant"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], said: str, provider: OidcProvider, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=re.escape(said)):
        open_authenticator(settings_of(provider, **setting), Place(tmp_path))


METADATA = "/.well-known/openid-configuration"
DOCUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "metadata": (METADATA, lambda text: {"issuer": text, "jwks_uri": text, text: text}),
    "metadata in arrays": (METADATA, lambda text: {"issuer": [text], "token_endpoint_auth_methods_supported": [*text]}),
    "keys of RSA": (
        "/jwks",
        lambda text: {"keys": [{"kty": "RSA", "kid": text, "alg": "RS256", "n": text, "e": text}]},
    ),
    "keys of EC": ("/jwks", lambda text: {"keys": [{"kty": "EC", "crv": "P-256", "x": text, "y": text, text: text}]}),
    "certificates": (
        "/jwks",
        lambda text: {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB", "x5c": [text], "use": text}]},
    ),
    "many keys": ("/jwks", lambda text: {"keys": [{"kty": "RSA", "n": one, "e": "AQAB"} for one in text]}),
}
TOKENS: dict[str, Callable[[str], str]] = {
    "token": lambda text: text,
    "header": lambda text: f"{text}.e30.e30",
    "parts": ".".join,
    "header as JSON": lambda text: f"{part({'alg': text, 'kid': text, 'typ': text, 'crit': [text]})}.e30.e30",
}


def seconds_to_answer(provider: OidcProvider, home: Path, token: str) -> float:
    """Return the least processor time of three first answers about a token."""

    async def attempt() -> float:
        opened = open_authenticator(settings_of(provider), Place(home))
        before = time.thread_time()
        with suppress(NotAuthenticated, Unavailable):
            await opened.authenticate(bearer(token))
        seconds = time.thread_time() - before
        await opened.close()
        return seconds

    return min(asyncio.run(attempt()) for _ in range(3))


@pytest.mark.full
@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_of_the_provider_cost_linear_time(document: str, provider: OidcProvider, tmp_path: Path) -> None:
    path, body = DOCUMENTS[document]

    def cost(text: str) -> float:
        provider.control(answers={path: {"body": json.dumps(body(text))}})
        return seconds_to_answer(provider, tmp_path, provider.sign())

    check_growth(cost)


@pytest.mark.full
@pytest.mark.parametrize("form", TOKENS)
def test_tokens_cost_linear_time(form: str, provider: OidcProvider, tmp_path: Path) -> None:
    check_growth(lambda text: seconds_to_answer(provider, tmp_path, TOKENS[form](text)))
