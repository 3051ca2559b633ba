"""Stubs: skills with permissions that the run does not have.

Only functions of such a skill are available. Each is a proxy that asks the server, which runs the function in a sandbox
with the skill's permissions. No code of the skill is imported here.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import _asking, _functions

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cellblock.runtime import _run

    from ._functions import Function
else:
    from . import _run


class Stub:
    """One stubbed skill in this process. `packages` are the import names of all mounted skills and their parents."""

    def __init__(self, module: str, skill: str, path: str, packages: set[str]) -> None:
        self.module = module
        self.skill = skill
        self.packages = packages
        self._path = path
        self._offered: dict[str, Function] | None = None

    def offered(self) -> dict[str, Function]:
        """Return the callable functions. They are read when they are first needed."""
        if self._offered is None:
            self._offered = _functions.Source(self._path).offered()
        return self._offered

    def explained(self) -> str:
        return (
            f"{self.module} declares network or secrets and runs in its own sandbox: only its functions can be called "
            f"from here; it has: {_functions.names_of(self.offered())}"
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
    parameters = [parameter.arg for parameter in (*function.args.posonlyargs, *function.args.args)]

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


def call(skill: str, function: str, parameters: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function of a stubbed skill through the server, and return its result.

    Raise TypeError before the call if an argument is not JSON. If the function raises a built-in exception, raise an
    exception of this class. Raise SkillError for any other failure, and for a built-in class that needs more than a
    message.
    """
    where = f"of {function}() in {skill}"
    names = [*parameters, *range(len(parameters) + 1, len(args) + 1)]
    positional = [encoded(value, f"the argument {name} {where}") for value, name in zip(args, names, strict=False)]
    named = [f"{json.dumps(name)}:{encoded(value, f'the argument {name} {where}')}" for name, value in kwargs.items()]
    body = f'{{"args":[{",".join(positional)}],"kwargs":{{{",".join(named)}}}}}'.encode()
    try:
        result = _asking.ask("call", {"skill": skill, "function": function}, body)
    except _asking.SkillError as error:
        failure = error
    else:
        return json.loads(result)
    raise as_raised(failure, f"{function}() in {skill} failed")


def encoded(value: Any, subject: str) -> str:
    try:
        return _run.encode(value, sys.maxsize, subject, not_json).decode()
    except _run.InvalidOutput as problem:
        message = str(problem)
    raise TypeError(message)


def not_json(value: Any) -> Any:
    from . import _pictures

    raise _pictures.not_json(value)


def as_raised(failure: _asking.SkillError, function_name: str) -> Exception:
    """Return an exception of the built-in class that the function raised, or else a SkillError.

    `function_name` names the function, for the message.
    """
    import builtins

    kind = vars(builtins).get(failure.type)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(f"{function_name}: {failure.message}")
        except TypeError:  # exceptions with other arguments: UnicodeDecodeError, ExceptionGroup
            pass
    return _asking.SkillError(failure.type, f"{function_name} with {failure.type}: {failure.message}")
