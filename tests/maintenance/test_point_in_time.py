"""Point-in-time recovery of Postgres with the settings of docs/operate/point-in-time.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import Server, manifest, skill_files
from tests.maintenance.test_backups import skillery
from tests.support.postgres import a_postgres
from tests.support.processes import eventually

PAGE = Path(__file__).parents[2] / "docs/operate/point-in-time.md"


def blocks_for_postgres(folder: Path) -> list[str]:
    """Return the settings of the page, with the archive in `folder`."""
    text = PAGE.read_text("utf-8").replace("/mnt/wal", str(folder))
    return [block[1] for block in re.finditer(r"^ *# postgresql\.conf.*\n((?:.*\n)*?) *```", text, re.MULTILINE)]


def value_of(url: str, sql: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]


def append(file: Path, text: str) -> None:
    with file.open("a") as settings:
        settings.write(f"\n{text}\n")


@pytest.mark.full
def test_a_registry_returns_to_a_point_in_time(start_server: Callable[..., Server], tmp_path: Path) -> None:
    archive, base = tmp_path / "wal", tmp_path / "base"
    archive.mkdir()
    archiving, recovering = blocks_for_postgres(archive)
    with a_postgres() as postgres:
        append(postgres.data / "postgresql.conf", archiving)
        postgres.stop()
        postgres.start()
        env = {"SKILLERY_DATABASE": postgres.url}
        server = start_server(env=env)

        def publish(version: str) -> None:
            server.rpc("create_skill", manifest=manifest("a.kept", version), skill_md="# A\n", files=skill_files())

        publish("1.0.0")
        postgres.base_backup(base)
        publish("1.1.0")
        wanted = value_of(postgres.url, "SELECT clock_timestamp()::text")
        publish("1.2.0")
        last = value_of(postgres.url, "SELECT pg_walfile_name(pg_switch_wal())")
        eventually((archive / last).exists)
        server.stop()
        postgres.stop()

        postgres.data.rename(tmp_path / "lost")
        base.rename(postgres.data)
        append(postgres.data / "postgresql.conf", re.sub(r"(?<=recovery_target_time = ')[^']*", wanted, recovering))
        (postgres.data / "recovery.signal").touch()
        postgres.start()
        eventually(lambda: not value_of(postgres.url, "SELECT pg_is_in_recovery()"))

        checked = skillery("check", "--deep", "--home", server.home, env=env)
        assert checked.returncode == 0, checked.stdout
        again = start_server(env=env)
        listed = again.rpc("list_versions", name="a.kept")["versions"]
        assert [version["version"] for version in listed] == ["1.1.0", "1.0.0"]
        assert skillery("audit", "verify", "--home", server.home, env=env).returncode == 0
        again.stop()
