"""The process that scans with cisco-ai-skill-scanner: `PYTHON cisco_worker.py MEMORY_MB FOLDER`.

An interpreter of another environment executes this file, which has neither Skillery nor msgspec. So the file imports
only the standard library and `skill_scanner`. It reads skills from stdin and writes findings to stdout, each as eight
bytes of length and JSON. The folder is for this process alone: the process deletes what an earlier process left there.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

LENGTH = 8
MIB = 1024 * 1024
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_MOST_FINDINGS = 200
_SEVERITIES = ("critical", "high", "medium", "low", "info", "safe")


def main() -> None:
    """Answer requests until stdin ends."""
    memory, base = int(sys.argv[1]) * MIB, Path(sys.argv[2])
    for leftover in base.iterdir():
        shutil.rmtree(leftover)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _leave_network()
    # Libraries print to stdout, which is the channel of the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from skill_scanner.core.scanner import SkillScanner

    scanner = SkillScanner()
    while len(head := sys.stdin.buffer.read(LENGTH)) == LENGTH:
        request = json.loads(sys.stdin.buffer.read(int.from_bytes(head, "big")))
        answer = json.dumps(_scan(scanner, base, request["files"])).encode()
        answers.write(len(answer).to_bytes(LENGTH, "big") + answer)
        answers.flush()


def _leave_network() -> None:
    """Move the process into a network namespace without any interface. Raise OSError if that is impossible.

    As an ordinary user, a process may do so only in a new user namespace.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "the scan cannot leave the network")


def _scan(scanner: Any, base: Path, files: dict[str, str]) -> list[dict[str, Any]]:
    """Return the most severe findings of the scanner for these files, whose contents are in base64."""
    with tempfile.TemporaryDirectory(dir=base) as folder:
        for path, content in files.items():
            file_path = Path(folder) / path
            file_path.parent.mkdir(parents=True, exist_ok=True)
            file_path.write_bytes(base64.b64decode(content))
        with contextlib.redirect_stdout(sys.stderr):
            result = scanner.scan_skill(folder, lenient=True)
    # A version with many harmless findings must not hide a severe one.
    findings = sorted((_plain(finding) for finding in result.findings), key=lambda finding: _rank(finding["severity"]))
    return findings[:_MOST_FINDINGS]


def _rank(severity: str) -> int:
    """Return 0 for the most severe, and for unknown names."""
    return _SEVERITIES.index(severity) if severity in _SEVERITIES else 0


def _plain(finding: Any) -> dict[str, Any]:
    severity = str(getattr(finding.severity, "value", finding.severity)).lower()
    return {
        "rule": str(finding.rule_id),
        "severity": severity,
        "about": str(finding.title)[:200],
        "file": finding.file_path,
        "line": finding.line_number,
        "excerpt": " ".join(str(finding.snippet or finding.description or "").split())[:120],
    }


if __name__ == "__main__":
    main()
