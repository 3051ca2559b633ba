"""`skillery new`: make the folder of a skill from a template."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from skillery.backends import API_VERSION
from skillery.errors import InvalidName
from skillery.formats.file_schemas import schema_of_file
from skillery.formats.names import parse_skill_name

Kind = Literal["action", "instruction", "tools"]
KINDS: tuple[Kind, ...] = ("action", "instruction", "tools")
TEMPLATES = Path(__file__).parent / "templates"
DESCRIPTIONS: dict[Kind, str] = {
    "action": "Counts the words of a text and returns the most frequent ones.",
    "instruction": "Explains how to check a document before it is sent.",
    "tools": "Counts the words or the lines of a text.",
}


SCHEMA = ".schemas/skill.toml.json"
"""Path of the schema that editors use for skill.toml. Hidden files are not published."""


class FilesExist(Exception):
    """Raised if a template would overwrite files. `paths` are those files, relative to the folder."""

    def __init__(self, folder: Path, paths: list[str]) -> None:
        super().__init__(
            f"'{folder}' already contains {', '.join(paths)}: name another folder, or remove these files first; "
            "nothing was written"
        )
        self.paths = paths


def name_for(folder: Path) -> str:
    """Return the name of the folder as the name of a new skill. Raise InvalidName, with the remedy, if it is not
    valid.
    """
    return checked_name(folder.resolve().name, "The name comes from the folder; choose another with --name. ")


def checked_name(text: str, remedy: str = "") -> str:
    """Return the name unchanged. Raise InvalidName if it is not a skill name that Python code can import.

    `remedy` is put before the hint of the error.
    """
    try:
        name = parse_skill_name(text)
    except InvalidName as error:
        raise InvalidName(error.message, hint=f"{remedy}{error.hint}") from None
    for segment in name.replace("-", "_").split("."):
        if keyword.iskeyword(segment) or segment[0].isdecimal():
            reason = "is a Python keyword" if keyword.iskeyword(segment) else "starts with a digit"
            raise InvalidName(
                f"'{name}' cannot be imported in Python: '{segment}' {reason}.",
                hint=f"{remedy}Perhaps '{name.replace(segment, f'skill-{segment}', 1)}'?",
            )
    return name


def make_skill(folder: Path, kind: Kind, name: str) -> list[str]:
    """Write the files of a new skill. Return their paths. Raise FilesExist or OSError.

    Existing files stay as they are: if one of the paths exists, nothing is written.
    """
    texts = filled_template(kind, name)
    schema = msgspec.json.encode(schema_of_file("skill.toml"))
    texts[SCHEMA] = msgspec.json.format(schema, indent=2).decode() + "\n"
    texts["skill.toml"] = f"#:schema {SCHEMA}\n{texts['skill.toml']}"
    in_the_way = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if in_the_way:
        raise FilesExist(folder, in_the_way)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return list(texts)


def filled_template(kind: Kind, name: str) -> dict[str, str]:
    """Return the texts of a new skill, by path."""
    return {path: _filled(text, kind, name) for path, text in _template(kind).items()}


def _template(kind: Kind) -> dict[str, str]:
    root = TEMPLATES / kind
    files = sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    # skill.toml and SKILL.md come first, as in every description of a skill.
    files.sort(key=lambda path: (path.name not in {"skill.toml", "SKILL.md"}, len(path.relative_to(root).parts)))
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in files}


def _filled(text: str, kind: Kind, name: str) -> str:
    """Return the text of a template with its placeholders `__KEY__` replaced."""
    title = re.sub(r"[-_]", " ", name.rpartition(".")[2]).capitalize()
    values = {
        "NAME": name,
        "IMPORT": name.replace("-", "_"),
        "TITLE": title,
        "DESCRIPTION": DESCRIPTIONS[kind],
    }
    for key, value in values.items():
        text = text.replace(f"__{key}__", value)
    return text


# -- `skillery plugin new`: make the package of a plugin from a template. Nothing is downloaded ------------------------


PluginKind = Literal["storage", "sandbox", "authenticator", "secrets", "events"]
PREFIX = "skillery-"
PLUGIN_DESCRIPTIONS: dict[PluginKind, str] = {
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

    Raise InvalidName, FilesExist or OSError. No file is overwritten: if one of the paths exists, nothing is written.
    """
    names = _names(name)
    texts = {path: _filled_plugin(text, names, kind, version) for path, text in _plugin_template(kind, names).items()}
    in_the_way = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if in_the_way:
        raise FilesExist(folder, in_the_way)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (folder / path).open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    return list(texts)


def _names(name: str) -> _Names:
    """Return the names of a plugin. Raise InvalidName if the text is not a valid name."""
    offer = name.removeprefix(PREFIX)
    if not _NAME.fullmatch(name) or not _NAME.fullmatch(offer) or keyword.iskeyword(name) or len(name) > 64:
        raise InvalidName(
            f"'{name:.80}' is not a name for a plugin.",
            hint="Use lower-case letters, digits and single hyphens, with a letter first, such as skillery-notes.",
        )
    class_name = "".join(part.capitalize() for part in offer.split("-"))
    return _Names(name, name.replace("-", "_"), offer, class_name)


def _plugin_template(kind: PluginKind, names: _Names) -> dict[str, str]:
    """Return the files of the package, by path, with placeholders."""
    root = TEMPLATES / "plugin"
    common_folder, kind_folder = root / "common", root / kind
    readme = _read(common_folder / "README.md").replace("__USE__", _read(kind_folder / "use.md").rstrip())
    return {
        "pyproject.toml": _read(common_folder / "pyproject.toml"),
        "README.md": readme,
        "CHANGELOG.md": _read(common_folder / "CHANGELOG.md"),
        f"src/{names.module}/__init__.py": _read(kind_folder / "plugin.py"),
        f"src/{names.module}/py.typed": "",
        f"tests/test_{names.module}.py": _read(kind_folder / "test_plugin.py"),
        ".github/workflows/ci.yml": _read(common_folder / "ci.yml"),
        ".gitignore": _read(common_folder / "gitignore"),
    }


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def _run_of_process() -> str:
    """Return the source of a run in an ordinary process: a new sandbox plugin begins with it."""
    source = _read(Path(__file__).parents[1] / "builtin" / "unsafe_subprocess.py")
    run_source = source[source.index("class PlainRun:") : source.index("\n\n\ndef open_sandbox(")]
    return run_source.replace("PlainRun", "__CLASS__Run")


def _filled_plugin(text: str, names: _Names, kind: PluginKind, version: str) -> str:
    """Return the text of a template with its placeholders `__KEY__` replaced."""
    values = {
        "RUN": _run_of_process(),
        "NAME": names.name,
        "MODULE": names.module,
        "OFFER": names.offer,
        "CLASS": names.class_name,
        "DESCRIPTION": PLUGIN_DESCRIPTIONS[kind],
        "VERSION": version,
        "API": str(API_VERSION),
    }
    for key, value in values.items():
        text = text.replace(f"__{key}__", value)
    return text
