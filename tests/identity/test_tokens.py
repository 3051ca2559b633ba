"""Tokens on the command line and over JSON-RPC: creation, display once, use, expiry, revocation, and failed logins."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from sqlalchemy import Connection, select, text, update

from skillery.audit import SERVER
from skillery.backends import Credentials
from skillery.builtin.tokens_authenticator import MOST_ADDRESSES, FailedLogins, TokensAuthenticator, TokensSettings
from skillery.database import Database, parse_database_url, tables
from skillery.errors import Conflict, NotAuthenticated, TooManyFailedLogins
from skillery.identity.authenticator_chain import RegistryTokens
from skillery.identity.tokens import Kind, end_token, insert_token, read_tokens
from skillery.testing import AuthenticatorContract
from tests.cli.test_cli import Ended, skillery
from tests.conftest import NO_SANDBOX_PROBES, ON_SQLITE, Rpc, RpcError, Server, clean_environment, manifest
from tests.support.browser import Browser
from tests.support.prefork import FORKED
from tests.support.processes import eventually, eventually_async

TOKEN = re.compile(r"sky_[0-9a-z]{12}_[0-9A-Za-z]{43}")
UNKNOWN = "sky_" + "0" * 12 + "_" + "0" * 43
Command = Callable[..., Ended]


@pytest.fixture
def token(tokens_server: Server) -> Command:
    """Return `skillery token …` on the home of the running server."""

    def call(*arguments: str) -> Ended:
        home = ("--home", str(tokens_server.home))
        return skillery("token", *arguments, *home, SKILLERY_DATABASE=tokens_server.database)

    return call


@pytest.fixture(scope="module")
def token_ids(tokens_server: Server) -> Callable[[], list[str]]:
    """Return a function that lists the ids of all tokens, without the cost of a command."""
    home = ("--home", str(tokens_server.home), "--json")
    made = skillery(
        "token", "create", "--name", "lister", "--scope", "admin", *home, SKILLERY_DATABASE=tokens_server.database
    )
    rpc = Rpc(tokens_server.url, made.json["token"])
    return lambda: [row["id"] for row in rpc("list_tokens")["tokens"]]


@pytest.fixture
def admin(token: Command) -> str:
    made: str = token("create", "--name", "root", "--scope", "admin", "--json").json["token"]
    return made


def status_of(server: Server, header: str | None) -> int:
    headers = {"authorization": header} if header is not None else {}
    call = {"jsonrpc": "2.0", "id": 1, "method": "list_skills"}
    return httpx.post(f"{server.url}/rpc", json=call, headers=headers, verify=Rpc.tls).status_code


# -- the command line --------------------------------------------------------------------------------------------


@ON_SQLITE
def test_token_create_prints_the_token_to_stdout_and_its_rights_to_stderr(token: Command) -> None:
    made = token("create", "--name", "sales-ci", "--scope", "read,publish", "--namespace", "sales.*", "--agent")

    assert made.code == 0
    assert TOKEN.fullmatch(made.out.strip())
    assert "sales-ci (agent) may read, publish in sales.*, without expiry" in made.err
    assert made.out.strip() not in made.err
    assert made.out.strip() not in token("list").out + token("list", "--json").out


@pytest.mark.full
@ON_SQLITE
def test_create_warns_if_the_running_server_does_not_use_the_token(
    tokens_server: Server, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    create = ("token", "create", "--name", "ann", "--scope", "read", "--home")
    open_server = start_server()
    unchecked = skillery(*create, str(open_server.home))
    elsewhere = skillery(*create, str(tokens_server.home), SKILLERY_DATABASE=f"sqlite:///{tmp_path / 'other.db'}")

    assert (unchecked.code, elsewhere.code) == (0, 0)
    assert (
        f'warning: The server at {open_server.url} does not check tokens: its setting auth is "open"' in unchecked.err
    )
    assert f"warning: The server at {tokens_server.url} does not accept this token" in elsewhere.err


def test_create_with_json_says_all_of_it(token: Command, tokens_server: Server) -> None:
    more = ("--namespace", "b.*", "--namespace", "a.b.*", "--expires", "90d")
    made = token("create", "--name", "ann", "--scope", "publish, read", *more, "--json").json

    assert TOKEN.fullmatch(made["token"])
    assert made["id"] in made["token"]
    assert (made["name"], made["kind"]) == ("ann", "person")
    assert made["scopes"] == ["read", "publish"]
    assert made["namespaces"] == ["a.b.*", "b.*"]
    lifetime = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert lifetime == timedelta(days=90)
    assert made["created_by"].startswith("home:")
    assert status_of(tokens_server, f"Bearer {made['token']}") == 200


@pytest.mark.full(after=1)
@pytest.mark.parametrize(("trusted", "forged"), [("", False), ("127.0.0.1", True)])
def test_only_a_proxy_that_is_trusted_says_where_a_caller_is(
    start_server: Callable[..., Server], trusted: str, forged: bool
) -> None:
    proxies = {"SKILLERY_TRUSTED_PROXIES": trusted} if trusted else {}
    server = start_server(env={"SKILLERY_AUTH": "tokens", **proxies})
    headers = [{"authorization": "Bearer sky_wrong", "x-forwarded-for": f"9.9.9.{number}"} for number in range(30)]
    codes = {httpx.post(f"{server.url}/rpc", json={}, headers=one, verify=Rpc.tls).status_code for one in headers}

    assert codes == ({401} if forged else {401, 429})


@ON_SQLITE
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--scope", "reed"),
            ["'reed'", "did you mean 'read'", "read, run, publish, review, metrics, audit, accounts, admin"],
        ),
        (("--scope", ","), ["needs a scope"]),
        (("--scope", "publish", "--namespace", "sales"), ["'sales'", "did you mean 'sales.*'"]),
        (("--scope", "publish", "--namespace", "sales*"), ["'sales*'", "sales.*"]),
        (("--scope", "publish", "--namespace", ""), ["''", "sales.*"]),
        (("--scope", "publish", "--namespace", ".*"), ["'.*'", "sales.*"]),
        (("--scope", "read", "--expires", "90 days"), ["'90 days'", "did you mean '90d'"]),
        (("--scope", "read", "--expires", "tomorrow"), ["'tomorrow'", "90d"]),
        (("--scope", "read", "--expires", "0d"), ["'0d'"]),
        (("--scope", "read", "--expires", "999999999w"), ["longer", "3650d"]),
        (("--scope", "read", "--name", " x"), ["' x'", "printable"]),
        (("--scope", "read", "--name", "skillery"), ["'skillery'", "bundled"]),
    ],
)
@pytest.mark.full(after=6)
def test_token_create_refuses_invalid_options_with_suggestions(
    options: tuple[str, ...], words: list[str], token: Command, token_ids: Callable[[], list[str]]
) -> None:
    before = token_ids()
    refused = token("create", "--name", "x", *options)

    assert refused.code == 3, refused.out + refused.err
    for word in words:
        assert word in refused.err
    assert token_ids() == before


@ON_SQLITE
def test_token_list_shows_the_last_use(token: Command, tokens_server: Server) -> None:
    made = token("create", "--name", "used", "--scope", "read", "--json").json
    assert find(token, made["id"])["last_used_at"] is None

    assert status_of(tokens_server, f"Bearer {made['token']}") == 200
    row = until(lambda: find(token, made["id"]), lambda row: row["last_used_at"] is not None)

    assert row["status"] == "live"
    assert abs(datetime.now(UTC) - datetime.fromisoformat(row["last_used_at"])) < timedelta(minutes=10)
    assert status_of(tokens_server, f"Bearer {made['token']}") == 200
    assert find(token, made["id"])["last_used_at"] == row["last_used_at"]


def find(token: Command, token_id: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = token("list", "--json").json["tokens"]
    return next(row for row in rows if row["id"] == token_id)


def until(ask: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    return eventually(lambda: is_so(answer := ask()) and answer)


@ON_SQLITE
def test_a_token_revoked_next_to_the_server_is_refused(token: Command, tokens_server: Server) -> None:
    made = token("create", "--name", "gone", "--scope", "read", "--json").json
    header = f"Bearer {made['token']}"
    assert status_of(tokens_server, header) == 200

    assert token("revoke", made["id"]).code == 0

    assert status_of(tokens_server, header) == 401
    row = find(token, made["id"])
    assert row["status"] == "revoked"
    again = token("revoke", made["token"], "--json")
    assert again.json["revoked_at"] == row["revoked_at"]
    assert made["token"] not in again.out


def test_a_rotated_token_stays_valid_for_the_overlap_only(token: Command, tokens_server: Server, new_name: str) -> None:
    rights = ("--scope", "read,publish", "--namespace", "sales.*", "--agent", "--expires", "30d")
    old = token("create", "--name", new_name, *rights, "--json").json

    new = token("rotate", new_name, "--overlap", "3s", "--json").json

    for key in ("name", "kind", "scopes", "namespaces"):
        assert new[key] == old[key]
    lifetime = datetime.fromisoformat(new["expires_at"]) - datetime.fromisoformat(new["created_at"])
    assert (new["replaced"], lifetime) == ([old["id"]], timedelta(days=30))
    assert status_of(tokens_server, f"Bearer {new['token']}") == 200
    eventually(lambda: status_of(tokens_server, f"Bearer {old['token']}") == 401)
    assert status_of(tokens_server, f"Bearer {new['token']}") == 200


def test_rotate_token_never_extends_an_old_token(tokens_server: Server, admin: str, new_name: str) -> None:
    rpc = Rpc(tokens_server.url, admin)
    old = rpc("create_token", name=new_name, scopes=["read"], expires="1h")

    new = rpc("rotate_token", name=new_name, overlap="7d", expires="2h")

    assert new["replaced_until"] == old["expires_at"] < new["expires_at"]
    assert rpc.error("rotate_token", name=new_name, overlap="never")["data"]["param"] == "overlap"
    assert rpc.error("rotate_token", name=f"{new_name}-none")["code"] == -32003


def test_rotate_token_refuses_tokens_with_different_rights(tokens_server: Server, admin: str, new_name: str) -> None:
    rpc = Rpc(tokens_server.url, admin)
    for scope in ("read", "run"):
        rpc("create_token", name=new_name, scopes=[scope])

    assert rpc.error("rotate_token", name=new_name)["code"] == -32004
    assert len([row for row in rpc("list_tokens")["tokens"] if row["name"] == new_name]) == 2


LIMITED: Any = {"SKILLERY_AUTH": "tokens", "SKILLERY_TOKENS_MAX_DAYS": "30"}


def test_max_days_limits_new_tokens(configured_server: Callable[..., Server]) -> None:
    server = configured_server(**LIMITED)
    create = ("token", "create", "--name", "ann", "--scope", "admin", "--home", str(server.home))
    made = skillery(*create, "--json", **LIMITED)
    rpc = Rpc(server.url, made.json["token"])
    lasting = datetime.fromisoformat(made.json["expires_at"]) - datetime.fromisoformat(made.json["created_at"])
    never, longer = (rpc.error("create_token", name="x", scopes=["read"], expires=end) for end in ("never", "31d"))

    assert lasting == timedelta(days=30)
    for error in (never, longer):
        assert (error["code"], error["data"]["param"]) == (-32602, "expires")
        assert "tokens.max_days" in error["message"]
    assert skillery(*create, "--expires", "31d", **LIMITED).code == 3
    assert {row["name"]: row["remarks"] for row in rpc("list_tokens")["tokens"]} == {
        "admin": ["never_expires"],
        "ann": [],
    }


@pytest.mark.full
def test_doctor_reports_tokens_without_an_end(start_server: Callable[..., Server]) -> None:
    server = start_server(env=LIMITED)
    home = ("--home", str(server.home))
    assert skillery("token", "create", "--name", "ann", "--scope", "read", *home, **LIMITED).code == 0

    assert "2 live, 1 without an end" in skillery("doctor", *home, **LIMITED, **NO_SANDBOX_PROBES).out


@ON_SQLITE
def test_token_revoke_refuses_an_unknown_token_by_name(token: Command) -> None:
    refused = token("revoke", "nothing")

    assert refused.code == 3
    assert "'nothing'" in refused.err


# -- the end of an identity ------------------------------------------------------------------------------------------


class Alice:
    """An identity with a published version, a token, a session of a browser and a run in the background."""

    def __init__(self, server: Server, admin: Rpc, name: str) -> None:
        self.name, self.server = name, server
        rights = {"scopes": ["read", "run", "publish"], "namespaces": [f"{name}.*"]}
        self.token: str = admin("create_token", name=name, **rights)["token"]
        self.rpc, self.browser = Rpc(server.url, self.token), Browser(server.url)
        made = manifest(f"{name}.notes", kind="instruction")
        self.rpc("create_skill", manifest=made, skill_md="# Notes")
        self.browser.sign_in(self.token)
        code = "import time\ndef main(args):\n    time.sleep(600)"
        self.run: str = self.rpc("run_code", language="python", code=code, background=True)["run_id"]

    def check_is_gone(self, admin: Rpc) -> None:
        assert status_of(self.server, f"Bearer {self.token}") == 401
        assert self.browser.who() is None
        run = until(lambda: admin("get_run", run_id=self.run), lambda run: run["status"] == "failed")
        assert run["error"]["type"] == "Cancelled"


@pytest.fixture
def alice(tokens_server: Server, admin: str, new_name: str) -> Alice:
    return Alice(tokens_server, Rpc(tokens_server.url, admin), new_name)


@pytest.mark.full
def test_offboard_ends_tokens_sessions_and_runs(alice: Alice, admin: str) -> None:
    home = ("--home", str(alice.server.home))
    ended = skillery("offboard", alice.name, *home, "--json", SKILLERY_DATABASE=alice.server.database).json

    alice.check_is_gone(Rpc(alice.server.url, admin))
    assert (len(ended["tokens"]), ended["sessions"], ended["runs"]) == (1, 1, [alice.run])
    assert ended["left"]["published"] == [f"{alice.name}.notes@1.0.0"]
    assert ended["left"]["skills"] == [f"{alice.name}.notes"]
    shown = skillery("offboard", alice.name, "--url", alice.server.url, SKILLERY_TOKEN=admin)
    assert f"Published versions (1):\n  {alice.name}.notes@1.0.0\n" in shown.out
    assert "Ended: 0 tokens, 0 sessions, 0 runs." in shown.err


def test_revoke_identity_reports_approvals_and_reviews(alice: Alice, admin: str) -> None:
    rpc = Rpc(alice.server.url, admin)
    made = rpc("create_token", name=alice.name, scopes=["admin"])["token"]
    other = Rpc(alice.server.url, made)(
        "create_token", name=f"{alice.name}-bot", scopes=["publish"], kind="agent", namespaces=[f"{alice.name}.*"]
    )
    bot = Rpc(alice.server.url, other["token"])
    bot("create_skill", manifest=manifest(f"{alice.name}.bot", kind="instruction"), skill_md="# Bot")
    Rpc(alice.server.url, made)("approve_version", name=f"{alice.name}.bot", version="1.0.0")

    report = rpc("revoke_identity", name=alice.name)

    alice.check_is_gone(rpc)
    assert len(report["tokens"]) == 2
    assert report["left"]["approved"] == [f"{alice.name}.bot@1.0.0"]
    assert report["left"]["tokens"] == [other["id"]]
    (entry,) = rpc("list_audit", action="revoke_identity", subject=alice.name)["entries"]
    assert entry["after"]["runs"] == [alice.run]
    assert rpc("revoke_identity", name=f"{alice.name}-bot")["left"]["in_review"] == []


@pytest.mark.full
def test_auth_revoke_ends_tokens_too(alice: Alice, admin: str) -> None:
    home = ("--home", str(alice.server.home))
    revoke = partial(skillery, "auth", "revoke", alice.name, *home, SKILLERY_AUTH="tokens")
    revoked = revoke(SKILLERY_DATABASE=alice.server.database)

    place = f"in the home {alice.server.home}\n"
    assert (revoked.out, revoked.err) == (f"{alice.name} is revoked {place}", "Ended: 1 token, 1 session, 1 run.\n")
    alice.check_is_gone(Rpc(alice.server.url, admin))
    again = revoke(SKILLERY_DATABASE=alice.server.database)
    assert again.out == f"{alice.name} was already revoked {place}"


@ON_SQLITE
def test_offboard_of_an_unknown_identity_says_so(tokens_server: Server, admin: str) -> None:
    refused = skillery("offboard", "nobody-at-all", "--url", tokens_server.url, SKILLERY_TOKEN=admin)

    assert (refused.code, "'nobody-at-all'" in refused.err) == (3, True)
    rpc = Rpc(tokens_server.url, admin)
    assert rpc.error("revoke_identity", name="a\0b")["code"] == -32602


# -- from elsewhere --------------------------------------------------------------------------------------------------


@ON_SQLITE
def test_tokens_are_made_by_an_admin_from_elsewhere(tokens_server: Server, admin: str) -> None:
    def command(*arguments: str, token: str = admin) -> Ended:
        return skillery("token", *arguments, "--url", tokens_server.url, SKILLERY_TOKEN=token)

    made = command("create", "--name", "far", "--scope", "read,run", "--expires", "1h", "--agent", "--json")
    assert made.code == 0, made.out + made.err
    assert made.json["created_by"] == "root"
    assert made.json["kind"] == "agent"
    assert status_of(tokens_server, f"Bearer {made.json['token']}") == 200

    listed = command("list", "--json").json["tokens"]
    assert made.json["id"] in [row["id"] for row in listed]
    refused = command("create", "--name", "mine", "--scope", "read", token=made.json["token"])
    assert refused.code == 3
    assert "does not have the scope 'admin'" in refused.err
    assert command("list", token="").code == 3
    assert command("revoke", made.json["id"]).code == 0
    assert status_of(tokens_server, f"Bearer {made.json['token']}") == 401


@pytest.mark.full
def test_a_home_without_a_server_has_its_tokens_made_first(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    home = str(tmp_path / "home")
    made = skillery("token", "create", "--name", "root", "--scope", "admin", "--home", home, "--json").json

    server = start_server(env={"SKILLERY_AUTH": "tokens"})

    assert status_of(server, f"Bearer {made['token']}") == 200
    assert [row["name"] for row in Rpc(server.url, made["token"])("list_tokens")["tokens"]] == ["root"]


@ON_SQLITE
@pytest.mark.full
def test_every_command_shows_its_token(tokens_server: Server, token: Command, tmp_path: Path) -> None:
    made = token("create", "--name", "walker", "--scope", "read,run", "--json").json["token"]
    file = tmp_path / "note.txt"
    file.write_text("a note")

    def far(*arguments: str, token: str = "") -> Ended:
        return skillery(*arguments, "--url", tokens_server.url, SKILLERY_TOKEN=token)

    assert far("list").code == 3
    assert "wants a token" in far("list").err
    assert far("list", token=made).code == 0
    assert far("list", "--token", made).code == 0
    put = far("blob", "put", str(file), "--json", token=made)
    assert put.code == 0, put.out + put.err
    assert far("blob", "get", put.json["blob_id"], token=made).out == "a note"
    near = skillery("list", "--home", str(tokens_server.home), SKILLERY_TOKEN=made)
    assert near.code == 0, near.err


# -- names and kinds ---------------------------------------------------------------------------------------------


@ON_SQLITE
def test_token_name_belongs_to_either_a_person_or_an_agent(tokens_server: Server, admin: str) -> None:
    rpc = Rpc(tokens_server.url, admin)
    first = rpc("create_token", name="both", scopes=["read"])

    error = rpc.error("create_token", name="both", scopes=["read"], kind="agent")
    assert error["code"] == -32004
    assert "'both' belongs to a person" in error["message"]
    rpc("create_token", name="both", scopes=["run"])
    for row in rpc("list_tokens")["tokens"]:
        if row["name"] == "both":
            rpc("revoke_token", id=row["id"])
    assert rpc("create_token", name="both", scopes=["read"], kind="agent")["kind"] == "agent"
    assert first["kind"] == "person"


def test_concurrent_creations_give_a_token_name_a_single_kind(migrated_postgres_database: Callable[[], str]) -> None:
    """The second transaction waits for the first one. SQLite has one writer at a time."""
    database = Database(migrated_postgres_database())
    conflicts: list[Conflict] = []

    def create(connection: Connection, kind: Kind) -> None:
        insert_token(connection, SERVER, name="both", scopes=["read"], kind=kind)

    def create_second() -> None:
        try:
            database.write_now(partial(create, kind="agent"))
        except Conflict as error:
            conflicts.append(error)

    second = threading.Thread(target=create_second)

    def create_first(connection: Connection) -> None:
        create(connection, "person")
        second.start()
        eventually(lambda: database.read_now(is_waiting) or not second.is_alive())

    database.write_now(create_first)
    second.join()
    kinds = [row.kind for row in database.read_now(read_tokens).tokens]
    database.close()

    assert (kinds, len(conflicts)) == (["person"], 1)


def is_waiting(connection: Connection) -> bool:
    """Return whether a transaction of this database waits for a lock."""
    waiting = "SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database WHERE NOT granted AND datname = "
    return bool(connection.scalar(text(f"{waiting} current_database()")))


def test_versions_and_runs_store_their_identity_and_its_kind(tokens_server: Server, admin: str, tmp_path: Path) -> None:
    from tests.conftest import publisher

    scopes = ["read", "run", "publish"]
    made = Rpc(tokens_server.url, admin)(
        "create_token", name="robot", scopes=scopes, kind="agent", namespaces=["robots.*"]
    )
    robot = Rpc(tokens_server.url, made["token"])
    publisher(robot)("robots.one")
    robot("run_code", language="python", code="def main(args):\n    return 1\n")

    database = Database(tokens_server.database or f"sqlite:///{tokens_server.home / 'skillery.db'}")
    versions, runs = tables.skill_versions.c, tables.runs.c
    published = database.read_now(
        lambda connection: (
            connection.execute(select(versions.publisher_kind).where(versions.publisher == "robot")).scalars().all()
        )
    )
    bundled = database.read_now(
        lambda connection: (
            connection.execute(select(versions.publisher_kind).where(versions.publisher == "skillery").distinct())
            .scalars()
            .all()
        )
    )
    ran = database.read_now(
        lambda connection: (
            connection.execute(select(runs.identity_kind).where(runs.identity == "robot")).scalars().all()
        )
    )
    database.close()
    assert published == bundled == ran == ["agent"]


# -- refused requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        f"Bearer {UNKNOWN}",
        f"Bearer {UNKNOWN}x",
        f"Basic {UNKNOWN}",
        UNKNOWN,
        "Bearer sky_",
        "Bearer " + "x" * 5000,
        f"Bearer {UNKNOWN}, Bearer {UNKNOWN}",
        "Bearer sky_' OR 1=1 --_" + "0" * 43,
    ],
)
def test_missing_or_invalid_token_is_401(header: str | None, tokens_server: Server) -> None:
    assert status_of(tokens_server, header) == 401


@ON_SQLITE
def test_neither_half_of_a_token_is_enough(tokens_server: Server, admin: str, token: Command) -> None:
    other = token("create", "--name", "other", "--scope", "read", "--json").json["token"]
    crossed = admin[:16] + other[16:]

    assert status_of(tokens_server, f"Bearer {admin}") == 200
    assert status_of(tokens_server, f"bearer {admin}") == 200
    assert status_of(tokens_server, f"Bearer {crossed}") == 401
    assert status_of(tokens_server, f"Bearer {admin[:-1]}{'a' if admin[-1] != 'a' else 'b'}") == 401


@pytest.mark.smoke
def test_an_expired_token_is_401(tokens_server: Server, token: Command) -> None:
    made = token("create", "--name", "short", "--scope", "read", "--expires", "3s", "--json").json
    header = f"Bearer {made['token']}"
    first = status_of(tokens_server, header)
    if datetime.now(UTC) < datetime.fromisoformat(made["expires_at"]):  # else the machine is too slow to tell
        assert first == 200

    until(lambda: status_of(tokens_server, header), lambda status: status == 401)

    assert find(token, made["id"])["status"] == "expired"
    assert datetime.now(UTC) >= datetime.fromisoformat(made["expires_at"])


def test_a_revocation_over_rpc_counts_with_the_next_request(tokens_server: Server, admin: str) -> None:
    rpc = Rpc(tokens_server.url, admin)
    for number in range(20):
        made = rpc("create_token", name=f"brief{number}", scopes=["read"])
        assert status_of(tokens_server, f"Bearer {made['token']}") == 200
        rpc("revoke_token", id=made["id"])
        assert status_of(tokens_server, f"Bearer {made['token']}") == 401


@pytest.mark.full
def test_the_token_is_nowhere_but_in_the_answer(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_LOG_LEVEL": "debug"})
    root = skillery("token", "create", "--name", "root", "--scope", "admin", "--home", str(server.home), "--json").json
    rpc = Rpc(server.url, root["token"])
    made = rpc("create_token", name="kept", scopes=["read"])["token"]
    assert status_of(server, f"Bearer {made}") == 200
    assert status_of(server, f"Bearer {made[:-1]}") == 401
    assert server.stop() == 0

    secret = made[17:].encode()
    for file in [server.log, *server.home.rglob("*")]:
        if file.is_file():
            assert secret not in file.read_bytes(), file


@pytest.mark.full
def test_too_many_failed_logins_are_429_and_a_good_token_still_passes(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens"})
    root = skillery("token", "create", "--name", "root", "--scope", "admin", "--home", str(server.home), "--json").json
    call = {"jsonrpc": "2.0", "id": 1, "method": "list_skills"}

    answers: list[httpx.Response] = []
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {UNKNOWN}"}) as client:
        # The allowance is refilled during the loop.
        while len(answers) < 500 and 429 not in [answer.status_code for answer in answers[-1:]]:
            answers.append(client.post("/rpc", json=call))

    assert [answer.status_code for answer in answers[:20]] == [401] * 20
    refused = answers[-1]
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    error = refused.json()["error"]
    assert error["code"] == -32001
    assert error["data"]["type"] == "too_many_failed_logins"
    assert error["data"]["retry_after_ms"] >= 1
    assert status_of(server, f"Bearer {root['token']}") == 200
    # A request without a token still gets a response that asks for one.
    assert status_of(server, None) == 401
    tools = httpx.get(f"{server.url}/tools", headers={"authorization": f"Bearer {UNKNOWN}"})
    assert tools.status_code == 429
    assert tools.json()["error"]["data"]["type"] == "too_many_failed_logins"


@pytest.mark.full
def test_unavailable_database_is_an_rpc_error_and_needs_no_restart(
    start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str], postgres: str
) -> None:
    url = migrated_postgres_database()
    name = parse_database_url(url).database
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_DATABASE": url})
    root = ("token", "create", "--name", "root", "--scope", "admin", "--home", str(server.home), "--json")
    rpc = Rpc(server.url, skillery(*root, SKILLERY_DATABASE=url).json["token"])
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))

        error = rpc.error("list_skills")
        assert error["code"] == -32603
        assert error["data"]["type"] == "unavailable"
        assert rpc.http.get("/tools").status_code == 503

        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert rpc("list_skills")["skills"]


# -- the first start ---------------------------------------------------------------------------------------------


def first_lines(server: Server, seconds: float = 2.0) -> str:
    """Return the further stdout of the server, after the line with its address."""
    assert server.process.stdout is not None
    os.set_blocking(server.process.stdout.fileno(), False)
    deadline, found = time.monotonic() + seconds, b""
    while time.monotonic() < deadline and b"sky_" not in found:
        found += server.process.stdout.read() or b""
        time.sleep(0.05)
    return found.decode()


@pytest.mark.smoke
def test_a_first_start_shows_an_admins_token_on_stdout_once(start_server: Callable[..., Server]) -> None:
    environment = {"SKILLERY_AUTH": "tokens"}
    server = start_server(env=environment, new_home=True)
    shown = TOKEN.findall(first_lines(server, 300))

    assert len(shown) == 1
    rpc = Rpc(server.url, shown[0])
    assert [row["scopes"] for row in rpc("list_tokens")["tokens"]] == [["admin"]]
    assert rpc("create_token", name="next", scopes=["read"])["created_by"] == "admin"
    assert shown[0] not in server.log.read_text()
    server.stop()

    again = start_server(env=environment)
    assert "sky_" not in first_lines(again)
    assert status_of(again, f"Bearer {shown[0]}") == 200


@pytest.mark.full
def test_json_output_includes_the_first_token(tmp_path: Path) -> None:
    command = [FORKED, "serve", "--home", str(tmp_path / "home"), "--port", "0", "--json"]
    environment = clean_environment({"SKILLERY_AUTH": "tokens"})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    assert TOKEN.fullmatch(said["bootstrap_token"])
    assert said["url"].startswith("http://127.0.0.1:")


@pytest.mark.full
def test_the_first_token_can_be_left_out(start_server: Callable[..., Server]) -> None:
    more = {"SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_BOOTSTRAP": "false"}
    server = start_server(env={"SKILLERY_AUTH": "tokens", **more})

    assert "sky_" not in first_lines(server)
    listed = skillery("token", "list", "--home", str(server.home), "--json").json
    assert listed == {"tokens": []}


def test_with_tokens_any_address_may_be_served(start_server: Callable[..., Server]) -> None:
    server = start_server("--host", "0.0.0.0", env={"SKILLERY_AUTH": "tokens"})
    port = server.url.rpartition(":")[2]

    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    assert httpx.post(f"http://127.0.0.1:{port}/rpc", json={}).status_code == 401


def test_open_auth_admin_can_create_and_revoke_tokens(rpc: Rpc) -> None:
    made = rpc("create_token", name=f"early{os.getpid()}", scopes=["read"])

    assert made["created_by"] == "local"
    assert rpc("revoke_token", id=made["id"])["status"] == "revoked"


@pytest.mark.full
def test_the_demo_walks_on_a_home_that_wants_tokens(tmp_path: Path) -> None:
    home = tmp_path / "home"
    walked = skillery("demo", "--home", str(home), "--json", SKILLERY_AUTH="tokens")
    try:
        assert walked.code == 0, walked.out + walked.err
        assert "sky_" not in (home / "server.log").read_text()
        assert "sky_" not in walked.out
    finally:
        if walked.code == 0:
            os.kill(walked.json["pid"], signal.SIGTERM)


# -- the authenticator -------------------------------------------------------------------------------------------


class TestTokensAuthenticator(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self, database: Database) -> TokensAuthenticator:
        return TokensAuthenticator(RegistryTokens(database), TokensSettings(failures_per_minute=5))

    @pytest.fixture
    def good(self, database: Database) -> Credentials:
        return self.credentials(self.made(database))

    @pytest.fixture
    def bad(self, database: Database) -> list[Credentials]:
        revoked, expired = self.made(database), self.made(database, expires="1s")
        database.write_now(lambda connection: end_token(connection, SERVER, revoked))
        past = update(tables.tokens).where(tables.tokens.c.id == expired[4:16])
        database.write_now(
            lambda connection: connection.execute(past.values(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
        )
        return [self.credentials(token) for token in (revoked, expired, UNKNOWN, "x")]

    def made(self, database: Database, **more: Any) -> str:
        asked = {"name": "ann", "scopes": ["read"], **more}
        return database.write_now(lambda connection: insert_token(connection, SERVER, **asked)).token

    def credentials(self, token: str, address: str = "203.0.113.9") -> Credentials:
        return Credentials({"authorization": f"Bearer {token}"}, address)

    async def test_database_stores_no_plain_token(self, database: Database, good: Credentials) -> None:
        stored = database.read_now(lambda connection: connection.execute(select(tables.tokens)).all())

        assert good.headers["authorization"][24:] not in str(stored)

    async def test_a_use_is_noted(
        self, database: Database, authenticator: TokensAuthenticator, good: Credentials
    ) -> None:
        await authenticator.authenticate(good)

        used = select(tables.tokens.c.last_used_at)
        await eventually_async(lambda: database.read_now(lambda connection: connection.scalar(used)) is not None)

    async def test_forgetting_makes_a_revocation_count_at_once(
        self, database: Database, authenticator: TokensAuthenticator, good: Credentials
    ) -> None:
        await authenticator.authenticate(good)
        token = good.headers["authorization"].removeprefix("Bearer ")
        database.write_now(lambda connection: end_token(connection, SERVER, token))
        authenticator.forget()

        with pytest.raises(NotAuthenticated, match="revoked"):
            await authenticator.authenticate(good)

    async def test_failures_are_counted_for_each_address(self, authenticator: TokensAuthenticator) -> None:
        async def fails(address: str) -> type[Exception]:
            with pytest.raises(NotAuthenticated) as failed:
                await authenticator.authenticate(self.credentials("x", address))
            return failed.type

        assert [await fails("203.0.113.1") for _ in range(5)] == [NotAuthenticated] * 5
        assert await fails("203.0.113.1") is TooManyFailedLogins
        assert await fails("203.0.113.2") is NotAuthenticated
        assert [await fails(f"2001:db8::{n}") for n in range(6)][-1] is TooManyFailedLogins
        assert await fails("2001:db8:0:1::1") is NotAuthenticated


def test_failed_logins_are_remembered_in_bounded_memory() -> None:
    failures = FailedLogins(1)
    for number in range(MOST_ADDRESSES + 50):
        assert failures.note(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}") is None

    # The newest addresses are still remembered, the oldest are forgotten.
    assert failures.note(f"10.0.{(MOST_ADDRESSES + 49) >> 8 & 255}.{(MOST_ADDRESSES + 49) & 255}") is not None
    assert failures.note("10.0.0.0") is None


def test_params_that_cannot_be_are_refused_by_name(rpc: Rpc) -> None:
    for params, word in (
        ({"name": "a\0b", "scopes": ["read"]}, "printable"),
        ({"name": "x", "scopes": []}, "scope"),
        ({"name": "x", "scopes": ["read"], "kind": "robot"}, "kind"),
        ({"name": "x", "scopes": ["read"], "namespaces": ["*.sales"]}, "sales.*"),
        ({"name": "x", "scopes": ["read"], "expire": "1d"}, "expires"),
    ):
        with pytest.raises(RpcError) as failed:
            rpc("create_token", **params)
        assert failed.value.error["code"] == -32602
        assert word in failed.value.error["message"] + str(failed.value.error["data"])


def test_reviewer_token_without_the_read_scope_warns(tmp_path: Path) -> None:
    create = ("token", "create", "--home", str(tmp_path / "home"), "--name", "rita", "--scope")
    assert "--scope read" in skillery(*create, "review").err
    assert "--scope read" not in skillery(*create, "review,read").err


@pytest.mark.full
def test_a_terminal_shows_scopes_and_moments_whole(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    created = ("--name", "ann", "--scope", "read,run,publish", "--namespace", "team.*", "--expires", "90d")
    assert skillery("token", "create", *created, *home).code == 0
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [FORKED, "token", "list", *home],
        stdout=theirs,
        env=clean_environment({"TERM": "xterm-256color", "COLUMNS": "60"}),
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the process has closed the terminal
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    assert process.wait(300) == 0
    said = seen.decode()
    assert "ann" in said
    assert "…" not in said


def call(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


TRUST = {"target": "a.*", "provider": "github", "repository": "a/b", "repository_id": "1", "owner_id": "2"}
WAIVER = {"name": "a.b", "rule": "x", "reason": "y"}


@pytest.mark.parametrize(
    ("method", "params", "limits"),
    [
        ("create_token", {"name": "x", "scopes": ["read"]}, ["expires"]),
        ("approve_version", {"name": "a.b", "version": "1.0.0"}, ["digest"]),
        ("waive_finding", WAIVER, ["until", "file", "version"]),
        ("add_trust_rule", {**TRUST, "workflow": "x.yml"}, ["ref", "environment", "repository_id", "workflow"]),
    ],
)
def test_an_empty_limit_is_refused(
    method: str, params: dict[str, Any], limits: list[str], sqlite_server: Server
) -> None:
    """An unset variable of a shell must not be a token without end, or an approval of any digest."""
    for limit in limits:
        error = sqlite_server.rpc.error(method, **{**params, limit: ""})
        assert (error["code"], error["data"]["param"]) == (-32602, limit)


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        "token create --name x --scope read --expires",
        "approve a.b@1.0.0 --digest",
        "waiver add a.b x --reason y --until",
        "trust add a.* --github a/b --repository-id 1 --owner-id 2 --workflow x.yml --ref",
    ],
)
def test_an_empty_option_that_limits_is_refused(command: str, tmp_path: Path) -> None:
    ended = skillery(*command.split(), "", "--home", str(tmp_path))

    assert ended.code == 2
    assert "it is empty" in ended.err


@pytest.mark.full
def test_no_token_that_an_admin_makes_while_being_revoked_stays(tokens_server: Server, new_name: str) -> None:
    """Another process revokes the admin, whom the server knows for up to a second more."""
    there = partial(skillery, SKILLERY_DATABASE=tokens_server.database)
    home, name = ("--home", str(tokens_server.home)), f"{new_name}-eve"
    first = there("token", "create", "--name", name, "--scope", "admin", *home, "--json").json["token"]
    eve = Rpc(tokens_server.url, first)
    made = [eve("create_token", name=f"{name}-2", scopes=["admin"])]
    with ThreadPoolExecutor(1) as pool:
        command = pool.submit(there, "offboard", name, *home, "--json")
        while not command.done():
            for of in (f"{name}-2", name):
                answer = eve.http.post("/rpc", json=call("create_token", name=of, scopes=["admin"])).json()
                made += [answer["result"]] if "result" in answer else []
            if made and made[-1]["name"] == name:
                # Each new token begins another second in the cache of the server.
                eve.http.headers["authorization"] = f"Bearer {made[-1]['token']}"
        report = command.result().json

    def is_alive(made: dict[str, Any]) -> bool:
        return Rpc(tokens_server.url, made["token"]).http.get("/v1/skills").status_code == 200

    assert not any(is_alive(one) for one in made if one["name"] == name)
    assert {one["id"] for one in made if one["name"] != name} <= set(report["left"]["tokens"])
