"""All rules on one screen, and the values that rules and engines exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

Severity = Literal["info", "low", "medium", "high", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""The severities, the least severe first."""

MALICIOUS, SUPPLY_CHAIN, PRIVILEGE = "AST01", "AST02", "AST03"
METADATA, INSTRUCTIONS, ISOLATION, SCANNING = "AST04", "AST05", "AST06", "AST08"
OWASP: Mapping[str, str] = {
    MALICIOUS: "Malicious Skills",
    SUPPLY_CHAIN: "Supply Chain Compromise",
    PRIVILEGE: "Over-Privileged Skills",
    METADATA: "Insecure Metadata",
    INSTRUCTIONS: "Untrusted External Instructions",
    ISOLATION: "Weak Isolation",
    SCANNING: "Poor Scanning",
}
"""The classes of the OWASP Agentic Skills Top 10 (2026) that rules belong to."""


class Rule(msgspec.Struct, frozen=True):
    """A rule. `title` begins a message about a match, `remedy` ends it."""

    severity: Severity
    owasp: str
    title: str
    remedy: str


class File(msgspec.Struct, frozen=True):
    """A file of a skill."""

    path: str
    content: bytes


class Skill(msgspec.Struct, frozen=True):
    """A skill to scan. `popular` are names that its name is compared with."""

    name: str
    manifest: Mapping[str, Any]
    files: tuple[File, ...]
    popular: tuple[str, ...] = ()


class Match(msgspec.Struct, frozen=True):
    """A place to which a rule applies. For other engines, `severity` and `about` replace those of the rule."""

    rule: str
    file: str | None
    line: int | None
    excerpt: str
    severity: Severity | None = None
    about: str = ""


RULES: Mapping[str, Rule] = {
    # -- secrets
    "secret-key": Rule(
        "high", PRIVILEGE, "a private key", "Remove the key, replace it where it is used, and declare a secret."
    ),
    "secret-token": Rule(
        "high", PRIVILEGE, "a token of a service", "Revoke the token, and read it from a declared secret."
    ),
    "secret-value": Rule(
        "medium", PRIVILEGE, "a password or key in the code", "Read the value from a declared secret."
    ),
    # -- hidden text
    "hidden-text": Rule("high", MALICIOUS, "invisible characters", "Remove the invisible characters."),
    "bidirectional-text": Rule(
        "high", MALICIOUS, "characters that change the shown order", "Remove the bidirectional control characters."
    ),
    "hidden-instruction": Rule(
        "high", INSTRUCTIONS, "an instruction in a comment that readers do not see", "Remove the comment."
    ),
    # -- commands
    "pipe-to-shell": Rule(
        "critical", SUPPLY_CHAIN, "a download that a shell executes", "Put the program into the bundle and pin it."
    ),
    "download-and-run": Rule(
        "high", SUPPLY_CHAIN, "a downloaded file that is executed", "Put the program into the bundle and pin it."
    ),
    "encoded-payload": Rule(
        "critical", MALICIOUS, "encoded content that is executed", "Put the code into the bundle as plain text."
    ),
    "encoded-text": Rule(
        "critical", MALICIOUS, "encoded text that decodes to commands or instructions", "Write the text plainly."
    ),
    "reverse-shell": Rule("critical", MALICIOUS, "a shell that is connected to another host", "Remove the command."),
    "destructive-command": Rule("high", MALICIOUS, "a command that destroys data", "Remove the command."),
    "persistence": Rule(
        "high", MALICIOUS, "a change that outlives the skill", "Do not change start-up files or files of agents."
    ),
    "untrusted-install": Rule(
        "high", SUPPLY_CHAIN, "a package from an unusual source", "Declare packages in runtime.dependencies."
    ),
    # -- code
    "remote-code": Rule(
        "critical", SUPPLY_CHAIN, "code from the network that is executed", "Put the code into the bundle."
    ),
    "runtime-install": Rule(
        "high", SUPPLY_CHAIN, "packages that are installed at run time", "Declare packages in runtime.dependencies."
    ),
    "dynamic-code": Rule(
        "medium", MALICIOUS, "code that is made at run time", "Call functions directly instead of eval and exec."
    ),
    "hidden-name": Rule(
        "high", MALICIOUS, "a dangerous function under a composed name", "Write the name of the function plainly."
    ),
    "data-theft": Rule(
        "critical",
        MALICIOUS,
        "private data that is sent to another host",
        "Do not send files, keys or the environment.",
    ),
    "sensitive-path": Rule(
        "high", PRIVILEGE, "access to private files of the user", "Take the input as an argument or a blob."
    ),
    # -- instructions
    "ignore-instructions": Rule(
        "high", INSTRUCTIONS, "an instruction to ignore other instructions", "Remove the instruction."
    ),
    "steal-instruction": Rule(
        "critical", INSTRUCTIONS, "an instruction to send private data away", "Remove the instruction."
    ),
    "conceal-instruction": Rule(
        "high", INSTRUCTIONS, "an instruction to hide something from the user", "Remove the instruction."
    ),
    "remote-instructions": Rule(
        "high", INSTRUCTIONS, "instructions that are loaded from an address", "Put the instructions into SKILL.md."
    ),
    "unsafe-mode": Rule(
        "high", ISOLATION, "an instruction to disable a protection", "Leave confirmations and sandboxes on."
    ),
    # -- permissions
    "undeclared-network": Rule(
        "medium", PRIVILEGE, "a connection to an undeclared host", "Add the host to permissions.network."
    ),
    "undeclared-secret": Rule("medium", PRIVILEGE, "an undeclared secret", "Add the variable to permissions.secrets."),
    "unused-permission": Rule("low", PRIVILEGE, "a permission that the code does not use", "Remove the permission."),
    "wide-network": Rule("medium", PRIVILEGE, "a permission for many hosts", "Name the hosts."),
    # -- bundle
    "lookalike-name": Rule(
        "high", METADATA, "a name that is almost that of a popular skill", "Choose a different name."
    ),
    "executable": Rule("high", SUPPLY_CHAIN, "a compiled program", "Publish the source, or declare a package."),
    "archive": Rule("medium", SUPPLY_CHAIN, "an archive, whose files are not scanned", "Add the files themselves."),
    "disguised-file": Rule(
        "high", MALICIOUS, "a file that is not what its name says", "Give the file the name of its format."
    ),
    "macros": Rule("high", MALICIOUS, "a document with macros", "Remove the macros."),
    # -- the scan itself
    "partly-read": Rule("low", SCANNING, "a file that was not scanned completely", "Split the file."),
    "unscanned-code": Rule(
        "high", SCANNING, "code or instructions that cannot be scanned completely", "Split or simplify the file."
    ),
    "failed": Rule("high", SCANNING, "a scan that failed", "Publish again; an admin finds the error in the log."),
}
"""Each rule by its id. In findings, `scanner.` precedes the id."""


def at_least(severity: Severity, limit: Severity) -> bool:
    return SEVERITIES.index(severity) >= SEVERITIES.index(limit)
