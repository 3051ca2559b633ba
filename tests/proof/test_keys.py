"""Keys of identities, which sign their own statements, and changes of the registry's key."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skillery.proof.dsse import ProofError, SigningKey, seal
from skillery.proof.keychains import follow, make_keys_statement
from skillery.proof.statements import make_statement
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.proof.test_attestations import ADDRESS, keys_of, statements_of
from tests.support.people import Caller, Who


def register(rpc: Rpc, key: SigningKey) -> Any:
    public = base64.b64encode(key.public_der).decode()
    challenge = rpc("add_key", public=public)["challenge"]
    signature = base64.b64encode(key.sign(challenge.encode())[1]).decode()
    return rpc("add_key", public=public, challenge=challenge, signature=signature)


def people(org: Server, name: str) -> tuple[Caller, Caller]:
    ann = Caller(org.url, Who("ann", "read publish", f"{name}.*"))
    return ann, Caller(org.url, Who("rita", "read publish review", f"{name}.*"))


def signed(key: SigningKey, word: str, created: dict[str, Any], **predicate: Any) -> str:
    payload = make_statement(word, created["name"], created["version"], created["digest"], predicate)
    return seal(payload, key.sign).decode()


def test_an_author_signs_with_a_registered_key(org: Server, new_name: str) -> None:
    ann, rita = people(org, new_name)
    created, key = ann.create(f"{new_name}.a"), SigningKey.new()
    about = {"name": created["name"], "version": "1.0.0"}
    envelope = signed(key, "author", created, author="ann")

    unknown = ann.error("add_attestation", **about, envelope=envelope)
    assert unknown["data"]["type"] == "attestation_key"
    assert register(ann, key)["added"]
    added = ann("add_attestation", **about, envelope=envelope)
    assert (added["predicate"], added["verified_as"]) == ("author", "ann")
    assert ann("add_attestation", **about, envelope=envelope) == added
    rows = rita("list_attestations", name=created["name"])["attestations"]
    assert [(row["predicate"], row["by"], row["keyid"] == key.keyid) for row in rows] == [
        ("publication", "ann", False),
        ("scan", "ann", False),
        ("passed", "ann", False),
        ("author", "ann", True),
    ]
    # Another caller cannot use the key of ann, and ann cannot sign as another identity, version or kind.
    stolen = signed(key, "review", created, reviewer="rita", decision="approved")
    assert rita.error("add_attestation", **about, envelope=stolen)["data"]["type"] == "attestation_key"
    wrong = signed(key, "author", created, author="rita")
    assert ann.error("add_attestation", **about, envelope=wrong)["data"]["type"] == "attestation_key"
    other = signed(key, "author", ann.create(f"{new_name}.b"), author="ann")
    assert ann.error("add_attestation", **about, envelope=other)["data"]["type"] == "attestation_subject"
    assert ann.error("add_attestation", **about, envelope=signed(key, "scan", created))["code"] == -32602
    assert ann.error("add_attestation", **about, envelope="{}")["code"] == -32602
    review = signed(key, "review", created, reviewer="ann", decision="approved")
    assert ann.error("add_attestation", **about, envelope=review)["code"] == -32002


def test_a_revoked_key_signs_nothing(org: Server, new_name: str) -> None:
    ann, rita = people(org, new_name)
    created, key = ann.create(f"{new_name}.a"), SigningKey.new()
    register(ann, key)

    assert rita.error("revoke_key", keyid=key.keyid, reason="mine")["code"] == -32002
    ann("revoke_key", keyid=key.keyid, reason="stolen", since="2026-01-02")
    [row] = [row for row in ann("list_keys", by="ann", limit=1000)["keys"] if row["keyid"] == key.keyid]
    assert (row["reason"], row["holder"], row["revoked_since"][:10]) == ("stolen", "identity", "2026-01-02")
    envelope = signed(key, "author", created, author="ann")
    error = ann.error("add_attestation", name=created["name"], version="1.0.0", envelope=envelope)
    assert "revoked" in error["message"]
    public = base64.b64encode(key.public_der).decode()
    challenge = ann("add_key", public=public)["challenge"]
    signature = base64.b64encode(key.sign(challenge.encode())[1]).decode()
    again = ann.error("add_key", public=public, challenge=challenge, signature=signature)
    assert "taken or revoked" in again["message"]
    by_another = rita.error("add_key", public=public, challenge=challenge, signature=signature)
    assert by_another["data"]["type"] == "attestation_key"


def test_a_withdrawn_statement_is_not_sent(org: Server, new_name: str) -> None:
    ann, rita = people(org, new_name)
    created, key = ann.create(f"{new_name}.a"), SigningKey.new()
    register(ann, key)
    envelope = signed(key, "author", created, author="ann")
    own = ann("add_attestation", name=created["name"], version="1.0.0", envelope=envelope)["id"]

    assert rita.error("end_attestation", id=own, reason="no")["code"] == -32002
    ended = ann("end_attestation", id=own, reason="another author")
    assert ann("end_attestation", id=own, reason="again") == ended
    [row] = ann("list_attestations", name=created["name"], predicate="author")["attestations"]
    assert (row["ended"]["by"], row["ended"]["reason"]) == ("ann", "another author")
    # The publisher caused the statement about the findings, but the registry has signed it.
    scan = ann("list_attestations", name=created["name"], predicate="scan")["attestations"][0]["id"]
    assert ann.error("end_attestation", id=scan, reason="hide")["code"] == -32002
    admin = Caller(org.url, Who("adam", "admin", "*"))
    admin("end_attestation", id=scan, reason="wrong rules")
    assert sorted(statements_of(admin, created["name"])) == ["passed", "publication"]
    assert ann.error("end_attestation", id="att_unknown", reason="x")["code"] == -32003


def skill_folder(folder: Path, name: str, version: str = "1.0.0") -> str:
    folder.mkdir()
    (folder / "SKILL.md").write_text("# Greet\n")
    (folder / "skill.toml").write_text(f'name = "{name}"\nversion = "{version}"\ndescription = "Greets people."\n')
    return str(folder)


@pytest.mark.full
def test_publish_signs_with_a_registered_key(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    server = start_server()
    where, file = ("--url", server.url), tmp_path / "me.pem"
    skill = skill_folder(tmp_path / "skill", new_name)

    keyid = skillery("key", "new", str(file)).out.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    refused = skillery("publish", skill, "--sign", str(file), *where)
    assert f"{keyid} is not registered" in refused.err
    assert server.rpc.error("describe_skill", name=new_name)["code"] == -32003
    assert skillery("key", "add", str(file), *where).code == 0
    published = skillery("publish", skill, "--sign", str(file), *where)
    assert published.code == 0, published.err
    ended = skillery("verify", new_name, *where)
    assert (ended.code, f"author\tlocal\t{keyid}" in ended.out) == (0, True), ended.out + ended.err
    assert keyid in skillery("key", "list", *where).out
    assert skillery("key", "revoke", keyid, "--reason", "lost", *where).code == 0
    ended = skillery("verify", new_name, *where)
    assert (ended.code, f"is signed with the revoked key {keyid}" in ended.out) == (1, True)
    assert f"{keyid} is revoked" in skillery("publish", skill, "--sign", str(file), *where).err


@pytest.mark.full
def test_approve_signs_with_a_registered_key(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_PUBLISHING_PEOPLE": "review"})
    grants = ("--scope", "read,publish,review", "--namespace", "*", "--json", "--home", str(server.home))
    tokens = [json.loads(skillery("token", "create", "--name", name, *grants).out)["token"] for name in ("ann", "rita")]
    ann, rita = (("--url", server.url, "--token", token) for token in tokens)
    file = str(tmp_path / "rita.pem")
    keyid = skillery("key", "new", file).out.strip()
    assert skillery("publish", skill_folder(tmp_path / "skill", new_name), *ann).code == 0
    refused = skillery("approve", f"{new_name}@1.0.0", "--sign", file, *rita)
    assert (refused.code, "is not registered" in refused.err) == (1, True), refused.err
    assert "in_review" in skillery("versions", new_name, *ann).out
    assert skillery("key", "add", file, *rita).code == 0

    approved = skillery("approve", f"{new_name}@1.0.0", "--note", "read it all", "--sign", file, *rita)
    assert approved.code == 0, approved.err
    ended = skillery("verify", new_name, *ann)
    assert (ended.code, f"review\trita\t{keyid}" in ended.out) == (0, True), ended.out + ended.err


# -- the key of the registry -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_rotation_keeps_old_signatures_and_pins(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    [old] = keys_of(server.rpc)
    (tmp_path / "keys.json").write_bytes(server.rpc.http.get(ADDRESS).content)
    home = ("--home", str(server.home))
    assert "in use" in skillery("key", "rotate", *home).err
    server.stop()

    new = skillery("key", "rotate", *home).out.strip()
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name, "2.0.0"), skill_md="# x\n", files=skill_files())
    assert list(keys_of(server.rpc)) == [old, new]
    for version in ("1.0.0", "2.0.0"):
        ended = skillery("verify", f"{new_name}@{version}", "--keys", str(tmp_path / "keys.json"), *home)
        assert ended.code == 0, ended.err
    server.stop()
    # A stolen former key: nothing that it has signed is valid.
    assert "still signs" in skillery("key", "revoke", new, "--reason", "x", *home).err
    assert skillery("key", "revoke", old, "--reason", "stolen", *home).code == 0
    ended = skillery("verify", f"{new_name}@1.0.0", *home)
    assert (ended.code, f"is signed with the revoked key {old}" in ended.out) == (1, True)
    assert skillery("verify", f"{new_name}@2.0.0", *home).code == 0
    assert "has revoked" in skillery("verify", new_name, "--keys", str(tmp_path / "keys.json"), *home).err
    # A thief with the database and the former key sends the chain from before the revocation.
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        chain = [json.loads(text) for (text,) in sqlite.execute("SELECT envelope FROM key_statements ORDER BY seq")]
        sqlite.execute("DROP TRIGGER key_statements_no_delete")
        sqlite.execute("DELETE FROM key_statements WHERE seq = 3")
        sqlite.execute("UPDATE signing_keys SET revoked_at = NULL")
    (tmp_path / "keys.json").write_text(json.dumps({"statements": chain}, separators=(",", ":")))
    ended = skillery("verify", f"{new_name}@1.0.0", "--keys", str(tmp_path / "keys.json"), *home)
    assert (ended.code, f"is signed with the revoked key {old}" in ended.out) == (1, True)


@pytest.mark.full
def test_an_interrupted_rotation_is_completed(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.stop()
    file, home = server.home / "signing" / "ed25519.pem", ("--home", str(server.home))
    old = file.read_bytes()
    new = skillery("key", "rotate", *home).out.strip()
    # As after a kill between the transaction and the change of the files.
    file.rename(file.with_name("ed25519.pem.new"))
    file.write_bytes(old)
    file.chmod(0o600)

    ended = skillery("key", "rotate", *home)
    assert (ended.code, ended.out, ended.err) == (0, f"{new}\n", "")
    assert SigningKey.read(file.read_bytes()).keyid == new
    assert list(file.parent.iterdir()) == [file]
    assert new in keys_of(start_server().rpc)


@pytest.mark.full
def test_a_lost_key_is_replaced_and_clients_notice(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    (tmp_path / "keys.json").write_bytes(server.rpc.http.get(ADDRESS).content)
    server.stop()
    (server.home / "signing" / "ed25519.pem").unlink()

    new = skillery("key", "replace", "--lost", "--home", str(server.home)).out.strip()
    server = start_server()
    assert list(keys_of(server.rpc)) == [new]
    ended = skillery("verify", new_name, "--keys", str(tmp_path / "keys.json"), "--url", server.url)
    assert (ended.code, "its signer has changed" in ended.err) == (1, True)


SIGNER = """
import hashlib
from pathlib import Path
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from skillery import hookimpl
from skillery.backends import Offer
from skillery.errors import Unavailable

