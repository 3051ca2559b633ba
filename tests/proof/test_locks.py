"""Locks with proofs: the texts of a lock, its commands, and installations without a server."""

from __future__ import annotations

import json
import py_compile
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skillery.cli.failures import CheckFailed
from skillery.cli.lock_files import check_digest
from skillery.client.results import Locked
from skillery.formats.bundle import BundleFile, digest_of
from skillery.proof.dsse import ProofError, SigningKey, seal, to_base64, unverified
from skillery.proof.locks import (
    Lock,
    LockedSeal,
    LockedSkill,
    check_age,
    check_lock,
    choose_proof,
    digest_of_envelope,
    encode_lock,
    encode_proofs,
    read_lock,
)
from skillery.proof.seals import Covered, Position, Seal, make_seal
from skillery.proof.statements import make_statement, read_statement
from tests.cli.test_cli import Ended, skillery
from tests.conftest import Server, StartShared, manifest, skill_files
from tests.proof.test_attestations import ADDRESS
from tests.proof.test_keys import register, signed
from tests.proof.test_seals import OFTEN
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.processes import eventually

KEY, OTHER = SigningKey.new(), SigningKey.new()
DIGESTS = {"mail.send": f"sha256:{'5f' * 32}", "text.count": f"sha256:{'60' * 32}"}
SEALED_AT = "2026-11-28T09:00:00Z"


def passed(name: str, digest: str = "", key: SigningKey = KEY, signer: str = "ann", result: str = "PASSED") -> bytes:
    predicate = {"signer": signer, "verificationResult": result}
    return seal(make_statement("passed", name, "1.0.0", digest or DIGESTS[name], predicate), key.sign)


def publication(name: str, **more: bool) -> bytes:
    predicate = {"publisher": "ann", **more}
    return seal(make_statement("publication", name, "1.0.0", DIGESTS[name], predicate), KEY.sign)


def locked(*envelopes: bytes, **changes: Any) -> Lock:
    skills = [
        LockedSkill(name=name, version="1.0.0", digest=digest, signer="ann", proof=digest_of_envelope(envelope))
        for (name, digest), envelope in zip(DIGESTS.items(), envelopes, strict=True)
    ]
    keys = {KEY.keyid: KEY.public_der, OTHER.keyid: OTHER.public_der}
    return Lock(**{"lock_version": 2, "keys": keys, "skills": tuple(skills), **changes})


ENVELOPES = [passed(name) for name in DIGESTS]
SEALED = Seal(812, None, SEALED_AT, Position(4711, "61" * 32), Covered(0, "62" * 32), Covered(0, "62" * 32), "")
SEAL = seal(make_seal(SEALED), KEY.sign)
LOCK = locked(*ENVELOPES, seal=LockedSeal(812, digest_of_envelope(SEAL), SEALED_AT))
TEXT, PROOFS = encode_lock(LOCK), encode_proofs([*ENVELOPES, SEAL])


def test_a_lock_is_valid_with_its_proofs() -> None:
    assert read_lock(TEXT) == LOCK
    check_lock(LOCK, PROOFS)
    lines = PROOFS.splitlines()
    assert lines == sorted(lines, key=digest_of_envelope)


def test_each_byte_of_a_lock_counts() -> None:
    for at in range(len(TEXT)):
        changed = TEXT[:at] + bytes([TEXT[at] ^ 1]) + TEXT[at + 1 :]
        with pytest.raises(ProofError):
            check_lock(read_lock(changed), PROOFS)


