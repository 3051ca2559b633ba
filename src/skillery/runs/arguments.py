"""The check of a run's arguments against the declared inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Failure, FailureType
from skillery.context.threads import JSON
from skillery.formats.inputs import Input, InputInvalid, apply_inputs, blob_args, undeclared_args, with_usage
from skillery.formats.json_values import is_larger
from skillery.formats.manifest import Runtime

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
    warnings: tuple[str, ...] = ()
    """A warning for each undeclared argument."""


NO_ARGUMENTS = Arguments(b"{}", [])


async def checked_arguments(
    name: str, inputs: Mapping[str, Input], args: Mapping[str, Any], runtime: Runtime | None = None
) -> Arguments:
    """Return the arguments of a run of `name`, checked against `inputs` and with defaults for omitted ones.

    If the `runtime` has strict inputs, an undeclared argument is a failure. A worker thread checks large arguments and
    enums.
    """
    strict = runtime is not None and runtime.strict_inputs
    enums = [each.enum for each in inputs.values() if each.enum is not None]
    if is_larger([args, enums, list(inputs)], MOST_ON_THE_LOOP):
        return await JSON.run(_checked, name, inputs, args, strict)
    return _checked(name, inputs, args, strict)


def _checked(name: str, inputs: Mapping[str, Input], args: Mapping[str, Any], strict: bool) -> Arguments:
    try:
        applied = apply_inputs(inputs, args, strict=strict)
    except InputInvalid as error:
        failure = Failure(FailureType.VALIDATION_ERROR, with_usage(error, name, inputs, args))
        return Arguments(msgspec.json.encode(args), [], failure)
    return Arguments(
        msgspec.json.encode(applied), blob_args(inputs, applied), warnings=tuple(undeclared_args(inputs, args))
    )
