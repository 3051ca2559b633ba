"""Dependencies of foreign SKILL.md folders, read during import: `# /// script` blocks and requirements.txt."""

from __future__ import annotations

import codecs
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.foreign_requirements import Needs, read_needs
from skillery.formats.manifest import parse_manifest
from skillery.formats.repairs import Repairs
from tests.conftest import Rpc, Server
from tests.importing.test_importing import codes, sent
from tests.support.archives import skill_md, zipped
from tests.support.needing import lock_of, pins

BLOCK = """#!/usr/bin/env python3
# /// script
# requires-python = ">=3.8"
# dependencies = [
#   "frames>=1",
#   "Figures[big]",
# ]
# ///
import frames
"""
SHOW = 'import sys\nimport frames\nprint(frames.VERSION, "".join(sys.argv[1:]))\n'


def needs_of(**files: str | bytes) -> tuple[Needs, list[tuple[str | None, int | None, str]]]:
    """Return the needs of the files and the repairs. The keywords are file names, with `__` for `/`."""
    repairs = Repairs()
    named = {name.replace("__", "/"): text for name, text in files.items()}
    found = read_needs(
        {path: text.encode() if isinstance(text, str) else text for path, text in named.items()}, repairs
    )
    return found, [(one.file, one.line, one.message) for one in repairs.all()]


def of_text(text: str | bytes) -> tuple[tuple[str, ...], list[tuple[int | None, str]]]:
    found, notes = needs_of(**{"requirements.txt": text})
    return found.dependencies, [(line, message) for _, line, message in notes]


# -- requirements.txt ------------------------------------------------------------------------------------------------


def test_comments_continuations_hashes_and_markers_are_understood() -> None:
    text = (
        "# all\r\n\r\npandas>=2,<3   # frames\n"
        "numpy==2.0.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "httpx[http2] ; python_version >= '3.9'\nopen\\\npyxl\n"
    )
    assert of_text(text) == (
        ('httpx[http2]; python_version >= "3.9"', "numpy==2.0.0", "openpyxl", "pandas<3,>=2"),
        [],
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r other.txt", "the line with -r is left out"),
        ("-e .", "the line with -e is left out"),
        ("--index-url https://me:secret@example.org/simple", "the line with --index-url is left out"),
        ("git+https://example.org/a.git#egg=a", "an address or a path is left out"),
        ("https://example.org/a-1.0-py3-none-any.whl", "an address or a path is left out"),
        ("./local", "an address or a path is left out"),
        ("vendor/a-1.0-py3-none-any.whl", "an address or a path is left out"),
        ("a @ git+https://me:secret@example.org/a", "names an address"),
        ("num py", "is not a requirement"),
        ("${NAME}>=1", "is not a requirement"),
        ("a" * 400, "is too long"),
    ],
)
def test_lines_that_name_no_package_are_left_out_with_their_line(line: str, words: str) -> None:
    found, [(number, message)] = of_text(f"first\n# two\n{line}\nlast\n")

    assert (found, number) == (("first", "last"), 3)
    assert words in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "encoded",
    [
        codecs.BOM_UTF8 + b"pandas>=2\n",
        codecs.BOM_UTF16_LE + "pandas>=2\r\n".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "pandas>=2\r\n".encode("utf-16-be"),
    ],
)
def test_marks_of_an_encoding_are_understood(encoded: bytes) -> None:
    assert of_text(encoded) == (("pandas>=2",), [])


def test_undecodable_or_oversized_requirements_are_skipped_with_a_note() -> None:
    assert of_text(b"pandas\n\xff\xfe\n") == (
        (),
        [(2, "is neither UTF-8 nor UTF-16 text; its requirements are not read")],
    )
    assert "at most" in of_text(b"#" * 600_000)[1][0][1]


def test_more_packages_than_may_be_are_none() -> None:
    found, notes = of_text("".join(f"p{number}\n" for number in range(101)))
    assert (found, len(notes)) == ((), 1)
    assert "101 packages" in notes[0][1]
    found, notes = of_text("a\n" * 200_000)
    assert (found, len(notes)) == ((), 1)


def test_requirements_of_all_files_merge_per_package() -> None:
    found, notes = needs_of(
        **{
            "requirements.txt": "Frames>=1\nfigures\n",
            "scripts__requirements.txt": "frames[x] < 3\nframes; sys_platform == 'win32'\n",
            "scripts__run.py": BLOCK,
            "scripts__other.py": BLOCK.replace(">=3.8", "<4"),
            "other__requirements.txt": "not-read\n",
        }
    )
    assert found[:2] == (("figures[big]", "frames[x]<3,>=1", 'frames; sys_platform == "win32"'), "<4,>=3.8")
    assert notes == []


