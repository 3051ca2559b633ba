"""Labels: names for versions that can be moved, rolled back, and used wherever a version is accepted."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from skillery.labels.labels import MOST_BACK
from tests.conftest import Rpc, Server
from tests.support.people import Caller, Who

Publish = Callable[..., dict[str, Any]]


def code(version: str) -> str:
    return f"def main(args):\n    return '{version}'\n"


@pytest.fixture
def skill(publish: Publish, new_name: str) -> str:
    """Publish a skill with the versions 1.0.0, 2.0.0 and 3.0.0. Return its name."""
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        publish(new_name, version, code(version))
    return new_name


def set_label(rpc: Rpc, name: str, label: str, version: str) -> Any:
    return rpc("set_label", name=name, label=label, version=version)


def points_to(rpc: Rpc, name: str, label: str) -> str:
    version: str = rpc("describe_skill", name=name, version=label)["skill"]["version"]
    return version


def refused(error: dict[str, Any]) -> tuple[int, str]:
    return error["code"], error["data"]["type"]


def test_a_label_resolves_wherever_a_version_is_taken(rpc: Rpc, skill: str) -> None:
    moved = set_label(rpc, skill, "stable", "1.0.0")

    digest = rpc("describe_skill", name=skill, version="1.0.0")["skill"]["digest"]
    version = {"version": "1.0.0", "status": "published", "digest": digest}
    assert moved == {"name": skill, "label": "stable", **version, "previous": None}
    assert points_to(rpc, skill, "stable") == "1.0.0"
    assert "1.0.0" in rpc("read_skill_file", name=skill, version="stable", path="code/main.py")["content"]
    assert rpc("execute_skill", name=skill, version="stable")["output"] == "1.0.0"
    module = f"skills.{skill}"
    run = rpc(
        "run_code",
        language="python",
        code=f"from {module} import main as inner\ndef main(args):\n    return inner({{}})\n",
        mount_skills=[f"{skill}@stable"],
    )
    assert run["output"] == "1.0.0"
    assert rpc("resolve_skills", skills=[f"{skill}@stable"])["lock"] == [{"name": skill, **version}]
    assert points_to(rpc, skill, "") == "3.0.0"


def test_a_version_shows_its_labels(rpc: Rpc, skill: str) -> None:
    for label in ("stable", "canary"):
        set_label(rpc, skill, label, "2.0.0")

    assert rpc("describe_skill", name=skill, version="2.0.0")["skill"]["labels"] == ["canary", "stable"]
    assert rpc("describe_skill", name=skill, version="^2", detail="full")["skill"]["labels"] == ["canary", "stable"]
    assert rpc("describe_skill", name=skill, version="1.0.0")["skill"]["labels"] == []
    assert "labels" not in rpc("describe_skill", name=skill, version="2.0.0", detail="manifest")["skill"]


def test_set_label_resolves_its_spec_immediately(rpc: Rpc, publish: Publish, skill: str) -> None:
    assert set_label(rpc, skill, "canary", "latest")["version"] == "3.0.0"
    promoted = set_label(rpc, skill, "stable", "canary")
    publish(skill, "4.0.0")

    assert promoted["version"] == "3.0.0"
    assert points_to(rpc, skill, "stable") == "3.0.0"


def test_rollbacks_step_back_through_the_label_history(rpc: Rpc, skill: str) -> None:
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        set_label(rpc, skill, "stable", version)
    set_label(rpc, skill, "canary", "3.0.0")

    goals = {label["label"]: label["rollback_to"] for label in rpc("list_labels", name=skill)["labels"]}
    assert goals == {"canary": None, "stable": "2.0.0"}
    moved = rpc.error("rollback_label", name=skill, label="stable", to="1.0.0")
    assert refused(moved) == (-32004, "conflict")
    assert "would go back to 2.0.0, not to 1.0.0" in moved["message"]
    back = rpc("rollback_label", name=skill, label="stable", to="2.0.0")
    assert (back["version"], back["previous"]) == ("2.0.0", "3.0.0")
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "1.0.0"
    error = rpc.error("rollback_label", name=skill, label="stable")
    assert refused(error) == (-32004, "nothing_to_go_back_to")
    assert "set_label" in error["data"]["hint"]
    # A rollback does not return to a move that was itself rolled back.
    set_label(rpc, skill, "stable", "3.0.0")
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "1.0.0"


def test_move_to_the_same_version_is_recorded_and_skipped_by_rollback(rpc: Rpc, skill: str) -> None:
    for version in ("1.0.0", "2.0.0", "2.0.0"):
        set_label(rpc, skill, "stable", version)

    assert len(rpc("list_labels", name=skill)["history"]) == 3
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "1.0.0"


@pytest.mark.full
def test_a_rollback_looks_back_a_hundred_moves(rpc: Rpc, skill: str) -> None:
    set_label(rpc, skill, "stable", "1.0.0")
    for number in range(MOST_BACK + 1):
        set_label(rpc, skill, "stable", ("2.0.0", "3.0.0")[number % 2])
    for version in ("2.0.0", "3.0.0"):
        rpc("yank_version", name=skill, version=version, reason="leaks")

    assert rpc("list_labels", name=skill)["labels"][0]["rollback_to"] is None
    assert "no version of its last 100 moves" in rpc.error("rollback_label", name=skill, label="stable")["message"]


def test_a_removed_label_is_gone_until_it_is_rolled_back(rpc: Rpc, skill: str) -> None:
    set_label(rpc, skill, "canary", "1.0.0")
    set_label(rpc, skill, "stable", "2.0.0")

    removed = rpc("remove_label", name=skill, label="stable")
    assert removed == {
        "name": skill, "label": "stable", "version": None, "status": None, "digest": None, "previous": "2.0.0",
    }  # fmt: skip
    for method in ("describe_skill", "remove_label"):
        given = {"version": "stable"} if method == "describe_skill" else {"label": "stable"}
        error = rpc.error(method, name=skill, **given)
        assert refused(error) == (-32003, "label_not_found")
        assert (error["data"]["labels"], error["data"]["hint"]) == (["canary"], "The labels are canary.")
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "2.0.0"
    rpc("remove_label", name=skill, label="stable")
    set_label(rpc, skill, "stable", "3.0.0")
    # A label is rolled back to versions; its removal is not a step of the history.
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "2.0.0"


def test_unknown_label_fails_in_every_method_with_a_hint(rpc: Rpc, skill: str) -> None:
    for method, given in (
        ("describe_skill", {"version": "stable"}),
        ("execute_skill", {"version": "stable"}),
        ("rollback_label", {"label": "stable"}),
        ("remove_label", {"label": "stable"}),
        ("list_labels", {"label": "stable"}),
        ("set_label", {"label": "canary", "version": "stable"}),
    ):
        error = rpc.error(method, name=skill, **given)
        assert refused(error) == (-32003, "label_not_found"), method
        assert error["data"]["hint"] == "The skill has no labels."
        assert rpc.error(method, name=f"{skill}.none", **given)["data"]["type"] == "skill_not_found"


@pytest.mark.parametrize("label", ["latest", "1.0.0", "x", "v1", "1.x", "*", "sha256:ab", "", " ", "Stable", "a" * 65])
def test_label_methods_reject_version_specs_and_malformed_labels(sqlite_rpc: Rpc, label: str) -> None:
    name = "text.csv.profile"
    for method in ("set_label", "rollback_label", "remove_label"):
        error = sqlite_rpc.error(method, name=name, label=label, **({"version": "*"} if method == "set_label" else {}))
        assert refused(error) == (-32602, "invalid_label"), method
        assert "begins with a letter" in error["data"]["hint"]


def test_a_label_goes_nowhere_but_to_a_version(rpc: Rpc, skill: str) -> None:
    assert rpc.error("set_label", name=skill, label="stable", version="")["code"] == -32602
    assert refused(rpc.error("set_label", name=skill, label="stable", version="!")) == (-32602, "invalid_version_spec")
    assert refused(rpc.error("set_label", name=skill, label="stable", version="9.0.0")) == (
        -32003, "version_not_found",
    )  # fmt: skip


def test_set_label_refuses_unpublished_and_yanked_versions(org: Server, new_name: str) -> None:
    agent = Caller(org.url, Who("agent", "read publish", f"{new_name}.*", "agent"))
    person = Caller(org.url, Who("person", "read publish", f"{new_name}.*"))
    reviewer = Caller(org.url, Who("reviewer", "read review"))
    name = f"{new_name}.a"
    person.create(name, "1.0.0")
    agent.create(name, "2.0.0")

    def refusal(version: str, who: Caller = agent) -> dict[str, Any]:
        return who.error("set_label", name=name, label="stable", version=version)

    assert refused(refusal("2.0.0")) == (-32004, "not_published")
    assert "draft" in refusal("2.0.0")["message"]
    assert refused(refusal("2.0.0", person)) == (-32003, "version_not_found")
    agent("submit_version", name=name, version="2.0.0")
    assert "in review" in refusal("2.0.0")["message"]
    reviewer("reject_version", name=name, version="2.0.0", reason="no")
    assert "rejected" in refusal("2.0.0")["message"]
    person("yank_version", name=name, version="1.0.0", reason="broken")
    assert "yanked" in refusal("1.0.0")["message"]
    person("unyank_version", name=name, version="1.0.0")
    person("deprecate_skill", name=name, message="old")
    assert set_label(person, name, "stable", "1.0.0")["status"] == "deprecated"
    assert agent.status(name, "stable") == "deprecated"


def test_a_label_does_not_lead_to_a_version_that_was_yanked(rpc: Rpc, skill: str) -> None:
    for version in ("1.0.0", "2.0.0", "3.0.0"):
        set_label(rpc, skill, "stable", version)
    rpc("yank_version", name=skill, version="3.0.0", reason="broken")

    error = rpc.error("execute_skill", name=skill, version="stable")
    assert refused(error) == (-32003, "version_not_found")
    assert "3.0.0, which was yanked" in error["message"]
    assert "set_label" in error["data"]["hint"]
    assert "rollback_label" in error["data"]["hint"]
    assert rpc("list_labels", name=skill)["labels"][0]["status"] == "yanked"
    assert rpc("describe_skill", name=skill, version="3.0.0")["skill"]["labels"] == ["stable"]
    # A rollback skips versions that were yanked in between.
    rpc("yank_version", name=skill, version="2.0.0", reason="broken, too")
    assert rpc("rollback_label", name=skill, label="stable")["version"] == "1.0.0"
    rpc("unyank_version", name=skill, version="3.0.0")
    assert points_to(rpc, skill, "stable") == "1.0.0"


def test_label_history_shows_the_caller_of_each_move_in_pages(org: Server, new_name: str) -> None:
    people = {
        name: Caller(org.url, Who(name, "read publish", f"{new_name}.*", kind))
        for name, kind in (("ann", "person"), ("robot", "agent"))
    }
    name = f"{new_name}.a"
    first = people["ann"].create(name, "1.0.0")["digest"]
    second = people["ann"].create(name, "2.0.0")["digest"]
    set_label(people["ann"], name, "stable", "1.0.0")
    set_label(people["robot"], name, "stable", "2.0.0")
    set_label(people["robot"], name, "canary", "2.0.0")
    people["ann"]("rollback_label", name=name, label="stable")
    people["ann"]("remove_label", name=name, label="canary")

    listed = people["robot"]("list_labels", name=name)
    assert listed["name"] == name
    (stable,) = listed["labels"]
    at = stable.pop("at")
    assert at.endswith("Z")
    assert stable == {
        "label": "stable", "version": "1.0.0", "digest": first, "status": "published", "by": "ann", "kind": "person",
        "rollback_to": None,
    }  # fmt: skip
    moves = [(one["label"], one["move"], one["version"], one["previous"], one["by"]) for one in listed["history"]]
    assert moves == [
        ("canary", "remove", None, "2.0.0", "ann"),
        ("stable", "rollback", "1.0.0", "2.0.0", "ann"),
        ("canary", "set", "2.0.0", None, "robot"),
        ("stable", "set", "2.0.0", "1.0.0", "robot"),
        ("stable", "set", "1.0.0", None, "ann"),
    ]
    assert [one["digest"] for one in listed["history"]] == [None, first, second, second, first]
    assert [one["kind"] for one in listed["history"]] == ["person", "person", "agent", "agent", "person"]

    def pages(**more: Any) -> list[Any]:
        found, cursor = [], None
        while True:
            page = people["robot"]("list_labels", name=name, limit=2, cursor=cursor, **more)
            found += page["history"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    assert pages() == listed["history"]
    assert pages(label="canary") == [one for one in listed["history"] if one["label"] == "canary"]
    cursor = people["robot"]("list_labels", name=name, limit=1)["next_cursor"]
    for given in ({"label": "stable", "cursor": cursor}, {"cursor": cursor + "A"}, {"cursor": "x"}):
        assert refused(people["robot"].error("list_labels", name=name, **given)) == (-32602, "invalid_cursor")


def test_label_moves_require_a_grant_and_hidden_skills_show_no_labels(org: Server, new_name: str) -> None:
    author = Caller(org.url, Who("author", "read publish", f"{new_name}.*"))
    elsewhere = Caller(org.url, Who("other", "read publish", "elsewhere.*"))
    name = f"{new_name}.hidden"
    calls: tuple[tuple[str, dict[str, str]], ...] = (("describe_skill", {"version": "stable"}), ("list_labels", {}))
    # The same name before it exists: other skills whose names are similar are equal in both answers.
    absent = [elsewhere.error(method, name=name, **more) for method, more in calls]
    author.create(name)
    set_label(author, name, "stable", "1.0.0")

    for method, more in (("set_label", {"version": "1.0.0"}), ("rollback_label", {}), ("remove_label", {})):
        error = elsewhere.error(method, name=name, label="stable", **more)
        assert refused(error) == (-32002, "not_allowed")
        assert error["data"]["grant"] == f"{new_name}.*"
    assert elsewhere("list_labels", name=name)["labels"][0]["label"] == "stable"
    author("set_visibility", name=name, visibility="namespace")
    assert [elsewhere.error(method, name=name, **more) for method, more in calls] == absent


@pytest.mark.postgres
def test_of_many_moves_at_once_none_is_lost(rpc: Rpc, server: Server, skill: str) -> None:
    versions = ["1.0.0", "2.0.0", "3.0.0"] * 8

    def move(version: str) -> str:
        previous: str = set_label(Rpc(server.url), skill, "stable", version)["previous"]
        return previous

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(move, versions))

    history = rpc("list_labels", name=skill)["history"]
    assert sorted(one["version"] for one in history) == sorted(versions)
    # Each move begins where the one before it ended.
    assert [one["previous"] for one in history] == [one["version"] for one in history[1:]] + [None]
    assert points_to(rpc, skill, "stable") == history[0]["version"]


def test_a_skill_has_so_many_labels_and_no_more(sqlite_rpc: Rpc, sqlite_publish: Publish, new_name: str) -> None:
    sqlite_publish(new_name)
    for number in range(100):
        set_label(sqlite_rpc, new_name, f"label-{number}", "1.0.0")

    error = sqlite_rpc.error("set_label", name=new_name, label="more", version="1.0.0")
    assert refused(error) == (-32004, "too_many_labels")
    set_label(sqlite_rpc, new_name, "label-7", "latest")
    sqlite_rpc("remove_label", name=new_name, label="label-7")
    set_label(sqlite_rpc, new_name, "more", "1.0.0")
    assert refused(sqlite_rpc.error("rollback_label", name=new_name, label="label-7")) == (-32004, "too_many_labels")
    labels = sqlite_rpc("describe_skill", name=new_name)["skill"]["labels"]
    assert len(labels) == 100
    assert labels == sorted(labels)
