"""Secrets for admins and callers: the command line next to a running server, and the runs of skills."""

from __future__ import annotations

import base64
import json
import os
import pty
import sqlite3
import subprocess
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.cli.test_cli import Ended, skillery
from tests.conftest import NO_SANDBOX_PROBES, ON_SQLITE, Rpc, Server, clean_environment, manifest, skill_files
from tests.support.prefork import FORKED

VALUE = "tok/en+of-a kind_4711"
SHOW = "import os\ndef main(args):\n    return os.environ.get(args['name'], 'nothing')[::-1]\n"
Command = Callable[..., Ended]


@pytest.fixture
def secret(server: Server, database_url: str) -> Command:
    """Return `skillery secret …` on the home and the database of the running server."""

    def call(*arguments: str, value: str | None = None) -> Ended:
        stdin = ("--value-from-stdin",) if value is not None else ()
        more = {"SKILLERY_DATABASE": database_url}
        home = ("--home", str(server.home))
        return skillery("secret", *arguments, *stdin, *home, stdin=(value or "").encode(), **more)

    return call


@pytest.fixture
def name() -> str:
    """Return the name of a secret that no other test uses."""
    return f"S{os.urandom(6).hex()}"


def publish_with(rpc: Rpc, skill: str, secrets: list[str], code: str = SHOW, version: str = "1.0.0") -> None:
    made = manifest(skill, version, permissions={"secrets": secrets})
    rpc("create_skill", manifest=made, skill_md=f"# {skill}\n", files=skill_files(code))


def backwards(rpc: Rpc, skill: str, name: str, **more: Any) -> Any:
    """Return the value that the skill sees, or None. The skill returns it reversed, so that it is not redacted."""
    answer = rpc("execute_skill", name=skill, args={"name": name}, **more)
    assert answer["status"] == "completed", answer
    return None if answer["output"] == "gnihton" else answer["output"][::-1]


def refused(rpc: Rpc, skill: str, **args: Any) -> tuple[str, str]:
    answer = rpc("execute_skill", name=skill, args=args)
    assert answer["status"] == "failed", answer
    return answer["error"]["type"], answer["error"]["message"]


# -- secrets of a run ------------------------------------------------------------------------------------------------


def test_a_granted_secret_is_a_variable_of_the_run(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, f"{new_name}.mail", [name])
    secret("set", name, value=VALUE + "\n")
    secret("grant", name, f"{new_name}.mail")

    assert backwards(rpc, f"{new_name}.mail", name) == VALUE


