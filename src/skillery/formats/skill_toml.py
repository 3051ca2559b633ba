"""The text of skill.toml: generated from a manifest, or parsed to a manifest."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Mapping
from typing import NoReturn

import tomli_w

from skillery.errors import InvalidManifest
from skillery.formats.json_values import MAX_DEPTH, same
from skillery.formats.names import is_within
from skillery.formats.wording import Problem, raise_problems

MAX_BYTES = 512 * 1024
"""The maximum number of bytes of the text: twice the limit for a manifest, to leave room for comments."""

_FIRST = ("name", "version", "description", "kind", "namespace", "tags")
_FIRST_TABLES = ("runtime", "inputs", "permissions")
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![^\s\[{{,])(?:{_KEY_PART}[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}")
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_KEY = re.compile(r"""[\w."'-]++""")
_LONGEST_SHOWN = 200


def manifest_toml(raw: Mapping[str, object]) -> bytes:
    """Return the text of a skill.toml for a manifest that `parse_manifest` accepts.

    The digest of a bundle depends on these bytes, so every release must generate the same bytes. Values come before
    tables, and known keys before other keys. Apart from that, the order of the manifest is kept.
    """
    tables = [key for key, value in raw.items() if isinstance(value, Mapping)]
    values = [key for key in raw if key not in tables]
    ordered_keys = [*_ordered(values, _FIRST), *_ordered(tables, _FIRST_TABLES)]
    return tomli_w.dumps({key: raw[key] for key in ordered_keys}).encode()


def toml_manifest(data: bytes) -> dict[str, object]:
    """Return the manifest in a skill.toml. Dates become ISO strings.

    Raise InvalidManifest, with file and line, if the text is not UTF-8 or TOML, is too long or is nested too deep.
    """
    return read_toml(data, "skill.toml")


def read_toml(data: bytes, subject: str) -> dict[str, object]:
    """Return the values of a TOML text. Dates become ISO strings. `subject` names the text in errors.

    Raise the errors of `toml_manifest`.
    """
    if len(data) > MAX_BYTES:
        _refuse(subject, f"has {len(data)} bytes, at most {MAX_BYTES} are allowed", None)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(subject, "is not UTF-8 text", data.count(b"\n", 0, error.start) + 1)
    # tomllib takes quadratic time and memory for a dotted key of thousands of parts.
    long_key = _LONG_KEY.search(text)
    if long_key:
        _refuse(subject, "has a dotted key of too many parts", text.count("\n", 0, long_key.start()) + 1)
    try:
        return {key: _json_value(value) for key, value in tomllib.loads(text).items()}
    except RecursionError:
        _refuse(subject, "is nested too deep", None)
    except ValueError as error:  # includes TOMLDecodeError and the error for a number of too many digits
        line = _LINE.search(str(error))
        reason = _LINE.sub("", str(error)).strip()
        number = int(line[1]) if line else None
        _refuse(subject, f"is not TOML: {_remedy(text, number, reason) or reason}", number)


def same_manifest(left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    """Return whether two manifests are equal. The order of keys does not count. `1` equals `1.0` and differs from
    `true`.
    """
    return same(left, right)


def _ordered(keys: list[str], first: tuple[str, ...]) -> list[str]:
    return [*(key for key in first if key in keys), *(key for key in keys if key not in first)]


def _json_value(value: object) -> object:
    if isinstance(value, dict):
        return {key: _json_value(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    return value


def _remedy(text: str, number: int | None, reason: str) -> str:
    """Return what to change at the line where the text is not TOML: add quotes, or look at the line."""
    line = text.split("\n", number)[number - 1].strip() if number else ""
    if not line or len(line) > _LONGEST_SHOWN:
        return ""
    if "Cannot overwrite" in reason:
        return f"{line.partition('=')[0].strip()} is written twice; keep one of the two"
    key, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    is_bare = value and value[0] not in "[{" and not {'"', "'"}.intersection(value)
    if is_bare and _KEY.fullmatch(key) and not _is_toml(f"x = {value}"):
        return f"put the value in quotes: {key} = {json.dumps(value, ensure_ascii=False)}"
    return ""


def _is_toml(line: str) -> bool:
    try:
        tomllib.loads(line)
    except ValueError:
        return False
    return True


def _refuse(subject: str, message: str, line: int | None) -> NoReturn:
    where = f" (line {line})" if line else ""
    problem = Problem(f"{subject} {message}{where}", path="skill.toml", file="skill.toml", line=line)
    raise_problems(InvalidManifest, [problem], hint="skill.toml is TOML 1.0 in UTF-8 (https://toml.io).")


# -- A skill.toml with another name or version. If possible, all other lines stay the same, byte for byte --------------


_STRING = rb"""(?:"[^"\\\r\n]*"|'[^'\r\n]*')"""
_TABLE = re.compile(rb"^[ \t]*\[", re.MULTILINE)


def renamed_toml(data: bytes, name: str, version: str) -> tuple[bytes, dict[str, object]]:
    """Return a skill.toml with another name and version, and its manifest. `data` is a valid skill.toml.

    A `namespace` that is not a prefix of the new name is removed. If the key of a change is not on its own plain line,
    the whole file is generated from the manifest, without comments.
    """
    manifest = toml_manifest(data)
    renamed = _renamed(manifest, name, version)
    if same_manifest(manifest, renamed):
        return data, manifest
    first_table = _TABLE.search(data)
    end = first_table.start() if first_table else len(data)
    head = _with_value(_with_value(data[:end], b"name", name), b"version", version)
    if "namespace" not in renamed:
        head = re.sub(
            rb"^[ \t]*namespace[ \t]*=[ \t]*" + _STRING + rb"[^\n]*\n", b"", head, count=1, flags=re.MULTILINE
        )
    content = head + data[end:]
    return (content if _says(content, renamed) else manifest_toml(renamed)), renamed


def _renamed(manifest: Mapping[str, object], name: str, version: str) -> dict[str, object]:
    """Return the manifest with another name and version, without a `namespace` that does not fit the name."""
    renamed = {**manifest, "name": name, "version": version}
    namespace = renamed.get("namespace")
    if isinstance(namespace, str) and not is_within(name, namespace):
        del renamed["namespace"]
    return renamed


def _with_value(head: bytes, key: bytes, value: str) -> bytes:
    line = re.compile(rb"^([ \t]*" + key + rb"[ \t]*=[ \t]*)" + _STRING, re.MULTILINE)
    return line.sub(lambda match: match[1] + f'"{value}"'.encode(), head, count=1)


def _says(data: bytes, manifest: Mapping[str, object]) -> bool:
    """Return whether the text is the skill.toml of exactly this manifest."""
    try:
        return same_manifest(toml_manifest(data), manifest)
    except InvalidManifest:
        return False
