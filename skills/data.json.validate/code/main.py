"""data.json.validate. For other code: `validate`, `Schema`, `load_schema`, `SchemaError`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

from runtime import blobs, log, summary

from .checking import Schema, Violation
from .exchange import fitting, open_text, shortened
from .schema import SchemaError

__all__ = ["Schema", "SchemaError", "Violation", "load_schema", "main", "validate"]

SCHEMAS = Path(__file__).parents[1] / "resources" / "schemas"
LONGEST_JSON = 64 * 1024 * 1024
MOST_VIOLATIONS = 100_000


class NotJson(ValueError):
    """The text is no JSON."""


def validate(value: Any, schema: Any) -> list[dict[str, str]]:
    """Every violation as {path, keyword, message}; an empty list where the value is valid. Raises SchemaError."""
    return [violation._asdict() for violation in Schema(schema).violations(value)]


def load_schema(name: str) -> Any:
    """A schema that comes with the skill: "order" or "contact"."""
    known = sorted(path.stem for path in SCHEMAS.glob("*.json"))
    if name not in known:
        raise ValueError(f"no example schema {name!r:.80}: there are {', '.join(known)}")
    return json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))


def main(args: dict[str, Any]) -> dict[str, Any]:
    most = args.get("max_violations", 1000)
    if not 1 <= most <= MOST_VIOLATIONS:
        raise ValueError(f"max_violations is {most}: give 1 to {MOST_VIOLATIONS}")
    checked = _Checked(Schema(_schema(args)), most)
    with open_text(args["json_blob"]) as file:
        if args.get("lines"):
            checked.check_lines(file)
        else:
            checked.check_document(_document(file, "json_blob"))
    log.info(checked.sentence())
    summary(checked.sentence())
    return checked.answer()


class _Checked:
    def __init__(self, schema: Schema, most: int) -> None:
        self.schema = schema
        self.most = most
        self.documents = self.invalid = 0
        self.counts: Counter[str] = Counter()
        self.listed: list[dict[str, Any]] = []

    def check_lines(self, file: TextIO) -> None:
        for line, text in enumerate(_lines(file), start=1):
            if not text.strip():
                continue
            try:
                value = _parsed(text)
            except NotJson as error:
                self._count([Violation("", "json", str(error))], line)
            else:
                self._count(self.schema.violations(value), line)

    def check_document(self, value: Any) -> None:
        self._count(self.schema.violations(value), None)

    def _count(self, violations: Any, line: int | None) -> None:
        self.documents += 1
        before = self.counts.total()
        for violation in violations:
            self.counts[violation.keyword] += 1
            if len(self.listed) < self.most:
                place = {} if line is None else {"line": line}
                self.listed.append({**place, **violation._asdict()})
        self.invalid += self.counts.total() > before

    def sentence(self) -> str:
        if not self.invalid:
            return f"Valid: {self.documents} document(s) checked."
        return f"Not valid: {self.counts.total()} violations in {self.invalid} of {self.documents} document(s)."

    def answer(self) -> dict[str, Any]:
        total = self.counts.total()
        whole = {"valid": not self.invalid, "documents": self.documents, "invalid_documents": self.invalid}
        report = {**whole, "violations": total, "by_keyword": dict(self.counts.most_common()), "listed": self.listed}
        short = [{**each, "path": shortened(each["path"], 120)} for each in self.listed[:20]]
        first = fitting([{**each, "message": shortened(each["message"], 200)} for each in short])
        return {
            "summary": self.sentence(),
            **whole,
            "violations": total,
            "by_keyword": report["by_keyword"],
            "first": first,
            "left_out": total - len(first),
            "report_blob": blobs.write_json(report),
        }


def _schema(args: dict[str, Any]) -> Any:
    given = [name for name in ("schema", "schema_blob", "example_schema") if name in args]
    if len(given) != 1:
        said = " and ".join(given) or "none"
        raise ValueError(f"give the schema once, as schema, schema_blob or example_schema; given is {said}")
    if given == ["example_schema"]:
        return load_schema(args["example_schema"])
    if given == ["schema"]:
        return args["schema"]
    with open_text(args["schema_blob"]) as file:
        return _document(file, "schema_blob")


def _document(file: TextIO, what: str) -> Any:
    try:
        return _parsed(_whole(file))
    except NotJson as error:
        raise NotJson(f"{what} {error}") from None


def _whole(file: TextIO) -> str:
    text = _decoded(file.read, LONGEST_JSON + 1)
    if len(text) > LONGEST_JSON:
        raise ValueError(f"the JSON has more than {LONGEST_JSON} characters: make it JSON Lines and give lines=true")
    return text


def _lines(file: TextIO) -> Iterator[str]:
    while text := _decoded(file.readline, LONGEST_JSON + 1):
        if len(text) > LONGEST_JSON:
            raise ValueError(f"a line has more than {LONGEST_JSON} characters: is it JSON Lines?")
        yield text


def _decoded(read: Any, size: int) -> str:
    try:
        return str(read(size))
    except UnicodeError as error:
        raise ValueError(f"the blob is not UTF-8 ({error}): JSON is; convert it first") from None


def _parsed(text: str) -> Any:
    """Raises NotJson with line and column."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise NotJson(f"is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson("is JSON nested too deeply") from None
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(f"holds a number that cannot be read: {error}") from None


def _refuse(name: str) -> NoReturn:
    raise NotJson(f"is no JSON: {name} is no JSON number")
