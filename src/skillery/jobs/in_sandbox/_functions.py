"""The functions that a skill with permissions offers to callers, found in its files without running them.

Callers can call functions of the skill's own files: functions that the entrypoint defines, and functions that the
entrypoint imports from a module in its folder. Their names must not begin with `_`. With `__all__`, exactly the
functions in this list are callable.

Functions that are imported from elsewhere are not callable: with `subprocess.run`, for example, a caller could use the
skill's permissions for any purpose. A module may bind a name more than once, for example as a fallback for a failed
import. Such a name is callable only if each binding is a callable function. The binding is checked again after the
module has run, before the call.
"""

# ruff: noqa: PTH113, PTH123 - importing pathlib costs every run milliseconds
from __future__ import annotations

import ast
import importlib
import os
import sys
from types import CodeType

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cellblock.runtime import _run

    Function = ast.FunctionDef | ast.AsyncFunctionDef
else:
    from . import _run

MOST_WRAPPED = 100
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Names:
    """The bindings of a module: its functions, names that may be something else, and its literal `__all__` or None."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.listed: list[str] | None = None
        self.withdrawn: set[str] = set()
        """Names that are also bound to something else."""
        self.unsure: set[str] = set()
        """Names that a `from elsewhere import *` may have bound."""
        self.starred = False
        self.done = False
        self._aliases: list[tuple[str, str]] = []

    def bind(self, name: str, function: Function, *, always: bool) -> None:
        """Record that a name is bound to a function.

        `always` says that the statement runs unconditionally, so that it overrides an earlier star import.
        """
        self.functions[name] = function
        if always:
            self.unsure.discard(name)
        elif self.starred:
            self.unsure.add(name)

    def alias(self, name: str, other: str, *, always: bool) -> None:
        if other not in self.functions or other in self.unsure:
            self.withdrawn.add(name)
            return
        self.bind(name, self.functions[other], always=always)
        self._aliases.append((name, other))

    def star(self) -> None:
        """Record a star import from an unknown module, which may have replaced every earlier binding."""
        self.starred = True
        self.unsure |= self.functions.keys()

    def good(self) -> dict[str, Function]:
        """Return the functions whose names have no other binding."""
        bad = self.withdrawn | self.unsure
        while more := {name for name, other in self._aliases if other in bad} - bad:
            bad |= more
        return {name: function for name, function in self.functions.items() if name not in bad}

    def public(self) -> dict[str, Function]:
        good = self.good()
        if self.listed is not None:
            return {name: good[name] for name in self.listed if name in good}
        return {name: function for name, function in good.items() if not name.startswith("_")}


class Source:
    """The files in the entrypoint folder of one skill. They are parsed and never run."""

    def __init__(self, entrypoint: str) -> None:
        self._entrypoint = entrypoint
        self._folder = above(entrypoint)
        self._modules: dict[str, Names] = {}

    def offered(self) -> dict[str, Function]:
        """Return every callable function by name. Raise ImportError if a file cannot be read."""
        return self._names(self._entrypoint).public()

    def _names(self, path: str) -> Names:
        """Return the bindings of a file. Each file is read once. In a circular import, the bindings are not complete
        (`done`).
        """
        if path in self._modules:
            return self._modules[path]
        names = self._modules[path] = Names()
        module = parsed(path)
        for statement, always in top_level(module.body):
            names.withdrawn.update(rebound(statement))
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                names.bind(statement.name, statement, always=always)
            elif isinstance(statement, ast.ImportFrom):
                self._take_over(names, statement, self._neighbour(statement, above(path)), always=always)
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                assign(names, statement, always=always)
        for node in ast.walk(module):
            if isinstance(node, ast.Global):
                names.withdrawn.update(node.names)
        names.done = True
        return names

    def _take_over(self, names: Names, statement: ast.ImportFrom, path: str | None, *, always: bool) -> None:
        """Record the names of `from x import y`. Only modules in the entrypoint folder can provide callable
        functions.
        """
        source = self._names(path) if path is not None else None
        if source is None or not source.done:
            source = Names()
            source.starred = True
        good, public = source.good(), source.public()
        for alias in statement.names:
            name = alias.asname or alias.name
            if alias.name == "*":
                if source.starred:
                    names.star()
                names.withdrawn |= source.withdrawn | source.unsure
                for shared, function in public.items():
                    names.bind(shared, function, always=always)
            elif alias.name in good:
                names.bind(name, good[alias.name], always=always)
            else:
                names.withdrawn.add(name)

    def _neighbour(self, statement: ast.ImportFrom, folder: str) -> str | None:
        parts = statement.module.split(".") if statement.module else []
        if statement.level == 0:
            folder = self._folder
            if parts[0] in sys.stdlib_module_names:  # the standard library comes first on sys.path
                return None
        for _ in range(statement.level - 1):
            folder = above(folder)
        if not f"{folder}/".startswith(f"{self._folder}/"):
            return None
        base = "/".join((folder, *parts))
        files = (f"{base}.py", f"{base}/__init__.py") if parts else (f"{base}/__init__.py",)
        return next((path for path in files if os.path.isfile(path)), None)


def above(path: str) -> str:
    return path.rpartition("/")[0]


def parsed(path: str) -> ast.Module:
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), path)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OSError) as error:
        raise ImportError(f"{path} cannot be read: {error}", path=path) from None


def top_level(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements that run at the import, also inside `if`, `try`, `with` and `match`.

    The second member of a pair says whether the statement always runs.
    """
    left = [(statement, True) for statement in reversed(body)]  # no recursion, because a long chain of `elif` is deep
    while left:
        statement, always = left.pop()
        yield statement, always
        if not isinstance(statement, SCOPES):
            parts = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
            blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
            for block in (blocks[2], blocks[1], *(part.body for part in reversed(parts)), blocks[0]):
                left += [(inner, False) for inner in reversed(block)]


