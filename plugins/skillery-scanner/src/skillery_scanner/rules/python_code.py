"""Rules for Python code: they follow values from the network or from encoded texts to the calls that use them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

from skillery_scanner.catalog import Match
from skillery_scanner.rules.python_names import Names, position
from skillery_scanner.texts import excerpt

Taint = Literal["network", "encoded", "private"]
MOST_NODES = 150_000
MOST_ROWS, MOST_ROW = 8, 400
"""Lines of a call in a finding, and bytes of each line."""
"""Nodes of a file that are examined."""

_NETWORK = re.compile(
    r"(?:requests|httpx)(?:\.Session|\.Client|\.AsyncClient)?\.(?:get|post|put|patch|delete|request|stream|head)|"
    r"urllib\.request\.(?:urlopen|urlretrieve|Request)|urllib3\.(?:PoolManager|request)(?:\.request)?|"
    r"aiohttp\.(?:ClientSession|request)|http\.client\.HTTPS?Connection|socket\.(?:socket|create_connection)|"
    r"ftplib\.FTP|smtplib\.SMTP(?:_SSL)?|websockets?\.(?:connect|create_connection|client\.connect)|paramiko\.SSHClient"
)
_SENDING = re.compile(
    r"(?:requests|httpx)\.(?:get|post|put|patch|request)|urllib\.request\.(?:urlopen|Request)|"
    r"smtplib\..{1,40}|.{0,60}\.(?:sendall|sendto|send|sendmail|send_message|post|put|storbinary)"
)
_DECODERS = re.compile(
    r"base64\.\w{0,4}(?:decode|b64decode|b32decode|b85decode|a85decode|b16decode|urlsafe_b64decode|standard_b64decode|"
    r"decodebytes)|codecs\.decode|binascii\.(?:unhexlify|a2b_\w{1,10})|bytes\.fromhex|bytearray\.fromhex|"
    r"zlib\.decompress|gzip\.decompress|bz2\.decompress|lzma\.decompress|marshal\.loads"
)
_EXECUTES = re.compile(
    r"(?:builtins\.)?(?:eval|exec)|types\.(?:FunctionType|CodeType)|runpy\.run_(?:path|module)|os\.(?:system|popen)|"
    r"os\.(?:exec|spawn|posix_spawn)\w{0,6}|subprocess\.(?:run|call|Popen|check_call|check_output|getoutput|"
    r"getstatusoutput)|(?:cloudpickle|pickle|dill|marshal|joblib|shelve)\.(?:loads?|open)|pty\.spawn|code\.interact|"
    r"importlib\.util\.spec_from_file_location|ctypes\.(?:CDLL|cdll\.LoadLibrary)|(?:builtins\.)?compile"
)
_DYNAMIC = re.compile(r"(?:builtins\.)?(?:eval|exec)")
_STARTS = re.compile(
    r"os\.(?:system|popen)|subprocess\.\w{1,20}|os\.(?:exec|spawn)\w{0,4}|asyncio\.create_subprocess_\w{4,5}"
)
_INSTALL = re.compile(
    r"\b(?:pip3?|uv|npm|pnpm|yarn|apt(?:-get)?|brew|gem|cargo|conda)\b(?: -{1,2}\S{1,20}| pip){0,3} (?:install|add|i)\b"
)
_SENSITIVE = re.compile(
    r"\.ssh(?:/|$|\\)|\.aws(?:/|$|\\)|id_rsa|id_ed25519|\.netrc|\.gnupg|\.kube/config|/etc/(?:shadow|passwd)|"
    r"\.docker/config\.json|\.git-credentials|login data|cookies\.sqlite|local state|wallet\.dat|\.config/gcloud|"
    r"\.bash_history|\.zsh_history|keychain|\.claude/|\.npmrc|\.pypirc|(?:^|/)\.env$|/proc/(?:self|1)/environ",
    re.IGNORECASE,
)
_READS = re.compile(
    r"open|.{0,200}\.(?:open|read_text|read_bytes|expanduser|glob|iterdir)|pathlib\.Path|os\.(?:walk|listdir|path\.join|path\.expanduser)|shutil\.\w{1,12}|glob\.\w{1,6}"
)


_BINDINGS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.With, ast.AsyncWith, ast.For, ast.AsyncFor),
    *(ast.comprehension, ast.FunctionDef, ast.AsyncFunctionDef),
)
"""Nodes that give names to values."""


_NO_NODES = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)


def _nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes in the order of the source, at most MOST_NODES. Faster than `ast.walk`."""
    asts: list[ast.AST] = []
    pending = [tree]
    while pending and len(asts) < MOST_NODES:
        node = pending.pop()
        asts.append(node)
        children: list[ast.AST] = []
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                children += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, _NO_NODES):
                children.append(value)
        pending += reversed(children)
    return asts


