"""A real Skillery server whose skills read secrets from OpenBao: rotation, outages, revoked tokens, commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from openbao_here import READ_ONLY, Engine
from tests.cli.test_cli import Ended, skillery
from tests.conftest import NO_SANDBOX_PROBES, Rpc, Server, manifest, skill_files
from tests.support.openbao import OpenBao
from tests.support.processes import eventually

pytest_plugins = ["openbao_fixtures"]
VALUE = "the-value-4711"
SHOW = "import os\ndef main(args):\n    return os.environ['API_KEY'][::-1]\n"
Command = Callable[..., Ended]


def environment(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the backend as variables."""
    named = {f"SKILLERY_BACKENDS_SECRETS_OPENBAO_{name.upper()}": str(value) for name, value in settings.items()}
    return {"SKILLERY_SECRETS": "openbao", **named}


class Served(NamedTuple):
    """A server with a skill `acme.mail` that returns its secret API_KEY reversed, and the engine of its secrets."""

    engine: Engine
    server: Server


@contextmanager
def served_by(bao: OpenBao, folder: Path, login: Callable[[Engine], dict[str, str]]) -> Iterator[Served]:
    engine = Engine(bao, folder)
    settings = engine.settings(read_only=True, retry_seconds=0.5, **login(engine))
    server = Server(folder / "home", env=environment(settings))
    try:
        made = manifest("acme.mail", "1.0.0", permissions={"secrets": ["API_KEY"]})
        server.rpc("create_skill", manifest=made, skill_md="# Mail\n", files=skill_files(SHOW))
        command(server.home, settings)("grant", "API_KEY", "acme.mail")
        yield Served(engine, server)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def shared(bao: OpenBao, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with served_by(bao, folder, lambda engine: {"token_file": engine.token_file()}) as served:
        yield served


@pytest.fixture
def served(shared: Served) -> Served:
    """Return a server that reads its token from a file. The token is new, and the secret has its first value."""
    shared.engine.token_file(shared.engine.token(READ_ONLY))
    shared.engine.put("API_KEY", VALUE)
    return shared


def command(home: Path, settings: dict[str, Any]) -> Command:
    """Return `skillery secret …` on a home."""

    def call(*arguments: str, value: str | None = None) -> Ended:
        stdin = ("--value-from-stdin",) if value is not None else ()
        sent = (value or "").encode()
        return skillery("secret", *arguments, *stdin, "--home", str(home), stdin=sent, **environment(settings))

    return call


def value_in(rpc: Rpc) -> str:
    """Return the value that the skill sees. The skill reverses the value, so that the server does not redact it."""
    answer = rpc("execute_skill", name="acme.mail", args={})
    assert answer["status"] == "completed", answer
    return str(answer["output"][::-1])


def failure_in(rpc: Rpc) -> tuple[str, str]:
    answer = rpc("execute_skill", name="acme.mail", args={})
    assert answer["status"] == "failed", answer
    return answer["error"]["type"], answer["error"]["message"]


def assert_recovers(rpc: Rpc) -> None:
    """Check that runs get the value again, without a restart."""

    def completed() -> dict[str, Any] | None:
        answer: dict[str, Any] = rpc("execute_skill", name="acme.mail", args={})
        return answer if answer["status"] == "completed" else None

    assert eventually(completed)["output"][::-1] == VALUE


def assert_unavailable(server: Server, engine: Engine) -> None:
    """Check that a run fails in-band, without an address or a path of the host."""
    kind, message = failure_in(server.rpc)

    assert (kind, message) == ("SecretUnavailable", "the secret 'API_KEY' cannot be read now")
    log = server.log.read_text()
    assert "[backends.secrets.openbao]" in log
    assert VALUE not in log
    assert engine.bao.root_token not in log


def test_each_run_reads_the_newest_value(served: Served) -> None:
    engine, server = served
    token = engine.token(READ_ONLY)
    engine.token_file(token)

    assert value_in(server.rpc) == VALUE
    engine.put("API_KEY", "rotated")
    assert value_in(server.rpc) == "rotated"
    engine.delete("skillery/API_KEY")
    assert failure_in(server.rpc)[0] == "SecretMissing"
    stored = [path for path in server.home.rglob("*") if path.is_file()]
    assert stored
    everything = b"".join(path.read_bytes() for path in (*stored, server.log))
    assert all(text.encode() not in everything for text in (VALUE, "rotated", token))


@pytest.mark.full
def test_runs_fail_while_openbao_is_sealed_or_unavailable_and_recover(served: Served) -> None:
    engine, server = served
    assert value_in(server.rpc) == VALUE
    engine.bao.seal()
    try:
        assert_unavailable(server, engine)
    finally:
        engine.bao.unseal()
    assert_recovers(server.rpc)
    engine.bao.stop()
    try:
        assert_unavailable(server, engine)
        assert server.rpc("run_code", language="python", code="def main(args): return 1")["status"] == "completed"
    finally:
        engine.bao.start()
    assert_recovers(server.rpc)
    log = server.log.read_text()
    assert "is sealed: unseal it" in log
    assert "cannot be reached" in log


@pytest.mark.full
def test_login_replaces_a_revoked_token_and_shutdown_revokes_the_new_token(bao: OpenBao, tmp_path: Path) -> None:
    role: dict[str, str] = {}
    with served_by(bao, tmp_path, lambda engine: role.update(engine.app_role()) or role) as (engine, server):
        engine.put("API_KEY", VALUE)
        engine.revoke_all(role["auth_mount"])

        assert value_in(server.rpc) == VALUE
        assert engine.count_tokens(role["auth_mount"]) == 1
    assert engine.count_tokens(role["auth_mount"]) == 0


def test_a_revoked_token_of_a_file_is_unavailable_until_the_file_changes(served: Served) -> None:
    engine, server = served
    token = engine.token(READ_ONLY)
    engine.token_file(token)
    assert value_in(server.rpc) == VALUE
    engine.bao.ask("POST", "auth/token/revoke", {"token": token})

    assert_unavailable(server, engine)
    assert "token_file: OpenBao does not accept the token" in server.log.read_text()
    engine.token_file(engine.token(READ_ONLY))
    assert value_in(server.rpc) == VALUE


# -- commands ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_commands_change_secrets_if_the_setting_allows_it(engine: Engine, tmp_path: Path) -> None:
    role = engine.app_role()
    secret = command(tmp_path / "home", engine.settings(**role))
    assert secret("set", "API_KEY", value=VALUE).code == 0
    listed = secret("list", "--json").json["secrets"]

    assert engine.read("skillery/API_KEY") == {"value": VALUE}
    assert [(one["name"], one["has_value"]) for one in listed] == [("API_KEY", True)]
    assert secret("rm", "API_KEY").code == 0
    assert secret("list", "--json").json["secrets"] == []
    assert engine.count_tokens(role["auth_mount"]) == 0, "each command revokes its token"


@pytest.mark.full
def test_read_only_secrets_refuse_writes_and_name_the_bao_command(engine: Engine, tmp_path: Path) -> None:
    secret = command(tmp_path / "home", engine.settings(read_only=True))
    refused = secret("set", "API_KEY", value=VALUE)

    assert refused.code == 3
    assert f"bao kv put -mount={engine.mount} skillery/API_KEY value=-" in refused.err
    assert VALUE not in refused.err
    assert secret("rm", "API_KEY").code == 3
    assert secret("list").code == 0


@pytest.mark.full
def test_grants_are_revoked_while_openbao_is_unavailable(engine: Engine, tmp_path: Path) -> None:
    secret = command(tmp_path / "home", engine.settings())
    secret("grant", "API_KEY", "acme.mail")
    unavailable = command(tmp_path / "home", engine.settings(address="http://127.0.0.1:9", retry_seconds=0.0))

    assert unavailable("revoke", "API_KEY", "acme.mail").code == 0
    listed = unavailable("list")
    assert listed.code != 0
    assert "127.0.0.1:9 cannot be reached" in listed.err


# -- start and doctor --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_wrong_token_stops_the_start_and_the_doctor_names_it(engine: Engine, tmp_path: Path) -> None:
    env = environment(engine.settings(token_file=engine.token_file("s.wrong")))
    refused = skillery("serve", "--home", str(tmp_path / "home"), "--port", "0", **env)
    doctor = skillery("doctor", "--json", "--home", str(tmp_path / "home"), **env, **NO_SANDBOX_PROBES)
    probe = next(probe for probe in doctor.json["probes"] if probe["name"] == "secrets")

    assert refused.code != 0
    assert "token_file: OpenBao does not accept the token" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    assert (doctor.code != 0, probe["ok"]) == (True, False)
    assert "token_file: OpenBao does not accept the token" in probe["detail"]
    assert "s.wrong" not in refused.err + doctor.out + doctor.err


@pytest.mark.smoke
def test_the_doctor_accepts_a_server_that_works(engine: Engine, tmp_path: Path) -> None:
    role = engine.app_role()
    env = environment(engine.settings(**role))
    doctor = skillery("doctor", "--json", "--home", str(tmp_path / "home"), **env, **NO_SANDBOX_PROBES)
    probes = {probe["name"]: probe for probe in doctor.json["probes"]}

    assert (probes["secrets"]["ok"], probes["secrets"]["detail"]) == (True, "openbao")
    assert engine.count_tokens(role["auth_mount"]) == 0
