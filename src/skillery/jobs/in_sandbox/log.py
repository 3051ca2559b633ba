"""Lines for the log of the run, in the same order as the output of the code."""

from __future__ import annotations

import os
import sys


def _write(message: object) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    line = f"{message}\n".encode("utf-8", "backslashreplace")
    while line:
        line = line[os.write(1, line) :]


def info(msg: object) -> None:
    _write(msg)


def error(msg: object) -> None:
    _write(msg)
