"""Checks at start: each wrong setting gives one line that names it and the remedy."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from openbao_here import READ_ONLY, Engine, Open
from skillery.errors import StartupError
from tests.support.certificates import certificate
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.openbao import OpenBao
from tests.support.processes import eventually

pytest_plugins = ["openbao_fixtures"]
HOUR = timedelta(hours=1)


def refusal(open_here: Open, **settings: Any) -> str:
    """Return the one line with which the backend refuses to start."""
    with pytest.raises(StartupError) as refused:
        asyncio.run(open_here(**settings).start())
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith("[backends.secrets.openbao]")
    return line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"address": ""}, "address: name the server"),
        ({"address": "bao.example.org"}, "address: 'bao.example.org' is not an address"),
        ({"address": "http://bao.example.org"}, "address: 'http://bao.example.org' has no encryption"),
        ({"address": "https://bao.example.org:port"}, "is not an address"),
        ({"address": "https://user:word@bao.example.org"}, "is not an address"),
        ({"mount": ""}, "mount: "),
        ({"mount": "../sys"}, "mount: "),
        ({"prefix": "a//b"}, "prefix: "),
        ({"prefix": "/a"}, "prefix: "),
        ({"namespace": "a/../b"}, "namespace: "),
        ({"namespace": "größe"}, "namespace: "),
        ({"field": ""}, "field: "),
        ({"paths": {"API-KEY": "a#b"}}, "paths: 'API-KEY' is not a name"),
        ({"paths": {"API_KEY": "#b"}}, "paths: "),
        ({"role_id": "role", "token_file": "/token"}, "token_file, role_id: set one of them"),
        ({"token_file": ""}, "token_file, role_id: set one of them"),
        ({"token_file": "/token", "secret_id_file": "/secret"}, "secret_id_file: "),
        ({"token_file": "/nowhere"}, "token_file: the file cannot be read"),
        ({"token_file": "/dev/null"}, "token_file: every user of this machine"),
        ({"role_id": "role", "secret_id_file": "/nowhere"}, "secret_id_file: the file cannot be read"),
        ({"ca_file": "/nowhere"}, "ca_file: "),
        ({"mount": "nothing-here"}, "mount: there is no engine 'nothing-here' in the root namespace, or the policy"),
        ({"auth_mount": "nothing", "role_id": "role"}, "auth_mount: OpenBao has no AppRole engine at 'auth/nothing'"),
        ({"namespace": "absent"}, "namespace: OpenBao has no namespace 'absent'"),
    ],
)
@pytest.mark.full(after=17)
def test_a_wrong_setting_is_named(open_here: Open, settings: dict[str, Any], said: str) -> None:
    assert said in refusal(open_here, **settings)


@pytest.mark.parametrize("text", ["", "two words", "größer", "x" * 9000])
def test_a_file_that_contains_no_token_is_named_and_not_shown(engine: Engine, open_here: Open, text: str) -> None:
    line = refusal(open_here, token_file=engine.write("token", text))

    assert "token_file: the file must contain one word" in line
    assert not text or text not in line


def test_a_wrong_token_is_named_and_not_shown(engine: Engine, open_here: Open) -> None:
    line = refusal(open_here, token_file=engine.token_file("s.wrong"))

    assert "token_file: OpenBao does not accept the token" in line
    assert "s.wrong" not in line


def test_a_wrong_role_is_named(engine: Engine, open_here: Open) -> None:
    role = engine.app_role()
    wrong_secret = engine.write("wrong", "not-the-secret-id")

    for settings in (role | {"role_id": "not-the-role"}, role | {"secret_id_file": wrong_secret}):
        line = refusal(open_here, **settings)
        assert "role_id, secret_id_file: OpenBao refuses the login" in line
        assert "not-the" not in line


def test_an_engine_of_version_1_is_named(bao: OpenBao, engine: Engine, open_here: Open) -> None:
    old = bao.new_engine(version=1)
    line = refusal(open_here, mount=old, token_file=engine.token_file(bao.root_token))

    assert f"mount: the engine '{old}' has version 1" in line
    assert f"bao kv enable-versioning {old}" in line


def test_an_engine_of_another_type_is_named(bao: OpenBao, engine: Engine, open_here: Open) -> None:
    line = refusal(open_here, mount="cubbyhole", token_file=engine.token_file(bao.root_token))

    assert "mount: the engine 'cubbyhole' is not of the type kv" in line


def test_a_sealed_server_is_named(proxy: FaultProxy, open_here: Open) -> None:
    proxy.faults = [Fault("", -1, status=503, body=b'{"errors":["Vault is sealed"]}')]

    assert "is sealed: unseal it" in refusal(open_here, address=proxy.url, retry_seconds=0.0)


def test_an_unavailable_server_is_named(open_here: Open) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        line = refusal(open_here, address=address, retry_seconds=0.2)

    assert f"address: {address} cannot be reached" in line


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("", -1, status=307, headers=(("location", "https://elsewhere/"),)), "address: "),
        (Fault("", -1, status=404, body=b"<html>a web page</html>"), "address: "),
        (Fault("", -1, status=200, body=b"<html>a web page</html>"), "address: "),
        (Fault("", -1, status=200, body=b"[" * 100_000), "address: "),
        (Fault("", -1, status=200, body=b"x" * 5_000_000), "address: the server answers with more than"),
        (Fault("", -1, refuse=True), "address: the connection to"),
        (Fault("", -1, seconds=2), "does not answer in time"),
        (Fault("", -1, status=200, body=b"{}" * 100, drips=True), "does not answer in time"),
        (Fault("", -1, status=429), "limits the rate of requests"),
        (Fault("", -1, status=500), "answers with status 500"),
    ],
    ids=["redirect", "404", "web page", "nested", "large", "cut", "silent", "drips", "429", "500"],
)
def test_a_server_that_is_not_openbao_is_named(proxy: FaultProxy, open_here: Open, fault: Fault, said: str) -> None:
    proxy.faults = [fault]
    timeout = 0.5 if said == "does not answer in time" else 20
    line = refusal(open_here, address=proxy.url, timeout_seconds=timeout, retry_seconds=0.0)

    assert said in line
    assert proxy.url in line or "more than" in line
    eventually(lambda: proxy.seen)  # on a loaded machine, the time may be over before the request arrives
    assert len(proxy.seen) == 1


def test_a_missing_right_to_read_is_a_warning(
    engine: Engine, open_here: Open, caplog: pytest.LogCaptureFixture
) -> None:
    policy = READ_ONLY.replace("skillery/*", "skillery/API_KEY")
    secrets = open_here(token_file=engine.token_file(engine.token(policy)))
    with caplog.at_level(logging.WARNING):
        asyncio.run(secrets.start())

    assert f"does not permit 'read' on '{engine.mount}/data/skillery/*'" in caplog.text


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls(bao: OpenBao, tmp_path: Path) -> Iterator[Any]:
    running: list[FaultProxy] = []

    def start(expires_in: timedelta) -> dict[str, Any]:
        context, file = certificate(tmp_path, expires_in)
        running.append(FaultProxy(bao.address, context))
        return {"address": running[0].url, "ca_file": str(file)}

    yield start
    running[0].close()


def test_a_private_authority_is_trusted_with_ca_file(tls: Any, engine: Engine, open_here: Open) -> None:
    engine.put("API_KEY", "over TLS")

    assert open_here(**tls(HOUR)).get("API_KEY") == "over TLS"


@pytest.mark.parametrize(
    ("expires_in", "changed", "said"),
    [(-HOUR, {}, "certificate has expired"), (HOUR, {"ca_file": ""}, "self-signed certificate")],
    ids=["expired", "unknown authority"],
)
def test_a_certificate_that_is_not_valid_is_named(
    tls: Any, open_here: Open, expires_in: timedelta, changed: dict[str, str], said: str
) -> None:
    line = refusal(open_here, **{**tls(expires_in), **changed})

    assert "address: the certificate of" in line
    assert said in line
