"""`skillery attest --existing`: statements about versions that were stored without a key, and their `passed`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from skillery.backends import Provenance
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.proof.test_attestations import ADDRESS, keys_of, statements_of, verified

JOB = Provenance("https://token.actions.githubusercontent.com", "repo:acme/skills", "acme/skills", commit="5f0c2b1")


@pytest.mark.full
def test_existing_versions_get_signed_statements(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    server = start_server(env={"SKILLERY_SIGNING_KEY": "off"}, new_home=True)
    names = [f"{new_name}.{part}" for part in ("a", "b", "c")]
    for name in names:
        server.rpc("create_skill", manifest=manifest(name), skill_md="# x\n", files=skill_files())
    policy = f'[policy."{new_name}.d"]\nneeds = ["author"]\n'
    server.rpc("create_skill", manifest=manifest(f"{new_name}.d"), skill_md="# x\n", files=skill_files())
    home = ("--home", str(server.home))
    server.stop()
    approval = {"by": "rita", "kind": "person", "at": "2026-01-02T03:04:05Z", "note": "read it all"}
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        of_name = "skill_id = (SELECT id FROM skills WHERE name = ?)"
        [(digest,)] = sqlite.execute(f"SELECT digest FROM skill_versions WHERE {of_name}", (names[0],))
        sqlite.execute(
            f"UPDATE skill_versions SET standing_json = ?, provenance_json = ? WHERE {of_name}",
            (json.dumps({"approval": {**approval, "digest": digest}}), msgspec.json.encode(JOB).decode(), names[0]),
        )
        sqlite.execute(f"UPDATE skill_versions SET digest = 'sha256:{'0' * 64}' WHERE {of_name}", (names[2],))
    (server.home / "skillery.toml").write_text(policy)
    ended = skillery("attest", "--existing", *home)

    assert (ended.code, f"{names[2]}@1.0.0 has the digest" in ended.err) == (1, True), ended.err
    again = skillery("attest", "--existing", "--json", *home)
    assert again.json["signed"] == 0
    server = start_server(env={"SKILLERY_SIGNING_KEY": "home"})
    first, second = (statements_of(server.rpc, name) for name in names[:2])
    assert sorted(first) == ["passed", "provenance", "publication", "review"]
    assert sorted(second) == ["passed", "publication"]
    # A policy needs what no statement says, and a version with another digest gets none.
    assert list(statements_of(server.rpc, f"{new_name}.d")) == ["publication"]
    assert statements_of(server.rpc, names[2]) == {}
    assert server.rpc("explain_policy", name=names[0])["passed"]
    assert len(first["passed"]["inputAttestations"]) == 2
    assert all(predicate["backfilled"] for predicate in (*first.values(), *second.values()))
    assert (first["review"]["reviewer"], first["review"]["at"]) == ("rita", "2026-01-02T03:04:05Z")
    assert second["publication"]["publisher"] == "local"
    assert verified(server, names[0]).code == 0
    rows = server.rpc("list_attestations", name=names[0])["attestations"]
    assert all("(signed later)" in row["summary"] for row in rows)
    assert server.rpc("list_audit", action="attest_existing")["entries"][0]["after"]["versions"] >= 2


@pytest.mark.full
def test_withdrawn_statements_are_not_signed_again(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    rows = server.rpc("list_attestations", name=new_name, predicate="publication")["attestations"]
    server.rpc("end_attestation", id=rows[0]["id"], reason="It names another publisher.")

    ended = skillery("attest", "--existing", "--json", "--home", str(server.home))
    assert (ended.code, ended.json["signed"]) == (0, 0)
    assert "publication" not in statements_of(server.rpc, new_name)


def revoke_key_of(rpc: Rpc, server: Server, *login: str) -> str:
    """Stop the server, and replace its key, which was stolen. Return the keyid of the stolen key."""
    [old] = keys_of(rpc)
    home = ("--home", str(server.home))
    server.stop()
    assert skillery("key", "rotate", *home).code == 0
    assert skillery("key", "revoke", old, "--reason", "stolen", *home, *login).code == 0
    return old


@pytest.mark.full
def test_versions_of_a_stolen_key_are_signed_again(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(f'[policy."{new_name}.*"]\nneeds = ["publication", "scan"]\n')
    server = start_server()
    good, bad, changed, withdrawn = (f"{new_name}.{part}" for part in ("good", "bad", "changed", "withdrawn"))
    for name in (good, bad, changed, withdrawn):
        server.rpc("create_skill", manifest=manifest(name), skill_md="# x\n", files=skill_files())
    server.rpc("yank_version", name=bad, version="1.0.0", reason="It loses rows.")
    [row] = server.rpc("list_attestations", name=withdrawn, predicate="publication")["attestations"]
    server.rpc("end_attestation", id=row["id"], reason="It names another publisher.")
    lock, keys = str(tmp_path / "skillery.lock"), tmp_path / "keys.json"
    assert skillery("lock", good, "--file", lock, "--url", server.url).code == 0
    old = revoke_key_of(server.rpc, server)
    home = ("--home", str(server.home))
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        of_name = "skill_id = (SELECT id FROM skills WHERE name = ?)"
        sqlite.execute(f"UPDATE skill_versions SET publisher = 'mallory' WHERE {of_name}", (changed,))
    server = start_server()
    where = ("--url", server.url)
    keys.write_bytes(server.rpc.http.get(ADDRESS).content)

    assert f"{good}@1.0.0" in skillery("policy", "check", new_name, *where).out
    remedy = f"the revoked key {old}: an admin runs skillery attest --existing"
    refused = verified(server, good)
    assert (refused.code, remedy in refused.err) == (1, True), refused.err
    refused = skillery("lock", good, "--file", f"{lock}2", *where)
    assert (refused.code, remedy in refused.err) == (1, True), refused.err
    refused = skillery("verify", lock, "--offline", "--keys", str(keys))
    assert (refused.code, f"the revoked key {old}: run skillery lock again" in refused.err) == (1, True), refused.err
    refused = skillery("lock", good, "--file", lock, *where)
    assert (refused.code, "repeat the command with --keys keys.json" in refused.err) == (1, True), refused.err

    ended = skillery("attest", "--existing", *home)
    problem = f"not signed: {changed}@1.0.0 is published by 'mallory', and its statement 'publication' by 'local'"
    assert (ended.code, problem in ended.err) == (1, True), ended.out + ended.err
    assert skillery("attest", "--existing", "--json", *home).json["signed"] == 0
    ended = verified(server, good)
    assert (ended.code, f"revoked\tpublication\tlocal\t{old}" in ended.out) == (0, True), ended.out + ended.err
    assert server.rpc("explain_policy", name=good)["passed"]
    assert f"{good}@" not in skillery("policy", "check", new_name, *where).out
    assert skillery("lock", good, "--file", lock, "--keys", str(keys), *where).code == 0
    assert skillery("verify", lock, "--offline", "--keys", str(keys)).out == f"{lock}: 1 skill is verified\n"
    # The revocation is signed again, and the yanked version has not passed.
    rows = {
        name: server.rpc("list_attestations", name=name, version="1.0.0")["attestations"]
        for name in (good, bad, withdrawn)
    }
    again = {name: [row["predicate"] for row in rows[name] if row["keyid"] != old] for name in rows}
    assert again[bad] == ["publication", "scan", "revocation"]
    assert again[withdrawn] == ["scan"]
    assert "has not passed its policy" in verified(server, f"{bad}@1.0.0").err
    assert {row["keyid"] for row in rows[good]} > {old}
    assert any("(signed again)" in row["summary"] for row in rows[good])
    page = server.rpc.http.get(f"/s/{good}", follow_redirects=True)
    assert (page.status_code, "verified now" in page.text, "not valid" in page.text) == (200, True, False)


@pytest.mark.full
def test_only_the_chain_of_keys_revokes_a_key(start_server: Callable[..., Server], new_name: str) -> None:
    server = start_server()
    server.rpc("create_skill", manifest=manifest(new_name), skill_md="# x\n", files=skill_files())
    home = ("--home", str(server.home))
    server.stop()
    assert skillery("key", "rotate", *home).code == 0
    with sqlite3.connect(server.home / "skillery.db") as sqlite:
        sqlite.execute("UPDATE signing_keys SET revoked_at = '2026-01-01' WHERE retired_at IS NOT NULL")

    assert skillery("attest", "--existing", "--json", *home).json["signed"] == 0


@pytest.mark.full
def test_decisions_before_later_ones_are_not_signed_again(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "skillery.toml").write_text(
        f'auth = "tokens"\n[policy."{new_name}.*"]\nneeds = ["review"]\nreviews = 2\n'
    )
    server = start_server()
    grants = ("--scope", "read,publish,review", "--namespace", "*", "--json", "--home", str(server.home))
    tokens = [skillery("token", "create", "--name", who, *grants).json["token"] for who in ("ann", "bob", "rita")]
    names = [f"{new_name}.{part}" for part in ("a", "b")]
    ann, _, rita = (Rpc(server.url, token) for token in tokens)
    for name in names:
        ann("create_skill", manifest=manifest(name), skill_md="# x\n", files=skill_files())
        rita("approve_version", name=name, version="1.0.0", note="read it all")
    stolen = revoke_key_of(ann, server, "--token", tokens[0])
    server = start_server()
    _, bob, rita = (Rpc(server.url, token) for token in tokens)
    rita("reject_version", name=names[1], version="1.0.0", reason="It loses rows.")

    ended = skillery("attest", "--existing", "--home", str(server.home))
    assert ended.code == 0, ended.err
    summaries = [
        [
            row["summary"]
            for row in rita("list_attestations", name=name, version="1.0.0", predicate="review")["attestations"]
            if row["keyid"] != stolen
        ]
        for name in names
    ]
    assert summaries == [["approved: read it all (signed again)"], ["rejected: It loses rows."]]
    bob("approve_version", name=names[0], version="1.0.0")
    assert bob("describe_skill", name=names[0])["skill"]["status"] == "published"
