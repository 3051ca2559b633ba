"""`skillery new`: what it makes passes every check, and it neither asks in a script nor overwrites a file."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from skillery.authoring.scaffold import KINDS
from tests.cli.test_cli import skillery
from tests.conftest import clean_environment
from tests.support.prefork import FORKED


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("new") / "home")


@pytest.mark.smoke
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_skill_passes_every_check(home: str, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / f"my-{kind}"

    assert skillery("new", str(folder), "--kind", kind).code == 0
    checked = skillery("publish", str(folder), "--dry-run", "--json", SKILLERY_HOME=home)
    imported = skillery("import", str(folder), "--dry-run", "--json", SKILLERY_HOME=home)
    published = skillery("publish", str(folder), "--json", SKILLERY_HOME=home)

    (answer,) = checked.json
    own = [one for one in answer["warnings"] if "is still that of the template" not in one]
    assert (answer["ok"], answer["name"], answer["findings"], own) == (True, f"my-{kind}", [], [])
    assert imported.code == 0, imported.err
    assert [(one["outcome"], one.get("warnings", [])) for one in imported.json[0]["skills"]] == [("checked", [])]
    assert imported.json[0]["repaired"] == 0
    (made,) = published.json
    assert (made["status"], made.get("verified", False)) == ("published", kind != "instruction")


def test_a_name_with_dots_and_hyphens_is_imported_by_the_tests(tmp_path: Path) -> None:
    ended = skillery("new", str(tmp_path / "x"), "--name", "team.word-count", "--json")

    assert ended.json["name"] == "team.word-count"
    assert "from skills.team.word_count import" in (tmp_path / "x/tests/test_main.py").read_text()
    assert "# Word count\n" in (tmp_path / "x/SKILL.md").read_text()


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "skill.toml").write_text("mine")
    ended = skillery("new", str(tmp_path), "--name", "greet")

    assert (ended.code, (tmp_path / "skill.toml").read_text()) == (2, "mine")
    assert "already contains skill.toml" in ended.err
    assert "nothing was written" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["skill.toml"]


@pytest.mark.parametrize(
    ("name", "problem", "remedy"),
    [
        ("My Skill", "is not a skill name", "Perhaps 'my-skill'?"),
        ("team.class", "'class' is a Python keyword", "Perhaps 'team.skill-class'?"),
        ("3d.models", "'3d' starts with a digit", "Perhaps 'skill-3d.models'?"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_with_the_remedy(
    tmp_path: Path, name: str, problem: str, remedy: str
) -> None:
    ended = skillery("new", str(tmp_path / name))

    assert ended.code == 2
    assert problem in ended.err
    assert remedy in ended.err
    assert "--name" in ended.err
    assert not (tmp_path / name).exists()


def test_new_prompts_for_kind_and_name_on_a_terminal(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    command = [FORKED, "new", str(tmp_path / "greet")]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=clean_environment())
    os.write(master, b"instruction\nteam.greet\n")

    assert process.wait(300) == 0
    said = os.read(master, 10_000).decode()
    os.close(slave)
    os.close(master)
    assert "Kind of the skill" in said
    assert 'name        = "team.greet"' in (tmp_path / "greet/skill.toml").read_text()
    assert 'kind        = "instruction"' in (tmp_path / "greet/skill.toml").read_text()
