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
from tests.conftest import Server, manifest, skill_files
from tests.proof.test_attestations import statements_of, verified

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
