"""The sources of settings: environment variables, `skillery.toml`, and the configuration of pip for indexes."""

from __future__ import annotations

import configparser
import functools
import os
import re
import sys
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from skillery.errors import StartupError
from skillery.formats.names import SECRET_PREFIX
from skillery.formats.network import parse_network_pattern
from skillery.formats.wording import nearest
from skillery.settings.groups import ENTRIES

PREFIX = "SKILLERY_"
TOKEN_VARIABLE = "SKILLERY_TOKEN"  # noqa: S105 - the variable from which commands and clients read their token
URL_VARIABLE = "SKILLERY_URL"
"""Environment variable with the URL of the server, for clients."""
ANSWER_VARIABLE = "SKILLERY_MAX_ANSWER_MB"
NPM_TOKEN_VARIABLE = "SKILLERY_NPM_TOKEN"  # noqa: S105 - the variable with the token for the npm registry
JOB_TOKEN_VARIABLE = "SKILLERY_ID_TOKEN"  # noqa: S105 - the variable with the token of a CI job
_NO_SETTINGS = frozenset({TOKEN_VARIABLE, URL_VARIABLE, ANSWER_VARIABLE, NPM_TOKEN_VARIABLE, JOB_TOKEN_VARIABLE})
BACKENDS_PREFIX = "SKILLERY_BACKENDS_"
PLUGINS_PREFIX = "SKILLERY_PLUGINS_"
ENVIRONMENTS_PREFIX = "SKILLERY_ENVIRONMENTS_"


@functools.cache  # a command reads its settings up to four times
def names_of(settings: type[msgspec.Struct]) -> Mapping[str, Any]:
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
    except tomllib.TOMLDecodeError as error:
        raise StartupError(f"{path} is not valid TOML: {error}{_toml_remedy(path.read_text('utf-8'), error)}") from None
    except UnicodeDecodeError as error:
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


def _toml_remedy(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return how to correct a value without quotes, or "". The remedy omits the value, because it may be a secret."""
    place = re.search(r"at line (\d+)", str(error))
    line = text.split("\n")[int(place[1]) - 1] if place else ""
    key = re.match(r"\s*([\w.-]+)\s*=\s*[^\s\"'\[{]", line)
    return f'; write {key[1]} = "…" for a text, a number alone, or true or false' if key else ""


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
    [quotas.namespaces] and [policy], a name in [environments].

    A pattern may contain any character, including dots. Therefore it cannot be a part of a dotted name. Raise
    StartupError if an entry is not valid.
    """
    parent, _, table_key = table.rpartition(".")
    section = document.get(parent) if parent else document
    entries = section.pop(table_key, {}) if isinstance(section, dict) else {}
    has_patterns = table != "environments"
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


def reason_of(error: msgspec.ValidationError, settings: type[msgspec.Struct]) -> tuple[str, str]:
    """Return the path of the setting that is not valid, or "", and what to write there."""
    reason, _, path = str(error).partition(" - at `$.")
    path = path.removesuffix("`")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", reason):
        return path, f"the setting '{missing[1]}' is missing"
    if reason.startswith("Expected `"):
        kinds, _, condition = reason.removeprefix("Expected `").partition("`")
        words = (_EXPECTED.get(kind, kind) for kind in kinds.split(" | "))
        return path, f"write {' or '.join(words)}{condition.partition(', got `')[0]}"
    choices = _choices(settings, path) if reason.startswith("Invalid enum value") else ()
    return path, f"permitted are {', '.join(choices)}" if choices else reason.lower()


_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "array": 'a list such as ["a", "b"]',
    "object": "a table",
}


def _choices(kind: Any, path: str) -> tuple[str, ...]:
    """Return the words that the setting at a path such as `rules[0].scopes[0]` may have, or ()."""
    for part in path.replace("[...]", "[0]").replace("[", ".[").split("."):
        if part.startswith("["):
            kind = (*typing.get_args(kind), None)[typing.get_origin(kind) is dict]
        else:
            kind = typing.get_type_hints(kind).get(part)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _nearest(name: str, known: typing.Iterable[str]) -> str:
    """Return "; did you mean '…'?" with the most similar known name, or ""."""
    suggestion = nearest(name, known, 0.0)
    return f"; did you mean '{suggestion}'?" if suggestion else ""


# -- The package indexes that this computer configures for pip and uv --------------------------------------------------
# The addresses may contain credentials. Skillery keeps them in memory only.


PYPI = "https://pypi.org/simple"
SECTIONS = ("global", "install")
# The names of one option: in the environment of uv, in that of pip, and in pip.conf. The first one that is set counts.
_DEFAULT = (("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"), "index-url")
_MORE = (("UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"), "extra-index-url")
_NONE = (("UV_NO_INDEX", "PIP_NO_INDEX"), "no-index")


def configured_indexes(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of the configured indexes in the order of uv, which has the default index last.

    Return () if no index is configured that a sandbox can reach. Addresses of files and IP addresses are left out. If
    no default index is configured, it is PyPI, as in pip.
    """
    options = _pip_options(environ)

    def setting(names: tuple[tuple[str, ...], str]) -> str:
        variables, option = names
        return next((environ[name] for name in variables if environ.get(name, "").strip()), options.get(option, ""))

    if setting(_NONE).strip().lower() not in {"", "0", "false", "no", "off"}:
        return ()
    default = setting(_DEFAULT).strip()
    extra_addresses = [address for word in setting(_MORE).split() if _is_reachable(address := _without_name(word))]
    if not (default or extra_addresses) or (default and not _is_reachable(_without_name(default))):
        return ()
    return tuple(dict.fromkeys([*extra_addresses, _without_name(default) or PYPI]))


def _without_name(text: str) -> str:
    """Return the address of an index of uv, which may have a name: `internal=https://pypi.example.org/simple`."""
    name, equals, address = text.partition("=")
    return address if equals and "/" not in name else text


def _is_reachable(address: str) -> bool:
    try:
        parts = urlsplit(address)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return False
    network = parse_network_pattern(f"{parts.scheme}://{host}".lower())
    return parts.scheme in {"http", "https"} and not isinstance(network, str)


def _pip_options(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of all configuration files of pip. Later files and the section [install] win.

    A file that cannot be read or parsed is left out: it concerns pip, and pip reports it.
    """
    options: dict[str, str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in SECTIONS:
            options |= dict(parser.items(section)) if parser.has_section(section) else {}
    return options


def _pip_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files in the order of pip (https://pip.pypa.io/en/stable/topics/configuration/)."""
    own_file = environ.get("PIP_CONFIG_FILE", "")
    if own_file == os.devnull:
        return
    for folder in (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":"):
        yield Path(folder, "pip", "pip.conf")
    yield Path("/etc/pip.conf")
    if home := environ.get("HOME"):
        yield Path(home, ".pip", "pip.conf")
        yield Path(environ.get("XDG_CONFIG_HOME") or Path(home, ".config"), "pip", "pip.conf")
    yield Path(sys.prefix, "pip.conf")
    if own_file:
        yield Path(own_file)
