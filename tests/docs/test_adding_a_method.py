"""The section "Adding a method" of docs/design/changes.md works in a copy of the source tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Server

ROOT = Path(__file__).parents[2]
CHANGES = ROOT / "docs" / "design" / "changes.md"
USES_CLIENT = """
import sys
from skillery.client import Client
from skillery.client.results import Greeting
with Client(sys.argv[1]) as client:
    print(client.greet_caller(greeting="Good day")["text"], *Greeting.__required_keys__)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the source tree with the method of the page."""
    # Copies keep their modification times, so the compiled code of unchanged modules stays valid.
    for folder in ("src", "migrations", "skills", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / "tree" / folder)
    [(path, source)] = re.findall(r"`(src/[\w/.]+)`[^`]*?:\n\n +```python\n(.*?)\n +```\n", recipe(), re.DOTALL)
    (tmp_path / "tree" / path).write_text(textwrap.dedent(source) + "\n", "utf-8")
    assert "add `*greetings.METHODS,` to `METHODS`" in recipe()
    table = tmp_path / "tree" / "src/skillery/methods/table.py"
    row = "from skillery.registry import greetings\n\nMETHODS = rows(\n    *greetings.METHODS,\n"
    table.write_text(table.read_text("utf-8").replace("METHODS = rows(\n", row), "utf-8")
    return tmp_path / "tree"


def recipe() -> str:
    return CHANGES.read_text("utf-8").partition("\n## Adding a method\n")[2]


@pytest.mark.full
def test_the_recipe_makes_a_method_that_clients_and_documents_know(
    copy: Path, start_server: Callable[..., Server]
) -> None:
    path = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    for module in ("skillery.client_source.python", "skillery.client_source.docs"):
        subprocess.run([sys.executable, "-m", module], env=os.environ | path, check=True)
    server = start_server(env=path)

    assert server.rpc("greet_caller", greeting="Hi")["text"].startswith("Hi, ")
    described = server.rpc.http.get("/openrpc.json").json()
    [method] = [one for one in described["methods"] if one["name"] == "greet_caller"]
    assert method["result"]["schema"] == {"$ref": "#/components/schemas/Greeting"}
    assert described["components"]["schemas"]["Greeting"]["required"] == ["text"]
    command = [sys.executable, "-c", USES_CLIENT, server.url]
    used = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=True).stdout.split()
    assert (used[:2], used[-1]) == (["Good", "day,"], "text")
    assert "| `greet_caller` | read |" in (copy / "docs" / "reference" / "methods.md").read_text("utf-8")
    assert "## Greeting\n" in (copy / "docs" / "reference" / "results.md").read_text("utf-8")
