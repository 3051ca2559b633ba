"""The server does not trust the outcome that a sandbox reports: texts of a forged outcome."""

from __future__ import annotations

import re

import msgspec
import pytest

from skillery.backends import Failure, Log, Outcome
from skillery.runs.declarations import checked
from skillery.runs.live_output import logs_preview
from skillery.runs.rendering import error_of, summary_of


@pytest.mark.parametrize(
    "result", [b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b"[1", b"", b"NaN", b"[" * 100_000, b"[" * 300_000]
)
async def test_a_result_that_is_no_json_in_utf_8_is_a_failure(result: bytes) -> None:
    failure = (await checked(Outcome(result=result))).failure

    assert failure is not None
    assert failure.type == "InvalidOutput"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (b'{"a":1,"b":2}', "an object with 2 keys"),
        (b"[1]", "a list of 1 item"),
        (b"[" + b"0," * 150_000 + b"0]", "a list of 300003 bytes"),
        (b'{"summary":"mine","a":"' + b"x" * 300_000 + b'"}', "an object of 300025 bytes"),
    ],
)
def test_a_large_result_is_measured_not_looked_into(result: bytes, said: str) -> None:
    assert f"returned {said}." in summary_of(Outcome(result=result))


@pytest.mark.parametrize("unit", [b"x", b"\0", b"\xff", "é".encode(), "😀".encode(), "\x85".encode()])
@pytest.mark.parametrize("dropped", [0, 7_000_000])
@pytest.mark.parametrize("tail", [0, 100, 300_000])
def test_a_log_preview_is_cut_and_counts_the_omitted_bytes(unit: bytes, dropped: int, tail: int) -> None:
    log = Log(b"first" + unit * 300_000, unit * tail + b"last" if tail else b"", dropped)

    preview = logs_preview(log)

    assert len(preview.encode()) <= 2048
    assert preview.startswith("first")
    assert preview.endswith("last") == bool(tail)
    line = re.search(r"\n… (\d+) bytes left out …\n", preview)
    assert line
    begins, ends = preview[: line.start()], preview[line.end() :]
    shown = unit.decode("utf-8", "replace")
    shown = {"\0": "\\x00", "\x85": "\\x85"}.get(shown, shown)
    there = sum((piece.count(shown)) * len(unit) + len(piece.replace(shown, "")) for piece in (begins, ends))
    assert int(line[1]) == len(log.head) + len(log.tail) + dropped - there


def test_a_short_log_is_shown_whole_unless_showing_makes_it_long() -> None:
    assert logs_preview(Log("aé\0".encode() * 10)) == "aé\\x00" * 10
    assert "… 1004 bytes left out …" in logs_preview(Log(b"\0" * 1500))


def test_of_an_error_beyond_all_bounds_a_piece_is_shown() -> None:
    error = error_of(Failure("E" * 10_000_000, "\0" * 10_000_000, "\0" * 10_000_000))

    lengths = {key: len(value) for key, value in msgspec.structs.asdict(error).items()}
    assert lengths == {"type": 100, "message": 1000, "traceback": 4000}
