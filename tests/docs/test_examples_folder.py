"""examples/: each agent runs as a process, with the SDK of its model, a scripted model and a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, clean_environment
from tests.support.fake_model import FakeModel, Heard, Wanted

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENTS = sorted(path.name for path in EXAMPLES.glob("*_agent.py"))
CSV = "city,people\nOslo,709000\nBergen,291000\n"


def loads_the_guide(_: Sequence[Heard]) -> Sequence[Wanted]:
    return [Wanted("load_skills_protocol_guide")]


def looks_around(heard: Sequence[Heard]) -> Sequence[Wanted]:
    assert "list_skills" in heard[-1].content["content"]
    return [
        Wanted("list_skills", {"namespace": "text", "detail": "summary"}),
        Wanted("describe_skill", {"name": "text.csv.profil"}),
    ]


def heeds_the_hint(heard: Sequence[Heard]) -> Sequence[Wanted]:
    assert heard[-1].is_error in {True, None}
    hint = heard[-1].content["error"]["data"]["hint"]
    assert "text.csv.profile" in hint
    return [Wanted("describe_skill", {"name": "text.csv.profile"})]


def uploads(heard: Sequence[Heard]) -> Sequence[Wanted]:
    assert heard[-1].content["skill"]["manifest"]["inputs"]["csv_blob"]["type"] == "blob"
    return [Wanted("create_blob", {"content": CSV, "kind": "text/csv"})]


def runs(heard: Sequence[Heard]) -> Sequence[Wanted]:
    blob = heard[-1].content["blob_id"]
    return [Wanted("execute_skill", {"name": "text.csv.profile", "args": {"csv_blob": blob}})]


def ends(heard: Sequence[Heard]) -> str:
    run = heard[-1].content
    assert run["status"] == "completed", run
    return f"The file has {run['output']['rows']} rows."


SCRIPT = (loads_the_guide, looks_around, heeds_the_hint, uploads, runs, ends)


def run_example(name: str, question: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), question]
    return subprocess.run(
        command, env=clean_environment(environment), capture_output=True, text=True, timeout=300, check=False
    )


HAS_MCP = find_spec("skillery.mcp") is not None
OVER_MCP = pytest.mark.skipif(not HAS_MCP, reason="this server has no POST /mcp")


@pytest.mark.full
@pytest.mark.parametrize("name", [pytest.param(name, marks=[OVER_MCP] * name.startswith("mcp")) for name in AGENTS])
def test_an_agent_lists_describes_uploads_and_runs(name: str, sqlite_server: Server) -> None:
    with FakeModel(*SCRIPT) as model:
        ended = run_example(
            name,
            "How many rows has my file?",
            SKILLERY_URL=sqlite_server.url,
            OPENAI_BASE_URL=f"{model.url}/v1",
            OPENAI_API_KEY="none",
            MODEL="scripted",
            ANTHROPIC_BASE_URL=model.url,
            ANTHROPIC_API_KEY="none",
        )

        assert (ended.stdout, ended.returncode) == ("The file has 2 rows.\n", 0), ended.stderr[-2000:]
        assert model.turns == []
        assert "`run_code`" in system_prompt(model.requests[0])


def system_prompt(asked: dict[str, Any]) -> str:
    return str(asked["system"] if "system" in asked else asked["messages"][0]["content"])


@pytest.mark.parametrize("name", AGENTS)
def test_its_loop_takes_ten_lines(name: str) -> None:
    source = (EXAMPLES / name).read_text("utf-8")
    loop = re.search(r"^( *)while True:\n(?:\1 .*\n)+", source, re.MULTILINE)

    assert loop is not None
    assert loop[0].count("\n") <= 10
