"""Skills with permissions of their own, as code without them meets them: only their functions are there, each as a
proxy that asks the host, which runs the function in a sandbox of the skill's own. Nothing of such a skill is imported
here.

What can be called is what the skill's own files define in the open: a function that its entrypoint defines, or takes
from a module beside it, and whose name begins with no `_`; with `__all__`, just what that lists. What the skill imports
from elsewhere cannot: calling its `subprocess.run` would be to use its permissions for whatever one likes.
"""

# ruff: noqa: PTH113, PTH123 - importing pathlib would cost every run milliseconds
from __future__ import annotations

import ast
import importlib
import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import _host, _run

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Function = ast.FunctionDef | ast.AsyncFunctionDef

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


# -- what a skill offers -------------------------------------------------------------------------------------------


class Names:
    """What a module defines: its functions, and its `__all__` where that is written out."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.listed: list[str] | None = None

    def public(self) -> dict[str, Function]:
        if self.listed is not None:
            return {name: self.functions[name] for name in self.listed if name in self.functions}
        return {name: function for name, function in self.functions.items() if not name.startswith("_")}


class Source:
    """The files of one skill's entrypoint folder, read and never run."""

    def __init__(self, entrypoint: str) -> None:
        self._entrypoint = entrypoint
        self._folder = above(entrypoint)
        self._modules: dict[str, Names] = {}

    def offered(self) -> dict[str, Function]:
        """By name, every function that others may call. Raises ImportError where a file cannot be read."""
        return self._names(self._entrypoint).public()

    def _names(self, path: str) -> Names:
        """Each file is read once: of modules that import each other one sees what the other has so far."""
        if path in self._modules:
            return self._modules[path]
        names = self._modules[path] = Names()
        for statement in top_level(parsed(path).body):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                names.functions[statement.name] = statement
            elif isinstance(statement, ast.Import):
                forget(names.functions, statement)
            elif isinstance(statement, ast.ImportFrom):
                forget(names.functions, statement)
                names.functions |= self._taken_over(statement, above(path))
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                assign(names, statement)
        return names

    def _taken_over(self, statement: ast.ImportFrom, folder: str) -> dict[str, Function]:
        """The functions that `from x import y` takes from a module beside the entrypoint."""
        path = self._beside(statement, folder)
        if path is None:
            return {}
        names = self._names(path)
        if statement.names[0].name == "*":
            return names.public()
        aliases = {alias.asname or alias.name: names.functions.get(alias.name) for alias in statement.names}
        return {name: function for name, function in aliases.items() if function}

    def _beside(self, statement: ast.ImportFrom, folder: str) -> str | None:
        parts = statement.module.split(".") if statement.module else []
        if statement.level == 0:
            folder = self._folder
            if parts[0] in sys.stdlib_module_names:  # these come first on sys.path
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


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, also within `if`, `try` and `with`."""
    left = body[::-1]  # not by recursion: a long chain of `elif` is as deep
    while left:
        statement = left.pop()
        yield statement
        if not isinstance(statement, SCOPES):
            handlers = [handler.body for handler in getattr(statement, "handlers", [])]
            blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
            for block in (blocks[2], blocks[1], *handlers[::-1], blocks[0]):
                left += block[::-1]


def forget(functions: dict[str, Function], statement: ast.Import | ast.ImportFrom) -> None:
    """What is imported takes the place of a function of that name."""
    for alias in statement.names:
        functions.pop(alias.asname or alias.name.partition(".")[0], None)


def assign(names: Names, statement: ast.Assign | ast.AnnAssign) -> None:
    """`__all__ = [...]`, and `main = other` where `other` is a function."""
    value = statement.value
    to = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    targets = [target.id for target in to if isinstance(target, ast.Name)]
    if isinstance(value, ast.Name) and value.id in names.functions:
        names.functions |= dict.fromkeys(targets, names.functions[value.id])
    if "__all__" in targets and isinstance(value, ast.List | ast.Tuple):
        names.listed = [str(item.value) for item in value.elts if isinstance(item, ast.Constant)]


def check_offered(job: dict[str, Any]) -> None:
    """Whoever calls a skill from outside cannot be believed to have gone by its stub. Raises AttributeError."""
    [skill] = [skill for skill in job["skills"] if skill["name"] == job["skill"]]
    offered = Source(f"{skill['folder']}/{skill['entrypoint']}").offered()
    if job["function"] not in offered:
        raise AttributeError(f"{skill['name']} offers no function {job['function']!r}; it has: {names_of(offered)}")


def names_of(offered: dict[str, Function]) -> str:
    return ", ".join(sorted(offered)) or "none"


# -- the module that others import ---------------------------------------------------------------------------------


class Stub:
    """One such skill in this process. `packages` are the import names that lead to mounted skills."""

    def __init__(self, module: str, skill: str, path: str, packages: set[str]) -> None:
        self.module = module
        self.skill = skill
        self.packages = packages
        self._path = path
        self._offered: dict[str, Function] | None = None

    def offered(self) -> dict[str, Function]:
        """Read when it is first asked for."""
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
        """Nothing of the skill runs here."""


def spec_of(module: str, skill: str, path: str, packages: set[str]) -> ModuleSpec:
    stub = Stub(module, skill, path, packages)
    # typeshed wants a subclass of Loader, which would cost an import of its own
    return ModuleSpec(module, StubLoader(), loader_state=stub, is_package=True)  # type: ignore[arg-type]


def proxy(stub: Stub, name: str, function: Function) -> Callable[..., Any]:
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]

    def called(*args: Any, **kwargs: Any) -> Any:
        return call(stub.skill, name, parameters, args, kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        import asyncio  # it is there: somebody awaits

        return await asyncio.to_thread(called, *args, **kwargs)

    made = awaited if isinstance(function, ast.AsyncFunctionDef) else called
    made.__name__ = made.__qualname__ = name
    made.__module__ = stub.module
    made.__doc__ = ast.get_docstring(function)
    return made


# -- a call --------------------------------------------------------------------------------------------------------


def call(skill: str, function: str, parameters: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the function returns. Raises TypeError for an argument that is not JSON, before anything is called;
    otherwise an exception of the built-in class that the function raised, or SkillError."""
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
    """A built-in exception as itself, everything else as a SkillError."""
    import builtins

    kind = vars(builtins).get(failure.type)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(f"{what}: {failure.message}")
        except TypeError:  # one that is not made of a message alone: UnicodeDecodeError, ExceptionGroup
            pass
    return _host.SkillError(failure.type, f"{what} with {failure.type}: {failure.message}")
