"""The optional engine, with a small package in the place of cisco-ai-skill-scanner: process, network, failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from test_scanner_server import REFUSED, configured, create, findings
from tests.conftest import Server

ENGINE = """
import os, socket
from types import SimpleNamespace as Some

print("a library that prints")


class SkillScanner:
    def scan_skill(self, folder, *, lenient):
        text = open(os.path.join(folder, "SKILL.md")).read()
        if "crash" in text:
            os._exit(3)
        found = []
        try:
            socket.create_connection(("127.0.0.1", PORT), 2)
            found.append(Some(rule_id="CONNECTED", severity="HIGH", title="a network", file_path=None, line_number=None,
                              snippet="", description=""))
        except OSError:
            pass
        if "odd" in text:
            found.append(Some(rule_id="ODD_WORD", severity=Some(value="MEDIUM"), title="an odd word",
                              file_path="SKILL.md", line_number=2, snippet="odd  word", description=""))
        if "flood" in text:
            found += [Some(rule_id=f"HARMLESS_{n}", severity="INFO", title="harmless", file_path="SKILL.md",
                           line_number=1, snippet="", description="") for n in range(300)]
            found.append(Some(rule_id="LAST", severity="CRITICAL", title="the last", file_path="SKILL.md",
                              line_number=1, snippet="", description=""))
        return Some(findings=found)
"""


def engine(tmp_path: Path, port: int) -> str:
    """Write the package and an interpreter that finds it. Return the path of the interpreter."""
    folder = tmp_path / "site" / "skill_scanner" / "core"
    folder.mkdir(parents=True)
    (folder / "scanner.py").write_text(ENGINE.replace("PORT", str(port)))
    program = tmp_path / "python"
    start = f"import runpy, sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); sys.argv = sys.argv[2:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    program.chmod(0o700)
    return str(program)


@pytest.mark.full
def test_findings_of_the_engine_have_their_own_rules_and_no_network(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    other = start_server(home="other")  # a port that the engine could reach
    program = engine(tmp_path, int(other.url.rpartition(":")[2]))
    section = f"""
[plugins.scanner]
cisco_python = "{program}"
[plugins.scanner.namespaces."strict.*"]
block = "medium"
"""
    folder = tmp_path / "tmp"
    folder.mkdir()
    server = start_server(env={**configured(tmp_path, section), "TMPDIR": str(folder)})

    assert create(server, "a.odd", skill_md="# A\nodd word\n")["status"] == "published"
    found = findings(server, "a.odd")
    assert [(one["rule"], one["severity"], one["line"]) for one in found] == [("scanner.cisco.odd-word", "warning", 2)]
    assert create(server, "strict.odd", skill_md="# A\nodd word\n")["code"] == REFUSED
    assert create(server, "strict.fine")["status"] == "published"
    crashed = create(server, "a.crash", skill_md="# A\ncrash\n")
    assert [one["rule"] for one in crashed["data"]["findings"]] == ["scanner.failed"]
    assert "ended with the code 3" in crashed["data"]["findings"][0]["message"]
    assert create(server, "a.next")["status"] == "published"
    assert not list(folder.glob("skillery-scan-*/*")), "the next process deletes the files of the killed one"
    hidden = create(server, "a.hidden", skill_md="# A\nflood\n")
    assert "scanner.cisco.last" in [one["rule"] for one in hidden["data"]["findings"]]
    server.stop()
    assert not list(folder.glob("skillery-scan-*"))


@pytest.mark.full
def test_an_interpreter_without_the_package_refuses_every_version(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    section = f'[plugins.scanner]\ncisco_python = "{sys.executable}"\non_failure = "pass"\n'
    server = start_server(env=configured(tmp_path, section))

    assert create(server, "a.b")["status"] == "published"
    assert [(one["rule"], one["severity"]) for one in findings(server, "a.b")] == [("scanner.failed", "warning")]
