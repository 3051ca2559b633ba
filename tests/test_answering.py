"""What a sandbox says is not trusted: the words of a forged outcome."""

from __future__ import annotations

import pytest

from skillery.backends import Outcome
from skillery.runs.answering import checked


@pytest.mark.parametrize("result", [b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b"[1", b"", b"NaN", b"[" * 100_000])
def test_a_result_that_is_no_json_in_utf_8_is_a_failure(result: bytes) -> None:
    failure = checked(Outcome(result=result)).failure

    assert failure is not None
    assert failure.type == "InvalidOutput"
