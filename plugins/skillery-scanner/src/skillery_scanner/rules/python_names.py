"""Names in Python code: imported modules and functions under any alias, and strings that are composed of parts."""

from __future__ import annotations

import ast

_BUILTINS = frozenset({"eval", "exec", "compile", "open", "__import__", "getattr", "globals", "vars", "setattr"})
MOST_TEXT = 10_000
_DEPTH = 40


class Names:
    """Maps the names of a module to what they stand for: imports, aliases and constant texts."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.aliases: dict[str, str] = {}
        self.modules: set[str] = set()
        """Every module that an import names, and every name that is imported from a module."""
        self.constants: dict[str, str] = {}
        self.composed: set[int] = set()
        """The ids of the nodes whose dangerous name is composed of parts."""
        for node in nodes:
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        """Record the names that an import or an assignment defines."""
        if isinstance(node, ast.Import):
            self.modules.update(name.name for name in node.names)
            for alias in node.names:
                top_module = alias.name.partition(".")[0]
                self.aliases[alias.asname or top_module] = alias.name if alias.asname else top_module
        elif isinstance(node, ast.ImportFrom) and not node.level:
            self.modules.update(f"{node.module}.{name.name}" for name in node.names)
            for alias in node.names:
                self.aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._note_assignment(node.targets[0].id, node.value)

    def _note_assignment(self, name: str, value: ast.expr) -> None:
        """Note a name as a constant if its value is a text, or as an alias if the value is a dotted name."""
        text = self.text_of(value)
        if text is not None:
            self.constants[name] = text
            return
        dotted = self.dotted(value)
        if dotted and ("." in dotted or dotted in _BUILTINS or isinstance(value, ast.Call)) and dotted != name:
            self.aliases.setdefault(name, dotted)

    def dotted(self, node: ast.AST, depth: int = 0) -> str:
        """Return the dotted name of an expression with aliases resolved, or "" if the expression is not a name."""
        if depth > _DEPTH:
            return ""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            parent = self.dotted(node.value, depth + 1)
            return f"{parent}.{node.attr}" if parent else ""
        if isinstance(node, ast.Call):
            return self._of_call(node, depth)
        if isinstance(node, ast.Subscript):
            return self._of_subscript(node, depth)
        return ""

    def _of_call(self, node: ast.Call, depth: int) -> str:
        """Return the dotted name that a call of `getattr(os, "system")` or `__import__("os")` returns, or ""."""
        function = self.dotted(node.func, depth + 1)
        if function in {"__import__", "importlib.import_module", "builtins.__import__"} and node.args:
            return self.text_of(node.args[0]) or ""
        if function in {"getattr", "builtins.getattr"} and len(node.args) > 1:
            attribute, parent = self.text_of(node.args[1]), self.dotted(node.args[0], depth + 1)
            if attribute and parent:
                if not isinstance(node.args[1], ast.Constant):
                    self.composed.add(id(node))
                return f"{parent}.{attribute}"
        return ""

    def _of_subscript(self, node: ast.Subscript, depth: int) -> str:
        """Return the name that a subscript stands for, or "": `eval` for `globals()["eval"]`, `os.system` for
        `vars(os)["system"]`, `os` for `sys.modules["os"]`.
        """
        key = self.text_of(node.slice)
        if key is None:
            return ""
        if isinstance(node.value, ast.Call):
            function = self.dotted(node.value.func, depth + 1)
            if function == "vars" and node.value.args:
                return f"{self.dotted(node.value.args[0], depth + 1)}.{key}"
            return key if function in {"globals", "locals", "vars"} else ""
        holder = self.dotted(node.value, depth + 1)
        if holder in {"__builtins__", "builtins.__dict__", "__builtins__.__dict__"}:
            return key
        return f"{self.aliases.get(key, key)}" if holder == "sys.modules" else ""

    def text_of(self, node: ast.AST, depth: int = 0) -> str | None:
        """Return the text of an expression of constants, or None if the text is not known."""
        if depth > _DEPTH:
            return None
        if isinstance(node, ast.Constant):
            return _text(node.value)
        if isinstance(node, ast.Name):
            return self.constants.get(node.id)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.text_of(node.left, depth + 1), self.text_of(node.right, depth + 1)
            return None if left is None or right is None else (left + right)[:MOST_TEXT]
        if isinstance(node, ast.JoinedStr):
            parts = [self.text_of(value, depth + 1) for value in node.values]
            return "".join("" if part is None else part for part in parts)[:MOST_TEXT]
        if isinstance(node, ast.FormattedValue):
            return self.text_of(node.value, depth + 1)
        if isinstance(node, ast.Subscript) and _is_reversal(node.slice):
            text = self.text_of(node.value, depth + 1)
            return None if text is None else text[::-1]
        if isinstance(node, ast.Call):
            return self._joined(node, depth)
        return None

    def _joined(self, node: ast.Call, depth: int) -> str | None:
        """Return the text of `"".join(["a", "b"])` and of `chr(97)`."""
        if isinstance(node.func, ast.Name) and node.func.id == "chr" and len(node.args) == 1:
            code = node.args[0]
            is_code = isinstance(code, ast.Constant) and isinstance(code.value, int) and 0 <= code.value < 0x110000
            return chr(code.value) if is_code else None  # type: ignore[attr-defined]
        if not (isinstance(node.func, ast.Attribute) and node.func.attr == "join" and len(node.args) == 1):
            return None
        separator, parts = self.text_of(node.func.value, depth + 1), node.args[0]
        if separator is None or not isinstance(parts, ast.List | ast.Tuple) or len(parts.elts) > 1_000:
            return None
        texts = [self.text_of(elt, depth + 1) for elt in parts.elts]
        return None if None in texts else separator.join(text for text in texts if text is not None)[:MOST_TEXT]


def _is_reversal(index: ast.expr) -> bool:
    """Return whether an index is `::-1`."""
    if not isinstance(index, ast.Slice) or index.lower is not None or index.upper is not None:
        return False
    step = index.step
    if not isinstance(step, ast.UnaryOp) or not isinstance(step.op, ast.USub):
        return False
    return isinstance(step.operand, ast.Constant) and step.operand.value == 1


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value[:MOST_TEXT]
    return value[:MOST_TEXT].decode("latin-1") if isinstance(value, bytes) else None


def position(node: ast.AST) -> int:
    return getattr(node, "lineno", 1)
