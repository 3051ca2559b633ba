"""`skillery publish --bump`, and the line numbers of a manifest's problems in the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillery.cli.publish_options import next_version
from skillery.formats.semver import Version
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server

TOML = """\
# the version comes last
name="{name}"   # kept
description = '''What
it does.'''
"version"\t=  '1.2.3'  # bump me
[runtime]
version = "9.9.9"
entrypoint = "main.py"
"""


@pytest.fixture
def folder(tmp_path: Path, new_name: str) -> Path:
    made = tmp_path / "skill"
    made.mkdir()
    (made / "skill.toml").write_text(TOML.format(name=f"{new_name}.a"))
    (made / "SKILL.md").write_text("# A\n")
    (made / "main.py").write_text("def main(args): return 1\n")
    return made


def test_bump_publishes_the_next_version_and_keeps_the_format_of_the_file(
    sqlite_server: Server, sqlite_rpc: Rpc, folder: Path, new_name: str
) -> None:
    before = (folder / "skill.toml").read_text()
    dry = skillery("publish", str(folder), "--bump", "minor", "--dry-run", "--url", sqlite_server.url)
    assert "1.3.0" in dry.out
    assert (folder / "skill.toml").read_text() == before

    assert skillery("publish", str(folder), "--bump", "minor", "--url", sqlite_server.url).code == 0
    assert (folder / "skill.toml").read_text() == before.replace("1.2.3", "1.3.0")
    stored = sqlite_rpc("read_skill_file", name=f"{new_name}.a", path="skill.toml", version="1.3.0")
    assert stored["content"] == before.replace("1.2.3", "1.3.0")


def test_bump_keeps_a_byte_order_mark_before_the_version(sqlite_server: Server, folder: Path, new_name: str) -> None:
    rest = f'name = "{new_name}.a"\ndescription = "What it does."\n[runtime]\nentrypoint = "main.py"\n'
    (folder / "skill.toml").write_text(f'\ufeffversion = "1.2.3"\n{rest}', encoding="utf-8")

    done = skillery("publish", str(folder), "--bump", "patch", "--url", sqlite_server.url)

    assert done.code == 0, done.err
    assert (folder / "skill.toml").read_text(encoding="utf-8") == f'\ufeffversion = "1.2.4"\n{rest}'


def test_a_refused_version_is_not_written_to_the_file(sqlite_server: Server, folder: Path) -> None:
    (folder / "main.py").write_text("1 / 0\ndef main(args): return 1\n")
    before = (folder / "skill.toml").read_bytes()
    ended = skillery("publish", str(folder), "--bump", "patch", "--url", sqlite_server.url)
    assert ended.code == 3
    assert "main.py:1: cannot be imported: ZeroDivisionError" in ended.err
    assert (folder / "skill.toml").read_bytes() == before


def test_publish_prints_each_manifest_problem_with_its_line(sqlite_server: Server, folder: Path) -> None:
    text = (folder / "skill.toml").read_text().replace('"main.py"', '"main.js"')
    (folder / "skill.toml").write_text(text + '[inputs]\nsheet = { type = "string", required = 1 }\n')
    ended = skillery("publish", str(folder), "--url", sqlite_server.url)
    assert "\n  runtime.entrypoint is 'main.js'" in ended.err
    assert "(skill.toml:8)\n" in ended.err
    assert "\n  inputs.sheet.required is 1" in ended.err
    assert "(skill.toml:10)\n" in ended.err


@pytest.mark.parametrize(
    ("version", "patch", "minor", "major"),
    [
        ("1.2.3", "1.2.4", "1.3.0", "2.0.0"),
        ("1.2.3-dev.1+x", "1.2.3", "1.3.0", "2.0.0"),
        ("1.2.0-rc.1", "1.2.0", "1.2.0", "2.0.0"),
        ("2.0.0-rc.1", "2.0.0", "2.0.0", "2.0.0"),
    ],
)
def test_the_next_version_is_that_of_npm(version: str, patch: str, minor: str, major: str) -> None:
    parsed = Version.parse(version)
    assert [str(next_version(parsed, part)) for part in ("patch", "minor", "major")] == [patch, minor, major]


def test_bump_auto_takes_the_step_of_the_changes_and_says_why(
    sqlite_server: Server, folder: Path, new_name: str
) -> None:
    def publish(*options: str) -> str:
        ended = skillery("publish", str(folder), *options, "--url", sqlite_server.url)
        assert ended.code == 0, ended.err
        return f"{ended.out}{ended.err}"

    toml = folder / "skill.toml"
    toml.write_text(
        f'name = "{new_name}.a"\nversion = "1.0.0"\ndescription = "It."\n[runtime]\nentrypoint = "main.py"\n'
    )
    assert f"{new_name}.a 1.0.0 " in publish("--bump", "auto")
    toml.write_text(f'{toml.read_text()}[inputs]\ntext = {{ type = "string" }}\n')
    assert "step: minor, because the input 'text' is new" in publish("--bump", "auto")
    assert 'version = "1.1.0"' in toml.read_text()
    toml.write_text(f'{toml.read_text()}[permissions]\nsecrets = ["KEY"]\n')
    said = publish("--bump", "minor", "--dry-run")
    assert "1.2.0 is a minor step after 1.1.0, but the changes need major: the permission 'KEY' is new" in said
    assert "step: major, because the permission 'KEY' is new" in publish("--bump", "auto")
    assert 'version = "2.0.0"' in toml.read_text()