# -- PEP 723 ---------------------------------------------------------------------------------------------------------


def test_script_block_yields_requirements_and_python_versions() -> None:
    own = Needs(("figures[big]", "frames>=1"), ">=3.8")
    assert needs_of(**{"a.py": BLOCK, "b.txt": BLOCK}) == (own._replace(scripts=(("a.py", own),)), [])
    assert needs_of(**{"a.py": BLOCK.replace("\n", "\r\n")})[0].requires_python == ">=3.8"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (BLOCK.replace('"frames>=1"', '"frames of mine"'), 5, "is not a requirement"),
        (BLOCK.replace('"frames>=1"', "1"), 4, "is not a string"),
        (BLOCK.replace('">=3.8"', '"new"'), 3, "requires-python is not a set of versions"),
        (BLOCK.replace('"frames>=1"', '"frames'), 5, "is not TOML"),
        (BLOCK.replace("# ///\n", ""), 2, "is never closed"),
        (BLOCK + BLOCK, 11, "occurs twice"),
        ("# /// script\n" + "# \n#  {}\n" * 9_000 + "# ///\n", 1, "has over 16384 characters"),
        ("# /// script\n# dependencies = 1\n# ///\n", 2, "are not a list"),
    ],
)
def test_script_block_errors_name_the_file_and_line(text: str, line: int, words: str) -> None:
    _, [(file, number, message)] = needs_of(**{"scripts__a.py": text})

    assert (file, number) == ("scripts/a.py", line)
    assert words in message


@given(
    st.dictionaries(
        st.sampled_from(["requirements.txt", "scripts/requirements.txt", "a.py"]),
        st.binary(max_size=200)
        | st.lists(
            st.sampled_from(
                ["# /// script", "# ///", "#", '# dependencies = ["a>=1", "b c"]', '# requires-python = ">3"', "\\"]
            )
            | st.text(alphabet="ab=-# \\\r\n:1.[];@/<>~!'\"\x00é{}()", max_size=30),
            max_size=12,
        ).map(lambda lines: "\n".join(lines).encode()),
    )
)
def test_any_files_give_needs_that_a_manifest_takes(files: dict[str, bytes]) -> None:
    repairs = Repairs()
    runtime = read_needs(files, repairs).runtime()

    if runtime:
        parse_manifest({"name": "a", "version": "1.0.0", "description": "x", "runtime": runtime})
    assert all(one.line is None or one.line >= 1 for one in repairs.all())


# -- imported --------------------------------------------------------------------------------------------------------


def imported(rpc: Rpc, name: str, **files: str) -> dict[str, Any]:
    content = {f"{name}/SKILL.md": skill_md(name)}
    [skill] = sent(rpc, zipped(content | {f"{name}/{path}": text for path, text in files.items()}))["skills"]
    found: dict[str, Any] = skill
    return found


def test_scripts_of_an_imported_skill_find_their_packages(packages: Server, new_name: str) -> None:
    rpc = packages.rpc
    files = {"scripts/show.py": SHOW, "requirements.txt": "frames>=1.5,<2\n-r more.txt\n"}

    skill = imported(rpc, new_name, **files)

    assert (skill["outcome"], codes(skill)) == ("published", {"left_out_requirement"})
    described = rpc("describe_skill", name=new_name)["skill"]
    assert described["kind"] == "instruction"
    assert described["manifest"]["runtime"] == {"dependencies": ["frames<2,>=1.5"]}
    assert described["warnings"] == [
        "requirements.txt:2: the line with -r is left out; expected a name with versions, as in 'pandas>=2,<3'"
    ]
    assert pins(lock_of(rpc, new_name)) == {"figures": "2.0", "frames": "1.5"}
    ran = rpc("execute_skill", name=new_name, script="scripts/show.py", args={"argv": ["!"]})
    assert ran["output"]["stdout"] == "1.5 !\n"
    mounting = "import frames\ndef main(args): return frames.VERSION"
    code = rpc("run_code", language="python", code=mounting, entrypoint="main", mount_skills=[new_name])
    assert code["output"] == "1.5"
    assert "no entrypoint" not in rpc.error("execute_skill", name=new_name)["message"]
    again = imported(rpc, new_name, **files)
    assert (again["outcome"], again["digest"]) == ("unchanged", skill["digest"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("frames>=9\n", "cannot be met"),
        ("frames<2\nfigures<1\n", "cannot be met"),
        ("nobody-has-this\n", "the package nobody-has-this is unknown"),
        ("elsewhere\n", "has no wheel"),
        ("forbidden\n", "is denied here"),
    ],
)
@pytest.mark.full(after=5)
def test_unavailable_packages_are_reported_and_the_skill_is_imported_without(
    packages: Server, new_name: str, text: str, words: str
) -> None:
    rpc = packages.rpc
    skill = imported(rpc, new_name, **{"scripts/show.py": SHOW, "requirements.txt": text})

    [note] = skill["repairs"]
    assert (skill["outcome"], note["code"]) == ("published", "no_packages")
    assert words in note["message"]
    described = rpc("describe_skill", name=new_name)["skill"]
    assert described["warnings"] == [note["message"]]
    assert "runtime" not in described["manifest"]
    ran = rpc("execute_skill", name=new_name, script="scripts/show.py")
    assert "ModuleNotFoundError" in ran["output"]["stderr"]


