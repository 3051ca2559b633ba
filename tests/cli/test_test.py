"""`skillery test`: a folder's examples and tests run in the sandbox, without a registry."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillery.app.bundled import bundled_folders
from tests.cli.test_cli import Ended, skillery
from tests.conftest import clean_environment
from tests.support.prefork import FORKED
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

PROFILE = next(folder for folder in bundled_folders() if folder.name == "text.csv.profile")
HANGS = """
import time
import unittest

from skills.greet import count

class Hanging(unittest.TestCase):
    def test_a_passes(self):
        self.assertEqual(count("a", 0)["words"], 1)

    def test_b_hangs(self):
        try:
            time.sleep(60)
        except Exception:
            pass

    def test_c_ends_the_process(self):
        import os
        os._exit(3)

    def test_d_fails(self):
        self.assertEqual(count("a", 0)["words"], 2)

    def test_e_is_skipped(self):
        self.skipTest("not now")
"""
HANGS_FOR_GOOD = """
import signal, time, unittest

class Hanging(unittest.TestCase):
    def test_a(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        time.sleep(60)

    def test_b(self):
        pass
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("test") / "home")


@pytest.fixture
def greet(tmp_path: Path) -> Path:
    folder = tmp_path / "greet"
    assert skillery("new", str(folder)).code == 0
    return folder


@pytest.fixture
def test(home: str) -> Callable[..., Ended]:
    return lambda *arguments: skillery("test", *map(str, arguments), SKILLERY_HOME=home)


def results(ended: Ended) -> dict[str, Any]:
    """Status by name, of one folder."""
    return {one["name"]: one["status"] for one in ended.json[0]["results"]}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("kind", ["action", "instruction", "tools"])
@pytest.mark.full(after=2)
def test_a_new_skill_passes_its_tests_and_leaves_no_home(tmp_path: Path, kind: str) -> None:
    skillery("new", str(tmp_path / "made"), "--kind", kind)
    ended = skillery("test", str(tmp_path / "made"), SKILLERY_HOME=str(tmp_path / "home"))

    assert ended.code == 0, ended.out + ended.err
    assert "passed" in ended.out
    assert not (tmp_path / "home" / "skillery.db").exists()


def test_a_bundled_skill_passes_its_examples_and_tests(test: Callable[..., Ended]) -> None:
    ended = test(PROFILE, "--json")

    assert ended.code == 0, ended.out
    (report,) = ended.json
    assert (report["ok"], report["name"], report["warnings"]) == (True, "text.csv.profile", [])
    subjects = [one["subject"] for one in report["results"]]
    assert (subjects.count("example"), subjects.count("test") > 5) == (3, True)


def test_a_difference_is_shown_as_a_diff_with_its_line(test: Callable[..., Ended], greet: Path) -> None:
    edit(greet / "skill.toml", "words = 6", "words = 7")
    edit(greet / "skill.toml", '"ValueError"', '"TypeError"')
    ended = test(greet)

    assert ended.code == 1
    lines = [line.strip() for line in ended.out.splitlines()]
    assert '-  "words": 7' in lines
    assert '+  "words": 6' in lines
    assert "failed   skill.toml:25: example two words" in ended.out
    assert "expected a failure of type TypeError, got ValueError: top is -1: give 0 or more" in ended.out
    assert "3 passed, 2 failed" in lines[-1]


@pytest.mark.full
def test_tests_that_fail_hang_or_end_the_process_have_their_own_lines(test: Callable[..., Ended], greet: Path) -> None:
    (greet / "tests/test_hangs.py").write_text(HANGS)
    (greet / "tests/test_import.py").write_text("import not_there\n")
    ended = test(greet, "--timeout-ms", "1000", "--json")

    assert ended.code == 1
    found = results(ended)
    assert {name.rpartition(".")[2]: status for name, status in found.items() if "Hanging" in name} == {
        "test_a_passes": "passed",
        "test_b_hangs": "failed",
        "test_c_ends_the_process": "failed",
        "test_d_fails": "failed",
        "test_e_is_skipped": "skipped",
    }
    assert found["tests/test_import.py"] == "failed"
    assert found["two words"] == "passed"
    messages = {one["name"].rpartition(".")[2]: one.get("message", "") for one in ended.json[0]["results"]}
    # The test's own timer, or the end of the run if that timer is late.
    assert re.search(r"did not end within (1 s|1000 ms)", messages["test_b_hangs"])
    assert "ProcessExited" in messages["test_c_ends_the_process"]
    assert "AssertionError: 1 != 2" in messages["test_d_fails"]
    assert "No module named 'not_there'" in messages["py"]


