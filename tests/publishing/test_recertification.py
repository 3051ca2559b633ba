"""Versions wait for a review again: in use with an old approval (`review.recertify_days`), or with an old evaluation
(`max_age_days`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Executable, text, update

from skillery.database import Database
from skillery.database.tables import attestations, version_steps
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

LONG_AGO = datetime.now(UTC) - timedelta(days=31)
POLICY = """
[policy."own.*"]
needs = ["evaluation"]
evaluation = { max_age_days = 30 }
"""


@pytest.mark.full
def test_a_version_in_use_with_an_old_approval_is_reviewed_again(
    database_kind: str, migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = migrated_postgres_database() if database_kind == "postgres" else f"sqlite:///{tmp_path}/home/skillery.db"
    more = {"SKILLERY_DATABASE": url} if database_kind == "postgres" else {}
    env = people_settings(tmp_path / "plugins", SKILLERY_REVIEW_RECERTIFY_DAYS="30", **more)
    server = Server(tmp_path / "home", env=env)
    bot = Caller(server.url, Who("bot", "read run publish", "*", "agent"))
    rita = Caller(server.url, Who("rita", "read run review", "*"))
    person = Caller(server.url, Who("ann", "read run publish", "*"))
    for name in ("a.used", "a.unused"):
        bot("create_skill", manifest=manifest(name), skill_md="# A\n", files=skill_files(), submit=True)
        rita("approve_version", name=name, version="1.0.0")
    person("create_skill", manifest=manifest("a.unreviewed"), skill_md="# A\n", files=skill_files())
    for name in ("a.used", "a.unreviewed"):
        assert rita("execute_skill", name=name)["status"] == "completed"
    assert waiting(rita) == []
    assert server.stop() == 0

    change(url, update(version_steps).where(version_steps.c.step == "approve").values(created_at=LONG_AGO))
    server = Server(tmp_path / "home", env=env)
    rita, admin = Caller(server.url, Who("rita", "read run review", "*")), Caller(server.url, Who("ada", "admin", "*"))

    eventually(lambda: waiting(rita) == [("a.used", "published")])
    assert rita("execute_skill", name="a.used")["status"] == "completed"
    assert rita("explain_policy", name="a.used")["waiting"] is True
    assert [entry["subject"] for entry in admin("list_audit", action="recertify")["entries"]] == ["a.used@1.0.0"]
    assert rita("approve_version", name="a.used", version="1.0.0", note="still right")["status"] == "published"
    assert waiting(rita) == []
    assert rita("explain_policy", name="a.used")["waiting"] is False
    assert server.stop() == 0


@pytest.mark.full
def test_a_version_with_an_old_evaluation_is_reviewed_again(
    database_kind: str, migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    url = migrated_postgres_database() if database_kind == "postgres" else f"sqlite:///{tmp_path}/home/skillery.db"
    env = {"SKILLERY_DATABASE": url} if database_kind == "postgres" else {}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(POLICY)
    server = Server(tmp_path / "home", env=env)
    for name in ("own.old", "own.renewed"):
        made = manifest(name, examples=[{"name": "small", "args": {}, "expect": {"got": {}}}])
        server.rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files())
        eventually(partial(has_passed, server.rpc, name))
    assert server.stop() == 0

    of_evaluations = attestations.c.predicate == "evaluation"
    is_postgres = database_kind == "postgres"
    unguarded = (
        "ALTER TABLE attestations DISABLE TRIGGER USER" if is_postgres else "DROP TRIGGER attestations_no_update"
    )
    change(url, text(unguarded), update(attestations).where(of_evaluations).values(created_at=LONG_AGO))
    server = Server(tmp_path / "home", env=env)
    eventually(lambda: sorted(waiting(server.rpc)) == [("own.old", "published"), ("own.renewed", "published")])
    assert server.rpc("execute_skill", name="own.old")["status"] == "completed"
    ended = skillery("lock", "own.old", "-o", str(tmp_path / "skillery.lock"), "--url", server.url)
    assert ended.code == 1
    assert "has not passed the policy own.*; missing: an evaluation of the last 30 days\n" in ended.err
    assert "evaluate it again" in ended.err

    server.rpc("start_evaluation", name="own.renewed", version="1.0.0")
    eventually(lambda: waiting(server.rpc) == [("own.old", "published")])
    assert skillery("verify", "own.renewed@1.0.0", "--url", server.url).code == 0
    assert server.stop() == 0


def has_passed(rpc: Rpc, name: str) -> bool:
    return bool(rpc("explain_policy", name=name, version="1.0.0")["passed"])


def waiting(rpc: Rpc) -> list[tuple[str, str]]:
    return [(version["name"], version["status"]) for version in rpc("list_versions", waiting=True)["versions"]]


def change(url: str, *statements: Executable) -> None:
    database = Database(url)
    database.write_now(lambda connection: [connection.execute(statement) for statement in statements])
    database.close()
