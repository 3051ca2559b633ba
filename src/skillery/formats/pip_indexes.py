"""The package indexes that this computer configures for pip and uv.

The addresses may contain credentials. Skillery keeps them in memory only.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from skillery.formats.network import parse_network_pattern

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
