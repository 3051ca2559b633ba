"""The package.json files of a bundle, and the check of a server without npm packages: the bundle must contain them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from skillery.formats.wording import Problem, printable, quoted

FILE = "package.json"
LOCK_FILE = "package-lock.json"
OTHER_LOCKS = ("yarn.lock", "pnpm-lock.yaml")
MODULES = "node_modules"
JAVASCRIPT = (".js", ".mjs")
SCRIPTS = "scripts/"
MOST_BYTES = 256 * 1024
MOST_LOCK_BYTES = 4 * 1024 * 1024
MOST_NAMED = 5
MOST_KEYS = 10
"""The maximum number of keys named `dependencies` that are visited in the search for a line number."""
HINT = (
    "This server installs no npm packages: bundle them into the file that is run (npx esbuild main.js --bundle "
    "--platform=node --format=esm --outfile=main.mjs) and list them under devDependencies. Or the admin sets "
    "packages.npm_url."
)


class DependencyCheck(NamedTuple):
    """The result of a check of package.json files.

    `missing` has a problem for each package.json whose dependencies are not in the bundle. `odd` has a warning for each
    package.json that cannot be read.
    """

    missing: tuple[Problem, ...] = ()
    odd: tuple[str, ...] = ()


def check_dependencies(files: Mapping[str, bytes], run: Collection[str]) -> DependencyCheck:
    """Return the missing JavaScript dependencies of the bundle `files`. `run` has the paths of the files that may be
    run.

    As in Node.js, the nearest package.json above a path applies. Each package in its `dependencies` must be in a folder
    node_modules next to the path or above it.
    """
    problems: dict[str, Problem] = {}
    warnings: dict[str, str] = {}
    modules = _modules(files)
    for path in sorted(run):
        nearest = next((f"{folder}{FILE}" for folder in folders_above(path) if f"{folder}{FILE}" in files), None)
        if nearest is None or nearest in problems or nearest in warnings:
            continue
        dependencies = _dependencies(nearest, files[nearest])
        if isinstance(dependencies, str):
            warnings[nearest] = dependencies
        elif absent := [name for name in dependencies if not _is_there(name, path, modules)]:
            problems[nearest] = _problem(nearest, files[nearest].decode(), absent)
    return DependencyCheck(tuple(problems.values()), tuple(warnings.values()))


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders that contain a path, nearest first: "a/b/", "a/" and "" for a/b/c.js."""
    while path:
        path = path.rpartition("/")[0]
        yield f"{path}/" if path else ""


def script_paths(paths: Iterable[str]) -> frozenset[str]:
    """Return the JavaScript files that a skill without an entrypoint may run: next to SKILL.md and below scripts/.

    Other folders contain material for scripts and agents, for example whole projects.
    """
    candidates = (path for path in paths if path.endswith(JAVASCRIPT) and MODULES not in path.split("/"))
    return frozenset(path for path in candidates if "/" not in path or path.startswith(SCRIPTS))


def _modules(files: Iterable[str]) -> frozenset[str]:
    """Return all folders of files in a node_modules, for example `node_modules/@scope/name`."""
    return frozenset(folder[:-1] for path in files if MODULES in path for folder in folders_above(path))


def _is_there(name: str, path: str, modules: frozenset[str]) -> bool:
    """Return whether the module `name` is in a node_modules folder that code at `path` can import from."""
    return any(f"{folder}{MODULES}/{name}" in modules for folder in folders_above(path))


def dependency_ranges(content: bytes) -> dict[str, str]:
    """Return the `dependencies` of a package.json by name, or {} if it is not a valid one."""
    document = _document(FILE, content)
    dependencies = document.get("dependencies") if isinstance(document, dict) else None
    if not isinstance(dependencies, dict):
        return {}
    return {name: versions for name, versions in dependencies.items() if isinstance(versions, str)}


def own_name(content: bytes) -> tuple[str, ...]:
    """Return the name in a package.json, or () if there is none."""
    document = _document(FILE, content)
    name = document.get("name") if isinstance(document, dict) else None
    return (name,) if isinstance(name, str) else ()


