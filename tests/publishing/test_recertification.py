"""`review.recertify_days`: versions in use whose approval is old wait for another one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from skillery.database import Database
from skillery.database.tables import version_steps
from tests.conftest import Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually


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

    age_approvals(url)
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


def waiting(rpc: Caller) -> list[tuple[str, str]]:
    return [(version["name"], version["status"]) for version in rpc("list_versions", waiting=True)["versions"]]


def age_approvals(url: str) -> None:
    database = Database(url)
    aged = update(version_steps).values(created_at=datetime.now(UTC) - timedelta(days=31))
    database.write_now(lambda connection: connection.execute(aged.where(version_steps.c.step == "approve")))
    database.close()
