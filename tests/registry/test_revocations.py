"""Revoked versions: advisories with a severity, their feed, and what callers still get of a revoked version."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import Server, manifest, skill_files
from tests.proof.test_attestations import statements_of
from tests.support.people import Caller, Who

NOT_ALLOWED, NOT_FOUND = -32002, -32003
REASON = "It sends rows to a stranger."


class Team:
    """A skill of instructions with two versions, and callers with different rights to it."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, f"{name}.sums"
        self.grant = f"{name}.*"
        self.author = self.caller("author", "read run publish")
        self.reviewer = self.caller("reviewer", "read run review")
        self.reader = self.caller("reader", "read run")
        self.agent = self.caller("agent", "read run publish review", kind="agent")
        self.admin = self.caller("admin", "admin", "*")
        for version in ("1.0.0", "1.1.0"):
            self.publish(version)

    def caller(self, name: str, scopes: str, grants: str = "", kind: str = "person") -> Caller:
        return Caller(self.server.url, Who(f"{self.name}-{name}", scopes, grants or self.grant, kind))

    def publish(self, version: str, files: Sequence[Any] = (), **more: Any) -> None:
        described = manifest(self.name, version, **({} if files else {"kind": "instruction"}), **more)
        self.admin("create_skill", manifest=described, skill_md="# Sums\n\nSums rows.\n", files=[*files])

    def yank(self, severity: str, version: str = "1.0.0", **more: str) -> str:
        """Yank the version, and return the id of its advisory."""
        self.author("yank_version", name=self.name, version=version, reason=REASON, severity=severity, **more)
        return str(self.feed(self.author)[-1]["id"])

    def describe(self, caller: Caller) -> dict[str, Any]:
        """Return the version 1.0.0, or the error."""
        reply = caller.send("describe_skill", {"name": self.name, "version": "1.0.0"})
        answer: dict[str, Any] = reply["result"]["skill"] if "result" in reply else reply["error"]
        return answer

    def feed(self, caller: Caller, **query: Any) -> list[dict[str, Any]]:
        """Return the advisories about the skill that the caller gets."""
        response = caller.http.get("/advisories.json", params=query)
        assert response.status_code == 200, response.text
        rows: list[dict[str, Any]] = response.json()["advisories"]
        return [row for row in rows if row["affected"][0]["package"]["name"] == self.name]


@pytest.fixture
def team(org: Server, new_name: str) -> Team:
    return Team(org, new_name)


def test_a_yank_makes_an_advisory_and_a_signed_statement(team: Team) -> None:
    advisory = team.yank("security", fixed="1.1.0")

    [record] = team.feed(team.reader)
    assert record["id"] == advisory
    assert record["affected"] == [{"package": {"name": team.name, "ecosystem": "Skillery"}, "versions": ["1.0.0"]}]
    described = team.describe(team.reader)
    seq = record["database_specific"].pop("seq")
    expected = {"severity": "security", "action": "yank", "digests": [described["digest"]], "fixed": "1.1.0"}
    assert (record["summary"], record["database_specific"]) == (REASON, expected)
    assert team.feed(team.reader, after=seq) == []
    facts = {"severity": "security", "advisory": advisory, "fixed": "1.1.0"}
    assert described["yanked"].items() >= facts.items()
    assert described["warnings"] == [f"yanked (security, {advisory}): {REASON}"]
    stated = statements_of(team.admin, team.name)["revocation"]
    assert stated.items() >= (facts | {"action": "yank", "reason": REASON}).items()
    assert (
        team.admin("list_attestations", name=team.name, version="1.0.0", predicate="revocation")["attestations"][0][
            "summary"
        ]
        == f"yank as security ({advisory}): {REASON}"
    )


def test_a_yank_without_a_severity_is_broken(team: Team) -> None:
    team.author("yank_version", name=team.name, version="1.0.0", reason=REASON)

    [record] = team.feed(team.reader)
    assert record["database_specific"]["severity"] == "broken"
    assert team.describe(team.agent)["warnings"] == [f"yanked: {REASON}"]