@pytest.mark.full
def test_a_test_that_no_signal_stops_is_stopped_from_outside(test: Callable[..., Ended], greet: Path) -> None:
    (greet / "tests/test_main.py").write_text(HANGS_FOR_GOOD)
    ended = test(greet, "--timeout-ms", "1500", "--json")

    assert results(ended)["test_main.Hanging.test_a"] == "failed"
    assert results(ended)["test_main.Hanging.test_b"] == "passed"


def test_an_example_without_its_file_is_a_failed_check(test: Callable[..., Ended], tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    shutil.copytree(PROFILE, folder)
    edit(folder / "skill.toml", '"resources/orders.csv" }', '"resources/no.csv" }')
    ended = test(folder, "--json")

    failed = [one for one in ended.json[0]["results"] if one["status"] == "failed"]
    assert [(one["name"], one["line"]) for one in failed] == [("examples[0].blobs.csv_blob", 23)]
    assert "resources/no.csv" in failed[0]["message"]


def test_every_problem_of_a_bundle_is_a_result(test: Callable[..., Ended], greet: Path, tmp_path: Path) -> None:
    edit(greet / "skill.toml", 'version     = "0.1.0"', 'version     = "one"')
    edit(greet / "code/main.py", "def count", "def (count")
    ended = test(greet, tmp_path / "absent")

    assert ended.code == 1
    assert "failed   skill.toml:3: check skill.toml: version: 'one' is not a version" in ended.out
    assert "failed   code/main.py:14: check code/main.py" in ended.out
    assert "is not a folder" in ended.out


def test_update_writes_actual_values_and_keeps_comments(test: Callable[..., Ended], greet: Path) -> None:
    toml = greet / "skill.toml"
    before = toml.read_text()
    edit(toml, "words = 6", "words = 7  ")
    edit(toml, '"ValueError"', '"TypeError"  # why')
    updated = test(greet, "--update")

    assert updated.code == 0, updated.out
    assert "3 passed, 2 updated" in updated.out
    after = toml.read_text()
    assert tomllib.loads(after) == tomllib.loads(before)
    assert '"ValueError"  # why' in after
    assert after.splitlines()[:20] == before.splitlines()[:20]
    assert test(greet).code == 0


def test_update_omits_null_values_and_blob_ids_from_expectations(test: Callable[..., Ended], greet: Path) -> None:
    edit(greet / "code/main.py", '"words": words.total()', '"id": blobs.write_text("x"), "no": None, "words": 1')
    edit(greet / "code/main.py", "import log", "import blobs, log")
    ended = test(greet, "--update")

    example = tomllib.loads((greet / "skill.toml").read_text())["examples"][0]
    assert "expect" not in example
    assert example["expect_subset"] == {"summary": "6 words, 4 different.", "words": 1, "different": 4} | {
        "top": {"be": 2, "to": 2}
    }
    assert "updated" in ended.out


def test_watch_tests_again_after_each_change(greet: Path, home: str, tmp_path: Path) -> None:
    environment = clean_environment({"NO_COLOR": "1", "SKILLERY_HOME": home})
    out = tmp_path / "out.txt"
    with out.open("wb") as file:
        command = [FORKED, "test", str(greet), "--watch"]
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    try:
        wait_for(process, out, "5 passed")
        edit(greet / "skill.toml", "[[examples]]", "[examples")
        wait_for(process, out, "is not TOML")
        edit(greet / "skill.toml", "[examples", "[[examples]]")
        wait_for(process, out, "5 passed", times=2)
    finally:
        process.terminate()
        process.wait(300)


def wait_for(process: subprocess.Popen[bytes], path: Path, text: str, times: int = 1) -> None:
    eventually(lambda: path.read_text().count(text) >= times, of=process, problem=path.read_text)


# -- packages ----------------------------------------------------------------------------------------------------------

PYTEST_TESTS = """
import pytest
from frames import VERSION
from skills.greet import count

@pytest.mark.parametrize("text", ["a", "a b"])
def test_words(text):
    assert count(text, 0)["words"] == 1

def test_the_locked_version():
    assert VERSION == "1.5"

async def test_coroutines_need_a_plugin():
    pass

def test_that_hangs():
    while True:
        try:
            pass
        except Exception:
            pass
"""


@pytest.fixture(scope="module")
def house(wheelhouse: Path) -> Path:
    """The wheelhouse with the pytest that runs this test."""
    needed = ("pluggy", "iniconfig", "packaging", "pygments")
    for package in ("pytest", *needed):
        found = importlib.metadata.distribution(package)
        files = {str(path): path.read_text() for path in found.files or () if path.suffix == ".py"}
        make_wheel(wheelhouse, package, found.version, files, requires=needed if package == "pytest" else ())
    return wheelhouse


@pytest.mark.full
def test_pytest_runs_with_the_locked_packages(home: str, greet: Path, house: Path) -> None:
    edit(greet / "skill.toml", "# dependencies = [", 'dependencies = ["frames<2"]\n# [')
    (greet / "tests/test_words.py").write_text(PYTEST_TESTS)
    asked = ("test", str(greet), "--json", "--timeout-ms", "2000")
    ended = skillery(*asked, SKILLERY_HOME=home, SKILLERY_PACKAGES_WHEELHOUSE=str(house))

    found = results(ended)
    assert found["two words"] == "passed", ended.out
    assert found["tests/test_main.py::Counting::test_a_text_without_words_has_none"] == "passed"
    assert found["tests/test_words.py::test_the_locked_version"] == "passed"
    assert found["tests/test_words.py::test_words[a]"] == "passed"
    assert found["tests/test_words.py::test_words[a b]"] == "failed"
    assert found["tests/test_words.py::test_that_hangs"] == "failed"
    assert not (greet / "requirements.lock").exists()


def test_without_packages_the_tests_that_need_pytest_fail_alone(home: str, greet: Path) -> None:
    (greet / "tests/test_words.py").write_text("def test_words():\n    assert True\n")
    ended = skillery("test", str(greet), SKILLERY_HOME=home)

    assert ended.code == 1
    assert "passed   skill.toml:25: example two words" in ended.out
    assert "the tests need pytest, but no packages are available" in ended.out
    assert "write the tests with unittest" in ended.out


def test_permissions_are_granted_on_request_and_secrets_are_redacted(
    test: Callable[..., Ended], greet: Path, tmp_path: Path
) -> None:
    shutil.rmtree(greet / "tests")
    (greet / "code/main.py").write_text(
        "import os\n\ndef main(args):\n    return {'key': os.environ['API_KEY'] + '!'}\n"
    )
    toml = (greet / "skill.toml").read_text().partition("[[examples]]")[0]
    example = "[[examples]]\nname = 'a key'\nargs = { text = 'a' }\nneeds_permissions = true\nexpect = { key = 'no' }\n"
    (greet / "skill.toml").write_text(f"{toml}\n[permissions]\nsecrets = ['API_KEY']\n\n{example}")
    (tmp_path / ".env").write_text("# keys\nexport API_KEY='a-secret-value'\n")

    assert results(test(greet, "--json")) == {"a key": "skipped"}
    ended = test(greet, "--with-secrets-from", tmp_path / ".env")
    assert ended.code == 1
    assert '+  "key": "[API_KEY]!"' in ended.out
    assert "a-secret-value" not in ended.out
    (tmp_path / ".env").write_text("OTHER=1\n")
    assert "the file of --with-secrets-from has no API_KEY" in test(greet, "--with-secrets-from", tmp_path / ".env").out
    for content, said in (("A=1\nAPI_KEY='a-secret-value\n", ":2: the quote has no end"), ("A=\xff", "is not UTF-8")):
        (tmp_path / ".env").write_text(content, "latin-1")
        ended = test(greet, "--with-secrets-from", tmp_path / ".env")
        assert (ended.code, said in ended.err, "a-secret-value" in ended.err) == (2, True, False), ended.err
