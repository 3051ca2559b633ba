"""Importing: folders and archives of foreign skills are imported, each with a report of its repairs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.cli.archives import scan_folder, tar_chunks
from skillery.errors import StartupError, StorageFull
from skillery.formats.bundle import BundleLimits
from skillery.formats.foreign_skill import loose_version, registry_name
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.importing import Importer, ImportLimits
from skillery.importing.skill_names import next_version
from skillery.rest.imports import is_too_slow
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server
from tests.support.archives import skill_md, tarred, tgz, zipped
from tests.support.people import Caller, Who
from tests.support.prefork import FORKED


def sent(rpc: Rpc, data: bytes, **params: str) -> dict[str, Any]:
    response = rpc.http.post("/import", params=params, content=data)
    assert response.status_code == 200, response.text
    report: dict[str, Any] = response.json()
    return report


def by_path(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {skill["path"]: skill for skill in report["skills"]}


def codes(skill: dict[str, Any]) -> set[str]:
    return {repair["code"] for repair in skill.get("repairs", ())}


# -- found skills ----------------------------------------------------------------------------------------------------


def test_many_skills_come_in_and_every_byte_is_stored(rpc: Rpc, new_name: str) -> None:
    broken = b"\xef\xbb\xbf---\r\nname: two\r\ndescription: Use it: always\r\nauthor: me\r\n---\r\n# Two\r\n"
    report = sent(
        rpc,
        zipped(
            {
                "repo-main/README.md": "# Repo",
                "repo-main/skills/one/SKILL.md": skill_md("one"),
                "repo-main/skills/one/scripts/run.sh*": "#!/bin/sh\n",
                "repo-main/skills/one/data/any.xyz": bytes(range(256)),
                "repo-main/skills/two/SKILL.md": broken,
                "__MACOSX/repo-main/skills/one/._SKILL.md": b"\0\1",
            },
            {"repo-main/skills/one/link.sh": "scripts/run.sh", "repo-main/skills/one/out.md": "../two/SKILL.md"},
        ),
        namespace=new_name,
    )

    found = by_path(report)
    assert report["counts"] == {"published": 2}
    one, two = found["repo-main/skills/one"], found["repo-main/skills/two"]
    assert (one["name"], one["version"], codes(one)) == (f"{new_name}.one", "1.0.0", set())
    assert [(left["path"], left["why"]) for left in one["left_out"]] == [("out.md", "link")]
    assert codes(two) == {"byte_order_mark", "line_ends", "unquoted_value", "unknown_keys"}
    assert {left["path"] for left in report["left_out"]} == {"repo-main/README.md", "__MACOSX"}

    skill = rpc("describe_skill", name=f"{new_name}.one", detail="full")["skill"]
    files = {file["path"]: file["executable"] for file in skill["files"]}
    assert files == {
        "SKILL.md": False,
        "skill.toml": False,
        "scripts/run.sh": True,
        "link.sh": True,
        "data/any.xyz": False,
    }
    stored = rpc("read_skill_file", name=f"{new_name}.two", path="SKILL.md")["content"]
    assert stored.encode() == broken
    described = rpc("describe_skill", name=f"{new_name}.two")["skill"]
    assert described["skill_md_frontmatter"] == {"name": "two", "description": "Use it: always", "author": "me"}
    assert (described["kind"], described["manifest"]["description"]) == ("instruction", "Use it: always")


def test_nested_skill_md_is_a_file_outside_a_skills_folder(rpc: Rpc, new_name: str) -> None:
    report = sent(
        rpc,
        tgz(
            {
                "SKILL.md": skill_md("outer"),
                "templates/SKILL.md": skill_md("template"),
                "skills/inner/SKILL.md": skill_md("inner"),
                "skills/inner/assets/SKILL.md": skill_md("example"),
            }
        ),
        namespace=new_name,
        name="outer",
    )

    assert {path: skill["name"] for path, skill in by_path(report).items()} == {
        "": f"{new_name}.outer",
        "skills/inner": f"{new_name}.inner",
    }
    files = rpc("describe_skill", name=f"{new_name}.outer", detail="full")["skill"]["files"]
    assert {file["path"] for file in files} == {"SKILL.md", "skill.toml", "templates/SKILL.md"}


def test_agent_folders_do_not_override_another_skill_of_the_canonical_folder(rpc: Rpc, new_name: str) -> None:
    files = {
        ".agents/skills/pdf/SKILL.md": skill_md("pdf", "Of an agent."),
        ".claude/skills/pdf/SKILL.md": skill_md("pdf", "Canonical."),
        "skills/pdf/SKILL.md": skill_md("pdf", "Canonical."),
    }
    for outcome in ("published", "unchanged"):
        report = sent(rpc, zipped(files), namespace=new_name)

        found = by_path(report)
        assert report["counts"] == {outcome: 2, "merged": 1}
        assert found["skills/pdf"]["name"] == f"{new_name}.pdf"
        assert found[".agents/skills/pdf"]["name"] == f"{new_name}.pdf-agents"
        assert found[".claude/skills/pdf"]["by"] == "skills/pdf"
    assert rpc("describe_skill", name=f"{new_name}.pdf")["skill"]["manifest"]["description"] == "Canonical."


def test_links_to_folders_and_in_circles(rpc: Rpc, new_name: str) -> None:
    data = tarred(
        {"a/SKILL.md": skill_md("a"), "a/docs/x.md": "x"},
        {"a/more": "docs", "a/docs/round": "../docs", "a/one": "two", "a/two": "one", "a/gone": "nothing"},
    )
    [skill] = sent(rpc, data, namespace=new_name)["skills"]

    files = rpc("describe_skill", name=f"{new_name}.a", detail="full")["skill"]["files"]
    assert {file["path"] for file in files} == {"SKILL.md", "skill.toml", "docs/x.md", "more/x.md"}
    assert {left["path"] for left in skill["left_out"]} == {"docs/round", "one", "two", "gone"}


def test_a_folder_with_a_skill_toml_says_everything_itself(rpc: Rpc, new_name: str) -> None:
    toml = f'name = "{new_name}.own"\nversion = "2.3.4"\ndescription = "Its own."\n'
    data = zipped({"x/SKILL.md": "no frontmatter", "x/skill.toml": toml})

    [skill] = sent(rpc, data)["skills"]
    assert (skill["name"], skill["version"], codes(skill)) == (f"{new_name}.own", "2.3.4", {"missing_frontmatter"})
    [refused] = sent(rpc, data, namespace="elsewhere")["skills"]
    assert (refused["outcome"], "elsewhere" in refused["error"]["message"]) == ("refused", True)


# -- independence of skills ------------------------------------------------------------------------------------------


@ON_SQLITE
def test_import_continues_after_malformed_skills(rpc: Rpc, new_name: str) -> None:
    deep = "/".join("x" * 10)
    files: dict[str, str | bytes] = {f"s{number}/SKILL.md": skill_md(f"s{number}") for number in range(40)}
    files |= {
        "bad-toml/skill.toml": "= nonsense",
        "bad-toml/SKILL.md": "# x",
        "no-skill-md/skill.toml": 'name = "x"',
        "twins/SKILL.md": skill_md("twins"),
        "twins/Readme.md": "a",
        "twins/README.md": "b",
        "deep/SKILL.md": skill_md("deep"),
        f"deep/{deep}": "x",
        "many/SKILL.md": skill_md("many"),
        **{f"many/{number}": "x" for number in range(600)},
        "nested/SKILL.md": "---\nname: nested\nx: " + "[" * 6000 + "\n---\n",
    }
    report = sent(rpc, zipped(files), namespace=new_name)

    found = by_path(report)
    assert report["counts"] == {"published": 41, "refused": 5}
    assert found["twins"]["error"]["data"]["file"] in {"Readme.md", "README.md"}
    assert found["deep"]["error"]["data"]["file"] == f"deep/{deep}".removeprefix("deep/")
    assert "bundle_max_files" in found["many"]["error"]["data"]["hint"]
    assert found["bad-toml"]["error"]["data"]["file"] == "skill.toml"
    assert found["nested"]["outcome"] == "published"


def test_a_name_twice_in_an_archive_refuses_that_skill_alone(rpc: Rpc, new_name: str) -> None:
    import io
    import zipfile

    into = io.BytesIO(zipped({"a/SKILL.md": skill_md("a"), "b/SKILL.md": skill_md("b")}))
    with zipfile.ZipFile(into, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a/SKILL.md", "another")
    found = by_path(sent(rpc, into.getvalue(), namespace=new_name))

    assert (found["a"]["error"]["data"]["entry"], found["b"]["outcome"]) == ("a/SKILL.md", "published")


# -- names and versions ----------------------------------------------------------------------------------------------


def test_import_maps_stated_names_to_distinct_stable_names(rpc: Rpc, new_name: str) -> None:
    stated = ["a b", "a-b", "A.B", "a.b", "日本語", "a_b"]
    files = {f"f{number}/SKILL.md": skill_md(json.dumps(name)) for number, name in enumerate(stated)}
    first = sent(rpc, zipped(files), namespace=new_name)
    names = {skill["stated"]: skill["name"] for skill in first["skills"]}

    assert len(set(names.values())) == len(stated)
    assert names["a b"] == f"{new_name}.a-b"
    assert names["a-b"] == f"{new_name}.a-b-f1"
    assert names["a_b"] == f"{new_name}.a_b"
    assert names["日本語"] == f"{new_name}.ri-ben-yu"
    # The same skills are changed and imported in another order.
    changed = {f"g{number}/SKILL.md": skill_md(json.dumps(name), "New.") for number, name in enumerate(stated[::-1])}
    again = sent(rpc, zipped(changed), namespace=new_name)
    assert {skill["stated"]: skill["name"] for skill in again["skills"]} == names
    assert {skill["version"] for skill in again["skills"]} == {"1.0.1"}


def test_a_name_that_is_mended_leaves_that_of_another_folder_alone(rpc: Rpc, new_name: str) -> None:
    stated = ["pdf tools", "pdf-tools"]
    found = by_path(sent(rpc, zipped({f"{name}/SKILL.md": skill_md(name) for name in stated}), namespace=new_name))
    assert found["pdf-tools"]["name"] == f"{new_name}.pdf-tools"
    assert codes(found["pdf-tools"]) == set()
    assert found["pdf tools"]["name"] == f"{new_name}.pdf-tools-2"
    assert "name" in codes(found["pdf tools"])


def test_repairs_report_a_name_different_from_the_stated_name(rpc: Rpc, new_name: str) -> None:
    sent(rpc, zipped({"x/SKILL.md": skill_md("a b")}), namespace=new_name)
    [skill] = sent(rpc, zipped({"a-b/SKILL.md": skill_md("a-b")}), namespace=new_name)["skills"]
    assert skill["name"] == f"{new_name}.a-b-2"
    assert [repair["code"] for repair in skill["repairs"]] == ["name"]


def test_folders_with_the_same_stated_name_become_separate_skills(rpc: Rpc, new_name: str) -> None:
    data = zipped(
        {
            "a/pdf/SKILL.md": skill_md("pdf", "One."),
            "b/pdf/SKILL.md": skill_md("pdf", "Two."),
            "c/pdf-copy/SKILL.md": skill_md("pdf", "Three."),
            "d/pdf/SKILL.md": skill_md("pdf", "One."),
        }
    )
    for outcome in ("published", "unchanged"):
        found = by_path(sent(rpc, data, namespace=new_name))
        assert {path: skill.get("name") for path, skill in found.items()} == {
            "a/pdf": f"{new_name}.pdf",
            "b/pdf": f"{new_name}.pdf-b",
            "c/pdf-copy": f"{new_name}.pdf-copy",
            "d/pdf": None,
        }
        assert (found["d/pdf"]["outcome"], found["d/pdf"]["by"]) == ("merged", "a/pdf")
        assert found["b/pdf"]["outcome"] == outcome
        assert "name_of_another" in codes(found["b/pdf"]) & codes(found["c/pdf-copy"])


def test_versions_are_as_stated_or_the_next_that_is_free(rpc: Rpc, new_name: str) -> None:
    def again(text: str) -> tuple[str, str, set[str]]:
        [skill] = sent(rpc, zipped({"v/SKILL.md": text}), namespace=new_name)["skills"]
        return skill["outcome"], skill["version"], codes(skill)

    stated = skill_md("v", metadata="{version: 1.10}")
    assert again(stated) == ("published", "1.10.0", {"loose_version"})
    assert again(stated) == ("unchanged", "1.10.0", {"loose_version"})
    assert again(stated + "more") == ("published", "1.10.1", {"loose_version", "version_taken"})
    assert again(skill_md("v")) == ("published", "1.10.2", set())
    assert again(skill_md("v", version="soon")) == ("published", "1.10.3", {"bad_version"})
    assert again(skill_md("v", version="2.0.0-beta.1")) == ("published", "2.0.0-beta.1", set())


def test_the_name_yes_is_a_name(rpc: Rpc, new_name: str) -> None:
    [skill] = sent(rpc, zipped({"yes/SKILL.md": skill_md("yes")}), namespace=new_name)["skills"]

    assert (skill["name"], codes(skill)) == (f"{new_name}.yes", set())


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("PDF Tools", "pdf-tools"),
        ("Über Größe", "uber-grosse"),
        ("Café!", "cafe"),
        ("代码审查", "dai-ma-shen-cha"),
        ("Привет мир", "privet-mir"),
    ],
)
def test_a_name_becomes_the_nearest(stated: str, name: str) -> None:
    assert registry_name(stated) == name


def test_titles_are_shown_where_names_are(sqlite_server: Server, sqlite_rpc: Rpc, new_name: str) -> None:
    titles = {"code": "代码审查", "own": "Own Title", "meta": "Meta & more", "heading": "A heading", "plain": None}
    files = {
        f"{new_name}-code/SKILL.md": f"---\nname: 代码审查\ndescription: Reviews {new_name}.\n---\n# Other\n",
        f"{new_name}-own/SKILL.md": skill_md(f"{new_name}-own", title="Own Title", metadata='{title: "x"}'),
        f"{new_name}-meta/SKILL.md": skill_md(f"{new_name}-meta", metadata='{title: "Meta & more"}'),
        f"{new_name}-heading/SKILL.md": "---\ndescription: Text.\n---\nText\n\n# A heading #\n",
        f"{new_name}-plain/SKILL.md": skill_md(f"{new_name}-plain"),
    }
    report = by_path(sent(sqlite_rpc, zipped(files), namespace=new_name))
    names = {key: report[f"{new_name}-{key}"]["name"] for key in titles}

    listed = {skill["name"]: skill.get("title") for skill in sqlite_rpc("list_skills", namespace=new_name)["skills"]}
    found = sqlite_rpc("search_skills", query=f"reviews {new_name}", namespace=new_name)["skills"]
    described = {key: sqlite_rpc("describe_skill", name=name)["skill"].get("title") for key, name in names.items()}
    page = httpx.get(f"{sqlite_server.url}/s/{names['meta']}").text
    catalogue = httpx.get(f"{sqlite_server.url}/", params={"ns": new_name}, headers={"accept": "text/html"}).text

    assert names["code"] == f"{new_name}.dai-ma-shen-cha"
    assert {key: listed[name] for key, name in names.items()} == titles
    assert (found[0]["name"], found[0]["title"]) == (names["code"], "代码审查")
    assert described == titles | {"heading": None}
    assert "Meta &amp; more</bdi></span>" in page
    assert "代码审查</bdi></span>" in catalogue


@given(st.text(max_size=80))
def test_every_name_has_a_name_in_the_registry(stated: str) -> None:
    assert parse_skill_name(registry_name(stated))


@given(
    st.lists(st.sampled_from(["1.0.0", "1.0.1", "1.2.0", "2.0.0-a", "2.0.0"])), st.sampled_from(["", "1.0.0", "3.0.0"])
)
def test_the_next_version_is_free(taken: list[str], declared: str) -> None:
    there = sorted((Version.parse(one) for one in set(taken)), key=lambda version: version.precedence)

    assert next_version(Version.parse(declared) if declared else None, there) not in there


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1", "1.0.0"), ("1.10", "1.10.0"), ("v2.0", "2.0.0"), ("01.2.3", "1.2.3"), ("1.2.3-rc.1", "1.2.3-rc.1")],
)
def test_versions_that_are_nearly_some(text: str, meant: str) -> None:
    assert str(loose_version(text)) == meant


@pytest.mark.parametrize("text", ["", "latest", "1.2.3.4", "1..2", "9" * 300, "1.x"])
def test_versions_that_are_none(text: str) -> None:
    assert loose_version(text) is None


# -- rules of publishing ---------------------------------------------------------------------------------------------


def test_tools_that_break_a_rule_are_skipped_with_a_warning(rpc: Rpc, new_name: str) -> None:
    tool = {"name": "count", "description": "Counts.", "script": "scripts/count.py"}
    broken = {"name": "Not A Name", "description": "x"}
    data = zipped(
        {
            "t/SKILL.md": skill_md("t"),
            "t/tools.json": json.dumps([tool, broken]),
            "t/scripts/count.py": "def handler(args):\n    return 1\n",
        }
    )
    [skill] = sent(rpc, data, namespace=new_name)["skills"]

    assert any("Not A Name" in warning for warning in skill["warnings"])
    assert rpc("describe_skill", name=skill["name"])["skill"]["kind"] == "action"
    assert [one["name"] for one in rpc("list_tools", skill=skill["name"])["tools"]] == ["count"]


def test_import_permissions_apply_to_skills_without_skill_toml(rpc: Rpc, new_name: str) -> None:
    permissions = {"network": ["https://api.example.org"], "secrets": ["API_KEY"]}
    data = zipped({"p/SKILL.md": skill_md("p")})

    sent(rpc, data, namespace=new_name, permissions=json.dumps(permissions))
    assert rpc("describe_skill", name=f"{new_name}.p")["skill"]["manifest"]["permissions"] == permissions
    # The same files with other permissions are a new version.
    [skill] = sent(rpc, data, namespace=new_name)["skills"]
    assert (skill["outcome"], skill["version"]) == ("published", "1.0.1")
    wrong = rpc.http.post("/import", params={"permissions": '{"secrets": ["A-B"]}'}, content=data)
    assert (wrong.status_code, wrong.json()["error"]["data"]["type"]) == (400, "invalid_manifest")


def test_an_agents_imports_wait_for_a_review(org: Server, new_name: str) -> None:
    agent = Caller(org.url, Who("import-bot", "read run publish", f"{new_name}.*", "agent"))
    data = zipped({"a/SKILL.md": skill_md("a")})

    [skill] = sent(agent, data, namespace=new_name)["skills"]
    assert (skill["outcome"], skill["status"]) == ("draft", "draft")
    [again] = sent(agent, data, namespace=new_name)["skills"]
    assert (again["outcome"], again["status"]) == ("unchanged", "draft")
    admin = Caller(org.url, Who("root", "admin"))
    [entry] = admin("list_audit", action="create_skill", subject=f"{new_name}.a@1.0.0")["entries"]
    assert entry["identity"] == {"name": "import-bot", "kind": "agent"}


def test_a_draft_of_another_author_does_not_block_an_import(org: Server, new_name: str) -> None:
    agent = Caller(org.url, Who("import-bot", "read run publish", f"{new_name}.*", "agent"))
    ann = Caller(org.url, Who("ann", "read publish", f"{new_name}.*"))
    data = zipped({"a/SKILL.md": skill_md("a")})
    sent(agent, data, namespace=new_name)

    [skill] = sent(ann, data, namespace=new_name)["skills"]
    assert (skill["outcome"], skill["version"]) == ("published", "1.0.1")
    for caller in (ann, agent):
        [again] = sent(caller, data, namespace=new_name)["skills"]
        assert (again["outcome"], again["version"]) == ("unchanged", "1.0.1")


def test_an_import_without_the_right_to_publish_is_refused(org: Server, new_name: str) -> None:
    data = zipped({"a/SKILL.md": skill_md("a")})
    ann = Caller(org.url, Who("ann", "read publish", f"{new_name}.*"))
    sent(ann, data, namespace=new_name)
    stranger = Caller(org.url, Who("eve", "read publish", "elsewhere.*"))

    [skill] = sent(stranger, data, namespace=new_name)["skills"]
    assert (skill["outcome"], skill["error"]["code"]) == ("refused", -32002)
    assert "version" not in skill
    assert "Call it elsewhere.… instead (an import takes a namespace)" in skill["error"]["data"]["hint"]
    reader = Caller(org.url, Who("bob", "read run", f"{new_name}.*"))
    assert reader.http.post("/import", content=data).status_code == 403


def test_a_private_skill_of_another_author_is_not_revealed(org: Server, new_name: str) -> None:
    data = zipped({"a/SKILL.md": skill_md("a")})
    ann, ben = (Caller(org.url, Who(who, "read publish", f"{new_name}.*")) for who in ("ann", "ben"))
    sent(ann, data, namespace=new_name)
    ann("set_visibility", name=f"{new_name}.a", visibility="private")

    [skill] = sent(ben, data, namespace=new_name)["skills"]
    assert skill["error"]["data"]["type"] == "name_taken"


@pytest.mark.parametrize("stated", ["Secret Thing", "plain", "secret Thing", "{}.Secret thing", "{}.plain"])
@pytest.mark.full(after=2)
def test_import_hides_existing_skills_from_callers_without_a_grant(org: Server, new_name: str, stated: str) -> None:
    ann = Caller(org.url, Who("ann", "read publish", f"{new_name}.*"))
    sent(ann, zipped({"a/SKILL.md": skill_md("Secret Thing"), "b/SKILL.md": skill_md("plain")}), namespace=new_name)
    for hidden in ("secret-thing", "plain"):
        ann("set_visibility", name=f"{new_name}.{hidden}", visibility="private")

    stranger = Caller(org.url, Who("mallory", "read publish", "elsewhere.*"))
    namespace = "" if "{}" in stated else new_name
    for dry_run in ("false", "true"):
        told = [
            sent(stranger, zipped({"x/SKILL.md": skill_md(name)}), namespace=namespace, dry_run=dry_run)
            for name in (stated.format(new_name), stated.format(new_name).replace("t", "v").replace("p", "b"))
        ]
        [there], [not_there] = (report["skills"] for report in told)
        assert there["error"]["data"]["type"] == "not_allowed"
        words = str((there["name"], there["error"])).replace("t", "v").replace("p", "b")
        assert words == str((not_there["name"], not_there["error"])).replace("t", "v").replace("p", "b")


def test_a_label_reveals_no_invisible_skill(org: Server, new_name: str) -> None:
    ann, ben = (Caller(org.url, Who(who, "read publish", f"{new_name}.*")) for who in ("ann", "ben"))
    sent(ann, zipped({"a/SKILL.md": skill_md("a"), "b/SKILL.md": skill_md("b")}), namespace=new_name, source=new_name)
    ann("set_visibility", name=f"{new_name}.a", visibility="private")

    for prune in ("false", "true"):
        data = zipped({"c/SKILL.md": skill_md("c")})
        report = sent(ben, data, namespace=new_name, source=new_name, prune=prune)
        assert [one["name"] for one in report["removed"]] == [f"{new_name}.b"]
    assert ann("describe_skill", name=f"{new_name}.a")["skill"]["status"] == "published"


def test_import_runs_checks_and_lists_their_findings(org: Server, new_name: str) -> None:
    ann = Caller(org.url, Who("ann", "read publish", f"{new_name}.*"))
    data = zipped(
        {"bad/SKILL.md": skill_md("bad", body="FORBIDDEN\n"), "ugly/SKILL.md": skill_md("ugly", body="UGLY\n")}
    )
    found = by_path(sent(ann, data, namespace=new_name))

    assert found["bad"]["error"]["code"] == -32007
    assert [finding["rule"] for finding in found["ugly"]["findings"]] == ["no-ugly"]


def test_a_dry_run_changes_nothing(rpc: Rpc, new_name: str) -> None:
    data = zipped({"a/SKILL.md": skill_md("a")})

    for _ in range(2):
        [skill] = sent(rpc, data, namespace=new_name, dry_run="true", source=new_name)["skills"]
        assert (skill["outcome"], skill["name"], skill["version"]) == ("checked", f"{new_name}.a", "1.0.0")
    assert rpc.error("describe_skill", name=f"{new_name}.a")["code"] == -32003


# -- sync ------------------------------------------------------------------------------------------------------------


def test_import_reports_removed_skills_and_yanks_them_only_with_prune(rpc: Rpc, new_name: str) -> None:
    both = zipped({"a/SKILL.md": skill_md("a"), "b/SKILL.md": skill_md("b")})
    one = zipped({"a/SKILL.md": skill_md("a")})
    step = {"namespace": new_name, "source": f"folder-{new_name}"}
    sent(rpc, both, **step)

    said = sent(rpc, one, **step)["removed"]
    assert [(gone["name"], gone["yanked"]) for gone in said] == [(f"{new_name}.b", [])]
    assert rpc("describe_skill", name=f"{new_name}.b")["skill"]["status"] == "published"
    [gone] = sent(rpc, one, **step, prune="true")["removed"]
    assert gone["yanked"] == ["1.0.0"]
    assert rpc.error("describe_skill", name=f"{new_name}.b")["code"] == -32003
    assert sent(rpc, one, **step, prune="true")["removed"] == []
    # The skill returns as the next version: a yanked version is not used again.
    found = by_path(sent(rpc, both, **step))
    assert (found["b"]["outcome"], found["b"]["version"]) == ("published", "1.0.1")


def test_a_yanked_skill_does_not_return_automatically(rpc: Rpc, new_name: str) -> None:
    data = zipped({"a/SKILL.md": skill_md("a")})
    sent(rpc, data, namespace=new_name)
    rpc("yank_version", name=f"{new_name}.a", version="1.0.0", reason="leaks")

    [skill] = sent(rpc, data, namespace=new_name)["skills"]
    assert (skill["outcome"], skill["status"]) == ("unchanged", "yanked")


def test_nothing_is_taken_for_removed_while_something_cannot_be_read(rpc: Rpc, new_name: str) -> None:
    step = {"namespace": new_name, "source": f"folder-{new_name}"}
    sent(rpc, zipped({"a/SKILL.md": skill_md("a")}), **step)

    report = sent(rpc, zipped({"b/skill.toml": "= x", "b/SKILL.md": "x"}), **step, prune="true")
    assert (report["removed"], report["unread"]) == ([], 1)


# -- the endpoint ----------------------------------------------------------------------------------------------------


def test_the_report_is_sent_line_by_line_on_request(sqlite_rpc: Rpc, new_name: str) -> None:
    data = zipped({f"s{number}/SKILL.md": skill_md(f"s{number}") for number in range(3)})
    headers = {"accept": "application/x-ndjson"}

    with sqlite_rpc.http.stream("POST", f"/import?namespace={new_name}", content=data, headers=headers) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    assert [key for line in lines for key in line] == ["begun", "skill", "skill", "skill", "summary"]
    assert (lines[0]["begun"]["total"], lines[-1]["summary"]["counts"]) == (3, {"published": 3})


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("namespase=x", 400, "namespace"),
        ("namespace=No", 400, "namespace"),
        ("permissions=[]", 400, "permissions"),
        ("dry_run=perhaps", 400, "dry_run"),
        ("prune=1", 400, "source"),
        (f"source={'x' * 300}", 400, "source"),
    ],
)
def test_a_wrong_parameter_is_named(sqlite_rpc: Rpc, query: str, status: int, word: str) -> None:
    response = sqlite_rpc.http.post(f"/import?{query}", content=zipped({}))

    assert response.status_code == status
    assert word in response.text


def test_any_content_type_is_taken_but_no_other_origin(sqlite_rpc: Rpc) -> None:
    post = sqlite_rpc.http.post
    assert post("/import", content=zipped({}), headers={"content-type": "text/plain"}).status_code == 200
    assert post("/import", content=zipped({}), headers={"origin": "http://evil.example"}).status_code == 403
    assert sqlite_rpc.http.get("/import").status_code == 405


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "skills"
    (root / "pdf/scripts").mkdir(parents=True)
    (root / "pdf/SKILL.md").write_text(skill_md("pdf"))
    (root / "pdf/scripts/a.sh").write_text("#!/bin/sh\n")
    (root / "pdf/scripts/a.sh").chmod(0o755)
    (root / "pdf/b.sh").symlink_to("scripts/a.sh")
    (root / "pdf/passwd").symlink_to("/etc/passwd")
    (root / "pdf/.env").write_text("KEY=1")
    (root / "pdf/node_modules").mkdir()
    (root / "pdf/node_modules/x.js").write_text("x")
    (root / "README.md").write_text("# Skills")
    (root / "two").mkdir()
    (root / "two/skill.md").write_bytes(b"# Two\n\nSecond.\n")
    return root


@pytest.mark.smoke
def test_folder_import_into_a_home_reports_unchanged_the_second_time(folder: Path, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "home"))
    first = skillery("import", str(folder), "--json", *home)

    assert first.code == 0, first.err
    [answer] = first.json
    found = by_path(answer)
    assert {left["path"] for left in found["pdf"]["left_out"]} == {"passwd", ".env"}
    assert codes(found["two"]) == {"file_name", "missing_frontmatter", "missing_name", "missing_description"}
    assert {left["path"] for left in answer["left_out"]} == {"pdf/node_modules", "README.md"}
    files = skillery("describe", "pdf", "--detail", "full", "--json", *home).json["skill"]["files"]
    assert {file["path"]: file["executable"] for file in files if file["path"] != "skill.toml"} == {
        "SKILL.md": False,
        "scripts/a.sh": True,
        "b.sh": True,
    }
    again = skillery("import", str(folder), *home)
    assert (again.code, again.out.split()[:2]) == (0, ["unchanged", "pdf"])


@pytest.mark.parametrize("command", ["import", "sync"])
def test_of_several_folders_the_later_override_the_earlier(
    command: str, sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    places = [tmp_path / "skills", tmp_path / ".claude/skills", tmp_path / ".agents/skills"]
    for number, place in enumerate(places):
        for name in ("pdf", f"own-{number}"):
            (place / name).mkdir(parents=True)
            (place / name / "SKILL.md").write_text(skill_md(name, f"Of {number}."))
    (tmp_path / "skills/own-0/skill.toml").write_text(
        f'name = "{new_name}.own-0"\nversion = "1.0.0"\ndescription = "x"\n'
    )
    say = (command, *map(str, places), "--namespace", new_name, "--url", sqlite_server.url, "--json")
    for outcome in ("published", "unchanged"):
        first, second, third = json.loads(skillery(*say).out)
        assert third["counts"] == {outcome: 2}
        assert first["counts"] == second["counts"] == {outcome: 1, "overridden": 1}
        assert (first["total"], len(first["skills"])) == (2, 2)
        assert by_path(first)["pdf"] == {
            "path": "pdf",
            "outcome": "overridden",
            "stated": "pdf",
            "by": str(tmp_path / ".agents/skills/pdf"),
        }
        assert first["removed"] == second["removed"] == []
    skill = sqlite_server.rpc("describe_skill", name=f"{new_name}.pdf")["skill"]
    assert (skill["version"], skill["manifest"]["description"]) == ("1.0.0", "Of 2.")


@pytest.mark.parametrize("command", ["import", "sync"])
def test_later_discovery_folders_of_a_project_override_earlier_ones(
    command: str, sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    project = tmp_path / "project"

    def write(path: str, text: str, name: str = "pdf") -> None:
        (project / path).mkdir(parents=True)
        (project / path / "SKILL.md").write_text(skill_md(name, text))

    write("skills/pdf", "Of skills.")
    write("skills/own", "Only here.", "own")
    write("vendor/skills/own", "Of no agent.", "own")
    for number, folder in enumerate([".opencode", ".claude", ".agents"]):
        write(f"{folder}/skills/pdf", f"Of {number // 2}.")  # .opencode and .claude have the same files
    write(".claude/skills/a/deep", "One.", "deep")
    write(".claude/skills/b/deep", "Two.", "deep")
    (project / "skills/linked").symlink_to("../vendor/linked")
    write("vendor/linked", "Linked.", "linked")
    write(".opencode/skills/linked", "Overrides the link.", "linked")
    say = (command, str(project), "--namespace", new_name, "--url", sqlite_server.url)

    for outcome in ("published", "unchanged"):
        [report] = json.loads(skillery(*say, "--json").out)
        found = by_path(report)
        winner = str(project / ".agents/skills/pdf")
        assert found["skills/pdf"] == {"path": "skills/pdf", "outcome": "overridden", "stated": "pdf", "by": winner}
        assert [found[f"{one}/skills/pdf"]["outcome"] for one in (".opencode", ".claude")] == ["overridden"] * 2
        assert found[".agents/skills/pdf"]["name"] == f"{new_name}.pdf"
        assert found["vendor/skills/own"]["name"] == f"{new_name}.own-vendor"  # outside of the discovery folders
        assert found[".claude/skills/b/deep"]["name"] == f"{new_name}.deep-b"  # both in one discovery folder
        assert found["vendor/linked"]["outcome"] == "overridden"
        assert (report["counts"], report["total"]) == ({outcome: 6, "overridden": 4, "merged": 1}, 11)
        assert report["removed"] == []
    skill = sqlite_server.rpc("describe_skill", name=f"{new_name}.pdf")["skill"]
    assert (skill["version"], skill["manifest"]["description"]) == ("1.0.0", "Of 1.")
    assert "overridden" in skillery(*say).out + skillery(*say).err

    (project / ".agents/skills/pdf/SKILL.md").write_text(skill_md("pdf", "Of 0."))
    [report] = json.loads(skillery(*say, "--json").out)
    assert report["counts"] == {"published": 1, "unchanged": 5, "overridden": 2, "merged": 3}


def test_exit_code_reports_refused_skills_while_the_others_are_imported(
    folder: Path, sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    (folder / "bad").mkdir()
    (folder / "bad/skill.toml").write_text("= x")
    archive = tmp_path / "three.skill"
    archive.write_bytes(zipped({"SKILL.md": "# No name\n\nFrom an archive.\n"}))
    torn = tmp_path / "torn.zip"
    torn.write_bytes(archive.read_bytes()[:-30])
    where = ("--url", sqlite_server.url, "--namespace", new_name)

    ended = skillery("import", str(folder), str(archive), str(torn), *where)
    assert ended.code == 3
    assert f"published\t{new_name}.pdf 1.0.0\tpdf" in ended.out
    assert f"published\t{new_name}.three 1.0.0\t." in ended.out
    assert "error: bad: there is no SKILL.md" in ended.err
    assert "repaired: two/skill.md: 'skill.md' is taken as SKILL.md" in ended.err
    assert "repaired: ./SKILL.md:1: it has no frontmatter" in ended.err
    assert "left out: pdf/.env: begins with a dot" in ended.err
    assert "torn.zip: the archive is cut off" in ended.err
    dry = skillery("import", str(folder), "--dry-run", *where)
    assert dry.code == 1


def test_ignored_requirements_warn_once_with_file_and_line(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    (tmp_path / "SKILL.md").write_text(f"---\nname: {new_name}\ndescription: What it does.\n---\n# X\n")
    (tmp_path / "requirements.txt").write_text("six\n-r more.txt\n")

    ended = skillery("import", str(tmp_path), "--url", sqlite_server.url)

    assert ended.code == 0
    assert ended.err.count("it needs six, and its scripts run without") == 1
    assert ended.err.count("the line with -r is left out") == 1
    assert "warning: ./requirements.txt:2: the line with -r" in ended.err
    assert ": 1 skill: 1 published" in ended.err


def test_names_that_are_no_text_and_special_files_are_reported(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"odd-\xff")
    odd.mkdir()
    (odd / "SKILL.md").write_text(skill_md("odd"))
    (odd / os.fsdecode(b"n\xff.txt")).write_text("x")
    os.mkfifo(odd / os.fsdecode(b"pipe-\xff"))
    where = ("--url", sqlite_server.url, "--namespace", new_name, "--json")

    ended = skillery("sync", str(odd), *where)
    assert ended.code == 0, ended.err
    [answer] = json.loads(ended.out)
    assert [left["path"] for left in answer["left_out"]] == ["pipe-?"]
    assert answer["skills"][0]["outcome"] == "published"


@pytest.mark.parametrize("becomes", ["pipe", "link"])
async def test_tar_chunks_refuses_a_file_replaced_by_a_pipe_or_link(folder: Path, tmp_path: Path, becomes: str) -> None:
    looked = scan_folder(folder)
    skill = next(path for path in folder.rglob("SKILL.md"))
    skill.unlink()
    (tmp_path / "secret").write_text("key")
    os.mkfifo(skill) if becomes == "pipe" else skill.symlink_to(tmp_path / "secret")

    with pytest.raises(StartupError, match="cannot read"):
        [chunk async for chunk in tar_chunks(looked)]


def test_import_prints_the_next_command_or_a_hint(folder: Path, tokens_server: Server, new_name: str) -> None:
    made = ("token", "create", "--name", "bot", "--agent", "--scope", "read,publish", "--namespace", f"{new_name}.*")
    token = skillery(*made, "--home", str(tokens_server.home), SKILLERY_DATABASE=tokens_server.database).out.strip()
    where = ("--url", tokens_server.url, "--token", token, "--namespace", new_name)
    assert "next: skillery submit NAME@VERSION" in skillery("import", str(folder), *where).err
    assert "next:" not in skillery("import", str(folder), *where).err
    assert "hint: A skill is a folder with a SKILL.md" in skillery("import", str(folder / "pdf/scripts"), *where).err


def test_sync_keeps_a_folder_in_step(folder: Path, sqlite_server: Server, new_name: str, tmp_path: Path) -> None:
    permissions = tmp_path / "permissions.toml"
    permissions.write_text('[permissions]\nnetwork = ["https://api.example.org"]\n')
    where = ("--url", sqlite_server.url, "--namespace", new_name, "--permissions", str(permissions))
    assert skillery("sync", str(folder), *where).code == 0
    described = sqlite_server.rpc("describe_skill", name=f"{new_name}.pdf")["skill"]
    assert described["manifest"]["permissions"] == {"network": ["https://api.example.org"]}

    (folder / "two/skill.md").unlink()
    (folder / "pdf/SKILL.md").write_text(skill_md("pdf", "Better."))
    ended = skillery("sync", str(folder), *where)
    assert f"published\t{new_name}.pdf 1.0.1" in ended.out
    still = "still published; skillery yank, or sync --prune, yanks it"
    assert f"removed\t{new_name}.two 1.0.0\t{still}" in ended.out
    assert "yanked 1.0.0" in skillery("sync", str(folder), "--prune", *where).out


def test_watch_goes_on_until_it_is_interrupted(folder: Path, sqlite_server: Server, new_name: str) -> None:
    import signal
    import subprocess

    from tests.conftest import clean_environment

    command = [FORKED, "sync", str(folder), "--watch", "--every", "0.1"]
    where = ["--url", sqlite_server.url, "--namespace", new_name]
    process = subprocess.Popen(
        [*command, *where], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean_environment()
    )
    try:
        assert process.stdout is not None
        assert {process.stdout.readline().split()[1] for _ in range(2)} == {f"{new_name}.pdf", f"{new_name}.two"}
        (folder / "pdf/SKILL.md").write_text(skill_md("pdf", "Better."))
        said = next(line for line in process.stdout if line.startswith("published"))
        assert said.split()[:3] == ["published", f"{new_name}.pdf", "1.0.1"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
        process.stdout.close() if process.stdout else None


@pytest.mark.parametrize(
    ("size", "seconds", "too_slow"), [(1, 59, False), (1, 61, True), (2**20, 61, False), (2**20, 200, True)]
)
def test_an_archive_that_trickles_in_is_not_waited_for(size: int, seconds: float, too_slow: bool) -> None:
    """Otherwise, two such uploads could block all other imports without limit."""
    assert is_too_slow(size, seconds) is too_slow


def test_full_disk_raises_storage_full_and_frees_the_slot(tmp_path: Path) -> None:
    none: Any = None
    importer = Importer(none, none, BundleLimits(), ImportLimits(), 1, tmp_path)
    for _ in range(2):
        with pytest.raises(StorageFull), importer.receive(), open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
            full.write(b"x")


@pytest.mark.full
def test_repeated_import_completes_after_a_client_disconnect(sqlite_server: Server, new_name: str) -> None:
    rpc = Rpc(sqlite_server.url)
    data = zipped({f"s{number:04}/SKILL.md": skill_md(f"s{number:04}") for number in range(400)})
    headers = {"accept": "application/x-ndjson"}
    with rpc.http.stream("POST", f"/import?namespace={new_name}", content=data, headers=headers) as response:
        for line in response.iter_lines():
            if "published" in line:
                break
    # The next import waits for a slot, and finds the finished skills.
    report = sent(Rpc(sqlite_server.url), data, namespace=new_name)

    assert report["counts"].get("unchanged", 0) > 0
    assert sum(report["counts"].values()) == 400
    assert "refused" not in report["counts"]


def test_a_terminal_gets_a_bar(folder: Path, sqlite_server: Server, new_name: str) -> None:
    import pty
    import subprocess

    from tests.conftest import clean_environment

    ours, theirs = pty.openpty()
    command = [FORKED, "import", str(folder), "--url", sqlite_server.url]
    process = subprocess.Popen(
        [*command, "--namespace", new_name],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=clean_environment({"TERM": "xterm-256color", "COLUMNS": "120"}),
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the process has closed the terminal
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, seen
    assert f"published\t{new_name}.pdf 1.0.0".encode() in out
    assert b"2/2" in seen
