"""The provider rotates its keys, is slow, answers nonsense, or is gone; opaque tokens, and floods of logins."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import ipaddress
import json
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from oidc_here import SECRET, OidcProvider, bearer, new_key, refusal, settings_of, shared_provider
from skillery.backends import Credentials, Place
from skillery.errors import NotAuthenticated, StartupError, TooManyFailedLogins, Unavailable
from skillery_oidc import keys, open_authenticator
from skillery_oidc.authenticator import OidcAuthenticator
from skillery_oidc.provider import LIMITS, Metadata, Provider
from skillery_oidc.settings import OidcSettings
from tests.support.broken_line import hanging_up
from tests.support.processes import eventually_async

Open = Callable[..., Awaitable[OidcAuthenticator]]
METADATA, KEYS, ASKED = "/.well-known/openid-configuration", "/jwks", "/token/introspection"
OPAQUE = {
    "introspection": True,
    "client_id": "stranger",
    "client_secret": SECRET,
    "rules": [{"identity": "{client_id}"}],
}


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


@pytest_asyncio.fixture
async def opened(provider: OidcProvider, tmp_path: Path) -> AsyncIterator[Open]:
    """Yield `opened(…)`, which returns a started authenticator with these settings."""
    async with AsyncExitStack() as stack:

        async def open_one(**more: Any) -> OidcAuthenticator:
            one = open_authenticator(settings_of(provider, **more), Place(tmp_path))
            stack.push_async_callback(one.close)
            await one.start()
            return one

        yield open_one


async def name_of(authenticator: OidcAuthenticator, token: str) -> str:
    return (await authenticator.authenticate(bearer(token))).name


async def test_a_new_key_is_read_once_for_all_requests(provider: OidcProvider, opened: Open) -> None:
    one = await opened()
    provider.rotate(new_key("EdDSA"))
    tokens = [provider.sign(sub=f"robot{number}") for number in range(20)]
    provider.control(reset=True)

    assert await asyncio.gather(*(name_of(one, token) for token in tokens)) == [f"robot{n}" for n in range(20)]
    assert provider.control()[KEYS] == 1


async def test_repeated_unknown_keys_refresh_the_key_set_once(provider: OidcProvider, opened: Open) -> None:
    one = await opened()
    provider.control(reset=True)

    for _ in range(30):
        assert "does not list" in await refusal(one, provider.sign(key=new_key()))

    assert provider.control() == {METADATA: 1, KEYS: 1}


async def test_a_key_that_the_provider_withdraws_is_no_longer_accepted(provider: OidcProvider, opened: Open) -> None:
    """The keys are read again after `keys_seconds`, in the background. Cached tokens of the old key are forgotten."""
    one = await opened(keys_seconds=1)
    stolen = provider.sign()
    assert await name_of(one, stolen) == "robot"
    provider.rotate(new_key())

    async def is_refused() -> bool:
        try:
            await one.authenticate(bearer(provider.sign(jti=time.time())))
            await one.authenticate(bearer(stolen))
        except NotAuthenticated:
            return True
        return False

    await eventually_async(is_refused)
    assert "does not list" in await refusal(one, stolen)


@pytest.mark.parametrize("is_cached", [True, False])
async def test_the_first_login_after_a_key_was_withdrawn(is_cached: bool, provider: OidcProvider, opened: Open) -> None:
    """No login uses keys older than `keys_seconds` if the provider is available, also after an idle night."""
    one = await opened(keys_seconds=1)
    stolen = provider.sign()
    if is_cached:
        assert await name_of(one, stolen) == "robot"
    provider.rotate(new_key())
    await asyncio.sleep(1.1)  # no event: the keys are too old after `keys_seconds`

    assert "does not list" in await refusal(one, stolen)


async def test_logins_do_not_wait_for_a_provider_that_has_just_failed(
    provider: OidcProvider, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "RETRY_SECONDS", 0.0)  # so that the pause after a failed read does not hide the wait
    one = await opened(keys_seconds=1, request_seconds=600)
    await asyncio.sleep(1.1)  # no event: the keys are too old after `keys_seconds`
    provider.control(answers={"*": {"status": 503}})
    assert await name_of(one, provider.sign(jti="1")) == "robot"

    provider.control(answers={"*": {"drips": True}})
    async with asyncio.timeout(300):
        assert await name_of(one, provider.sign(jti="2")) == "robot"


async def test_cached_keys_outlast_a_provider_outage_up_to_their_limit(provider: OidcProvider, opened: Open) -> None:
    patient, strict = await opened(keys_seconds=1), await opened(keys_seconds=1, keys_kept_seconds=2)
    provider.control(answers={"*": {"status": 503}})

    async def refused() -> str | None:
        try:
            await strict.authenticate(bearer(provider.sign(jti=time.time())))
        except Unavailable as error:
            return str(error)
        return None

    assert "the identity provider is unavailable" in await eventually_async(refused)
    assert await name_of(patient, provider.sign(jti="1")) == "robot"
    assert await name_of(patient, provider.sign(jti="2")) == "robot"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({METADATA: {"status": 500}}, "answers with status 500"),
        ({METADATA: {"status": 302}}, "answers with status 302"),
        ({METADATA: {"body": "<html>"}}, "does not answer with a JSON object"),
        ({METADATA: {"body": "[]"}}, "does not answer with a JSON object"),
        ({METADATA: {"body": '{"issuer": "x"}'}}, "is no metadata of a provider"),
        ({METADATA: {"body": "x" * 2_000_000}}, "answers with more than"),
        ({METADATA: {"body": "{}", "gzip": True}}, "answers with a compressed body"),
        ({KEYS: {"status": 404}}, "answers with status 404"),
        ({KEYS: {"body": "{}"}}, "is not a key set"),
        ({KEYS: {"body": '{"keys": [{"kty": "EC", "crv'}}, "does not answer with a JSON object"),
        ({KEYS: {"body": '{"keys": [1, {"kty": "EC"}, {"kty": "RSA", "n": 1}]}'}}, "has no key for the algorithms"),
    ],
)
async def test_startup_names_the_fault_of_the_provider(
    answers: dict[str, Any], said: str, provider: OidcProvider, opened: Open
) -> None:
    provider.control(answers=answers)

    with pytest.raises(StartupError) as caught:
        await opened()

    assert said in str(caught.value)
    assert str(caught.value).startswith("[backends.authenticator.oidc]: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "member", [{"key_ops": 5}, {"key_ops": None}, {"kty": []}, {"kty": {}}, {"alg": []}, {"alg": {}}, {"use": []}]
)
async def test_a_key_that_is_not_valid_is_left_out(
    member: dict[str, Any], provider: OidcProvider, opened: Open
) -> None:
    good = dict(provider.keys[0].as_dict(private=False))
    provider.control(answers={KEYS: {"body": json.dumps({"keys": [good | {"kid": "bad"} | member, good]})}})
    one = await opened()

    assert await name_of(one, provider.sign()) == "robot"
    assert "does not list" in await refusal(one, provider.sign({"kid": "bad"}))


async def test_metadata_that_lead_away_from_tls_are_refused(provider: OidcProvider, opened: Open) -> None:
    body = f'{{"issuer": "{provider.issuer}", "jwks_uri": "http://evil.example/jwks"}}'
    provider.control(answers={METADATA: {"body": body}})

    with pytest.raises(StartupError, match="does not begin with https://"):
        await opened()


@pytest.mark.parametrize(("days", "trusted", "said"), [(-1, True, "expired"), (1, False, "verify|self.signed")])
async def test_a_certificate_that_is_not_valid_is_named(
    days: int, trusted: bool, said: str, tmp_path: Path, provider: OidcProvider
) -> None:
    certificate, key = self_signed(days)
    (tmp_path / "ca.pem").write_text(certificate)
    secure = OidcProvider(tls={"cert": certificate, "key": key})
    one = open_authenticator(settings_of(secure, ca_file=str(tmp_path / "ca.pem") if trusted else ""), Place(tmp_path))

    with pytest.raises(StartupError, match=said) as caught:
        await one.start()

    assert "its certificate is not valid" in str(caught.value)
    await one.close()
    secure.close()


async def test_a_provider_with_a_private_authority_is_accepted(tmp_path: Path, provider: OidcProvider) -> None:
    certificate, key = self_signed(1)
    (tmp_path / "ca.pem").write_text(certificate)
    secure = OidcProvider(tls={"cert": certificate, "key": key})
    one = open_authenticator(settings_of(secure, ca_file=str(tmp_path / "ca.pem")), Place(tmp_path))
    await one.start()

    assert await name_of(one, secure.sign()) == "robot"
    await one.close()
    secure.close()


def self_signed(days: int) -> tuple[str, str]:
    """Return a certificate for 127.0.0.1 that ends in so many days, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tests")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=10))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(addresses, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return built.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


