"""Permissions compared with the code: hosts and secrets that are used and not declared, or declared and not used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from skillery_scanner.catalog import Match, Skill
from skillery_scanner.rules.python_code import PythonCode
from skillery_scanner.rules.python_names import position
from skillery_scanner.texts import excerpt

_URL = re.compile(r"\b(?:https?|wss?|ftp)://([A-Za-z0-9.-]{1,253})(?::\d{1,5})?")
_CONNECTING = frozenset(
    {"requests", "httpx", "aiohttp", "urllib3", "socket", "ftplib", "smtplib", "websockets", "websocket", "paramiko"}
)
_CONNECTING_PARTS = ("urllib.request", "http.client")
_SHELL_CONNECTS = re.compile(r"\b(?:curl|wget)\b|\bfetch\s{0,2}\(|\baxios\b|require\(['\"]https?['\"]\)")
_SECRET_NAME = re.compile(r"[A-Z][A-Z0-9_]{2,60}_(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_KEY|PAT)")
_NO_HOSTS = frozenset({"localhost", "127.0.0.1", "www.w3.org", "schemas.openxmlformats.org", "json-schema.org"})
_NO_DOMAINS = ("example.com", "example.org", "example.net", ".example", ".test", ".invalid", "localhost")
_MANY = 10


class Use(NamedTuple):
    """A host or variable that code uses, and the place of its first use."""

    name: str
    file: str
    line: int


class Uses:
    """What the code of a skill connects to and reads."""

    def __init__(self) -> None:
        self.hosts: dict[str, Use] = {}
        self.variables: dict[str, Use] = {}
        self.connects = False
        self.connecting_files: set[str] = set()
        self.has_code = False
        self.text: list[str] = []

    def add_python(self, code: PythonCode, source: str) -> None:
        """Add the hosts, variables and connections of a Python file."""
        self.has_code = True
        self.text.append(source)
        if any(
            module.partition(".")[0] in _CONNECTING or module.startswith(_CONNECTING_PARTS)
            for module in code.names.modules
        ):
            self.connects = True
            self.connecting_files.add(code.path)
        for node in code.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "://" in node.value[:2_000]:
                self._add_hosts(node.value[:2_000], code.path, position(node))
            elif isinstance(node, ast.Call | ast.Subscript) and (name := self._variable(code, node)):
                self.variables.setdefault(name, Use(name, code.path, position(node)))

    def add_script(self, path: str, source: str) -> None:
        self.has_code = True
        self.text.append(source)
        for number, line in enumerate(source.split("\n"), 1):
            if _SHELL_CONNECTS.search(line[:2_000]):
                self.connects = True
                self.connecting_files.add(path)
                self._add_hosts(line[:2_000], path, number)

    def _add_hosts(self, text: str, path: str, line: int) -> None:
        for match in _URL.finditer(text):
            host = match[1].lower().strip(".")
            if host not in _NO_HOSTS and not host.endswith(_NO_DOMAINS) and "." in host:
                self.hosts.setdefault(host, Use(host, path, line))

    def _variable(self, code: PythonCode, node: ast.AST) -> str:
        name = None
        if isinstance(node, ast.Call) and node.args:
            if code.names.dotted(node.func) in {"os.getenv", "os.environ.get"}:
                name = code.names.text_of(node.args[0])
        elif isinstance(node, ast.Subscript) and code.names.dotted(node.value) == "os.environ":
            name = code.names.text_of(node.slice)
        return name if name and _SECRET_NAME.fullmatch(name) else ""


def permissions(skill: Skill, uses: Uses) -> Iterator[Match]:
    """Yield differences between the permissions in the manifest and the code."""
    network, secrets = _declared(skill.manifest, "network"), _declared(skill.manifest, "secrets")
    yield from _undeclared(network, secrets, uses)
    if uses.has_code:
        yield from _unused(network, secrets, uses)
    wide_patterns = [pattern for pattern in network if pattern.count(".") < 2 and "*." in pattern]
    if wide_patterns or len(network) > _MANY:
        yield Match(
            "wide-network", "skill.toml", None, excerpt(wide_patterns[0] if wide_patterns else f"{len(network)} hosts")
        )


def _undeclared(network: Sequence[str], secrets: Sequence[str], uses: Uses) -> Iterator[Match]:
    for use in uses.hosts.values():
        if use.file in uses.connecting_files and not any(_allows(pattern, use.name) for pattern in network):
            yield Match("undeclared-network", use.file, use.line, use.name)
    for use in uses.variables.values():
        if use.name not in secrets:
            yield Match("undeclared-secret", use.file, use.line, use.name)


def _unused(network: Sequence[str], secrets: Sequence[str], uses: Uses) -> Iterator[Match]:
    text = "\n".join(uses.text)
    if network and not uses.connects and not any(_host_of(pattern) in text for pattern in network):
        yield Match("unused-permission", "skill.toml", None, excerpt(f"network: {', '.join(network[:5])}"))
    for name in secrets:
        if name not in text:
            yield Match("unused-permission", "skill.toml", None, excerpt(f"secret: {name}"))


def _declared(manifest: Mapping[str, Any], key: str) -> list[str]:
    table = manifest.get("permissions")
    values = table.get(key) if isinstance(table, Mapping) else None
    return [text for text in values if isinstance(text, str)] if isinstance(values, Sequence) else []


def _host_of(pattern: str) -> str:
    return pattern.partition("://")[2].partition(":")[0].removeprefix("*.").lower()


def _allows(pattern: str, host: str) -> bool:
    allowed = _host_of(pattern)
    return host == allowed or ("*." in pattern and host.endswith(f".{allowed}"))
