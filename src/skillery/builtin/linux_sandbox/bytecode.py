"""Byte code of the programs that start with every run, compiled at the first start if the installer has not done so."""

from __future__ import annotations

import compileall
from pathlib import Path


def compile_ahead(*folders: Path) -> None:
    """Compile the modules in the folders.

    Do nothing if the byte code is fresh, or if a folder cannot be written; runs are slower then.
    """
    for folder in folders:
        compileall.compile_dir(folder, maxlevels=0, quiet=2)
