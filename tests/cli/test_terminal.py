"""Commands on a terminal: ids without line breaks, empty lists, and blobs that are not printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest
from tests.support.terminal import on_terminal


def test_the_id_of_a_run_does_not_wrap(sqlite_server: Server, sqlite_rpc: Rpc) -> None:
    code = "def main(args):\n    return 'a long text ' * 20\n"
    run_id = sqlite_rpc("run_code", language="python", code=code)["run_id"]

    exit_code, said = on_terminal("runs", "list", "--limit", "3", "--url", sqlite_server.url, columns=50)

    assert exit_code == 0
    assert run_id in said


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("runs", "list", "--skill", "no.such.skill"), "No runs."),
        (("list", "--namespace", "no.such.space"), "No skills."),
        (("search", "qqxxyyzz"), "No skill found."),
    ],
)
def test_an_empty_list_says_that_it_is_empty(sqlite_server: Server, command: tuple[str, ...], said: str) -> None:
    exit_code, seen = on_terminal(*command, "--url", sqlite_server.url)

    assert (exit_code, seen.strip()) == (0, said)


def test_read_to_a_terminal_shows_control_and_format_characters_as_codes(
    sqlite_server: Server, sqlite_publish: Callable[..., Any], new_name: str
) -> None:
    text = "\x1b]0;title\x07 a\u202egpj.exe \u2066b\u200d"
    sqlite_publish(f"{new_name}.a", code=f"def main(args):\n    return {text!a}", description=text[-12:])
    rpc, path = sqlite_server.rpc, "notes.md"
    made = manifest(f"{new_name}.b", kind="instruction")
    rpc("create_skill", manifest=made, skill_md="# B", files=[{"path": path, "content": text}])

    shown = on_terminal("read", f"{new_name}.b", path, "--url", sqlite_server.url)
    piped = skillery("read", f"{new_name}.b", path, "--url", sqlite_server.url)
    described = skillery("describe", f"{new_name}.a", "--url", sqlite_server.url)

    assert shown == (0, "\\x1b]0;title\\x07 a\\u202egpj.exe \\u2066b\u200d")
    assert piped.out == text
    assert "\u202e" not in described.out + described.err
    assert "\\u2066b" in described.out


def test_a_blob_is_not_printed_to_a_terminal(sqlite_server: Server, sqlite_rpc: Rpc) -> None:
    blob_id = sqlite_rpc("create_blob", content="plain text", kind="text/plain")["blob_id"]

    refused = on_terminal("blob", "get", blob_id, "--url", sqlite_server.url, columns=200)
    asked = on_terminal("blob", "get", blob_id, "-o", "-", "--url", sqlite_server.url)

    assert refused[0] == 2
    assert "-o FILE" in refused[1]
    assert asked == (0, "plain text")
