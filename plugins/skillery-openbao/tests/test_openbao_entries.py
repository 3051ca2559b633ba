"""Entries of OpenBao: fields, paths, deleted versions, changes by others, namespaces."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from openbao_here import ALL_RIGHTS, READ_ONLY, Engine, Open
from skillery.errors import InvalidParams, NotAllowed, StartupError, Unavailable
from tests.support.fault_proxy import FaultProxy
from tests.support.openbao import BAO, OpenBao

pytest_plugins = ["openbao_fixtures"]
VALUE = "the-value-4711"
KV_COMMAND = 'path "{mount}/data/team/*" {{ capabilities = ["read", "update", "patch"] }}'
"""The right that `bao kv patch` needs."""


def test_a_path_of_the_settings_names_an_entry_and_a_field(engine: Engine, open_here: Open) -> None:
    engine.put_entry("team/mail", {"password": VALUE, "user": "ann"})
    engine.put("OTHER", "other")
    secrets = open_here(paths={"MAIL_PASSWORD": "team/mail#password", "NOTHING": "team/nothing"})

    assert secrets.get("MAIL_PASSWORD") == VALUE
    assert secrets.get("NOTHING") is None
    assert secrets.names() == ["MAIL_PASSWORD", "OTHER"]


def test_entries_may_be_at_the_top_of_the_engine_with_another_field(engine: Engine, open_here: Open) -> None:
    secrets = open_here(prefix="", field="key", **engine.app_role())
    secrets.set("API_KEY", VALUE)
    engine.put_entry("folder/OTHER", {"key": VALUE})

    assert engine.read("API_KEY") == {"key": VALUE}
    assert (secrets.get("API_KEY"), secrets.names()) == (VALUE, ["API_KEY"])


def test_other_fields_of_an_entry_are_kept(engine: Engine, open_here: Open) -> None:
    engine.put_entry("team/mail", {"password": "old", "user": "ann"})
    secrets = open_here(paths={"MAIL_PASSWORD": "team/mail#password"})
    secrets.set("MAIL_PASSWORD", VALUE)
    assert engine.read("team/mail") == {"password": VALUE, "user": "ann"}

    assert secrets.remove("MAIL_PASSWORD") is True
    assert engine.read("team/mail") == {"user": "ann"}
    assert secrets.remove("MAIL_PASSWORD") is False


def test_a_change_by_another_program_is_not_overwritten(engine: Engine, proxy: FaultProxy, open_here: Open) -> None:
    engine.put("API_KEY", "first", owner="ann")
    changes = iter(["bob"])

    def change(line: str) -> None:
        if line.startswith("POST") and (owner := next(changes, "")):
            engine.put("API_KEY", "second", owner=owner)

    proxy.on_request = change
    open_here(address=proxy.url).set("API_KEY", VALUE)

    assert engine.read("skillery/API_KEY") == {"value": VALUE, "owner": "bob"}


def test_a_deleted_entry_has_no_value_and_can_be_set_again(engine: Engine, open_here: Open) -> None:
    secrets = open_here()
    engine.put("API_KEY", "first")
    engine.delete("skillery/API_KEY")
    assert (secrets.get("API_KEY"), secrets.names()) == (None, [])
    secrets.set("API_KEY", VALUE)

    assert secrets.get("API_KEY") == VALUE


def test_folders_and_other_names_are_no_secrets(engine: Engine, open_here: Open) -> None:
    secrets = open_here()
    engine.put("API_KEY", VALUE)
    engine.put("not-a-name", VALUE)
    engine.put("folder/API_KEY", VALUE)
    engine.put_entry("skillery/NO_FIELD", {"other": VALUE})
    engine.put("EMPTY", "")

    assert secrets.names() == ["API_KEY"]
    assert secrets.get("EMPTY") is None


@pytest.mark.parametrize("name", ["../sys", "..", "", "a/b", "API_KEY?x=1", "API-KEY", "A" * 129, "größer"])
def test_a_name_never_leads_to_another_path(engine: Engine, proxy: FaultProxy, open_here: Open, name: str) -> None:
    secrets = open_here(address=proxy.url)

    assert secrets.get(name) is None
    assert secrets.remove(name) is False
    with pytest.raises(InvalidParams):
        secrets.set(name, VALUE)
    assert proxy.seen == []


@pytest.mark.parametrize(
    "value", [17, True, ["x"], {"x": 1}, "with\0nul", "x" * 65_537], ids=["int", "bool", "list", "dict", "NUL", "long"]
)
def test_a_value_that_is_no_variable_is_unavailable_and_not_shown(
    engine: Engine, open_here: Open, caplog: pytest.LogCaptureFixture, value: Any
) -> None:
    engine.put_entry("skillery/API_KEY", {"value": value})

    with pytest.raises(Unavailable, match="'API_KEY' cannot be read now"):
        open_here().get("API_KEY")
    assert "[backends.secrets.openbao] field: " in caplog.text
    assert str(value) not in caplog.text or value is True


def test_a_policy_for_a_single_entry_is_enough_to_read_it(
    engine: Engine, open_here: Open, caplog: pytest.LogCaptureFixture
) -> None:
    engine.put("API_KEY", VALUE)
    engine.put("OTHER", VALUE)
    policy = 'path "{mount}/data/skillery/API_KEY" {{ capabilities = ["read"] }}'
    secrets = open_here(token_file=engine.token_file(engine.token(policy)))

    assert secrets.get("API_KEY") == VALUE
    with pytest.raises(Unavailable):
        secrets.get("OTHER")
    assert f"the policy of the token must permit 'read' on '{engine.mount}/data/skillery/OTHER'" in caplog.text
    with pytest.raises(Unavailable):
        secrets.names()
    assert f"the policy of the token must permit 'list' on '{engine.mount}/metadata/skillery'" in caplog.text


def test_a_missing_engine_is_no_missing_secret(
    bao: OpenBao, engine: Engine, open_here: Open, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = open_here(token_file=engine.token_file(bao.root_token))
    bao.ask("DELETE", f"sys/mounts/{engine.mount}")

    with pytest.raises(Unavailable):
        secrets.get("API_KEY")
    assert f"mount: OpenBao has no engine '{engine.mount}'" in caplog.text


@pytest.mark.parametrize("paths", [{}, {"API_KEY": "team/mail#password"}], ids=["prefix", "paths"])
def test_the_command_of_the_hint_sets_the_value(engine: Engine, open_here: Open, paths: dict[str, str]) -> None:
    engine.put_entry("team/mail", {"user": "ann"})
    secrets = open_here(read_only=True, paths=paths)
    with pytest.raises(NotAllowed) as refused:
        secrets.set("API_KEY", VALUE)
    program, *arguments = shlex.split(str(refused.value.hint).removeprefix("Run there: "))
    assert program == "bao"
    environment = {"BAO_ADDR": engine.bao.address, "BAO_TOKEN": engine.token(ALL_RIGHTS + KV_COMMAND)}
    subprocess.run([BAO, *arguments], check=True, capture_output=True, input=VALUE.encode(), env=environment)

    assert secrets.get("API_KEY") == VALUE
    assert engine.read("team/mail")["user"] == "ann"


# -- namespaces --------------------------------------------------------------------------------------------------


@pytest.fixture
def team(bao: OpenBao, tmp_path: Path) -> Engine:
    """Return an engine in a new namespace."""
    name = f"team-{tmp_path.name.replace('_', '-')}"
    bao.ask("POST", f"sys/namespaces/{name}", {})
    return Engine(bao, tmp_path, name)


@pytest.mark.parametrize("kind", ["file", "AppRole"])
def test_a_namespace_has_its_own_engine_and_login(team: Engine, open_here: Open, kind: str) -> None:
    team.put("API_KEY", VALUE)
    login = {"token_file": team.token_file()} if kind == "file" else team.app_role(READ_ONLY)
    secrets = open_here(**team.settings(read_only=True, **login))
    asyncio.run(secrets.start())

    assert secrets.get("API_KEY") == VALUE
    assert secrets.names() == ["API_KEY"]
    with pytest.raises(NotAllowed) as refused:
        secrets.set("API_KEY", "new")
    assert f"-namespace={team.namespace} -mount={team.mount}" in str(refused.value.hint)


def test_a_login_of_the_root_namespace_reads_an_engine_in_another(
    bao: OpenBao, engine: Engine, team: Engine, open_here: Open
) -> None:
    team.put("API_KEY", VALUE)
    mount = f"{team.namespace}/{team.mount}"
    token = bao.new_token(bao.new_policy(READ_ONLY.format(mount=mount)))
    secrets = open_here(mount=mount, token_file=engine.token_file(token))
    asyncio.run(secrets.start())

    assert secrets.get("API_KEY") == VALUE


def test_a_token_of_another_namespace_is_refused(engine: Engine, team: Engine, open_here: Open) -> None:
    token = team.token_file()

    with pytest.raises(StartupError, match="in the root namespace, or the policy permits nothing"):
        asyncio.run(open_here(token_file=token).start())
