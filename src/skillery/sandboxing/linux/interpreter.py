"""The interpreter that runs the programs of `cell`, and the folder that it starts in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
"""Working directory of those processes. They import `cell` from it."""


def base_python() -> str:
    """The interpreter itself, past every virtual environment and symbolic link."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
