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
from skillery.client.results import OldestDeadLetter
with Client(sys.argv[1]) as client:
    print(client.find_oldest_dead_letter(sys.argv[2])["died_at"], *OldestDeadLetter.__required_keys__)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the source tree with the method of the page."""
    tree = tmp_path / "tree"
    # Copies keep their modification times, so the compiled code of unchanged modules stays valid.
    for folder in ("src", "migrations", "skills", "docs"):
        shutil.copytree(ROOT / folder, tree / folder)
    shutil.copy(ROOT / "pyproject.toml", tree)  # has the format of generated code
    recipe = CHANGES.read_text("utf-8").partition("\n## Adding a method\n")[2].partition("\n## ")[0]
    code, paragraph = (textwrap.dedent(block) for block in re.findall(r"\n +```\w+\n(.*?)\n +```\n", recipe, re.DOTALL))
    [module] = re.findall(r"before `METHODS` in `(.*)`", recipe)
    [row] = re.findall(r"Add `(Method\(.*\))` to `METHODS`", recipe)
    replace(tree / module, "METHODS = (", f"{code}\n\n\nMETHODS = ({row}, ")
    replace(tree / "docs/reference/methods.md", "### add_trust_rule\n", f"{paragraph}\n\n### add_trust_rule\n")
    return tree


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def contents(tree: Path) -> set[tuple[str, bytes]]:
    files = (path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {(path.relative_to(tree).as_posix(), path.read_bytes()) for path in files}


@pytest.mark.full
def test_the_recipe_makes_a_method_that_clients_and_documents_know(
    copy: Path, start_server: Callable[..., Server]
) -> None:
    path = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    before = contents(copy)
    for module in ("skillery.client_source.python", "skillery.client_source.docs"):
        subprocess.run([sys.executable, "-m", module], env=os.environ | path, check=True)
    assert {name for name, _ in contents(copy) - before} == {
        "src/skillery/client/generated.py",
        "docs/reference/methods.md",
    }
    server = start_server(env=path)
    webhook_id = server.rpc("add_webhook", url="http://localhost:9/")["id"]

    assert server.rpc("find_oldest_dead_letter", id=webhook_id) == {"died_at": None}
    described = server.rpc.http.get("/openrpc.json").json()
    [method] = [row for row in described["methods"] if row["name"] == "find_oldest_dead_letter"]
    assert method["result"]["schema"] == {"$ref": "#/components/schemas/OldestDeadLetter"}
    assert described["components"]["schemas"]["OldestDeadLetter"]["required"] == ["died_at"]
    command = [sys.executable, "-c", USES_CLIENT, server.url, webhook_id]
    used = subprocess.run(command, env=os.environ | path, capture_output=True, text=True, check=True).stdout.split()
    assert used == ["None", "died_at"]
    assert "| `find_oldest_dead_letter` | admin |" in (copy / "docs" / "reference" / "methods.md").read_text("utf-8")
