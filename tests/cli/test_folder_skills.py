"""Folders in place of names: `skillery run DIR`, `skillery code FILE --mount DIR`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from skillery.cli.output import clean
from skillery.cli.run import read_inputs
from skillery.cli.run_output import UsedCommand, with_command
from tests.cli.test_cli import skillery
from tests.conftest import Server

ANALYSIS = """
from skills.greet import count
from skills.text.csv.profile import profile_csv

def main(args):
    return [count("a a", 1)["words"], profile_csv("n\\n1\\n")["rows"]]
"""
DRAWS = "import os\ndef main(args):\n    os.mkdir('out')\n    open('out/a.txt', 'w').write('kept')\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("folders") / "home")


@pytest.fixture
def greet(tmp_path: Path) -> Path:
    folder = tmp_path / "greet"
    assert skillery("new", str(folder)).code == 0
    return folder


@pytest.mark.smoke
def test_a_folder_runs_like_a_published_skill_and_leaves_nothing_behind(home: str, greet: Path, tmp_path: Path) -> None:
    ran = skillery("run", str(greet), "--arg", "text=a b a", "--json", SKILLERY_HOME=home)
    wrong = skillery("run", str(greet), "--arg", "top=many", SKILLERY_HOME=home)
    (greet / "code/main.py").write_text(DRAWS)
    drawn = skillery("run", str(greet), "--arg", "text=a", "--out", str(tmp_path / "kept"), SKILLERY_HOME=home)

    assert ran.json["output"]["words"] == 3
    assert (ran.json["skill"]["name"], ran.json["skill"]["version"]) == ("greet", "0.1.0")
    assert (wrong.code, "ValidationError" in wrong.err) == (1, True)
    assert drawn.code == 0, drawn.err
    assert (tmp_path / "kept/a.txt").read_text() == "kept"
    assert skillery("describe", "greet", SKILLERY_HOME=home).code == 3


@pytest.mark.full
def test_wrong_args_are_answered_with_a_command_that_runs(home: str, greet: Path) -> None:
    wrong = skillery("run", str(greet), "--arg", "top=many", "--arg", "text=it's 1", SKILLERY_HOME=home)
    correct = shlex.split(wrong.err.partition("A correct call: ")[2].splitlines()[0])

    assert correct[:3] == ["skillery", "run", str(greet)]
    assert "text=it's 1" in correct
    assert skillery(*correct[1:], SKILLERY_HOME=home).code == 0


@pytest.mark.parametrize(
    "args",
    [
        {"text": 'it\'s a "b" $HOME\n`x`', "other": "plain"},
        {"looks": "3", "like": "null", "json": "{}", "at": "@file", "empty": ""},
        {"list": [1, "a b"], "object": {"k": None}, "yes": True, "none": None, "number": 1.5},
        {"a=b": 1, "": "x", "c": "@d"},
        {"hidden": "a\u202eb\x1b[2J", "lines": "a\nerror: b"},
        {"hidden\u202ename": "a"},
    ],
)
def test_a_correct_call_is_quoted_for_the_shell(args: dict[str, object]) -> None:
    message = f"Wrong.\nA correct call: {json.dumps({'name': 'a.b', 'args': args})}"
    printed = with_command(message, UsedCommand(["skillery", "run", "a.b"], " --url http://h"))
    words = shlex.split(printed.removeprefix("Wrong.\nA correct call: "))
    options = dict.fromkeys(words[3::2])
    values = [word for word, option in zip(words[4::2], words[3::2], strict=True) if option == "--arg"]
    whole = dict(zip(words[3::2], words[4::2], strict=True)).get("--args-json")

    assert printed.count("\n") == 1
    assert clean(printed) == printed
    assert (words[:3], words[-2:]) == (["skillery", "run", "a.b"], ["--url", "http://h"])
    assert set(options) <= {"--arg", "--args-json", "--url"}
    assert read_inputs(values, whole, []).args == args


def test_a_correct_call_has_the_files_of_its_blobs() -> None:
    call = {"name": "a.b", "args": {"one": "blob:1", "two": "blob:ID", "n": 1}}
    used = UsedCommand(["skillery", "run", "a.b"], blobs=[("one", "in.csv"), (None, "more"), ("n", "wrong")])

    printed = with_command(f"\nA correct call: {json.dumps(call)}", used)
    assert printed == "\nA correct call: skillery run a.b --blob more --blob one=in.csv --blob two=FILE --arg n=1"


def test_texts_of_code_and_cut_calls_stay_as_they_are() -> None:
    for message in ("no call", "x\nA correct call: none", '\nA correct call: {"name":"a","args":{"b":"c…'):
        assert with_command(message, UsedCommand(["skillery", "run", "a"])) == message


@pytest.mark.full
def test_code_mounts_a_folder_next_to_a_published_skill(home: str, greet: Path, tmp_path: Path) -> None:
    (tmp_path / "analysis.py").write_text(ANALYSIS)
    mounts = ("--mount", str(greet), "--mount", "text.csv.profile@^1")
    ran = skillery("code", str(tmp_path / "analysis.py"), *mounts, "--json", SKILLERY_HOME=home)

    assert ran.json["output"] == [2, 1], ran.json


def test_a_folder_that_cannot_run_is_refused_with_the_remedy(home: str, greet: Path, tmp_path: Path) -> None:
    elsewhere = skillery("run", str(greet), "--url", "http://127.0.0.1:1")
    versioned = skillery("run", str(greet), "--version", "1.0.0", SKILLERY_HOME=home)
    absent = skillery("run", str(tmp_path / "absent"), SKILLERY_HOME=home)

    assert (elsewhere.code, "leave --url out" in elsewhere.err) == (2, True)
    assert (versioned.code, "leave --version out" in versioned.err) == (2, True)
    assert (absent.code, "is not a folder" in absent.err) == (3, True)


@pytest.mark.smoke
def test_a_plain_name_is_the_skill_and_not_a_folder(
    sqlite_server: Server, tmp_path: Path, new_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, there = tmp_path / new_name, ("--url", sqlite_server.url)
    assert skillery("new", str(folder)).code == 0
    (tmp_path / "code.py").write_text(f"from skills.{new_name} import count\ndef main(args): return count('a', 1)\n")
    monkeypatch.chdir(tmp_path)
    unknown = skillery("run", new_name, "--arg", "text=a", *there)
    monkeypatch.chdir(folder)
    published = skillery("publish", *there)
    monkeypatch.chdir(tmp_path)
    (folder / "code/main.py").write_text("broken")
    ran = skillery("run", new_name, "--arg", "text=a", *there)
    mounted = skillery("code", "code.py", "--mount", new_name, *there)
    monkeypatch.chdir(folder)
    compared = skillery("diff", *there)

    note = f"note: '{new_name}' means the skill of the registry; the folder is ./{new_name}\n"
    assert (unknown.code, unknown.err.startswith(note)) == (3, True)
    assert published.out == f"published {new_name} 0.1.0 to {sqlite_server.url}\n"
    assert (ran.code, mounted.code) == (0, 0), ran.err + mounted.err
    assert note in ran.err
    assert note in mounted.err
    assert "changed code/main.py" in compared.out


REPORT = """
name = "team.report"
version = "1.0.0"
description = "Writes about a text."

