"""`skillery dev`: the folder of a skill is served to its author alone, and updated after each change."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, clean_environment
from tests.support.prefork import FORKED
from tests.support.processes import eventually

TOML = """\
name = "{name}"
version = "0.1.0"
description = "Greets."
[runtime]
language = "python"
entrypoint = "main.py"
"""


class Dev:
    """A running `skillery dev --json`."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [FORKED, "dev", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(variables),
        )

    def line(self) -> dict[str, Any]:
        """Return the next line of the output."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, (self.process.communicate()[1] or b"").decode()
        found: dict[str, Any] = json.loads(text)
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=300)
        return self.process.returncode


@pytest.fixture
def dev() -> Iterator[Callable[..., Dev]]:
    running: list[Dev] = []

    def start(*arguments: str, **variables: str) -> Dev:
        running.append(Dev(*arguments, **variables))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


@pytest.fixture
def folder(tmp_path: Path, new_name: str) -> Path:
    made = tmp_path / "greet"
    made.mkdir()
    (made / "skill.toml").write_text(TOML.format(name=new_name))
    (made / "SKILL.md").write_text("# Greet\n")
    (made / "main.py").write_text("def main(args): return 'one'\n")
    return made


def save(path: Path, text: str) -> None:
    """Replace the file at once: the command must not see a half of it."""
    (path.parent / ".new").write_text(text)
    (path.parent / ".new").rename(path)


def test_each_change_is_served_at_once_and_nothing_stays(
    sqlite_server: Server, sqlite_rpc: Rpc, dev: Callable[..., Dev], folder: Path, new_name: str
) -> None:
    running = dev(str(folder), "--url", sqlite_server.url)
    assert running.line() == {"url": sqlite_server.url, "mcp": f"{sqlite_server.url}/mcp"}
    first = running.line()
    assert (first["name"], first["version"], first["findings"]) == (new_name, "0.1.0-dev.1", [])
    assert skillery("describe", new_name, "--url", sqlite_server.url).code == 0
    assert sqlite_rpc("execute_skill", name=new_name)["output"] == "one"

    save(folder / "main.py", "def main(args): return 'two'\n")
    assert running.line()["version"] == "0.1.0-dev.2"
    assert sqlite_rpc("execute_skill", name=new_name)["output"] == "two"

    save(folder / "main.py", "def main(args): return (\n")
    broken = running.line()
    assert (broken["folder"], broken["error"]["data"]["problems"][0]["line"]) == (str(folder), 1)
    assert sqlite_rpc("execute_skill", name=new_name)["output"] == "two"

    assert running.stop() == 0
    assert sqlite_rpc.error("describe_skill", name=new_name)["data"]["type"] == "skill_not_found"


@pytest.mark.smoke
def test_dev_starts_a_server_if_none_runs_and_prints_its_token(
    dev: Callable[..., Dev], folder: Path, tmp_path: Path, new_name: str
) -> None:
    running = dev(str(folder), "--home", str(tmp_path / "home"), "--port", "0", **ASKS_FOR_TOKENS)
    started = running.line()
    assert running.line()["version"] == "0.1.0-dev.1"
    author = Rpc(started["url"], started["bootstrap_token"])
    other = skillery(
        "token",
        "create",
        "--name",
        "b",
        "--scope",
        "admin",
        "--url",
        started["url"],
        "--token",
        started["bootstrap_token"],
    ).out.strip()

    assert author("execute_skill", name=new_name)["output"] == "one"
    assert Rpc(started["url"], other).error("describe_skill", name=new_name)["data"]["type"] == "skill_not_found"
    assert running.stop() == 0


@pytest.mark.full
def test_a_version_that_the_server_has_forgotten_is_sent_again(
    start_server: Callable[..., Server], dev: Callable[..., Dev], folder: Path, new_name: str
) -> None:
    server = start_server()
    running = dev(str(folder), "--url", server.url)
    assert [running.line().get("version") for _ in range(2)] == [None, "0.1.0-dev.1"]
    server.rpc("end_development", names=[new_name])  # as a server that has forgotten the version
    eventually(lambda: "result" in server.rpc.send("describe_skill", {"name": new_name}))
    assert running.line()["version"] == "0.1.0-dev.2"


def test_a_second_folder_with_the_same_skill_name_is_refused(
    sqlite_server: Server, dev: Callable[..., Dev], folder: Path, new_name: str
) -> None:
    copy = folder.parent / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    running = dev(str(folder), str(copy), "--url", sqlite_server.url)
    running.line()
    assert running.line()["version"] == "0.1.0-dev.1"
    refused = running.line()
    assert refused["folder"] == str(copy)
    assert new_name in refused["error"]["message"]
