"""Caches of parsed manifests and tool parameters, limited by the size of their texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from skillery.backends import Failure, FailureType, Outcome
from skillery.context.threads import BIG_TEXT, JSON
from skillery.formats.inputs import Input, InputInvalid, apply_inputs, blob_args, undeclared_args, with_usage
from skillery.formats.json_values import is_larger
from skillery.formats.manifest import Manifest, Runtime, read_stored_manifest
from skillery.formats.tools import inputs_of, parameters_of
from skillery.registry.version_rows import VersionRow
from skillery.tools.tool_lookup import FoundTool

MANIFESTS = 3 * 1024 * 1024
"""The maximum number of characters of all manifest texts in the cache. The parsed manifests need up to 25 times as much
memory.
"""
TOOLS = 1024 * 1024
"""The maximum number of bytes of all tool parameters in the cache, as JSON."""
LARGE = 16 * 1024
"""A text of more characters or bytes than this is parsed in a worker thread. Shorter texts take less than 10 ms."""

Key = TypeVar("Key", bound=str | bytes)
Value = TypeVar("Value")


class Parsed(Generic[Key, Value]):
    """A cache of parsed values by their text. Use it only on the event loop.

    `most` is the maximum length of all texts together. The least recently used values are dropped first.
    """

    def __init__(self, parse: Callable[[Key], Value], most: int) -> None:
        self._parse = parse
        self._most = most
        self._length = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    async def of(self, text: Key) -> Value:
        """Return the parsed value of `text`, from the cache or from the parser. Raise the error of the parser."""
        if text in self._values:
            self._values.move_to_end(text)
            return self._values[text]
        value = await JSON.run(self._parse, text) if len(text) > LARGE else self._parse(text)
        self._keep(text, value)
        return value

    def _keep(self, text: Key, value: Value) -> None:
        if len(text) > self._most or text in self._values:  # another call may have parsed it in the meantime
            return
        self._values[text] = value
        self._length += len(text)
        while self._length > self._most:
            dropped, _ = self._values.popitem(last=False)
            self._length -= len(dropped)


class Declarations:
    """The cached manifests of versions and inputs of tools."""

    def __init__(self) -> None:
        self._actions: Parsed[str, Manifest] = Parsed(_action, MANIFESTS // 2)
        self._instructions: Parsed[str, Manifest] = Parsed(_instruction, MANIFESTS // 2)
        self._tools: Parsed[bytes, dict[str, Input]] = Parsed(_inputs, TOOLS)

    async def manifest(self, version: VersionRow) -> Manifest:
        """Return the manifest of a version. Its field `raw` is empty."""
        cache = self._actions if version.kind == "action" else self._instructions
        return await cache.of(version.manifest_json)

    async def inputs(self, tool: FoundTool) -> dict[str, Input]:
        """Return the declared parameters of a tool, in the form of the inputs of a skill, by name."""
        return await self._tools.of(msgspec.json.encode(tool.declared))


def _action(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=True)


def _instruction(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=False)


def _inputs(declared: bytes) -> dict[str, Input]:
    return inputs_of(parameters_of(msgspec.json.decode(declared)))


# -- The check of a run's arguments against the declared inputs --------------------------------------------------------


MOST_ON_THE_LOOP = 4 * 1024
"""Arguments and enums with more keys, items and characters than this are checked in a worker thread."""


class Arguments(NamedTuple):
    """The checked arguments of a run. If the arguments do not fit the inputs, `failure` has the reason."""

    text: bytes
    """The arguments as JSON, with the defaults of omitted inputs."""
    blobs: list[str]
    """The blob ids in the arguments."""
    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    """A warning for each undeclared argument."""


NO_ARGUMENTS = Arguments(b"{}", [])


async def checked_arguments(
    name: str, inputs: Mapping[str, Input], args: Mapping[str, Any], runtime: Runtime | None = None
) -> Arguments:
    """Return the arguments of a run of the skill or tool `name`, checked against `inputs` and with their defaults.

    If the `runtime` has strict inputs, an undeclared argument is a failure, else a warning. A worker thread checks
    large arguments and enums.
    """
    strict = runtime is not None and runtime.strict_inputs
    enums = [declared.enum for declared in inputs.values() if declared.enum is not None]
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


# -- The result of a run, checked: the code in a sandbox may send anything ---------------------------------------------


async def checked(outcome: Outcome) -> Outcome:
    """Return `outcome`, or the outcome with a failure in place of its result if the result is not JSON."""
    if outcome.failure is not None:
        return outcome
    if len(outcome.result or b"") > BIG_TEXT:
        return await JSON.run(_checked_result, outcome)
    return _checked_result(outcome)


def _checked_result(outcome: Outcome) -> Outcome:
    try:
        # Decoded first: msgspec skips the bytes of a string without a check that they are UTF-8.
        msgspec.json.decode((outcome.result or b"").decode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = Failure(FailureType.INVALID_OUTPUT, "the returned value is not JSON")
        return msgspec.structs.replace(outcome, result=None, failure=failure)
    return outcome
