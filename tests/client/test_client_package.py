"""skillery-client: the client as a separate package, built and installed without the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Server, clean_environment, publisher

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
RUN = """
import sys
for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop"):  # Windows does not have them
    sys.modules[name] = None
from skillery.client import Client
with Client(sys.argv[1]) as client:
    run = client.run_code("python", "def main(args):\\n    return 6 * 7\\n")
    print(run["output"], len(client.tools("openai")))
"""
VERIFY = """
import importlib, json, pkgutil, sys
import httpx, skillery.proof
for module in pkgutil.iter_modules(skillery.proof.__path__, "skillery.proof."):
    importlib.import_module(module.name)
from skillery.proof.keychains import follow
from skillery.proof.locks import choose_proof
from skillery.proof.statements import check_files

url, name, digest = sys.argv[1:]
statements = json.loads(httpx.get(url + skillery.proof.KEYS_ADDRESS).content)["statements"]
keys = follow([json.dumps(statement, separators=(",", ":")).encode() for statement in statements]).trusted
check_files(httpx.get(f"{url}/skills/{name}/1.0.0.files").content, digest)
envelopes = httpx.get(f"{url}/skills/{name}/1.0.0.intoto.jsonl").content.splitlines()
print(choose_proof(envelopes, keys, name, "1.0.0", digest).signer)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the built wheel and its dependencies alone."""
    folder = tmp_path_factory.mktemp("client")
    made = folder / "venv" / "bin" / "python"
    build: list[str | Path] = [UV, "build", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "--out-dir", folder, ROOT / "packages" / "skillery-client"], check=True)
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    (wheel,) = folder.glob("*.whl")  # built from the source archive
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", made]
    subprocess.run([*install, "--constraint", ROOT / "requirements.lock", wheel], check=True, cwd=folder)
    return made


def test_the_client_works_without_the_server_package(python: Path, sqlite_server: Server) -> None:
    command: list[str | Path] = [python, "-I", "-c", RUN, sqlite_server.url]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(), cwd="/")

    assert (ran.stdout, ran.stderr) == ("42 9\n", "")


def test_it_requires_httpx_and_msgspec_alone(python: Path) -> None:
    lines = "(line for line in requires('skillery-client') if 'extra' not in line)"
    code = f"from importlib.metadata import requires; print(*{lines})"
    asked = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    others = subprocess.run([python, "-I", "-c", "import skillery.app"], capture_output=True, text=True, check=False)

    assert [line.partition("<")[0].partition(">")[0] for line in asked.split()] == ["httpx", "msgspec"]
    assert "No module named 'skillery.app'" in others.stderr


@pytest.mark.full
def test_the_client_with_its_extra_verifies_versions(python: Path, sqlite_server: Server, new_name: str) -> None:
    digest = publisher(sqlite_server.rpc)(new_name)["digest"]
    (wheel,) = python.parents[2].glob("*.whl")
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", python]
    extra = f"skillery-client[verify] @ {wheel.as_uri()}"
    subprocess.run([*install, "--constraint", ROOT / "requirements.lock", extra], check=True, cwd=wheel.parent)
    command: list[str | Path] = [python, "-I", "-c", VERIFY, sqlite_server.url, new_name, digest]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=clean_environment(), cwd="/")

    assert (ran.stdout, ran.stderr) == ("local\n", "")
