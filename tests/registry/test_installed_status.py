"""Revoked versions in installed folders and locks: `skillery status`, `lock --check` and `install --locked`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillery.proof.seals import read_seal
from tests.cli.test_cli import Ended, skillery
from tests.conftest import Rpc, Server, manifest
from tests.proof.test_seals import envelopes_of, sealing
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.processes import eventually

__all__ = ["sealing"]

REASON = "It sends rows to a stranger."


class Copies:
    """Skills of instructions on a server, with a lock and a folder of installed copies."""

    def __init__(self, rpc: Rpc, namespace: str, folder: Path) -> None:
        self._rpc, self._namespace = rpc, namespace
        self.folder, self.lock = folder / "skills", folder / "skillery.lock"

    def name(self, word: str) -> str:
        return f"{self._namespace}.{word}"

    def publish(self, *words: str, version: str = "1.0.0") -> None:
        for word in words:
            described = manifest(self.name(word), version, kind="instruction")
            self._rpc("create_skill", manifest=described, skill_md=f"# {word} {version}\n")

    def command(self, *words: str) -> Ended:
        return skillery(*words, "--url", self._rpc.url)

    def install(self, *words: str) -> None:
        names = [self.name(word) for word in words]
        assert self.command("lock", *names, "-o", str(self.lock)).code == 0
        assert self.command("install", str(self.folder), *names).code == 0

    def yank(self, word: str, severity: str, **more: str) -> None:
        params = {"name": self.name(word), "version": "1.0.0", "reason": REASON, "severity": severity, **more}
        self._rpc("yank_version", **params)

    def purge(self, word: str) -> None:
        self._rpc("purge_version", name=self.name(word), version="1.0.0", reason=REASON)

    def status(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code, and the skills by word."""
        ended = self.command("status", str(self.folder), "--json", *options)
        skills = {skill["name"].rpartition(".")[2]: skill for skill in ended.json["skills"]}
        return ended.code, skills


@pytest.fixture
def copies(sqlite_server: Server, new_name: str, tmp_path: Path) -> Copies:
    return Copies(sqlite_server.rpc, new_name, tmp_path)


def test_status_names_edits_foreign_folders_and_newer_versions(copies: Copies) -> None:
    copies.publish("kept", "edited", "missing")
    copies.install("kept", "edited", "missing")
    (copies.folder / copies.name("edited") / "SKILL.md").write_text("mine")
    for file in (copies.folder / copies.name("missing")).iterdir():
        file.unlink()
    (copies.folder / copies.name("missing")).rmdir()
    (copies.folder / "own").mkdir()
    copies.publish("kept", version="2.0.0")

    ended = copies.command("status", str(copies.folder))
    rows = dict(line.split("\t")[::2] for line in ended.out.splitlines())
    place = f"{copies.folder}/"
    assert ended.code == 0, ended.err
    assert rows == {
        f"{place}{copies.name('edited')}": "edited: SKILL.md changed",
        f"{place}{copies.name('kept')}": "latest is 2.0.0",
        f"{place}{copies.name('missing')}": "missing",
        f"{place}own": "foreign",
    }
    assert copies.command("status", f"{place}own").code == 1


@pytest.mark.full
def test_status_reports_advisories_and_quarantines_harmful_skills(copies: Copies) -> None:
    copies.publish("broken", "security", "malicious", "purged")
    copies.install("broken", "security", "malicious", "purged")
    copies.yank("broken", "broken")
    assert copies.status()[0] == 0
    copies.yank("security", "security", fixed="1.0.1")
    assert copies.status()[0] == 1
    copies.yank("malicious", "malicious")
    copies.purge("purged")

    code, skills = copies.status("--quarantine")
    advisories = {
        word: [(row["severity"], row["action"]) for row in skill["advisories"]] for word, skill in skills.items()
    }
    assert (code, advisories) == (
        1,
        {
            "broken": [("broken", "yank")],
            "malicious": [("malicious", "yank")],
            "purged": [("security", "purge")],
            "security": [("security", "yank")],
        },
    )
    assert skills["security"]["advisories"][0]["fixed"] == "1.0.1"
    for word in skills:
        files = {path.name for path in (copies.folder / copies.name(word)).iterdir()}
        assert ("SKILL.md.quarantined" in files) is (word in {"malicious", "purged"})
        assert ("SKILL.md" in files) is (word in {"broken", "security"})
    assert copies.status()[1]["malicious"]["is_quarantined"]


@pytest.mark.full
def test_status_forgets_withdrawn_advisories(copies: Copies, sqlite_server: Server) -> None:
    copies.publish("sums")
    copies.install("sums")
    copies.yank("sums", "malicious")
    verified = copies.command("verify", f"{copies.name('sums')}@1.0.0")
    assert (verified.code, "was revoked: SKILLERY-" in verified.err) == (0, True)
    sqlite_server.rpc("unyank_version", name=copies.name("sums"), version="1.0.0")

    verified = copies.command("verify", f"{copies.name('sums')}@1.0.0")
    assert (verified.code, "was revoked" in verified.err) == (0, False)
    code, skills = copies.status()
    assert (code, skills["sums"]["advisories"], skills["sums"]["problem"]) == (0, [], None)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (b'{"advisories":[],"seq":0,"more":true}', "repeats its page after 0"),
        (b'{"advisories":[{"id":"A"}],"seq":1,"more":false}', "is not a feed of advisories"),
        (b'{"advisories":[]}', "is not a feed of advisories"),
        (b"[", "is not a feed of advisories"),
    ],
)
def test_status_refuses_a_hostile_feed(copies: Copies, sqlite_server: Server, page: bytes, problem: str) -> None:
    copies.publish("sums")
    copies.install("sums")
    mirror = FaultProxy(sqlite_server.url)
    mirror.faults = [Fault("GET /advisories.json", times=99, status=200, body=page)]
    ended = skillery("status", str(copies.folder), "--url", mirror.url)
    mirror.close()
    assert (ended.code, problem in ended.err) == (1, True), ended.err


@pytest.mark.full
def test_status_notices_a_frozen_feed(sealing: Rpc, new_name: str, tmp_path: Path) -> None:
    copies = Copies(sealing, new_name, tmp_path)
    copies.publish("sums")
    copies.install("sums")
    before = sealing.http.get("/advisories.json").content
    copies.yank("sums", "malicious")
    number = sealing.http.get("/advisories.json").json()["head"]["seq"]
    eventually(lambda: (last := read_seal(envelopes_of(sealing)[-1]).advisories) and last.seq >= number)
    mirror = FaultProxy(sealing.url)
    mirror.faults = [Fault("GET /advisories.json", times=99, status=200, body=before)]
    ended = skillery("status", str(copies.folder), "--url", mirror.url)
    mirror.close()
    assert (ended.code, "the feed /advisories.json is older than seal" in ended.err) == (1, True), ended.err
    assert "malicious" in copies.command("status", str(copies.folder)).out


@pytest.mark.full
@pytest.mark.parametrize(
    ("severity", "codes"), [("broken", (0, 1, 0)), ("security", (1, 1, 0)), ("malicious", (1, 1, 1))]
)
def test_locks_accept_yanked_versions_by_severity(copies: Copies, severity: str, codes: tuple[int, ...]) -> None:
    copies.publish("sums")
    copies.install("sums")
    copies.yank("sums", severity)

    for options, code in zip(([], ["--deny-yanked"], ["--allow-yanked", copies.name("sums")]), codes, strict=True):
        checked = copies.command("lock", "--check", "-o", str(copies.lock), *options)
        installed = copies.command("install", "--locked", "--file", str(copies.lock), str(copies.folder), *options)
        assert (checked.code, installed.code) == (code, code), installed.err
        assert REASON in checked.err
        as_json = copies.command("lock", "--check", "--json", "-o", str(copies.lock), *options)
        assert (as_json.code, as_json.json["problems"][0]["severity"]) == (code, severity)
