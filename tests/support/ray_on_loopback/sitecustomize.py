"""Keeps Ray on loopback in tests. Python imports this module at its start, if its folder is in PYTHONPATH.

Ray replaces 127.0.0.1 with the address of another network interface, and would listen there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

MODULE = "ray._private.services"


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__dict__["resolve_ip_for_localhost"] = lambda host: "127.0.0.1" if host == "localhost" else host
        module.__dict__["get_node_ip_address"] = lambda address=None: "127.0.0.1"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
if "TESTS_RAY" in os.environ:
    sys.path.append(os.environ["TESTS_RAY"])
