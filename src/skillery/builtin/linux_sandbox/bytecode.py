"""Byte code for the programs that start with every run: where an installer has not written it, the first start does."""

from __future__ import annotations

import compileall
from pathlib import Path


def compile_ahead(*folders: Path) -> None:
    """Does nothing where it is there and fresh, or where the folder cannot be written: runs are slower then."""
    for folder in folders:
        compileall.compile_dir(folder, maxlevels=0, quiet=2)