class PythonCode:
    """One parsed Python file, and the origin of the values of its names."""

    def __init__(self, path: str, source: str) -> None:
        """Raise SyntaxError, ValueError, RecursionError or MemoryError if the source cannot be parsed."""
        self.path = path
        self._source = source
        self._is_followed = False
        self.nodes = _nodes_of(ast.parse(source))
        self.is_complete = len(self.nodes) < MOST_NODES
        self.names = Names(self.nodes)
        # Positions of the parser count lines as Python does, and columns in bytes of UTF-8.
        self._rows = [row.encode(errors="replace") for row in re.split(r"\r\n|\r|\n", source)]
        self._calls = {id(node): self.names.dotted(node.func) for node in self.nodes if isinstance(node, ast.Call)}
        self._bindings = [node for node in self.nodes if isinstance(node, _BINDINGS)]
        self._tainted: dict[str, Taint] = {}
        self._functions: dict[str, Taint] = {}
        self._sensitive = self._find_sensitive()

    def matches(self) -> Iterator[Match]:
        """Yield the matches of all rules for Python code."""
        if self._has_sources():
            for _ in range(3):  # taint that passes through functions and names that are defined later
                self._spread()
        for node in self.nodes:
            if isinstance(node, ast.Call):
                yield from self._call(node)
        if not self.is_complete:
            yield Match("unscanned-code", self.path, None, f"only {MOST_NODES} nodes of the code were examined")

    # -- taint

    def _has_sources(self) -> bool:
        """Return whether the file has any value with an origin that matters. Most files have none, and are not
        followed.
        """
        names = self._calls.values()
        self._is_followed = any(
            "os.environ" in name or _NETWORK.fullmatch(name) or _DECODERS.fullmatch(name) for name in names
        )
        if not self._is_followed:
            texts = (
                node.value for node in self.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
            self._is_followed = "os.environ" in self._source or any(_SENSITIVE.search(text[:500]) for text in texts)
        return self._is_followed

    def _spread(self) -> None:
        """Mark the names of each binding with the origin of its value."""
        for node in self._bindings:
            if isinstance(node, ast.Assign):
                self._mark(node.targets, self.taint(node.value))
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                self._mark([node.target], self.taint(node.value))
            elif isinstance(node, ast.With | ast.AsyncWith):
                for item in node.items:
                    if item.optional_vars is not None:
                        self._mark([item.optional_vars], self.taint(item.context_expr))
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                self._mark([node.target], self.taint(node.iter))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._mark_function(node)

    def _mark(self, targets: list[ast.expr], taint: Taint | None) -> None:
        """Note the taint for each name in the targets; the taint "network" stays once it is noted."""
        if taint is None:
            return
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name) and self._tainted.get(node.id) != "network":
                    self._tainted[node.id] = taint

    def _mark_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and node.value is not None and (taint := self.taint(node.value)):
                self._functions[function.name] = taint

    def taint(self, node: ast.AST, depth: int = 0) -> Taint | None:
        """Return the origin of the value of an expression, or None if the origin does not matter."""
        if depth > 30 or not self._is_followed:
            return None
        if isinstance(node, ast.Name):
            return self._tainted.get(node.id)
        if self._is_one_variable(node):
            return None
        if isinstance(node, ast.Call):
            call_taint = self._taint_of_call(node)
            if call_taint is not None:
                return call_taint
        if isinstance(node, ast.Attribute | ast.Name) and self.names.dotted(node) == "os.environ":
            return "private"
        for child in ast.iter_child_nodes(node):
            taint = self.taint(child, depth + 1)
            if taint is not None:
                return taint
        return None

    def _is_one_variable(self, node: ast.AST) -> bool:
        """Return whether an expression reads one variable of the environment, as code reads a declared secret."""
        if isinstance(node, ast.Call):
            return self._calls.get(id(node), "") in {"os.environ.get", "os.getenv"}
        return isinstance(node, ast.Subscript) and self.names.dotted(node.value) == "os.environ"

    def _taint_of_call(self, node: ast.Call) -> Taint | None:
        name = self._calls.get(id(node), "")
        if name in self._functions:
            return self._functions[name]
        if _NETWORK.fullmatch(name):
            return "network"
        if _DECODERS.fullmatch(name):
            argument_taint = next((taint for arg in node.args if (taint := self.taint(arg))), None)
            return argument_taint or "encoded"
        return "private" if self._reads_private(node, name) else None

    def _reads_private(self, node: ast.Call, name: str) -> bool:
        """Return whether a call reads a private file: `open(PATH)`, `Path(PATH).read_text()`, `home / PATH`."""
        if _READS.fullmatch(name) and any(self._is_sensitive(arg) for arg in node.args):
            return True
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in {"read_text", "read_bytes", "open"}
        return is_method and self._is_sensitive(node.func)

    def _is_sensitive(self, node: ast.AST) -> bool:
        """Return whether a text in an expression names a private file."""
        return id(node) in self._sensitive

    def _find_sensitive(self) -> set[int]:
        """Return the ids of the nodes that are, or contain, a text that names a private file.

        Each node is examined once, children first: in a long chain of calls, every call contains all earlier ones.
        """
        sensitive: set[int] = set()
        for node in reversed(self.nodes):
            text = self.names.text_of(node)
            is_named = bool(text) and len(text or "") < 500 and _SENSITIVE.search(text or "") is not None
            if is_named or any(id(child) in sensitive for child in ast.iter_child_nodes(node)):
                sensitive.add(id(node))
        return sensitive

    # -- calls

    def _call(self, node: ast.Call) -> Iterator[Match]:
        """Yield the matches of one call."""
        name = self._calls.get(id(node), "")
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if _STARTS.fullmatch(name) and node.args and isinstance(node.args[0], ast.List | ast.Tuple):
            arguments = self._code_in(node.args[0])
        taints = {taint for argument in arguments if (taint := self.taint(argument))}
        if name and _EXECUTES.fullmatch(name):
            yield from self._execution(node, name, taints)
        elif "private" in taints and (_SENDING.fullmatch(name) or self._sends(node)):
            yield self._match("data-theft", node)
        elif self._reads_private(node, name):
            yield self._match("sensitive-path", node)

    def _execution(self, node: ast.Call, name: str, taints: set[Taint]) -> Iterator[Match]:
        """Yield the matches of a call that executes code or a program."""
        if id(node.func) in self.names.composed:
            yield self._match("hidden-name", node)
        if "network" in taints:
            yield self._match("remote-code", node)
        elif "encoded" in taints and not _STARTS.fullmatch(name):
            yield self._match("encoded-payload", node)
        elif _DYNAMIC.fullmatch(name) and node.args and self.names.text_of(node.args[0]) is None:
            yield self._match("dynamic-code", node)
        if _STARTS.fullmatch(name) and _INSTALL.search(self._command(node)):
            yield self._match("runtime-install", node)

    def _code_in(self, command: ast.List | ast.Tuple) -> list[ast.expr]:
        """Return the parts of a command that are code: the program, and what follows an option such as `-c`."""
        parts = command.elts[:40]
        code_arguments = [
            argument for option, argument in pairwise(parts) if self.names.text_of(option) in {"-c", "-e", "/c"}
        ]
        return [*parts[:1], *code_arguments]

    def _command(self, node: ast.Call) -> str:
        """Return the known words of the command that a call starts."""
        if not node.args:
            return ""
        first_argument = node.args[0]
        parts = first_argument.elts if isinstance(first_argument, ast.List | ast.Tuple) else [*node.args]
        return " ".join(text for part in parts[:40] if (text := self.names.text_of(part)) and len(text) < 2_000)

    def _sends(self, node: ast.Call) -> bool:
        """Return whether a method such as `session.post` is called on an object that connects."""
        if not isinstance(node.func, ast.Attribute):
            return False
        return (
            node.func.attr in {"post", "put", "send", "sendall", "request"} and self.taint(node.func.value) == "network"
        )

    def _match(self, rule: str, node: ast.Call) -> Match:
        return Match(rule, self.path, position(node), excerpt(self._shown(node)))

    def _shown(self, node: ast.Call) -> str:
        """Return the first characters of the source of a call. The time does not depend on its length: in a long chain
        of calls, every call contains all earlier ones.
        """
        first_line, last_line = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        lines = []
        for number in range(first_line, min(last_line + 1, first_line + MOST_ROWS)):
            start = node.col_offset if number == first_line else 0
            stop = start + MOST_ROW if number != last_line else min(node.end_col_offset or 0, start + MOST_ROW)
            lines.append(self._rows[number][start:stop].decode(errors="replace"))
        return " ".join(lines)