def test_unyank_withdraws_the_advisory_and_announces_it_again(team: Team) -> None:
    advisory = team.yank("malicious")
    seq = team.feed(team.reader)[0]["database_specific"]["seq"]
    team.admin("unyank_version", name=team.name, version="1.0.0")

    [record] = team.feed(team.reader, after=seq)
    assert (record["id"], record["withdrawn"]) == (advisory, record["modified"])
    assert "yanked" not in team.describe(team.reader)
    assert statements_of(team.admin, team.name)["revocation"]["action"] == "unyank"
    assert team.yank("security") > advisory
    assert len(team.feed(team.reader)) == 2


def test_another_reviewer_withdraws_a_severe_advisory(team: Team) -> None:
    owner = team.caller("owner", "read run publish review")
    other = team.caller("other", "read run publish review")
    created = owner.create(team.name, "2.0.0", kind="instruction")
    version = {"name": team.name, "version": "2.0.0"}
    owner("yank_version", **version, reason=REASON)
    owner("unyank_version", **version)
    for severity in ("security", "malicious"):
        advisory = team.yank(severity, "2.0.0")
        for caller in (owner, team.author, team.agent):
            assert caller.error("unyank_version", **version)["code"] == NOT_ALLOWED
        assert team.feed(team.reader)[-1]["id"] == advisory
        unyanked = (other if severity == "security" else team.admin)("unyank_version", **version)
        assert unyanked == {**{key: created[key] for key in ("name", "version", "digest")}, "status": "published"}
        assert team.feed(team.reader)[-1]["withdrawn"]


def test_a_yank_with_a_higher_severity_replaces_the_advisory(team: Team) -> None:
    again = {"name": team.name, "version": "1.0.0", "reason": "It is worse."}
    former: list[str] = []
    for severity in ("broken", "security", "malicious"):
        advisory = team.yank(severity)
        feed = team.feed(team.reader)
        assert [record["id"] for record in feed if "withdrawn" in record] == former
        assert feed[-1]["database_specific"]["severity"] == severity
        assert team.describe(team.author)["yanked"].items() >= {"severity": severity, "advisory": advisory}.items()
        error = team.author.error("yank_version", **again, severity=severity)
        assert error["data"]["type"] == "illegal_step"
        former.append(advisory)
    assert team.author.error("yank_version", **again)["data"]["type"] == "illegal_step"
    assert statements_of(team.admin, team.name)["revocation"]["advisory"] == former[-1]
    team.admin("unyank_version", name=team.name, version="1.0.0")
    assert all("withdrawn" in record for record in team.feed(team.reader))


def test_a_deleted_skill_can_be_yanked_with_an_advisory(team: Team) -> None:
    assert team.author.http.delete(f"/v1/skills/{team.name}").status_code == 200
    assert team.feed(team.reader) == []
    advisory = team.yank("broken")

    assert [record["id"] for record in team.feed(team.reader)] == [advisory]


def test_the_feed_has_advisories_of_visible_skills_and_of_sent_digests(team: Team) -> None:
    stranger = team.caller("stranger", "read run", "elsewhere.*")
    digest = team.describe(team.reader)["digest"]
    team.yank("broken")
    team.author("set_visibility", name=team.name, visibility="namespace")

    assert team.feed(stranger) == []
    assert len(team.feed(stranger, digests=digest)) == 1
    assert team.feed(team.reader, digests=f"sha256:{'0' * 64}") == []
    for query in ({"after": "x"}, {"after": "-1"}, {"digests": ",".join([digest] * 51)}, {"since": "1"}):
        assert stranger.http.get("/advisories.json", params=query).status_code == 400, query


