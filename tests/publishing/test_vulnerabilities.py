"""`scan.osv_dir`: known vulnerabilities of locked packages, from a folder with an OSV archive."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import NO_SANDBOX_PROBES, Rpc, Server, skill_files
from tests.environments.test_npm_packages import NODE, params
from tests.environments.test_npm_packages import settings as npm_settings
from tests.support.needing import CODE, create, needing
from tests.support.npm_registry import NpmRegistry
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

EVENTS = """
from pathlib import Path

from skillery import hookimpl

LINES = Path(__file__).with_name("events")


@hookimpl
def events(event):
    if event.type == "finding":
        with LINES.open("a") as file:
            rules = " ".join(finding["rule"] for finding in event.data["findings"])
            file.write(f"{event.data['name']}@{event.data['version']} {rules}\\n")
"""


def record(osv_id: str, package: str, *events: dict[str, str], ecosystem: str = "PyPI", **more: Any) -> dict[str, Any]:
    """Return a record of OSV about one package, whose versions the events describe."""
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    affected = {"package": {"ecosystem": ecosystem, "name": package}, "ranges": ranges, **more.pop("affected", {})}
    return {"id": osv_id, "modified": "2026-11-01T00:00:00Z", "affected": [affected], **more}


def store(folder: Path, *records: dict[str, Any]) -> None:
    """Write an archive as osv.dev publishes it: a zip file of JSON files."""
    partial = folder / "all.partial"
    with zipfile.ZipFile(partial, "w") as archive:
        for each in records:
            archive.writestr(f"{each['id']}.json", json.dumps(each))
    partial.rename(folder / "all.zip")


class Registry:
    """A server with an archive, and packages in two versions."""

    def __init__(self, folder: Path, start_server: Callable[..., Server]) -> None:
        self.archive, self.events = folder / "osv", folder / "plugins" / "events"
        for path in (self.archive, self.events.parent, house := folder / "house"):
            path.mkdir()
        (self.events.parent / "told.py").write_text(EVENTS)
        for version in ("1.0", "2.0"):
            make_wheel(house, "frames", version)
        self.env = {
            "SKILLERY_SCAN_OSV_DIR": str(self.archive),
            "SKILLERY_SCAN_OSV_SECONDS": "0.1",
            "SKILLERY_PACKAGES_WHEELHOUSE": str(house),
            "SKILLERY_PLUGINS_FOLDER": str(self.events.parent),
        }
        self._start = start_server

    def start(self) -> Rpc:
        self.server = self._start(env=self.env)
        return self.server.rpc

    def findings(self, rpc: Rpc, name: str, version: str = "1.0.0") -> dict[str, str]:
        skill = rpc("describe_skill", name=name, version=version)["skill"]
        return {finding["rule"]: finding["message"] for finding in skill.get("findings", ())}

    def vulnerabilities(self, rpc: Rpc, name: str) -> str:
        return str(rpc("explain_policy", name=name)["vulnerabilities"])

    def skill(self, name: str, *dependencies: str) -> dict[str, Any]:
        return {"manifest": needing(name, *dependencies), "skill_md": "# A\n", "files": skill_files(CODE)}

    def doctor(self) -> str:
        done = skillery("doctor", "--json", "--home", str(self.server.home), stdin=b"", **self.env | NO_SANDBOX_PROBES)
        [row] = [probe for probe in done.json["probes"] if probe["name"] == "vulnerabilities"]
        return str(row["detail"])

    def wait_for_archive(self) -> None:
        """Wait until the server has read the archive."""
        eventually((self.server.home / "osv" / "report.json").exists)


@pytest.fixture
def registry(tmp_path: Path, start_server: Callable[..., Server]) -> Registry:
    return Registry(tmp_path, start_server)


FIXED = {"introduced": "0"}, {"fixed": "2.0"}
GHSA = record("GHSA-1", "Frames", *FIXED, aliases=["CVE-2026-1", "PYSEC-1"], summary="Reads too much")
TWIN = record("PYSEC-1", "frames", *FIXED, aliases=["CVE-2026-1", "GHSA-1"])


@pytest.mark.full
def test_stored_versions_get_findings_when_the_archive_changes(registry: Registry) -> None:
    rpc = registry.start()
    create(rpc, needing("a.old", "frames==1.0"))
    create(rpc, needing("a.new", "frames==2.0"))
    assert (registry.findings(rpc, "a.old"), registry.vulnerabilities(rpc, "a.old")) == ({}, "")

    store(registry.archive, GHSA, TWIN)
    [message] = eventually(lambda: registry.findings(rpc, "a.old")).values()
    eventually(registry.events.exists)

    assert (
        message == "frames 1.0 has the known vulnerability GHSA-1 (CVE-2026-1, PYSEC-1): Reads too much; fixed in 2.0"
    )
    assert registry.events.read_text() == "a.old@1.0.0 osv.GHSA-1\n"
    assert registry.vulnerabilities(rpc, "a.old").startswith("GHSA-1; archive of 20")
    assert "a.old 1.0.0 has packages with known vulnerabilities: GHSA-1" in rpc.http.get("/admin").text
    assert "GHSA-1; archive of 20" in rpc.http.get("/s/a.old").text
    # The next archive has withdrawn the record, and has a new one.
    withdrawn = GHSA | {"withdrawn": "2026-11-02T00:00:00Z"}
    store(registry.archive, withdrawn, record("GHSA-2", "frames", {"introduced": "2"}))
    assert list(eventually(lambda: registry.findings(rpc, "a.new"))) == ["osv.GHSA-2"]
    eventually(lambda: not registry.findings(rpc, "a.old"))
    assert registry.vulnerabilities(rpc, "a.old").startswith("none known; archive of 20")


@pytest.mark.full
def test_a_new_version_has_findings_about_exactly_the_affected_packages(registry: Registry) -> None:
    affected = [
        record("R-1", "frames", {"introduced": "0"}),
        record("R-2", "frames", {"introduced": "0.5"}, {"fixed": "1.0.post1"}),
        record("R-3", "frames", {"introduced": "1.0"}, {"last_affected": "1.0"}),
        record("R-4", "frames", {"introduced": "0"}, {"fixed": "0.5"}, {"introduced": "0.9"}, {"fixed": "3"}),
        record("R-5", "frames", affected={"versions": ["0.1", "1.0.0"]}),
    ]
    others = [
        record("R-6", "frames", {"introduced": "0"}, {"fixed": "1.0"}),
        record("R-7", "frames", {"introduced": "1.1"}),
        record("R-8", "frames", {"introduced": "0"}, {"last_affected": "1.0rc1"}),
        record("R-9", "frames", {"introduced": "0"}, ecosystem="npm"),
        record("R-10", "other", {"introduced": "0"}),
        record("R-11", "frames", affected={"versions": ["1.0.1"]}),
        record("R-12", "frames", {"introduced": "0"}, withdrawn="2026-11-01T00:00:00Z"),
    ]
    store(registry.archive, *affected, *others)
    (registry.archive / "own.json").write_text(
        json.dumps(record("MAL-1", "frames", {"introduced": "1"}, {"fixed": "2"}))
    )
    rpc = registry.start()
    registry.wait_for_archive()

    error = rpc.error("create_skill", **registry.skill("a.bad", "frames==1.0"))
    rpc("waive_finding", name="a.bad", rule="osv.MAL-1", reason="A test of ours.")
    rpc("create_skill", **registry.skill("a.bad", "frames==1.0"))

    assert "MAL-1" in error["message"]
    assert {*registry.findings(rpc, "a.bad")} == {"osv.MAL-1", *(f"osv.{each['id']}" for each in affected)}
    assert "MAL-1 (waived)" in registry.vulnerabilities(rpc, "a.bad")


@pytest.mark.full
def test_malware_refuses_a_version_also_if_another_record_names_it(registry: Registry) -> None:
    advisory = record("GHSA-1", "frames", {"introduced": "0"}, aliases=["MAL-1"])
    store(registry.archive, advisory, record("MAL-1", "frames", {"introduced": "0"}, aliases=["GHSA-1"]))
    rpc = registry.start()
    registry.wait_for_archive()

    error = rpc.error("create_skill", **registry.skill("a.bad", "frames==1.0"))

    assert "MAL-1 (GHSA-1)" in error["message"]


@pytest.mark.full
def test_a_broken_archive_is_reported_and_the_former_stays_in_use(registry: Registry) -> None:
    store(registry.archive, GHSA)
    (registry.archive / "mine.json").write_text("{")
    os.mkfifo(registry.archive / "pipe.json")
    rpc = registry.start()
    registry.wait_for_archive()
    assert "mine.json" in registry.doctor()
    whole = (registry.archive / "all.zip").read_bytes()

    (registry.archive / "all.zip").write_bytes(whole[: len(whole) // 2])
    row = eventually(lambda: "all.zip cannot be read" in (row := registry.doctor()) and row)

    assert "1 packages of PyPI" in row
    assert "all.zip cannot be read" in registry.server.log.read_text()
    create(rpc, needing("a.old", "frames==1.0"))
    assert list(registry.findings(rpc, "a.old")) == ["osv.GHSA-1"]
    (registry.server.home / "osv" / "index.sqlite").write_bytes(b"broken" * 1000)
    create(rpc, needing("a.old", "frames==1.0", version="1.0.1"))
    eventually(lambda: "is broken, and will be made again" in registry.server.log.read_text())
    assert list(registry.findings(rpc, "a.old")) == ["osv.GHSA-1"]
    store(registry.archive, GHSA)
    assert list(eventually(lambda: registry.findings(rpc, "a.old", "1.0.1"))) == ["osv.GHSA-1"]


@pytest.mark.full
@pytest.mark.skipif(not NODE.exists(), reason="`make .tools/node/.installed-24.19.0` installs Node.js")
def test_npm_packages_of_drafts_are_compared_by_semver(registry: Registry) -> None:
    npm = NpmRegistry()
    npm.add("@acme/docx", "9.0.0-rc.2", {"index.js": "module.exports = 1"})
    registry.env |= npm_settings(npm)
    rpc = registry.start()
    script = {"scripts/a.js": "require('@acme/docx')", "package.json": '{"dependencies": {"@acme/docx": "9.0.0-rc.2"}}'}
    rpc("create_skill", **params("a.draft", script), submit=False)
    npm.close()

    affected = [
        record("N-1", "@acme/docx", {"introduced": "0"}, {"fixed": "9.0.0"}, ecosystem="npm"),
        record("N-2", "@acme/docx", {"introduced": "9.0.0-rc.1"}, {"last_affected": "9.0.0-rc.2"}, ecosystem="npm"),
        record("N-3", "@acme/docx", ecosystem="npm", affected={"versions": ["9.0.0-rc.2"]}),
    ]
    others = [
        record("N-4", "@acme/docx", {"introduced": "9.0.0-rc.10"}, ecosystem="npm"),
        record("N-5", "@acme/docx", {"introduced": "0"}, {"fixed": "9.0.0-rc.2"}, ecosystem="npm"),
        record("N-6", "docx", {"introduced": "0"}, ecosystem="npm"),
    ]
    store(registry.archive, *affected, *others)
    rules = eventually(lambda: registry.findings(rpc, "a.draft"))

    assert sorted(rules) == [f"osv.{each['id']}" for each in affected]
