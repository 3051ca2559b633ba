"""Links to skills, nested skills, and the summary of an import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.cli.folder_walk import MAX_SCANNED_FILES
from skillery.importing.entries import Entry
from skillery.importing.finder import Finder
from skillery.importing.reports import is_collection
from skillery.importing.roots import MOST_STEPS
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server
from tests.importing.test_importing import by_path, sent
from tests.support.archives import skill_md, tarred, zipped
from tests.support.skill_corpus import grow

Files = dict[str, str]


def made(root: Path, files: Files, links: Files | None = None) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for path, target in (links or {}).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(target)
    return root


def imported(server: Server, new_name: str, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    """Return the output of `skillery import --json`, one report for each path."""
    ended = skillery("import", *map(str, arguments), "--url", server.url, "--namespace", new_name, "--json")
    assert ended.code == code, ended.err
    answers: list[dict[str, Any]] = json.loads(ended.out)
    return answers


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {skill["path"]: skill["outcome"] for skill in report["skills"]}


# -- links -----------------------------------------------------------------------------------------------------------

INSTALLED = {
    ".agents/skills/pdf/SKILL.md": skill_md("pdf"),
    ".agents/skills/pdf/scripts/fill.py": "print(1)\n",
    ".agents/skills/docx/SKILL.md": skill_md("docx"),
}
INSTALLED_LINKS = {
    ".claude/skills/pdf": "../../.agents/skills/pdf",
    ".claude/skills/docx": "../../.agents/skills/docx",
    ".claude/skills/gone": "../../.agents/skills/gone",
}


@pytest.mark.full
def test_link_to_skill_md_in_an_oversized_folder_is_reported(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    far = made(tmp_path / "far", {"SKILL.md": skill_md("far")})
    for number in range(MAX_SCANNED_FILES):
        (far / f"{number}.txt").touch()
    folder = made(tmp_path / "home", {"pdf/SKILL.md": skill_md("pdf")}, {"far/SKILL.md": str(far / "SKILL.md")})

    [answer] = imported(sqlite_server, new_name, folder, "--follow-links")

    assert outcomes(answer) == {"pdf": "published"}
    [lost] = answer["sections"]["links_not_followed"]
    assert (lost["path"], "to no skill" in lost["message"]) == ("far/SKILL.md", True)


def test_a_folder_of_links_that_npx_skills_made_is_imported(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    home = made(tmp_path / "home", INSTALLED, INSTALLED_LINKS)

    [answer] = imported(sqlite_server, new_name, home / ".claude/skills")

    assert outcomes(answer) == {"pdf": "published", "docx": "published"}
    files = sqlite_server.rpc("describe_skill", name=f"{new_name}.pdf", detail="full")["skill"]["files"]
    assert {file["path"] for file in files} == {"SKILL.md", "skill.toml", "scripts/fill.py"}
    assert answer["sections"]["links_not_followed"] == [
        {"path": "gone", "message": "the link to '../../.agents/skills/gone' leads to nothing"}
    ]
    both = imported(sqlite_server, new_name, home / ".claude/skills", home / ".agents/skills")
    assert [answer["counts"] for answer in both] == [{"merged": 2}, {"unchanged": 2}]
    [whole] = imported(sqlite_server, new_name, home)
    assert whole["counts"] == {"unchanged": 2, "merged": 2}
    assert by_path(whole)[".claude/skills/pdf"]["by"] == ".agents/skills/pdf"


def test_external_links_are_followed_to_imported_folders_or_on_request(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    made(tmp_path / "store", {"far/SKILL.md": skill_md("far"), "far/a/b.txt": "x", "notes/plan.txt": "secret"})
    folder = made(
        tmp_path / "mine",
        {"near/SKILL.md": skill_md("near")},
        {
            "far": "../store/far",
            "again": str(tmp_path / "store/far"),
            "notes": "../store/notes",
            "loop": "loop",
            "up": "..",
        },
    )

    [answer] = imported(sqlite_server, new_name, folder)
    assert outcomes(answer) == {"near": "published"}
    lost = {line["path"]: line["message"] for line in answer["sections"]["links_not_followed"]}
    assert lost.keys() == {"far", "again", "notes", "loop", "up"}
    assert "--follow-links" in lost["far"]
    assert "circle" in lost["loop"]
    assert "circle" in lost["up"]

    [answer] = imported(sqlite_server, new_name, folder, "--follow-links")
    assert outcomes(answer) == {"near": "unchanged", "again": "published", "far": "merged"}
    assert by_path(answer)["far"]["by"] == "again"
    lost = {line["path"]: line["message"] for line in answer["sections"]["links_not_followed"]}
    assert lost.keys() == {"notes", "loop", "up"}
    assert "no skill" in lost["notes"]

    mine, _ = imported(sqlite_server, new_name, folder, tmp_path / "store")
    assert {line["path"] for line in mine["sections"]["links_not_followed"]} == {"notes", "loop", "up"}


def test_links_are_followed_in_their_repository(sqlite_server: Server, new_name: str, tmp_path: Path) -> None:
    repository = made(
        tmp_path / "repository",
        {
            ".git/HEAD": "ref: refs/heads/main\n",
            "source/deep/SKILL.md": skill_md("deep"),
            "source/deep/more/SKILL.md": skill_md("more"),
            "docs/guide.md": skill_md("guide"),
            ".env": "KEY=1",
        },
        {
            "skills/deep": "../source/deep",
            "skills/inner": "../source/deep/more",
            "skills/guide/SKILL.md": "../../docs/guide.md",
            "skills/twin/SKILL.md": "../../source/deep/SKILL.md",
            "skills/secret/SKILL.md": "../../.env",
        },
    )

    [answer] = imported(sqlite_server, new_name, repository / "skills")
    assert outcomes(answer) == {"deep": "published", "guide": "published", "inner": "published", "twin": "merged"}
    assert by_path(answer)["deep"]["nested"] == ["more/SKILL.md"]
    assert sqlite_server.rpc("read_skill_file", name=f"{new_name}.guide", path="SKILL.md")["content"] == skill_md(
        "guide"
    )
    assert [line["path"] for line in answer["sections"]["links_not_followed"]] == ["secret/SKILL.md"]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_follows_its_links_to_skills_and_lists_the_others(pack: Any, rpc: Rpc, new_name: str) -> None:
    data = pack(
        {
            "skills/pdf/SKILL.md": skill_md("pdf"),
            "lib/node_modules/tool/SKILL.md": skill_md("tool"),
            "shared/text.md": "x",
        },
        {
            ".claude/skills": "../skills",
            ".cursor/skills/pdf": "../../skills/pdf",
            "skills/tool": "../lib/node_modules/tool",
            "loop": "loop",
            "other": "shared",
            "skills/pdf/shared": "../../shared",
        },
    )
    report = sent(rpc, data, namespace=new_name)

    assert outcomes(report) == {
        "skills/pdf": "published",
        "skills/tool": "published",
        ".claude/skills/pdf": "merged",
        ".claude/skills/tool": "merged",
        ".cursor/skills/pdf": "merged",
    }
    links = {one["path"]: one["message"] for one in report["left_out"] if one["why"] == "link"}
    assert links == {"loop": "the link to 'loop' leads in a circle", "other": "the link to 'shared' leads to no skill"}
    [left] = by_path(report)["skills/pdf"]["left_out"]
    assert (left["path"], left["why"]) == ("shared", "link")
    assert sent(rpc, data, namespace=new_name)["counts"] == {"unchanged": 2, "merged": 3}


NAMES = st.sampled_from(["a", "b", "skills", ".claude"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
TARGETS = st.lists(st.sampled_from(["a", "b", "skills", ".claude", "..", "."]), min_size=1, max_size=4).map("/".join)


@given(st.sets(PATHS, max_size=6), st.dictionaries(PATHS, TARGETS, max_size=5), st.booleans())
def test_every_skill_is_read_once_regardless_of_links(folders: set[str], links: Files, split: bool) -> None:
    entries = [Entry(f"{folder}/SKILL.md", 1, False, "", folder) for folder in sorted(folders)]
    entries += [Entry(path, 0, False, target, None) for path, target in links.items()]
    finder = Finder(entries, nested="split" if split else "keep")
    found = finder.skills()

    skills = [finder.skill(root) for root in found.roots]
    read = [skill.files["SKILL.md"].place for skill in skills if "SKILL.md" in skill.files]
    assert len(read) == len(set(read)) == len(skills)
    nested = {f"{skill.root}/{path}".removesuffix("/SKILL.md") for skill in skills for path in skill.nested}
    assert folders <= {*read, *nested, *(skill.root for skill in skills)} or any(".claude" in path for path in folders)
    assert {link.by for link in found.merged} <= set(found.roots)
    assert not {link.path for link in found.merged} & set(found.roots)


@pytest.mark.full
def test_links_to_many_skills_are_looked_at_only_so_often() -> None:
    """A thousand links to a folder of a thousand skills with links to itself would be millions of steps."""
    skills = [Entry(f"skills/{number}/SKILL.md", 1, False, "", 0) for number in range(1_000)]
    links = [Entry(f"links/{number}", 0, False, "../skills", None) for number in range(1_000)]
    found = Finder([*skills, *links]).skills()

    assert len(found.roots) == 1_000
    assert len(found.merged) <= MOST_STEPS
    assert any("more than" in one.message for one in found.left_out)


def test_a_skill_md_behind_many_links_is_read_once() -> None:
    read: list[str] = []

    def content(entry: Entry) -> bytes:
        read.append(entry.path)
        return b"---\nname: all\n---\none two three\n"

    paths = ["all", "all/one", "all/two", "all/three"]
    links = [Entry(f"links/{number}", 0, False, "../all", None) for number in range(20)]
    skills = [Entry(f"{path}/SKILL.md", 40, False, "", 0) for path in paths]
    found = Finder([*skills, *links], nested="auto", read=content).skills()

    assert sorted(found.roots) == sorted(paths)
    assert len(found.merged) == len(paths) * len(links)
    assert read == ["all/SKILL.md"]


# -- nested skills ---------------------------------------------------------------------------------------------------

NESTED = {
    "outer/SKILL.md": skill_md("outer", body="# Skills\n\n- [one](one/SKILL.md)\n- two\n"),
    "outer/one/SKILL.md": skill_md("one"),
    "outer/one/x.txt": "x",
    "maker/SKILL.md": skill_md("maker", body="Write a skill by the template.\n"),
    "maker/templates/SKILL.md": skill_md("template"),
}


def test_nested_skills_are_reported_and_split_on_request(sqlite_server: Server, new_name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "nested", NESTED)

    where = ("--url", sqlite_server.url, "--namespace", new_name)
    ended = skillery("import", str(folder), *where)
    assert ended.code == 0
    assert "  outer/one/SKILL.md: remains a file of outer\n" in ended.err
    assert "  maker/templates/SKILL.md: remains a file of maker\n" in ended.err
    assert ended.err.count("hint: outer: its SKILL.md only lists skills: --nested split") == 1
    assert "hint: maker" not in ended.err

    [answer] = imported(sqlite_server, new_name, folder, "--nested", "split")
    assert outcomes(answer) == {
        "outer": "published",
        "outer/one": "published",
        "maker": "published",
        "maker/templates": "published",
    }
    assert answer["sections"]["nested"] == []
    files = sqlite_server.rpc("describe_skill", name=f"{new_name}.one", detail="full")["skill"]["files"]
    assert {file["path"] for file in files} == {"SKILL.md", "skill.toml", "x.txt"}
    wrong = sqlite_server.rpc.http.post("/import?nested=perhaps", content=zipped({}))
    assert (wrong.status_code, wrong.json()["error"]["data"]["param"]) == (400, "nested")


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("# Skills\n\n- a\n- b\n  goes on\n", True),
        ("Skills:\n\n1. a\n2. b\n", True),
        ("| skill | what |\n|---|---|\n| a | b |\n", True),
        ("- a\n\nUse them when asked for a report.\n", False),
        ("# Title\n", False),
        ("", False),
    ],
)
def test_a_collection_is_a_text_of_lists_alone(body: str, is_one: bool) -> None:
    assert is_collection(body) is is_one


# -- the summary -----------------------------------------------------------------------------------------------------


def test_import_report_ends_with_outcomes_and_open_problems(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    folder = made(
        tmp_path / "skills",
        {
            "good/SKILL.md": skill_md("good", author="me"),
            "odd/SKILL.md": "no frontmatter",
            "bad/skill.toml": "= x",
            "later/good/SKILL.md": skill_md("good", author="me"),
            "needs/SKILL.md": skill_md("needs"),
            "needs/requirements.txt": "six\n",
        },
        {"good/link": "/etc/passwd"},
    )
    where = ("--url", sqlite_server.url, "--namespace", new_name)

    ended = skillery("import", str(folder), *where)
    assert ended.code == 3
    summary = ended.err[ended.err.index(f"{folder}: 5 skills") :].splitlines()
    assert "2 read with repairs" in summary[0]
    titles = [line.partition(":")[0] for line in summary[1:] if not line.startswith(" ")]
    assert titles == [
        "published (3)",
        "repaired (2)",
        "refused (1)",
        "merged (1)",
        "links not followed (1)",
        "packages missing (1)",
    ]
    assert "  bad: there is no SKILL.md" in summary
    assert "note: good/SKILL.md: keys that Agent Skills do not define are kept: 'author'" in ended.err
    [again] = imported(sqlite_server, new_name, folder, code=3)
    assert {section: len(lines) for section, lines in again["sections"].items()} == {
        "published": 0,
        "unchanged": 3,
        "named_otherwise": 0,
        "repaired": 1,
        "refused": 1,
        "merged": 1,
        "nested": 0,
        "links_not_followed": 1,
        "packages_missing": 0,
    }


def test_an_import_that_finds_no_skill_says_where_it_looked(
    sqlite_server: Server, new_name: str, tmp_path: Path
) -> None:
    folder = made(tmp_path / "docs", {"a/x.txt": "x", "b/c/y.txt": "y"})

    [answer] = imported(sqlite_server, new_name, folder, code=4)
    assert answer["searched"] == [str(folder), f"{folder}/a", f"{folder}/b/c"]
    ended = skillery("import", str(folder), "--url", sqlite_server.url)
    assert (ended.code, f"searched: {folder}, {folder}/a" in ended.err) == (4, True)
    archive = tmp_path / "none.zip"
    archive.write_bytes(zipped({"a/x.txt": "x"}))
    [answer] = imported(sqlite_server, new_name, archive, code=4)
    assert answer["searched"] == ["", "a"]


# -- a large repository ----------------------------------------------------------------------------------------------


@ON_SQLITE
@pytest.mark.smoke
def test_corpus_import_is_complete_and_unchanged_on_repetition(server: Server, new_name: str, tmp_path: Path) -> None:
    corpus = grow(tmp_path / "corpus", skills=60)

    [first] = imported(server, new_name, corpus.root)
    assert set(outcomes(first)) == set(corpus.paths)
    assert set(first["counts"]) == {"published", "merged", "overridden"}
    assert {line["path"] for line in first["sections"]["links_not_followed"]} == set(corpus.lost)
    assert {line["path"] for line in first["sections"]["nested"]} == set(corpus.nested)
    [again] = imported(server, new_name, corpus.root)
    assert again["counts"] == {"unchanged": first["counts"].pop("published"), **first["counts"]}
    expected = [
        ("packages missing", "package.json:1: package.json has dependencies"),
        ("line_ends", "the lines of this script end in CR LF"),
        ("nfc", "is stored in the Unicode form NFC"),
        ("collection", "it lists most of the 4 skills in its folder"),
        ("translation", "-zh-cn'"),
    ]
    report = json.dumps(first["skills"], ensure_ascii=False)
    assert [title for title, text in expected if text not in report] == []
    for path in corpus.people:
        [name] = [skill["name"] for skill in first["skills"] if skill["path"] == path]
        assert server.rpc("describe_skill", name=name)["skill"]["audience"] == "people"
    names = {skill["path"]: skill.get("name") for skill in first["skills"]}
    assert names == {skill["path"]: skill.get("name") for skill in again["skills"]}
