"""The public conformance suite (packages/skills-protocol-conformance) runs against Skillery.

docs/reference/conformance.md has the answers to what the protocol leaves open.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skills_protocol_conformance.cli import main
from tests.api.test_access import create_token
from tests.cli.test_cli import skillery
from tests.conftest import Server

PAGE = Path(__file__).parents[2] / "docs/reference/conformance.md"
SCOPES = ("--scope", "read,run,publish", "--namespace", "*")
Conform = Callable[..., dict[str, Any]]


@pytest.fixture
def conform(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Conform:
    """Return a function that runs the suite, and returns its JSON report. The exit code must be 0."""

    def run(server: Server, *options: str) -> dict[str, Any]:
        file = tmp_path / "report.json"
        code = main([server.url, "--json", str(file), "--timeout", "300", *options])
        assert code == 0, capsys.readouterr()
        report: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return report

    return run


def not_passed(report: dict[str, Any], result: str = "failed") -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in report["statements"] if row["result"] == result}


def documented() -> dict[str, str]:
    """Return the rows of the table of open points: what the server does, by question."""
    table = PAGE.read_text("utf-8").partition("leaves open | what Skillery does |\n|---|---|\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE))


@pytest.mark.smoke
def test_skillery_conforms_and_documents_open_points(sqlite_server: Server, conform: Conform) -> None:
    report = conform(sqlite_server)

    assert report["profile"] == "skill-tools"
    assert not_passed(report) == {}
    assert not_passed(report, "skipped") == {}
    assert {point["question"]: point["server"] for point in report["open_points"]} == documented()


@pytest.mark.full
def test_skillery_conforms_on_postgres_with_two_workers(
    conform: Conform, start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str]
) -> None:
    server = start_server("--workers", "2", env={"SKILLERY_DATABASE": migrated_postgres_database()})

    assert not_passed(conform(server)) == {}


@pytest.mark.full
def test_the_written_skills_are_enough_for_the_core_profile(
    conform: Conform, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server, folder = start_server(), tmp_path / "skills"
    assert main(["--write-skills", str(folder)]) == 0
    published = skillery("publish", *map(str, sorted(folder.iterdir())), "--url", server.url)
    assert published.code == 0, published
    report = conform(server, "--profile", "core")

    assert not_passed(report) == {}
    assert not_passed(report, "skipped") == {}


@pytest.mark.full
def test_a_token_is_needed_and_used(
    tokens_sqlite: Server, conform: Conform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([tokens_sqlite.url]) == 3
    assert "--token-env" in capsys.readouterr().err
    token = create_token(tokens_sqlite, "conformance", *SCOPES)
    monkeypatch.setenv("CONFORMANCE_TOKEN", token["token"])

    assert not_passed(conform(tokens_sqlite, "--token-env", "CONFORMANCE_TOKEN")) == {}


@pytest.mark.full
def test_a_server_that_reviews_versions_skips_their_statements(
    conform: Conform, tokens_sqlite: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = create_token(
        tokens_sqlite, "conformance-agent", "--scope", "read,run,publish", "--namespace", "*", "--agent"
    )
    monkeypatch.setenv("CONFORMANCE_TOKEN", token["token"])
    report = conform(tokens_sqlite, "--token-env", "CONFORMANCE_TOKEN")

    assert not_passed(report) == {}
    assert any("review" in reason for reason in not_passed(report, "skipped").values())