def test_each_byte_of_the_proofs_counts() -> None:
    for at in range(len(PROOFS)):
        changed = PROOFS[:at] + bytes([PROOFS[at] ^ 1]) + PROOFS[at + 1 :]
        with pytest.raises(ProofError):
            check_lock(LOCK, changed)


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (passed("mail.send", f"sha256:{'61' * 32}"), f"is about the digest sha256:{'61' * 32}, the lock says"),
        (passed("mail.send", key=SigningKey.new()), "is signed with the unknown key"),
        (passed("mail.send", signer="rita"), "is signed by 'rita', the lock says 'ann'"),
        (passed("text.count", DIGESTS["mail.send"]), "is about 'skillery:text.count@1.0.0'"),
        (
            seal(make_statement("scan", "mail.send", "1.0.0", DIGESTS["mail.send"], {}), KEY.sign),
            "does not say that the version has passed its policy",
        ),
        (passed("mail.send", result="FAILED"), "does not say that the version has passed its policy"),
        (publication("mail.send"), "does not say that the version has passed its policy"),
    ],
)
def test_a_false_proof_is_refused(first: bytes, problem: str) -> None:
    with pytest.raises(ProofError, match=problem):
        check_lock(locked(first, ENVELOPES[1]), encode_proofs([first, ENVELOPES[1]]))


def test_missing_and_foreign_proofs_are_refused() -> None:
    lock = locked(*ENVELOPES)
    with pytest.raises(ProofError, match=r"of mail\.send@1\.0\.0 is not in the file"):
        check_lock(lock, encode_proofs(ENVELOPES[1:]))
    with pytest.raises(ProofError, match="an envelope that no locked skill names"):
        check_lock(lock, encode_proofs([*ENVELOPES, SEAL]))
    with pytest.raises(ProofError, match="its seal is not in the file"):
        check_lock(LOCK, encode_proofs(ENVELOPES))
    with pytest.raises(ProofError, match="is signed with the unknown key"):
        check_lock(lock, encode_proofs(ENVELOPES), {OTHER.keyid: OTHER.public_der})


def test_a_lock_has_an_age_if_it_has_a_seal() -> None:
    check_age(LOCK, timedelta(days=36_500))
    with pytest.raises(ProofError, match="is too old"):
        check_age(LOCK, timedelta(seconds=0))
    with pytest.raises(ProofError, match="has no seal"):
        check_age(locked(*ENVELOPES), timedelta(days=1))
    with pytest.raises(ProofError, match="a seal without a time"):
        check_age(locked(*ENVELOPES, seal=LockedSeal(1, "", "9:00")), timedelta(days=1))


def test_the_newest_passed_is_the_proof() -> None:
    newer = passed("mail.send", signer="rita")
    about = {KEY.keyid: KEY.public_der}, "mail.send", "1.0.0", DIGESTS["mail.send"]
    review = seal(make_statement("review", *about[1:], {"reviewer": "eve"}), OTHER.sign)

    assert choose_proof([ENVELOPES[0], newer, review], *about) == (newer, "rita")
    assert choose_proof([newer, passed("mail.send", result="FAILED"), publication("mail.send")], *about) == (
        newer,
        "rita",
    )
    assert choose_proof([review, publication("mail.send", backfilled=True)], *about) is None


def test_each_byte_of_a_file_counts(tmp_path: Path) -> None:
    files = {"SKILL.md": b"# Greet\n", "code/main.py": b"def main(args):\n    return 1\n"}
    digest = digest_of(BundleFile(path, content, executable=False) for path, content in files.items())
    entry: Locked = {"name": "greet", "version": "1.0.0", "digest": digest, "status": ""}
    for path, content in files.items():
        (tmp_path / "greet" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "greet" / path).write_bytes(content)
    check_digest(entry, tmp_path)
    for path, content in files.items():
        for at in range(len(content)):
            (tmp_path / "greet" / path).write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            with pytest.raises(CheckFailed, match="does not match the lock"):
                check_digest(entry, tmp_path)
        (tmp_path / "greet" / path).write_bytes(content)


# -- commands ----------------------------------------------------------------------------------------------------------


