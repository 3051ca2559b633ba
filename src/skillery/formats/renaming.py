"""A skill.toml with another name or version. If possible, all other lines stay the same, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping

from skillery.errors import InvalidManifest
from skillery.formats.names import is_within
from skillery.formats.skill_toml import manifest_toml, same_manifest, toml_manifest

_STRING = rb"""(?:"[^"\\\r\n]*"|'[^'\r\n]*')"""
_TABLE = re.compile(rb"^[ \t]*\[", re.MULTILINE)


def renamed_toml(data: bytes, name: str, version: str) -> tuple[bytes, dict[str, object]]:
    """Return a skill.toml with another name and version, and its manifest. `data` is a valid skill.toml.

    A `namespace` that is not a prefix of the new name is removed. If a key that changes is not on a separate plain
    line, the whole file is generated from the manifest, without comments.
    """
    before = toml_manifest(data)
    wanted = _renamed(before, name, version)
    if same_manifest(before, wanted):
        return data, before
    first_table = _TABLE.search(data)
    end = first_table.start() if first_table else len(data)
    head = _with_value(_with_value(data[:end], b"name", name), b"version", version)
    if "namespace" not in wanted:
        head = re.sub(
            rb"^[ \t]*namespace[ \t]*=[ \t]*" + _STRING + rb"[^\n]*\n", b"", head, count=1, flags=re.MULTILINE
        )
    made = head + data[end:]
    return (made if _says(made, wanted) else manifest_toml(wanted)), wanted


def _renamed(before: Mapping[str, object], name: str, version: str) -> dict[str, object]:
    wanted = {**before, "name": name, "version": version}
    namespace = wanted.get("namespace")
    if isinstance(namespace, str) and not is_within(name, namespace):
        del wanted["namespace"]
    return wanted


def _with_value(head: bytes, key: bytes, value: str) -> bytes:
    line = re.compile(rb"^([ \t]*" + key + rb"[ \t]*=[ \t]*)" + _STRING, re.MULTILINE)
    return line.sub(lambda match: match[1] + f'"{value}"'.encode(), head, count=1)


def _says(data: bytes, wanted: Mapping[str, object]) -> bool:
    try:
        return same_manifest(toml_manifest(data), wanted)
    except InvalidManifest:
        return False