def test_publishing_and_reviewing_people_read_malicious_versions(team: Team) -> None:
    advisory = team.yank("malicious")

    for caller in (team.author, team.reviewer, team.admin):
        assert team.describe(caller)["yanked"]["advisory"] == advisory
    digest = team.describe(team.author)["digest"]
    for caller in (team.reader, team.agent):
        error = team.describe(caller)
        assert (error["code"], error["data"]["type"], error["data"]["advisory"]) == (
            NOT_FOUND,
            "version_revoked",
            advisory,
        )
        assert advisory in error["message"]
        assert caller.error("resolve_skills", skills=[f"{team.name}@1.0.0"])["data"]["type"] == "version_revoked"
        assert caller.error("describe_skill", name=team.name, version=digest)["data"]["advisory"] == advisory
        params = {"name": team.name, "version": "1.0.0", "path": "SKILL.md"}
        assert caller.error("read_skill_file", **params)["data"]["advisory"] == advisory
        for address in ("1.0.0.zip", "1.0.0/SKILL.md"):
            response = caller.http.get(f"/skills/{team.name}/{address}")
            assert (response.status_code, advisory in response.text) == (404, True)
    [row] = [row for row in team.reader("list_versions", name=team.name)["versions"] if row["version"] == "1.0.0"]
    assert row["status"] == "yanked"


@pytest.mark.full
def test_runs_of_a_revoked_version_are_refused_by_severity(team: Team) -> None:
    code = "def main(args):\n    return {'ok': True}\n"
    for number, severity in enumerate(("broken", "security", "malicious")):
        version = f"2.0.{number}"
        team.publish(version, skill_files(code))
        advisory = team.yank(severity, version)
        run: dict[str, Any] = {"name": team.name, "version": version, "args": {}}
        mounted = {"language": "python", "code": "def main(args): pass", "mount_skills": [f"{team.name}@{version}"]}
        for caller in (team.reader, team.author, team.reviewer):
            replies = [caller.send("execute_skill", run), caller.send("run_code", mounted)]
            if severity == "broken" or (severity == "security" and caller is team.reviewer):
                assert [reply["result"]["status"] for reply in replies] == ["completed"] * 2
                assert any(REASON in warning for warning in replies[0]["result"]["warnings"])
                continue
            is_hidden = severity == "malicious" and caller is team.reader
            code_of_error = NOT_FOUND if is_hidden else NOT_ALLOWED
            assert [reply["error"]["code"] for reply in replies] == [code_of_error] * 2
            assert {reply["error"]["data"]["advisory"] for reply in replies} == {advisory}


def test_a_purge_makes_an_advisory_and_empties_the_reasons_of_earlier_ones(team: Team) -> None:
    team.yank("broken")
    team.admin("purge_version", name=team.name, version="1.0.0", reason="It has a key.")

    yanked, purged = team.feed(team.reader)
    assert (yanked["summary"], purged["summary"]) == ("", "It has a key.")
    expected = {"severity": "security", "action": "purge"}
    assert purged["database_specific"].items() >= expected.items()
    error = team.describe(team.reader)
    assert (error["data"]["type"], error["data"]["advisory"]) == ("version_purged", purged["id"])
    assert purged["id"] in error["message"]


def test_the_purge_of_an_unpublished_version_is_not_in_the_feed(team: Team) -> None:
    team.author.create(team.name, "2.0.0", kind="instruction")
    draft = {"name": team.name, "version": "3.0.0"}
    described = manifest(team.name, "3.0.0", kind="instruction")
    team.author("create_skill", manifest=described, skill_md="# Sums\n", files=[], submit=False)
    digest = team.author("describe_skill", **draft)["skill"]["digest"]
    team.admin("purge_version", **draft, reason="It has a key of ours.")

    assert team.feed(team.reader) == team.feed(team.admin, digests=digest) == []
    error = team.author.error("describe_skill", **draft)
    assert (error["data"]["type"], error["data"].get("advisory")) == ("version_purged", None)
    team.admin("purge_version", name=team.name, version="2.0.0", reason="It has a key too.")
    assert [record["summary"] for record in team.feed(team.reader)] == ["It has a key too."]


def test_yanks_at_the_same_time_have_different_advisories(team: Team) -> None:
    for version in ("1.2.0", "1.3.0", "1.4.0"):
        team.publish(version)
    with ThreadPoolExecutor() as threads:
        versions = ("1.0.0", "1.1.0", "1.2.0", "1.3.0")
        list(threads.map(lambda version: team.yank("broken", version), versions))

    rows = team.feed(team.reader)
    assert len({row["id"] for row in rows}) == len({row["database_specific"]["seq"] for row in rows}) == 4
