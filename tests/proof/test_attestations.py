"""Signed statements about versions: made by servers, read and verified by clients."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from skillery.proof.dsse import SigningKey, verify
from skillery.proof.keychains import follow
from skillery.proof.statements import check_subject, read_statement
from tests.cli.test_cli import Ended, skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.archives import tgz
from tests.support.people import Caller, Who

Publish = Callable[..., dict[str, Any]]
ADDRESS = "/.well-known/skillery/keys"


def keys_of(rpc: Rpc) -> dict[str, bytes]:
    statements = rpc.http.get(ADDRESS).json()["statements"]
    return dict(follow([json.dumps(statement, separators=(",", ":")).encode() for statement in statements]).trusted)


def statements_of(rpc: Rpc, name: str, version: str = "1.0.0", **query: str) -> dict[str, dict[str, Any]]:
    """Return the verified predicates of a version by word."""
    digest = rpc("describe_skill", name=name, version=version)["skill"]["digest"]
    lines = rpc.http.get(f"/skills/{name}/{version}.intoto.jsonl", params=query).content.splitlines()
    predicates = {}
    for line in lines:
        statement = read_statement(verify(line, keys_of(rpc)).payload)
        check_subject(statement, name, version, digest)
        predicates[str(statement.word)] = statement.predicate
    return predicates


def verified(server: Server, *arguments: str) -> Ended:
    return skillery("verify", *arguments, "--url", server.url)


def test_each_publication_is_signed(server: Server, publish: Publish, new_name: str) -> None:
    publish(f"{new_name}.a")
    server.rpc("set_visibility", name=f"{new_name}.a", visibility="namespace")
    publish(f"{new_name}.a", "1.1.0")

    first, second = (statements_of(server.rpc, f"{new_name}.a", version) for version in ("1.0.0", "1.1.0"))
    assert first["publication"].items() >= {"publisher": "local", "kind": "person", "visibility": "public"}.items()
    assert (second["publication"]["visibility"], second["publication"]["method"]) == ("namespace", "create_skill")


def test_the_text_of_the_files_has_the_digest(server: Server, publish: Publish, new_name: str) -> None:
    created = publish(new_name)
    response = server.rpc.http.get(f"/skills/{new_name}/1.0.0.files")

    assert f"sha256:{hashlib.sha256(response.content).hexdigest()}" == created["digest"]
    paths = [line.split(" ", 2)[2] for line in response.text.splitlines()]
    assert paths == ["SKILL.md", "code/main.py", "skill.toml"]
    assert response.headers["x-skillery-digest"] == created["digest"]
    assert "immutable" in response.headers["cache-control"]
    assert "no-cache" in server.rpc.http.get(f"/skills/{new_name}/latest.files").headers["cache-control"]
    assert server.rpc.http.get(f"/skills/{new_name}/9.9.9.files").status_code == 404


def test_statements_are_filtered_by_their_predicate(server: Server, publish: Publish, new_name: str) -> None:
    publish(new_name)
    address = f"/skills/{new_name}/1.0.0.intoto.jsonl"

    assert list(statements_of(server.rpc, new_name, predicate="publication")) == ["publication"]
    assert statements_of(server.rpc, new_name, predicate="review") == {}
    assert server.rpc.http.get(address, params={"predicate": "approval"}).status_code == 400


def test_a_repeated_publication_signs_nothing_new(server: Server, publish: Publish, new_name: str) -> None:
    publish(new_name)
    address = f"/skills/{new_name}/1.0.0.intoto.jsonl"
    before = server.rpc.http.get(address).content
    publish(new_name)

    assert server.rpc.http.get(address).content == before


def test_verify_prints_the_statements(server: Server, publish: Publish, new_name: str, tmp_path: Path) -> None:
    digest = publish(new_name)["digest"]
    ended = verified(server, new_name)

    assert ended.code == 0, ended.err
    assert f"{new_name}@1.0.0 {digest} is verified" in ended.out
    assert [line.split()[:3] for line in ended.out.splitlines()[:1]] == [["ok", "publication", "local"]]
    (tmp_path / "keys.json").write_bytes(server.rpc.http.get(ADDRESS).content)
    pinned = verified(server, f"{new_name}@1.0.0", "--keys", str(tmp_path / "keys.json"), "--json")
    assert json.loads(pinned.out)["ok"]


@ON_SQLITE
@pytest.mark.full
def test_verify_refuses_keys_of_another_registry(
    server: Server, publish: Publish, new_name: str, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    publish(new_name)
    (tmp_path / "keys.json").write_bytes(start_server(home="other", new_home=True).rpc.http.get(ADDRESS).content)
    ended = verified(server, new_name, "--keys", str(tmp_path / "keys.json"))

    assert ended.code == 1
    assert "its signer has changed" in ended.err
    (tmp_path / "keys.json").write_text("{}")
    assert "has no keys" in verified(server, new_name, "--keys", str(tmp_path / "keys.json")).err


def test_the_tables_refuse_changed_statements(server: Server, publish: Publish, new_name: str) -> None:
    publish(new_name)
    statements = [
        "UPDATE attestations SET envelope = 'x'",
        "UPDATE attestations SET envelope = ''",
        "UPDATE attestations SET made_by = 'x'",
        "DELETE FROM attestations",
        "UPDATE key_statements SET envelope = 'x'",
        "DELETE FROM key_statements",
        "DELETE FROM signing_keys",
    ]
    for statement in statements:
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.RaiseException), match="append-only"):
            execute(server, statement)
    assert statements_of(server.rpc, new_name)


def execute(server: Server, statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement as a program that writes to the database."""
    if server.database:
        with psycopg.connect(server.database) as postgres:
            cursor = postgres.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
    with sqlite3.connect(server.home / "skillery.db", timeout=300) as sqlite:
        return sqlite.execute(statement).fetchall()


