"""Compiled Python code of the programs that start with every run. The first start compiles it if the installer has
not.
"""

from __future__ import annotations

import compileall
from pathlib import Path


def compile_ahead(*folders: Path) -> None:
    """Compile the modules in the folders.

    Do nothing if the compiled code is up to date, or if a folder is not writable; then runs are slower.
    """
    for folder in folders:
        compileall.compile_dir(folder, maxlevels=0, quiet=2)
