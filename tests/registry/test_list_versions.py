"""list_versions: the versions of a skill, and the versions that wait for a reviewer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Server
from tests.support.people import Caller, Who


@pytest.fixture
def team(org: Server, new_name: str) -> dict[str, Caller]:
    inside, elsewhere = f"{new_name}.*", "elsewhere.*"
    everybody = [
        Who("author", "read run publish", inside, "agent"),
        Who("colleague", "read run publish", inside),
        Who("reader", "read", inside),
        Who("stranger", "read"),
        Who("reviewer", "read review", inside),
        Who("reviewer_of_all", "read review"),
        Who("reviewer_elsewhere", "read review", elsewhere),
        Who("admin", "admin"),
    ]
    return {who.name: Caller(org.url, who) for who in everybody}


@pytest.fixture
def made(team: dict[str, Caller], new_name: str) -> list[tuple[str, str]]:
    """Create versions of every status and visibility. Return names and versions, the newest first."""
    made: list[tuple[str, str]] = []

    def create(who: str, name: str, version: str = "1.0.0") -> dict[str, str]:
        team[who].create(name, version, kind="instruction")
        made.insert(0, (name, version))
        return {"name": name, "version": version}

    draft, waiting = create("author", f"{new_name}.draft"), create("author", f"{new_name}.waiting")
    team["author"]("submit_version", **waiting)
    rejected = create("author", f"{new_name}.waiting", "2.0.0")
    team["author"]("submit_version", **rejected)
    team["reviewer"]("reject_version", **rejected, reason="It deletes files.")
    yanked = create("colleague", f"{new_name}.below.yanked")
    team["colleague"]("yank_version", **yanked, reason="It loses leads.")
    create("colleague", f"{new_name}.below.yanked", "1.1.0")
    for visibility in ("namespace", "private"):
        one = create("colleague", f"{new_name}.{visibility}")
        team["colleague"]("set_visibility", name=one["name"], visibility=visibility)
    assert draft
    return made


def listed(who: Caller, **asked: Any) -> list[tuple[str, str]]:
    """Return all versions, page by page."""
    found: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = who("list_versions", **asked, limit=2, cursor=cursor)
        assert len(page["versions"]) <= 2
        found += [(one["name"], one["version"]) for one in page["versions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


def test_everybody_is_shown_the_versions_that_describe_skill_shows_them(
    team: dict[str, Caller], made: list[tuple[str, str]], new_name: str
) -> None:
    for name, who in team.items():
        seen = [one for one in made if who.status(*one) != "unseen"]
        assert listed(who, namespace=new_name) == seen, name
    assert len(listed(team["admin"], namespace=new_name)) == len(made)


def test_reviewer_lists_versions_in_review_with_their_details(
    team: dict[str, Caller], made: list[tuple[str, str]], new_name: str
) -> None:
    [waiting] = team["reviewer"]("list_versions", status="in_review", namespace=new_name)["versions"]
    described = team["reviewer"]("describe_skill", name=waiting["name"], version=waiting["version"])["skill"]
    assert waiting == {
        "name": f"{new_name}.waiting",
        "version": "1.0.0",
        "status": "in_review",
        "digest": described["digest"],
        "kind": "instruction",
        "publisher": {"name": "author", "kind": "agent"},
        "created_at": waiting["created_at"],
        "size_bytes": waiting["size_bytes"],
        "provenance": None,
    }
    assert waiting["created_at"].endswith("Z")
    assert waiting["size_bytes"] > 0
    assert team["stranger"]("list_versions", status="in_review", namespace=new_name)["versions"] == []


def test_a_name_a_status_and_a_namespace_narrow_it(
    team: dict[str, Caller], made: list[tuple[str, str]], new_name: str
) -> None:
    admin = team["admin"]
    assert listed(admin, name=f"{new_name}.waiting") == [
        (f"{new_name}.waiting", "2.0.0"),
        (f"{new_name}.waiting", "1.0.0"),
    ]
    assert listed(admin, name=f"{new_name}.waiting", status="rejected") == [(f"{new_name}.waiting", "2.0.0")]
    below = [one for one in made if one[0].startswith(f"{new_name}.below.")]
    assert listed(admin, namespace=f"{new_name}.below") == below
    assert listed(admin, namespace=f"{new_name}.below", status="yanked") == below[1:]


@ON_SQLITE
def test_list_versions_treats_an_invisible_skill_as_missing(
    team: dict[str, Caller], made: list[tuple[str, str]], new_name: str
) -> None:
    hidden = team["stranger"].error("list_versions", name=f"{new_name}.private")
    unknown = team["stranger"].error("list_versions", name=f"{new_name}.privates")
    assert hidden["code"] == unknown["code"] == -32003
    assert hidden["message"].replace("private'", "privates'") == unknown["message"]


@ON_SQLITE
def test_a_cursor_is_good_for_the_same_caller_and_filters(
    team: dict[str, Caller], made: list[tuple[str, str]], new_name: str
) -> None:
    cursor = team["admin"]("list_versions", namespace=new_name, limit=1)["next_cursor"]
    for who, asked in (("admin", {"namespace": f"{new_name}.below"}), ("reviewer", {"namespace": new_name})):
        assert team[who].error("list_versions", **asked, cursor=cursor)["data"]["type"] == "invalid_cursor"
    assert team["admin"].error("list_versions", status="waiting")["code"] == -32602


@ON_SQLITE
def test_the_command_line_shows_them(server: Server, new_name: str) -> None:
    for version in ("1.0.0", "1.1.0"):
        server.rpc(
            "create_skill", manifest={"name": new_name, "version": version, "description": "x"}, skill_md="# x\n"
        )
    shown = skillery("versions", new_name, "--url", server.url)
    assert [line.split()[:3] for line in shown.out.splitlines()] == [
        ["skill", "version", "status"],
        [new_name, "1.1.0", "published"],
        [new_name, "1.0.0", "published"],
    ]
    first = skillery("versions", new_name, "--limit", "1", "--json", "--url", server.url).json
    assert [one["version"] for one in first["versions"]] == ["1.1.0"]
