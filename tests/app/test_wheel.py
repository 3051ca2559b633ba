"""Skillery as a wheel: built, installed into an empty environment, and served from another folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Rpc, clean_environment

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "bin" / "uv"


PLUGINS = [path.parent for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
RUN_ELSEWHERE = {
    *(f"skillery_bubblewrap.inside.{name}" for name in ("landlock", "launcher", "locking", "posture", "prologue")),
    "skillery_scanner.cisco_worker",
}
"""Modules for the sandbox, and for an environment with another package."""
IMPORT_ALL = """
import importlib, pkgutil, sys
from skillery.cli import main
package, home, *elsewhere = sys.argv[1:]
package = importlib.import_module(package)
names = [one.name for one in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in sorted(set(names) - set(elsewhere)):
    importlib.import_module(name)
print(package.__file__, flush=True)
sys.argv = ["skillery", "plugins", "list", "--json", "--home", home]
main()
"""


def build(source: Path, folder: Path) -> Path:
    """Build the wheel of a package in its own folder and return its path."""
    folder = folder / source.name
    folder.mkdir()
    options = ["--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", str(folder)]
    subprocess.run([UV, "build", *options, source], check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(folder: Path, *wheels: Path) -> Path:
    """Install wheels and their dependencies into a new environment. Return its Python."""
    environment = folder / "venv"
    python = environment / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True, cwd=folder)
    command: list[str | Path] = [UV, "pip", "install", "-q", "--python", python]
    subprocess.run([*command, "--constraint", ROOT / "requirements.lock", *wheels], check=True, cwd=folder)
    return python


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the wheels of Skillery and of its sandbox."""
    folder = tmp_path_factory.mktemp("build")
    return [build(source, folder) for source in (ROOT, ROOT / "packages/cellblock")]


@pytest.fixture(scope="module")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheels and their dependencies, and without this checkout."""
    return install(tmp_path_factory.mktemp("wheel"), *wheels)


@pytest.mark.long
def test_it_serves_from_another_folder_with_all_it_needs(installed: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [installed.parent / "skillery", "serve", "--home", tmp_path / "home", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=clean_environment()) as process:
        assert process.stdout is not None
        rpc = Rpc("http://" + process.stdout.readline().decode().split("http://")[1].split()[0])
        try:
            names = {skill["name"] for skill in rpc("list_skills")["skills"]}
            assert {"skills.protocol.guide", "text.csv.profile"} <= names
            profile = rpc("execute_skill", name="text.csv.profile", args={"sample": True})
            assert profile["status"] == "completed", profile
            script = rpc("run_code", language="javascript", code="export const main = () => 'from the wheel'")
            assert script["output"] == "from the wheel" or shutil.which("node") is None, script
            bundle = {"envelope": '{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}'}
            unverified = rpc.error("add_attestation", name="text.csv.profile", version="1.0.0", **bundle)
            assert (unverified["code"], unverified["data"]["hint"]) == (-32602, "An admin installs skillery-sigstore.")
        finally:
            process.terminate()
            assert process.wait(300) == 0


@pytest.mark.full
def test_nothing_of_the_checkout_is_used(installed: Path) -> None:
    where = "import skillery; from skillery.database import migrate as m; print(skillery.__file__, m.PACKAGED.is_dir())"
    shown = subprocess.run([installed, "-c", where], check=True, capture_output=True, text=True, cwd="/").stdout

    assert str(installed.parents[1]) in shown
    assert shown.strip().endswith("True")


def test_no_plugin_package_is_in_it(installed: Path) -> None:
    for name in (plugin.name.replace("-", "_") for plugin in PLUGINS):
        found = subprocess.run([installed, "-c", f"import {name}"], capture_output=True, text=True, check=False)
        assert f"No module named '{name}'" in found.stderr


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_is_installed_alone(plugin: Path, wheels: list[Path], tmp_path: Path) -> None:
    """Its own dependencies are enough for all of its modules, and `skillery` finds the plugin."""
    python = install(tmp_path, *wheels, build(plugin, tmp_path))
    name = plugin.name.removeprefix("skillery-")
    command: list[str | Path] = [python, "-c", IMPORT_ALL, f"skillery_{name}", tmp_path / "home", *RUN_ELSEWHERE]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=clean_environment())
    assert ended.returncode == 0, ended.stderr
    file, _, listed = ended.stdout.partition("\n")
    [row] = [one for one in json.loads(listed)["plugins"] if one["package"] == plugin.name]

    assert str(tmp_path) in file
    assert row["version"] == "0.1.0"


# -- make demo -------------------------------------------------------------------------------------------------------

MAX_MB = 150
DEMO_FILES = (
    "Makefile",
    "pyproject.toml",
    "requirements-server.lock",
    "README.md",
    "LICENSE",
    "migrations",
    "packaging",
    "skills",
)


def test_the_demo_installs_versions_of_the_development_lock() -> None:
    pins = {
        name: set(re.findall(r"^([a-z].*?) \\$", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements-server.lock", "requirements.lock")
    }

    assert pins["requirements-server.lock"]
    assert pins["requirements-server.lock"] <= pins["requirements.lock"]


@pytest.mark.full
@pytest.mark.long
def test_make_demo_installs_no_plugins_and_no_development_tools(tmp_path: Path) -> None:
    for name in (*DEMO_FILES, "src", "packages/cellblock"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    (tmp_path / ".tools" / "bin").mkdir(parents=True)
    shutil.copy2(UV, tmp_path / ".tools" / "bin")
    command = ["make", "demo", f"PYTHON={sys.executable}"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    os.kill(int(re.findall(r"Stop it: kill (\d+)", shown.stdout)[0]), signal.SIGTERM)
    files = [path for path in (tmp_path / ".venv").rglob("*") if path.is_file() and not path.is_symlink()]

    assert "installing Skillery and " in shown.stdout
    assert "All steps succeeded." in shown.stdout
    assert sum(path.stat().st_size for path in files) < MAX_MB * 1024 * 1024
    assert [path.name for path in files if re.match(r"(pytest|mypy|skillery_\w+)-", path.parent.name)] == []
