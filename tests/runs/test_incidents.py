"""Incidents: what a version, a secret, an identity or a host has touched, and the commands that stop it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.browser import Browser
from tests.support.people import Caller, Who
from tests.support.processes import eventually

CONNECTS = """
import urllib.request
def main(args):
    try:
        urllib.request.urlopen('https://evil.HOST/')
    except OSError:
        pass
"""


class Scene:
    """A skill of one publisher, which others have run, and an admin."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.namespace, self.name = url, name, f"{name}.fetch"
        self.host = f"{name}.example.com"
        self.version = f"{self.name}@1.0.0"
        self.owner = self.caller(f"olga{name}", "read run publish", f"{name}.*")
        self.reviewer = self.caller(f"rosa{name}", "read review")
        self.admin = self.caller("ada", "admin")
        code = CONNECTS.replace("HOST", self.host)
        self.owner.create(self.name, code=code, permissions={"network": [f"https://*.{self.host}"]})

    def caller(self, name: str, scopes: str = "read run", grants: str = "", kind: str = "person") -> Caller:
        return Caller(self.url, Who(name, scopes, grants, kind))

    def report(self, subject: str, name: str, **more: Any) -> Any:
        return self.admin("get_incident", subject=subject, name=name, **more)


@pytest.fixture
def scene(org: Server, new_name: str) -> Scene:
    return Scene(org.url, f"{new_name}z")


def commands(report: dict[str, Any]) -> list[str]:
    return [command["command"] for command in report["commands"]]


@pytest.mark.full
def test_the_report_of_a_version_has_runs_callers_hosts_copies_and_commands(scene: Scene) -> None:
    una, name = scene.caller(f"una{scene.namespace}"), scene.name
    runs = [una("execute_skill", name=name)["run_id"] for _ in range(2)]
    runs.append(scene.owner("execute_skill", name=name)["run_id"])
    mounting = una("run_code", language="python", code="pass", mount_skills=[name])["run_id"]
    una.http.headers["user-agent"] = "agent/1"
    una("read_skill_file", name=name, path="SKILL.md")

    report = eventually(lambda: (answer := scene.report("version", scene.version))["copies"] and answer)

    assert [run["run_id"] for run in report["runs"]] == [mounting, *reversed(runs)]
    assert (report["runs_total"], report["active"], report["cut"]) == (4, 0, [])
    assert [(caller["identity"], caller["runs"]) for caller in report["callers"]] == [
        (f"una{scene.namespace}", 3),
        (f"olga{scene.namespace}", 1),
    ]
    [version] = report["versions"]
    assert (version["status"], version["publisher"], version["runs"]) == ("published", f"olga{scene.namespace}", 3)
    [host] = report["hosts"]
    assert (host["host"], host["runs"] + host["refused"]) == (f"evil.{scene.host}", 3)
    [copy] = report["copies"]
    assert (copy["identity"], copy["client"], copy["loads"]) == (f"una{scene.namespace}", "agent", 1)
    assert commands(report) == [
        f"skillery yank {scene.version} --severity malicious --reason …",
        f"skillery offboard olga{scene.namespace}",
    ]


@pytest.mark.full
def test_the_report_of_an_identity_has_runs_versions_and_approvals(scene: Scene) -> None:
    agent = scene.caller(f"bot{scene.namespace}", "read run publish", f"{scene.namespace}.*", "agent")
    agent.create(f"{scene.namespace}.draft")
    agent("submit_version", name=f"{scene.namespace}.draft", version="1.0.0")
    scene.reviewer("approve_version", name=f"{scene.namespace}.draft", version="1.0.0", note="fine")
    run = agent("execute_skill", name=scene.name)["run_id"]

    report = scene.report("identity", f"bot{scene.namespace}")

    assert [row["run_id"] for row in report["runs"]] == [run]
    assert {(row["name"], row["runs"]) for row in report["versions"]} == {
        (scene.name, 1),
        (f"{scene.namespace}.draft", 0),
    }
    assert commands(report) == [
        f"skillery offboard bot{scene.namespace}",
        f"skillery yank {scene.namespace}.draft@1.0.0 --severity malicious --reason …",
    ]
    approvals = scene.report("identity", f"rosa{scene.namespace}")["approvals"]
    assert [(step["name"], step["step"], step["note"]) for step in approvals] == [
        (f"{scene.namespace}.draft", "approve", "fine")
    ]


