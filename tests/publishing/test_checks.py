"""Findings of plugins about a version, their waivers, and permissions compared with other versions of the skill."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.egress.policy import Target, matches
from skillery.errors import InvalidParams
from skillery.formats.network import NetworkPattern, covers, parse_network_pattern
from skillery.formats.timestamps import parse_until
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import eventually

REFUSED, NOT_ALLOWED, NOT_FOUND, INVALID = -32007, -32002, -32003, -32602
CLEAN = "def main(args): return 1\n"
FORBIDDEN = CLEAN + "# FORBIDDEN\n"
A, B, SECRET = "https://a.example.com", "https://b.example.com", "API_KEY"


@pytest.fixture
def team(org: Server, new_name: str) -> dict[str, Caller]:
    inside = f"{new_name}.*"
    everybody = [
        Who("ann", "read run publish", inside),
        Who("bot", "read run publish", inside, "agent"),
        Who("reviewer", "read review", inside),
        Who("elsewhere", "read review", "elsewhere.*"),
        Who("single", "read review", f"{new_name}.a elsewhere.b"),
        Who("both", "read run publish review", inside),
        Who("reader", "read"),
        Who("admin", "admin"),
    ]
    return {who.name: Caller(org.url, who) for who in everybody}


def described(who: Caller, name: str, version: str = "") -> dict[str, Any]:
    found: dict[str, Any] = who("describe_skill", name=name, version=version)["skill"]
    return found


def refused(who: Caller, name: str, code: str, version: str = "1.0.0") -> list[dict[str, Any]]:
    files = skill_files(code)
    error = who.error("create_skill", manifest=manifest(name, version), skill_md="# A\n", files=files)
    assert error["code"] == REFUSED, error
    found: list[dict[str, Any]] = error["data"]["findings"]
    return found


# -- findings and waivers ----------------------------------------------------------------------------------------------


def test_an_error_refuses_and_a_warning_stays_with_the_version(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    found = refused(team["ann"], name, "# UGLY\n" + FORBIDDEN)
    assert [(one["rule"], one["severity"], one["file"], one["line"]) for one in found] == [
        ("no-forbidden", "error", "code/main.py", 3),
        ("no-ugly", "warning", "code/main.py", 1),
    ]
    assert team["ann"].error("describe_skill", name=name)["code"] == NOT_FOUND

    team["ann"].create(name, code=CLEAN + "# UGLY\n# ODD\n")
    assert [(one["rule"], one["severity"]) for one in described(team["reader"], name)["findings"]] == [
        ("no-ugly", "warning"),
        ("no-odd", "info"),
    ]
    assert "findings" not in described(team["reader"], "text.csv.profile")


def test_a_waived_error_is_published_and_shown_with_its_waiver(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    refused(team["ann"], name, FORBIDDEN)
    until = (datetime.now(UTC) + timedelta(days=30)).strftime("%Y-%m-%d")
    asked = {"name": name, "rule": "no-forbidden", "reason": "It is only a word.", "until": until}
    waiver = team["reviewer"]("waive_finding", **asked)
    assert {key: waiver[key] for key in ("name", "rule", "by", "kind", "status", "file", "version")} == {
        "name": name,
        "rule": "no-forbidden",
        "by": "reviewer",
        "kind": "person",
        "status": "live",
        "file": None,
        "version": None,
    }
    assert waiver["until"].endswith("T00:00:00Z")

    assert team["ann"].create(name, code=FORBIDDEN)["status"] == "published"
    (found,) = described(team["reader"], name)["findings"]
    assert (found["severity"], found["waiver"]["id"], found["waiver"]["by"]) == ("error", waiver["id"], "reviewer")
    assert (found["waiver"]["reason"], found["waiver"]["until"]) == ("It is only a word.", waiver["until"])

    # Versions published under the waiver stay; the next version is refused again.
    assert team["reviewer"]("revoke_waiver", id=waiver["id"])["status"] == "revoked"
    again = team["reviewer"]("revoke_waiver", id=waiver["id"])
    assert (again["status"], again["revoked_by"]) == ("revoked", "reviewer")
    assert described(team["reader"], name)["findings"] == [found]
    refused(team["ann"], name, FORBIDDEN, "1.0.1")


def test_a_waiver_is_for_a_skill_a_file_and_a_version(team: dict[str, Caller], new_name: str) -> None:
    def waive(name: str, **more: str) -> None:
        team["reviewer"]("waive_finding", name=name, rule="no-forbidden", reason="x", **more)

    waive(f"{new_name}.other")
    waive(f"{new_name}.a", file="code/other.py")
    waive(f"{new_name}.a", version="2.0.0")
    refused(team["ann"], f"{new_name}.a", FORBIDDEN)
    assert team["ann"].create(f"{new_name}.a", "2.0.0+build", code=FORBIDDEN)["status"] == "published"
    waive(f"{new_name}.a", file="code/main.py")
    assert team["ann"].create(f"{new_name}.a", "1.0.0", code=FORBIDDEN)["status"] == "published"


@pytest.mark.full
def test_an_expired_waiver_does_not_count(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"

    def waive() -> bool:
        """Return whether the waiver was made before its end."""
        soon = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
        waiver = {"name": name, "rule": "no-forbidden", "reason": "x", "until": soon}
        return "result" in team["reviewer"].send("waive_finding", waiver)

    eventually(waive)
    eventually(lambda: team["reviewer"]("list_waivers", name=name)["waivers"][0]["status"] != "live")

    refused(team["ann"], name, FORBIDDEN)
    assert team["reviewer"]("list_waivers", name=name)["waivers"][0]["status"] == "expired"


def test_waivers_are_the_reviewers_of_the_name(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    asked = {"name": name, "rule": "no-forbidden", "reason": "x"}
    for who in ("ann", "bot", "elsewhere", "reader"):
        assert team[who].error("waive_finding", **asked)["code"] == NOT_ALLOWED
    by_both, by_admin = (team[who]("waive_finding", **asked)["id"] for who in ("both", "admin"))

    assert team["elsewhere"].error("revoke_waiver", id=by_both)["code"] == NOT_FOUND
    assert team["elsewhere"].error("revoke_waiver", id=by_both)["data"]["type"] == "waiver_not_found"
    assert team["elsewhere"]("list_waivers", name=name)["waivers"] == []
    assert [one["id"] for one in team["reviewer"]("list_waivers", name=name)["waivers"]] == [by_admin, by_both]
    assert {by_admin, by_both} <= {one["id"] for one in team["admin"]("list_waivers", limit=1000)["waivers"]}
    assert team["reviewer"]("revoke_waiver", id=by_admin)["revoked_by"] == "reviewer"


def test_list_waivers_honours_grants_for_single_skills(team: dict[str, Caller], new_name: str) -> None:
    own, other = (
        team["reviewer"]("waive_finding", name=f"{new_name}.{name}", rule="r", reason="x")["id"] for name in ("a", "b")
    )

    assert [waiver["id"] for waiver in team["single"]("list_waivers")["waivers"]] == [own]
    assert team["single"].error("revoke_waiver", id=other)["data"]["type"] == "waiver_not_found"
    assert team["single"]("revoke_waiver", id=own)["revoked_by"] == "single"


def test_waivers_are_listed_page_by_page(team: dict[str, Caller], new_name: str) -> None:
    reviewer = team["reviewer"]
    made = [reviewer("waive_finding", name=f"{new_name}.a", rule=f"r{n}", reason="x")["rule"] for n in range(5)]
    seen, cursor = [], ""
    while cursor is not None:
        page = reviewer("list_waivers", limit=2, cursor=cursor)
        seen += [one["rule"] for one in page["waivers"]]
        cursor = page["next_cursor"]

    assert seen == made[::-1]
    cursor = reviewer("list_waivers", limit=2)["next_cursor"]
    assert reviewer.error("list_waivers", name=f"{new_name}.b", cursor=cursor)["data"]["type"] == "invalid_cursor"
    assert team["both"].error("list_waivers", cursor=cursor)["data"]["type"] == "invalid_cursor"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"rule": "examples"}, "examples have to pass"),
        ({"rule": "before_publish"}, "fix the check"),
        ({"rule": " "}, "rule"),
        ({"reason": " "}, "reason"),
        ({"reason": "a\0b"}, "reason"),
        ({"name": "No Name"}, "No Name"),
        ({"until": "yesterday"}, "90d"),
        ({"until": "2001-01-01"}, "past"),
        ({"until": "2027-01-31T12:00:00"}, "2027-01-31T12:00:00Z"),
        ({"until": "9999999w"}, "too far"),
        ({"file": "../x"}, "path"),
        ({"version": "^1"}, "^1"),
    ],
)
def test_a_waiver_that_makes_no_sense_is_refused_by_name(
    team: dict[str, Caller], new_name: str, more: dict[str, str], told: str
) -> None:
    asked = {"name": f"{new_name}.a", "rule": "no-forbidden", "reason": "x"} | more
    error = team["admin"].error("waive_finding", **asked)

    assert error["code"] == INVALID
    assert told in str(error)


def test_create_skill_skips_examples_if_a_check_refuses_the_version(team: dict[str, Caller], new_name: str) -> None:
    made = manifest(f"{new_name}.a", examples=[{"expect": 2}])
    asked = {"manifest": made, "skill_md": "# A\n", "files": skill_files(FORBIDDEN)}
    error = team["ann"].error("create_skill", **asked)

    assert [one["rule"] for one in error["data"]["findings"]] == ["no-forbidden"]
    assert [one["rule"] for one in team["ann"]("check_skill", **asked)["findings"]] == ["no-forbidden", "examples"]
    team["reviewer"]("waive_finding", name=f"{new_name}.a", rule="no-forbidden", reason="x")
    checked = team["ann"]("check_skill", **asked)
    assert [bool(one["waiver"]) for one in checked["findings"]] == [True, False]
    assert checked["ok"] is False


@given(st.text("0123456789dhmsw-T:Z+ .", max_size=26))
def test_a_time_is_in_the_future_or_refused(text: str) -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    with contextlib.suppress(InvalidParams):
        until = parse_until(text, now)
        assert until is None or until > now


# -- increased permissions ---------------------------------------------------------------------------------------------


def create(who: Caller, name: str, version: str, network: list[str], secrets: tuple[str, ...] = ()) -> str:
    permissions = {"network": network, "secrets": list(secrets)}
    status: str = who.create(name, version, permissions=permissions)["status"]
    return status


def approve(team: dict[str, Caller], name: str, version: str, by: str = "reviewer") -> None:
    team["ann"]("submit_version", name=name, version=version)
    team[by]("approve_version", name=name, version=version)


def test_a_version_that_may_do_more_waits_for_a_reviewer(team: dict[str, Caller], new_name: str) -> None:
    name, ann = f"{new_name}.a", team["ann"]
    assert create(ann, name, "1.0.0", [A]) == "published"
    assert create(ann, name, "1.0.1", [A]) == "published"
    assert create(ann, name, "1.1.0", [B], (SECRET,)) == "draft"

    assert described(team["reviewer"], name, "1.1.0")["permissions_diff"] == {
        "against": "1.0.1",
        "added": {"network": [B], "secrets": [SECRET]},
        "removed": {"network": [A], "secrets": []},
    }
    assert described(ann, name)["version"] == "1.0.1"
    assert "permissions_diff" not in described(ann, name)
    approve(team, name, "1.1.0")
    assert described(team["reader"], name)["version"] == "1.1.0"
    # These permissions are approved now. Fewer permissions never need an approval.
    assert create(ann, name, "1.2.0", [B], (SECRET,)) == "published"
    assert create(ann, name, "1.3.0", []) == "published"
    assert described(ann, name)["permissions_diff"]["removed"] == {"network": [B], "secrets": [SECRET]}


@ON_SQLITE
@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ([A], [A + ":443"], "published"),
        ([A], [A + ":8443"], "draft"),
        ([A], ["http://a.example.com"], "draft"),
        (["https://*.example.com"], [A], "published"),
        (["https://*.example.com"], ["https://*.a.example.com", B], "published"),
        (["https://*.example.com"], ["https://example.com"], "draft"),
        ([A], ["https://*.example.com"], "draft"),
        ([A], ["https://*.a.example.com"], "draft"),
        ([A, B], [B], "published"),
    ],
)
def test_a_wider_pattern_is_more(
    team: dict[str, Caller], new_name: str, before: list[str], after: list[str], status: str
) -> None:
    create(team["ann"], f"{new_name}.a", "1.0.0", before)

    assert create(team["ann"], f"{new_name}.a", "1.0.1", after) == status


def test_permissions_are_compared_with_the_previous_and_the_latest_version(
    team: dict[str, Caller], new_name: str
) -> None:
    name, ann = f"{new_name}.a", team["ann"]
    create(ann, name, "1.0.0", [])
    create(ann, name, "2.0.0", [A])
    approve(team, name, "2.0.0")

    # Users of 1.x never approved the permissions. The lowest version follows no other version.
    assert create(ann, name, "1.0.1", [A]) == "draft"
    assert create(ann, name, "0.1.0", [A]) == "published"
    assert create(ann, name, "0.1.1", [A, B]) == "draft"
    assert create(ann, name, "3.0.0", []) == "published"
    assert create(ann, name, "2.0.1", [A]) == "draft"
    shown = described(ann, name, "2.0.1")["permissions_diff"]
    assert (shown["against"], shown["added"]["network"], shown["removed"]["network"]) == ("2.0.0", [A], [])


def test_a_yank_makes_no_version_the_first(team: dict[str, Caller], new_name: str) -> None:
    name, ann = f"{new_name}.a", team["ann"]
    create(ann, name, "1.0.0", [A])
    ann("yank_version", name=name, version="1.0.0", reason="x")

    assert create(ann, name, "1.0.1", [A, B]) == "draft"
    assert create(ann, name, "0.0.1", [A, B]) == "draft"
    # A draft is not a version that users rely on.
    assert create(ann, name, "1.0.2", [A, B]) == "draft"


def test_a_yank_that_is_taken_back_has_raised_nothing(team: dict[str, Caller], new_name: str) -> None:
    name, ann = f"{new_name}.a", team["ann"]
    create(ann, name, "1.0.0", [A])
    create(ann, name, "2.0.0", [])
    ann("yank_version", name=name, version="2.0.0", reason="x")

    assert create(ann, name, "2.0.1", [A]) == "draft"
    assert create(ann, name, "1.0.1", [A]) == "draft"
    assert create(ann, name, "2.0.2", []) == "published"


def test_reviewers_cannot_approve_their_own_permission_increase(team: dict[str, Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    create(team["ann"], name, "1.0.0", [])
    for version, who in (("1.1.0", "both"), ("1.2.0", "admin")):
        assert create(team[who], name, version, [A]) == "draft"
        team[who]("submit_version", name=name, version=version)
    assert team["both"].error("approve_version", name=name, version="1.1.0")["code"] == NOT_ALLOWED
    assert team["admin"].error("approve_version", name=name, version="1.2.0")["code"] == NOT_ALLOWED
    assert team["both"].status(name, "1.1.0") == "in_review"
    assert team["admin"]("approve_version", name=name, version="1.1.0")["status"] == "published"
    assert described(team["reader"], name)["approval"]["by"] == "admin"


def test_a_first_version_counts_where_the_policy_says_so(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    more = {"SKILLERY_PUBLISHING_FIRST_PERMISSIONS": "draft"}
    server = start_server(env=people_settings(tmp_path / "plugins", **more))
    ann = Caller(server.url, Who("ann", "read publish", "*"))

    assert create(ann, "a", "1.0.0", [A]) == "draft"
    assert described(ann, "a", "1.0.0")["permissions_diff"]["against"] is None
    assert create(ann, "b", "1.0.0", []) == "published"


def test_without_login_more_permissions_are_published(server: Server, new_name: str) -> None:
    for version, permissions in (("1.0.0", {}), ("1.0.1", {"network": [A]})):
        made = manifest(f"{new_name}.a", version, permissions=permissions)
        answer = server.rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files())
        assert answer["status"] == "published"


_patterns = st.builds(
    lambda scheme, wild, labels, port: parse_network_pattern(f"{scheme}://{wild}{'.'.join(labels)}.com{port}"),
    st.sampled_from(["http", "https"]),
    st.sampled_from(["", "*."]),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
    st.sampled_from(["", ":443", ":80", ":8080"]),
)
_hosts = st.builds(lambda labels: ".".join([*labels, "com"]), st.lists(st.sampled_from("ab"), min_size=1, max_size=4))


@given(_patterns, _patterns, _hosts, st.sampled_from([80, 443, 8080]))
def test_covered_network_pattern_reaches_no_additional_host(
    wider: NetworkPattern, narrower: NetworkPattern, host: str, port: int
) -> None:
    assert covers(wider, wider)
    if covers(wider, narrower) and reaches(narrower, host, port):
        assert reaches(wider, host, port)


def reaches(pattern: NetworkPattern, host: str, port: int) -> bool:
    return matches(pattern, Target(pattern.scheme, host, port))


# -- the command line --------------------------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.full
def test_waivers_and_drafts_from_the_command_line(tokens_server: Server, tmp_path: Path, new_name: str) -> None:
    def token(name: str, *options: str) -> str:
        home = ("--home", str(tokens_server.home))
        made = skillery(
            "token", "create", "--name", name, *options, *home, "--json", SKILLERY_DATABASE=tokens_server.database
        )
        text: str = made.json["token"]
        return text

    reviewer = token(f"{new_name}-r", "--scope", "read,review")
    person = token(f"{new_name}-p", "--scope", "read,publish", "--namespace", f"{new_name}.*")

    def run(who: str, *words: str) -> Any:
        return skillery(*words, "--url", tokens_server.url, SKILLERY_TOKEN=who)

    made = run(reviewer, "waiver", "add", f"{new_name}.a", "no-eval", "--reason", "Known.", "--until", "30d", "--json")
    assert made.json["status"] == "live"
    assert "Known." in run(reviewer, "waiver", "list", f"{new_name}.a").out
    assert "is revoked" in run(reviewer, "waiver", "rm", made.json["id"]).out
    assert run(reviewer, "waiver", "list", "--json").json["waivers"][0]["status"] == "revoked"
    assert run(person, "waiver", "list").code == 3

    folder = tmp_path / "skill"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "main.py").write_text(CLEAN)
    (folder / "SKILL.md").write_text("# A\n")
    text = 'version = "{}"\ndescription = "A."\n[runtime]\nentrypoint = "code/main.py"\n[permissions]\nnetwork = {}\n'
    for version, network in (("1.0.0", "[]"), ("1.1.0", f'["{A}"]')):
        (folder / "skill.toml").write_text(f'name = "{new_name}.a"\n{text.format(version, network)}')
        done = run(person, "publish", str(folder))
    assert (done.code, "(draft)" in done.out) == (0, True)
    assert f"added since 1.0.0: {A}; a reviewer must approve this" in done.err
    assert f"skillery submit {new_name}.a@1.1.0" in done.err