class Project:
    """A folder with a lock of a published skill."""

    def __init__(self, server: Server, folder: Path, name: str) -> None:
        self.server, self.name, self.folder = server, name, folder
        self.lock, self.proofs = folder / "skillery.lock", folder / "skillery.lock.proofs"
        self.skills = folder / "skills"
        self.publish("1.0.0")

    def publish(self, version: str) -> None:
        skill_md = "---\nname: other\ndescription: Greets.\n---\n# Greet\n"
        made = manifest(self.name, version)
        self.server.rpc("create_skill", manifest=made, skill_md=skill_md, files=skill_files())

    def command(self, *words: str) -> Ended:
        return skillery(*words, "--url", self.server.url)

    def locked(self, *options: str) -> Ended:
        return self.command("lock", self.name, "-o", str(self.lock), *options)

    def install(self, *options: str, folder: str = "skills") -> Ended:
        return skillery("install", "--locked", str(self.folder / folder), "--file", str(self.lock), *options)

    def archive(self) -> str:
        file = self.folder / "skills.tar.gz"
        ended = self.command("export", str(file), self.name)
        assert ended.code == 0, ended.err
        return str(file)

    def without_server(self, *options: str, folder: str = "skills") -> Ended:
        """Install from an archive. The address of the server is one that refuses connections."""
        archive = str(self.folder / "skills.tar.gz")
        return self.install("--offline", "--from", archive, *options, "--url", "http://127.0.0.1:9", folder=folder)


@pytest.fixture
def project(sqlite_server: Server, tmp_path: Path, new_name: str) -> Project:
    return Project(sqlite_server, tmp_path, new_name)


@pytest.mark.smoke
def test_a_lock_pins_the_keys_and_names_signers(project: Project) -> None:
    ended = project.locked()
    [keyid] = {row["keyid"] for row in project.server.rpc("list_keys", limit=1)["keys"]}
    lock = json.loads(project.lock.read_text())

    assert f"trusts the keys {keyid}" in ended.err
    assert (lock["lock_version"], list(lock["keys"])) == (2, [keyid])
    [skill] = lock["skills"]
    lines = {digest_of_envelope(line) for line in project.proofs.read_bytes().splitlines()}
    assert (skill["name"], skill["signer"], skill["proof"] in lines) == (project.name, "local", True)
    again = project.locked("--json")
    assert (again.json["keys"], again.err) == ([keyid], "")
    assert project.command("verify", str(project.lock)).out == f"{project.lock}: 1 skill is verified\n"


@pytest.mark.full
def test_a_lock_is_installed_from_an_archive_without_a_server(project: Project, tmp_path: Path) -> None:
    archive = project.archive()
    project.locked()
    ended = project.without_server()

    assert ended.code == 0, ended.err
    place = project.skills / project.name
    assert (place / "SKILL.md").read_text().startswith(f"---\nname: {project.name}\n")
    assert project.command("verify", str(project.skills)).code == 0
    (place / "code" / "main.py").write_text("changed")
    changed = project.command("verify", str(project.skills))
    assert (changed.code, f"has other files than {project.name}@1.0.0: code/main.py" in changed.err) == (1, True)

    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    for name in (".skillery.lock", ".skillery.lock.proofs"):
        shutil.copy(tmp_path / "unpacked" / name, tmp_path / name[1:])
    assert skillery("verify", str(project.lock), "--offline").code == 0
    file = tmp_path / "unpacked" / project.name / "code" / "main.py"
    file.write_bytes(b"#" + file.read_bytes()[1:])
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "unpacked", ".")
    refused = project.without_server(folder="other")
    assert (refused.code, "does not match the lock" in refused.err) == (1, True), refused.err
    with tarfile.open(archive, "w:gz"):
        pass
    assert f"does not have {project.name}" in project.without_server(folder="other").err
    assert not (tmp_path / "other").exists()


def test_compiled_files_outside_the_lock_are_refused(project: Project, tmp_path: Path) -> None:
    archive = project.archive()
    project.locked()
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    source = tmp_path / "unpacked" / project.name / "code" / "main.py"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = Path(str(py_compile.compile(str(source), invalidation_mode=unchecked, doraise=True)))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "unpacked", ".")
    refused = project.without_server()
    assert (refused.code, "does not match the lock" in refused.err) == (1, True), refused.err
    assert not project.skills.exists()

    assert project.install("--url", project.server.url).code == 0
    (project.skills / project.name / "code" / "__pycache__").mkdir()
    shutil.copy(compiled, project.skills / project.name / "code" / "__pycache__")
    changed = project.command("verify", str(project.skills))
    assert (changed.code, f"code/__pycache__/{compiled.name}\nPython may run" in changed.err) == (1, True), changed.err


