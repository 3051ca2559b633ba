"""The tables of docs/ that come from code. `make docs` writes them into the site.

`python -m skillery.client_source.docs` reads a page from stdin, and prints the page with its tables.
"""

from __future__ import annotations

import inspect
import re
import sys

import msgspec

from skillery.backends import FailureType
from skillery.client_source.openrpc import CALLABLE
from skillery.client_source.python import Field, fields_of, parts_of
from skillery.method import Method, annotated_params

MOST_FIELDS = 7
"""Fields of a result that the table of methods lists. For a result with more fields, the table has only a link."""


def filled(text: str) -> str:
    """Return the text of a page with the table of each line `<!-- table: NAME -->`. Raise KeyError for a name without
    table.
    """
    return re.sub(r"^<!-- table: (.+) -->$", lambda line: TABLES[line[1]](), text, flags=re.MULTILINE)


def _methods() -> str:
    rows = "".join(_method_row(name, method) for name, method in CALLABLE.items())
    return f"| method | scope | params | result |\n|---|---|---|---|\n{rows}"


def _method_row(name: str, method: Method) -> str:
    params = ", ".join(field.encode_name for field, _ in annotated_params(method.params))
    shown = f"`{params}`" if params else ""
    return f"| `{name}` | {method.needs or 'any token'} | {shown} | {_result(method.result)} |\n"


def _result(result: type[msgspec.Struct]) -> str:
    names = [field.name for field in fields_of(result)]
    link = f"[{result.__name__}](results.md#{result.__name__.lower()})"
    return link if len(names) > MOST_FIELDS else f"{link}: `{', '.join(names)}`"


def _results() -> str:
    """Return the sections of results.md: one for each struct of a result, with its fields."""
    parts = sorted(parts_of([method.result for method in CALLABLE.values()]), key=lambda part: part.__name__)
    return "\n".join(_struct(part) for part in parts)


def _struct(struct: type[msgspec.Struct]) -> str:
    about = " ".join(inspect.cleandoc(struct.__doc__ or "").split())
    rows = "".join(_field_row(field) for field in fields_of(struct))
    paragraph = "" if about.startswith(f"{struct.__name__}(") else f"{about}\n\n"
    return f"## {struct.__name__}\n\n{paragraph}| field | type | |\n|---|---|---|\n{rows}"


def _field_row(field: Field) -> str:
    text = ". ".join(part for part in ("" if field.is_always_there else "optional", field.description) if part)
    return f"| `{field.name}` | `{_json_words(field.type)}` | {text} |\n"


def _json_words(kind: str) -> str:
    """Return a Python type of the client in the words of JSON, without the character `|`, which would end a cell of
    a table.
    """
    return kind.replace("None", "null").replace(" | ", " or ")


def _failure_types() -> str:
    rows = "".join(f"| `{failure}` | {failure.cause} |\n" for failure in FailureType)
    return f"| type | cause |\n|---|---|\n{rows}"


def _failure_remedies() -> str:
    return "\n".join(f"### `{failure}`\n\n{failure.cause}\n{failure.remedy}\n" for failure in FailureType)


TABLES = {
    "methods": _methods,
    "results": _results,
    "failure types": _failure_types,
    "failure remedies": _failure_remedies,
}


if __name__ == "__main__":
    sys.stdout.write(filled(sys.stdin.read()))