def test_secret_grant_warns_of_a_missing_secret_or_skill(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    early = secret("grant", name, f"{new_name}.mail")
    assert early.code == 0
    assert f"secret '{name}' has no value" in early.err
    assert f"no skill matches '{new_name}.mail'" in early.err

    publish_with(rpc, f"{new_name}.mail", [name])
    secret("set", name, value=VALUE)
    for grantee in (f"{new_name}.mail", f"{new_name}.*"):
        assert "warning" not in secret("grant", name, grantee).err


@pytest.mark.parametrize("grantee", ["{ns}.*", "{ns}.a.*"])
@pytest.mark.full(after=1)
def test_a_namespace_can_be_granted_a_secret(rpc: Rpc, secret: Command, new_name: str, name: str, grantee: str) -> None:
    publish_with(rpc, f"{new_name}.a.mail", [name])
    secret("set", name, value=VALUE)
    secret("grant", name, grantee.format(ns=new_name))

    assert backwards(rpc, f"{new_name}.a.mail", name) == VALUE


@pytest.mark.smoke
def test_a_grant_to_a_look_alike_is_no_grant(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, f"{new_name}.a.mail", [name])
    secret("set", name, value=VALUE)
    for grantee in ("{ns}x.*", "{ns}.a.mail.*", "{ns}.a.mai", "{ns}.a", "{ns}.a.mail2", "{ns}.b.*"):
        assert secret("grant", name, grantee.format(ns=new_name)).code == 0

    assert refused(rpc, f"{new_name}.a.mail", name=name)[0] == "SecretNotGranted"


@ON_SQLITE
def test_a_missing_grant_is_a_failed_run_that_names_the_command(
    rpc: Rpc, secret: Command, new_name: str, name: str
) -> None:
    publish_with(rpc, new_name, [name], code="print('ran')\n" + SHOW)
    secret("set", name, value=VALUE)

    answer = rpc("execute_skill", name=new_name, args={"name": name})

    assert answer["status"] == "failed"
    assert answer["error"]["type"] == "SecretNotGranted"
    assert f"skillery secret grant {name} {new_name}" in answer["error"]["message"]
    assert name in answer["summary"]
    assert answer["logs_preview"] == ""


def test_a_missing_value_is_reported_only_after_the_grant(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, new_name, [name, f"{name}_2"])
    assert refused(rpc, new_name, name=name)[0] == "SecretNotGranted"

    secret("grant", name, new_name)
    type_, message = refused(rpc, new_name, name=name)
    assert type_ == "SecretNotGranted"
    assert f"'{name}_2'" in message
    assert f"'{name}'" not in message

    secret("grant", f"{name}_2", new_name)
    type_, message = refused(rpc, new_name, name=name)
    assert type_ == "SecretMissing"
    assert f"skillery secret set {name}" in message


@pytest.mark.smoke
def test_skill_gets_only_its_declared_secrets(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    code = "import os\ndef main(args):\n    return sorted(os.environ)\n"
    publish_with(rpc, f"{new_name}.one", [name], code=code)
    publish_with(rpc, f"{new_name}.none", [], code=code)
    for one in (name, f"{name}_2"):
        secret("set", one, value=VALUE)
        secret("grant", one, f"{new_name}.*")

    with_it = rpc("execute_skill", name=f"{new_name}.one")["output"]
    without = rpc("execute_skill", name=f"{new_name}.none")["output"]

    assert set(with_it) - set(without) == {name}
    assert set(without) >= {"PATH", "HOME"}


def test_run_code_gets_no_secret_whatever_it_mounts(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, f"{new_name}.mail", [name])
    secret("set", name, value=VALUE)
    secret("grant", name, f"{new_name}.*")
    code = "import os\ndef main(args):\n    return sorted(os.environ)\n"

    answer = rpc("run_code", language="python", code=code, mount_skills=[f"{new_name}.mail"])

    assert answer["status"] == "completed"
    assert name not in answer["output"]


@pytest.mark.full
def test_a_revoked_grant_and_a_new_value_count_from_the_next_run(
    rpc: Rpc, secret: Command, new_name: str, name: str
) -> None:
    publish_with(rpc, new_name, [name])
    secret("set", name, value="the first one")
    secret("grant", name, new_name)
    assert backwards(rpc, new_name, name) == "the first one"

    secret("set", name, value="the second one")
    assert backwards(rpc, new_name, name) == "the second one"

    assert secret("revoke", name, new_name).code == 0
    assert refused(rpc, new_name, name=name)[0] == "SecretNotGranted"


def test_a_removed_secret_takes_its_grants_along(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, new_name, [name])
    secret("set", name, value=VALUE)
    secret("grant", name, new_name)

    assert secret("rm", name, "--json").json == {"name": name, "removed": True, "grants_revoked": 1}
    secret("set", name, value="somebody else's")

    assert refused(rpc, new_name, name=name)[0] == "SecretNotGranted"


@ON_SQLITE
def test_several_lines_and_other_characters_arrive_as_they_are(
    rpc: Rpc, secret: Command, new_name: str, name: str
) -> None:
    value = "-----BEGIN KEY-----\nAbC/+=\n\n-----END KEY-----\nGröße 😀 '\"\\$(x)"
    publish_with(rpc, new_name, [name])
    secret("set", name, value=value + "\r\n")
    secret("grant", name, new_name)

    assert backwards(rpc, new_name, name) == value


@pytest.mark.parametrize("reserved", ["PATH", "ld_preload", "PYTHONPATH", "https_proxy", "SKILLERY_HOME", "LC_ALL"])
def test_reserved_secret_names_are_refused_at_publish(rpc: Rpc, new_name: str, reserved: str) -> None:
    made = manifest(new_name, permissions={"secrets": [reserved]})

    error = rpc.error("create_skill", manifest=made, skill_md="# A\n", files=skill_files())

    assert error["code"] == -32602
    assert error["data"]["problems"][0]["path"] == "permissions.secrets[0]"
    assert "reserved" in error["data"]["problems"][0]["message"]


# -- redaction in a whole run ----------------------------------------------------------------------------------------

LEAKY = """
import base64, json, os, sys, urllib.parse
import runtime

def main(args):
    value = os.environ[args["name"]]
    print("plain", value)
    print("json", json.dumps({"k": value}))
    print("url", urllib.parse.quote(value, safe=""))
    print("basic", base64.b64encode(b"user:" + value.encode()).decode())
    print("error", value, file=sys.stderr)
    runtime.log.info(f"log {value}")
    runtime.summary(f"used {value}")
    if args.get("fail"):
        raise RuntimeError(f"401 for {value}")
    return {"key": value, value: [f"Bearer {value}", 1], "rest": "x" * args.get("more", 0)}
"""


def every_form(value: str) -> list[bytes]:
    forms = [
        value,
        quote(value, safe=""),
        json.dumps(value)[1:-1],
        base64.b64encode(b"user:" + value.encode()).decode(),
    ]
    return [form.encode() for form in forms]


@ON_SQLITE
@pytest.mark.parametrize("more", [0, 10_000])
def test_values_are_redacted_from_whatever_a_run_says(
    rpc: Rpc, secret: Command, new_name: str, name: str, more: int
) -> None:
    publish_with(rpc, new_name, [name], code=LEAKY)
    secret("set", name, value=VALUE)
    secret("grant", name, new_name)

    answer = rpc("execute_skill", name=new_name, args={"name": name, "more": more})

    assert answer["status"] == "completed"
    assert [form for form in every_form(VALUE) if form in json.dumps(answer).encode()] == []
    assert answer["summary"] == f"used [{name}]"
    assert f"plain [{name}]\n" in answer["logs_preview"]
    output = answer["output"]
    if more:
        assert output["preview"].startswith('{"key":"[')
        output = json.loads(rpc("read_blob", blob_id=output["blob_id"], mode="full")["content"])
    assert output == {"key": f"[{name}]", f"[{name}]": [f"Bearer [{name}]", 1], "rest": "x" * more}


@ON_SQLITE
def test_values_are_redacted_from_errors(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    publish_with(rpc, new_name, [name], code=LEAKY)
    secret("set", name, value=VALUE)
    secret("grant", name, new_name)

    answer = rpc("execute_skill", name=new_name, args={"name": name, "fail": True})

    assert answer["error"]["message"] == f"401 for [{name}]"
    assert f"RuntimeError: 401 for [{name}]" in answer["error"]["traceback"]
    assert [form for form in every_form(VALUE) if form in json.dumps(answer).encode()] == []


@ON_SQLITE
def test_a_value_on_the_edge_of_a_long_log_leaves_no_piece(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    value = "0123456789abcdefghijklmnopqrstuvwxyz"
    code = (
        "import os, sys\ndef main(args):\n    value = os.environ[args['name']]\n"
        "    sys.stdout.write('x' * (512 * 1024 - 10) + value)\n    sys.stdout.flush()\n"
        "    sys.stdout.write('y' * 3_000_000 + value + 'z' * (512 * 1024 - 20))\n"
    )
    publish_with(rpc, new_name, [name], code=code)
    secret("set", name, value=value)
    secret("grant", name, new_name)

    answer = rpc("execute_skill", name=new_name, args={"name": name})

    assert answer["status"] == "completed"
    assert "bytes left out" in answer["logs_preview"]
    for start in range(len(value) - 4):
        assert value[start : start + 4] not in answer["logs_preview"]


@ON_SQLITE
@pytest.mark.full
def test_secret_value_is_absent_from_process_arguments_and_environments(
    rpc: Rpc, secret: Command, new_name: str, name: str
) -> None:
    value = f"value-{os.urandom(8).hex()}"
    code = "import time, runtime\ndef main(args):\n    runtime.blobs.write_text('started')\n    time.sleep(4)\n"
    publish_with(rpc, new_name, [name], code=code)
    secret("set", name, value=value)
    secret("grant", name, new_name)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(Rpc(rpc.url)("execute_skill", name=new_name)))

    thread.start()
    places = [read_quietly(path) for _ in range(20) for path in of_all_processes()]
    thread.join()

    assert answers[0]["status"] == "completed"
    assert [place for place in places if value.encode() in place] == []
    assert len(places) > 100


def of_all_processes() -> list[Path]:
    time.sleep(0.1)
    return [path for part in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{part}")]


def read_quietly(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # the process has ended


# -- stored and logged values ----------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_value_stands_in_no_file_log_or_setting(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_LOG_LEVEL": "debug"})
    home = str(server.home)
    assert skillery("secret", "set", "API_KEY", "--value-from-stdin", "--home", home, stdin=VALUE.encode()).code == 0
    assert skillery("secret", "grant", "API_KEY", "leak.*", "--home", home).code == 0
    publish_with(server.rpc, "leak.all", ["API_KEY"], code=LEAKY)
    publish_with(server.rpc, "leak.undeclared", ["API_KEY", "OTHER"], code=LEAKY)
    server.rpc("execute_skill", name="leak.all", args={"name": "API_KEY", "more": 100_000})
    server.rpc("execute_skill", name="leak.all", args={"name": "API_KEY", "fail": True})
    server.rpc("execute_skill", name="leak.undeclared", args={"name": "API_KEY"})
    shown = [
        skillery("secret", "list", "--home", home, "--json"),
        skillery("config", "show", "--home", home, "--json", SKILLERY_SECRET_API_KEY=VALUE),
        skillery("doctor", "--home", home, "--json", **NO_SANDBOX_PROBES),
    ]
    key = (server.home / "secrets.key").read_text().strip()
    assert server.stop() == 0

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() for path in files} | {str(i): one.raw for i, one in enumerate(shown)}
    assert any(path.endswith("skillery.db") for path in texts)
    assert server.log in files
    found = [(path, form) for path, text in texts.items() for form in every_form(VALUE) if form in text]
    assert found == []
    assert [path for path, text in texts.items() if key.encode() in text] == [str(server.home / "secrets.key")]
    with sqlite3.connect(server.home / "skillery.db") as database:
        rows = database.execute("SELECT key, value FROM backend_values").fetchall()
        assert [row[0] for row in rows] == ["API_KEY"]
        recorded = database.execute("SELECT summary, output_json, error_json, logs_preview FROM runs").fetchall()
        assert "[API_KEY]" in str(recorded)


def test_the_key_file_is_for_its_owner_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    skillery("secret", "set", "API_KEY", "--value-from-stdin", "--home", str(home), stdin=b"value")

    assert (home / "secrets.key").stat().st_mode & 0o777 == 0o600


# -- the key ---------------------------------------------------------------------------------------------------------


def new_key() -> str:
    return base64.urlsafe_b64encode(os.urandom(32)).decode()


def on(home: Path, *arguments: str, value: str = "", **variables: str) -> Ended:
    stdin = ("--value-from-stdin",) if value else ()
    return skillery("secret", *arguments, *stdin, "--home", str(home), stdin=value.encode(), **variables)


@pytest.mark.full
def test_the_key_can_come_from_the_environment(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    key, home = new_key(), tmp_path / "home"
    assert on(home, "set", "API_KEY", value=VALUE, SKILLERY_BACKENDS_SECRETS_DATABASE_KEY=key).code == 0
    assert on(home, "grant", "API_KEY", "a.b").code == 0
    server = start_server(env={"SKILLERY_BACKENDS_SECRETS_DATABASE_KEY": key})
    publish_with(server.rpc, "a.b", ["API_KEY"])

    assert backwards(server.rpc, "a.b", "API_KEY") == VALUE
    assert not (home / "secrets.key").exists()
    shown = skillery("config", "show", "--home", str(home), SKILLERY_BACKENDS_SECRETS_DATABASE_KEY=key)
    assert "***" in shown.out
    assert key not in shown.out


@pytest.mark.full
def test_secret_set_refuses_a_missing_or_replaced_key(tmp_path: Path) -> None:
    home = tmp_path / "home"
    on(home, "set", "ONE", value=VALUE)
    key = (home / "secrets.key").read_text()

    (home / "secrets.key").unlink()
    lost = on(home, "set", "TWO", value=VALUE)
    (home / "secrets.key").write_text(new_key())
    (home / "secrets.key").chmod(0o600)
    other = on(home, "set", "TWO", value=VALUE)
    (home / "secrets.key").write_text(new_key() + "\n" + key)
    both = on(home, "set", "TWO", value=VALUE)

    assert (lost.code, other.code, both.code) == (3, 3, 0)
    assert "is missing" in lost.err
    assert "another key" in other.err
    assert VALUE not in lost.err + other.err


@pytest.mark.full
def test_rekey_makes_a_new_key_and_servers_use_it_at_once(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    for name in ("ONE", "TWO"):
        skillery("secret", "set", name, "--value-from-stdin", *home, stdin=name.lower().encode())
    file = tmp_path / "home" / "secrets.key"
    old = file.read_text()

    done = skillery("secret", "rekey", "--new-key", *home)

    assert done.code == 0, done.err
    new = file.read_text()
    assert (len(new.split()), new != old, file.stat().st_mode & 0o777) == (1, True, 0o600)
    assert skillery("secret", "set", "THREE", "--value-from-stdin", *home, stdin=b"3").code == 0
    entry = skillery("audit", "list", *home, "--action", "rekey_secrets", "--json").json["entries"][0]
    assert entry["after"] == {"secrets": 2, "new_key": True}
    file.write_text(old)  # the values are encrypted with the new key alone
    assert (
        "another key"
        in skillery("secret", "rekey", *home).err
        + skillery("secret", "set", "FOUR", "--value-from-stdin", *home, stdin=b"4").err
    )


@pytest.mark.full
def test_run_with_an_undecryptable_secret_fails_with_its_name(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    home = tmp_path / "home"
    on(home, "set", "API_KEY", value=VALUE)
    on(home, "grant", "API_KEY", "a.b")
    server = start_server(env={"SKILLERY_BACKENDS_SECRETS_DATABASE_KEY": new_key()})
    publish_with(server.rpc, "a.b", ["API_KEY"])

    type_, message = refused(server.rpc, "a.b", name="API_KEY")

    assert type_ == "SecretUnavailable"
    assert "API_KEY" in message
    assert str(home) not in message


@pytest.mark.parametrize("key", ["short", "x" * 44, base64.b64encode(bytes(31)).decode()])
@pytest.mark.full(after=1)
def test_a_key_that_is_none_stops_the_start_and_is_not_shown(tmp_path: Path, key: str) -> None:
    ended = on(tmp_path / "home", "list", SKILLERY_BACKENDS_SECRETS_DATABASE_KEY=key)

    assert ended.code == 4
    assert "32 bytes" in ended.err
    assert key not in ended.err


@pytest.mark.full
def test_a_key_file_that_everybody_can_open_stops_the_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    on(home, "set", "API_KEY", value=VALUE)
    (home / "secrets.key").chmod(0o644)

    ended = on(home, "list")
    probes = skillery("doctor", "--home", str(home), "--json", **NO_SANDBOX_PROBES).json["probes"]

    assert ended.code == 4
    assert "chmod" in ended.err
    assert [probe["ok"] for probe in probes if probe["name"] == "secrets"] == [False]


def test_a_key_at_the_wrong_place_of_the_configuration_is_not_shown(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "skillery.toml").write_text(f"[backends.secrets]\ndatabase = '{VALUE}'\n[backends.storage]\nx = 1\n")

    ended = skillery("config", "show", "--home", str(home))

    assert ended.code == 4
    assert VALUE not in ended.err + ended.out


# -- the backend environment -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_secrets_can_come_from_the_environment_of_the_server(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    env = {"SKILLERY_SECRETS": "environment", "SKILLERY_SECRET_API_KEY": VALUE, "SKILLERY_SECRET_EMPTY": ""}
    server = start_server(env=env)
    on(server.home, "grant", "API_KEY", "a.b")
    on(server.home, "grant", "EMPTY", "a.c")
    publish_with(server.rpc, "a.b", ["API_KEY"])
    publish_with(server.rpc, "a.c", ["EMPTY"])

    assert backwards(server.rpc, "a.b", "API_KEY") == VALUE
    assert refused(server.rpc, "a.c", name="EMPTY")[0] == "SecretMissing"
    setting = on(server.home, "set", "API_KEY", value="x", SKILLERY_SECRETS="environment")
    assert setting.code == 3
    assert "SKILLERY_SECRET_API_KEY" in setting.err
    assert on(server.home, "rm", "API_KEY", SKILLERY_SECRETS="environment").code == 3
    listed = on(server.home, "list", "--json", SKILLERY_SECRETS="environment").json
    assert [one["name"] for one in listed["secrets"]] == ["API_KEY", "EMPTY"]
    assert VALUE not in server.log.read_text()


BROKEN = """
    from skillery import hookimpl
    from skillery.backends import Offer

    class Vault:
        read_only = True

        def get(self, name):
            raise RuntimeError("no connection as tok/en+of-a kind_4711")

        def names(self):
            return []

        def set(self, name, value):
            raise NotImplementedError

        def remove(self, name):
            raise NotImplementedError

    @hookimpl
    def skillery_secrets():
        return Offer("vault", lambda settings, place: Vault())
"""


@pytest.mark.full
def test_failing_secrets_backend_ends_the_run_without_revealing_values(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "vault.py").write_text(textwrap.dedent(BROKEN))
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": str(plugins), "SKILLERY_SECRETS": "vault"})
    on(server.home, "grant", "API_KEY", "a.b")
    publish_with(server.rpc, "a.b", ["API_KEY"])

    type_, message = refused(server.rpc, "a.b", name="API_KEY")

    assert type_ == "SecretUnavailable"
    assert VALUE not in message
    # The traceback in the log shows the source line, which contains the text too. Only the message of the exception
    # matters.
    assert f"RuntimeError: no connection as {VALUE}" not in server.log.read_text()
    assert "the backend of secrets raised RuntimeError" in server.log.read_text()


# -- the commands ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_list_shows_names_and_grants_and_no_value(secret: Command, name: str) -> None:
    secret("set", name, value=VALUE)
    secret("grant", name, "acme.mail")
    secret("grant", name, "sales.*")
    secret("grant", f"{name}_2", "acme.mail")

    plain = secret("list")
    listed = secret("list", "--json").json
    rows = {one["name"]: one for one in listed["secrets"]}

    assert f"{name}\tyes\tacme.mail, sales.*" in plain.out
    assert f"{name}_2\tno\tacme.mail" in plain.out
    assert VALUE not in plain.out + plain.err + json.dumps(listed)
    assert listed["backend"] == "database"
    assert [one["grantee"] for one in rows[name]["grants"]] == ["acme.mail", "sales.*"]
    assert rows[name]["grants"][0]["granted_by"]
    assert rows[name]["grants"][0]["granted_at"].endswith("Z")
    assert rows[f"{name}_2"]["has_value"] is False


def test_repeated_secret_grant_succeeds_and_revoking_an_absent_grant_fails(secret: Command, name: str) -> None:
    assert secret("grant", name, "a.b", "--json").json == {"name": name, "grantee": "a.b", "new": True}
    assert secret("grant", name, "a.b", "--json").json["new"] is False
    assert secret("revoke", name, "a.*").code == 3
    assert secret("revoke", name, "a.b", "--json").json == {"name": name, "grantee": "a.b"}
    assert secret("revoke", name, "a.b", "--json").json["error"]["code"] == -32003
    assert secret("rm", name).code == 3


@ON_SQLITE
@pytest.mark.parametrize("grantee", ["*", ".*", "a.*.b", "A.b", "a..b", "a.b.", "**", "a*", ""])
def test_secret_grant_refuses_invalid_grantees(secret: Command, grantee: str) -> None:
    assert secret("grant", "API_KEY", grantee, "--json").json["error"]["code"] == -32602


@pytest.mark.parametrize("wrong", ["no good", "1A", "A-B", "", "Ä", "PATH", "x" * 129])
def test_invalid_secret_names_are_refused(secret: Command, wrong: str) -> None:
    assert secret("set", wrong, value="x").code == 3
    assert secret("grant", wrong, "a.b").code == 3


@pytest.mark.parametrize("value", ["\n", "a\0b", "x" * 70_000])
def test_a_value_that_no_variable_can_hold_is_refused_unseen(secret: Command, name: str, value: str) -> None:
    ended = secret("set", name, value=value)

    assert ended.code == 3
    assert name in ended.err
    assert "xxxx" not in ended.err


@pytest.mark.full
def test_a_value_that_is_no_text_is_refused(tmp_path: Path) -> None:
    ended = skillery(
        "secret", "set", "API_KEY", "--value-from-stdin", "--home", str(tmp_path / "home"), stdin=b"\xff\xfe\xfd"
    )

    assert ended.code == 3
    assert "base64" in ended.err


@pytest.mark.full
def test_without_a_terminal_the_value_must_come_on_purpose(tmp_path: Path) -> None:
    ended = skillery("secret", "set", "API_KEY", "--home", str(tmp_path / "home"), stdin=b"value")

    assert ended.code == 2
    assert "--value-from-stdin" in ended.err


@pytest.mark.full
def test_a_typed_value_is_not_shown(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    ours, theirs = pty.openpty()
    command = [FORKED, "secret", "set", "API_KEY", "--home", home]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=clean_environment(), start_new_session=True
    )
    os.close(theirs)
    shown = b""
    while b"Value of API_KEY" not in shown:
        shown += os.read(ours, 4096)
    os.write(ours, b"typed-value\n")
    while b"is set" not in shown:
        shown += os.read(ours, 4096)
    assert process.wait(300) == 0
    os.close(ours)

    assert b"typed-value" not in shown
    assert skillery("secret", "list", "--home", home).out == "API_KEY\tyes\t-\n"


SPELLED = """
import os, time
def main(args):
    while True:
        for byte in os.environ[args["name"]].encode() + b" tok\\n":
            os.write(1, bytes([byte]))
            time.sleep(0.03)
"""


@ON_SQLITE
def test_a_secret_never_crosses_a_live_log(rpc: Rpc, secret: Command, new_name: str, name: str) -> None:
    """The code writes its output slowly, byte by byte: a reader of the live log never sees a part of the value."""
    skill = f"{new_name}.spell"
    publish_with(rpc, skill, [name], SPELLED)
    secret("set", name, value=VALUE)
    secret("grant", name, skill)
    run_id = rpc("execute_skill", name=skill, args={"name": name}, background=True)["run_id"]

    parts: list[str] = []
    part = {"next": 0}
    while len(parts) < 8 or "".join(parts).count("\n") < 2:
        part = rpc("read_run_log", run_id=run_id, after=part["next"], wait_ms=5000)
        assert not part["ended"]
        parts += [part["text"]] if part["text"] else []
    rpc("cancel_run", run_id=run_id)

    text = "".join(parts)
    assert (f"[{name}] tok\n" * (text.count("\n") + 1)).startswith(text)