[runtime]
language = "python"
entrypoint = "code/main.py"

[requires.skills]
"team.mail" = "^1"
"team.words" = "^0.1"

[[examples]]
name = "counts and sends"
expect = ["from the folder", 2, "sent 2"]
"""
REPORT_CODE = """
from skills.team.mail import send
from skills.team.words import SOURCE, main as count

def main(args):
    counted = count({"text": "a b", "top": 1})["words"]
    return [SOURCE, counted, send(counted)]
"""
REPORT_TESTS = """
import unittest

from skills.team.report import main

class Report(unittest.TestCase):
    def test_it_sends(self):
        self.assertEqual(main({})[2], "sent 2")
"""
MAIL = """
from skills.team.words import main as count

def send(words):
    assert count({"text": "a", "top": 1})["words"] == 1
    return f"sent {words}"

def main(args):
    return send(0)
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """A skill that requires a skill, and a skill with permissions that requires it too."""
    words, mail, folder = tmp_path / "words", tmp_path / "mail", tmp_path / "report"
    assert skillery("new", str(words), "--name", "team.words").code == 0
    (words / "code/main.py").write_text("SOURCE = 'from the registry'\n" + (words / "code/main.py").read_text())
    for place, toml, code in ((mail, _mail(REPORT), MAIL), (folder, REPORT, REPORT_CODE)):
        (place / "code").mkdir(parents=True)
        (place / "SKILL.md").write_text("# Skill: a skill of the team\n")
        (place / "skill.toml").write_text(toml)
        (place / "code/main.py").write_text(code)
    (folder / "tests").mkdir()
    (folder / "tests/test_report.py").write_text(REPORT_TESTS)
    return folder


def _mail(toml: str) -> str:
    toml = toml.replace('"team.mail" = "^1"\n', "").replace("team.report", "team.mail").partition("[[examples]]")[0]
    return f'{toml}[permissions]\nnetwork = ["https://mail.example.com"]\n'


@pytest.mark.full
def test_tests_of_a_folder_mount_required_folders_and_versions(tmp_path: Path, report: Path) -> None:
    home, words, mail = str(tmp_path / "home"), report.parent / "words", str(report.parent / "mail")

    def test(*arguments: str) -> str:
        ended = skillery("test", str(report), *arguments, SKILLERY_HOME=home)
        return ended.out + ended.err

    missing = test()
    assert "'team.report' requires 'team.mail', which does not exist" in missing
    assert "Publish it, or give its folder too" in missing
    assert skillery("publish", str(words), mail, SKILLERY_HOME=home).code == 0
    assert '+  "from the registry",' in test()
    main = words / "code/main.py"
    main.write_text(main.read_text().replace("from the registry", "from the folder"))
    passed = test(str(words))
    assert "example counts and sends" in passed
    assert "test_it_sends" in passed
    assert "failed" not in passed
    assert "which this check does not have" not in passed
    (words / "skill.toml").write_text((words / "skill.toml").read_text().replace('"0.1.0"', '"0.2.0"'))
    assert "requires 'team.words' ^0.1, and the folder has the version 0.2.0" in test(str(words))

    ran = skillery("run", str(report), SKILLERY_HOME=home)
    assert "from the registry" in ran.out, ran.err
