"""Skillery as a wheel: built, installed into an empty environment, and served from another folder."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Rpc, clean_environment

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "bin" / "uv"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel and its dependencies, and without this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = folder / "venv"
    python = environment / "bin" / "python"
    commands: list[list[str | Path]] = [
        [
            UV,
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            ROOT,
        ],
        [UV, "venv", "--quiet", "--python", sys.executable, environment],
    ]
    for command in commands:
        subprocess.run(command, check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    lock = ROOT / "requirements.lock"
    install: list[str | Path] = [UV, "pip", "install", "-q", "--python", python, "--constraint", lock, wheel]
    subprocess.run(install, check=True, cwd=folder)
    return python


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
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_nothing_of_the_checkout_is_used(installed: Path) -> None:
    where = "import skillery; from skillery.database import migrate as m; print(skillery.__file__, m.PACKAGED.is_dir())"
    shown = subprocess.run([installed, "-c", where], check=True, capture_output=True, text=True, cwd="/").stdout

    assert str(installed.parents[1]) in shown
    assert shown.strip().endswith("True")


def test_no_plugin_package_is_in_it(installed: Path) -> None:
    found = subprocess.run([installed, "-c", "import skillery_bubblewrap"], capture_output=True, text=True, check=False)

    assert "No module named 'skillery_bubblewrap'" in found.stderr
