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

from . import _guest

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

CODE = "run_code"


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


class CodeLoader(SourceFileLoader):
    """Loader for the code of `run_code`, which is in no file.

    Python versions raise different errors for code that cannot be decoded. This loader always raises SyntaxError.
    """

    def __init__(self, code: str, path: str) -> None:
        super().__init__(CODE, path)
        self._code = code

    def get_data(self, path: Any) -> bytes:
        """Return the code, for the import, for tracebacks and for `inspect`. Raise FileNotFoundError for any other
        path.
        """
        if path != self.path:
            raise FileNotFoundError(path)
        return self._code.encode("utf-8", "surrogatepass")

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:  # type: ignore[override]
        # typeshed declares the method of another class as static.
        try:
            return super().source_to_code(data, path, **options)
        except SyntaxError:
            raise
        except (ValueError, MemoryError, RecursionError) as error:
            raise SyntaxError(f"{error or 'the code is nested too deeply'} ({path.rpartition('/')[2]})") from None


class SkillFinder:
    """Finder for `skills`, for all modules of skills, and for the code of `run_code`.

    `entrypoints` maps import names to files. `stubs` maps the import names of skills that run in separate sandboxes to
    the names and files of these skills.
    """

    def __init__(self) -> None:
        self.entrypoints: dict[str, str] = {}
        self.stubs: dict[str, tuple[str, str]] = {}
        self.code: CodeLoader | None = None
        self.packages = {"skills"}
        self.late: set[str] = set()
        self._lock = RLock()
        self._run: set[str] = set()

    def mount(self, skills: list[dict[str, Any]], code: str | None, code_path: str) -> None:
        """Make the mounted skills importable, and the code as the module `run_code`.

        Each skill has `name`, `folder` and, if it can be imported, `entrypoint`. A skill with `stub` offers only
        functions.
        """
        if code is not None:
            self.code = CodeLoader(code, code_path)
        for skill in skills:
            if skill["entrypoint"]:
                self._mount_one(
                    skill, "skills." + import_name(skill["name"]), f"{skill['folder']}/{skill['entrypoint']}"
                )

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

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in self.entrypoints:
            return self._entrypoint(name, self.entrypoints[name])
        if name in self.stubs:
            return self._stub(name)
        if name in self.packages:
            return ModuleSpec(name, None, is_package=True)
        if name == CODE and self.code is not None:
            return with_file(ModuleSpec(name, self.code, origin=self.code.path))
        owner = name.rpartition(".")[0]
        if owner in self.stubs:
            raise ImportError(self._stub(owner).loader_state.explained(), name=name)
        spec: ModuleSpec | None = _guest.USED["modules"](name)
        if spec is None:
            self._run_owner(name)
        return spec  # if it is None, the usual finders import modules of a skill's folder

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

    def load(self, name: str) -> ModuleType:
        """Import an entrypoint or the code, like importlib.import_module.

        The code, and the entrypoint of a skill that is mounted alone, are executed without the import system, which
        would cost half a millisecond.
        """
        if name == CODE and self.code is not None:
            return run_module(ModuleSpec(name, self.code, origin=self.code.path), self.code)
        if len(self.entrypoints) > 1 or self.stubs or name not in self.entrypoints:
            return importlib.import_module(name)
        parents = name.split(".")[:-1]
        for length in range(1, len(parents) + 1):
            add(bare_module(ModuleSpec(".".join(parents[:length]), None, is_package=True)))
        path = self.entrypoints[name]
        loader = SourceFileLoader(name, path)
        spec = ModuleSpec(name, loader, origin=path, is_package=True)
        spec.submodule_search_locations = [path.rpartition("/")[0]]
        return run_module(spec, loader)

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


def bare_module(spec: ModuleSpec) -> ModuleType:
    module = ModuleType(spec.name)
    module.__spec__ = spec
    module.__loader__ = spec.loader
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    if spec.origin is not None:
        module.__file__ = spec.origin
    return module


def add(module: ModuleType) -> None:
    sys.modules[module.__name__] = module
    parent, _, name = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], name, module)


def run_module(spec: ModuleSpec, loader: SourceFileLoader) -> ModuleType:
    """Execute a module and return it. If the execution fails, the module is removed from sys.modules."""
    module = bare_module(with_file(spec))
    add(module)
    try:
        exec(loader.source_to_code(loader.get_data(loader.path), loader.path), module.__dict__)  # noqa: S102 - runs the module
    except BaseException:
        sys.modules.pop(spec.name, None)
        raise
    return module


def with_file(spec: ModuleSpec) -> ModuleSpec:
    spec.has_location = True
    return spec


def import_name(skill: str) -> str:
    return skill.replace("-", "_")


FINDER = SkillFinder()