@pytest.mark.full
def test_verify_notices_a_changed_envelope(start_server: Callable[..., Server], tmp_path: Path, new_name: str) -> None:
    """Someone who owns the database drops the triggers, and changes one byte."""
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    server.stop()
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        sqlite.execute("DROP TRIGGER attestations_no_update")
        [(envelope,)] = sqlite.execute(
            "SELECT envelope FROM attestations JOIN skill_versions v ON v.id = version_id "
            "JOIN skills s ON s.id = v.skill_id WHERE predicate = 'publication' AND s.name = ?", (new_name,)
        )  # fmt: skip
        changed = envelope[:20] + ("A" if envelope[20] != "A" else "B") + envelope[21:]
        sqlite.execute("UPDATE attestations SET envelope = ? WHERE envelope = ?", (changed, envelope))
    ended = skillery("verify", new_name, "--home", str(server.home))

    assert ended.code == 1
    assert "FAILED" in ended.out


def test_a_purge_empties_the_envelopes(server: Server, publish: Publish, new_name: str) -> None:
    publish(new_name)
    publish(new_name, "1.1.0")
    server.rpc("purge_version", name=new_name, version="1.0.0", reason="leaked key")

    envelopes = execute(
        server,
        "SELECT DISTINCT v.id, envelope = '' FROM attestations JOIN skill_versions v ON v.id = version_id "
        f"JOIN skills s ON s.id = v.skill_id WHERE s.name = '{new_name}' AND predicate <> 'revocation' ORDER BY v.id",
    )
    assert [bool(is_empty) for _, is_empty in envelopes] == [True, False]
    assert server.rpc.http.get(f"/skills/{new_name}/1.0.0.intoto.jsonl").status_code == 404
    assert statements_of(server.rpc, new_name, "1.1.0")


# -- statements of reviews, checks and sources -------------------------------------------------------------------------


