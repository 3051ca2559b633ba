"""The import of the code of a run, which is in no file, and of modules that the guest provides."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from . import _guest

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

CODE, ENTRY = "run_code", "entry"
"""The names of the module of the code, and of a file that a run executes."""
FORKING = "multiprocessing.context"


class CodeLoader(SourceFileLoader):
    """Loader for the code of a run, which is in no file.

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


class DirectLoader(SourceFileLoader):
    """Loader of a module of the guest that `load` executes without the import system, which would cost half a
    millisecond. The parents of such a module have no loader.
    """


class Finder:
    """Finder for the code of the run, as the module `run_code`, and for modules that the guest provides."""

    def __init__(self) -> None:
        self.code: CodeLoader | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == CODE and self.code is not None:
            return with_file(ModuleSpec(name, self.code, origin=self.code.path))
        if name == FORKING and sys.platform == "linux":
            return forking(path)
        spec: ModuleSpec | None = _guest.USED["modules"](name)
        return spec


def forking(path: Any) -> ModuleSpec | None:
    """Return the spec of `multiprocessing.context` with `fork` as its default, which Python 3.14 has changed.

    The other ways need sockets with names, which only programs may have.
    """
    spec = PathFinder.find_spec(FORKING, path)
    loader: Any = spec and spec.loader
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        module._default_context = module.DefaultContext(module._concrete_contexts["fork"])

    loader.exec_module = exec_module
    return spec


def load(job: dict[str, Any]) -> ModuleType:
    """Import the module of the job: its code, its file, or a module that the run can import."""
    if job["code"] is not None:
        code = FINDER.code = CodeLoader(job["code"], job["code_path"])
        return run_module(ModuleSpec(CODE, code, origin=code.path), code)
    if job["file"] is not None:
        sys.path.append(job["file"].rpartition("/")[0])
        file = SourceFileLoader(ENTRY, job["file"])
        return run_module(ModuleSpec(ENTRY, file, origin=file.path), file)
    name: str = job["module"]
    spec = FINDER.find_spec(name)
    if spec is None or not isinstance(spec.loader, DirectLoader):
        return importlib.import_module(name)
    parents = name.split(".")[:-1]
    for length in range(1, len(parents) + 1):
        add(bare_module(ModuleSpec(".".join(parents[:length]), None, is_package=True)))
    return run_module(spec, spec.loader)


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


FINDER = Finder()
