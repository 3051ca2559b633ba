"""Lines for the log of the run. Here they are printed."""

from __future__ import annotations

import sys


def info(msg: object) -> None:
    sys.stdout.write(f"{msg}\n")


def error(msg: object) -> None:
    sys.stdout.write(f"{msg}\n")
