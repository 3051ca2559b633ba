"""The result of a run, checked: the code in a sandbox may send anything."""

from __future__ import annotations

import msgspec

from skillery.backends import Failure, FailureType, Outcome
from skillery.context.threads import BIG_TEXT, JSON


async def checked(outcome: Outcome) -> Outcome:
    """Return the outcome. If its result is not JSON, return an outcome with a failure instead."""
    if outcome.failure is not None:
        return outcome
    if len(outcome.result or b"") > BIG_TEXT:
        return await JSON.run(_checked, outcome)
    return _checked(outcome)


def _checked(outcome: Outcome) -> Outcome:
    try:
        # Decoded first: msgspec skips the bytes of a string without a check that they are UTF-8.
        msgspec.json.decode((outcome.result or b"").decode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = Failure(FailureType.INVALID_OUTPUT, "the returned value is not JSON")
        return msgspec.structs.replace(outcome, result=None, failure=failure)
    return outcome
