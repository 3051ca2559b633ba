"""Skills and their files over MCP: resources, and the extension io.modelcontextprotocol/skills."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.agent_skill import agent_skill
from skillery.formats.media_types import media_type_of
from skillery.formats.skill_md import parse_skill_md
from skillery.formats.skill_uris import agent_name, folder_of, segments_of, skill_paths_of, uri_of
from tests.conftest import Rpc, Server, manifest
from tests.support.mcp_client import Mcp
from tests.support.people import Caller, Who

SKILLS = "io.modelcontextprotocol/skills"
DIRECTORY = "inode/directory"
Publish = Callable[..., dict[str, Any]]


@pytest.fixture
def mcp(rpc: Rpc) -> Mcp:
    return Mcp(rpc)


def publish(rpc: Rpc, name: str, skill_md: str | None = None, /, **files: Any) -> None:
    """Publish an instruction skill with these files."""
    given_files = [
        {"path": path, "content": base64.b64encode(content).decode(), "encoding": "base64"}
        if isinstance(content, bytes)
        else {"path": path, "content": content}
        for path, content in files.items()
    ]
    made = manifest(name, kind="instruction")
    rpc("create_skill", manifest=made, skill_md=skill_md if skill_md is not None else f"# {name}\n", files=given_files)


def raw(content: dict[str, Any]) -> bytes:
    return content["text"].encode() if "text" in content else base64.b64decode(content["blob"])


def entry_of(mcp: Mcp, uri: str) -> dict[str, Any]:
    found: dict[str, Any] = mcp("skills/get", uri=uri)["skill"]
    return found


def prove(mcp: Mcp, entry: dict[str, Any]) -> None:
    """Assert everything that a host can check about an entry."""
    uris = [file["uri"] for file in entry["resources"]]
    assert len(set(uris)) == len(uris)
    assert entry["uri"] in uris
    folder = entry["uri"].removesuffix("/SKILL.md")
    assert folder.rpartition("/")[2] == entry["frontmatter"]["name"]
    for file in entry["resources"]:
        assert file["uri"].startswith(f"{folder}/")
        content = raw(mcp("resources/read", uri=file["uri"])["contents"][0])
        assert (f"sha256:{hashlib.sha256(content).hexdigest()}", len(content)) == (file["digest"], file["size"])
    skill_md = raw(mcp("resources/read", uri=entry["uri"])["contents"][0])
    assert parse_skill_md(skill_md.decode()).frontmatter == entry["frontmatter"]
    assert not agent_skill(skill_md, name=entry["frontmatter"]["name"], description="").is_generated


# -- skills ----------------------------------------------------------------------------------------------------------


def test_the_extension_is_declared(sqlite_rpc: Rpc) -> None:
    found = Mcp(sqlite_rpc)("server/discover")["capabilities"]

    assert found["extensions"] == {SKILLS: {"directoryRead": True}, "io.modelcontextprotocol/tasks": {}}
    assert set(found) == {"completions", "extensions", "prompts", "resources", "tools"}


@pytest.mark.full(after=1)
def test_list_entries_of_skills_match_their_files(mcp: Mcp) -> None:
    bundled = {"data/json/validate", "skills/protocol/guide", "text/csv/profile"}

    entries = {one["uri"].removeprefix("skill://"): one for one in mcp.all("skills/list", "skills")}

    for path in bundled:
        entry = entries[f"{path}/SKILL.md"]
        prove(mcp, entry)
        assert entry == entry_of(mcp, entry["uri"])


def test_a_skill_md_that_conforms_is_served_as_it_is(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    text = "---\nname: pdf\ndescription: Makes PDFs.\nlicense: MIT\nmetadata:\n  version: '1.10'\n---\n\n# PDF\n"
    publish(rpc, f"{new_name}.pdf", text, **{"references/FORMS.md": "# Forms\n", "logo.png": b"\x89PNG\x00\xff"})

    entry = entry_of(mcp, f"skill://{new_name}/pdf/SKILL.md")
    content = mcp("resources/read", uri=entry["uri"])["contents"][0]

    prove(mcp, entry)
    assert content == {"uri": entry["uri"], "mimeType": "text/markdown", "text": text}
    assert entry["frontmatter"] == {
        "name": "pdf",
        "description": "Makes PDFs.",
        "license": "MIT",
        "metadata": {"version": "1.10"},
    }
    assert [file["uri"].rpartition("/pdf/")[2] for file in entry["resources"]] == [
        "SKILL.md",
        "logo.png",
        "references/FORMS.md",
        "skill.toml",
    ]


@pytest.mark.parametrize(
    ("last", "skill_md", "folder"),
    [
        ("plain", "# Plain\n", "plain"),
        ("types", "---\nname: types\ndescription: X.\nmetadata:\n  version: 1.10\n  on: yes\n---\n", "types"),
        ("b_c", "---\nname: b_c\n---\n# Hello\n", "b_c/~/b-c"),
        ("x" * 70, "", f"{'x' * 70}/~/"),
        ("large", "---\ndescription: L.\n---\n" + "long " * 20_000, "large"),
    ],
)
@pytest.mark.full(after=6)
def test_a_nonconforming_skill_md_is_made_conforming(
    mcp: Mcp, rpc: Rpc, new_name: str, last: str, skill_md: str, folder: str
) -> None:
    name = f"{new_name}.{last}"
    publish(rpc, name, skill_md, **{"a/b.txt": "text"})

    uri = uri_of(folder_of(name), "SKILL.md")
    entry = entry_of(mcp, uri)

    assert uri.startswith(f"skill://{new_name}/{folder}")
    prove(mcp, entry)
    listed = {one["uri"]: one for one in mcp.all("resources/list", "resources")}
    assert listed[uri]["name"] == entry["frontmatter"]["name"] == agent_name(name)
    assert listed[uri]["description"] == entry["frontmatter"]["description"]


def test_look_alikes_have_addresses_of_their_own(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    for last in ("b-c", "b_c"):
        publish(rpc, f"{new_name}.{last}", f"# {last}\n")

    texts = [
        mcp("resources/read", uri=f"skill://{new_name}/{path}/SKILL.md")["contents"][0]["text"]
        for path in ("b-c", "b_c/~/b-c")
    ]

    assert [text.splitlines()[-1] for text in texts] == ["# b-c", "# b_c"]


def test_a_nested_skill_is_served_separately_and_within_its_parent(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    publish(rpc, new_name, **{"b/SKILL.md": "shadowed", "b/x.txt": "shadowed", "c/x.txt": "own"})
    publish(rpc, f"{new_name}.b", "# Inner\n")
    outer, inner = f"skill://{new_name}", f"skill://{new_name}/b"

    entry = entry_of(mcp, f"{outer}/SKILL.md")

    prove(mcp, entry)
    prove(mcp, entry_of(mcp, f"{inner}/SKILL.md"))
    own = {file["uri"].removeprefix(f"{outer}/") for file in entry["resources"]}
    assert own == {"SKILL.md", "skill.toml", "c/x.txt", "b/SKILL.md", "b/skill.toml"}
    children = mcp.all("resources/directory/read", "resources", uri=outer)
    assert [(one["name"], one["mimeType"]) for one in children if one["mimeType"] == DIRECTORY] == [
        ("c", DIRECTORY),
        ("b", DIRECTORY),
    ]
    assert mcp.error("resources/read", uri=f"{inner}/x.txt")["code"] == -32602


def test_a_page_of_resources_has_500_skills_and_the_next_goes_on(sqlite_rpc: Rpc) -> None:
    mcp = Mcp(sqlite_rpc)
    first = mcp("resources/list")
    names = [one["uri"] for one in mcp.all("resources/list", "resources")]

    assert len(first["resources"]) == min(500, len(names))
    assert names == sorted(set(names), key=names.index)
    assert all(name.endswith("/SKILL.md") for name in names)


def test_a_skill_past_the_file_limit_is_served_only_as_resources(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    many = {f"f{number}.txt": "x" for number in range(300)}
    publish(rpc, new_name, **many)
    publish(rpc, f"{new_name}.b", **many)

    listed = {one["uri"] for one in mcp.all("skills/list", "skills")}
    error = mcp.error("skills/get", uri=f"skill://{new_name}/SKILL.md")

    assert f"skill://{new_name}/b/SKILL.md" in listed
    assert f"skill://{new_name}/SKILL.md" not in listed
    assert error["code"] == -32602
    assert "604 files" in error["message"]
    assert "512" in error["message"]
    # The list of resources has one entry for each skill, the directory of the skill has all files.
    uris = [one["uri"] for one in mcp.all("resources/list", "resources")]
    assert [uri for uri in uris if uri.startswith(f"skill://{new_name}/")] == [
        f"skill://{new_name}/SKILL.md",
        f"skill://{new_name}/b/SKILL.md",
    ]
    children = mcp.all("resources/directory/read", "resources", uri=f"skill://{new_name}/b")
    assert {one["uri"].rpartition("/")[2] for one in children} == {"SKILL.md", "skill.toml", *many}


def test_responses_have_a_private_cache_scope(sqlite_rpc: Rpc) -> None:
    mcp = Mcp(sqlite_rpc)

    answers = [
        mcp("tools/list"),
        mcp("resources/list"),
        mcp("resources/templates/list"),
        mcp("resources/read", uri="skill://skills/protocol/guide/SKILL.md"),
        mcp("skills/list"),
        mcp("skills/get", uri="skill://skills/protocol/guide/SKILL.md"),
    ]

    assert all(
        (one["ttlMs"], one["cacheScope"], one["resultType"]) == (60_000, "private", "complete") for one in answers
    )


# -- resources -------------------------------------------------------------------------------------------------------


def test_files_are_read_as_text_or_as_bytes(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    files: dict[str, str | bytes] = {
        "a b/ü%2F#?.json": "{}",
        "bom.txt": "\ufeffx\r\n",
        "data.bin": b"\x00\xff",
        "LICENSE": "MIT",
        "odd.zzz": "text",
    }
    publish(rpc, new_name, **files)

    listed = {one["uri"] for one in mcp.all("resources/directory/read", "resources", uri=f"skill://{new_name}")}
    folder = {one["uri"] for one in mcp.all("resources/directory/read", "resources", uri=f"skill://{new_name}/a%20b")}
    read = {path: mcp("resources/read", uri=uri_of((new_name,), path))["contents"][0] for path in files}

    assert {uri_of((new_name,), path) for path in files} <= listed | folder
    assert {path: raw(content) for path, content in read.items()} == {
        path: content if isinstance(content, bytes) else content.encode() for path, content in files.items()
    }
    assert [content["mimeType"] for content in read.values()] == [
        "application/json",
        "text/plain",
        "application/octet-stream",
        "text/plain",
        "text/plain",
    ]


@pytest.mark.parametrize(
    "uri",
    [
        "test://x",
        "skill://",
        "skill:///",
        "skill://skills",
        "skill://skills/protocol/guide",
        "skill://skills/protocol/guide/",
        "skill://skills/protocol/guide/none.md",
        "skill://skills/protocol/guide/../guide/SKILL.md",
        "skill://skills/protocol/guide/%2e%2e/guide/SKILL.md",
        "skill://skills/protocol/guide/SKILL.md?x",
        "skill://skills/protocol/guide/%ff",
        "skill://skills/protocol/guide/%00",
        "skill://skills%2Fprotocol/guide/SKILL.md",
        "skill://" + "a/" * 3000,
        "",
    ],
)
def test_an_address_of_nothing_is_an_invalid_param_that_names_it(sqlite_rpc: Rpc, uri: str) -> None:
    mcp = Mcp(sqlite_rpc)

    errors = [mcp.error("resources/read", uri=uri), mcp.error("skills/get", uri=uri)]
    if uri not in {"skill://skills", "skill://skills/protocol/guide"}:
        errors.append(mcp.error("resources/directory/read", uri=uri))

    assert {(error["code"], error["data"]["uri"]) for error in errors} == {(-32602, uri)}
    assert all(len(error["message"]) < 400 for error in errors)


def test_a_cursor_of_another_listing_is_refused(sqlite_rpc: Rpc) -> None:
    mcp = Mcp(sqlite_rpc)

    errors = [mcp.error(method, cursor="AAAA") for method in ("resources/list", "skills/list")]

    assert {(error["code"], error["data"]["type"]) for error in errors} == {(-32602, "invalid_cursor")}


def test_folders_are_read_level_by_level(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    publish(rpc, f"{new_name}.a", **{"x/y/z.md": "z", "top.txt": "t"})
    for name in ("a-b", "a_b", "a.c", "a.c.d", "e.f"):
        publish(rpc, f"{new_name}.{name}")

    def walk(uri: str) -> dict[str, Any]:
        children = mcp.all("resources/directory/read", "resources", uri=uri)
        return {one["name"]: walk(one["uri"]) if one["mimeType"] == DIRECTORY else one["uri"] for one in children}

    tree = walk(f"skill://{new_name}")

    assert sorted(tree) == ["a", "a-b", "a_b", "e"]
    # SKILL.md is listed under the name in its frontmatter.
    assert set(tree["a"]) == {"a", "skill.toml", "top.txt", "x", "c"}
    assert tree["a"]["x"] == {"y": {"z.md": f"skill://{new_name}/a/x/y/z.md"}}
    assert "d" in tree["a"]["c"]
    assert list(tree["a_b"]) == ["~"]
    assert list(tree["a_b"]["~"]) == ["a-b"]
    assert list(tree["e"]) == ["f"]


@pytest.mark.full
def test_a_folder_of_many_skills_comes_in_pages(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    publish(rpc, f"{new_name}.s000")
    names = [f"s000-{number:03}" for number in range(205)]
    for name in names:
        publish(rpc, f"{new_name}.{name}")
    publish(rpc, f"{new_name}.s000.deep")

    children = [one["name"] for one in mcp.all("resources/directory/read", "resources", uri=f"skill://{new_name}")]

    assert children == ["s000", *names]


@pytest.mark.full(after=1)
def test_invisible_skills_look_like_absent_skills(org: Server, new_name: str) -> None:
    author = Caller(org.url, Who("author", "read run publish", "*"))
    name = f"{new_name}.hidden"
    publish(author, f"{new_name}.shown")
    stranger, uri = Mcp(Caller(org.url, Who("stranger", "read"))), f"skill://{new_name}/hidden"

    asked = [
        ("skills/get", f"{uri}/SKILL.md"),
        ("resources/read", f"{uri}/x.txt"),
        ("resources/directory/read", uri),
    ]
    # The same name before it exists: similar names of other skills are equal in both answers.
    absent = [stranger.error(method, uri=each) for method, each in asked]
    publish(author, name, **{"x.txt": "x"})
    author("set_visibility", name=name, visibility="private")

    assert [stranger.error(method, uri=each) for method, each in asked] == absent
    for method, key in (("skills/list", "skills"), ("resources/list", "resources")):
        assert not [one for one in stranger.all(method, key) if uri in one["uri"]]
        assert [one for one in Mcp(author).all(method, key) if uri in one["uri"]]
    children = stranger.all("resources/directory/read", "resources", uri=f"skill://{new_name}")
    assert [one["name"] for one in children] == ["shown"]


def test_the_latest_version_is_served(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    for version in ("1.0.0", "1.1.0"):
        made = manifest(new_name, version, kind="instruction")
        rpc("create_skill", manifest=made, skill_md=f"# {version}\n", files=[])
    uri = f"skill://{new_name}/SKILL.md"
    latest = mcp("resources/read", uri=uri)["contents"][0]["text"]

    rpc("yank_version", name=new_name, version="1.1.0", reason="It was wrong.")

    assert latest.endswith("# 1.1.0\n")
    assert mcp("resources/read", uri=uri)["contents"][0]["text"].endswith("# 1.0.0\n")


@pytest.mark.full
def test_revoked_versions_have_their_advisory_or_are_not_served(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    for version in ("1.0.0", "1.1.0"):
        made = manifest(new_name, version, kind="instruction")
        rpc("create_skill", manifest=made, skill_md=f"# {version}\n", files=[])
    uri = f"skill://{new_name}@1.0.0/SKILL.md"
    entry = mcp("skills/get", uri=uri)["skill"]
    assert (entry["uri"], "advisory" in entry) == (uri, False)
    assert entry["resources"][0]["uri"].startswith(f"skill://{new_name}@1.0.0/")

    rpc("yank_version", name=new_name, version="1.0.0", reason="It leaks.", severity="security")
    advisory = mcp("skills/get", uri=uri)["skill"]["advisory"]
    assert advisory.pop("id") == rpc("describe_skill", name=new_name, version="1.0.0")["skill"]["yanked"]["advisory"]
    assert advisory == {"severity": "security", "reason": "It leaks."}

    rpc("unyank_version", name=new_name, version="1.0.0")
    rpc("yank_version", name=new_name, version="1.0.0", reason="It steals.", severity="malicious")
    advisory_id = rpc("describe_skill", name=new_name, version="1.0.0")["skill"]["yanked"]["advisory"]
    for method in ("skills/get", "resources/read"):
        error = mcp.error(method, uri=uri)
        assert (error["code"], advisory_id in error["message"]) == (-32602, True)
    rpc("purge_version", name=new_name, version="1.0.0", reason="It steals.")
    assert "SKILLERY-" in mcp.error("resources/read", uri=uri)["message"]


# -- addresses -------------------------------------------------------------------------------------------------------

segment = st.from_regex(r"[a-z0-9]{1,6}([_-][a-z0-9]{1,6})?", fullmatch=True)
names = st.lists(segment, min_size=1, max_size=4).map(".".join)
paths = st.lists(st.text(st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1), max_size=3)


@given(names, paths.filter(lambda parts: not {".", ".."} & set(parts)))
def test_an_address_resolves_to_its_file(name: str, path: list[str]) -> None:
    uri = uri_of(folder_of(name), "/".join(path))

    segments = segments_of(uri)

    assert uri.isascii()
    assert segments == (*folder_of(name), *path)
    assert (name, tuple(path)) in [(place.name, place.rest) for place in skill_paths_of(segments)]


@given(names, names)
def test_different_skills_have_different_folders(one: str, other: str) -> None:
    assert (folder_of(one) == folder_of(other)) == (one == other)


@given(st.text())
def test_any_text_is_an_address_or_none(text: str) -> None:
    segments = segments_of("skill://" + text)

    assert segments is None or all(len(place.name) <= 128 for place in skill_paths_of(segments))


def test_media_types_are_those_of_no_machine() -> None:
    shown = {
        name: media_type_of(name)
        for name in ("SKILL.md", "a/b.PY", "x.toml", "Makefile", ".gitignore", "x.zzz", "x.ts")
    }

    assert shown == {
        "SKILL.md": "text/markdown",
        "a/b.PY": "text/x-python",
        "x.toml": "application/toml",
        "Makefile": "text/plain",
        ".gitignore": "text/plain",
        "x.zzz": None,
        "x.ts": "text/x-typescript",
    }


# -- versions and completions ----------------------------------------------------------------------------------

FILE = "skill://{+skill}/{+path}"
FILE_AT_VERSION = "skill://{+skill}@{version}/{+path}"


def completed(mcp: Mcp, argument: str, value: str = "", template: str = FILE, **earlier: str) -> list[str]:
    found = mcp(
        "completion/complete",
        ref={"type": "ref/resource", "uri": template},
        argument={"name": argument, "value": value},
        context={"arguments": earlier},
    )["completion"]
    assert found["hasMore"] is (len(found["values"]) == 100)
    values: list[str] = found["values"]
    return values


def test_an_address_can_name_a_version(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    name = f"{new_name}.a_b"
    for version in ("1.0.0", "2.0.0"):
        rpc(
            "create_skill",
            manifest=manifest(name, version, kind="instruction"),
            skill_md=f"# {version}\n",
            files=[{"path": "resources/x@y.txt", "content": version}],
        )
    rpc("set_label", name=name, label="stable", version="1.0.0")
    folder = f"skill://{new_name}/a_b/~/a-b"

    def text(uri: str) -> str:
        [content] = mcp("resources/read", uri=uri)["contents"]
        assert content["uri"] == uri
        return str(content["text"])

    for spec, version in (("1.0.0", "1.0.0"), ("stable", "1.0.0"), ("^1", "1.0.0"), ("latest", "2.0.0")):
        assert text(f"{folder}@{spec}/resources/x@y.txt") == version
        assert text(f"{folder}@{spec}/SKILL.md").endswith(f"# {version}\n")
    assert text(f"{folder}/resources/x@y.txt") == "2.0.0"
    for uri in (f"{folder}@3.0.0/SKILL.md", f"{folder}@1.0.0", f"{folder}@1.0.0/none"):
        error = mcp.error("resources/read", uri=uri)
        assert (error["code"], error["data"]["uri"]) == (-32602, uri)
        assert error["data"]["hint"]


def test_names_versions_and_paths_are_completed(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    for name in ("one", "one.more", "other_one"):
        publish(rpc, f"{new_name}.{name}", None, **{"resources/a.txt": "x", "resources/b.txt": "x"})
    rpc(
        "create_skill",
        manifest=manifest(f"{new_name}.one", "10.0.0", kind="instruction"),
        skill_md="# x\n",
        files=[{"path": "resources/c.txt", "content": "x"}],
    )
    rpc("set_label", name=f"{new_name}.one", label="stable", version="1.0.0")
    folders = [f"{new_name}/one", f"{new_name}/one/more", f"{new_name}/other_one/~/other-one"]

    assert completed(mcp, "skill", f"{new_name}/") == folders
    assert completed(mcp, "skill", f"{new_name}/on") == folders[:2]
    assert completed(mcp, "skill", f"{new_name}/other_one/~/o") == folders[2:]
    assert completed(mcp, "skill", f"{new_name}/none") == []
    assert completed(mcp, "skill", f"{new_name}/\0") == []
    versions = completed(mcp, "version", template=FILE_AT_VERSION, skill=folders[0])
    assert versions == ["latest", "stable", "10.0.0", "1.0.0"]
    assert completed(mcp, "version", "1.", FILE_AT_VERSION, skill=folders[0]) == ["1.0.0"]
    assert completed(mcp, "version", template=FILE_AT_VERSION, skill=f"{new_name}/none") == []
    assert completed(mcp, "version", template=FILE_AT_VERSION) == []
    assert completed(mcp, "path", "res", skill=folders[0]) == ["resources/c.txt"]
    older = completed(mcp, "path", "res", FILE_AT_VERSION, skill=folders[0], version="stable")
    assert older == ["resources/a.txt", "resources/b.txt"]
    assert completed(mcp, "path", skill=folders[0], version="no such version") == []


@pytest.mark.parametrize(
    ("ref", "argument"),
    [
        ({"type": "ref/resource", "uri": "skill://{x}"}, "skill"),
        ({"type": "ref/prompt", "name": "x"}, "skill"),
        ({"type": "ref/resource", "uri": FILE}, "other"),
    ],
)
def test_other_completions_are_refused(ref: dict[str, str], argument: str, mcp: Mcp) -> None:
    error = mcp.error("completion/complete", ref=ref, argument={"name": argument, "value": ""})
    assert error["code"] == -32602
    assert "hint" in error["data"]


@pytest.mark.full
def test_listings_follow_namespaces_and_access(org: Server, new_name: str) -> None:
    author = Caller(org.url, Who("author", "read publish", f"{new_name}.*"))
    for namespace in ("closed", "mixed", "mixed-up", "open"):
        publish(author, f"{new_name}.{namespace}.seen")
    publish(author, f"{new_name}.mixed.deep.hidden")
    for hidden in ("closed.seen", "mixed.deep.hidden"):
        author("set_visibility", name=f"{new_name}.{hidden}", visibility="private")
    agent = Caller(org.url, Who("robot", "read publish", f"{new_name}.*", "agent"))
    assert agent.create(f"{new_name}.drafts.a")["status"] == "draft"

    seen_by_all = ["mixed-up.seen", "mixed.seen", "open.seen"]
    for who, names in (
        (
            Who("author", "read", f"{new_name}.*"),
            ["closed.seen", "mixed-up.seen", "mixed.deep.hidden", *seen_by_all[1:]],
        ),
        (Who("stranger", "read", "elsewhere.*"), seen_by_all),
    ):
        mcp = Mcp(Caller(org.url, who))
        root = f"skill://{new_name}"
        folders = mcp.all("resources/directory/read", "resources", uri=root)
        assert {folder["name"] for folder in folders} == {name.partition(".")[0] for name in names}
        listed = json.loads(mcp.tool("list_skills", namespace=new_name)["content"][0]["text"])["skills"]
        assert sorted(skill["name"] for skill in listed) == [f"{new_name}.{name}" for name in names]
        uris = [f"{root}/{name.replace('.', '/')}/SKILL.md" for name in names]
        for method, key in (("skills/list", "skills"), ("resources/list", "resources")):
            of_root = {entry["uri"] for entry in mcp.all(method, key) if entry["uri"].startswith(f"{root}/")}
            assert sorted(uri for uri in of_root if uri.endswith("/SKILL.md")) == sorted(uris), method
        below = mcp.tool("list_skills", namespace=f"{new_name}.mixed")["structuredContent"]["skills"]
        assert len(below) == sum(name.startswith("mixed.") for name in names)


@pytest.mark.full
def test_hidden_skills_are_not_completed(org: Server, new_name: str) -> None:
    owner, other = Who(f"o-{new_name}", "read publish", f"{new_name}.*"), Who("other", "read")
    hidden, shown = f"{new_name}/hidden", f"{new_name}/shown"
    for name in (hidden, shown):
        Caller(org.url, owner).create(name.replace("/", "."))
    Caller(org.url, owner)("set_visibility", name=f"{new_name}.hidden", visibility="private")

    for who, seen in ((owner, [hidden, shown]), (other, [shown])):
        mcp = Mcp(Caller(org.url, who))
        assert completed(mcp, "skill", f"{new_name}/") == seen
        assert (completed(mcp, "path", skill=hidden) == []) is (hidden not in seen)
        assert (completed(mcp, "version", skill=hidden) == []) is (hidden not in seen)
    assert Mcp(Caller(org.url, other)).error("resources/read", uri=f"skill://{hidden}@1.0.0/SKILL.md")


@pytest.mark.full
def test_completions_of_many_skills_are_cut(mcp: Mcp, rpc: Rpc, new_name: str) -> None:
    for number in range(101):
        publish(rpc, f"{new_name}.s{number}")
    assert len(completed(mcp, "skill", new_name)) == 100
