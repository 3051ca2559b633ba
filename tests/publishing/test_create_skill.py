"""create_skill: all checks run before all writes, and all rows are written in one transaction."""

from __future__ import annotations

import base64
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files

Publish = Callable[..., dict[str, Any]]


def create(rpc: Rpc, made: dict[str, Any], files: list[dict[str, Any]] | None = None, skill_md: str = "# A\n") -> Any:
    return rpc("create_skill", manifest=made, skill_md=skill_md, files=skill_files() if files is None else files)


def refused(rpc: Rpc, made: dict[str, Any], files: Any = None, skill_md: str = "# A\n") -> dict[str, Any]:
    return rpc.error("create_skill", manifest=made, skill_md=skill_md, files=skill_files() if files is None else files)


def test_it_answers_name_version_digest_and_status(rpc: Rpc, new_name: str) -> None:
    answer = create(rpc, manifest(new_name, "1.2.3+build.7"))

    assert answer.keys() == {"name", "version", "digest", "status", "warnings"}
    assert (answer["name"], answer["version"], answer["status"]) == (new_name, "1.2.3+build.7", "published")


def test_files_may_be_left_out(rpc: Rpc, new_name: str) -> None:
    rpc("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md="# A")

    assert rpc("describe_skill", name=new_name)["skill"]["kind"] == "instruction"


def test_the_same_bundle_again_answers_as_the_first_time_did(rpc: Rpc, new_name: str) -> None:
    first = create(rpc, manifest(new_name))

    assert create(rpc, manifest(new_name)) == first
    for version, is_stored in (("1.0.0", True), ("1.0.1", False)):
        checked = rpc("check_skill", manifest=manifest(new_name, version), skill_md="# A\n", files=skill_files())
        assert checked["unchanged"] is is_stored


def test_another_bundle_under_a_taken_version_is_a_conflict(rpc: Rpc, new_name: str) -> None:
    create(rpc, manifest(new_name, "1.0.0"))
    create(rpc, manifest(new_name, "1.0.1"))

    error = refused(rpc, manifest(new_name, "1.0.0"), skill_files("def main(args): return 2\n"))

    assert (error["code"], error["data"]["type"]) == (-32004, "version_exists")
    assert "1.0.2" in error["data"]["hint"]


def test_versions_that_differ_only_in_build_metadata_conflict(rpc: Rpc, new_name: str) -> None:
    create(rpc, manifest(new_name, "1.0.0+a"))

    assert refused(rpc, manifest(new_name, "1.0.0+b"))["code"] == -32004


@pytest.mark.smoke
@pytest.mark.postgres
def test_concurrent_publishers_of_a_version_have_a_single_winner(server: Server, new_name: str) -> None:
    def attempt(number: int) -> dict[str, Any]:
        files = skill_files(f"def main(args): return {number}\n")
        return Rpc(server.url).send("create_skill", {"manifest": manifest(new_name), "skill_md": "# A", "files": files})

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(attempt, range(100)))

    assert sum("result" in reply for reply in replies) == 1
    assert {reply["error"]["code"] for reply in replies if "error" in reply} == {-32004}


@pytest.mark.full
@pytest.mark.postgres
def test_publishers_of_different_versions_agree_on_the_latest(server: Server, new_name: str) -> None:
    def attempt(number: int) -> None:
        create(Rpc(server.url), manifest(new_name, f"1.{number}.0"))

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(attempt, range(40)))

    assert server.rpc("describe_skill", name=new_name)["skill"]["version"] == "1.39.0"


def test_verbatim_files_that_agree_are_kept_as_they_are(rpc: Rpc, new_name: str) -> None:
    toml = f'# by hand\nname = "{new_name}"\nversion="1.0.0"\ndescription = "x"\nkind="instruction"\n'
    made = {"name": new_name, "version": "1.0.0", "description": "x", "kind": "instruction"}
    files = [{"path": "skill.toml", "content": toml}, {"path": "SKILL.md", "content": "# A\n"}]
    create(rpc, made, files)

    assert rpc("read_skill_file", name=new_name, path="skill.toml")["content"] == toml


@pytest.mark.parametrize(
    ("path", "content"), [("skill.toml", 'name = "other"\n'), ("skill.toml", "broken ="), ("SKILL.md", "# B\n")]
)
def test_verbatim_files_that_disagree_are_refused(rpc: Rpc, new_name: str, path: str, content: str) -> None:
    error = refused(rpc, manifest(new_name), [*skill_files(), {"path": path, "content": content}])

    assert error["code"] == -32602
    assert path in str(error)


INVALID_MANIFESTS: dict[str, dict[str, Any]] = {
    "no name": {"name": None},
    "upper case": {"name": "Upper.Case"},
    "two dots": {"name": "a..b"},
    "long name": {"name": "a" * 129},
    "no version": {"version": ""},
    "version of two parts": {"version": "1.0"},
    "leading zero": {"version": "01.0.0"},
    "kind unknown": {"kind": "thing"},
    "language": {"runtime": {"language": "cobol", "entrypoint": "code/main.py"}},
    "entrypoint missing": {"runtime": {"language": "python", "entrypoint": "code/none.py"}},
    "entrypoint outside": {"runtime": {"language": "python", "entrypoint": "../main.py"}},
    "export no identifier": {"runtime": {"language": "python", "entrypoint": "code/main.py", "export": "a b"}},
    "export not defined": {"runtime": {"language": "python", "entrypoint": "code/main.py", "export": "other"}},
    "input default of the wrong type": {"inputs": {"x": {"type": "integer", "default": "one"}}},
    "secret name": {"permissions": {"secrets": ["no good"]}},
    "limit negative": {"runtime": {"entrypoint": "code/main.py", "limits": {"memory_mb": -5}}},
    "null inside": {"extra": {"deep": [None]}},
    "tags no list": {"tags": "x"},
}


