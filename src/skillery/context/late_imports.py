"""Late imports: a package imports a module when a name of the module is first used.

A command of an author then imports the few modules that it needs, and not a database.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def late_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `modules` has the names that each module of the package defines."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
