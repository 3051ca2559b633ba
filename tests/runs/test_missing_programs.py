"""A run that calls a missing program: the error names the Debian package of the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.import_names import RARE, USUAL, package_of
from skillery.runs.hints import hint_on, missing_program
from skillery.testing.sandbox.languages import with_node
from tests.cli.test_cli import skillery
from tests.conftest import Rpc

SAID = {
    "/skills/x/s.sh: line 3: pdftotext: command not found": "pdftotext",
    "sh: 1: pandoc: not found": "pandoc",
    "env: ‘node’: No such file or directory": "node",
    "env: 'node': No such file or directory": "node",
    "FileNotFoundError: [Errno 2] No such file or directory: 'soffice'": "soffice",
    "Error: spawn ffmpeg ENOENT\n    at ChildProcess._handle.onexit": "ffmpeg",
    "'run' wants 'Rscript', and there is no such program in the sandbox": "Rscript",
    "PDFInfoNotInstalledError: Unable to get page count. Is poppler installed and in PATH?": "pdfinfo",
    "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'": "",
    "FileNotFoundError: [Errno 2] No such file or directory: '/workspace/pandoc'": "",
    "everything was found": "",
}
SCRIPTS = {
    "s.sh": "no-such-program --version",
    "known.sh": "echo 'known.sh: line 1: gnuplot: command not found' >&2; exit 127",
    "s.py": "import subprocess; subprocess.run(['no-such-program'], check=True)",
    "fine.sh": "echo 'x.sh: line 1: gnuplot: command not found' >&2",
    "bin/run": "#!/usr/bin/env no-such-program\n",
}


@pytest.mark.parametrize(("text", "program"), SAID.items())
def test_missing_program_parses_messages_of_interpreters_and_packages(text: str, program: str) -> None:
    assert missing_program(text) == program


@given(
    st.sampled_from([one for table in (USUAL, RARE) for programs in table.values() for one in programs]),
    st.text("abc :\n'"),
)
def test_every_program_has_its_package(program: str, before: str) -> None:
    word = hint_on(f"{before}\nx.sh: line 1: {program}: command not found\n")
    assert f"the program '{program}' is missing where runs see programs: Debian has it in the package" in word
    assert f"'{package_of(program)}'" in word


def run(rpc: Rpc, name: str, script: str) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("execute_skill", name=name, script=script)
    return answer


def test_run_error_names_the_debian_package_of_a_missing_program(sqlite_rpc: Rpc, new_name: str) -> None:
    files = [{"path": path, "content": text, "executable": True} for path, text in SCRIPTS.items()]
    manifest = {"name": new_name, "version": "1.0.0", "description": "It.", "kind": "instruction"}
    sqlite_rpc("create_skill", manifest=manifest, skill_md="# It\n", files=files)
    answer = run(sqlite_rpc, new_name, "known.sh")
    assert "Debian has it in the package 'gnuplot-nox'" in answer["output"]["hint"]
    assert "'gnuplot'" in answer["summary"]
    assert "programs: the program 'gnuplot' is missing" in answer["logs_preview"]
    assert "'no-such-program' is missing" in run(sqlite_rpc, new_name, "s.sh")["output"]["hint"]
    assert "'no-such-program' is missing" in run(sqlite_rpc, new_name, "bin/run")["error"]["message"]
    for script in ("s.py", "fine.sh"):  # these scripts do not fail, and a file may have that name
        assert "hint" not in run(sqlite_rpc, new_name, script)["output"]
    shown = skillery("run", new_name, "--script", "known.sh", "--url", sqlite_rpc.url)
    assert (shown.code, "hint: the program 'gnuplot' is missing" in shown.out) == (1, True)
    code = "exit_on_error() { exit 127; }; no-such-program || exit_on_error"
    ran = sqlite_rpc("run_code", language="bash", code=code)
    assert "'no-such-program' is missing where runs see programs" in ran["error"]["message"]
    python = "import subprocess\ndef main(args): subprocess.run(['gnuplot-x' if args else 'xelatex-no'])"
    assert "missing" not in sqlite_rpc("run_code", language="python", code=python)["error"]["message"]


@pytest.mark.full
def test_doctor_lists_usual_programs_with_package_and_path(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    found = skillery("doctor", "--home", home, "--json").json["programs"]
    assert {one["program"] for one in found} == {one for programs in USUAL.values() for one in programs}
    [bash] = [one for one in found if one["program"] == "bash"]
    assert (bash["package"], bash["path"].endswith("/bash"), bash["note"]) == ("bash", True, "")
    shown = skillery("doctor", "--home", home).out
    assert all(package in shown for package in USUAL)


NODE_SCRIPTS = {
    "bare.mjs": ("import 'left-pad/x.js'", "the npm package 'left-pad' is not among the packages of this skill"),
    "scoped.js": ("require('@acme/pad')", "the npm package '@acme/pad' is not"),
    "bun.js": ("console.log(Bun.version)", "'bun.js' needs Bun, which runs here do not have"),
    "sqlite.mjs": ("import { Database } from 'bun:sqlite'", "'sqlite.mjs' needs Bun"),
    "own.js": ("require('./left-pad')", ""),
    "fine.js": ("console.error(\"Cannot find package 'left-pad' imported from x.js\")", ""),
}


@with_node
def test_run_error_names_missing_npm_packages_and_bun(sqlite_rpc: Rpc, new_name: str) -> None:
    files = [{"path": path, "content": text} for path, (text, _) in NODE_SCRIPTS.items()]
    manifest = {"name": new_name, "version": "1.0.0", "description": "It.", "kind": "instruction"}
    sqlite_rpc("create_skill", manifest=manifest, skill_md="# It\n", files=files)
    for path, (_, hint) in NODE_SCRIPTS.items():
        answer = run(sqlite_rpc, new_name, path)["output"]
        assert hint in answer.get("hint", ""), path
        assert bool(hint) is ("hint" in answer), path
    code = "import 'left-pad';\nexport const main = () => 1"
    failure = sqlite_rpc("run_code", language="javascript", code=code)["error"]
    assert "the npm package 'left-pad' is not" in failure["message"]
