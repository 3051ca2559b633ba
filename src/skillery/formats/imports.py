"""Find the imports of a Python file in its syntax tree, without running the file.

Call `find_imports` in a worker process (`CompilePool`), never in the server: the parser holds the interpreter lock,
and a few kilobytes of source can need seconds and gigabytes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator

import msgspec

from skillery.formats.python_source import defined_names, parsed_source

MOST = 200
"""The maximum number of modules that are listed for one file."""
LONGEST = 100
"""The maximum number of characters of a module name. Modules with longer names are ignored."""
PARTS = 3
"""The number of parts of a dotted name that are kept if its first part is in NAMESPACES."""
NAMESPACES = frozenset(
    {
        "azure",
        "backports",
        "databricks",
        "google",
        "jaraco",
        "opentelemetry",
        "ruamel",
        "snowflake",
        "sphinxcontrib",
        "zope",
    }
)
"""First parts of dotted names that several distributions share."""
NEVER_FOREIGN = sys.stdlib_module_names | {"__main__", "skills", "runtime"}
"""First parts of names that no package provides: the standard library, and the modules that every run has."""

# Matches an import at the start of a statement: at the start of a line, or after a byte order mark, ';' or ':'. The
# match takes linear time.
_STATEMENT = re.compile(
    rb"(?:^|[;:\r\xbf])[ \t\f]*(?:from[\s\\]+([^\s\\.;#]+)|import[\s\\]+([^;#\r\n]+))", re.MULTILINE
)
_NEVER_FOREIGN = frozenset(name.encode() for name in NEVER_FOREIGN)
_ABSENCE = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_OF_THE_MACHINE = {"version_info", "platform"}
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Import(msgspec.Struct, frozen=True, array_like=True):
    """A module that a file imports, and the line of its first required import, or of its first optional import if all
    are optional.

    `optional` is true if the import is in a function, in an `if` on the interpreter, the platform or `__name__`, or in
    a `try` or `with` that handles an ImportError: the file can then be imported without the module.
    """

    module: str
    line: int
    optional: bool = False


def find_imports(source: bytes) -> tuple[Import, ...]:
    """Return at most MOST imported modules, each once, required modules first.

    Relative imports, imports under `if TYPE_CHECKING` and the modules of NEVER_FOREIGN are omitted. For a file that
    does not parse, the result is empty: other checks report the fault.
    """
    tree = parsed_source(source) if _may_need_packages(source) else None
    if tree is None:
        return ()
    imports: dict[str, Import] = {}
    for imported in _imports(tree):
        earlier = imports.get(imported.module)
        if earlier is None and len(imports) == MOST:
            continue
        if earlier is None or (earlier.optional and not imported.optional):
            imports[imported.module] = imported
    return tuple(sorted(imports.values(), key=lambda imported: (imported.optional, imported.line)))


def imports_of_all(sources: tuple[bytes, ...]) -> tuple[tuple[Import, ...], ...]:
    """Return the imports of each source."""
    return tuple(map(find_imports, sources))


def _may_need_packages(source: bytes) -> bool:
    """Return whether a line looks like an import of a module outside NEVER_FOREIGN.

    A match is only a reason to parse the file: the line may be part of a string.
    """
    names = (name for match in _STATEMENT.finditer(source) for name in (match[1] or match[2]).split(b","))
    return any(name.partition(b".")[0].partition(b" as ")[0].strip() not in _NEVER_FOREIGN for name in names)


class OwnModules:
    """The modules of a bundle, by the first part of each name under which its Python files can import each other."""

    def __init__(self, paths: Iterable[str]) -> None:
        files = [path for path in paths if path.endswith((".py", ".so", ".pyd"))]
        self._packages = {path.removesuffix("/__init__.py") for path in files if path.endswith("/__init__.py")}
        self._folders: dict[str, set[str]] = {}
        self._names: set[str] = set()
        for path in files:
            folder, _, file = path.rpartition("/")
            parent, _, folder_name = folder.rpartition("/")
            self._folders.setdefault(file.partition(".")[0], set()).add(folder)
            self._folders.setdefault(folder_name, set()).add(parent)
            self._names.update(folder.split("/"))
        self._names |= self._folders.keys()

    def have(self, name: str, importer: str, *, is_known: bool) -> bool:
        """Return whether the file at `importer` means a module of the bundle when it imports `name`.

        Every folder counts, because scripts can add any folder to `sys.path`. But if a known package provides the
        module too, a file inside a Python package of the bundle does not count: its name begins with that package.
        """
        if not is_known or name not in self._names:
            return name in self._names
        here = importer.rpartition("/")[0]
        return any(folder == here or folder not in self._packages for folder in self._folders.get(name, ()))


def _imports(tree: ast.Module) -> Iterator[Import]:
    """Yield the imports of all statements. Expressions contain no imports."""
    pending: list[tuple[ast.stmt, bool]] = [(inner, False) for inner in reversed(tree.body)]
    while pending:
        statement, optional = pending.pop()
        if isinstance(statement, ast.Import):
            yield from _named((alias.name for alias in statement.names), statement.lineno, optional)
        elif isinstance(statement, ast.ImportFrom):
            if statement.module and not statement.level:
                module = statement.module
                names = (f"{module}.{alias.name}" for alias in statement.names)
                yield from _named(names, statement.lineno, optional)
        elif not isinstance(statement, _SIMPLE):
            pending.extend(reversed(list(inner_statements(statement, optional))))


def _named(names: Iterable[str], line: int, optional: bool) -> Iterator[Import]:
    """Yield an import for each dotted name, shortened to the part that names a package on a registry."""
    for name in names:
        top_module, *submodules = name.split(".")
        if top_module in NEVER_FOREIGN or len(name) > LONGEST:
            continue
        yield Import(
            ".".join([top_module, *submodules][:PARTS]) if top_module in NAMESPACES else top_module, line, optional
        )


def inner_statements(statement: ast.stmt, optional: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the inner statements of a compound statement, each with a flag that is true if imports in it are
    optional.

    The body of `if TYPE_CHECKING` is omitted. `optional` is the flag of the compound statement.
    """
    if isinstance(statement, ast.If) and _is_for_type_checkers(statement.test):
        yield from ((inner, optional) for inner in statement.orelse)
        return
    everywhere = optional or isinstance(statement, _FUNCTIONS) or _is_conditional(statement)
    guarded = everywhere or handles_absence(statement)
    for branch in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield from ((inner, guarded) for inner in getattr(branch, "body", ()))
    yield from ((inner, guarded) for inner in getattr(statement, "orelse", ()))
    yield from ((inner, everywhere) for inner in getattr(statement, "finalbody", ()))


