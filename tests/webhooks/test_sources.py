"""Events of quotas, the hook `events` of plugins, and what metrics and `skillery doctor` show of webhooks."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.api.test_metrics import figures
from tests.cli.test_cli import skillery
from tests.conftest import NO_SANDBOX_PROBES, ON_SQLITE, Server, manifest, publisher, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.webhooks.conftest import until
from tests.webhooks.receiver import Receiver

Start = Callable[..., Server]
AddWebhook = Callable[..., str]
HOOK = """
import json
from pathlib import Path

from skillery import hookimpl


@hookimpl
def events(event):
    if event.data.get("version") == "6.6.6":
        raise RuntimeError("this plugin is broken")
    with Path({path!r}).open("a") as file:
        file.write(json.dumps([event.id, event.type, event.data.get("name")]) + "\\n")
"""


SLOW_HOOK = """
import time
from pathlib import Path

from skillery import hookimpl


@hookimpl
def events(event):
    with Path({seen!r}).open("a") as file:
        file.write({server!r} + " " + event.data["name"] + "\\n")
    while {server!r} == "one" and not Path({gate!r}).exists():
        time.sleep(0.01)
"""


@ON_SQLITE
@pytest.mark.full
def test_quota_near_event_is_sent_once_per_quota(
    start: Start, tmp_path: Path, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    quotas = {"SKILLERY_QUOTAS_BLOBS": "5", "SKILLERY_QUOTAS_WORKSPACES": "5", "SKILLERY_QUOTAS_SESSION_TOOLS": "5"}
    server = start(env=people_settings(tmp_path / "people", SKILLERY_QUOTAS_BUNDLES_MB="1", **quotas))
    admin = Caller(server.url, Who("admin", "admin", "*"))
    runner = Caller(server.url, Who("run"))
    add_webhook(admin, events=["quota_near"])
    for number in range(5):
        runner("create_blob", content="x", kind="text/plain")
        runner("create_workspace")
        runner("define_tool", name=f"tool{number}", description="x", language="bash", code="echo")
    for version, size in (("1.0.0", 800_000), ("1.1.0", 100_000)):
        content = "x" * size
        files = [*skill_files(), {"path": "resources/a.txt", "content": content}]
        admin("create_skill", manifest=manifest("near.x", version), skill_md="# X\n", files=files)

    messages = receiver.wait_for_accepted(4)

    told = [(one.data["quota"], one.data.get("identity"), one.data.get("namespace")) for one in messages]
    assert told == [
        ("blobs", "run", None),
        ("workspaces", "run", None),
        ("session_tools", "run", None),
        ("bundle_bytes", None, "near.*"),
    ]
    assert [(one.data["used"], one.data["limit"]) for one in messages[:3]] == [(4, 5)] * 3
    used, limit = messages[3].data["used"], messages[3].data["limit"]
    assert 0.8 * limit <= used < limit == 1024 * 1024


@ON_SQLITE
@pytest.mark.full
def test_plugins_get_the_same_events_in_order_and_miss_none(start: Start, tmp_path: Path) -> None:
    seen, folder = tmp_path / "seen.jsonl", tmp_path / "plugins"
    folder.mkdir()
    (folder / "listener.py").write_text(HOOK.format(path=str(seen)))
    env = {"SKILLERY_PLUGINS_FOLDER": str(folder)}
    server = start(env=env)
    for number in range(3):
        publisher(server.rpc)(f"told.n{number}")
    until(lambda: _names(seen)[-3:] == ["told.n0", "told.n1", "told.n2"])
    publisher(server.rpc)("told.broken", version="6.6.6")
    publisher(server.rpc)("told.last")
    server.stop(signal.SIGKILL)
    server = start(env=env)
    publisher(server.rpc)("told.after")
    until(lambda: _names(seen)[-2:] == ["told.last", "told.after"])
    listed = skillery("plugins", "--json", "--home", str(server.home), SKILLERY_PLUGINS_FOLDER=str(folder)).json

    ids = [one[0] for one in _lines(seen)]
    assert "told.broken" not in _names(seen)
    assert "this plugin is broken" in server.log.read_text()
    assert len(ids) - len(set(ids)) <= 1  # the event that the killed server passed on
    [plugin] = [one for one in listed["plugins"] if one["name"] == "listener"]
    assert plugin["moments"] == ["events"]


@pytest.mark.full
def test_server_stops_passing_events_if_lease_expires_during_slow_hook(
    start_server: Start, migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    database, seen, gate = migrated_postgres_database(), tmp_path / "seen", tmp_path / "gate"
    shared = {
        "SKILLERY_DATABASE": database,
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }

    def begin(name: str) -> Server:
        folder = tmp_path / f"plugins-{name}"
        folder.mkdir()
        (folder / "slow.py").write_text(SLOW_HOOK.format(server=name, seen=str(seen), gate=str(gate)))
        return start_server(home=name, env={**shared, "SKILLERY_PLUGINS_FOLDER": str(folder)})

    def lease_until(moment: str) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"UPDATE event_readers SET leased_until = now() + interval '{moment}'")

    first = begin("one")
    lease_until("1 hour")
    for number in range(3):
        publisher(first.rpc)(f"slow.n{number}")
    lease_until("-1 second")
    until(seen.exists)
    second = begin("two")
    lease_until("-1 second")
    until(lambda: len(seen.read_text().splitlines()) == 4)
    gate.write_text("open")
    publisher(second.rpc)("slow.n3")
    until(lambda: "slow.n3" in seen.read_text())

    told = seen.read_text().splitlines()
    assert told[:4] == ["one slow.n0", "two slow.n0", "two slow.n1", "two slow.n2"]
    assert [one.split()[1] for one in told[4:]] == ["slow.n3"]


@pytest.mark.full
def test_metrics_and_doctor_show_waiting_events_and_dead_letters(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    server = start(env={"SKILLERY_WEBHOOKS_GIVE_UP_HOURS": "0", "SKILLERY_METRICS": "open"})
    before = _doctor(server)
    receiver.answer = lambda message: 500 if message.data["name"] == "shown.bad" else 200
    webhook_id = add_webhook(server.rpc, events=["published"])
    publisher(server.rpc)("shown.good")
    publisher(server.rpc)("shown.bad")
    until(lambda: figures(server.rpc.http)["skillery_webhooks_dead_letters"] == 1)

    found, after = figures(server.rpc.http), _doctor(server)

    assert found["skillery_webhooks_attempts_total{outcome=delivered}"] == 1
    assert found["skillery_webhooks_attempts_total{outcome=failed}"] == 1
    assert found["skillery_webhooks_waiting"] == 0
    assert (before["ok"], before["detail"]) == (True, "none")
    assert (after["ok"], after["required"]) == (False, False)
    assert after["detail"] == "1: 1 failing, 0 gone, 0 events wait, 1 dead letters"
    assert "skillery webhook" in after["fix"]
    server.rpc("remove_webhook", id=webhook_id)


def _doctor(server: Server) -> dict[str, Any]:
    home = ("--home", str(server.home))
    ended = skillery("doctor", "--json", *home, SKILLERY_DATABASE=server.database, **NO_SANDBOX_PROBES)
    rows: list[dict[str, Any]] = ended.json["probes"]
    return next(row for row in rows if row["name"] == "webhooks")


def _lines(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _names(path: Path) -> list[str]:
    return [str(line[2]) for line in _lines(path)]
