"""Statements and keys of callers who attack the registry, its readers, or the key of another identity."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skillery.attestations.predicates import ci_provenance, summary_of
from skillery.backends import Provenance
from skillery.proof.dsse import SigningKey, pae, seal
from skillery.proof.statements import make_statement
from tests.cli.test_cli import skillery
from tests.conftest import RpcError, Server
from tests.proof.test_keys import people, register, signed
from tests.support.people import Caller, Who
from tests.support.processes import eventually


class Author:
    """Ann with a registered key, and a version that she has published."""

    def __init__(self, org: Server, name: str) -> None:
        self.caller, self.other = people(org, name)
        self.name = f"{name}.a"
        self.created, self.key = self.caller.create(self.name), SigningKey.new()
        register(self.caller, self.key)

    def signed(self, word: str = "author", **predicate: Any) -> str:
        return signed(self.key, word, self.created, **predicate)

    def add(self, envelope: str) -> Any:
        return self.caller("add_attestation", name=self.name, version="1.0.0", envelope=envelope)

    def refused(self, envelope: str) -> Any:
        return self.caller.error("add_attestation", name=self.name, version="1.0.0", envelope=envelope)

    def sent(self) -> list[bytes]:
        """Return the author's statements as every reader gets them."""
        address = f"/skills/{self.name}/1.0.0.intoto.jsonl"
        return self.caller.http.get(address, params={"predicate": "author"}).content.splitlines()


@pytest.fixture
def author(org: Server, new_name: str) -> Author:
    return Author(org, new_name)


def test_stored_envelope_has_no_line_breaks(author: Author) -> None:
    """Lines of one envelope would be statements that `verify` refuses, for every reader of the version."""
    envelope = author.signed(author="ann")
    added = author.add(json.dumps(json.loads(envelope), indent=1))

    assert author.add(envelope) == added
    assert author.sent() == [envelope.encode()]


@pytest.mark.parametrize(
    ("word", "predicate", "problem"),
    [
        ("author", {"author": "ann", "publisher": "rita"}, "unknown field `publisher`"),
        ("author", {}, "missing required field `author`"),
        ("author", {"author": "ann", "name": [[]]}, "Expected `str`, got `array`"),
        ("author", {"author": "ann", "name": "x" * 2001}, "length <= 2000"),
        ("review", {"reviewer": "ann", "decision": "passed"}, "Invalid enum value 'passed'"),
    ],
)
def test_a_predicate_has_no_other_fields_and_values(
    author: Author, word: str, predicate: dict[str, Any], problem: str
) -> None:
    error = author.refused(author.signed(word, **predicate))

    assert (error["code"], problem in error["message"]) == (-32602, True), error


def test_publishers_and_agents_sign_no_review_that_they_have_not_decided(org: Server, new_name: str) -> None:
    rita = people(org, new_name)[1]
    robot = Caller(org.url, Who("robot", "read publish review", f"{new_name}.*", "agent"))
    created = rita.create(f"{new_name}.a")
    about = {"name": created["name"], "version": "1.0.0"}

    for caller, name in ((rita, "rita"), (robot, "robot")):
        key = SigningKey.new()
        register(caller, key)
        envelope = signed(key, "review", created, reviewer=name, decision="approved")
        error = caller.error("add_attestation", **about, envelope=envelope)
        assert (error["code"], "has not approved or rejected" in error["message"]) == (-32002, True)
    ruth, key = Caller(org.url, Who("ruth", "read publish review", f"{new_name}.*")), SigningKey.new()
    register(ruth, key)
    envelope = signed(key, "review", created, reviewer="ruth", decision="approved", note="read it all")
    assert ruth("add_attestation", **about, envelope=envelope)["verified_as"] == "ruth"
    [row] = ruth("list_attestations", name=created["name"], predicate="review")["attestations"]
    assert row["summary"] == "approved: read it all"


def test_only_the_publisher_of_a_version_signs_as_its_author(author: Author) -> None:
    key = SigningKey.new()
    register(author.other, key)
    envelope = signed(key, "author", author.created, author="rita")
    error = author.other.error("add_attestation", name=author.name, version="1.0.0", envelope=envelope)

    assert (error["code"], "'ann' has published" in error["message"]) == (-32002, True), error
    assert author.sent() == []


def test_a_large_statement_is_refused(author: Author) -> None:
    facts = author.created["name"], author.created["version"], author.created["digest"]
    payload = make_statement("author", *facts, {"author": "ann"}) + b" " * 16_384

    assert "more than 16384 bytes" in author.refused(seal(payload, author.key.sign).decode())["message"]


def test_the_statements_of_an_identity_are_limited(author: Author) -> None:
    for number in range(20):
        author.add(author.signed(author="ann", at=str(number)))

    assert "20 statements about this version" in author.refused(author.signed(author="ann"))["message"]
    assert author.add(author.signed(author="ann", at="0"))["id"]
    first = author.caller("list_attestations", name=author.name, predicate="author")["attestations"][0]["id"]
    author.caller("end_attestation", id=first, reason="room")
    assert author.refused(author.signed(author="ann"))["data"]["type"] == "conflict"


def test_a_withdrawn_statement_can_be_signed_again(author: Author) -> None:
    first = author.add(author.signed(author="ann"))["id"]
    author.caller("end_attestation", id=first, reason="too early")

    assert author.add(author.signed(author="ann"))["id"] != first
    assert author.sent() == [author.signed(author="ann").encode()]


