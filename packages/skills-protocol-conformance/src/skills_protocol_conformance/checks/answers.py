"""Makers of simple checks: a field of an answer, and calls that the server refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skills_protocol_conformance.session import INVALID_PARAMS, Session
from skills_protocol_conformance.statement import Check, at, expect

Fact = Callable[[Session], Any]
"""Return an answer that several statements look at. The docstring says which answer it is."""

KINDS: dict[str, Callable[[Any], bool]] = {
    "a string": lambda value: isinstance(value, str),
    "a text": lambda value: isinstance(value, str) and bool(value.strip()),
    "an object": lambda value: isinstance(value, dict),
    "an array": lambda value: isinstance(value, list),
    "an array of strings": lambda value: isinstance(value, list) and all(isinstance(part, str) for part in value),
    "an integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "a boolean": lambda value: isinstance(value, bool),
    "a string or null": lambda value: value is None or isinstance(value, str),
}


def has(fact: Fact, path: str, kind: str) -> Check:
    """Make a check: the answer has the field, and it is of this kind."""

    def check(session: Session) -> None:
        answer = fact(session)
        expect(KINDS[kind](at(answer, path)), f"`{path}` is not {kind}", answer)

    check.__doc__ = f"{_subject(fact)}: `{path}` is {kind}."
    return check


def equals(fact: Fact, path: str, value: object) -> Check:
    """Make a check: the field of the answer has this value."""

    def check(session: Session) -> None:
        answer = fact(session)
        expect(at(answer, path) == value, f"`{path}` is not {value!r}", answer)

    check.__doc__ = f"{_subject(fact)}: `{path}` is {value!r}."
    return check


def one_of(fact: Fact, path: str, *values: str) -> Check:
    """Make a check: the field of the answer has one of these values."""

    def check(session: Session) -> None:
        answer = fact(session)
        expect(at(answer, path) in values, f"`{path}` is none of {', '.join(values)}", answer)

    check.__doc__ = f"{_subject(fact)}: `{path}` is one of {', '.join(values)}."
    return check


def absent(fact: Fact, path: str) -> Check:
    """Make a check: the answer does not have the field, or it is null."""

    def check(session: Session) -> None:
        answer = fact(session)
        expect(answer.get(path) is None, f"`{path}` is present", answer)

    check.__doc__ = f"{_subject(fact)}: `{path}` is absent or null."
    return check


def optional(fact: Fact, path: str, kind: str) -> Check:
    """Make a check: if the answer has the field, it is of this kind."""

    def check(session: Session) -> None:
        answer = fact(session)
        expect(answer.get(path) is None or KINDS[kind](answer[path]), f"`{path}` is not {kind}", answer)

    check.__doc__ = f"{_subject(fact)}: `{path}`, if present, is {kind}."
    return check


def refuses(method: str, what: str, number: int | None = None, /, **params: Any) -> Check:
    """Make a check: the call is a JSON-RPC error, with this code if the documents name one.

    In params, `PROBE` and `NOTES` are the names of samples.
    """

    def check(session: Session) -> None:
        named = {key: session.skill(value.lower()) if value in NAMES else value for key, value in params.items()}
        error = session.error(method, **named)
        expect(number is None or error.get("code") == number, f"`code` is not {number}", error)

    check.__doc__ = f"`{method}` {what} is a JSON-RPC error{f' {number}' if number else ''}."
    return check


NAMES = ("PROBE", "NOTES")


def without(method: str, missing: str, /, **others: Any) -> Check:
    """Make a check: the call without a required param is a JSON-RPC error for invalid params."""
    return refuses(method, f"without `{missing}`", INVALID_PARAMS, **others)


def wrong(method: str, param: str, value: object, /, **others: Any) -> Check:
    """Make a check: the call with a param of a wrong type or value is a JSON-RPC error for invalid params."""
    return refuses(method, f"with `{param}`: {value!r}", INVALID_PARAMS, **{param: value}, **others)


def _subject(fact: Fact) -> str:
    return (fact.__doc__ or fact.__name__).strip().rstrip(".")
