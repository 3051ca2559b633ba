"""Manifests and tool parameters, parsed once and kept up to a fixed size of their texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from skillery.context.threads import JSON
from skillery.formats.inputs import Input
from skillery.formats.manifest import Manifest, read_stored_manifest
from skillery.formats.tools_json import inputs_of, parameters_of
from skillery.registry import FoundTool, VersionRow

MANIFESTS = 3 * 1024 * 1024
"""Characters of manifest JSON whose parsed values are kept. Parsed values take up to 25 times the memory."""
TOOLS = 1024 * 1024
"""Bytes of tool parameters as JSON whose parsed values are kept."""
LARGE = 16 * 1024
"""Length of a text from which a worker thread parses it: smaller texts take less than 10 ms."""

Key = TypeVar("Key", bound=str | bytes)
Value = TypeVar("Value")


class Parsed(Generic[Key, Value]):
    """Parsed values by their text. The least recently used values are dropped when the texts are longer than `most`
    together. For the event loop only."""

    def __init__(self, parse: Callable[[Key], Value], most: int) -> None:
        self._parse = parse
        self._most = most
        self._length = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    async def of(self, text: Key) -> Value:
        """Return the value of the text. Raises what parsing raises."""
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
    """The manifests of versions and the inputs of tools."""

    def __init__(self) -> None:
        self._actions: Parsed[str, Manifest] = Parsed(_action, MANIFESTS // 2)
        self._instructions: Parsed[str, Manifest] = Parsed(_instruction, MANIFESTS // 2)
        self._tools: Parsed[bytes, dict[str, Input]] = Parsed(_inputs, TOOLS)

    async def manifest(self, version: VersionRow) -> Manifest:
        """Return the manifest of a version, with an empty `raw`."""
        kept = self._actions if version.kind == "action" else self._instructions
        return await kept.of(version.manifest_json)

    async def inputs(self, tool: FoundTool) -> dict[str, Input]:
        """Return the inputs that a tool declares as its parameters."""
        return await self._tools.of(msgspec.json.encode(tool.declared))


def _action(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=True)


def _instruction(manifest_json: str) -> Manifest:
    return read_stored_manifest(msgspec.json.decode(manifest_json), has_tools=False)


def _inputs(declared: bytes) -> dict[str, Input]:
    return inputs_of(parameters_of(msgspec.json.decode(declared)))