def license_of(content: bytes) -> list[str]:
    """Return the licences in a package.json, also in its old forms, or [] if it states none."""
    document = _document(FILE, content)
    stated = (document.get("license") or document.get("licenses")) if isinstance(document, dict) else None
    entries = stated if isinstance(stated, list) else [stated]
    names = (entry.get("type") if isinstance(entry, dict) else entry for entry in entries[:MOST_NAMED])
    return [name for name in names if isinstance(name, str)]


def locked_versions(content: bytes) -> dict[str, str]:
    """Return the versions in a package-lock.json: of packages of a registry that are locked in one version and are not
    for development. The names and versions are not checked. Return {} for an invalid file.
    """
    document = _document(LOCK_FILE, content, MOST_LOCK_BYTES)
    versions = dict[str, set[str]]()
    for name, entry in _locked(document) if isinstance(document, dict) else ():
        if not entry.get("dev") and entry.get("name", name) == name:
            from_registry = str(entry.get("resolved", "https:")).startswith(("https:", "http:"))
            versions.setdefault(name, set()).add(str(entry.get("version", "")) if from_registry else "")
    return {name: next(iter(different)) for name, different in versions.items() if len(different) == 1}


def _locked(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the packages of a package-lock.json by name. In lockfileVersion 1, packages contain packages."""
    packages = document.get("packages")
    if isinstance(packages, dict):
        for path, entry in packages.items():
            name = path.rpartition(f"{MODULES}/")[2]
            if name != path and isinstance(entry, dict):
                yield name, entry
        return
    waiting = [document]
    while waiting:
        dependencies = waiting.pop().get("dependencies")
        entries = dependencies.items() if isinstance(dependencies, dict) else ()
        for name, entry in entries:
            if isinstance(entry, dict):
                waiting.append(entry)
                yield name, entry


def unread_locks(paths: Collection[str]) -> Iterator[str]:
    """Yield the locks of other programs that are next to a package.json without a package-lock.json."""
    folders = sorted(path.removesuffix(FILE) for path in paths if path.rpartition("/")[2] == FILE)
    for folder in folders:
        if MODULES not in folder.split("/") and f"{folder}{LOCK_FILE}" not in paths:
            yield from (f"{folder}{name}" for name in OTHER_LOCKS if f"{folder}{name}" in paths)


def _document(path: str, content: bytes, most: int = MOST_BYTES) -> dict[str, Any] | str:
    """Return the object in a package.json, or a warning if the file is not valid."""
    if len(content) > most:
        return f"{path} has {len(content)} bytes and was not checked"
    try:
        document = json.loads(content.decode())
    except UnicodeDecodeError as error:
        return f"{path}:{content.count(10, 0, error.start) + 1}: it is not UTF-8 text"
    except RecursionError:
        return f"{path} is nested too deep"
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        return f"{path}{line}: it is not JSON ({printable(str(error).partition(':')[0], 80)})"
    return document if isinstance(document, dict) else f"{path} is not an object"


def _dependencies(path: str, content: bytes) -> list[str] | str:
    """Return the names of the dependencies, or a warning if the file is not a valid package.json."""
    document = _document(path, content)
    if isinstance(document, str):
        return document
    dependencies = document.get("dependencies", {})
    return (
        [str(name) for name in dependencies]
        if isinstance(dependencies, dict)
        else f"{path}: 'dependencies' is not an object"
    )


def _problem(path: str, text: str, absent: list[str]) -> Problem:
    names = ", ".join(quoted(name, 60) for name in absent[:MOST_NAMED]) + (", …" if len(absent) > MOST_NAMED else "")
    message = f"{path} has dependencies that are not in the bundle: {names}"
    return Problem(message, path=path, file=path, line=_line_of(text, absent[0]))


def _line_of(text: str, name: str) -> int:
    """Return the line of the first entry `name` after a key `dependencies`, else the line of that key, else 1."""
    keys = [match.end() for match in islice(re.finditer(r'"dependencies"\s*:', text), MOST_KEYS)]
    if not keys:
        return 1
    entry = re.compile(rf'"{re.escape(name)}"\s*:')
    position = next((occurrence.start() for key in keys if (occurrence := entry.search(text, key))), keys[0])
    return text.count("\n", 0, position) + 1
