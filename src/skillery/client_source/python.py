"""Write the generated modules of skillery.client.

The modules of methods and results are made from METHODS, the synchronous client is made from the asynchronous client.
`make client` runs this module. To be able to replace a broken client, this module imports no module of the client.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from skillery.client_source.client_results import result_source
from skillery.method import Method, Params, annotated_params
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS

CLIENT = Path(__file__).parents[1] / "client"
DOC = '"""Made by `make client`: do not edit."""\n\n'
# The module has no postponed annotations, because `__required_keys__` cannot read NotRequired in them.
HEAD = f"""{DOC}from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from skillery.client.stubs import awaited, batched, blocking, params_of

if TYPE_CHECKING:
    from skillery.client.batches import Pending
    from skillery.client.blobs import Source

"""
ABOUT_MODELS = "The defaults of params in tool calls of models, if they differ from those of the method."
AWAITED = {"asynchronous.py": "synchronous.py", "async_transfers.py": "transfers.py"}
"""Modules with coroutines, and the module that is generated from each: the same code without coroutines."""
AS_ANSWERED = {"LockEntry": "Locked"}
"""Structs of params that the client replaces by a struct of results, because callers pass a part of a result."""
UPLOADED = "Sequence[RunFile]"
"""A parameter type. Except in a batch, callers may also pass a mapping from paths to contents, which are uploaded."""
_SIMPLE = {str: "str", int: "int", float: "float", bool: "bool", Any: "Any"}
_WITHOUT_AWAITING = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b(\w+)_async\b", r"\1"),
    (r"\bclient\.async_transfers\b", "client.transfers"),
    (r"\bAsync(Client|Methods|Transfers|OpenBlob|Batch|Iterator)\b", r"\1"),
    (r"\bAsyncGenerator\[([\w.]+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\banext\(", "next("),
    (r"\bhttpx\.Async", "httpx."),
    (r"\bAsyncBaseTransport\b", "BaseTransport"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\ba(close|read)\b", r"\1"),
    (r"\baiter_(raw|bytes)\b", r"iter_\1"),
    (r'\A"""(\w[^"]*?) `([\w/]+\.py)`\s+is\s+made[^"]*"""', r'"""\1 Made by `make client`: do not edit."""'),
)


def sources() -> dict[Path, str]:
    """Return the source of every generated module, by path."""
    made = {CLIENT / "generated.py": _generated()}
    for awaited, plain in AWAITED.items():
        made[CLIENT / plain] = _synchronous((CLIENT / awaited).read_text("utf-8"))
    return {path: _formatted(path, source) for path, source in made.items()}


def main() -> None:
    for path, source in sources().items():
        path.write_text(source, "utf-8")


def _formatted(path: Path, source: str) -> str:
    for command in (["check", "--select=I", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        source = subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout
    return source


def _synchronous(source: str) -> str:
    for pattern, replacement in _WITHOUT_AWAITING:
        source = re.sub(pattern, replacement, source)
    return source


# -- tables ------------------------------------------------------------------------------------------------------


def tables() -> dict[str, tuple[str, list[str]]]:
    """Return the lists of method names by which a client treats methods differently, each with its description."""
    once = [name for name, method in METHODS.items() if method.once]
    harmless = [name for name, method in METHODS.items() if not method.once and _is_harmless(method)]
    return {
        "ONCE": ("Methods that the server executes once for each Idempotency-Key.", once),
        "REPEATABLE": (
            "Further methods that a client may call twice without harm: most of them change nothing.",
            harmless,
        ),
        "TOOLS": ("The tools of the protocol.", list(TOOLS)),
    }


def _is_harmless(method: Method) -> bool:
    return method.needs == "read" or method.audits == ""


# -- the module ------------------------------------------------------------------------------------------------------


def _generated() -> str:
    structs = _structs()
    stubs = "\n\n".join(_stub(name, method) for name, method in METHODS.items())
    results, names = result_source([method.result for method in METHODS.values()])
    return (
        f"{HEAD}__all__ = {names!r}\n\n{_constants()}\n{results}\n\n{''.join(map(_value, structs))}\n\n{stubs}\n\n"
        + _class(
            "Methods",
            "Every method of the server.",
            "def call({}, *, idempotency_key: str | None = None) -> Any",
            "blocking",
        )
        + _class(
            "AsyncMethods",
            "Every method of the server, awaited.",
            "async def call({}, *, idempotency_key: str | None = None) -> Any",
            "awaited",
        )
        + _class("BatchMethods", "Every method, in a batch.", 'def call({}) -> "Pending[Any]"', "batched")
    )


def _constants() -> str:
    lines = [
        f'{name} = {repr(tuple(names)) if name == "TOOLS" else f"frozenset({names!r})"}\n"""{description}"""\n'
        for name, (description, names) in tables().items()
    ]
    return "".join(lines) + f'FOR_MODELS: dict[str, dict[str, Any]] = {FOR_MODELS!r}\n"""{ABOUT_MODELS}"""\n'


def _class(name: str, description: str, call: str, flavour: str) -> str:
    signature = call.format("self, method: str, params: Mapping[str, Any] | None = None")
    methods = "".join(f"    {method} = {flavour}({method})\n" for method in METHODS)
    return (
        f'class {name}:\n    """{description}"""\n\n'
        f"    {signature}:\n        raise NotImplementedError\n\n{methods}\n\n"
    )


def _stub(name: str, method: Method) -> str:
    fields = list(_fields(method.params))
    optional = [f"{field}: {_optional(kind)} = None" for field, kind, _, is_required in fields if not is_required]
    optional += ["idempotency_key: str | None = None"] if method.once else []
    parameters = ["self: Any", *(f"{field}: {kind}" for field, kind, _, is_required in fields if is_required)]
    parameters += ["*", *optional] if optional else []
    return (
        f"def {name}({', '.join(parameters)}) -> {method.result.__name__}:\n"
        f'    """{_documentation(method.params, keyed=method.once)}"""\n'
        "    return params_of(locals())\n"
    )


def _optional(kind: str) -> str:
    """Return the type of an optional parameter of a method."""
    return f'"{UPLOADED} | Mapping[str, Source] | None"' if kind == UPLOADED else f"{kind} | None"


def _documentation(struct: type[Params], *, keyed: bool) -> str:
    lines = [" ".join(inspect.cleandoc(struct.__doc__ or "").split())]
    message = [f"{field}: {description}" for field, _, description, _ in _fields(struct) if description]
    key = "idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)"
    message += [key] * keyed
    return "\n\n    ".join([*lines, "\n    ".join(message)]).rstrip() + ("\n    " if message else "")


# -- params ------------------------------------------------------------------------------------------------------


def _fields(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield the name, type and description of each field, and whether the field is required. The description is ""
    if there is none.
    """
    for field, kind in annotated_params(struct):
        metas = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
        described = [meta.description for meta in metas if isinstance(meta, msgspec.Meta) and meta.description]
        yield field.encode_name, _type(kind), described[0] if described else "", field.required


def _type(kind: Any) -> str:
    """Return the type of a parameter in the client, as source text.

    The client accepts any Mapping for an object, and any Sequence for a list of objects.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in {typing.Union, types.UnionType}:
        (only,) = (argument for argument in arguments if argument is not msgspec.UnsetType)
        return _type(only)
    if origin is Literal:
        return f"Literal[{', '.join(repr(argument) for argument in arguments)}]"
    if origin is list:
        return f"{'Sequence' if _is_struct(arguments[0]) else 'list'}[{_type(arguments[0])}]"
    if origin is dict:
        return f"Mapping[{_type(arguments[0])}, {_type(arguments[1])}]"
    return AS_ANSWERED.get(kind.__name__, kind.__name__) if _is_struct(kind) else _SIMPLE[kind]


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _structs() -> list[type[msgspec.Struct]]:
    """Return the structs inside params, except the structs that AS_ANSWERED replaces."""
    found: dict[str, type[msgspec.Struct]] = {}
    for method in METHODS.values():
        for hint in typing.get_type_hints(method.params).values():
            found |= {arg.__name__: arg for arg in typing.get_args(hint) if _is_struct(arg)}
    for name in AS_ANSWERED:
        found.pop(name, None)
    return list(found.values())


def _value(struct: type[msgspec.Struct]) -> str:
    fields = "".join(
        f"    {name}: {kind if is_required else f'NotRequired[{kind}]'}\n"
        for name, kind, _, is_required in _fields(struct)
    )
    return f'class {struct.__name__}(TypedDict):\n    """{struct.__doc__}"""\n\n{fields}\n\n'


if __name__ == "__main__":
    main()