@pytest.fixture
def mirror(sqlite_server: Server) -> Iterator[FaultProxy]:
    """Return a proxy that can answer in place of the server."""
    proxy = FaultProxy(sqlite_server.url)
    yield proxy
    proxy.close()


def without_passed(project: Project) -> Fault:
    """Return the answers of a mirror with statements about a version as if the version waited for a review."""
    address = f"/skills/{project.name}/1.0.0.intoto.jsonl"
    lines = project.server.rpc.http.get(address).content.splitlines(keepends=True)
    kept = [line for line in lines if read_statement(unverified(line).payload).word != "passed"]
    assert len(kept) == len(lines) - 1
    return Fault(f"GET {address}", times=99, status=200, body=b"".join(kept))


def test_a_publication_alone_verifies_no_version(project: Project, mirror: FaultProxy) -> None:
    assert skillery("verify", project.name, "--url", mirror.url).code == 0
    mirror.faults = [without_passed(project)]
    refused = skillery("verify", project.name, "--url", mirror.url)
    assert (refused.code, f"{project.name}@1.0.0 has not passed its policy" in refused.err) == (1, True), refused.err


def test_a_skill_without_a_proof_is_refused(project: Project, mirror: FaultProxy) -> None:
    mirror.faults = [without_passed(project)]
    words = ("lock", project.name, "-o", str(project.lock), "--url", mirror.url)
    refused = skillery(*words)
    assert (refused.code, f"have passed their policy: {project.name}\n" in refused.err) == (1, True), refused.err
    assert not project.lock.exists()
    assert skillery(*words, "--allow-unsigned", project.name).code == 0

    url = ("--url", project.server.url)
    refused = project.install(*url)
    assert (refused.code, f"have passed their policy: {project.name}\n" in refused.err) == (1, True), refused.err
    assert not project.skills.exists()
    assert project.install(*url, "--allow-unsigned", project.name).code == 0


@pytest.mark.full
def test_an_export_fails_if_a_proof_was_changed(project: Project, mirror: FaultProxy, tmp_path: Path) -> None:
    words = ("export", str(tmp_path / "out.tar.gz"), project.name, "--url", mirror.url)
    unsigned = without_passed(project)
    mirror.faults = [unsigned]
    exported = skillery(*words)
    assert (exported.code, project.name in exported.err) == (0, True), exported.err
    (tmp_path / "out.tar.gz").unlink()
    address = f"/skills/{project.name}/1.0.0.intoto.jsonl"
    for line in project.server.rpc.http.get(address).content.splitlines():
        payload = unverified(line).payload
        changes = [line.replace(b'"sig":"', b'"sig":"A'), line.replace(to_base64(payload).encode(), b"e30=")]
        if b"PASSED" in payload:
            failed = to_base64(payload.replace(b"PASSED", b"FAILED")).encode()
            changes.append(line.replace(to_base64(payload).encode(), failed))
        for changed in changes:
            rest = [each for each in unsigned.body.splitlines() if each != line]
            mirror.faults = [unsigned._replace(body=b"\n".join([*rest, changed]))]
            refused = skillery(*words)
            assert (refused.code, f"the proof of {project.name}@1.0.0" in refused.err) == (1, True), (changed, refused)
            assert not (tmp_path / "out.tar.gz").exists()


