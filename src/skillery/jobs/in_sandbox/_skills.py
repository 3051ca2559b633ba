"""The import of mounted skills: `skills.<name>` is the entrypoint module, and a package over the folder of the
entrypoint.

Python imports parent packages first. But the entrypoint of `skills.a.b` must not run because the code imports the skill
`skills.a.b.c`. So a skill with other skills below it becomes a module that runs when the code first accesses one of its
own names.
"""

from __future__ import annotations

import importlib
import sys
from _thread import RLock
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime._importing import DirectLoader, with_file
else:
    from ._importing import DirectLoader, with_file


class LateModule(ModuleType):
    """The module of a skill with other skills below it.

    Its entrypoint runs when the code first accesses a name that is not one of these skills.
    """

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
    """Return the finder that can run the module; None while Python is still initialising the module."""
    state = getattr(module.__spec__, "loader_state", None)
    return state if isinstance(state, SkillFinder) and module.__name__ in state.late else None


class LateLoader(SourceFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return LateModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Mark the module, so that it runs at the first access."""
        if module.__spec__ is not None and isinstance(module.__spec__.loader_state, SkillFinder):
            module.__spec__.loader_state.late.add(module.__name__)

    def run(self, module: ModuleType) -> None:
        super().exec_module(module)


class SkillFinder:
    """Finder for `skills` and for all modules of skills.

    `entrypoints` maps import names to files. `stubs` maps the import names of skills that run in separate sandboxes to
    the names and files of these skills.
    """

    def __init__(self) -> None:
        self.entrypoints: dict[str, str] = {}
        self.stubs: dict[str, tuple[str, str]] = {}
        self.packages = {"skills"}
        self.late: set[str] = set()
        self._lock = RLock()
        self._run: set[str] = set()

    def mount(self, skills: list[dict[str, Any]]) -> None:
        """Make the mounted skills importable.

        Each skill has `name`, `module`, `folder` and, if it can be imported, `entrypoint`. A skill with `stub` offers
        only functions.
        """
        for skill in skills:
            if skill["entrypoint"]:
                self._mount_one(skill, skill["module"], f"{skill['folder']}/{skill['entrypoint']}")

    def _mount_one(self, skill: dict[str, Any], name: str, path: str) -> None:
        if skill["stub"]:
            self.stubs[name] = (skill["name"], path)
        else:
            self.entrypoints[name] = path
            folder = path.rpartition("/")[0]
            if folder not in sys.path:
                sys.path.append(folder)
        while name not in self.packages:
            self.packages.add(name)
            name = name.rpartition(".")[0]

    def find_spec(self, name: str) -> ModuleSpec | None:
        if name in self.entrypoints:
            return self._entrypoint(name, self.entrypoints[name])
        if name in self.stubs:
            return self._stub(name)
        if name in self.packages:
            return ModuleSpec(name, None, is_package=True)
        owner = name.rpartition(".")[0]
        if owner in self.stubs:
            raise ImportError(self._stub(owner).loader_state.explained(), name=name)
        self._run_owner(name)
        return None  # the usual finders import modules of a skill's folder

    def _entrypoint(self, name: str, path: str) -> ModuleSpec:
        late = any(other.startswith(name + ".") for other in (*self.entrypoints, *self.stubs))
        is_alone = len(self.entrypoints) == 1 and not self.stubs
        kind = LateLoader if late else DirectLoader if is_alone else SourceFileLoader
        loader = kind(name, path)
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
        """Run the entrypoint of the module, unless it has run. If it raises, the next access runs it again."""
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
                    # `from x import y` would report an AttributeError as a missing name.
                    raise ImportError(f"{module.__name__}: {error}") from error
                raise


FINDER = SkillFinder()
