"""Write the tables of docs/ that come from code.

`make client` writes the tables of methods and failures into their pages. `make docs` writes the results into the site.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import msgspec

from skillery.backends import FailureType
from skillery.client_source.openrpc import CALLABLE
from skillery.client_source.python import Field, fields_of, parts_of
from skillery.method import Method, annotated_params

DOCS = Path(__file__).parents[3] / "docs"
MOST_FIELDS = 7
"""Fields of a result that the table of methods lists. For a result with more fields, the table has only a link."""
_BLOCK = "(<!-- made by `make client`: {name} -->\n).*?(<!-- end -->)"


def sources() -> dict[Path, str]:
    """Return the new text of each page of docs/ that has generated blocks, by path."""
    blocks = {
        DOCS / "reference" / "methods.md": {"methods": _methods()},
        DOCS / "reference" / "errors.md": {"failure types": _failure_types()},
        DOCS / "operate" / "troubleshooting.md": {"failure remedies": _failure_remedies()},
    }
    return {path: _filled(path.read_text("utf-8"), made) for path, made in blocks.items()}


def main() -> None:
    if sys.argv[1:] == ["results"]:
        sys.stdout.write(results())
        return
    for path, text in sources().items():
        path.write_text(text, "utf-8")


def _filled(text: str, blocks: dict[str, str]) -> str:
    """Return the text of a page with new content in its blocks. `blocks` maps the name of a block to the content.

    Raise LookupError if the page has no block of a name.
    """
    for name, made in blocks.items():
        match = re.search(_BLOCK.format(name=name), text, re.DOTALL)
        if match is None:
            raise LookupError(f"the page has no block '{name}': write '<!-- made by `make client`: {name} -->'")
        text = f"{text[: match.end(1)]}\n{made}\n{text[match.start(2) :]}"
    return text


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


def results() -> str:
    """Return the sections of results.md: one for each struct of a result, with its fields."""
    parts = sorted(parts_of([method.result for method in CALLABLE.values()]), key=lambda one: one.__name__)
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
    rows = "".join(f"| `{one}` | {one.cause} |\n" for one in FailureType)
    return f"| type | cause |\n|---|---|\n{rows}"


def _failure_remedies() -> str:
    return "\n".join(f"### `{one}`\n\n{one.cause}\n{one.remedy}\n" for one in FailureType)


if __name__ == "__main__":
    main()
