"""Check the syntax of shell scripts with `bash -n`. Report each fault: {file, line, message}."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

FAULT = re.compile(r"line (\d+): (.*)")


def main(args: dict[str, Any]) -> list[dict[str, Any]] | None:
    if not Path(args["root"]).is_dir():  # a sandbox that mounts skills in another folder
        return None
    return [fault for file in args["files"] if (fault := syntax(args["root"], file))]


def syntax(root: str, file: str) -> dict[str, Any] | None:
    """Return the fault that bash finds in a script, or None."""
    completed = subprocess.run(
        ["bash", "-n", root + file], capture_output=True, text=True, errors="replace", check=False
    )
    if completed.returncode == 0:
        return None
    match = FAULT.search(completed.stderr)
    return {"file": file, "line": int(match[1]) if match else 1, "message": match[2] if match else "not a shell script"}
