"""The package.json files of a bundle. The server does not install JavaScript dependencies: the bundle must contain
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from skillery.formats.wording import Problem, printable, quoted

FILE = "package.json"
MODULES = "node_modules"
JAVASCRIPT = (".js", ".mjs")
SCRIPTS = "scripts/"
MOST_BYTES = 256 * 1024
MOST_NAMED = 5
MOST_KEYS = 10
"""The maximum number of keys named `dependencies` that are visited in the search for a line number."""
HINT = (
    "Nothing is installed for JavaScript: bundle them into the file that is run (npx esbuild main.js --bundle "
    "--platform=node --format=esm --outfile=main.mjs) and list them under devDependencies."
)


class DependencyCheck(NamedTuple):
    """The result of a check of package.json files.

    `missing` has a problem for each package.json with dependencies that are not in the bundle. `odd` has a warning for
    each package.json that cannot be read.
    """

    missing: tuple[Problem, ...] = ()
    odd: tuple[str, ...] = ()


def check_dependencies(files: Mapping[str, bytes], run: Collection[str]) -> DependencyCheck:
    """Return the missing JavaScript dependencies. `run` are the paths of the files that may be run.

    As in Node.js, the nearest package.json above a path applies. Each package in its `dependencies` must be in a folder
    node_modules next to the path or above it.
    """
    missing: dict[str, Problem] = {}
    odd: dict[str, str] = {}
    modules = _modules(files)
    for path in sorted(run):
        place = next((f"{above}{FILE}" for above in folders_above(path) if f"{above}{FILE}" in files), None)
        if place is None or place in missing or place in odd:
            continue
        dependencies = _dependencies(place, files[place])
        if isinstance(dependencies, str):
            odd[place] = dependencies
        elif absent := [name for name in dependencies if not _is_there(name, path, modules)]:
            missing[place] = _problem(place, files[place].decode(), absent)
    return DependencyCheck(tuple(missing.values()), tuple(odd.values()))


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, nearest first: "a/b/", "a/" and "" for a/b/c.js."""
    while path:
        path = path.rpartition("/")[0]
        yield f"{path}/" if path else ""


def script_paths(paths: Iterable[str]) -> frozenset[str]:
    """Return the JavaScript files that a skill without an entrypoint may run: next to SKILL.md and below scripts/.

    Other folders contain material for scripts and agents, for example whole projects.
    """
    ours = (path for path in paths if path.endswith(JAVASCRIPT) and MODULES not in path.split("/"))
    return frozenset(path for path in ours if "/" not in path or path.startswith(SCRIPTS))


def _modules(files: Iterable[str]) -> frozenset[str]:
    """Return all folders above files in a node_modules, for example `node_modules/@scope/name`."""
    return frozenset(above[:-1] for path in files if MODULES in path for above in folders_above(path))


def _is_there(name: str, path: str, modules: frozenset[str]) -> bool:
    return any(f"{above}{MODULES}/{name}" in modules for above in folders_above(path))


def _dependencies(path: str, content: bytes) -> list[str] | str:
    """Return the names of the dependencies, or a warning if the file is not a valid package.json."""
    if len(content) > MOST_BYTES:
        return f"{path} has {len(content)} bytes and was not checked"
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
        return f"{path} is not an object"
    dependencies = read.get("dependencies", {})
    return (
        [str(name) for name in dependencies]
        if isinstance(dependencies, dict)
        else f"{path}: 'dependencies' is not an object"
    )


def _problem(path: str, text: str, absent: list[str]) -> Problem:
    named = ", ".join(quoted(name, 60) for name in absent[:MOST_NAMED]) + (", …" if len(absent) > MOST_NAMED else "")
    message = f"{path} has dependencies that are not in the bundle: {named}"
    return Problem(message, path=path, file=path, line=_line_of(text, absent[0]))


def _line_of(text: str, name: str) -> int:
    """Return the line of the first entry `name` after a key `dependencies`, else the line of that key, else 1."""
    keys = [match.end() for match in islice(re.finditer(r'"dependencies"\s*:', text), MOST_KEYS)]
    if not keys:
        return 1
    entry = re.compile(rf'"{re.escape(name)}"\s*:')
    at = next((occurrence.start() for key in keys if (occurrence := entry.search(text, key))), keys[0])
    return text.count("\n", 0, at) + 1