@pytest.mark.parametrize("change", INVALID_MANIFESTS.values(), ids=INVALID_MANIFESTS.keys())
def test_an_invalid_manifest_is_refused_and_leaves_nothing(rpc: Rpc, new_name: str, change: dict[str, Any]) -> None:
    error = refused(rpc, manifest(new_name) | change)

    assert error["code"] == -32602
    assert error["data"]["problems"]
    assert rpc.error("describe_skill", name=new_name)["code"] == -32003


def test_every_problem_is_listed_at_once(rpc: Rpc, new_name: str) -> None:
    made = manifest(new_name, version="one", tags=[1], inputs={"x": {"enum": 1}}, permissions={"secrets": ["A-B"]})

    error = refused(rpc, made)

    assert len(error["data"]["problems"]) >= 4


def test_an_entrypoint_that_does_not_compile_is_named_with_its_line(rpc: Rpc, new_name: str) -> None:
    error = refused(rpc, manifest(new_name), skill_files("import json\n\ndef main(args)\n    return 1\n"))

    assert error["code"] == -32602
    (problem,) = error["data"]["problems"]
    assert (problem["file"], problem["line"]) == ("code/main.py", 3)


INVALID_FILES: dict[str, list[dict[str, Any]]] = {
    "escape": [{"path": "../x", "content": ""}],
    "absolute": [{"path": "/x", "content": ""}],
    "backslash": [{"path": "a\\b", "content": ""}],
    "drive": [{"path": "c:/x", "content": ""}],
    "folder": [{"path": "a/", "content": ""}],
    "escape below": [{"path": "a/../../b", "content": ""}],
    "too deep": [{"path": "a/b/c/d/e/f/g/h/i", "content": ""}],
    "too long": [{"path": "x" * 256, "content": ""}],
    "twice": [{"path": "x", "content": "1"}, {"path": "x", "content": "1"}],
    "case twin": [{"path": "x", "content": "1"}, {"path": "X", "content": "1"}],
    "unicode twin": [{"path": "\u00e9", "content": "1"}, {"path": "e\u0301", "content": "1"}],
    "file and folder": [{"path": "x", "content": "1"}, {"path": "x/y", "content": "1"}],
    "base64": [{"path": "x", "content": "***", "encoding": "base64"}],
    "encoding": [{"path": "x", "content": "", "encoding": "latin-1"}],
    "unknown key": [{"path": "x", "content": "", "mode": 7}],
}


@pytest.mark.parametrize("files", INVALID_FILES.values(), ids=INVALID_FILES.keys())
def test_invalid_files_are_refused_and_leave_nothing(rpc: Rpc, new_name: str, files: list[dict[str, Any]]) -> None:
    error = refused(rpc, manifest(new_name), [*skill_files(), *files])

    assert error["code"] == -32602
    assert rpc.error("describe_skill", name=new_name)["code"] == -32003


@pytest.mark.parametrize(
    "skill_md",
    [
        "---\nname: [unclosed\n---\n",
        "---\nname: x\n",
        "---\na: 1\nb: *x\n---\n",
        "---\na: !!python/object:x {}\n---\n",
    ],
)
def test_broken_frontmatter_is_refused(rpc: Rpc, new_name: str, skill_md: str) -> None:
    error = refused(rpc, manifest(new_name), skill_md=skill_md)

    assert error["code"] == -32602
    assert "SKILL.md" in str(error)


@ON_SQLITE
@pytest.mark.full
def test_too_many_bytes_and_too_many_files_are_too_large(rpc: Rpc, new_name: str) -> None:
    heavy = [{"path": f"resources/{number}", "content": "x" * 1_100_000} for number in range(16)]
    many = [{"path": f"resources/{number}", "content": ""} for number in range(512)]

    for files in (heavy, many):
        error = refused(rpc, manifest(new_name), [*skill_files(), *files])
        assert (error["code"], error["data"]["type"]) == (-32005, "bundle_too_large")


def test_text_beyond_ascii_survives(rpc: Rpc, new_name: str) -> None:
    made = manifest(new_name, description="Größe 😀 \u2028", tags=["ä"])
    create(rpc, made, skill_md="---\nname: 雪\n---\n# 雪\n")

    skill = rpc("describe_skill", name=new_name)["skill"]
    assert skill["manifest"] == {**made, "kind": "action", "namespace": new_name.rpartition(".")[0]}
    assert skill["skill_md_frontmatter"] == {"name": "雪"}
    (row,) = rpc("list_skills", namespace=None, limit=1000, detail="summary")["skills"][-1:]
    assert row["description"]


def test_binary_files_keep_their_bytes_and_modes(rpc: Rpc, new_name: str) -> None:
    content = bytes(range(256))
    file = {
        "path": "resources/tool",
        "content": base64.b64encode(content).decode(),
        "encoding": "base64",
        "executable": True,
    }
    create(rpc, manifest(new_name), [*skill_files(), file])

    answer = rpc("read_skill_file", name=new_name, path="resources/tool")
    assert base64.b64decode(answer["content"]) == content
