"""The sources of the helper in C, and their build (packages/cellblock/build_native.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).parents[2] / "packages" / "cellblock"
SOURCES = PACKAGE / "native"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_native", PACKAGE / "build_native.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