def test_an_edited_lock_installs_nothing(project: Project) -> None:
    project.locked()
    text = project.lock.read_text()
    digest = json.loads(text)["skills"][0]["digest"]
    other = f"sha256:{'0' * 64}"
    project.lock.write_text(text.replace(digest, other))
    ended = project.install("--url", project.server.url)

    assert (ended.code, f"is about the digest {digest}, the lock says {other}" in ended.err) == (1, True), ended.err
    project.lock.write_text(text)
    project.proofs.unlink()
    missing = project.install("--url", project.server.url)
    assert (missing.code, "cannot read the proofs" in missing.err) == (1, True)
    assert not project.skills.exists()
    project.lock.write_text("{")
    assert (project.locked().code, project.lock.read_text()) == (1, "{")


def test_a_lock_of_version_1_is_read_with_a_warning(project: Project) -> None:
    digest = project.server.rpc("describe_skill", name=project.name)["skill"]["digest"]
    entry = {"name": project.name, "version": "1.0.0", "digest": digest, "status": "published"}
    project.lock.write_text(json.dumps({"lock_version": 1, "skills": [entry]}))

    ended = project.install("--url", project.server.url)
    assert (ended.code, ended.err.count("warning: ")) == (0, 1), ended.err
    refused = project.command("verify", str(project.lock))
    assert (refused.code, f"has no proof of {project.name}" in refused.err) == (1, True)
    assert project.install("--max-age", "30d", "--url", project.server.url).code == 1
    assert project.locked().code == 0
    assert json.loads(project.lock.read_text())["lock_version"] == 2


def test_a_lock_has_the_newest_seal_and_an_age(shared_server: StartShared, tmp_path: Path, new_name: str) -> None:
    project = Project(shared_server("sealing", "sqlite", **OFTEN), tmp_path, new_name)
    eventually(lambda: project.server.rpc("list_seals", newest=True)["seals"])
    assert project.locked().code == 0
    first = json.loads(project.lock.read_text())["seal"]
    assert first["sha256"] in {digest_of_envelope(line) for line in project.proofs.read_bytes().splitlines()}
    url = ("--url", project.server.url)
    assert project.install("--max-age", "1d", *url).code == 0
    eventually(lambda: "too old: lock the skills again" in project.install("--max-age", "1s", *url).err)

    project.publish("1.1.0")
    newer = eventually(
        lambda: [seal for seal in project.server.rpc("list_seals", newest=True)["seals"] if seal["seq"] > first["seq"]]
    )
    assert project.locked().code == 0
    assert json.loads(project.lock.read_text())["seal"]["seq"] >= newer[0]["seq"]


def test_lock_refuses_a_registry_that_lost_its_seal(project: Project) -> None:
    project.locked()
    lock = read_lock(project.lock.read_bytes())
    seal = LockedSeal(1 << 40, digest_of_envelope(b"seal"), SEALED_AT)
    project.lock.write_bytes(encode_lock(msgspec.structs.replace(lock, seal=seal)))
    ended = project.locked()
    assert (ended.code, f"the lock has seal {seal.seq}, and the " in ended.err) == (1, True)


def test_lock_and_verify_refuse_keys_of_another_registry(project: Project, tmp_path: Path) -> None:
    from skillery.proof.keychains import make_keys_statement

    foreign = seal(make_keys_statement({OTHER.keyid: OTHER.public_der}, None), OTHER.sign)
    keys = tmp_path / "keys.json"
    keys.write_bytes(b'{"statements":[' + foreign + b"]}")
    refused = project.locked("--keys", str(keys))
    assert (refused.code, "its signer has changed" in refused.err, project.lock.exists()) == (1, True, False)
    keys.write_bytes(project.server.rpc.http.get(ADDRESS).content)
    assert project.locked("--keys", str(keys)).code == 0
    assert skillery("verify", str(project.lock), "--offline", "--keys", str(keys)).code == 0

    keys.write_bytes(b'{"statements":[' + foreign + b"]}")
    refused = skillery("verify", str(project.lock), "--offline", "--keys", str(keys))
    assert (refused.code, "is signed with the unknown key" in refused.err) == (1, True)