class Remote:
    def __init__(self, place):
        self._sealed = place.home / "sealed"
        self._key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)

    def public_keys(self):
        return [self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)]

    def sign(self, data):
        if self._sealed.exists():
            raise Unavailable("the service is sealed")
        [public] = self.public_keys()
        return f"sha256:{hashlib.sha256(public).hexdigest()}", self._key.sign(data)

@hookimpl
def skillery_signer():
    return Offer("remote", lambda settings, place: Remote(place))
"""


@pytest.mark.full
def test_nothing_is_stored_without_the_signer(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "remote.py").write_text(SIGNER)
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": str(folder), "SKILLERY_SIGNING_KEY": "remote"}, new_home=True)
    bundle: dict[str, Any] = {"manifest": manifest(new_name), "skill_md": "# x\n", "files": skill_files()}
    (server.home / "sealed").touch()
    error = server.rpc.error("create_skill", **bundle)

    assert (error["code"], "the signer cannot be reached" in error["message"]) == (-32006, True), error
    assert server.rpc.error("describe_skill", name=new_name)["code"] == -32003
    (server.home / "sealed").unlink()
    server.rpc("create_skill", **bundle)
    assert "publication" in statements_of(server.rpc, new_name)


# -- chains ------------------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = SigningKey.new(), SigningKey.new(), SigningKey.new()


def link(
    previous: bytes | None, *signers: SigningKey, added: SigningKey | None = None, **change: tuple[str, ...]
) -> bytes:
    import hashlib

    sha256 = hashlib.sha256(previous).hexdigest() if previous else None
    keys = {added.keyid: added.public_der} if added else {}
    return seal(make_keys_statement(keys, sha256, **change), *(key.sign for key in signers))


BEGIN = link(None, FIRST, added=FIRST)
ENDED = link(BEGIN, FIRST, retired=(FIRST.keyid,))
ROTATED = link(BEGIN, FIRST, SECOND, added=SECOND, retired=(FIRST.keyid,))


def test_a_chain_is_followed_from_each_of_its_keys() -> None:
    for pinned in ((), (FIRST.keyid,), (SECOND.keyid,)):
        keychain = follow([BEGIN, ROTATED], pinned)
        assert (keychain.present, set(keychain.trusted)) == ((SECOND.keyid,), {FIRST.keyid, SECOND.keyid})
    revoked = follow([BEGIN, ROTATED, link(ROTATED, SECOND, revoked=(FIRST.keyid,))])
    assert (set(revoked.trusted), revoked.revoked) == ({SECOND.keyid}, frozenset({FIRST.keyid}))


@pytest.mark.parametrize(
    "chain",
    [
        [],
        [link(BEGIN, FIRST, added=FIRST)],
        [ROTATED],
        [BEGIN, link(BEGIN, SECOND, added=SECOND, retired=(FIRST.keyid,))],
        [BEGIN, link(BEGIN, FIRST, added=SECOND)],
        [BEGIN, link(BEGIN, SECOND, added=SECOND, revoked=(FIRST.keyid,))],
        [BEGIN, ROTATED, link(ROTATED, FIRST, THIRD, added=THIRD)],
        [BEGIN, ROTATED, link(BEGIN, SECOND, THIRD, added=THIRD)],
        [BEGIN, ENDED],
        [BEGIN, ENDED, link(ENDED, SECOND, added=SECOND)],
        [seal(make_statement("review", "a.b", "1.0.0", "sha256:00", {}), FIRST.sign)],
    ],
)
def test_a_chain_with_a_false_link_is_refused(chain: list[bytes]) -> None:
    with pytest.raises(ProofError):
        follow(chain)


def test_each_bit_of_a_chain_counts() -> None:
    for at in range(len(ROTATED)):
        changed = ROTATED[:at] + bytes([ROTATED[at] ^ 1]) + ROTATED[at + 1 :]
        with pytest.raises(ProofError):
            follow([BEGIN, changed])


def test_an_answer_of_keys_is_json(sqlite_server: Server) -> None:
    answer = json.loads(sqlite_server.rpc.http.get(ADDRESS).content)

    assert {"payload", "payloadType", "signatures"} == answer["statements"][0].keys()
