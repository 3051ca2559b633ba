"""Import the entrypoint of a skill, and report why that fails or why its function cannot be called with one argument.

The answer is about foreign code, which may have changed anything in this process: the server trusts none of it.
"""

# ruff: noqa: BLE001 - foreign code raises anything, and so do the methods of its exceptions
from __future__ import annotations

import importlib
import os
import sys
from types import CodeType, FunctionType, TracebackType
from typing import Any

MOST_CHAIN = 8
"""Exceptions of a chain (`raise … from …`) whose messages are reported."""
MOST_TEXT = 1000


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Import `module` and get `export`. Return the report: {} if the function can be called with one argument."""
    root = folder_of(args)
    try:
        module = importlib.import_module(args["module"])
    except BaseException as error:
        return failed(error, root)
    try:
        function = getattr(module, args["export"])
    except BaseException as error:
        return failed(error, root)
    return uncallable(function, args["export"], root)


def folder_of(args: dict[str, Any]) -> str:
    """Return the folder of the skill, with a slash at its end."""
    for finder in sys.meta_path:
        spec = finder.find_spec(args["module"], None)
        if spec is not None and spec.origin:
            return str(spec.origin).removesuffix(args["entrypoint"])
    return f"/skills/{args['skill']}/"


def failed(error: BaseException, root: str) -> dict[str, Any]:
    """Return the report about an error of the import. `root` is the folder of the skill."""
    file, line = place_of(error, root)
    name = error.name if isinstance(error, ImportError) else ""
    return {
        "type": type(error).__name__,
        "message": message_of(error),
        "chain": [message_of(cause) for cause in chain_of(error)],
        "file": file,
        "line": line,
        "module": name if isinstance(name, str) else "",
        "variable": variable_of(error),
    }


def message_of(error: BaseException) -> str:
    try:
        return str(error)[:MOST_TEXT]
    except BaseException:
        return ""


def chain_of(error: BaseException) -> list[BaseException]:
    """Return the causes and contexts of an error, nearest first."""
    exceptions: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and len(exceptions) < MOST_CHAIN:
        exceptions.append(current)
        current = current.__cause__ or current.__context__
    return exceptions


def place_of(error: BaseException, root: str) -> tuple[str, int]:
    """Return (path in the skill, line) of the last executed line of the skill, or ("", 0)."""
    place = ("", 0)
    for code, line in frames_of(error.__traceback__):
        if code.co_filename.startswith(root):
            place = (code.co_filename.removeprefix(root), line)
    if isinstance(error, SyntaxError) and str(error.filename).startswith(root):
        place = (str(error.filename).removeprefix(root), error.lineno or 1)
    return place


def frames_of(traceback: TracebackType | None) -> list[tuple[CodeType, int]]:
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


def variable_of(error: BaseException) -> str:
    """Return the name of the environment variable that the code expects, or ""."""
    frames = frames_of(error.__traceback__)
    if not isinstance(error, KeyError) or not frames or not error.args:
        return ""
    is_environ = frames[-1][0].co_filename == os.environ.__class__.__getitem__.__code__.co_filename
    return str(error.args[0])[:MOST_TEXT] if is_environ else ""


def uncallable(function: Any, export: str, root: str) -> dict[str, Any]:
    """Return why `function(args)` is impossible, or {}."""
    if not callable(function):
        return {"signature": f"{export} is not a function"}
    if type(function) is FunctionType and takes_one(function):
        # without the import of inspect, which takes longer than the rest of the check
        called = function.__code__
        if called.co_argcount == 1:
            return {}
        at = {"file": called.co_filename.removeprefix(root), "line": called.co_firstlineno}
        return {"parameters": list(called.co_varnames[: called.co_argcount]), **at}
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {}  # of a C function nothing is known
    try:
        signature.bind({})
    except TypeError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        is_own = isinstance(code, CodeType) and code.co_filename.startswith(root)
        place = {"file": code.co_filename.removeprefix(root), "line": code.co_firstlineno} if is_own and code else {}
        text = "takes no argument" if "too many" in str(error) else error
        return {"signature": f"{export}{signature} {text}"[:MOST_TEXT], **place}
    return {}


def takes_one(function: FunctionType) -> bool:
    code, defaults = function.__code__, len(function.__defaults__ or ())
    is_wrapped = "__wrapped__" in function.__dict__ or "__signature__" in function.__dict__
    return not is_wrapped and not code.co_kwonlyargcount and code.co_argcount - defaults <= 1 <= code.co_argcount
