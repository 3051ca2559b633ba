"""The language of `where`: parsed into a predicate over rows. Nothing of it is ever evaluated as Python.

either      = both { "or" both }
both        = negated { "and" negated }
negated     = "not" negated | "(" either ")" | comparison
comparison  = operand ( "is" ["not"] "null" | ["not"] "in" "(" literal { "," literal } ")" | operator operand )
operator    = "=" "==" "!=" "<>" "<" "<=" ">" ">=" ["not"] ( "contains" "startswith" "endswith" )
operand     = number | 'text' | "text" | column | `column`
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .columns import number, position_of

Row = Sequence[str]
Predicate = Callable[[Row], bool]

MOST_CHARACTERS = 10_000
MOST_NESTED = 50

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?(?![\w.]))
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | `(?P<quoted>[^`]+)`
    | (?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)
    | (?P<word>[^\W\d][\w.-]*)
    )""",
    re.VERBOSE,
)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "contains": operator.contains,
    "startswith": str.startswith,
    "endswith": str.endswith,
}
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", *_SEARCHES})


class Token(NamedTuple):
    kind: str
    """number, text, column, sign, word or end"""
    text: str
    at: int


class Operand(NamedTuple):
    """A literal, or the cell at `position`."""

    literal: str | float | None
    position: int

    def text(self, row: Row) -> str:
        return row[self.position] if self.literal is None else str(self.literal)


def parse_where(text: str, columns: Sequence[str]) -> Predicate:
    """Raises ValueError that says where the text is wrong. An empty one accepts every row."""
    if not text.strip():
        return lambda row: True
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"where has {len(text)} characters, at most {MOST_CHARACTERS} are allowed")
    return _Parser(text, columns).whole()


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"where: cannot read {text[at : at + 20].strip()!r} at character {at + 1}")
        found.append(_token(match))
        at = match.end()
    return [*found, Token("end", "the end", len(text))]


def _token(match: re.Match[str]) -> Token:
    kind = str(match.lastgroup)
    text, at = match[kind], match.start(kind)
    if kind == "text":
        return Token("text", text[1:-1].replace(text[0] * 2, text[0]), at)
    if kind == "word" and text.lower() in _WORDS:
        return Token("word", text.lower(), at)
    return Token("column" if kind in ("word", "quoted") else kind, text, at)


class _Parser:
    def __init__(self, text: str, columns: Sequence[str]) -> None:
        self.left = _tokens(text)[::-1]
        self.columns = columns
        self.depth = 0

    def whole(self) -> Predicate:
        predicate = self.either()
        if self.left[-1].kind != "end":
            raise self.wrong("'and', 'or' or the end")
        return predicate

    def either(self) -> Predicate:
        parts = [self.both()]
        while self.took("or"):
            parts.append(self.both())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def both(self) -> Predicate:
        parts = [self.negated()]
        while self.took("and"):
            parts.append(self.negated())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def negated(self) -> Predicate:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise ValueError(f"where is nested deeper than {MOST_NESTED} levels")
        predicate = self.bracketed()
        self.depth -= 1
        return predicate

    def bracketed(self) -> Predicate:
        if self.took("not"):
            return _not(self.negated())
        if not self.took("("):
            return self.comparison()
        inner = self.either()
        self.need(")")
        return inner

    def comparison(self) -> Predicate:
        left = self.operand()
        if self.took("is"):
            return self.null(left)
        negative = self.took("not")
        predicate = self.compared(left, negative)
        return _not(predicate) if negative else predicate

    def null(self, left: Operand) -> Predicate:
        negative = self.took("not")
        self.need("null")
        return lambda row: bool(left.text(row).strip()) is negative

    def compared(self, left: Operand, negative: bool) -> Predicate:
        if self.took("in"):
            return self.member(left)
        token = self.left.pop()
        if token.text in _SEARCHES and token.kind == "word":
            return _search(_SEARCHES[token.text], left, self.operand())
        if token.text in _SIGNS and token.kind == "sign" and not negative:
            return _compare(_SIGNS[token.text], left, self.operand())
        self.left.append(token)
        raise self.wrong("one of = != < <= > >= in, contains, startswith, endswith, is null")

    def member(self, left: Operand) -> Predicate:
        self.need("(")
        options = [_compare(operator.eq, left, self.operand())]
        while self.took(","):
            options.append(_compare(operator.eq, left, self.operand()))
        self.need(")")
        return lambda row: any(option(row) for option in options)

    def operand(self) -> Operand:
        token = self.left[-1]
        if token.kind not in ("number", "text", "column"):
            raise self.wrong("a column, a number or a text in quotes")
        self.left.pop()
        if token.kind == "column":
            return Operand(None, position_of(token.text, self.columns))
        return Operand(float(token.text) if token.kind == "number" else token.text, -1)

    def took(self, text: str) -> bool:
        token = self.left[-1]
        if token.text != text or token.kind not in ("word", "sign"):
            return False
        self.left.pop()
        return True

    def need(self, text: str) -> None:
        if not self.took(text):
            raise self.wrong(repr(text))

    def wrong(self, expected: str) -> ValueError:
        token = self.left[-1]
        return ValueError(f"where: {token.text!r:.40} at character {token.at + 1}, expected is {expected}")


def _not(predicate: Predicate) -> Predicate:
    return lambda row: not predicate(row)


def _search(search: Callable[[str, str], bool], left: Operand, right: Operand) -> Predicate:
    return lambda row: search(left.text(row).casefold(), right.text(row).casefold())


def _compare(compare: Callable[[Any, Any], bool], left: Operand, right: Operand) -> Predicate:
    """With a number: as numbers, and a cell that is none does not match. Otherwise two cells that are both numbers
    compare as such, everything else as text."""
    if isinstance(left.literal, float) or isinstance(right.literal, float):
        return _compare_numbers(compare, left, right)
    if left.literal is None and right.literal is None:
        return _compare_cells(compare, left, right)
    return lambda row: compare(left.text(row).strip(), right.text(row).strip())


def _compare_numbers(compare: Callable[[Any, Any], bool], left: Operand, right: Operand) -> Predicate:
    def predicate(row: Row) -> bool:
        first, second = number(left.text(row)), number(right.text(row))
        return first is not None and second is not None and compare(first, second)

    return predicate


def _compare_cells(compare: Callable[[Any, Any], bool], left: Operand, right: Operand) -> Predicate:
    def predicate(row: Row) -> bool:
        first, second = number(left.text(row)), number(right.text(row))
        if first is None or second is None:
            return compare(left.text(row).strip(), right.text(row).strip())
        return compare(first, second)

    return predicate
