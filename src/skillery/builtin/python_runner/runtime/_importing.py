"""How mounted skills are imported: `skills.<name>` is the entrypoint module, and a package over its folder.

A skill's entrypoint must not run because a skill below it is imported (`skills.a.b.c` beside `skills.a.b`), though
Python imports parents first. So a skill that has others below it becomes a module that runs when something of its own
is asked for.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any


class EntrypointLoader(importlib.machinery.SourceFileLoader):
    """Runs a skill's entrypoint at once: the usual way."""


class LateModule(ModuleType):
    """A skill with skills below it: its entrypoint runs at the first look at anything that is not one of those."""

    def __getattr__(self, name: str) -> Any:
        if not isinstance(self.__spec__, importlib.machinery.ModuleSpec) or not self.__spec__.loader_state.is_late(
            self
        ):
            raise AttributeError(name)  # the import system is still dressing it
        finder: SkillFinder = self.__spec__.loader_state
        below = f"{self.__name__}.{name}"
        if below in finder.packages:
            return importlib.import_module(below)
        finder.run_late(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self) from None

    def __dir__(self) -> list[str]:
        self.__spec__.loader_state.run_late(self)  # type: ignore[union-attr]
        return sorted(self.__dict__)


class LateLoader(EntrypointLoader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not now, but from now on when it is looked at."""
        module.__spec__.loader_state.let_wait(module)  # type: ignore[union-attr]

    def run(self, module: ModuleType) -> None:
        super().exec_module(module)


class SkillFinder(importlib.abc.MetaPathFinder):
    """Finds `skills` and everything in it. `entrypoints` maps import names to files."""

    def __init__(self, entrypoints: dict[str, str]) -> None:
        self.entrypoints = {f"skills.{name}": path for name, path in entrypoints.items()}
        self.packages = {"skills"}
        for name in self.entrypoints:
            parts = name.split(".")
            self.packages |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        self._lock = threading.RLock()
        self._late: set[str] = set()
        self._run: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in self.entrypoints:
            return self._entrypoint(name, self.entrypoints[name])
        if name in self.packages:
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        self._run_owner(name)
        return None  # a module in a skill's own folder: the usual finders know the way

    def _entrypoint(self, name: str, path: str) -> importlib.machinery.ModuleSpec | None:
        late = any(other.startswith(name + ".") for other in self.entrypoints)
        loader = (LateLoader if late else EntrypointLoader)(name, path)
        folder = path.rpartition("/")[0]
        spec = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=[folder])
        if spec is not None:
            spec.loader_state = self
        return spec

    def let_wait(self, module: ModuleType) -> None:
        self._late.add(module.__name__)

    def is_late(self, module: ModuleType) -> bool:
        return module.__name__ in self._late

    def _run_owner(self, name: str) -> None:
        owner = sys.modules.get(name.rpartition(".")[0])
        if isinstance(owner, LateModule):
            self.run_late(owner)

    def run_late(self, module: ModuleType) -> None:
        """Run the entrypoint once. One that raises has not run, and runs again when asked again."""
        with self._lock:
            if module.__name__ in self._run:
                return
            self._run.add(module.__name__)
            before = dict(module.__dict__)
            try:
                module.__spec__.loader.run(module)  # type: ignore[union-attr]
            except BaseException as error:
                module.__dict__.clear()
                module.__dict__.update(before)
                self._run.discard(module.__name__)
                if isinstance(error, AttributeError):
                    # `from x import y` would take it for "there is no y"
                    raise ImportError(f"{module.__name__}: {error}") from error
                raise


def import_name(skill: str) -> str:
    return skill.replace("-", "_")


def install(skills: list[dict[str, Any]]) -> None:
    """Make the mounted skills importable. Each has `name`, `folder` and, where it can be imported, `entrypoint`."""
    paths = {s["name"]: f"{s['folder']}/{s['entrypoint']}" for s in skills if s["entrypoint"]}
    sys.meta_path.insert(0, SkillFinder({import_name(name): path for name, path in paths.items()}))
    for path in paths.values():
        folder = path.rpartition("/")[0]
        if folder not in sys.path:
            sys.path.append(folder)


class CodeLoader(importlib.machinery.SourceFileLoader):
    """The code of `run_code`. What Python says of code it cannot even read differs by version; here it is always a
    SyntaxError."""

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:
        try:
            return super().source_to_code(data, path, **options)
        except SyntaxError:
            raise
        except (ValueError, MemoryError, RecursionError) as error:
            raise SyntaxError(f"{error or 'the code is nested too deeply'} ({path.rpartition('/')[2]})") from None


def import_code(path: str) -> ModuleType:
    """Import the file at `path` as the module `run_code`."""
    loader = CodeLoader("run_code", path)
    spec = importlib.util.spec_from_file_location("run_code", path, loader=loader)
    if spec is None:
        raise ImportError("run_code")
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_code"] = module
    loader.exec_module(module)
    return module
