"""`skillery plugin new`: make the package of a plugin from a template. Nothing is downloaded."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Literal, NamedTuple

from skillery.authoring.scaffold import TEMPLATES, FilesExist
from skillery.backends import API_VERSION
from skillery.errors import InvalidName

PluginKind = Literal["storage", "sandbox", "authenticator", "secrets", "events"]
PLUGIN_KINDS: tuple[PluginKind, ...] = ("storage", "sandbox", "authenticator", "secrets", "events")
PREFIX = "skillery-"
DESCRIPTIONS: dict[PluginKind, str] = {
    "storage": "Stores contents in files of a folder.",
    "sandbox": "Runs skills in ordinary processes, without isolation.",
    "authenticator": "Identifies callers by a key in a header.",
    "secrets": "Keeps the values of secrets in files of a folder.",
    "events": "Appends events to a file.",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


class _Names(NamedTuple):
    """The names of one plugin: of its distribution, module and offer, and the first part of its classes."""

    name: str
    module: str
    offer: str
    class_name: str


def make_plugin(folder: Path, kind: PluginKind, name: str, version: str) -> list[str]:
    """Write the package of a new plugin. Return the paths of its files. `version` is the version of Skillery.

    Raise InvalidName, FilesExist and OSError. No file is overwritten: if one is in the way, nothing is written.
    """
    names = _names(name)
    texts = {path: _filled(text, names, kind, version) for path, text in _template(kind, names).items()}
    in_the_way = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if in_the_way:
        raise FilesExist(folder, in_the_way)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return list(texts)


def _names(name: str) -> _Names:
    offer = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(offer) or keyword.iskeyword(name) or len(name) > 64:
        raise InvalidName(
            f"'{name:.80}' is not a name for a plugin.",
            hint="Use lower-case letters, digits and single hyphens, with a letter first, such as skillery-notes.",
        )
    class_name = "".join(part.capitalize() for part in offer.split("-"))
    return _Names(name, name.replace("-", "_"), offer, class_name)


def _template(kind: PluginKind, names: _Names) -> dict[str, str]:
    """Return the files of the package, by path, with placeholders."""
    root = TEMPLATES / "plugin"
    common, own = root / "common", root / kind
    readme = _read(common / "README.md").replace("__USE__", _read(own / "use.md").rstrip())
    return {
        "pyproject.toml": _read(common / "pyproject.toml"),
        "README.md": readme,
        "CHANGELOG.md": _read(common / "CHANGELOG.md"),
        f"src/{names.module}/__init__.py": _read(own / "plugin.py"),
        f"src/{names.module}/py.typed": "",
        f"tests/test_{names.module}.py": _read(own / "test_plugin.py"),
        ".github/workflows/ci.yml": _read(common / "ci.yml"),
        ".gitignore": _read(common / "gitignore"),
    }


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def _filled(text: str, names: _Names, kind: PluginKind, version: str) -> str:
    values = {
        "NAME": names.name,
        "MODULE": names.module,
        "OFFER": names.offer,
        "CLASS": names.class_name,
        "DESCRIPTION": DESCRIPTIONS[kind],
        "VERSION": version,
        "API": str(API_VERSION),
    }
    for key, value in values.items():
        text = text.replace(f"__{key}__", value)
    return text