def test_an_unavailable_python_is_reported(packages: Server, new_name: str) -> None:
    skill = imported(packages.rpc, new_name, **{"a.py": BLOCK.replace(">=3.8", ">=4")})

    assert (skill["outcome"], codes(skill)) == ("published", {"no_packages"})
    assert skill["repairs"][0]["message"].startswith("needs Python >=4, and this server has 3.")


def test_a_lock_of_another_kind_is_reported(packages: Server, new_name: str) -> None:
    files = {"requirements.txt": "frames\n", "requirements.lock": "frames==1.0\n"}
    skill = imported(packages.rpc, new_name, **files)

    assert (skill["outcome"], codes(skill)) == ("published", {"no_packages"})
    assert packages.rpc("read_skill_file", name=new_name, path="requirements.lock")["content"] == "frames==1.0\n"


def test_a_server_without_packages_imports_without(rpc: Rpc, new_name: str) -> None:
    skill = imported(rpc, new_name, **{"scripts/show.py": SHOW, "requirements.txt": "pandas\n"})

    assert (skill["outcome"], codes(skill)) == ("published", {"no_packages"})
    message = skill["repairs"][0]["message"]
    assert "it needs pandas, and its scripts run without: no packages are available" in message
    assert (
        imported(rpc, new_name, **{"scripts/show.py": SHOW, "requirements.txt": "pandas\n"})["outcome"] == "unchanged"
    )


@pytest.mark.full
def test_where_the_index_is_away_that_skill_alone_is_imported_again(start_server: Any, new_name: str) -> None:
    rpc = start_server(env={"SKILLERY_PACKAGES_INDEX_URLS": "http://localhost:9/simple"}).rpc
    data = zipped(
        {
            "a/SKILL.md": skill_md(f"{new_name}-a"),
            "a/requirements.txt": "frames\n",
            "b/SKILL.md": skill_md(f"{new_name}-b"),
        }
    )

    first, second = sent(rpc, data)["skills"]

    assert (first["outcome"], first["error"]["data"]["type"]) == ("refused", "package_index_unavailable")
    assert second["outcome"] == "published"


# -- [runtime] without an entrypoint ---------------------------------------------------------------------------------


def test_a_runtime_for_scripts_needs_no_entrypoint(packages: Server, new_name: str) -> None:
    rpc = packages.rpc
    made = {"name": new_name, "version": "1.0.0", "description": "x", "runtime": {"dependencies": ["frames<2"]}}
    rpc("create_skill", manifest=made, skill_md="# A\n", files=[{"path": "s.py", "content": SHOW}])

    assert rpc("execute_skill", name=new_name, script="s.py")["output"]["stdout"] == "1.5 \n"


@pytest.mark.parametrize(
    "runtime",
    [{}, {"language": "python", "dependencies": ["a"]}, {"export": "main", "dependencies": ["a"]}, {"limits": {}}],
)
def test_another_runtime_without_an_entrypoint_lacks_it(rpc: Rpc, new_name: str, runtime: dict[str, Any]) -> None:
    made = {"name": new_name, "version": "1.0.0", "description": "x", "runtime": runtime}

    error = rpc.error("create_skill", manifest=made, skill_md="# A\n")

    assert "runtime.entrypoint" in error["message"]


def test_a_synced_folder_stays_unchanged(packages: Server, new_name: str) -> None:
    data = zipped({f"{new_name}/SKILL.md": skill_md(new_name), f"{new_name}/a.py": BLOCK})
    outcomes = [sent(packages.rpc, data, source=f"{new_name}-folder")["skills"][0]["outcome"] for _ in range(2)]
    assert outcomes == ["published", "unchanged"]
