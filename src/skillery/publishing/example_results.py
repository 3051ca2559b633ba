"""The run of an example, compared with its expectation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from skillery.backends import Failure, Outcome
from skillery.context.threads import BIG_TEXT, JSON
from skillery.formats.examples import Example
from skillery.formats.expectations import differences
from skillery.formats.wording import printable

_MESSAGE_CHARACTERS = 400
NO_RETURN = "the function returned nothing: end it with return VALUE"


def blob_args(example: Example, ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the args that are blobs. `ids` are the ids of the blobs by their path in the bundle."""
    return {
        argument: ids[value] if isinstance(value, str) else [ids[path] for path in value]
        for argument, value in example.blobs.items()
    }


async def problem_of(example: Example, outcome: Outcome) -> str:
    """Return why the run does not meet its expectation, "" if it does."""
    if len(outcome.result or b"") > BIG_TEXT:
        return await JSON.run(_find_problem, example, outcome)
    return _find_problem(example, outcome)


def _find_problem(example: Example, outcome: Outcome) -> str:
    failure = outcome.failure
    if example.expectation == "expect_error":
        return _failure_problem(str(example.expected), failure)
    if failure is not None:
        return f"failed with {_shown(failure)}"
    if example.expectation is None:
        return ""
    try:
        output = msgspec.json.decode(outcome.result or b"null")
        found = differences(example.expected, output, subset=example.expectation == "expect_subset")
        return "; ".join([*found, *([NO_RETURN] if found and output is None else [])])
    except RecursionError:
        return "output: nested too deep to compare"


def _failure_problem(expected: str, failure: Failure | None) -> str:
    if failure is None:
        return f"expected a failure of type {expected}, but the run completed"
    return "" if failure.type == expected else f"expected a failure of type {expected}, got {_shown(failure)}"


def _shown(failure: Failure) -> str:
    return f"{failure.type}: {printable(failure.message.replace(chr(10), ' '), _MESSAGE_CHARACTERS)}"
