"""Archives of other systems: names, line ends, modes and Unicode forms of Windows and macOS."""

from __future__ import annotations

import unicodedata
import zipfile
from typing import Any

import pytest

from skillery.importing.zips import found_encoding
from tests.conftest import Rpc
from tests.importing.test_importing import by_path, codes, sent
from tests.support.archives import of_windows, skill_md, tarred, zipped
from tests.support.skill_corpus import windows_zip

NAMES = {"gb18030": "数据/报告.md", "cp932": "資料/レポート.md", "big5": "資料/報告書.md", "euc-kr": "자료/보고서.md"}


def files_of(rpc: Rpc, name: str) -> dict[str, bool]:
    skill = rpc("describe_skill", name=name, detail="full")["skill"]
    return {file["path"]: file["executable"] for file in skill["files"] if file["path"] != "skill.toml"}


def imported(rpc: Rpc, data: bytes, new_name: str, **params: str) -> tuple[dict[str, Any], dict[str, bool]]:
    [skill] = sent(rpc, data, namespace=new_name, **params)["skills"]
    return skill, files_of(rpc, skill["name"])


@pytest.mark.parametrize("encoding", NAMES)
def test_names_of_windows_zips_follow_the_skill_md(sqlite_rpc: Rpc, new_name: str, encoding: str) -> None:
    path = NAMES[encoding]
    files: dict[str, bytes | str] = {"a/SKILL.md": skill_md("a", body=f"Read {path}.\n"), f"a/{path}": "x"}

    skill, stored = imported(sqlite_rpc, of_windows(files, encoding), new_name)

    assert set(stored) == {"SKILL.md", path}
    assert "file_name_encoding" in codes(skill)
    assert encoding in str(skill["repairs"])


def test_the_option_names_decides_the_encoding(sqlite_rpc: Rpc, new_name: str) -> None:
    files: dict[str, bytes | str] = {"a/SKILL.md": skill_md("a"), "a/привет.md": "x"}
    data = of_windows(files, "cp866")

    guessed, _ = imported(sqlite_rpc, data, new_name)
    _, stored = imported(sqlite_rpc, data, new_name, names="cp866")

    assert "cp437" in str(guessed["repairs"])
    assert "привет.md" in stored
    refused = sqlite_rpc.http.post("/import", params={"names": "zlib"}, content=data).json()["error"]
    assert (refused["code"], refused["data"]["param"]) == (-32602, "names")


@pytest.mark.parametrize("extra", ["", "utf-8"])
def test_names_in_utf8_and_in_extra_fields_need_no_repair(sqlite_rpc: Rpc, new_name: str, extra: str) -> None:
    files: dict[str, bytes | str] = {"a/SKILL.md": skill_md("a"), "a/数据.md": "x"}

    skill, stored = imported(sqlite_rpc, of_windows(files, "gb18030" if extra else "utf-8", extra), new_name)

    assert (set(stored), codes(skill)) == ({"SKILL.md", "数据.md"}, set())


def test_folders_of_windows_are_no_files(sqlite_rpc: Rpc, new_name: str) -> None:
    files: dict[str, bytes | str] = {"a/": "", "a/SKILL.md": skill_md("a"), "a/docs/": "", "a/docs/x.md": "x"}

    _, stored = imported(sqlite_rpc, of_windows(files), new_name)

    assert set(stored) == {"SKILL.md", "docs/x.md"}


def test_scripts_without_modes_become_executable(sqlite_rpc: Rpc, new_name: str) -> None:
    files: dict[str, bytes | str] = {"a/SKILL.md": skill_md("a"), "a/run": "#!/bin/sh\n", "a/x.txt": "x"}

    _, of_archive = imported(sqlite_rpc, of_windows(files), new_name)
    _, of_modes = imported(sqlite_rpc, zipped({f"b/{path}": text for path, text in files.items()}), f"{new_name}.b")

    assert of_archive == {"SKILL.md": False, "run": True, "x.txt": False}
    assert of_modes == dict.fromkeys(of_archive, False)


