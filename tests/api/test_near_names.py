"""Suggestions for misspelt names: useful suggestions, at a bounded cost for any chosen name."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from skillery.formats.wording import MOST_COMPARED, did_you_mean, near_words, nearest, one_line
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.processes import own_seconds

ASKED = 4
WORSE = "abb" * 65
"""Comparing this word with repetitions of "ab" costs difflib cubic time."""
HARMLESS = "".join(chr(ord("a") + i * 7 % 26) for i in range(len(WORSE)))


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("tiemout", ["limits", "timeout", "tools"], "timeout"),
        ("xain.py", ["README.md", "main.py", "lib/util.py"], "main.py"),
        ("main.py", ["README.md", "scripts/main.py"], "scripts/main.py"),
        ("scripts/mian.py", ["scripts/main.py", "scripts/lib.py"], "scripts/main.py"),
        ("colour", ["files", "input"], None),
        ("", ["a"], None),
    ],
)
def test_a_typo_finds_its_word(word: str, known: list[str], meant: str | None) -> None:
    assert nearest(word, known) == meant


def test_long_names_that_differ_only_at_the_end_are_distinguished() -> None:
    names = [f"{'company.reports-' * 7}{end}" for end in ("quarterly", "yearly", "monthly")]
    assert near_words(names[0].replace("quarterly", "quartely"), names)[0] == names[0]
    paths = [f"{'folder/' * 26}{end}.py" for end in ("main", "util", "data")]
    assert near_words(paths[1].replace("util", "utli"), paths)[0] == paths[1]


def test_a_typo_is_matched_among_more_candidates_than_are_compared() -> None:
    names = [f"report_{number * 7919 % 10007:05d}_of_sales" for number in range(20 * MOST_COMPARED)]
    wanted = [*names[:300], "convert_currency", *names[300:]]
    assert near_words("xonvert_curency", wanted) == ["convert_currency"]
    assert did_you_mean("convert_curency", wanted) == " (did you mean 'convert_currency'?)"


def test_the_best_match_comes_first_and_the_cutoff_leaves_the_rest_out() -> None:
    known = ["zzz", "list_tools", "list_skill", "list_skills"]
    assert near_words("list_skils", known, most=2) == ["list_skills", "list_skill"]
    assert "zzz" not in near_words("list_skils", known, most=9)
    assert near_words("q", ["zzz"], most=1, cutoff=0.0) == ["zzz"]


def _spent(server: Server, ask: Callable[[], object]) -> float:
    """Return the processor seconds that the server spends on ASKED requests."""
    before = own_seconds(server.process.pid)
    for _ in range(ASKED):
        ask()
    return own_seconds(server.process.pid) - before


def _compared(server: Server, ask: Callable[[str], object]) -> None:
    ask(HARMLESS)
    harmless = _spent(server, lambda: ask(HARMLESS))
    assert _spent(server, lambda: ask(WORSE)) <= 10 * max(harmless, 0.05)


def test_a_repetitive_path_costs_no_more_than_another(sqlite_server: Server, sqlite_rpc: Rpc, new_name: str) -> None:
    letters = random.Random(1)
    paths = [f"{'ab' * 90}{''.join(letters.choices('ab', k=12))}{number:02d}.py" for number in range(30)]
    files: list[dict[str, Any]] = [*skill_files(), *({"path": path, "content": "#\n"} for path in paths)]
    sqlite_rpc("create_skill", manifest=manifest(new_name), skill_md="# X\n", files=files)

    def run(path: str) -> object:
        return sqlite_rpc.error("execute_skill", name=new_name, version="1.0.0", script=path)

    def read(path: str) -> object:
        return sqlite_rpc.error("read_skill_file", name=new_name, path=path)

    _compared(sqlite_server, run)
    _compared(sqlite_server, read)
    shown = sqlite_rpc.error("read_skill_file", name=new_name, path=paths[7].replace(".py", "x.py"))
    assert paths[7] in shown["data"]["hint"]


def test_a_repetitive_tool_costs_no_more_than_another(sqlite_server: Server, sqlite_rpc: Rpc, new_name: str) -> None:
    for number in range(40):
        sqlite_rpc("define_tool", name=f"{'ab' * 60}{number:03d}", description="d", code="return 1")
    _compared(sqlite_server, lambda word: sqlite_rpc.error("call_tool", name=word[:126]))
    error = sqlite_rpc.error("call_tool", name=f"{'ab' * 60}x007")
    assert error["data"]["near"][0] == f"{'ab' * 60}007"


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("Finds words.", 12, "Finds words."),
        ("Finds the first words.", 16, "Finds the first…"),
        ("Finds the first words.", 15, "Finds the…"),
        ("Finds the, first words.", 14, "Finds the…"),
        ("A " + "b" * 20, 10, "A bbbbbbb…"),
    ],
)
def test_long_texts_are_cut_after_a_word(text: str, limit: int, shown: str) -> None:
    assert one_line(text, limit) == shown