def test_a_review_is_signed_with_its_decision(org: Server, new_name: str) -> None:
    made = manifest(f"team.{new_name}", permissions={"network": ["https://api.example.com"]})
    agent = Caller(org.url, Who("bot", "read publish", "team.*", "agent"))
    reviewer = Caller(org.url, Who("rita", "read review", "team.*"))
    for version in ("1.0.0", "1.1.0"):
        agent("create_skill", manifest=made | {"version": version}, skill_md="# x\n", files=skill_files())
        agent("submit_version", name=made["name"], version=version)
    reviewer("approve_version", name=made["name"], version="1.0.0", note="read it all")
    reviewer("reject_version", name=made["name"], version="1.1.0", reason="no tests")

    approved, rejected = (statements_of(reviewer, made["name"], version)["review"] for version in ("1.0.0", "1.1.0"))
    assert (approved["decision"], approved["note"], approved["kind"]) == ("approved", "read it all", "person")
    assert approved["permissions"]["added"]["network"] == ["https://api.example.com"]
    assert (rejected["decision"], rejected["note"]) == ("rejected", "no tests")


def test_findings_and_examples_are_signed(server: Server, new_name: str) -> None:
    examples = [{"name": "doubles", "args": {"n": 2}, "expect": {"got": {"n": 2}}}]
    server.rpc(
        "create_skill",
        manifest=manifest(new_name, examples=examples),
        skill_md="# x\n\nSee [the notes](notes.md).\n",
        files=skill_files(),
    )

    statements = statements_of(server.rpc, new_name)
    assert statements["tests"] == {
        "result": "PASSED",
        "configuration": [],
        "passedTests": ["doubles"],
        "warnedTests": [],
        "failedTests": [],
    }
    assert statements["scan"]["scanner"]["name"] == "skillery"
    assert [finding["rule"] for finding in statements["scan"]["findings"]] == ["dead_reference"]


def test_an_import_is_signed_with_its_source(server: Server, new_name: str) -> None:
    skill_md = f"---\nname: {new_name}\ndescription: Counts the words of a text file.\n---\n# Count\n"
    archive = tgz({f"skills/{new_name}/SKILL.md": skill_md})
    response = server.rpc.http.post("/import", content=archive, params={"namespace": new_name, "source": "acme/skills"})
    assert response.status_code == 200, response.text
    [name] = [row["name"] for row in server.rpc("list_skills", namespace=new_name)["skills"]]

    provenance = statements_of(server.rpc, name)["provenance"]["buildDefinition"]
    assert provenance["buildType"] == "urn:skillery:build:import:v1"
    assert provenance["externalParameters"]["source"] == "acme/skills"
    assert provenance["externalParameters"]["stated_by"] == "local"
    [row] = server.rpc("list_attestations", name=name, predicate="provenance")["attestations"]
    assert row["summary"].endswith("(stated by local)")
    assert provenance["externalParameters"]["path"].startswith("skills/")


# -- the key of the server ---------------------------------------------------------------------------------------------


def serve(home: Path, **settings: str) -> Ended:
    """Start a server that refuses to start, and return its messages."""
    return skillery("serve", "--home", str(home), "--port", "0", stdin=b"", **settings)


@pytest.mark.full
def test_the_first_start_makes_a_key(start_server: Callable[..., Server]) -> None:
    server = start_server(new_home=True)
    file = server.home / "signing" / "ed25519.pem"
    key = SigningKey.read(file.read_bytes())

    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert keys_of(server.rpc) == {key.keyid: key.public_der}
    entries = server.rpc("list_audit", action="add_key")["entries"]
    assert [(entry["subject"], entry["identity"]["name"]) for entry in entries] == [(key.keyid, "skillery")]
    server.stop()
    assert keys_of(start_server().rpc) == {key.keyid: key.public_der}


