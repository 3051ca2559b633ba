"""A suggested definition of the requested function, for code that does not define it."""

from __future__ import annotations

import ast

MOST = 300
"""Characters of an expression that the lines repeat."""
BODY = "...  # your code, indented by four spaces"


def lines(code: str, name: str) -> str:
    """Return three lines that define the function `name`. Code of one assignment or expression is its body."""
    statements = ast.parse(code).body
    last = statements[-1] if statements else None
    if isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
        body, value = source(code, last), last.targets[0].id
    else:
        value = source(code, shown(last.value)) if isinstance(last, ast.Expr) else ""
        body, value = (f"result = {value}", "result") if value and len(statements) == 1 else ("", value)
    body = body if body and len(statements) == 1 else BODY
    return f"def {name}(args):\n    {body}\n    return {value or 'result'}"


def shown(value: ast.expr) -> ast.expr:
    """Return the argument of `print(…)`, `json.dumps(…)` or both. Return any other expression unchanged."""
    for name in ("print", "dumps"):
        if isinstance(value, ast.Call) and value.args and called(value) == name:
            value = value.args[0] if name == "dumps" or len(value.args) == 1 else value
    return value


def called(call: ast.Call) -> str:
    """Return the name of the called function, without its module."""
    return getattr(call.func, "id", "") or getattr(call.func, "attr", "")


def source(code: str, node: ast.AST) -> str:
    """Return the text of a statement or expression, "" if it does not fit on one line."""
    text = ast.get_source_segment(code, node) or ""
    return text if text.isprintable() and len(text) <= MOST else ""
