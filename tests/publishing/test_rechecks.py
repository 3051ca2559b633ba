"""recheck_version: published versions get the findings of the plugins of today."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

NOT_ALLOWED, NOT_FOUND, CONFLICT, INTERNAL = -32002, -32003, -32004, -32603
LATER = """
from pathlib import Path

from skillery import hookimpl
from skillery.backends import Finding

WORDS = Path(__file__).with_name("words")
EVENTS = Path(__file__).with_name("events")


@hookimpl
def events(event):
    if event.type == "finding":
        with EVENTS.open("a") as file:
            rules = " ".join(one["rule"] for one in event.data["findings"])
            file.write(f"{event.data['name']}@{event.data['version']} {rules}\\n")


@hookimpl
def before_publish(publication):
    words = WORDS.read_text().split() if WORDS.exists() else []
    if "BROKEN" in words:
        raise RuntimeError("broken")
    code = b"".join(file.content for file in publication.files).decode()
    found = [word for word in words if word in code]
    return [Finding(f"no-{word.lower()}", f"{word} is here", "error", "code/main.py", 1) for word in found]
"""


class Team:
    """Callers of one server whose words the test changes."""

    def __init__(self, url: str, words: Path) -> None:
        self.words = words
        self.ann = Caller(url, Who("ann", "read run publish", "a.*"))
        self.reviewer = Caller(url, Who("rita", "read review", "a.*"))
        self.other = Caller(url, Who("otto", "read review", "b.*"))
        self.admin = Caller(url, Who("admin", "admin"))

    def recheck(self, name: str, version: str = "1.0.0") -> Any:
        return self.reviewer("recheck_version", name=name, version=version)


@pytest.fixture
def team(tmp_path: Path, start_server: Callable[..., Server]) -> Team:
    settings = people_settings(tmp_path / "plugins")
    (tmp_path / "plugins" / "checks.py").write_text(LATER)
    return Team(start_server(env=settings).url, tmp_path / "plugins" / "words")


def rules(found: Any) -> list[str]:
    return [one["rule"] for one in found]


def test_a_recheck_stores_new_findings_and_the_version_stays(team: Team) -> None:
    team.ann.create("a.x", code="def main(args): return 'ODD UGLY'\n")
    team.words.write_text("ODD UGLY")

    first = team.recheck("a.x")
    assert (first["status"], rules(first["new"])) == ("published", ["no-odd", "no-ugly"])
    described = team.ann("describe_skill", name="a.x")["skill"]
    assert (described["status"], rules(described["findings"])) == ("published", ["no-odd", "no-ugly"])
    assert team.recheck("a.x")["new"] == []
    assert len(team.admin("list_audit", action="recheck_version", outcome="done")["entries"]) == 1

    team.words.write_text("UGLY")
    team.reviewer("waive_finding", name="a.x", rule="no-ugly", reason="known")
    again = team.recheck("a.x")
    assert (again["new"], rules(again["findings"])) == ([], ["no-ugly"])
    assert again["findings"][0]["waiver"]["reason"] == "known"


def test_new_findings_emit_a_single_event(team: Team) -> None:
    team.ann.create("a.x", code="def main(args): return 'ODD UGLY'\n")
    team.words.write_text("ODD UGLY")
    team.recheck("a.x")
    team.recheck("a.x")

    told = team.words.with_name("events")
    eventually(told.exists)
    assert told.read_text() == "a.x@1.0.0 no-odd no-ugly\n"


def test_a_check_that_fails_changes_nothing(team: Team) -> None:
    team.ann.create("a.x", code="def main(args): return 'ODD'\n")
    team.words.write_text("ODD")
    team.recheck("a.x")
    team.words.write_text("BROKEN")

    error = team.reviewer.error("recheck_version", name="a.x", version="1.0.0")
    assert (error["code"], error["data"]["type"]) == (INTERNAL, "unavailable")
    assert "a.x" in error["message"]
    assert rules(team.ann("describe_skill", name="a.x")["skill"]["findings"]) == ["no-odd"]


@pytest.mark.full
def test_recheck_requires_a_reviewer_and_refuses_drafts(team: Team) -> None:
    team.ann.create("a.x")
    bot = Caller(team.ann.url, Who("bot", "read publish", "a.*", "agent"))
    bot.create("a.draft")

    for caller in (team.ann, team.other):
        assert caller.error("recheck_version", name="a.x", version="1.0.0")["code"] == NOT_ALLOWED
    assert team.reviewer.error("recheck_version", name="a.x", version="2.0.0")["code"] == NOT_FOUND
    assert team.reviewer.error("recheck_version", name="a.draft", version="1.0.0")["code"] == CONFLICT
    team.ann("yank_version", name="a.x", version="1.0.0", reason="old")
    assert team.recheck("a.x")["status"] == "yanked"


def test_findings_of_the_server_itself_stay(server: Server, new_name: str) -> None:
    """A recheck calls the plugins only: it neither imports the code nor looks for undeclared packages."""
    files = skill_files("def main(args):\n    import nowhere_to_be_found\n    return 1\n")
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# A", files=files)
    before = server.rpc("describe_skill", name=new_name)["skill"]["findings"]

    assert server.rpc("recheck_version", name=new_name, version="1.0.0")["findings"] == before != []
