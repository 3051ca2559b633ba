"""Where settings come from: environment variables and `skillery.toml`."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from skillery.errors import StartupError
from skillery.formats.names import SECRET_PREFIX
from skillery.formats.wording import nearest
from skillery.settings.groups import ENTRIES

PREFIX = "SKILLERY_"
TOKEN_VARIABLE = "SKILLERY_TOKEN"  # noqa: S105 - the variable from which commands and clients read their token
URL_VARIABLE = "SKILLERY_URL"
"""Environment variable with the URL of the server, for clients."""
ANSWER_VARIABLE = "SKILLERY_MAX_ANSWER_MB"
NPM_TOKEN_VARIABLE = "SKILLERY_NPM_TOKEN"  # noqa: S105 - the variable with the token for the npm registry
_NO_SETTINGS = frozenset({TOKEN_VARIABLE, URL_VARIABLE, ANSWER_VARIABLE, NPM_TOKEN_VARIABLE})
BACKENDS_PREFIX = "SKILLERY_BACKENDS_"
PLUGINS_PREFIX = "SKILLERY_PLUGINS_"
ENVIRONMENTS_PREFIX = "SKILLERY_ENVIRONMENTS_"


def names_of(settings: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""
    return dict(_fields(settings))


def _fields(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from _fields(kind, f"{prefix}{field.name}.")
        elif field.name not in {"backends", "plugins"}:
            yield prefix + field.name, kind


def read_environment(variables: Mapping[str, str], settings: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the settings in environment variables `SKILLERY_*`, by dotted name. Raise StartupError for an unknown
    variable.
    """
    names = names_of(settings)
    by_variable = {PREFIX + name.upper().replace(".", "_"): name for name in names if name not in ENTRIES}
    values: dict[str, Any] = {}
    for variable, text in sorted(variables.items()):
        if not variable.startswith(PREFIX) or variable.startswith(SECRET_PREFIX) or variable in _NO_SETTINGS:
            continue
        if variable.startswith(BACKENDS_PREFIX):
            values[_backend_setting(variable)] = text
            continue
        if variable.startswith(PLUGINS_PREFIX) and variable not in by_variable:
            values[_plugin_setting(variable)] = text
            continue
        if variable.startswith(ENVIRONMENTS_PREFIX):
            values[_environment_setting(variable)] = _environment(variable, text)
            continue
        name = by_variable.get(variable)
        if name is None:
            raise StartupError(f"unknown setting {variable} in the environment{_nearest(variable, by_variable)}")
        values[name] = _from_text(names[name], text)
    return values


def _backend_setting(variable: str) -> str:
    parts = variable.removeprefix(BACKENDS_PREFIX).lower().split("_", 2)
    if len(parts) != 3:
        raise StartupError(f"unknown setting {variable}: write {BACKENDS_PREFIX}<KIND>_<NAME>_<SETTING>")
    return "backends." + ".".join(parts)


def _plugin_setting(variable: str) -> str:
    plugin, _, setting = variable.removeprefix(PLUGINS_PREFIX).lower().partition("_")
    if not setting:
        raise StartupError(f"unknown setting {variable}: write {PLUGINS_PREFIX}<NAME>_<SETTING>")
    return f"plugins.{plugin}.{setting}"


def _environment_setting(variable: str) -> str:
    return "environments." + variable.removeprefix(ENVIRONMENTS_PREFIX).lower().replace("_", "-")


def _environment(variable: str, text: str) -> dict[str, Any]:
    """Return a named environment from the text of an environment variable. Raise StartupError if the text is not a JSON
    object.

    The text is JSON because package requirements may contain commas.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        example = '{"dependencies": ["numpy>=2,<3"], "preload": ["numpy"]}'
        raise StartupError(f"{variable} is not a JSON object ({error}): write one such as {example}") from None


def _from_text(kind: Any, text: str) -> Any:
    """Return the text of a variable as a value for msgspec: a tuple for a list, a bool for yes, no, on and off, else
    the text.
    """
    origin = typing.get_origin(kind)
    if origin is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool and text.lower() in {"yes", "on"}:
        return True
    if kind is bool and text.lower() in {"no", "off"}:
        return False
    return text


def read_file(path: Path, settings: type[msgspec.Struct], *, required: bool) -> dict[str, Any]:
    """Return the settings in a TOML file, by dotted name. Raise StartupError if a setting is unknown, or the file is
    not valid or, with `required`, missing.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise StartupError(f"there is no configuration file {path}") from None
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from None
    sections = _take_sections(path, document)
    entries = {table: taken for table in ENTRIES if (taken := _take_entries(path, document, table))}
    values = dict(leaves(document))
    names = names_of(settings)
    for name in values:
        if name not in names:
            raise StartupError(f"unknown setting '{name}' in {path}{_nearest(name, names)}")
    return values | entries | sections


def _take_sections(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Remove the sections of backends and plugins from the document, and return their settings by dotted name."""
    settings: dict[str, Any] = {}
    for table, pattern, depth in (("backends", "[backends.<kind>.<name>]", 3), ("plugins", "[plugins.<name>]", 2)):
        sections = document.pop(table, {})
        if not isinstance(sections, dict):
            raise StartupError(f"{path}: '{table}' must be a table: {pattern}")
        settings |= {f"{table}.{name}": value for name, value in leaves(sections, stop=depth)}
        # An empty section [plugins.<name>] chooses the plugin.
        settings |= {
            f"plugins.{name}": {} for name, section in sections.items() if table == "plugins" and section == {}
        }
    return settings


def _take_entries(path: Path, document: dict[str, Any], table: str) -> dict[str, Any]:
    """Remove a table of ENTRIES from the document, and return its entries by key: a pattern in [quotas.identities] and
    [quotas.namespaces], a name in [environments].

    A pattern may contain any character, including dots. Therefore it cannot be a part of a dotted name. Raise
    StartupError if an entry is not valid.
    """
    parent, _, table_key = table.rpartition(".")
    section = document.get(parent) if parent else document
    entries = section.pop(table_key, {}) if isinstance(section, dict) else {}
    has_patterns = bool(parent)
    if not isinstance(entries, dict):
        example = f'[{table}."<pattern>"]' if has_patterns else f"[{table}.<name>]"
        raise StartupError(f"{path}: '{table}' must be a table: {example}")
    fields = ENTRIES[table].__struct_fields__
    for key, entry in entries.items():
        heading = f'[{table}."{key}"]' if has_patterns else f"[{table}.{key}]"
        if not isinstance(entry, dict):
            raise StartupError(f"{path}: '{key}' in [{table}] must be a table: {heading}")
        for name in entry:
            if name not in fields:
                raise StartupError(f"unknown setting '{name}' in {heading} of {path}{_nearest(name, fields)}")
    return entries


def leaves(tree: Mapping[str, Any], prefix: str = "", stop: int = 9) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each leaf of nested dicts, down to `stop` levels. An empty dict is no
    leaf.
    """
    for name, value in tree.items():
        if isinstance(value, dict) and value and stop > 1:
            yield from leaves(value, f"{prefix}{name}.", stop - 1)
        elif value != {}:
            yield prefix + name, value


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set a setting in nested dicts by its dotted name. Names of backends and plugins have at most three and two
    levels.
    """
    depth = {"backends": 3, "plugins": 2}.get(name.partition(".")[0], -1)
    *parents, key = name.split(".", depth)
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[key] = value


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    """Return "; did you mean '…'?" with the most similar known name, or ""."""
    suggestion = nearest(name, known, 0.0)
    return f"; did you mean '{suggestion}'?" if suggestion else ""
