"""Make the handler of a tool from a function body in Python, as `define_tool` gets it (§8 of Skill Tools 1.0.0)."""

from __future__ import annotations

import io
import tokenize

from skillery.formats.python_source import Fault, find_fault

_HANDLER = "{}def handler(args):\n{}\n"
_INDENT = "    "


def python_handler(code: str) -> str | Fault:
    """Return a file whose handler has this body, or the fault of the body. Call this function in a compile worker.

    The handler is `async` if the body only compiles so.
    """
    content = handler_around(code)
    fault = find_fault(content.encode("utf-8", "replace"), "handler")
    if fault is None:
        return content
    waiting = handler_around(code, is_async=True)
    return fault if find_fault(waiting.encode("utf-8", "replace"), "handler") else waiting


def handler_around(code: str, *, is_async: bool = False) -> str:
    """Return a file whose handler has this body, from its second line on."""
    body = _indented(code.replace("\r\n", "\n").strip("\n"))
    return _HANDLER.format("async " if is_async else "", body)


def _indented(code: str) -> str:
    """Return the code one level deeper. Lines that begin inside a string stay unchanged, and so does the string."""
    inside = _lines_inside_texts(code)
    lines = code.split("\n")
    return "\n".join(
        line if number in inside or not line.strip() else _INDENT + line for number, line in enumerate(lines, 1)
    )


def _lines_inside_texts(code: str) -> set[int]:
    """Return the numbers of the lines that begin inside a string.

    Code without valid tokens has no such lines: the compiler reports it.
    """
    found: set[int] = set()
    opened: list[int] = []
    starts, ends = _formatted_text_tokens()
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            # Before Python 3.12, each error token can cost another pass over the rest of the code: minutes in total.
            if token.type == tokenize.ERRORTOKEN:
                return set()
            if token.type == tokenize.STRING:
                found.update(range(token.start[0] + 1, token.end[0] + 1))
            elif token.type in starts:
                opened.append(token.start[0])
            elif token.type in ends and opened:
                found.update(range(opened.pop() + 1, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError, ValueError):  # Python 3.12 splits a character after a lone CR in two
        return set()
    return found


def _formatted_text_tokens() -> tuple[set[int], set[int]]:
    """Return the tokens that open and close f-strings and t-strings. Only Python 3.12 and later have them."""
    kinds = [("FSTRING_START", "FSTRING_END"), ("TSTRING_START", "TSTRING_END")]
    there = [kind for kind in kinds if hasattr(tokenize, kind[0])]
    return {getattr(tokenize, one[0]) for one in there}, {getattr(tokenize, one[1]) for one in there}
