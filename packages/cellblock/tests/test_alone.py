"""The wheel of the library in an environment without Skillery: its tests run there, and its command works."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UV = ROOT.parents[1] / ".tools" / "bin" / "uv"
OF_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
TESTS = ("test_sandbox.py", "test_guest.py", "test_cli.py", "test_docs.py")
ONLY_CELLBLOCK = """
import importlib.metadata, importlib.util
assert [one.name for one in importlib.metadata.distributions()] == ["cellblock"]
assert not any(importlib.util.find_spec(name) for name in ("skillery", "msgspec"))
"""

pytestmark = [pytest.mark.full, pytest.mark.long]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that has only the wheel. Nothing is downloaded."""
    if not UV.exists():
        pytest.skip("uv is not there: `make test` installs it")
    folder = tmp_path_factory.mktemp("alone")
    options = ["--quiet", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable]
    subprocess.run([UV, "build", *options, "--out-dir", folder, ROOT], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    installed = folder / "venv" / "bin" / "python"
    subprocess.run([UV, "pip", "install", "-q", "--offline", "--no-deps", "--python", installed, wheel], check=True)
    return installed


def test_environment_has_only_the_wheel_and_its_command_works(python: Path, tmp_path: Path) -> None:
    subprocess.run([python, "-I", "-c", ONLY_CELLBLOCK], check=True, cwd=tmp_path)
    (tmp_path / "code.py").write_text("def main(args): return args")
    command: list[str | Path] = [python.parent / "cellblock", "run", "code.py", "--args", "[1]"]
    assert subprocess.run(command, check=True, cwd=tmp_path, env={}, capture_output=True).stdout == b"[1]\n"


def test_tests_of_the_library_pass_without_skillery(python: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # pytest alone, on the path of this process only
    tools.mkdir()
    for name in OF_PYTEST:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (tools / source.name).symlink_to(source)
    package = tmp_path / "cellblock"
    shutil.copytree(ROOT / "tests", package / "tests")
    for name in ("README.md", "SECURITY.md"):
        shutil.copy(ROOT / name, package)
    markers = "markers =\n full: only in the complete suite\n long: takes longer"
    (package / "pytest.ini").write_text(f"[pytest]\naddopts = -p no:cacheprovider\n{markers}\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tools)}
    # Cases with the mark `full` only repeat the imports and files that the others use.
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-m", "not full"]
    command += [package / "tests" / name for name in TESTS]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