def test_a_token_that_only_reads_withdraws_and_revokes_nothing(org: Server, author: Author) -> None:
    own = author.add(author.signed(author="ann"))["id"]
    reader = Caller(org.url, Who("ann", "read", "*"))

    assert reader.error("end_attestation", id=own, reason="x")["data"]["scope"] == "publish"
    assert reader.error("revoke_key", keyid=author.key.keyid, reason="x")["code"] == -32002


@pytest.mark.full
def test_the_keys_of_an_identity_are_limited(org: Server, new_name: str) -> None:
    many = Caller(org.url, Who(f"many-{new_name}", "read publish", f"{new_name}.*"))
    key = SigningKey.new()
    register(many, key)
    many("revoke_key", keyid=key.keyid, reason="lost")
    for _ in range(99):
        register(many, SigningKey.new())

    with pytest.raises(RpcError, match="100 keys, which is the limit"):
        register(many, SigningKey.new())


def test_a_reviewer_registers_a_key_without_the_scope_publish(org: Server, new_name: str) -> None:
    reviewer, key = Caller(org.url, Who(f"rev-{new_name}", "read review")), SigningKey.new()

    assert register(reviewer, key)["added"]
    assert reviewer("revoke_key", keyid=key.keyid, reason="lost")["keyid"] == key.keyid
    reader = Caller(org.url, Who(f"reader-{new_name}", "read run"))
    assert reader.error("add_key", public="AAAA")["data"]["scope"] == "publish"


def test_a_refused_key_is_in_the_audit_trail(org: Server, author: Author, new_name: str) -> None:
    name = f"thief-{new_name}"
    thief = Caller(org.url, Who(name, "read publish", f"{new_name}.*"))
    public = base64.b64encode(author.key.public_der).decode()
    with pytest.raises(RpcError, match="taken or revoked"):
        register(thief, author.key)
    admin = Caller(org.url, Who("adam", "admin", "*"))

    entry = eventually(lambda: admin("list_audit", action="add_key", identity=name)["entries"])[0]
    assert (entry["outcome"], entry["subject"]) == ("refused", public)


@pytest.mark.full
def test_a_revoked_identity_signs_nothing(org: Server, new_name: str) -> None:
    name = f"leaver-{new_name}"
    leaver, admin = (
        Caller(org.url, Who(name, "read publish", f"{new_name}.*")),
        Caller(org.url, Who("adam", "admin", "*")),
    )
    created, key = leaver.create(f"{new_name}.a"), SigningKey.new()
    register(leaver, key)
    envelope = signed(key, "author", created, author=name)
    leaver("add_attestation", name=created["name"], version="1.0.0", envelope=envelope)
    report = admin("revoke_identity", name=name)

    assert report["keys"] == [key.keyid]
    [row] = admin("list_keys", by=name)["keys"]
    assert (bool(row["retired_at"]), row["revoked_at"]) == (True, None)
    later = signed(key, "author", created, author=name, at="later")
    refused = leaver.error("add_attestation", name=created["name"], version="1.0.0", envelope=later)
    assert "retired" in refused["message"]
    with pytest.raises(RpcError, match="taken or revoked"):
        register(leaver, key)
    assert envelope.encode() in admin.http.get(f"/skills/{created['name']}/1.0.0.intoto.jsonl").content


@pytest.mark.parametrize(
    ("issuer", "host"),
    [
        ("https://token.actions.githubusercontent.com", "github.com"),
        ("https://evilgithubusercontent.com", "evilgithubusercontent.com"),
        ("https://git.example.org:8443", "git.example.org:8443"),
    ],
)
def test_only_issuers_of_github_get_the_host_github_com(issuer: str, host: str) -> None:
    job = Provenance(issuer, "repo:acme/skills", "acme/skills", ref="refs/heads/main", commit="5f0c2b1aa0")
    [source] = ci_provenance(job, "https://skills.example.org")["buildDefinition"]["resolvedDependencies"]

    assert source["uri"] == f"git+https://{host}/acme/skills@refs/heads/main"
    summary = summary_of("provenance", ci_provenance(job, "https://skills.example.org"))
    assert summary == "acme/skills refs/heads/main at 5f0c2b1"


# -- a server that wants a signature of a statement --------------------------------------------------------------------


class Asking(http.server.BaseHTTPRequestHandler):
    """Answers add_key with a statement in place of a challenge."""

    signatures: list[str]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.signatures += filter(None, [request["params"].get("signature")])
        statement = make_statement("author", "team.evil", "1.0.0", f"sha256:{'0' * 64}", {"author": "ann"})
        result = {"keyid": "sha256:0", "added": False, "challenge": pae(statement).decode()}
        answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def asking() -> Iterator[tuple[str, list[str]]]:
    """The address of such a server, and the signatures that it gets."""
    Asking.signatures = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Asking.signatures
        server.shutdown()
        thread.join()


def test_no_server_gets_a_signature_of_a_statement_as_a_challenge(
    asking: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, signatures = asking
    file = tmp_path / "me.pem"
    skillery("key", "new", str(file))
    ended = skillery("key", "add", str(file), "--url", url)

    assert (ended.code, "another text than a challenge" in ended.err) == (1, True), ended.err
    assert signatures == []
