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
from typing import Any, Literal, NamedTuple

import msgspec

from skillery.api.rpc.client_results import result_source
from skillery.method import Method, Params, annotated_params
from skillery.methods.table import FOR_MODELS, METHODS, TOOLS

CLIENT = Path(__file__).parents[2] / "client"
DOC = '"""Made by `make client`: do not edit."""\n\n'
MADE = f"{DOC}from __future__ import annotations\n\n"
ABOUT_MODELS = "The defaults of params in tool calls of models, if they differ from those of the method."
AWAITED = {"asynchronous.py": "synchronous.py", "async_transfers.py": "generated/transfers.py"}
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
    (r"\basync_methods\b", "methods"),
    (r"\bclient\.async_transfers\b", "client.generated.transfers"),
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


class Flavour(NamedTuple):
    """A generated class of the client that has every method: the synchronous, the asynchronous or the batch class."""

    module: str
    name: str
    doc: str
    begin: str
    """Source text before `def` of each method."""
    call: str
    """Source text around the call in the body of each method. `{}` stands for the call."""
    answer: str
    has_keys: bool


FLAVOURS = (
    Flavour("methods", "Methods", "Every method of the server.", "", "{}", "{}", True),
    Flavour("async_methods", "AsyncMethods", "Every method of the server, awaited.", "async ", "await {}", "{}", True),
    Flavour("batch_methods", "BatchMethods", "Every method, in a batch.", "", "{}", "Pending[{}]", False),
)


def sources() -> dict[Path, str]:
    """Return the source of every generated module, by path."""
    generated = CLIENT / "generated"
    made = {generated / f"{flavour.module}.py": _methods(flavour) for flavour in FLAVOURS}
    made[generated / "calls.py"] = _calls()
    made[generated / "values.py"] = _values()
    made[generated / "results.py"] = result_source([method.result for method in METHODS.values()])
    made[generated / "__init__.py"] = '"""Made by `make client` from the table of methods: do not edit."""\n'
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


def _calls() -> str:
    lines = [
        f'{name} = {repr(tuple(names)) if name == "TOOLS" else f"frozenset({names!r})"}\n"""{description}"""\n'
        for name, (description, names) in tables().items()
    ]
    models = f'FOR_MODELS: dict[str, dict[str, Any]] = {FOR_MODELS!r}\n"""{ABOUT_MODELS}"""\n'
    return MADE + "from typing import Any\n\n" + "".join(lines) + models


def _is_harmless(method: Method) -> bool:
    return method.needs == "read" or method.audits == ""


# -- methods -----------------------------------------------------------------------------------------------------


def _methods(flavour: Flavour) -> str:
    answers = sorted({method.result.__name__ for method in METHODS.values()} | set(AS_ANSWERED.values()))
    values = sorted({struct.__name__ for struct in _structs()})
    checking = "" if flavour.has_keys else "TYPE_CHECKING, "
    pending = "if TYPE_CHECKING:\n    from skillery.client.batches import Pending\n" if not flavour.has_keys else ""
    sources = "from skillery.client.blobs import Source\n" if flavour.has_keys else ""
    head = (
        f"{MADE}from collections.abc import Mapping, Sequence\nfrom typing import {checking}Any, Literal\n\n"
        f"{sources}from skillery.client.generated.results import {', '.join(answers)}\n"
        f"from skillery.client.generated.values import {', '.join(values)}\n{pending}\n"
    )
    methods = "\n".join(_method(flavour, name, method) for name, method in METHODS.items())
    return f'{head}\nclass {flavour.name}:\n    """{flavour.doc}"""\n\n{_abstract(flavour)}\n{methods}'


def _abstract(flavour: Flavour) -> str:
    key = ", *, idempotency_key: str | None = None" if flavour.has_keys else ""
    answer = flavour.answer.format("Any")
    return (
        f"    {flavour.begin}def call(self, method: str, params: Mapping[str, Any] | None = None{key}) -> {answer}:\n"
        "        raise NotImplementedError\n"
    )


def _method(flavour: Flavour, name: str, method: Method) -> str:
    fields = list(_fields(method.params))
    keyed = flavour.has_keys and method.once
    uploads = {UPLOADED: f"{UPLOADED} | Mapping[str, Source]"} if flavour.has_keys else {}
    optional = [
        f"{field}: {uploads.get(kind, kind)} | None = None" for field, kind, _, is_required in fields if not is_required
    ]
    optional += ["idempotency_key: str | None = None"] if keyed else []
    parameters = ["self", *(f"{field}: {kind}" for field, kind, _, is_required in fields if is_required)]
    parameters += ["*", *optional] if optional else []
    params = ", ".join(f'"{field}": {field}' for field, *_ in fields)
    passed = f'"{name}", {{{params}}}' + (", idempotency_key=idempotency_key" if keyed else "")
    answer = flavour.answer.format(method.result.__name__)
    body = flavour.call.format(f"self.call({passed})")
    return (
        f"    {flavour.begin}def {name}({', '.join(parameters)}) -> {answer}:\n"
        f'        """{_documentation(method.params, keyed=keyed)}"""\n'
        f"        answer: {answer} = {body}\n"
        "        return answer\n"
    )


def _documentation(struct: type[Params], *, keyed: bool) -> str:
    lines = [" ".join(inspect.cleandoc(struct.__doc__ or "").split())]
    told = [f"{field}: {description}" for field, _, description, _ in _fields(struct) if description]
    key = "idempotency_key: Calls with the same key are executed once (if omitted, a client that retries makes a key)"
    told += [key] * keyed
    return "\n\n        ".join([*lines, "\n        ".join(told)]).rstrip() + ("\n        " if told else "")


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


def _values() -> str:
    classes = [
        f'class {struct.__name__}(TypedDict):\n    """{struct.__doc__}"""\n\n'
        + "".join(
            f"    {name}: {kind if is_required else f'NotRequired[{kind}]'}\n"
            for name, kind, _, is_required in _fields(struct)
        )
        for struct in _structs()
    ]
    # The module has no postponed annotations, because NotRequired in them is unknown at run time.
    return f"{DOC}from typing import Literal, NotRequired, TypedDict\n\n\n" + "\n\n".join(classes)


if __name__ == "__main__":
    main()
