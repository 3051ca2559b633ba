"""Large Python files are compiled in a process of their own, so that no publisher can hold up the server."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from skillery.formats.problems import Problem
from skillery.formats.python_source import source_problem

HERE_BYTES = 16 * 1024
"""Up to here the worst source known costs less than a tenth of a second, and starting a process would cost more."""
SECONDS = 20


def look_apart(path: str, source: bytes, export: str | None) -> Problem | None:
    """Blocking. As `source_problem`; a source that takes too long or too much memory is a problem, too."""
    if len(source) <= HERE_BYTES:
        return source_problem(path, source, export)
    command = [sys.executable, "-I", "-m", "skillery.formats.source_process", path, export or ""]
    try:
        done = subprocess.run(command, input=source, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _too_much(path)
    if done.returncode < 0:
        return _too_much(path)
    if done.returncode:
        raise RuntimeError(f"the look at a source ended with {done.returncode}: {done.stderr[-2000:]!r}")
    return msgspec.json.decode(done.stdout, type=Problem | None)


def _too_much(path: str) -> Problem:
    return Problem(f"{path} takes too long to compile (line 1)", path=path, file=path, line=1)
