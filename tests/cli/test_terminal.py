"""Commands on a terminal: ids without line breaks, empty lists, and blobs that are not printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from skillery.cli.output import as_json, clean
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
@pytest.mark.full(after=2)
def test_an_empty_list_says_that_it_is_empty(sqlite_server: Server, command: tuple[str, ...], said: str) -> None:
    exit_code, seen = on_terminal(*command, "--url", sqlite_server.url)

    assert (exit_code, seen.strip()) == (0, said)


TRICKY = "\x1b]0;title\x07 a\u202egpj.exe \u2066b\u200d"
"""A title for the terminal, a file name that is shown backwards, and a joiner that emoji need."""


def test_hidden_characters_are_codes_unless_an_emoji_needs_them() -> None:
    for text in ("⚠\ufe0f Warning", "1\ufe0f\u20e3", "❤\ufe0f\u200d🔥", "☎\ufe0e", "می\u200cخواهم", "⠿⠀"):
        assert clean(text) == text
        assert json.loads(as_json(text)) == text
        assert as_json(text) == f'"{text}"'
    for hidden in ("\ufe00", "\ufe0f", "\U000e0121", "\U000e01ef", "\u034f", "\u115f", "\u3164", "\uffa0", "\u202e"):
        for before in ("", "a", "1", "😀\ufe0f"):
            assert hidden not in clean(before + hidden).removeprefix(before), ascii(before + hidden)
            assert hidden not in as_json(before + hidden).removeprefix(f'"{before}')
            assert json.loads(as_json(before + hidden)) == before + hidden
    assert clean("😀\U000e0121") == "😀\\U000e0121"


def test_read_to_a_terminal_shows_control_and_format_characters_as_codes(
    sqlite_server: Server, sqlite_rpc: Rpc, new_name: str
) -> None:
    files = [{"path": "notes.md", "content": TRICKY}]
    sqlite_rpc("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md="# B", files=files)
    command = ("read", new_name, "notes.md", "--url", sqlite_server.url)

    assert on_terminal(*command) == (0, "\\x1b]0;title\\x07 a\\u202egpj.exe \\u2066b\u200d")
    assert skillery(*command).out == TRICKY


def test_commands_show_format_characters_as_codes(
    sqlite_server: Server, sqlite_publish: Callable[..., Any], new_name: str
) -> None:
    sqlite_publish(new_name, kind="instruction", description=TRICKY[-13:])
    plain = skillery("describe", new_name, "--url", sqlite_server.url)
    as_json = skillery("describe", new_name, "--json", "--url", sqlite_server.url)

    assert "\\u2066b" in plain.out
    assert "\u2066" not in plain.out + plain.err + as_json.out
    assert as_json.json["skill"]["manifest"]["description"] == TRICKY[-13:]


def test_a_blob_is_not_printed_to_a_terminal(sqlite_server: Server, sqlite_rpc: Rpc) -> None:
    blob_id = sqlite_rpc("create_blob", content="plain text", kind="text/plain")["blob_id"]

    refused = on_terminal("blob", "get", blob_id, "--url", sqlite_server.url, columns=200)
    asked = on_terminal("blob", "get", blob_id, "-o", "-", "--url", sqlite_server.url)

    assert refused[0] == 2
    assert "-o FILE" in refused[1]
    assert asked == (0, "plain text")
