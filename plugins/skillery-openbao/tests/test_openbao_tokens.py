"""Tokens: renewed before they end, replaced when they have ended, read again from a changed file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from openbao_here import Engine, Open, get_when_available
from skillery.errors import Unavailable
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.openbao import OpenBao
from tests.support.processes import eventually

pytest_plugins = ["openbao_fixtures"]
VALUE = "the-value-4711"


@contextmanager
def two_proxies(bao: OpenBao) -> Iterator[tuple[FaultProxy, FaultProxy]]:
    proxies = FaultProxy(bao.address), FaultProxy(bao.address)
    yield proxies
    for proxy in proxies:
        proxy.close()


def logins_of(proxy: FaultProxy) -> int:
    return sum("/login" in line for line in proxy.seen)


def wait_for(proxy: FaultProxy, request: str, times: int) -> None:
    """Wait until the backend has sent a request this many times."""
    eventually(lambda: sum(request in line for line in tuple(proxy.seen)) >= times, problem=lambda: proxy.seen)


@pytest.mark.full
def test_a_token_is_renewed_before_it_ends(engine: Engine, bao: OpenBao, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    with two_proxies(bao) as proxies:
        file = {"token_file": engine.token_file(engine.token(ttl="15s"))}
        for proxy, login in zip(proxies, (file, engine.app_role(token_ttl="15s")), strict=True):
            asyncio.run(open_here(address=proxy.url, **login).start())
        for proxy in proxies:
            wait_for(proxy, "renew-self", 2)

        assert [logins_of(proxy) for proxy in proxies] == [0, 1]


def test_a_token_that_cannot_live_longer_is_replaced(engine: Engine, bao: OpenBao, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    with two_proxies(bao) as proxies:
        for proxy, kind in zip(proxies, ("service", "batch"), strict=True):
            role = engine.app_role(token_ttl="1s", token_max_ttl="2s", token_type=kind)
            asyncio.run(open_here(address=proxy.url, **role).start())
        for proxy in proxies:
            wait_for(proxy, "/login", 2)


def test_a_command_logs_in_again_when_its_token_has_ended(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    secrets = open_here(address=proxy.url, **engine.app_role(token_num_uses=2))

    assert [secrets.get("API_KEY") for _ in range(5)] == [VALUE] * 5
    assert logins_of(proxy) == 3


def test_a_denied_read_is_not_a_new_login(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    secrets = open_here(address=proxy.url, **engine.app_role('path "other/*" {{ capabilities = ["read"] }}'))
    for _ in range(3):
        with pytest.raises(Unavailable):
            secrets.get("API_KEY")

    assert logins_of(proxy) == 1


def test_a_token_file_that_changes_is_read_again(engine: Engine, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    first, second = engine.token(), engine.token()
    secrets = open_here(token_file=engine.token_file(first))
    assert secrets.get("API_KEY") == VALUE
    engine.bao.ask("POST", "auth/token/revoke", {"token": first})

    with pytest.raises(Unavailable):
        secrets.get("API_KEY")
    engine.token_file(second)
    assert secrets.get("API_KEY") == VALUE


def test_a_renewal_that_fails_is_repeated(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    secrets = open_here(address=proxy.url, retry_seconds=0.0, **engine.app_role(token_ttl="5s"))
    asyncio.run(secrets.start())
    proxy.faults = [Fault("renew-self", 1, status=500), Fault("renew-self", 1, seconds=0.5)]
    wait_for(proxy, "renew-self", 2)
    engine.put("API_KEY", VALUE)

    assert get_when_available(secrets, "API_KEY") == VALUE


def test_a_secret_id_that_changes_is_used_at_the_next_login(engine: Engine, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    role = engine.app_role(secret_id_num_uses=1)
    secrets = open_here(**role)
    assert secrets.get("API_KEY") == VALUE
    engine.revoke_all(role["auth_mount"])
    with pytest.raises(Unavailable):
        secrets.get("API_KEY")
    engine.new_secret_id(role["auth_mount"])

    assert secrets.get("API_KEY") == VALUE


def test_a_token_of_a_file_is_never_revoked(engine: Engine, open_here: Open) -> None:
    engine.put("API_KEY", VALUE)
    file = engine.token_file()
    for _ in range(2):
        secrets = open_here(token_file=file)
        assert secrets.get("API_KEY") == VALUE
        asyncio.run(secrets.close())


def test_nothing_that_is_printed_shows_a_token(
    engine: Engine, open_here: Open, caplog: pytest.LogCaptureFixture
) -> None:
    token = engine.token()
    caplog.set_level("DEBUG")
    secrets = open_here(token_file=engine.token_file(token))
    asyncio.run(secrets.start())

    assert token not in f"{secrets!r} {vars(secrets)} {vars(secrets._connection.session)} {caplog.text}"
