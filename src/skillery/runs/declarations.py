"""Caches of parsed manifests and tool parameters, limited by the size of their texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from skillery.context.threads import JSON
from skillery.formats.inputs import Input
from skillery.formats.manifest import Manifest, read_stored_manifest
from skillery.formats.tools import inputs_of, parameters_of
from skillery.registry import FoundTool, VersionRow

MANIFESTS = 3 * 1024 * 1024
"""The maximum number of characters of manifests with cached values. The parsed values need up to 25 times the memory
of the text.
"""
TOOLS = 1024 * 1024
"""The maximum number of bytes of tool parameters, as JSON, with cached values."""
LARGE = 16 * 1024
"""A text longer than this is parsed in a worker thread. Shorter texts take less than 10 ms."""

Key = TypeVar("Key", bound=str | bytes)
Value = TypeVar("Value")


class Parsed(Generic[Key, Value]):
    """A cache of parsed values by their text. Use it only on the event loop.

    If all texts together are longer than `most`, the least recently used values are dropped.
    """

    def __init__(self, parse: Callable[[Key], Value], most: int) -> None:
        self._parse = parse
        self._most = most
        self._length = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    async def of(self, text: Key) -> Value:
        """Return the value of the text. Raise the error of the parser if the text cannot be parsed."""
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
        """Return the manifest of a version. Its `raw` is empty."""
        kept = self._actions if version.kind == "action" else self._instructions
        return await kept.of(version.manifest_json)

    async def inputs(self, tool: FoundTool) -> dict[str, Input]:
        """Return the parameters of a tool as inputs."""
        return await self._tools.of(msgspec.json.encode(tool.declared))


def _action(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=True)


def _instruction(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=False)


def _inputs(declared: bytes) -> dict[str, Input]:
    return inputs_of(parameters_of(msgspec.json.decode(declared)))