def rebound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement may bind to something other than a function, or unbind.

    Nested statements are left out, as are names that `assign` and `_take_over` handle.
    """
    if isinstance(statement, ast.ClassDef):
        yield statement.name
    if isinstance(statement, ast.Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    left: list[ast.AST] = [statement]
    own = set(map(id, simple_targets(statement)))
    while left:
        node = left.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in own:
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        left += [child for child in within(node) if not isinstance(child, ast.stmt)]


def within(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node that can bind a name of the enclosing scope."""
    if isinstance(node, ast.comprehension):
        return [node.iter, *node.ifs]
    if isinstance(node, ast.Lambda):
        return [*node.args.defaults, *filter(None, node.args.kw_defaults)]
    if isinstance(node, ast.AnnAssign) and node.value is None:
        return []
    return list(ast.iter_child_nodes(node))


def simple_targets(statement: ast.stmt) -> list[ast.Name]:
    """Return the target names of `a = b = other` if `other` is a name too; otherwise []."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.Name):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [target for target in targets if isinstance(target, ast.Name)]


def assign(names: Names, statement: ast.Assign | ast.AnnAssign, *, always: bool) -> None:
    """Record `__all__ = [...]`, and `main = other` as another name of `other`."""
    value = statement.value
    if isinstance(value, ast.Name):
        for target in simple_targets(statement):
            names.alias(target.id, value.id, always=always)
    to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    listed = any(isinstance(target, ast.Name) and target.id == "__all__" for target in to)
    if listed and isinstance(value, ast.List | ast.Tuple):
        names.listed = [str(item.value) for item in value.elts if isinstance(item, ast.Constant)]


JOB: dict[str, Any] = {}
"""The job of the guest, if its run is a call of another run."""


def call_offered(params: dict[str, Any]) -> Any:
    """Call the function of the job with the positional and named arguments of another run. Raise AttributeError if that
    run may not call it.
    """
    check_offered(JOB)
    skill = called_skill(JOB)
    export = _run.exported(importlib.import_module(skill["module"]), JOB["function"])
    check_own(JOB, export)
    return export(*params["args"], **params["kwargs"])


def check_offered(job: dict[str, Any]) -> None:
    """Raise AttributeError if the function is not callable from outside.

    The caller is untrusted and may not have used the stub.
    """
    skill = called_skill(job)
    offered = offered_by(skill)
    if job["function"] not in offered:
        raise not_offered(skill, job["function"], offered)


def check_own(job: dict[str, Any], export: Any) -> None:
    """Raise AttributeError if the function is not code of the skill's own files. Called after the module has run.

    A decorator with `__wrapped__` may wrap such code.
    """
    skill = called_skill(job)
    if not code_file(export).startswith(f"{skill['folder']}/"):
        raise not_offered(skill, job["function"], offered_by(skill))


def called_skill(job: dict[str, Any]) -> dict[str, Any]:
    [skill] = [skill for skill in job["skills"] if skill["name"] == job["skill"]]
    return dict(skill)


def offered_by(skill: dict[str, Any]) -> dict[str, Function]:
    return Source(f"{skill['folder']}/{skill['entrypoint']}").offered()


def not_offered(skill: dict[str, Any], name: str, offered: dict[str, Function]) -> AttributeError:
    others = {other: function for other, function in offered.items() if other != name}
    return AttributeError(f"{skill['name']} offers no function {name!r}; it has: {names_of(others)}")


def code_file(export: Any) -> str:
    """Return the file with the code of a function; "" if it is not Python code, or wrapped too often."""
    from functools import partial

    for _ in range(MOST_WRAPPED):
        if isinstance(export, partial):
            export = export.func
        elif "__wrapped__" in getattr(export, "__dict__", ()) or isinstance(export, staticmethod):
            export = export.__wrapped__
        else:
            break
    else:
        return ""
    code = getattr(export, "__code__", None) or getattr(type(export).__call__, "__code__", None)
    return str(code.co_filename) if isinstance(code, CodeType) else ""


def names_of(offered: dict[str, Function]) -> str:
    return ", ".join(sorted(offered)) or "none"
