"""Names of imported skills: clashes, translations, titles, and skills inside of other skills."""

from __future__ import annotations

import pytest

from skillery.importing.free_names import endings_of
from tests.conftest import Rpc
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
