"""Names of imported skills: clashes, translations, titles, and skills inside of other skills."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skillery.importing.free_names import endings_of
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.importing.test_importing import by_path, codes, sent
from tests.support.archives import skill_md, zipped

CLASHES = [
    ("skills/clickhouse-io", "docs/zh-CN/skills/clickhouse-io", "clickhouse-io-zh-cn"),
    ("skills/nuxt-core", "plugins/web/v5/nuxt-core", "nuxt-core-v5"),
    ("other/pdf", "examples/pdf", "pdf-examples"),
    ("other/pdf", ".agents/skills/pdf", "pdf-agents"),
    ("src/v1.2/pdf", "src/v1.3/pdf", "pdf-v1-3"),
]


@pytest.mark.parametrize(("first", "second", "name"), CLASHES)
def test_clashing_skills_get_the_differing_path_element(
    sqlite_rpc: Rpc, new_name: str, first: str, second: str, name: str
) -> None:
    leaf = first.rpartition("/")[2]
    v4 = {"plugins/web/v4/nuxt-core/SKILL.md": skill_md("nuxt-core", "Four.")} if "v5" in second else {}
    files = {f"{second}/SKILL.md": skill_md(leaf, "Second."), f"{first}/SKILL.md": skill_md(leaf, "First."), **v4}

    for outcome in ("published", "unchanged"):
        report = sent(sqlite_rpc, zipped(files), namespace=new_name, source="clashes")
        assert report["counts"] == {outcome: len(files)}
        paths = by_path(report)
        assert paths[first]["name"] == f"{new_name}.{leaf}"
        assert paths[second]["name"] == f"{new_name}.{name}"
        assert codes(paths[second]) & {"name", "name_of_another"}


def test_translations_of_a_skill_get_their_languages(sqlite_rpc: Rpc, new_name: str) -> None:
    paths = ["skills/x", *(f"docs/{language}/skills/x" for language in ("de", "pt-BR", "zh-CN"))]
    files = {f"{path}/SKILL.md": skill_md("x", path) for path in paths}

    report = sent(sqlite_rpc, zipped(files), namespace=new_name)
    assert [skill["name"] for skill in report["skills"]] == [
        f"{new_name}.x{end}" for end in ("", "-de", "-pt-br", "-zh-cn")
    ]


def test_the_skill_with_more_files_keeps_a_clashing_name(sqlite_rpc: Rpc, new_name: str) -> None:
    files = {"a/x/SKILL.md": skill_md("x", "Small."), "b/x/SKILL.md": skill_md("x", "Large."), "b/x/more.md": "More."}

    paths = by_path(sent(sqlite_rpc, zipped(files), namespace=new_name))
    assert {path: skill["name"] for path, skill in paths.items()} == {
        "a/x": f"{new_name}.x-a",
        "b/x": f"{new_name}.x",
    }


def test_imported_skills_keep_their_names_if_a_better_path_appears(sqlite_rpc: Rpc, new_name: str) -> None:
    old = {"docs/x/SKILL.md": skill_md("x")}
    sent(sqlite_rpc, zipped(old), namespace=new_name, source="s")
    for changed, new_text in ((False, "What it does."), (True, "Other.")):
        files = {"docs/x/SKILL.md": skill_md("x", "Changed." if changed else "What it does.")}
        files["skills/x/SKILL.md"] = skill_md("x", new_text)
        paths = by_path(sent(sqlite_rpc, zipped(files), namespace=new_name, source="s"))
        assert paths["docs/x"]["name"] == f"{new_name}.x"
        assert paths["skills/x"].get("by" if not changed else "name") == (
            "docs/x" if not changed else f"{new_name}.x-2"
        )


def test_endings_of_names_have_bounds_and_no_dots() -> None:
    assert list(endings_of("v1.2/x", "x", "x", {})) == ["v1-2"]
    assert list(endings_of(f"{'y' * 300}/a/x", "x", "ns.x", {})) == ["a"]
    assert len(list(endings_of("/".join("abcdefghij"), "x", "x", {}))) == 4


# -- collections -----------------------------------------------------------------------------------------------------


def collection(body: str, **folders: str) -> dict[str, str]:
    inner = {f"all/{folder}/SKILL.md": skill_md(folder.rpartition("/")[2], text) for folder, text in folders.items()}
    return {"all/SKILL.md": skill_md("all", body=body), "all/notes.md": "Notes.", **inner}


@pytest.mark.parametrize(
    ("body", "folders", "split"),
    [
        ("Use one, two or three.\n", ["one", "two", "three"], ["one", "two", "three"]),
        ("- [one](one/SKILL.md)\n- `two`\n", ["one", "two", "three"], ["one", "two", "three"]),
        ("- one\n", ["one", "two", "three"], []),
        ("- one\n- two\n", ["one", "two"], []),
        (
            "one two three a b c",
            ["one", "two", "three", "templates/a", "one/examples/b", "one/c"],
            ["one", "two", "three"],
        ),
        ("one two three", ["templates/one", "templates/two", "templates/three"], []),
    ],
)
def test_listed_skills_of_a_collection_are_skills_of_their_own(
    sqlite_rpc: Rpc, new_name: str, body: str, folders: list[str], split: list[str]
) -> None:
    data = zipped(collection(body, **{folder: f"About {folder}." for folder in folders}))

    for outcome in ("published", "unchanged"):
        report = sent(sqlite_rpc, data, namespace=new_name)
        assert report["counts"] == {outcome: 1 + len(split)}
        paths = by_path(report)
        assert set(paths) == {"all", *(f"all/{folder}" for folder in split)}
        assert ("collection" in codes(paths["all"])) is bool(split)
        stays = {f"{folder}/SKILL.md" for folder in folders} - {f"{folder}/SKILL.md" for folder in split}
        nested = {f"{path[4:]}/{file}".lstrip("/") for path, skill in paths.items() for file in skill.get("nested", ())}
        assert nested == stays
    assert sent(sqlite_rpc, data, namespace=f"{new_name}.kept", nested="keep")["counts"] == {"published": 1}


def test_collections_of_folders_and_inside_of_collections_are_split(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    inner = {f"one/{folder}": "Inner." for folder in "abc"}
    files = collection("one two three", one="One.", two="Two.", three="Three.", **inner)
    files["all/one/SKILL.md"] = skill_md("one", body="a, b and c")
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    for outcome in ("published", "unchanged"):
        ended = skillery("import", str(tmp_path), "--url", sqlite_server.url, "--namespace", new_name, "--json")
        [report] = json.loads(ended.out)
        assert report["counts"] == {outcome: 7}
        assert report["sections"]["nested"] == []
