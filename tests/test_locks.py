"""Locks: what skills are now, by digest; whether that still holds; and their files on disk, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conftest import Rpc, Server
from tests.people import Caller, Who

Publish = Callable[..., dict[str, Any]]
NO_DIGEST = "sha256:" + "0" * 64


def problems(verified: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["name"], one["version"], one["problem"]) for one in verified["problems"]]


def test_each_spec_is_locked_as_the_version_that_it_means(rpc: Rpc, publish: Publish, new_name: str) -> None:
    a, b = f"{new_name}.a", f"{new_name}.b"
    digests = {version: publish(a, version)["digest"] for version in ("1.0.0", "1.1.0", "2.0.0")}
    other = publish(b)["digest"]
    rpc("set_label", name=a, label="stable", version="1.1.0")

    entry = {"name": b, "version": "1.0.0", "digest": other, "status": "published"}
    for spec in ("1.1.0", "^1", "stable", digests["1.1.0"]):
        lock = rpc("resolve_skills", skills=[b, f"{a}@{spec}", f"{a}@1.1.0", b, f"{b}@latest"])["lock"]
        assert lock == [entry, {"name": a, "version": "1.1.0", "digest": digests["1.1.0"], "status": "published"}]
    assert rpc("resolve_skills", skills=[])["lock"] == []


def test_what_does_not_resolve_is_named(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name)

    for text, code, kind in (
        (f"{new_name}.none", -32003, "skill_not_found"),
        (f"{new_name}@^9", -32003, "version_not_found"),
        (f"{new_name}@stable", -32003, "label_not_found"),
        (f"{new_name}@!", -32602, "invalid_version_spec"),
        ("No Name", -32602, "invalid_name"),
        ("", -32602, "invalid_name"),
        (NO_DIGEST, -32602, "invalid_name"),
    ):
        error = rpc.error("resolve_skills", skills=[new_name, text])
        assert (error["code"], error["data"]["type"], error["data"]["skill"]) == (code, kind, text)
        assert repr(text) in error["message"]


def test_a_lock_says_what_a_name_means_so_one_skill_has_one_version(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for version in ("1.0.0", "2.0.0"):
        publish(new_name, version)

    error = rpc.error("resolve_skills", skills=[f"{new_name}@^1", new_name])
    assert error["code"] == -32602
    assert all(word in error["message"] for word in (new_name, "1.0.0", "2.0.0"))


def test_a_lock_has_at_most_a_thousand_skills(sqlite_rpc: Rpc) -> None:
    name = "text.csv.profile"

    assert len(sqlite_rpc("resolve_skills", skills=[name] * 1000)["lock"]) == 1
    assert sqlite_rpc.error("resolve_skills", skills=[name] * 1001)["code"] == -32602
    (entry,) = sqlite_rpc("resolve_skills", skills=[name])["lock"]
    assert sqlite_rpc("verify_lock", lock=[entry] * 1000)["ok"]
    assert sqlite_rpc.error("verify_lock", lock=[entry] * 1001)["code"] == -32602


def test_a_lock_holds_until_one_of_its_versions_is_yanked(rpc: Rpc, publish: Publish, new_name: str) -> None:
    a, b = f"{new_name}.a", f"{new_name}.b"
    publish(a)
    publish(b)
    lock = rpc("resolve_skills", skills=[a, b])["lock"]

    publish(a, "2.0.0")
    assert rpc("verify_lock", lock=lock) == {"ok": True, "problems": [], "warnings": []}
    rpc("deprecate_skill", name=b, message="It is old.", successor=a)
    verified = rpc("verify_lock", lock=lock)
    assert verified["ok"]
    (warning,) = verified["warnings"]
    assert (warning["name"], warning["version"], warning["problem"]) == (b, "1.0.0", "deprecated")
    assert "It is old." in warning["message"]
    assert a in warning["message"]
    rpc("yank_version", name=a, version="1.0.0", reason="It loses leads.")
    verified = rpc("verify_lock", lock=lock)
    assert not verified["ok"]
    assert problems(verified) == [(a, "1.0.0", "yanked")]
    assert "It loses leads." in verified["problems"][0]["message"]


def test_whatever_a_lock_holds_is_told_and_not_raised(rpc: Rpc, publish: Publish, new_name: str) -> None:
    digest = publish(new_name)["digest"]
    publish(new_name, "2.0.0")

    def locked(name: str, version: str, digest: str = digest) -> dict[str, str]:
        return {"name": name, "version": version, "digest": digest}

    verified = rpc(
        "verify_lock",
        lock=[
            locked(new_name, "1.0.0"),
            locked(new_name, "1.0.0", digest.upper().replace("SHA", "sha")),
            locked(new_name, "1.0.0", NO_DIGEST),
            locked(new_name, "1.0.0", "x" * 5000),
            locked(new_name, "3.0.0"),
            locked(f"{new_name}.none", "1.0.0"),
            locked("../etc", "1.0.0"),
            locked("", ""),
            locked(f"{new_name}.x", "^1"),
            locked(f"{new_name}.y", "\0"),
        ],
    )
    assert problems(verified) == [
        (new_name, "1.0.0", "digest_changed"),
        (new_name, "1.0.0", "digest_changed"),
        (new_name, "3.0.0", "two_versions"),
        (new_name, "3.0.0", "gone"),
        (f"{new_name}.none", "1.0.0", "gone"),
        ("../etc", "1.0.0", "invalid"),
        ("", "", "invalid"),
        (f"{new_name}.x", "^1", "invalid"),
        (f"{new_name}.y", "\0", "invalid"),
    ]
    assert all(one["message"] and len(one["message"]) < 1000 for one in verified["problems"])
    for wrong in ({"name": new_name, "version": "1.0.0"}, {**locked(new_name, "1.0.0"), "more": 1}, "x"):
        assert rpc.error("verify_lock", lock=[wrong])["code"] == -32602


def test_what_one_may_not_see_is_gone(org: Server, new_name: str) -> None:
    author = Caller(org.url, Who("author", "read publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("agent", "read publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("reviewer", "read review"))
    stranger = Caller(org.url, Who("stranger", "read"))
    name, draft = f"{new_name}.a", f"{new_name}.draft"
    author.create(name)
    agent.create(draft)
    lock = agent("resolve_skills", skills=[name, f"{draft}@1.0.0"])["lock"]
    assert [one["status"] for one in lock] == ["published", "draft"]
    author("set_visibility", name=name, visibility="namespace")

    assert stranger.error("resolve_skills", skills=[name])["data"]["type"] == "skill_not_found"
    verified = stranger("verify_lock", lock=lock)
    assert problems(verified) == [(name, "1.0.0", "gone"), (draft, "1.0.0", "gone")]
    assert verified["problems"][0]["message"] == f"there is no skill '{name}'"
    verified = agent("verify_lock", lock=lock)
    assert verified["ok"]
    assert [one["problem"] for one in verified["warnings"]] == ["not_published"]
    agent("submit_version", name=draft, version="1.0.0")
    reviewer("reject_version", name=draft, version="1.0.0", reason="It deletes files.")
    assert problems(agent("verify_lock", lock=lock)) == [(draft, "1.0.0", "rejected")]
