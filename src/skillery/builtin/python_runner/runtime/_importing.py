"""How mounted skills are imported: `skills.<name>` is the entrypoint module, and a package over its folder.

A skill's entrypoint must not run because a skill below it is imported (`skills.a.b.c` beside `skills.a.b`), though
Python imports parents first. So a skill that has others below it becomes a module that runs when something of its own
is asked for.
"""

from __future__ import annotations

import importlib
import sys
from _thread import RLock
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

CODE = "run_code"


class LateModule(ModuleType):
    """A skill with skills below it: its entrypoint runs at the first look at anything that is not one of those."""

    def __getattr__(self, name: str) -> Any:
        finder = finder_of(self)
        if finder is None:
            raise AttributeError(name)
        below = f"{self.__name__}.{name}"
        if below in finder.packages:
            return importlib.import_module(below)
        finder.run_late(self)
        try:
            return self.__dict__[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self) from None

    def __dir__(self) -> list[str]:
        finder = finder_of(self)
        if finder is not None:
            finder.run_late(self)
        return sorted(self.__dict__)


def finder_of(module: LateModule) -> SkillFinder | None:
    """Who knows how to run it; None while the import system is still dressing it."""
    state = getattr(module.__spec__, "loader_state", None)
    return state if isinstance(state, SkillFinder) and module.__name__ in state.late else None


class LateLoader(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Not now, but from now on when it is looked at."""
        if module.__spec__ is not None and isinstance(module.__spec__.loader_state, SkillFinder):
            module.__spec__.loader_state.late.add(module.__name__)

    def run(self, module: ModuleType) -> None:
        super().exec_module(module)


class CodeLoader(SourceFileLoader):
    """The code of `run_code`. What Python says of code it cannot even read differs by version; here it is always a
    SyntaxError."""

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        # (typeshed knows the method of another class as a static one)
        try:
            return super().source_to_code(data, path, **options)
        except SyntaxError:
            raise
        except (ValueError, MemoryError, RecursionError) as error:
            raise SyntaxError(f"{error or 'the code is nested too deeply'} ({path.rpartition('/')[2]})") from None


class SkillFinder:
    """Finds `skills` and everything in it, and the code of `run_code`. `entrypoints` maps import names to files,
    `stubs` those of skills that run in sandboxes of their own to the skill's name and file."""

    def __init__(self, entrypoints: dict[str, str], code_path: str, stubs: dict[str, tuple[str, str]]) -> None:
        self.entrypoints = {f"skills.{name}": path for name, path in entrypoints.items()}
        self.stubs = {f"skills.{name}": stub for name, stub in stubs.items()}
        self.code_path = code_path
        self.packages = {"skills"}
        for name in (*self.entrypoints, *self.stubs):
            parts = name.split(".")
            self.packages |= {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        self.late: set[str] = set()
        self._lock = RLock()
        self._run: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self.entrypoints:
            return self._entrypoint(name, self.entrypoints[name])
        if name in self.stubs:
            return self._stub(name)
        if name in self.packages:
            return ModuleSpec(name, None, is_package=True)
        if name == CODE:
            return with_file(ModuleSpec(name, CodeLoader(name, self.code_path), origin=self.code_path))
        owner = name.rpartition(".")[0]
        if owner in self.stubs:
            raise ImportError(self._stub(owner).loader_state.explained(), name=name)
        self._run_owner(name)
        return None  # a module in a skill's own folder: the usual finders know the way

    def _entrypoint(self, name: str, path: str) -> ModuleSpec:
        late = any(other.startswith(name + ".") for other in (*self.entrypoints, *self.stubs))
        loader = (LateLoader if late else SourceFileLoader)(name, path)
        spec = ModuleSpec(name, loader, origin=path, loader_state=self, is_package=True)
        spec.submodule_search_locations = [path.rpartition("/")[0]]
        return with_file(spec)

    def _stub(self, name: str) -> ModuleSpec:
        from . import _stubs  # only now: most runs mount none

        return _stubs.spec_of(name, *self.stubs[name], self.packages)

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
                LateLoader(module.__name__, self.entrypoints[module.__name__]).run(module)
            except BaseException as error:
                module.__dict__.clear()
                module.__dict__.update(before)
                self._run.discard(module.__name__)
                if isinstance(error, AttributeError):
                    # `from x import y` would take it for "there is no y"
                    raise ImportError(f"{module.__name__}: {error}") from error
                raise


def with_file(spec: ModuleSpec) -> ModuleSpec:
    spec.has_location = True
    return spec


def import_name(skill: str) -> str:
    return skill.replace("-", "_")


def install(skills: list[dict[str, Any]], code_path: str) -> None:
    """Make the mounted skills importable, and the code as `run_code`. Each skill has `name`, `folder` and, where it can
    be imported, `entrypoint`; `stub` says that only its functions are to be had."""
    files = {s["name"]: f"{s['folder']}/{s['entrypoint']}" for s in skills if s["entrypoint"]}
    stubs = {import_name(s["name"]): (s["name"], files[s["name"]]) for s in skills if s["entrypoint"] and s["stub"]}
    paths = {name: path for name, path in files.items() if import_name(name) not in stubs}
    sys.meta_path.insert(0, SkillFinder({import_name(name): path for name, path in paths.items()}, code_path, stubs))
    for path in paths.values():
        folder = path.rpartition("/")[0]
        if folder not in sys.path:
            sys.path.append(folder)
