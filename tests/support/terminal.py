"""Commands whose output is a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess

from tests.conftest import clean_environment
from tests.support.prefork import FORKED


def on_terminal(*arguments: str, columns: int = 60) -> tuple[int, str]:
    """Run `skillery` with stdout and stderr on a terminal. Return its exit code and its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [FORKED, *arguments],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=clean_environment({"TERM": "xterm-256color", "COLUMNS": str(columns)}),
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the command has closed the terminal
        while piece := os.read(ours, 4096):
            seen += piece
    os.close(ours)
    return process.wait(300), seen.decode()