def test_verify_full_checks_all_statements(project: Project) -> None:
    project.locked()

    assert project.command("verify", str(project.lock), "--full", "--json").json["ok"]
    for words in (
        (project.name, "--offline"),
        (str(project.folder), "--offline"),
        (str(project.lock), "--offline", "--full"),
    ):
        assert project.command("verify", *words).code == 2
    assert "has no skills of skillery install" in project.command("verify", str(project.folder)).err


@pytest.mark.full
def test_another_signer_stops_the_lock(start_server: Callable[..., Server], tmp_path: Path, new_name: str) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens"})
    grants = ("--scope", "read,publish", "--namespace", "*", "--json", "--home", str(server.home))
    folder, lock = tmp_path / "skill", tmp_path / "skillery.lock"
    folder.mkdir()
    (folder / "SKILL.md").write_text("# Greet\n")
    words: tuple[str, ...] = ()
    for version, name in (("1.0.0", "ann"), ("1.1.0", "bea")):
        token = skillery("token", "create", "--name", name, *grants).json["token"]
        words = ("--url", server.url, "--token", token)
        toml = f'name = "{new_name}"\nversion = "{version}"\ndescription = "Greets people."\n'
        (folder / "skill.toml").write_text(toml)
        assert skillery("publish", str(folder), *words).code == 0
        ended = skillery("lock", new_name, "-o", str(lock), *words)
        is_stopped = "signer changed from ann to bea" in ended.err
        assert (ended.code, is_stopped) == ((0, False) if name == "ann" else (1, True)), ended.err
        assert '"signer": "ann"' in lock.read_text()
    assert skillery("lock", new_name, "-o", str(lock), "--allow-signer-change", new_name, *words).code == 0
    assert '"signer": "bea"' in lock.read_text()


@pytest.mark.full
def test_a_version_that_waits_for_a_review_again_is_not_locked(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text('[policy."own.*"]\nneeds = ["author"]\n')
    project = Project(start_server(), tmp_path, "own.greet")
    rpc, key = project.server.rpc, SigningKey.new()
    register(rpc, key)
    created = rpc("describe_skill", name=project.name, version="1.0.0")["skill"]
    envelope = signed(key, "author", created, author="local")
    author = rpc("add_attestation", name=project.name, version="1.0.0", envelope=envelope)["id"]
    assert project.locked().code == 0
    project.lock.unlink()
    rpc("end_attestation", id=author, reason="another author")

    ended = project.locked()
    assert (ended.code, project.lock.exists()) == (1, False)
    assert "own.greet@1.0.0 has not passed the policy own.*; missing: the signature of its author" in ended.err
    refused = project.command("verify", "own.greet@1.0.0")
    assert (refused.code, refused.err.splitlines()[:2]) == (1, [
        "own.greet@1.0.0 has not passed its policy own.*; missing: the signature of its author",
        "Publish it from a CI job, or run skillery publish --sign.",
    ])  # fmt: skip
    envelope = signed(key, "author", created, author="local", at="2026-01-01T00:00:00Z")
    rpc("add_attestation", name=project.name, version="1.0.0", envelope=envelope)
    assert project.locked().code == 0


@pytest.mark.full
def test_a_registry_without_a_key_has_locks_with_digests(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server(env={"SKILLERY_SIGNING_KEY": "off"}, new_home=True)
    project = Project(server, tmp_path, "greet")
    ended = project.locked()

    assert (ended.code, "has only digests, and no signed statement, for greet" in ended.err) == (0, True), ended.err
    assert json.loads(project.lock.read_text())["keys"] == {}
    installed = project.install("--url", server.url)
    assert (installed.code, "has only digests" in installed.err) == (0, True), installed.err
    assert project.command("verify", str(project.lock)).code == 1
    server.stop()
    server = start_server()
    project.server = server
    project.publish("1.1.0")
    assert project.locked().code == 0
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        sqlite.execute("DROP TRIGGER key_statements_no_delete")
        sqlite.execute("DELETE FROM key_statements")
    lost = project.locked()
    assert (lost.code, "has no keys" in lost.err) == (1, True), lost.err
