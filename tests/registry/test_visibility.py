"""Invisible skills: every endpoint responds as for a name that does not exist, byte for byte."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import ON_SQLITE, RpcError, Server, manifest, skill_files
from tests.registry.test_lifecycle import STEPS, WAY_TO, params, take
from tests.support.people import Caller, Who, people_settings

AUTHOR = Who("author", "read run publish", "*", "agent")
ADMIN = Who("admin", "admin")
# Scopes for every endpoint, and grants for other names.
OUTSIDER = Who("outsider", "read run publish review", "elsewhere.*")
# A caller with the right to publish under the name, who is not the author.
COLLEAGUE = Who("colleague", "read run publish", "*")
VISIBILITIES = ("public", "namespace", "private")
_numbers = itertools.count()


@pytest.fixture
def as_(org: Server) -> Callable[[Who], Caller]:
    return lambda who: Caller(org.url, who)


def publish(as_: Callable[[Who], Caller], name: str, status: str = "published", version: str = "1.0.0") -> str:
    digest: str = as_(AUTHOR).create(name, version, code="def main(args): return 'secret'\n")["digest"]
    for method in WAY_TO[status]:
        assert "result" in take(as_(ADMIN), method, name, version)
    return digest


SPECS = ("", "latest", "1.0.0", "2.0.0", "^1.0.0", "^2.0.0", ">=0.0.1", "*", "stable")


def doors(name: str, digest: str) -> list[tuple[str, dict[str, Any]]]:
    """Return every request that can name a skill: by its name, by similar names, and by its digest."""
    asked: list[tuple[str, dict[str, Any]]] = []
    for spec in (*SPECS, digest):
        asked += [
            ("describe_skill", {"name": name, "version": spec, "detail": detail}) for detail in ("summary", "full")
        ]
        asked += [
            ("read_skill_file", {"name": name, "version": spec, "path": "SKILL.md"}),
            ("read_skill_file", {"name": name, "version": spec, "path": "nothing"}),
            ("execute_skill", {"name": name, "version": spec}),
            ("resolve_skills", {"skills": [f"{name}@{spec}"]}),
            (
                "run_code",
                {"language": "python", "code": "def main(a): return 1", "mount_skills": [f"{name}@{spec or 'latest'}"]},
            ),
        ]
    asked.append(("run_code", {"language": "python", "code": "def main(a): return 1", "mount_skills": [name]}))
    for near in (name + "x", name[:-1], name.replace("-", "_")):
        asked.append(("describe_skill", {"name": near}))
        asked.append(("execute_skill", {"name": near}))
        asked.append(("run_code", {"language": "python", "code": "def main(a): return 1", "mount_skills": [near]}))
    namespace = name.rpartition(".")[0]
    for detail in ("names", "summary"):
        asked += [
            ("list_skills", {"namespace": place, "detail": detail, "limit": limit})
            for place in (namespace, "")
            for limit in (1, 1000)
        ]
    asked += [(method, params(method, name)) for method in STEPS]
    asked.append(("set_visibility", {"name": name, "visibility": "public"}))
    asked += [("list_labels", {"name": name}), ("set_label", {"name": name, "label": "stable", "version": "1.0.0"})]
    asked += [(method, {"name": name, "label": "stable"}) for method in ("rollback_label", "remove_label")]
    asked += [("search_skills", {"query": text, "limit": limit}) for text in (name, "some") for limit in (1, 100)]
    for version in ("1.0.0", "2.0.0"):
        asked.append(("verify_lock", {"lock": [{"name": name, "version": version, "digest": digest}]}))
    return asked


MOST_IN_A_BATCH = 100


def answers(who: Caller, asked: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
    found = []
    for first in range(0, len(asked), MOST_IN_A_BATCH):
        part = enumerate(asked[first : first + MOST_IN_A_BATCH])
        calls = [{"jsonrpc": "2.0", "id": at, "method": method, "params": given} for at, (method, given) in part]
        response = who.http.post("/rpc", json=calls)
        assert response.status_code == 200
        replies = [bytes(reply) for reply in msgspec.json.decode(response.content, type=list[msgspec.Raw])]
        assert len(replies) == len(calls)
        found += sorted(replies, key=lambda reply: int(msgspec.json.decode(reply)["id"]))
    for form in ("openai", "mcp"):
        found.append(who.http.get("/tools", params={"format": form}).content)
    return found


HIDDEN = [
    *((status, "public") for status in ("draft", "in_review", "rejected")),
    *(
        (status, visibility)
        for status in ("published", "deprecated", "yanked", "draft")
        for visibility in ("namespace", "private")
    ),
]


# The same statements filter the rows of each status, so a few statuses show that Postgres filters them as SQLite does.
ON_POSTGRES = [("draft", "public"), ("published", "namespace"), ("published", "private"), ("yanked", "private")]


@pytest.mark.parametrize(
    ("status", "visibility", "database_kind"),
    [*((*hidden, "sqlite") for hidden in HIDDEN), *((*hidden, "postgres") for hidden in ON_POSTGRES)],
    indirect=["database_kind"],
)
@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_invisible_skills_answer_like_missing_skills(
    as_: Callable[[Who], Caller], new_name: str, status: str, visibility: str
) -> None:
    name = f"{new_name}.some-skill"
    publish(as_, f"{new_name}.some-other")
    # Digests depend on the contents alone: the same skill on another server has this digest.
    digest = publish(as_, f"{new_name}x.probe")
    outsider = as_(OUTSIDER)
    before = answers(outsider, doors(name, digest))

    made = publish(as_, name, status)
    as_(ADMIN)("set_visibility", name=name, visibility=visibility)

    assert as_(ADMIN).status(name) == status
    assert as_(AUTHOR).status(name) == status
    for asked, was, now in zip(
        [*doors(name, digest), "tools", "tools"], before, answers(outsider, doors(name, digest)), strict=True
    ):
        assert now == was, asked
    # The same holds for requests with the digest of the hidden version: only the digest differs in the response.
    pairs = zip(doors(name, made), doors(name, digest), strict=True)
    own, other = zip(*(pair for pair in pairs if pair[0] != pair[1]), strict=True)
    for asked, with_own, with_other in zip(
        [*own, "tools", "tools"], answers(outsider, [*own]), answers(outsider, [*other]), strict=True
    ):
        assert with_own.replace(made.encode(), digest.encode()) == with_other, asked


def test_hidden_version_of_a_visible_skill_answers_like_a_missing_version(
    as_: Callable[[Who], Caller], new_name: str
) -> None:
    name = f"{new_name}.a"
    publish(as_, name)
    digest = publish(as_, f"{new_name}.probe")
    outsider = as_(OUTSIDER)
    asked = [
        (method, given)
        for method, given in doors(name, digest)
        # The published version can be run and described, so only requests for the invisible version are compared.
        if given.get("version") in ("2.0.0", "^2.0.0", digest)
        or "@2" in str(given)
        or "@^2" in str(given)
        or method == "list_skills"
    ]
    before = answers(outsider, asked)
    for status, version in (("draft", "2.0.0"), ("in_review", "2.1.0"), ("rejected", "2.2.0")):
        publish(as_, name, status, version)

    for one, was, now in zip([*asked, "tools", "tools"], before, answers(outsider, asked), strict=True):
        assert now == was, one
    for spec in ("", "latest", "*", ">=1.0.0"):
        assert as_(AUTHOR)("describe_skill", name=name, version=spec)["skill"]["version"] == "1.0.0"


WHO_SEES: dict[str, tuple[Who, set[str]]] = {
    "member of a shorter name": (Who("m8", "read run", "SHORT.*"), {"public"}),
    "author": (AUTHOR, {"public", "namespace", "private"}),
    "admin": (ADMIN, {"public", "namespace", "private"}),
    "reviewer of all": (Who("r1", "read run review"), {"public", "namespace", "private"}),
    "reviewer of every name": (Who("r2", "read run review", "*"), {"public", "namespace", "private"}),
    "reviewer of the namespace": (Who("r3", "read run review", "NS.*"), {"public", "namespace", "private"}),
    "reviewer of another namespace": (Who("r4", "read run review", "elsewhere.*"), {"public"}),
    "member": (Who("m1", "read run", "NS.*"), {"public", "namespace"}),
    "member of several": (Who("m2", "read run", "b.* NS.* c.*"), {"public", "namespace"}),
    "member of all": (Who("m3", "read run", "*"), {"public", "namespace"}),
    "member of many": (
        Who("m7", "read run", "NS.* " + " ".join(f"n{n}.deep.er.*" for n in range(20))),
        {"public", "namespace"},
    ),
    "reviewer of very many": (
        Who("r5", "read run review", " ".join(f"n{n}.*" for n in range(600)) + " NS.*"),
        {"public", "namespace", "private"},
    ),
    "member of a look-alike": (Who("m4", "read run", "NS-x.* NSx.* NS"), {"public"}),
    "member below": (Who("m5", "read run", "NS.private.*"), {"public"}),
    "reader": (Who("m6", "read run"), {"public"}),
}


@ON_SQLITE
def test_list_skills_fills_pages_with_visible_skills(as_: Callable[[Who], Caller], new_name: str) -> None:
    """Skills of every visibility are mixed, in the namespace, above it and below it."""
    seen = []
    for number in range(9):
        name = f"{new_name}.deep.a{number}"
        more = {"namespace": new_name} if number >= 6 else {}
        as_(COLLEAGUE).create(name, **more)
        visibility = VISIBILITIES[number % 3]
        as_(ADMIN)("set_visibility", name=name, visibility=visibility)
        if visibility != "private":
            seen.append(name)
    own = f"{new_name}.zown"
    as_(Who("m", "publish", "*")).create(own)
    as_(ADMIN)("set_visibility", name=own, visibility="private")
    member = as_(Who("m", "read", f"{new_name}.deep.*"))
    # The order is (namespace, name), so skills of the parent namespace come first.
    expected = [*seen[4:], own, *seen[:4]]

    for limit in (1, 2, 3, 100):
        listed, cursor = [], None
        while True:
            page = member("list_skills", namespace=new_name, limit=limit, cursor=cursor)
            listed.append([row["name"] for row in page["skills"]])
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert [name for names in listed for name in names] == expected
        assert all(len(names) == limit for names in listed[:-1])
        assert listed[-1]


@pytest.fixture(scope="module")
def seen_by_roles(org: Server) -> str:
    """Publish a skill of each visibility into a new namespace. Return the namespace."""
    namespace = f"seen{os.getpid()}x{next(_numbers)}z"
    admin, author = Caller(org.url, ADMIN), Caller(org.url, AUTHOR)
    for visibility in VISIBILITIES:
        publish(lambda who: admin if who == ADMIN else author, f"{namespace}.{visibility}")
        admin("set_visibility", name=f"{namespace}.{visibility}", visibility=visibility)
    return namespace


@pytest.mark.parametrize(
    "role", [pytest.param(role, marks=pytest.mark.full) if "very many" in role else role for role in WHO_SEES]
)
@pytest.mark.full(after=5)
def test_list_and_describe_show_each_role_its_visible_skills(
    as_: Callable[[Who], Caller], seen_by_roles: str, role: str
) -> None:
    new_name = seen_by_roles
    who, sees = WHO_SEES[role]
    caller = as_(who._replace(grants=who.grants.replace("NS", new_name).replace("SHORT", new_name[:-1])))

    # The list of all namespaces has all skills of the shared server.
    for namespace, limit in ((new_name, 2), ("", 50)):
        listed, cursor = [], None
        while True:
            page = caller("list_skills", namespace=namespace, limit=limit, cursor=cursor)
            listed += [row["name"] for row in page["skills"] if row["name"].startswith(f"{new_name}.")]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        assert listed == [f"{new_name}.{one}" for one in sorted(sees)]
    for visibility in VISIBILITIES:
        name = f"{new_name}.{visibility}"
        described = caller.send("describe_skill", {"name": name})
        assert ("result" in described) == (visibility in sees), visibility
        if visibility in sees:
            assert described["result"]["skill"]["visibility"] == visibility
        near = caller.error("describe_skill", name=name + "x")["data"]["near"]
        assert (name in near) == (visibility in sees), visibility


def test_a_stated_namespace_gives_no_rights(as_: Callable[[Who], Caller], new_name: str) -> None:
    """A skill of one team states the namespace of another team."""
    mine, theirs = f"{new_name}-mine", f"{new_name}-theirs"
    publisher = as_(Who("mine", "read publish", f"{mine}.*"))
    publisher.create(f"{mine}.a", namespace=theirs)
    as_(ADMIN)("set_visibility", name=f"{mine}.a", visibility="namespace")
    as_(COLLEAGUE).create(f"{theirs}.b")
    as_(ADMIN)("set_visibility", name=f"{theirs}.b", visibility="namespace")
    other = as_(Who("theirs", "read publish", f"{theirs}.*"))

    def listed(caller: Caller, namespace: str) -> list[str]:
        return [row["name"] for row in caller("list_skills", namespace=namespace, limit=1000)["skills"]]

    assert listed(publisher, theirs) == [f"{mine}.a"]
    assert f"{mine}.a" in listed(publisher, "")
    assert listed(publisher, mine) == []
    assert listed(other, theirs) == [f"{theirs}.b"]
    assert listed(as_(ADMIN), theirs) == [f"{mine}.a", f"{theirs}.b"]
    assert other.error("describe_skill", name=f"{mine}.a")["data"]["type"] == "skill_not_found"
    many = as_(Who("many", "read", " ".join(f"{new_name}-{number}.*" for number in range(20)) + f" {mine}.*"))
    assert listed(many, theirs) == [f"{mine}.a"]
    index = publisher.http.get(f"/n/{theirs}/.well-known/agent-skills/index.json").json()
    assert index["skills"] == []


def test_private_skill_is_visible_to_publishers_of_its_versions(as_: Callable[[Who], Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    publish(as_, name)
    colleague = as_(COLLEAGUE)
    colleague.create(name, "1.1.0")
    as_(AUTHOR)("set_visibility", name=name, visibility="private")

    assert colleague.status(name, "1.0.0") == "published"
    assert as_(Who("third", "read run publish", "*")).status(name) == "unseen"


def test_publishing_into_an_invisible_skill_is_refused(as_: Callable[[Who], Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    publish(as_, name)
    as_(AUTHOR)("set_visibility", name=name, visibility="private")
    replies = []
    for version, code in (
        ("1.0.0", "def main(args): return 'secret'\n"),
        ("1.0.0", "def main(a): 1\n"),
        ("9.0.0", "def main(a): 1\n"),
    ):
        with pytest.raises(RpcError) as caught:
            as_(COLLEAGUE).create(name, version, code=code)
        replies.append(caught.value.error)

    assert replies[0]["code"] == -32004
    assert replies[0]["data"]["type"] == "name_taken"
    assert replies[0] == replies[1] == replies[2]
    assert as_(COLLEAGUE).status(name) == "unseen"


def test_a_mount_and_a_call_take_the_callers_view(as_: Callable[[Who], Caller], new_name: str) -> None:
    name = f"{new_name}.a"
    publish(as_, name, "draft")
    code = f"from skills.{name} import main as inner\ndef main(args): return inner(args)\n"
    asked = {"language": "python", "code": code, "mount_skills": [f"{name}@1.0.0"]}

    assert as_(AUTHOR)("run_code", **asked)["output"] == "secret"
    assert as_(OUTSIDER).error("run_code", **asked)["code"] == -32003


def test_blob_of_another_owner_answers_like_a_missing_blob(as_: Callable[[Who], Caller], new_name: str) -> None:
    blob_id = as_(AUTHOR)("create_blob", content="secret", kind="text/plain")["blob_id"]
    missing = "blob:" + "0" * (len(blob_id) - 5)
    outsider = as_(OUTSIDER)

    def asked(one: str) -> list[bytes]:
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_blob", {"blob_id": one}),
            ("run_code", {"language": "python", "code": "def main(a): return 1", "input_blobs": [one]}),
        ]
        response = outsider.http.get(f"/blobs/{one}")
        assert response.status_code == 404
        return [*answers(outsider, calls), response.content]

    assert [one.replace(blob_id.encode(), missing.encode()) for one in asked(blob_id)] == asked(missing)


@pytest.mark.full
def test_the_visibility_of_a_new_skill_is_a_setting(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    server = start_server(env=people_settings(tmp_path / "plugins", SKILLERY_DEFAULT_VISIBILITY="private"))
    author, other = Caller(server.url, COLLEAGUE), Caller(server.url, Who("other", "read publish", "*"))
    author.create("a.b")
    author.create("a.b", "1.1.0")

    assert author("describe_skill", name="a.b")["skill"]["visibility"] == "private"
    assert other.status("a.b") == "unseen"
    error = other.error("create_skill", manifest=manifest("a.b", "3.0.0"), skill_md="# A", files=skill_files())
    assert error["data"]["type"] == "name_taken"
    assert author("set_visibility", name="a.b", visibility="public")["version"] == "1.1.0"
    assert other.status("a.b") == "published"
    # The bundled skills are visible to all callers.
    assert other("load_skills_protocol_guide")["content"]