async def test_an_opaque_token_is_introspected_once(provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE)
    token = provider.token("opaque")
    provider.control(reset=True)

    assert [await name_of(one, token) for _ in range(5)] == ["opaque"] * 5
    assert provider.control() == {ASKED: 1}


async def test_opaque_tokens_need_the_setting(provider: OidcProvider, opened: Open) -> None:
    one = await opened()

    assert "accepts no other tokens" in await refusal(one, provider.token("opaque"))


@pytest.mark.parametrize("wrong", [{"client_id": "unknown"}, {"client_secret": "not-the-secret"}])
async def test_a_start_names_wrong_credentials_for_introspection(
    wrong: dict[str, str], provider: OidcProvider, opened: Open
) -> None:
    with pytest.raises(StartupError) as caught:
        await opened(**OPAQUE | wrong)

    line = str(caught.value)
    assert line.startswith("[backends.authenticator.oidc]: client_id, client_secret: ")
    assert f"refuses the client '{wrong.get('client_id', 'stranger')}'" in line
    assert "not-the-secret" not in line
    assert "\n" not in line


async def test_an_opaque_token_that_the_provider_revokes(provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE, introspection_seconds=1)
    token = provider.token("opaque")
    assert await name_of(one, token) == "opaque"
    provider.http.post("/token/revocation", data={"token": token}, auth=("opaque", SECRET))

    async def is_refused() -> bool:
        try:
            await one.authenticate(bearer(token))
        except NotAuthenticated:
            return True
        return False

    await eventually_async(is_refused)

    assert "does not accept the token" in await refusal(one, token)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"active": false}', "does not accept the token"),
        ('{"active": "true"}', "does not accept the token"),
        ("{}", "does not accept the token"),
        ('{"active": true, "aud": "other", "exp": 9999999999}', "another audience"),
        ('{"active": true, "exp": 9999999999}', "another audience"),
        ('{"active": true, "aud": "RESOURCE", "exp": 1}', "expired"),
        ('{"active": true, "aud": "RESOURCE"}', "no time of expiry"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "iss": "x"}', "another issuer"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "cnf": {}}', "bound to a key"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "token_use": "refresh_token"}', "another purpose"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "token_use": "id"}', "another purpose"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "token_use": []}', "another purpose"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "token_type": "refresh_token"}', "another purpose"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "typ": "Refresh"}', "another purpose"),
        ('{"active": true, "aud": "RESOURCE", "exp": 9999999999, "typ": "Offline"}', "another purpose"),
    ],
)
@pytest.mark.full(after=7)
async def test_answers_of_an_introspection(answer: str, said: str, provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE)
    provider.control(answers={ASKED: {"body": answer.replace("RESOURCE", provider.resource)}})

    assert said in await refusal(one, "an-opaque-token")


