"""`import runtime` outside a sandbox: the names of the module of a run, with blobs in a temporary folder."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import runtime

from cellblock import runtime as real
from cellblock.runtime import _guest
from skillery.jobs import GUEST


def surface(module: ModuleType, names: list[str]) -> dict[str, object]:
    """The signature and the docstring of each public name, and the bases of each class."""
    found: dict[str, object] = {}
    for name in names:
        value = getattr(module, name)
        if inspect.ismodule(value):
            own = {each: one for each, one in vars(value).items() if getattr(one, "__module__", "") == value.__name__}
            public = [each for each, one in own.items() if inspect.isfunction(one) and each[0] != "_"]
            found[name] = surface(value, public)
        else:
            bases = [base.__name__ for base in value.__mro__] if inspect.isclass(value) else []
            called = vars(value).get("__init__", object) if bases else value
            found[name] = (str(inspect.signature(called)), value.__doc__, bases)
    return found


def test_the_stand_in_has_the_names_and_signatures_of_the_real_module() -> None:
    _guest.load(str(GUEST.folder), GUEST.module)
    assert runtime.__all__ == real.__all__
    assert surface(runtime, runtime.__all__) == surface(real, real.__all__)


def test_blobs_are_files_that_are_deleted_when_the_process_ends() -> None:
    code = (
        "from runtime import blobs, log, progress, summary\n"
        "blob_id = blobs.write_json({'rows': [1]})\n"
        "log.info(blobs.read_text(blob_id))\n"
        "progress(1, 2, 'half'); summary('done')\n"
        "print(blobs._path(blob_id))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    text, path = ended.stdout.splitlines()
    assert text == '{"rows": [1]}'
    assert not Path(path).parent.exists()


def test_values_are_checked_as_in_a_run() -> None:
    with pytest.raises(FileNotFoundError, match="write the input blobs of a test first"):
        runtime.blobs.read_text("blob:none")
    with pytest.raises(FileNotFoundError, match="looks like"):
        runtime.blobs.read_text("../etc/passwd")
    with pytest.raises(TypeError, match="a summary is a str"):
        runtime.summary(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="finite numbers"):
        runtime.progress(float("inf"))
    with pytest.raises(ValueError, match="255 ASCII"):
        runtime.blobs.write_text("x", "ü")
