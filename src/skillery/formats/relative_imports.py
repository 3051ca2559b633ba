"""Find relative imports of missing files, without running the file.

Call `find_relative_imports` in a worker process (`CompilePool`), as `find_imports`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

import msgspec

from skillery.formats.imports import LONGEST, MOST, handles_absence, inner_statements
from skillery.formats.python_source import defined_names, parsed_source

_STATEMENT = re.compile(rb"\bfrom[\s\\]*+\.")


class RelativeImport(msgspec.Struct, frozen=True, array_like=True):
    """A relative import: `from ..a.b import c` has level 2 and the module `a.b`.

    For `from . import a, b`, `module` is empty, and `names` contains the imported names that the file itself does not
    define. For an import with a module, `names` is empty. `is_late` is true if the import is in a function, or in an
    `if` on the interpreter, the platform or `__name__`: the file can then be imported without it.
    """

    level: int
    module: str
    names: tuple[str, ...]
    line: int
    is_late: bool = False

    def __str__(self) -> str:
        return f"from {'.' * self.level}{self.module} import {', '.join(self.names) or '…'}"


def may_import_relatively(source: bytes) -> bool:
    """Return whether a source must be parsed to find its relative imports. Takes linear time."""
    return _STATEMENT.search(source) is not None


def find_relative_imports(source: bytes) -> tuple[RelativeImport, ...]:
    """Return at most MOST relative imports of a file, in the order of the lines.

    Imports in a `try` or `with` that handles an ImportError are omitted. For a file that does not parse, the result is
    empty.
    """
    tree = parsed_source(source)
    if tree is None:
        return ()
    others = [one for one in tree.body if not (isinstance(one, ast.ImportFrom) and one.level)]
    own = defined_names(ast.Module(others, []))
    found = (one for _, one in zip(range(MOST), _relative_imports(tree, own), strict=False))
    return tuple(sorted(found, key=lambda one: one.line))


def relative_imports_of_all(sources: tuple[bytes, ...]) -> tuple[tuple[RelativeImport, ...], ...]:
    """Return the relative imports of each source."""
    return tuple(map(find_relative_imports, sources))


def missing_target(path: str, entrypoint: str, one: RelativeImport, files: Collection[str]) -> str | None:
    """Return the path of the file that the import `one` in the file at `path` needs and `files` does not contain.

    Return None if no file is missing.

    The folder of the entrypoint is the package of the skill, and the entrypoint is the module of that package. If the
    import leaves this package, the result is "outside the skill". For `from . import a`, no file is missing if the
    module of the package is another file: that file may define `a`.
    """
    folder = entrypoint.rpartition("/")[0].split("/") if "/" in entrypoint else []
    start = path.split("/")[:-1]
    start = start[: len(start) - (one.level - 1)] if one.level <= len(start) + 1 else []
    if len(path.split("/")) - one.level < len(folder):
        return "outside the skill"
    if one.module:
        return _absent("/".join([*start, *one.module.split(".")]), files)
    is_package_of_others = path != entrypoint and (start == folder or "/".join([*start, "__init__.py"]) in files)
    absent = (_absent("/".join([*start, name]), files) for name in one.names)
    return None if is_package_of_others else next((each for each in absent if each), None)


def _absent(base: str, files: Collection[str]) -> str | None:
    is_there = any(path == f"{base}.py" or path.startswith((f"{base}.", f"{base}/")) for path in files)
    return None if is_there else f"{base}.py"


def _relative_imports(tree: ast.Module, own: set[str]) -> Iterator[RelativeImport]:
    waiting: list[tuple[ast.stmt, bool]] = [(one, False) for one in tree.body]
    while waiting:
        statement, late = waiting.pop()
        if isinstance(statement, ast.ImportFrom):
            if statement.level and len(statement.module or "") <= LONGEST:
                yield _relative(statement, late, own)
        elif not handles_absence(statement):
            waiting.extend(inner_statements(statement, late))


def _relative(statement: ast.ImportFrom, late: bool, own: set[str]) -> RelativeImport:
    module = statement.module or ""
    imported = (alias.name[:LONGEST] for alias in statement.names if alias.name != "*")
    names = () if module else tuple(name for name in imported if name not in own)
    return RelativeImport(statement.level, module, names, statement.lineno, late)
