"""The form of "Try it": fields for the inputs of a skill or the parameters of a tool, and the args from a sent form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from skillery.formats.inputs import InputInvalid, apply_inputs, inputs_in
from skillery.web.frame import Form

MOST_FIELDS = 200
"""The maximum number of inputs with a field. Further inputs are given as JSON."""
Widget = Literal["text", "area", "tick", "radios", "select", "number", "json", "blob"]
_WIDGETS: dict[str, Widget] = {"blob": "blob", "string": "text", "integer": "number", "number": "number"}
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")


class Field(NamedTuple):
    """An input of a skill or a parameter of a tool, in a table or in a form.

    `id` is the prefix of its field names, because the name of an input could be the name of another field of the page.
    """

    id: str
    name: str
    type: str
    widget: Widget
    description: str
    is_required: bool
    default: str | None
    """The default as JSON."""
    choices: list[str]
    """The choices as JSON."""
    value: str = ""
    problem: str = ""

    @property
    def chosen(self) -> str:
        """The choice that the form shows as chosen, as JSON."""
        return self.value or self.default or ""

    def word(self, choice: str | None) -> str:
        """Return a choice or the default in words: without quotes, and `yes` for true."""
        value = msgspec.json.decode(choice or '""')
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) and value else choice or ""


class Declared(NamedTuple):
    """The declared inputs of a skill, or the parameters of a tool, in the form of `[inputs]` of a manifest."""

    inputs: Mapping[str, Mapping[str, Any]]
    is_strict: bool
    """Whether undeclared args are a failure."""

    @property
    def fields(self) -> list[Field]:
        """The empty fields of the form."""
        return fields_of(self.inputs)[:MOST_FIELDS]


def fields_of(inputs: Mapping[str, Mapping[str, Any]] | None) -> list[Field]:
    """Return the empty fields for declared inputs. `inputs` is `[inputs]` of a manifest, or None if it has none."""
    fields = []
    for number, (name, declaration) in enumerate((inputs or {}).items()):
        kind = declaration.get("type", "any")
        kind = kind if isinstance(kind, str) else "any"
        choices = [json.dumps(choice, ensure_ascii=False) for choice in declaration.get("enum") or ()]
        if kind == "boolean" and not choices:
            choices = ["true", "false"]
        widget = _WIDGETS.get(kind, "json")
        if kind == "boolean" and isinstance(declaration.get("default"), bool):
            widget = "tick"
        elif choices:
            widget = "radios" if len(choices) <= 5 else "select"
        default = json.dumps(declaration["default"], ensure_ascii=False) if "default" in declaration else None
        described = str(declaration.get("description", ""))
        fields.append(
            Field(f"a{number}", name, kind, widget, described, bool(declaration.get("required")), default, choices)
        )
    return fields


def inputs_of_schema(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters of a tool, an object of Skill Tools or JSON Schema, in the form of `[inputs]`."""
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        required = schema.get("required") or ()
        inputs = {
            name: {**declaration, "required": name in required} for name, declaration in schema["properties"].items()
        }
    else:
        inputs = {
            name: {**declaration, "required": not declaration.get("optional")}
            for name, declaration in schema.items()
            if isinstance(declaration, dict)
        }
    return {str(name): declaration for name, declaration in inputs.items()}


def filled(fields: list[Field], args: Mapping[str, Any]) -> tuple[list[Field], str]:
    """Return the fields with the values in `args`, and the JSON of the args that have no field, or ""."""
    shown = []
    for field in fields:
        value = args.get(field.name)
        if field.name not in args:
            shown.append(field)
        elif field.widget == "text" and isinstance(value, str):
            shown.append(field._replace(value=value, widget="area" if "\n" in value else "text"))
        elif field.widget == "blob":
            shown.append(field._replace(value=value if isinstance(value, str) else ""))
        else:
            shown.append(field._replace(value=json.dumps(value, ensure_ascii=False)))
    names = {field.name for field in fields}
    others = {name: value for name, value in args.items() if name not in names}
    return shown, json.dumps(others, ensure_ascii=False, indent=2) if others else ""


def typed_again(fields: list[Field], form: Form, problems: Mapping[str, str]) -> list[Field]:
    """Return the fields of a refused form with their texts and messages. An uploaded file is named by its blob id."""
    names = ((field, f"{field.id}-id" if field.widget == "blob" else field.id) for field in fields)
    return [
        field._replace(value=form.get(f"{field.id}-upload") or form.get(name), problem=problems.get(field.id, ""))
        for field, name in names
    ]


def args_of_form(fields: list[Field], form: Form) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the args from a form, and messages about invalid fields by their id.

    Empty fields, and choices of the default, are left out. Blobs are not read here.
    """
    args: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        text = form.get(field.id)
        if field.widget == "blob" or not text.strip() or (field.choices and text == field.default):
            continue
        try:
            args[field.name] = _value(field, text)
        except ValueError as error:
            problems[field.id] = str(error)
    try:
        args.update(json_object(form.get("more")))
    except ValueError as error:
        problems["more"] = str(error)
    return args, problems


def json_object(text: str) -> dict[str, Any]:
    """Return the object in JSON, {} for an empty text. Raise ValueError with a message for the user for other texts."""
    value = _json(text) if text.strip() else {}
    if not isinstance(value, dict):
        raise ValueError('This must be an object, such as {"name": "value"}.')
    return value


def _value(field: Field, text: str) -> Any:
    """Return the value of a field. Raise ValueError with a message for the user if the text is invalid."""
    if field.widget in {"text", "area"}:
        return text
    if field.widget == "number":
        plain = text.strip()
        if not _NUMBER.fullmatch(plain) or len(plain) > 60:
            raise ValueError(f"{plain[:80]!r} is not a number.")
        number = float(plain.replace(",", "."))
        if field.type == "integer":
            if not re.fullmatch(r"[+-]?\d+", plain):
                raise ValueError(f"{plain[:80]!r} is not a whole number.")
            return int(plain)
        return number
    return _json(text)


def _json(text: str) -> Any:
    """Return the decoded JSON. Raise ValueError with a message for the user if the text is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"This is not JSON: {error}.") from None
    except RecursionError:
        raise ValueError("This JSON has too many levels.") from None


def refused(declared: Declared, args: Mapping[str, Any]) -> dict[str, str]:
    """Return messages about invalid args by the id of their field, in the words of the run that would fail."""
    ids = {field.name: field.id for field in declared.fields}
    problems: dict[str, str] = {}
    try:
        apply_inputs(inputs_in(declared.inputs), args, strict=declared.is_strict)
    except InputInvalid as error:
        for name, problem in error.problems.items():
            problems.setdefault(ids.get(name, "more"), problem)
    return problems