@pytest.mark.full
def test_a_server_with_another_key_does_not_start(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.stop()
    file = server.home / "signing" / "ed25519.pem"
    own, other = SigningKey.read(file.read_bytes()), SigningKey.new()
    remedy = "copy signing/ed25519.pem of a server that signs into the home, or change signing.key"
    file.write_bytes(other.pem)

    ended = serve(server.home)
    assert ended.code == 4
    assert f"this registry signs with {own.keyid}, and this server has {other.keyid}: {remedy}" in ended.err
    file.write_bytes(own.pem)
    file.chmod(0o600)
    assert keys_of(start_server().rpc) == {own.keyid: own.public_der}


@pytest.mark.full
def test_a_server_without_the_key_of_the_registry_publishes_without_statements(
    start_server: Callable[..., Server], new_name: str
) -> None:
    server = start_server()
    server.stop()
    file = server.home / "signing" / "ed25519.pem"
    own = SigningKey.read(file.read_bytes())
    file.unlink()

    unsigned = start_server()
    unsigned.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    assert statements_of(unsigned.rpc, new_name) == {}
    assert f"this registry signs with {own.keyid}, and this home has no key" in unsigned.log.read_text()
    assert not file.exists()
    assert keys_of(unsigned.rpc) == {own.keyid: own.public_der}


@pytest.mark.full
def test_an_unusable_key_file_prevents_the_start(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.stop()
    file = server.home / "signing" / "ed25519.pem"
    pem = file.read_bytes()
    file.chmod(0o644)

    assert "can open the signing key" in serve(server.home).err
    file.chmod(0o600)
    file.write_bytes(b"no key")
    assert "is not a private key in PEM" in serve(server.home).err
    file.unlink()
    file.mkdir()
    file.chmod(0o700)
    assert "cannot be read: Is a directory" in serve(server.home).err
    file.rmdir()
    file.write_bytes(pem)
    file.chmod(0o600)
    assert start_server()


@pytest.mark.full
def test_without_signing_nothing_is_signed(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server(env={"SKILLERY_SIGNING_KEY": "off"}, new_home=True)
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())

    assert not (server.home / "signing").exists()
    assert server.rpc.http.get(ADDRESS).json() == {"statements": []}
    assert server.rpc.http.get(f"/skills/{new_name}/1.0.0.intoto.jsonl").content == b""
    ended = verified(server, new_name)
    assert (ended.code, "the registry signs nothing" in ended.err) == (1, True)
    server.stop()
    ended = verified(start_server(), new_name)
    assert (ended.code, "has no signed publication" in ended.err) == (1, True)


@pytest.mark.full
def test_the_key_can_be_a_secret(start_server: Callable[..., Server], new_name: str) -> None:
    options = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(*options)
    secrets = {"SKILLERY_SECRETS": "environment", "SKILLERY_SIGNING_KEY": "secret:SIGN"}
    server = start_server(env=secrets | {"SKILLERY_SECRET_SIGN": pem.decode()})
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())

    assert list(keys_of(server.rpc)) == [SigningKey.read(pem).keyid]
    assert statements_of(server.rpc, new_name)
    assert verified(server, new_name).code == 0
    server.stop()
    assert "the secret of signing.key has no value" in serve(server.home, **secrets).err
    assert "is not a private key" in serve(server.home, **secrets, SKILLERY_SECRET_SIGN="pem").err
    ended = serve(server.home, SKILLERY_SIGNING_KEY="kms")
    assert "setting 'signing.key' is 'kms', which no plugin offers" in ended.err


@pytest.mark.full
def test_restore_names_the_key_that_is_missing(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server()
    [keyid] = keys_of(server.rpc)
    backup, home = str(tmp_path / "b.tar"), tmp_path / "restored"
    assert skillery("backup", backup, "--home", str(server.home)).code == 0
    ended = skillery("restore", backup, "--home", str(home))

    assert f"This registry signs with {keyid}. The key is in no backup" in ended.err
    (home / "signing").mkdir(mode=0o700)
    (server.home / "signing" / "ed25519.pem").rename(home / "signing" / "ed25519.pem")
    assert list(keys_of(start_server(home="restored").rpc)) == [keyid]