def handles_absence(statement: ast.stmt) -> bool:
    """Return whether a `try` or `with` handles an ImportError."""
    if isinstance(statement, ast.Try | ast.TryStar):
        return any(
            handler.type is None or bool(_ABSENCE & set(_names_in(handler.type))) for handler in statement.handlers
        )
    if isinstance(statement, ast.With):
        return any(bool(_ABSENCE & set(_names_in(item.context_expr))) for item in statement.items)
    return False


def _is_conditional(statement: ast.stmt) -> bool:
    """Return whether the statement is an `if` on the interpreter, the platform or `__name__`."""
    if not isinstance(statement, ast.If):
        return False
    names = set(_names_in(statement.test))
    return bool(names & _OF_THE_MACHINE) or "__name__" in names


def _is_for_type_checkers(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _names_in(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr


# -- Find relative imports of missing files, without running the file --------------------------------------------------
# Call `find_relative_imports` in a worker process (`CompilePool`), as `find_imports`.


_RELATIVE = re.compile(rb"\bfrom[\s\\]*+\.")


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
    return _RELATIVE.search(source) is not None


def find_relative_imports(source: bytes) -> tuple[RelativeImport, ...]:
    """Return at most MOST relative imports of a file, in the order of the lines.

    Imports in a `try` or `with` that handles an ImportError are omitted. For a file that does not parse, the result is
    empty.
    """
    tree = parsed_source(source)
    if tree is None:
        return ()
    other_statements = [
        statement for statement in tree.body if not (isinstance(statement, ast.ImportFrom) and statement.level)
    ]
    defined = defined_names(ast.Module(other_statements, []))
    imports = (imported for _, imported in zip(range(MOST), _relative_imports(tree, defined), strict=False))
    return tuple(sorted(imports, key=lambda imported: imported.line))


def relative_imports_of_all(sources: tuple[bytes, ...]) -> tuple[tuple[RelativeImport, ...], ...]:
    """Return the relative imports of each source."""
    return tuple(map(find_relative_imports, sources))


def missing_target(path: str, entrypoint: str, imported: RelativeImport, files: Collection[str]) -> str | None:
    """Return the path that the import `imported` in the file at `path` needs and `files` does not contain, or None.

    The folder of the entrypoint is the package of the skill, and the entrypoint is the module of that package. If the
    import leaves this package, the result is "outside the skill". For `from . import a`, no file is missing if the
    module of the package is another file: that file may define `a`.
    """
    folder = entrypoint.rpartition("/")[0].split("/") if "/" in entrypoint else []
    start = path.split("/")[:-1]
    start = start[: len(start) - (imported.level - 1)] if imported.level <= len(start) + 1 else []
    if len(path.split("/")) - imported.level < len(folder):
        return "outside the skill"
    if imported.module:
        return _absent("/".join([*start, *imported.module.split(".")]), files)
    is_package_of_others = path != entrypoint and (start == folder or "/".join([*start, "__init__.py"]) in files)
    absent = (_absent("/".join([*start, name]), files) for name in imported.names)
    return None if is_package_of_others else next((each for each in absent if each), None)


def _absent(base: str, files: Collection[str]) -> str | None:
    """Return the path of the module `base` if neither the module nor its package is in `files`, else None."""
    is_there = any(path == f"{base}.py" or path.startswith((f"{base}.", f"{base}/")) for path in files)
    return None if is_there else f"{base}.py"


def _relative_imports(tree: ast.Module, defined: set[str]) -> Iterator[RelativeImport]:
    pending: list[tuple[ast.stmt, bool]] = [(inner, False) for inner in tree.body]
    while pending:
        statement, is_late = pending.pop()
        if isinstance(statement, ast.ImportFrom):
            if statement.level and len(statement.module or "") <= LONGEST:
                yield _relative(statement, is_late, defined)
        elif not handles_absence(statement):
            pending.extend(inner_statements(statement, is_late))


def _relative(statement: ast.ImportFrom, is_late: bool, defined: set[str]) -> RelativeImport:
    module = statement.module or ""
    imported = (alias.name[:LONGEST] for alias in statement.names if alias.name != "*")
    names = () if module else tuple(name for name in imported if name not in defined)
    return RelativeImport(statement.level, module, names, statement.lineno, is_late)
