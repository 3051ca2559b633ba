"""README.md and SECURITY.md: examples are executed, and each named test and switched-off step exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import cellblock
from cellblock import cli

ROOT = Path(__file__).parents[1]
CHECKOUT = ROOT.parents[1]
README = (ROOT / "README.md").read_text("utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| `(test_\w+)` \| ([^|]*) ?\|$", SECURITY, re.MULTILINE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number: int, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    done = subprocess.run([sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_first_example_is_short() -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line]) <= 20


def test_commands_of_readme_have_valid_options() -> None:
    commands = re.findall(r"^cellblock (.+?)(?:  +#.*)?$", README, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        cli.parser().parse_args(shlex.split(command))


def test_readme_lists_every_public_name() -> None:
    assert [name for name in cellblock.__all__ if not re.search(rf"^\|.*`{name}`.*\|", README, re.MULTILINE)] == []


def test_each_defence_names_an_attack_and_a_step_that_exist() -> None:
    if not (CHECKOUT / "tests" / "sandbox").is_dir():
        pytest.skip("the attacks are in the checkout")
    folders = (ROOT / "tests", CHECKOUT / "tests" / "sandbox", CHECKOUT / "src" / "skillery" / "testing" / "sandbox")
    sources = "\n".join(path.read_text("utf-8") for folder in folders for path in folder.glob("*.py"))
    steps = (CHECKOUT / "tests" / "sandbox" / "test_mutations.py").read_text("utf-8")
    assert len(ROWS) > 30
    assert [test for *_, test, _ in ROWS if f"def {test}(" not in sources] == []
    assert [step.strip() for *_, step in ROWS if step.strip() and f'"{step.strip()}":' not in steps] == []
