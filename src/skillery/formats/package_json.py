"""package.json of a bundle: what its JavaScript would look for, and nobody installs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from skillery.formats.problems import Problem
from skillery.formats.wording import printable, quoted

FILE = "package.json"
MODULES = "node_modules"
JAVASCRIPT = (".js", ".mjs")
SCRIPTS = "scripts/"
MOST_BYTES = 256 * 1024
MOST_NAMED = 5
MOST_KEYS = 10
"""Of that name, in the search for a line."""
HINT = (
    "Nothing is installed for JavaScript: bundle them into the file that is run (npx esbuild main.js --bundle "
    "--platform=node --format=esm --outfile=main.mjs) and list them under devDependencies."
)


class Looked(NamedTuple):
    """`missing` is a problem for each package.json whose dependencies are not there; `odd` warns of those that cannot
    be read."""

    missing: tuple[Problem, ...] = ()
    odd: tuple[str, ...] = ()


NOTHING = Looked()


def look_at_dependencies(files: Mapping[str, bytes], run: Collection[str]) -> Looked:
    """`run` are the paths of the JavaScript that may be run. Of each of them the nearest package.json counts, as for
    Node.js. What it lists under `dependencies` has to be in a node_modules above that file."""
    missing: dict[str, Problem] = {}
    odd: dict[str, str] = {}
    modules = _modules(files)
    for path in sorted(run):
        place = next((f"{above}{FILE}" for above in folders_above(path) if f"{above}{FILE}" in files), None)
        if place is None or place in missing or place in odd:
            continue
        found = _dependencies(place, files[place])
        if isinstance(found, str):
            odd[place] = found
        elif lacking := [name for name in found if not _is_there(name, path, modules)]:
            missing[place] = _problem(place, files[place].decode(), lacking)
    return Looked(tuple(missing.values()), tuple(odd.values()))


def folders_above(path: str) -> Iterator[str]:
    """ "a/b/", "a/", "" of a/b/c.js."""
    while path:
        path = path.rpartition("/")[0]
        yield f"{path}/" if path else ""


def run_by_scripts(paths: Iterable[str]) -> frozenset[str]:
    """What may be run of a skill without an entrypoint: beside SKILL.md and below scripts/. Elsewhere is what scripts
    and agents work with, whole projects among it."""
    ours = (path for path in paths if path.endswith(JAVASCRIPT) and MODULES not in path.split("/"))
    return frozenset(path for path in ours if "/" not in path or path.startswith(SCRIPTS))


def _modules(files: Iterable[str]) -> frozenset[str]:
    """Every folder in a node_modules, of packages with a scope too."""
    return frozenset(above[:-1] for path in files if MODULES in path for above in folders_above(path))


def _is_there(name: str, path: str, modules: frozenset[str]) -> bool:
    return any(f"{above}{MODULES}/{name}" in modules for above in folders_above(path))


def _dependencies(path: str, content: bytes) -> list[str] | str:
    """Their names; a warning where the file is none."""
    if len(content) > MOST_BYTES:
        return f"{path} has {len(content)} bytes and was not looked at"
    try:
        read = json.loads(content.decode())
    except UnicodeDecodeError as error:
        return f"{path}:{content.count(10, 0, error.start) + 1}: it is not UTF-8 text"
    except RecursionError:
        return f"{path} is nested too deep"
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        return f"{path}{line}: it is not JSON ({printable(str(error).partition(':')[0], 80)})"
    if not isinstance(read, dict):
        return f"{path} is no object"
    found = read.get("dependencies", {})
    return [str(name) for name in found] if isinstance(found, dict) else f"{path}: 'dependencies' is no object"


def _problem(path: str, text: str, lacking: list[str]) -> Problem:
    named = ", ".join(quoted(name, 60) for name in lacking[:MOST_NAMED]) + (", …" if len(lacking) > MOST_NAMED else "")
    message = f"{path} has dependencies that are not in the bundle: {named}"
    return Problem(message, path=path, file=path, line=_line_of(text, lacking[0]))


def _line_of(text: str, name: str) -> int:
    """Of the first entry of that name behind a key `dependencies`, else of that key."""
    keys = [found.end() for found in islice(re.finditer(r'"dependencies"\s*:', text), MOST_KEYS)]
    if not keys:
        return 1
    entry = re.compile(rf'"{re.escape(name)}"\s*:')
    at = next((found.start() for key in keys if (found := entry.search(text, key))), keys[0])
    return text.count("\n", 0, at) + 1
