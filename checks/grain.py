"""The size of modules: few small ones, no large ones, and none that serves only its neighbour."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

LARGE = 350
SMALL = 40
OWN_SUBJECT = 120
"""Lines from which a module with one importer may stand alone."""
EXEMPT = (
    *("__init__.py", "/in_sandbox/", "/inside/", "/runtime/", "/tables/", "/templates/"),
    "/client/generated.py",
)
"""Parts of paths. Modules that run inside a sandbox, tables and generated modules have their own reasons."""


def sizes(folder: Path) -> dict[Path, int]:
    """Return the number of lines of each module below a folder."""
    return {path: path.read_bytes().count(b"\n") for path in sorted(folder.rglob("*.py"))}


def is_exempt(path: Path) -> bool:
    return any(part in f"/{path.as_posix()}" for part in EXEMPT)


def lonely(lines: Mapping[Path, int], root: Path) -> list[Path]:
    """Return the small modules whose only importer is in the same folder and has the room to take them."""
    importers = _importers(lines, root)
    return [
        path
        for path, size in lines.items()
        if size < OWN_SUBJECT
        and not is_exempt(path)
        and len(importers[path]) == 1
        and (importer := next(iter(importers[path]))).parent == path.parent
        and lines[importer] + size <= LARGE
    ]


def _importers(lines: Mapping[Path, int], root: Path) -> Mapping[Path, set[Path]]:
    modules = {".".join(path.relative_to(root).with_suffix("").parts): path for path in lines}
    importers: defaultdict[Path, set[Path]] = defaultdict(set)
    for path in lines:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            for name in _imported(node):
                if name in modules and modules[name] != path:
                    importers[modules[name]].add(path)
    return importers


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []
