"""Locks: exact versions with digests, the check that a lock still holds, and the complete installation of its files."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_cli import Ended, skillery
from tests.conftest import Rpc, Server, manifest
from tests.support.people import Caller, Who

Publish = Callable[..., dict[str, Any]]
NO_DIGEST = "sha256:" + "0" * 64


def problems(verified: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["name"], row["version"], row["problem"]) for row in verified["problems"]]


def test_resolve_skills_locks_each_spec_to_its_version(rpc: Rpc, publish: Publish, new_name: str) -> None:
    a, b = f"{new_name}.a", f"{new_name}.b"
    digests = {version: publish(a, version)["digest"] for version in ("1.0.0", "1.1.0", "2.0.0")}
    other = publish(b)["digest"]
    rpc("set_label", name=a, label="stable", version="1.1.0")

    entry = {"name": b, "version": "1.0.0", "digest": other, "status": "published"}
    for spec in ("1.1.0", "^1", "stable", digests["1.1.0"]):
        lock = rpc("resolve_skills", skills=[b, f"{a}@{spec}", f"{a}@1.1.0", b, f"{b}@latest"])["lock"]
        assert lock == [entry, {"name": a, "version": "1.1.0", "digest": digests["1.1.0"], "status": "published"}]
    assert rpc("resolve_skills", skills=[])["lock"] == []


def test_resolve_skills_error_names_the_unresolved_skill(rpc: Rpc, publish: Publish, new_name: str) -> None:
    publish(new_name)

    for text, code, kind in (
        (f"{new_name}.none", -32003, "skill_not_found"),
        (f"{new_name}@^9", -32003, "version_not_found"),
        (f"{new_name}@stable", -32003, "label_not_found"),
        (f"{new_name}@!", -32602, "invalid_version_spec"),
        ("No Name", -32602, "invalid_name"),
        ("", -32602, "invalid_name"),
        (NO_DIGEST, -32602, "invalid_name"),
    ):
        error = rpc.error("resolve_skills", skills=[new_name, text])
        assert (error["code"], error["data"]["type"], error["data"]["skill"]) == (code, kind, text)
        assert repr(text) in error["message"]


def test_resolve_skills_rejects_two_versions_of_a_skill(rpc: Rpc, publish: Publish, new_name: str) -> None:
    for version in ("1.0.0", "2.0.0"):
        publish(new_name, version)

    error = rpc.error("resolve_skills", skills=[f"{new_name}@^1", new_name])
    assert error["code"] == -32602
    assert all(word in error["message"] for word in (new_name, "1.0.0", "2.0.0"))


def test_a_lock_has_at_most_a_thousand_skills(sqlite_rpc: Rpc) -> None:
    name = "text.csv.profile"

    assert len(sqlite_rpc("resolve_skills", skills=[name] * 1000)["lock"]) == 1
    assert sqlite_rpc.error("resolve_skills", skills=[name] * 1001)["code"] == -32602
    (entry,) = sqlite_rpc("resolve_skills", skills=[name])["lock"]
    assert sqlite_rpc("verify_lock", lock=[entry] * 1000)["ok"]
    assert sqlite_rpc.error("verify_lock", lock=[entry] * 1001)["code"] == -32602


def test_lock_is_valid_until_a_version_is_yanked(rpc: Rpc, publish: Publish, new_name: str) -> None:
    a, b = f"{new_name}.a", f"{new_name}.b"
    publish(a)
    publish(b)
    lock = rpc("resolve_skills", skills=[a, b])["lock"]

    publish(a, "2.0.0")
    assert rpc("verify_lock", lock=lock) == {"ok": True, "problems": [], "warnings": []}
    rpc("deprecate_skill", name=b, message="It is old.", successor=a)
    verified = rpc("verify_lock", lock=lock)
    assert verified["ok"]
    (warning,) = verified["warnings"]
    assert (warning["name"], warning["version"], warning["problem"]) == (b, "1.0.0", "deprecated")
    assert "It is old." in warning["message"]
    assert a in warning["message"]
    rpc("yank_version", name=a, version="1.0.0", reason="It loses leads.")
    verified = rpc("verify_lock", lock=lock)
    assert not verified["ok"]
    assert problems(verified) == [(a, "1.0.0", "yanked")]
    assert "It loses leads." in verified["problems"][0]["message"]


def test_invalid_locks_are_reported_and_not_raised(rpc: Rpc, publish: Publish, new_name: str) -> None:
    digest = publish(new_name)["digest"]
    publish(new_name, "2.0.0")

    def locked(name: str, version: str, digest: str = digest) -> dict[str, str]:
        return {"name": name, "version": version, "digest": digest}

    verified = rpc(
        "verify_lock",
        lock=[
            locked(new_name, "1.0.0"),
            locked(new_name, "1.0.0", digest.upper().replace("SHA", "sha")),
            locked(new_name, "1.0.0", NO_DIGEST),
            locked(new_name, "1.0.0", "x" * 5000),
            locked(new_name, "3.0.0"),
            locked(f"{new_name}.none", "1.0.0"),
            locked("../etc", "1.0.0"),
            locked("", ""),
            locked(f"{new_name}.x", "^1"),
            locked(f"{new_name}.y", "\0"),
        ],
    )
    assert problems(verified) == [
        (new_name, "1.0.0", "digest_changed"),
        (new_name, "1.0.0", "digest_changed"),
        (new_name, "3.0.0", "two_versions"),
        (new_name, "3.0.0", "gone"),
        (f"{new_name}.none", "1.0.0", "gone"),
        ("../etc", "1.0.0", "invalid"),
        ("", "", "invalid"),
        (f"{new_name}.x", "^1", "invalid"),
        (f"{new_name}.y", "\0", "invalid"),
    ]
    assert all(row["message"] and len(row["message"]) < 1000 for row in verified["problems"])
    for wrong in ({"name": new_name, "version": "1.0.0"}, {**locked(new_name, "1.0.0"), "more": 1}, "x"):
        assert rpc.error("verify_lock", lock=[wrong])["code"] == -32602


def test_verify_lock_reports_invisible_versions_as_gone(org: Server, new_name: str) -> None:
    author = Caller(org.url, Who("author", "read publish", f"{new_name}.*"))
    agent = Caller(org.url, Who("agent", "read publish", f"{new_name}.*", "agent"))
    reviewer = Caller(org.url, Who("reviewer", "read review"))
    stranger = Caller(org.url, Who("stranger", "read"))
    name, draft = f"{new_name}.a", f"{new_name}.draft"
    author.create(name)
    agent.create(draft)
    lock = agent("resolve_skills", skills=[name, f"{draft}@1.0.0"])["lock"]
    assert [entry["status"] for entry in lock] == ["published", "draft"]
    author("set_visibility", name=name, visibility="namespace")

    assert stranger.error("resolve_skills", skills=[name])["data"]["type"] == "skill_not_found"
    verified = stranger("verify_lock", lock=lock)
    assert problems(verified) == [(name, "1.0.0", "gone"), (draft, "1.0.0", "gone")]
    assert verified["problems"][0]["message"] == f"there is no skill '{name}'"
    verified = agent("verify_lock", lock=lock)
    assert verified["ok"]
    assert [row["problem"] for row in verified["warnings"]] == ["not_published"]
    agent("submit_version", name=draft, version="1.0.0")
    reviewer("reject_version", name=draft, version="1.0.0", reason="It deletes files.")
    assert problems(agent("verify_lock", lock=lock)) == [(draft, "1.0.0", "rejected")]


# -- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(sqlite_server: Server) -> Callable[..., Ended]:
    def call(*words: str, url: str = "") -> Ended:
        return skillery(*words, "--url", url or sqlite_server.url)

    return call


@pytest.fixture
def two_skills(sqlite_rpc: Rpc, new_name: str) -> list[str]:
    """Publish two skills, one with a script, binary files and a folder. Return their names."""
    first, second = f"{new_name}.a", f"{new_name}.b-c"
    files = [
        {"path": "code/main.py", "content": "def main(args):\n    return 1\n"},
        {"path": "scripts/run.sh", "content": "#!/bin/sh\necho hi\n", "executable": True},
        {"path": "resources/deep/er/bytes.bin", "content": "/wABAg==", "encoding": "base64"},
        {"path": "resources/empty", "content": ""},
    ]
    sqlite_rpc("create_skill", manifest=manifest(first), skill_md="# A\n", files=files)
    for version in ("1.0.0", "2.0.0"):
        made = manifest(second, version, kind="instruction")
        sqlite_rpc("create_skill", manifest=made, skill_md=f"# B {version}\n")
    sqlite_rpc("set_label", name=second, label="stable", version="1.0.0")
    return [first, second]


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.smoke
def test_a_lock_file_is_written_checked_and_installed(
    command: Callable[..., Ended], sqlite_rpc: Rpc, two_skills: list[str], tmp_path: Path
) -> None:
    (first, second), lock, folder = two_skills, tmp_path / "skillery.lock", tmp_path / "skills"
    proofs = tmp_path / "skillery.lock.proofs"
    assert command("lock", f"{second}@stable", first, "-o", str(lock)).code == 0
    text, statements = lock.read_text(), proofs.read_text()

    assert command("lock", first, f"{second}@1.0.0", "-o", "-").out == text
    assert text.endswith("}\n")
    entries = json.loads(text)["skills"]
    assert [(entry["name"], entry["version"]) for entry in entries] == [(first, "1.0.0"), (second, "1.0.0")]
    assert command("lock", "--check", "-o", str(lock)).code == 0
    assert command("lock", first, "-o", str(lock)).err == f"no longer in {lock}: {second}\n"
    lock.write_text(text)
    proofs.write_text(statements)

    done = command("install", "--locked", str(folder), "--file", str(lock))
    assert done.code == 0, done.err
    code = {"code/main.py", "scripts/run.sh", "resources/deep/er/bytes.bin", "resources/empty"}
    assert files_in(folder / first) == {*code, "SKILL.md", "skill.toml"}
    assert (folder / first / "resources/deep/er/bytes.bin").read_bytes() == b"\xff\x00\x01\x02"
    assert (folder / first / "scripts/run.sh").stat().st_mode & 0o777 == 0o755
    assert (folder / first / "code/main.py").stat().st_mode & 0o777 == 0o644
    assert (folder / second / "SKILL.md").read_text() == "# B 1.0.0\n"

    # Another installation keeps the other skills, and with --prune removes them.
    kept = command("install", str(folder), second)
    assert (kept.code, f"earlier installations stay: {first} " in kept.err) == (0, True)
    assert (folder / first / "SKILL.md").is_file()
    done = command("install", str(folder), second, "--prune", "--json")
    assert done.json["lock"][0]["version"] == "2.0.0"
    assert done.json["removed"] == [first]
    assert files_in(folder) == {".skillery.lock", f"{second}/SKILL.md", f"{second}/skill.toml"}
    assert (folder / second / "SKILL.md").read_text() == "# B 2.0.0\n"
    assert {path.name for path in tmp_path.iterdir()} == {"skills", "skillery.lock", "skillery.lock.proofs"}


def test_a_yanked_version_of_a_lock_is_installed_with_a_warning(
    command: Callable[..., Ended], sqlite_rpc: Rpc, two_skills: list[str], tmp_path: Path
) -> None:
    lock = str(tmp_path / "skillery.lock")
    locked = ("install", "--locked", "--file", lock)
    assert command("lock", two_skills[0], "-o", lock).code == 0
    sqlite_rpc("yank_version", name=two_skills[0], version="1.0.0", reason="It loses leads.")

    checked = command("lock", "--check", "-o", lock, "--json")
    done = command(*locked, str(tmp_path / "with"))
    denied = command(*locked, str(tmp_path / "without"), "--deny-yanked")

    assert not checked.json["ok"]
    assert (done.code, "warning: " in done.err, "It loses leads." in done.err) == (0, True, True)
    assert (denied.code, "It loses leads." in denied.err) == (1, True)
    assert not (tmp_path / "without").exists()


@pytest.mark.smoke
def test_an_installation_stops_at_edits_and_keeps_or_discards_them(
    command: Callable[..., Ended], two_skills: list[str], tmp_path: Path
) -> None:
    folder, name = tmp_path / "skills", two_skills[1]
    place = folder / name
    install = ("install", str(folder), name)
    assert command(*install).code == 0
    (place / "SKILL.md").write_text("mine")
    (place / "NOTES.md").write_text("mine too")
    (place / "skill.toml").unlink()
    (place / "__pycache__").mkdir()
    (place / "__pycache__/main.pyc").write_text("no edit")
    before = files_in(tmp_path)

    stopped = command(*install)
    pruned = command("install", str(folder), two_skills[0], "--prune")
    assert (stopped.code, pruned.code) == (1, 1)
    said = f"{place} was edited here: NOTES.md added, SKILL.md changed, skill.toml removed."
    assert said in stopped.err
    assert said in pruned.err
    assert "--backup" in stopped.err
    assert files_in(tmp_path) == before

    moved = command(*install, "--backup")
    backup = folder / ".skillery-backup" / name
    assert (moved.code, f"moved {place} to {backup}" in moved.err) == (0, True)
    assert (backup / "SKILL.md").read_text() == "mine"
    assert (place / "SKILL.md").read_text() == "# B 2.0.0\n"
    (place / "SKILL.md").write_text("mine again")
    assert command(*install, "--force").code == 0
    assert (place / "SKILL.md").read_text() == "# B 2.0.0\n"
    assert command(*install).code == 0


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        ("\ntitle: x\nname: 代码审查", "\ntitle: x\nname: {}"),
        ("\r\nname:  'other' # why", "\r\nname:  {}"),
        ("\nname: |\n  other", "\nname: |\n  other"),
        ("\ntitle: x", "\ntitle: x"),
    ],
)
def test_an_installed_skill_has_the_name_of_its_folder(
    command: Callable[..., Ended], sqlite_rpc: Rpc, new_name: str, tmp_path: Path, stated: str, written: str
) -> None:
    text = f"---{stated}\ndescription: Texts.\n---\nname: other\n"
    about = manifest(new_name, kind="instruction")
    sqlite_rpc("create_skill", manifest=about, skill_md=text)

    assert command("install", str(tmp_path / "skills"), new_name).code == 0
    assert command("install", str(tmp_path / "skills"), new_name).code == 0

    installed = (tmp_path / "skills" / new_name / "SKILL.md").read_bytes().decode()
    assert installed == f"---{written.format(new_name)}\ndescription: Texts.\n---\nname: other\n"


@pytest.mark.parametrize("name", ["../victim", "..", ".", "{root}/victim", "a/../../victim", "a\x1b[2J"])
def test_a_record_of_others_names_no_folder_outside(
    command: Callable[..., Ended], two_skills: list[str], tmp_path: Path, name: str
) -> None:
    folder, name = tmp_path / "skills", name.replace("{root}", str(tmp_path))
    for path in (folder, tmp_path / "victim"):
        path.mkdir()
    (tmp_path / "victim/file.txt").write_text("mine")
    recorded = {"name": name, "version": "1.0.0", "digest": NO_DIGEST, "status": "published"}
    (folder / ".skillery.lock").write_text(json.dumps({"lock_version": 1, "skills": [recorded]}))
    before = files_in(tmp_path)

    done = command("install", str(folder), two_skills[0], "--prune", "--force")
    assert (done.code, "is not a record of installed skills" in done.err) == (1, True), done.err
    assert "\x1b" not in done.err
    assert files_in(tmp_path) == before


def test_a_backup_follows_no_link(command: Callable[..., Ended], two_skills: list[str], tmp_path: Path) -> None:
    folder, name = tmp_path / "skills", two_skills[0]
    assert command("install", str(folder), name).code == 0
    (folder / name / "SKILL.md").write_text("mine")
    (tmp_path / "outside").mkdir()
    (folder / ".skillery-backup").symlink_to(tmp_path / "outside")
    before = files_in(tmp_path)

    done = command("install", str(folder), name, "--backup")
    assert (done.code, ".skillery-backup' is a link" in done.err) == (1, True), done.err
    assert files_in(tmp_path) == before


def test_an_installation_does_not_overwrite_other_files(
    command: Callable[..., Ended], two_skills: list[str], tmp_path: Path
) -> None:
    folder, name = tmp_path / "skills", two_skills[0]
    (folder / name).mkdir(parents=True)
    (folder / name / "notes.txt").write_text("mine")
    done = command("install", str(folder), name, "--force")
    assert done.code == 1
    assert "was not written by `skillery install`" in done.err
    assert files_in(folder) == {f"{name}/notes.txt"}
    assert command("install", str(folder), two_skills[1]).code == 0
    assert (folder / name / "notes.txt").read_text() == "mine"

    (tmp_path / "broken.lock").write_text('{"lock_version": 1, "skills": [{}]}')
    done = command("install", "--locked", str(tmp_path / "new"), "--file", str(tmp_path / "broken.lock"))
    assert done.code == 1
    assert "is not a Skillery lock file" in done.err
    assert command("install", "--locked", str(tmp_path / "new"), two_skills[0]).code == 2


@contextlib.contextmanager
def lying(url: str, lie: Callable[[str, Any], None]) -> Iterator[str]:
    """Start a server that returns the results of the server at `url`, changed by `lie(method, result)`. Yield its
    URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            reply = httpx.post(f"{url}/rpc", content=body, headers={"content-type": "application/json"}).json()
            lie(json.loads(body)["method"], reply["result"])
            answer = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def another_content(method: str, result: Any) -> None:
    if method == "read_skill_file" and result["content"].startswith("def"):
        result["content"] += "import os\n"


def another_mode(method: str, result: Any) -> None:
    if method == "describe_skill":
        for file in result["skill"]["files"]:
            file["executable"] = True


def a_file_elsewhere(method: str, result: Any) -> None:
    if method == "describe_skill":
        result["skill"]["files"][-1]["path"] = "../../../out"


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (another_content, "does not match the lock"),
        (another_mode, "does not match the lock"),
        (a_file_elsewhere, "'../../../out'"),
    ],
)
@pytest.mark.full(after=1)
def test_a_server_that_lies_installs_nothing(
    command: Callable[..., Ended],
    sqlite_server: Server,
    two_skills: list[str],
    tmp_path: Path,
    lie: Callable[[str, Any], None],
    said: str,
) -> None:
    folder = tmp_path / "in" / "skills"
    with lying(sqlite_server.url, lie) as url:
        done = command("install", str(folder), *reversed(two_skills), url=url)

    assert done.code != 0
    assert said in done.err
    assert files_in(tmp_path) == set()


@pytest.mark.full
def test_labels_are_moved_by_commands(command: Callable[..., Ended], sqlite_rpc: Rpc, two_skills: list[str]) -> None:
    name = two_skills[1]

    assert command("label", "set", f"{name}@latest", "stable", "--json").json["previous"] == "1.0.0"
    assert command("label", "rollback", name, "stable").out.startswith(f"{name}@stable is 1.0.0 sha256:")
    assert command("label", "list", name).out.split("\t")[:3] == ["stable", "1.0.0", "published"]
    history = command("label", "list", name, "--history").out.splitlines()
    assert [line.split("\t")[1] for line in history] == ["rollback", "set", "set"]
    assert command("label", "rm", name, "stable").out.startswith(f"{name}@stable is removed (before: 1.0.0) ")
    assert command("label", "set", name, "stable").code == 2
    done = command("label", "rm", name, "stable")
    assert (done.code, "has no label" in done.err) == (3, True)
    assert sqlite_rpc("list_labels", name=name)["labels"] == []
