"""Scripts of a skill, described from their text: the language, the purpose and the call of each.

Call `describe_scripts` in a worker process (`CompilePool`), never in the server: it parses foreign Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

import msgspec

from skillery.formats.bundle import BundleFile
from skillery.formats.python_source import parsed_source

FOLDER = "scripts"
MOST = 40
MOST_BYTES = 256 * 1024
"""The number of bytes at the start of a script that are read. Longer Python files have no description."""
_LANGUAGES = {
    "py": "python",
    "sh": "bash",
    **dict.fromkeys(("js", "mjs", "cjs"), "javascript"),
    **dict.fromkeys(("ts", "mts", "cts"), "typescript"),
}
_LONGEST = 200
_MOST_ARGUMENTS = 12
_HEAD_LINES = 60
_USAGE = re.compile(r"\busage:(.*)", re.IGNORECASE)
_COMMENTS = ("#", "//", "/*", "*")
_FLAGS = {"store_true", "store_false", "count", "help", "version"}


class Script(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file below `scripts/` that runs as a program. `usage` is its call, as its text states it."""

    path: str
    language: str
    description: str = ""
    usage: str = ""
    missing: tuple[str, ...] = ()
    """Modules that the script imports, and that none of its packages provides."""


def script_files(files: Sequence[BundleFile], handlers: Collection[str]) -> tuple[tuple[str, bytes], ...]:
    """Return the paths and the starts of the files that may be scripts, at most MOST. `handlers` of tools are none."""
    paths = (file for file in files if language_of(file.path) and file.path not in handlers)
    return tuple((file.path, file.content[:MOST_BYTES]) for file in islice(paths, MOST))


def language_of(path: str) -> str:
    """Return the language of a script by its path, or "" if the file is not below a folder `scripts`."""
    *folders, name = path.split("/")
    is_program = FOLDER in folders and "node_modules" not in folders and name != "__init__.py"
    return _LANGUAGES.get(name.rpartition(".")[2], "") if is_program else ""


def describe_scripts(files: tuple[tuple[str, bytes], ...]) -> tuple[Script, ...]:
    """Return the scripts in these files. Python files that only define names are modules, and left out."""
    scripts = (_python(path, content) if path.endswith(".py") else _other(path, content) for path, content in files)
    return tuple(script for script in scripts if script is not None)


def _python(path: str, content: bytes) -> Script | None:
    """Return a Python script, or None for a module. Files that do not parse have no description."""
    tree = parsed_source(content)
    if tree is None:
        return Script(path, "python")
    if not any(map(_acts, tree.body)):
        return None
    docstring = ast.get_docstring(tree) or ""
    usage = _usage_in(docstring.splitlines(), path) or _argparse_usage(tree, path) or _printed_usage(tree, path)
    return Script(path, "python", _first_sentence(docstring.splitlines()), usage)


def _acts(statement: ast.stmt) -> bool:
    """Return whether a statement at the top of a file does more than to define names."""
    if isinstance(statement, ast.If):
        return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, ast.For | ast.While | ast.With)


def _argparse_usage(tree: ast.Module, path: str) -> str:
    """Return the call by the calls of `add_argument` and `add_parser`, or "" without them."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    words = ["COMMAND"] if any(_name_of(call) == "add_parser" for call in calls) else []
    words += [word for call in calls if _name_of(call) == "add_argument" and (word := _argument(call))]
    options = [word for word in words if word.startswith("[-")]
    shown = [*(word for word in words if word not in options), *options]
    more = ["…"] if len(shown) > _MOST_ARGUMENTS else []
    return _cut(" ".join([_file_name(path), *shown[:_MOST_ARGUMENTS], *more])) if words else ""


def _name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _argument(call: ast.Call) -> str:
    """Return an argument as a usage line writes it: `INPUT`, `[--out OUT]`, `--key KEY`."""
    names = [value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(value := arg.value, str)]
    options = {keyword.arg: keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)}
    name = max(names, key=len, default="")
    metavar = str(options.get("metavar") or name.lstrip("-").replace("-", "_").upper())
    if not name.startswith("-"):
        many = " …" if options.get("nargs") in {"*", "+"} else ""
        return f"[{metavar}{many}]" if options.get("nargs") in {"*", "?"} else metavar + many
    text = name if options.get("action") in _FLAGS else f"{name} {metavar}"
    return text if options.get("required") is True else f"[{text}]"


def _printed_usage(tree: ast.Module, path: str) -> str:
    """Return the usage line in a text of the code, such as `print("Usage: convert.py FILE")`, or ""."""
    return _usage_in(islice(_texts(tree, path), 1000), path)


def _texts(tree: ast.Module, path: str) -> Iterator[str]:
    """Yield the lines of the texts in the code. An expression in a text is written as the name of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.splitlines()
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else _file_name(path) for part in node.values)
            yield from "".join(map(str, parts)).splitlines()


def _other(path: str, content: bytes) -> Script:
    """Return a script of another language. Its first comment describes it."""
    lines = content.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    comments: list[str] = []
    for line in lines[lines[0].startswith("#!") : _HEAD_LINES]:
        text = line.strip()
        if not text.startswith(_COMMENTS) and (text or any(comments)):
            break
        comments.append(text.strip("#/* \t"))
    texts = (text for line in lines[:400] for text in line.replace("'", '"').split('"'))
    usage = _usage_in(comments, path) or _usage_in(texts, path)
    return Script(path, language_of(path), _first_sentence(comments), usage)


def _usage_in(lines: Iterator[str] | Sequence[str], path: str) -> str:
    """Return the call in the first usage line, or in the line below it, or ""."""
    is_next = False
    for line in lines:
        match = _USAGE.search(line[:1000])
        text = match[1].strip() if match else line.strip() if is_next else ""
        if text:
            return _cut(text.replace("$0", _file_name(path)).strip("`'\""))
        is_next = match is not None or (is_next and not line.strip())
    return ""


def _first_sentence(lines: Sequence[str]) -> str:
    """Return the first sentence of the first paragraph that is no usage line."""
    words: list[str] = []
    for line in lines:
        text = line.strip(" \t=-*#")
        if words and (not text or _USAGE.search(text)):
            break
        if text and not _USAGE.search(text):
            words.append(text)
    return _cut(re.split(r"(?<=[.!?])\s", " ".join(words), maxsplit=1)[0])


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
