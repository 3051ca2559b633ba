"""The check of a run's arguments against the declared inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Failure, FailureType
from skillery.context.threads import JSON
from skillery.formats.inputs import Input, InputInvalid, apply_inputs, blob_args
from skillery.formats.json_values import is_larger

MOST_ON_THE_LOOP = 4 * 1024
"""The maximum number of keys, items and characters of arguments and enums that are checked on the event loop. More
go to a thread.
"""


class Arguments(NamedTuple):
    """The arguments of a run as JSON text, and the blob ids in them. If they do not fit the inputs, `failure` has
    the reason.
    """

    text: bytes
    blobs: list[str]
    failure: Failure | None = None


async def checked_arguments(inputs: Mapping[str, Input], args: Mapping[str, Any]) -> Arguments:
    """Check the arguments. If the arguments or the enums are large, do it in a worker thread."""
    enums = [each.enum for each in inputs.values() if each.enum is not None]
    if is_larger([args, enums, list(inputs)], MOST_ON_THE_LOOP):
        return await JSON.run(_checked, inputs, args)
    return _checked(inputs, args)


def _checked(inputs: Mapping[str, Input], args: Mapping[str, Any]) -> Arguments:
    try:
        applied = apply_inputs(inputs, args)
    except InputInvalid as error:
        return Arguments(msgspec.json.encode(args), [], Failure(FailureType.VALIDATION_ERROR, str(error)))
    return Arguments(msgspec.json.encode(applied), blob_args(inputs, applied))