@pytest.mark.parametrize(
    "purpose", ["", '"token_use": "access_token",', '"token_type": "Bearer", "typ": "Bearer",', '"token_type": null,']
)
async def test_an_introspection_that_states_an_access_token(purpose: str, provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE)
    answer = f'{{"active": true, {purpose} "aud": "{provider.resource}", "exp": 9999999999, "client_id": "opaque"}}'
    provider.control(answers={ASKED: {"body": answer}})

    assert await name_of(one, "an-opaque-token") == "opaque"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": 500}, "answers with status 500"),
        ({"status": 401}, "client_id, client_secret: "),
        ({"body": '{"active": true, "aud'}, "does not answer with a JSON object"),
    ],
    ids=["500", "401", "cut"],
)
async def test_an_introspection_that_fails_is_unavailable(
    answer: dict[str, Any], said: str, provider: OidcProvider, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    one = await opened(**OPAQUE)
    token = provider.token("opaque")
    provider.control(answers={ASKED: answer})

    with pytest.raises(Unavailable, match="the identity provider is unavailable") as caught:
        await one.authenticate(bearer(token))
    assert provider.issuer not in f"{caught.value.message} {caught.value.hint}"
    assert said in caplog.text
    assert token not in caplog.text

    provider.control(answers={})
    assert await name_of(one, token) == "opaque"


@pytest.mark.full
@pytest.mark.long
async def test_an_answer_that_drips_ends_at_the_time_limit(provider: OidcProvider, opened: Open) -> None:
    """The provider sends a byte in each tenth of a second, without end."""
    one = await opened(**OPAQUE, request_seconds=10, introspections_at_once=1)
    token = provider.token("opaque")
    provider.control(answers={"*": {"drips": True}})

    async with asyncio.timeout(300):
        with pytest.raises(StartupError, match="no answer in time"):
            await opened(request_seconds=10)
        with pytest.raises(Unavailable):
            await one.authenticate(bearer(token))

    provider.control(answers={})
    assert await name_of(one, token) == "opaque"


async def test_a_flood_of_logins_reaches_the_provider_in_bounds(provider: OidcProvider, opened: Open) -> None:
    """Wrong tokens of one address: some are checked, and the others are refused without asking the provider."""
    one = await opened(**OPAQUE, failures_per_minute=1)  # with more, a slow test gets another one
    good, opaque = provider.sign(client_id="robot"), provider.token("opaque")
    assert await name_of(one, opaque) == "opaque"
    provider.control(reset=True)

    async def attempt(number: int) -> type[Exception] | None:
        try:
            await one.authenticate(bearer(f"guess{number}"))
        except (NotAuthenticated, Unavailable) as error:
            return type(error)
        return None

    for number in range(8):
        await attempt(number)
    outcomes = {await attempt(number) for number in range(100, 300)}

    assert outcomes == {TooManyFailedLogins}
    assert provider.control()[ASKED] <= 8
    assert await name_of(one, good) == "robot"
    assert await name_of(one, opaque) == "opaque"


async def test_a_flood_at_once_is_bounded(provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE, introspections_at_once=2)
    provider.control(reset=True)

    async def attempt(number: int) -> str:
        try:
            await one.authenticate(bearer(f"guess{number}"))
        except (NotAuthenticated, Unavailable) as error:
            return error.type
        return ""

    outcomes = await asyncio.gather(*(attempt(number) for number in range(300)))

    assert set(outcomes) == {"not_authenticated", "unavailable"}
    assert provider.control()[ASKED] <= 100


async def test_a_refused_opaque_token_is_introspected_once(
    provider: OidcProvider, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skillery_oidc.authenticator.REFUSED_SECONDS", 300)
    one = await opened(**OPAQUE)
    provider.control(reset=True)

    for _ in range(10):
        assert "does not accept" in await refusal(one, "wrong")

    assert provider.control() == {ASKED: 1}


class Headers(dict[str, str]):
    """Headers of a request. Unlike a plain dict, a test can see whether they are still in memory."""


@pytest.mark.parametrize("token", ["wrong", "a.b.c", "x" * 20_000])
async def test_the_request_of_a_refused_token_is_not_kept(token: str, provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE)
    headers = Headers({"authorization": f"Bearer {token}", "cookie": "x" * 40_000})
    seen = weakref.ref(headers)
    with contextlib.suppress(NotAuthenticated):
        await one.authenticate(Credentials(headers, "192.0.2.1"))

    del headers
    gc.collect()

    assert seen() is None


@pytest.mark.parametrize("dots", [0, 2])
async def test_a_token_that_is_too_long_is_a_failed_login(dots: int, provider: OidcProvider, opened: Open) -> None:
    one = await opened(**OPAQUE, failures_per_minute=1)
    token = "." * dots + "x" * 16_385
    provider.control(reset=True)

    assert await refusal(one, token) == "the token is longer than 16384 characters"
    with pytest.raises(TooManyFailedLogins):
        await one.authenticate(bearer(token))
    assert ASKED not in provider.control()


async def test_a_connection_that_the_provider_may_close_is_not_used_again() -> None:
    with hanging_up(b'{"keys": []}') as url:
        provider = Provider(OidcSettings(issuer=url, resource=url, rules=()))
        metadata = Metadata(issuer=url, jwks_uri=url)
        assert await provider.read_keys(metadata) == []
        assert LIMITS.keepalive_expiry is not None
        await asyncio.sleep(LIMITS.keepalive_expiry + 0.1)  # no event: the client looks at the clock
        assert await provider.read_keys(metadata) == []
        await provider.close()
