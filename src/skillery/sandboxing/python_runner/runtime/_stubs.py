"""Stubs: skills with permissions that the run does not have.

Only functions of such a skill are available. Each is a proxy that asks the server, which runs the function in a sandbox
with the skill's permissions. No code of the skill is imported here.

Callable are functions of the skill's own files: functions that the entrypoint defines, and functions that it imports
from
a module in its folder. Their names must not begin with `_`. With `__all__`, exactly the functions in this list are
callable.

Functions that are imported from elsewhere are not callable: with `subprocess.run`, for example, a caller could use the
skill's permissions for any purpose. A module may bind a name more than once, for example as a fallback for a failed
import. Such a name is callable only if each binding is a callable function. The binding is checked again after the
module
has run, before the call.
"""

# ruff: noqa: PTH113, PTH123 - importing pathlib costs every run milliseconds
from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from . import _host, _run

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Function = ast.FunctionDef | ast.AsyncFunctionDef

MOST_WRAPPED = 100
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


# -- what a skill offers -------------------------------------------------------------------------------------------


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
                self._take_over(names, statement, self._beside(statement, above(path)), always=always)
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

    def _beside(self, statement: ast.ImportFrom, folder: str) -> str | None:
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
    """Record `__all__ = [...]`, and `main = other` if `other` is a function."""
    value = statement.value
    if isinstance(value, ast.Name):
        for target in simple_targets(statement):
            names.alias(target.id, value.id, always=always)
    to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    listed = any(isinstance(target, ast.Name) and target.id == "__all__" for target in to)
    if listed and isinstance(value, ast.List | ast.Tuple):
        names.listed = [str(item.value) for item in value.elts if isinstance(item, ast.Constant)]


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


# -- the module that others import ---------------------------------------------------------------------------------


class Stub:
    """One stubbed skill in this process. `packages` are the import names of parent packages of mounted skills."""

    def __init__(self, module: str, skill: str, path: str, packages: set[str]) -> None:
        self.module = module
        self.skill = skill
        self.packages = packages
        self._path = path
        self._offered: dict[str, Function] | None = None

    def offered(self) -> dict[str, Function]:
        """Return the callable functions. They are read when they are first needed."""
        if self._offered is None:
            self._offered = Source(self._path).offered()
        return self._offered

    def explained(self) -> str:
        return (
            f"{self.module} declares network or secrets and runs in its own sandbox: only its functions can be called "
            f"from here; it has: {names_of(self.offered())}"
        )


class StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        stub = getattr(self.__spec__, "loader_state", None)
        if not isinstance(stub, Stub) or (name.startswith("__") and name != "__all__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        below = f"{self.__name__}.{name}"
        if below in stub.packages:
            return importlib.import_module(below)
        offered = stub.offered()
        if name == "__all__":
            return sorted(offered)
        if name not in offered:
            raise AttributeError(stub.explained(), name=name, obj=self)
        self.__dict__[name] = made = proxy(stub, name, offered[name])
        return made

    def __dir__(self) -> list[str]:
        stub = getattr(self.__spec__, "loader_state", None)
        return sorted({*self.__dict__, *(stub.offered() if isinstance(stub, Stub) else ())})


class StubLoader:
    def create_module(self, spec: ModuleSpec) -> StubModule:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing, because no code of the skill runs here."""


def spec_of(module: str, skill: str, path: str, packages: set[str]) -> ModuleSpec:
    stub = Stub(module, skill, path, packages)
    # typeshed requires a subclass of Loader, which would cost another import.
    return ModuleSpec(module, StubLoader(), loader_state=stub, is_package=True)  # type: ignore[arg-type]


def proxy(stub: Stub, name: str, function: Function) -> Callable[..., Any]:
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(stub.skill, name, parameters, args, kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        import asyncio  # imported already, because the code awaits

        return await asyncio.to_thread(called, *args, **kwargs)

    made = awaited if isinstance(function, ast.AsyncFunctionDef) else called
    made.__name__ = made.__qualname__ = name
    made.__module__ = stub.module
    made.__doc__ = ast.get_docstring(function)
    return made


# -- a call --------------------------------------------------------------------------------------------------------


def call(skill: str, function: str, parameters: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function of a stubbed skill through the server, and return its result.

    Raise TypeError before the call if an argument is not JSON. If the function raises a built-in exception, raise the
    same
    exception; for any other failure, raise SkillError.
    """
    where = f"of {function}() in {skill}"
    names = [*parameters, *range(len(parameters) + 1, len(args) + 1)]
    positional = [encoded(value, f"the argument {name} {where}") for value, name in zip(args, names, strict=False)]
    named = [f"{json.dumps(name)}:{encoded(value, f'the argument {name} {where}')}" for name, value in kwargs.items()]
    body = f'{{"args":[{",".join(positional)}],"kwargs":{{{",".join(named)}}}}}'.encode()
    try:
        result = _host.ask({"op": "call", "skill": skill, "function": function}, body)[1]
    except _host.SkillError as error:
        failure = error
    else:
        return json.loads(result)
    raise as_raised(failure, f"{function}() in {skill} failed")


def encoded(value: Any, what: str) -> str:
    try:
        return _run.encode(value, sys.maxsize, what).decode()
    except _run.InvalidOutput as problem:
        message = str(problem)
    raise TypeError(message)


def as_raised(failure: _host.SkillError, what: str) -> Exception:
    """Return the built-in exception that the function raised, or `failure` itself. `what` names the function."""
    import builtins

    kind = vars(builtins).get(failure.type)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(f"{what}: {failure.message}")
        except TypeError:  # exceptions with other arguments: UnicodeDecodeError, ExceptionGroup
            pass
    return _host.SkillError(failure.type, f"{what} with {failure.type}: {failure.message}")