@pytest.mark.full
def test_the_report_of_a_host_has_runs_with_connections(scene: Scene) -> None:
    run = scene.owner("execute_skill", name=scene.name)["run_id"]
    scene.owner.create(f"{scene.namespace}.idle", permissions={"network": [f"https://evil.{scene.host}"]})

    report = scene.report("host", f"evil.{scene.host}")

    assert [row["run_id"] for row in report["runs"]] == [run]
    # Skills of other cases may connect to each host.
    versions = [row["name"] for row in report["versions"] if row["name"].startswith(scene.namespace)]
    assert versions == [scene.name, f"{scene.namespace}.idle"]
    assert [row["run_id"] for row in scene.report("host", f"*.{scene.host}")["runs"]] == [run]
    assert scene.report("host", f"vil.{scene.host}")["runs_total"] == 0
    assert scene.admin.error("get_incident", subject="host", name="no host")["data"]["param"] == "name"


@pytest.mark.full
def test_the_report_of_a_secret_has_runs_and_declaring_versions(scene: Scene) -> None:
    secret = f"{scene.namespace.upper()}_KEY"
    scene.owner.create(f"{scene.namespace}.keyed", permissions={"secrets": [secret]})
    scene.owner.create(f"{scene.namespace}.other", permissions={"secrets": [f"{secret}S"]})
    run = scene.owner("execute_skill", name=f"{scene.namespace}.keyed", args={"who": "x"})["run_id"]
    scene.owner("execute_skill", name=f"{scene.namespace}.other", args={"who": "x"})

    report = scene.report("secret", secret)

    assert [row["run_id"] for row in report["runs"]] == [run]
    assert [row["name"] for row in report["versions"]] == [f"{scene.namespace}.keyed"]
    assert commands(report)[0] == f"skillery secret set {secret}"


@pytest.mark.full
def test_long_lists_are_cut_and_runs_have_pages(scene: Scene) -> None:
    runs = [scene.caller(f"c{number}")("execute_skill", name=scene.name)["run_id"] for number in range(3)]

    first = scene.report("version", scene.version, limit=2)
    second = scene.report("version", scene.version, limit=2, cursor=first["next_cursor"])

    assert [run["run_id"] for page in (first, second) for run in page["runs"]] == runs[::-1]
    assert (first["runs_total"], len(first["callers"]), first["cut"]) == (3, 2, ["callers"])
    assert second["next_cursor"] is None
    assert scene.report("version", scene.version, since="2030-01-01T00:00:00Z")["runs"] == []


def test_unknown_versions_have_no_report(scene: Scene) -> None:
    assert scene.admin.error("get_incident", subject="version", name=scene.name)["data"]["type"] == "version_not_found"
    assert scene.report("identity", "nobody-of-this-name")["runs_total"] == 0


@pytest.mark.full
def test_the_command_prints_the_report_of_a_subject(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server()
    Rpc(server.url)("execute_skill", name="text.csv.profile", args={"sample": True})
    version = skillery("versions", "text.csv.profile", "--url", server.url, "--json").json["versions"][0]["version"]

    text = skillery("incident", "--version", f"text.csv.profile@{version}", "--url", server.url)
    report = skillery("incident", "--identity", "local", "--url", server.url, "--json").json
    several = skillery("incident", "--identity", "x", "--host", "y.example.com", "--url", server.url)

    assert text.out.startswith(f"version text.csv.profile@{version}: 1 runs, 0 active")
    assert f"skillery yank text.csv.profile@{version} --severity malicious" in text.out
    assert report["runs_total"] == 1
    assert several.code == 2


@pytest.mark.full
def test_the_page_shows_the_report_to_admins(scene: Scene) -> None:
    run = scene.owner("execute_skill", name=scene.name)["run_id"]
    browser = Browser(scene.url, **{"x-who": "ada;person;admin;"})

    page = browser.get(f"/admin/incident?subject=version&name={scene.version}").text

    assert run in page
    assert 'data-user="ada"' in page
    assert f"skillery yank {scene.version}" in page
    wrong = browser.get("/admin/incident?subject=version&name=absent").text
    assert "no version is called" in wrong