def test_scripts_get_line_ends_that_the_kernel_reads(sqlite_rpc: Rpc, new_name: str) -> None:
    files: dict[str, bytes | str] = {
        "a/SKILL.md": skill_md("a"),
        "a/x.sh": "echo 1\r\n",
        "a/run": "#!/bin/sh\r\necho 2\r\n",
        "a/bin.sh": b"#!/bin/sh\r\n\0\r\n",
        "a/x.bat": "echo 3\r\n",
    }

    def contents(data: bytes, **params: str) -> tuple[set[str], dict[str, str]]:
        skill, stored = imported(sqlite_rpc, data, new_name, **params)
        read = {path: sqlite_rpc("read_skill_file", name=skill["name"], path=path)["content"] for path in stored}
        return codes(skill), read

    changed, read = contents(zipped(files))
    assert "line_ends" in changed
    assert (read["x.sh"], read["run"], read["x.bat"]) == ("echo 1\n", "#!/bin/sh\necho 2\n", "echo 3\r\n")
    assert read["bin.sh"] == "#!/bin/sh\r\n\0\r\n"
    assert sent(sqlite_rpc, zipped(files), namespace=new_name)["counts"] == {"unchanged": 1}
    kept, read = contents(zipped(files), keep_bytes="true")
    assert "line_ends" not in kept
    assert read["x.sh"] == files["a/x.sh"]


def test_paths_are_stored_in_nfc(sqlite_rpc: Rpc, new_name: str) -> None:
    path = unicodedata.normalize("NFD", "docs/résumé.md")
    data = tarred({"a/SKILL.md": skill_md("a"), f"a/{path}": "x"})

    skill, stored = imported(sqlite_rpc, data, new_name)

    assert set(stored) == {"SKILL.md", "docs/résumé.md"}
    assert [(note["code"], note["harmless"]) for note in skill["repairs"]] == [("nfc", True)]
    assert sqlite_rpc("read_skill_file", name=skill["name"], path=path)["content"] == "x"
    twins = tarred({"b/SKILL.md": skill_md("b"), f"b/{path}": "x", "b/docs/résumé.md": "y"})
    assert by_path(sent(sqlite_rpc, twins, namespace=new_name))["b"]["outcome"] == "refused"


def test_authored_and_exported_skills_keep_their_bytes(sqlite_rpc: Rpc, new_name: str) -> None:
    path = unicodedata.normalize("NFD", "é.sh")
    toml = f'name = "{new_name}.a"\nversion = "1.0.0"\ndescription = "What it does."\n'
    data = zipped({"a/SKILL.md": skill_md("a"), "a/skill.toml": toml, f"a/{path}": "echo\r\n"})

    skill, stored = imported(sqlite_rpc, data, new_name)

    assert path in stored
    assert sqlite_rpc("read_skill_file", name=skill["name"], path=path)["content"] == "echo\r\n"


def test_dates_are_versions_and_case_is_no_repair(sqlite_rpc: Rpc, new_name: str) -> None:
    data = zipped({"pdf-tools/SKILL.md": skill_md("PDF-Tools", version="2026-09-01")})

    [skill] = sent(sqlite_rpc, data, namespace=new_name)["skills"]

    assert (skill["name"], skill["version"]) == (f"{new_name}.pdf-tools", "2026.9.1")
    assert {note["code"] for note in skill["repairs"] if not note.get("harmless")} == {"loose_version"}


def test_the_search_for_an_encoding_reads_two_hundred_names() -> None:
    texts = ["数据".encode()]
    named = [zipfile.ZipInfo("数据".encode("gb18030").decode("cp437"))]
    others = [zipfile.ZipInfo("éé")] * 200

    assert found_encoding([*named, *others], texts) == "gb18030"
    assert found_encoding([*others, *named], texts) == ""


def test_zips_of_a_corpus_are_imported_whole(sqlite_rpc: Rpc, new_name: str) -> None:
    data = windows_zip(12)

    for outcome in ("published", "unchanged"):
        report = sent(sqlite_rpc, data, namespace=new_name)
        assert report["counts"] == {outcome: 12}
        assert {"file_name_encoding", "line_ends"} <= codes(report["skills"][-1])
    files = files_of(sqlite_rpc, report["skills"][-1]["name"])
    assert files == {"SKILL.md": False, "数据/报告.md": False, "scripts/run.sh": True}
