"""`skillery plugin new`: each kind is a package that passes its own tests, is installed, and serves."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from skillery.authoring.scaffold import PLUGIN_DESCRIPTIONS
from tests.cli.test_cli import skillery
from tests.conftest import Server, clean_environment

ROOT = Path(__file__).parents[2]
FILES = {
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    ".gitignore",
    ".github/workflows/ci.yml",
    "src/skillery_my_notes/__init__.py",
    "src/skillery_my_notes/py.typed",
    "tests/test_skillery_my_notes.py",
}
KEY = "a long random key"
SET = ("secret", "set", "API_KEY", "--value-from-stdin")


def made(tmp_path: Path, kind: str, name: str = "my-notes") -> Path:
    folder = tmp_path / "package"
    ended = skillery("plugin", "new", f"skillery-{name}", "--kind", kind, "--folder", str(folder))
    assert ended.code == 0, ended.err
    return folder


def run(*command: str, folder: Path, **more: str) -> str:
    """Run a Python module in a folder and return its output."""
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=clean_environment(more),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return ended.stdout


def installed(folder: Path) -> str:
    """Build the wheel of the package without a network, and return the folder that it is unpacked to."""
    run("hatchling", "build", "-t", "wheel", "-d", "dist", folder=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return str(folder / "site")


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("kind", PLUGIN_DESCRIPTIONS)
def test_a_new_plugin_passes_its_own_tests_with_the_contract(tmp_path: Path, kind: str) -> None:
    folder = made(tmp_path, kind)
    # The run of the sandbox is the source of unsafe-subprocess, which passes the other cases in tests/sandbox.
    cases = ("-k", "offer or blob") if kind == "sandbox" else ()
    printed = run("pytest", "-q", "-p", "no:cacheprovider", *cases, folder=folder)

    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} >= FILES
    assert "passed" in printed
    assert not [
        path for path in folder.rglob("*.*") if path.suffix in {".py", ".md", ".toml"} and "__OFFER" in path.read_text()
    ]


@pytest.mark.full
def test_new_plugins_are_written_in_a_clean_style(tmp_path: Path) -> None:
    # One run of mypy needs packages with different names. They are as long as the others, so that no line is too long.
    folders = [made(tmp_path / kind, kind, f"my-note{number}") for number, kind in enumerate(PLUGIN_DESCRIPTIONS)]

    checks = ("check", "--isolated", "--line-length", "120", "--select", "E,F,W,I,UP,B,RUF100", ".")
    for folder in folders:
        run("ruff", *checks, folder=folder)
        run("ruff", "format", "--isolated", "--line-length", "120", "--check", ".", folder=folder)
    run("mypy", "--strict", "--ignore-missing-imports", *(f"{folder}/src" for folder in folders), folder=tmp_path)


SETTINGS = {
    "storage": {"SKILLERY_STORAGE": "notes"},
    "secrets": {"SKILLERY_SECRETS": "notes"},
    "authenticator": {"SKILLERY_AUTH": "notes"},
    "sandbox": {"SKILLERY_SANDBOX": "notes", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "true"},
    "events": {},
}


@pytest.mark.full
@pytest.mark.parametrize("kind", PLUGIN_DESCRIPTIONS)
def test_a_server_uses_the_installed_plugin(tmp_path: Path, kind: str, start_server: Callable[..., Server]) -> None:
    folder = tmp_path / "package"
    assert skillery("plugin", "new", "notes", "--kind", kind, "--folder", str(folder)).code == 0
    data = tmp_path / "data"
    variables = {
        "storage": {"SKILLERY_BACKENDS_STORAGE_NOTES_FOLDER": str(data)},
        "secrets": {"SKILLERY_BACKENDS_SECRETS_NOTES_FOLDER": str(data)},
        "events": {"SKILLERY_PLUGINS_NOTES_FILE": str(data)},
    }
    env = {"PYTHONPATH": installed(folder), **SETTINGS[kind], **variables.get(kind, {})}
    if kind == "authenticator":
        settings = tmp_path / "settings.toml"
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        settings.write_text(f'[backends.authenticator.notes]\nkeys = {{ "{digest}" = "ann" }}\n')
        env["SKILLERY_CONFIG"] = str(settings)
    server = start_server(env=env)
    rpc = server.rpc

    if kind == "authenticator":
        url = f"{server.url}/tools"
        assert httpx.get(url).status_code == 401
        assert httpx.get(url, headers={"x-notes-key": KEY}).status_code == 200
    elif kind == "storage":
        rpc.http.post("/blobs", content=os.urandom(100_000))
        assert [path for path in data.iterdir() if len(path.name) == 64]
    elif kind == "secrets":
        assert skillery(*SET, "--home", str(server.home), stdin=b"hunter2", **env).code == 0
        assert (data / "API_KEY").read_text() == "hunter2"
    elif kind == "sandbox":
        ran = rpc("run_code", language="python", code="def main(args): return 6 * 7")
        assert (ran["output"], "isolation" in ran["degraded"]) == (42, True)
    else:
        assert rpc.send("create_skill", SKILL)["result"]["status"] == "published"
        server.stop()  # the events of a server are sent before its end, or by the next one
        start_server(env=env)
    (row,) = (one for one in skillery("plugins", "--json", stdin=b"", **env).json["plugins"] if one["name"] == "notes")
    assert (row["version"], row["active"], row["kinds"]) == ("0.1.0", True, [kind])


SKILL = {
    "manifest": {"name": "team.greet", "version": "1.0.0", "description": "Greets.", "kind": "instruction"},
    "skill_md": "# Greet\n",
}


def test_package_states_its_entry_point_dependency_and_api_version(tmp_path: Path) -> None:
    folder = made(tmp_path, "storage")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["skillery"] == {"my-notes": "skillery_my_notes"}
    assert project["dependencies"][0].startswith("skillery>=0.")
    assert "api_version = 1\n" in (folder / "src/skillery_my_notes/__init__.py").read_text()
    assert "class MyNotesStorage:" in (folder / "src/skillery_my_notes/__init__.py").read_text()


@pytest.mark.parametrize("name", ["Skillery-Notes", "notes_x", "../notes", "skillery-", "1notes", "class", "a" * 80])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    refused = skillery("plugin", "new", name, "--kind", "storage", "--folder", str(tmp_path / "x"))

    assert refused.code == 2
    assert "Use lower-case letters" in refused.err
    assert not (tmp_path / "x").exists()


def test_no_file_of_an_author_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    refused = skillery("plugin", "new", "notes", "--kind", "storage", "--folder", str(tmp_path))

    assert (refused.code, (tmp_path / "README.md").read_text()) == (2, "mine")
    assert "already contains README.md" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
