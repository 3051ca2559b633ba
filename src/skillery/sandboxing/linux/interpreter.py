"""The interpreter that runs the programs of `cell`, and the folder in which it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
"""The working directory of the programs in `cell`, from which they import the package `cell`."""


def base_python() -> str:
    """Return the interpreter outside all virtual environments, without symbolic links."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
