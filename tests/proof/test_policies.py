"""Policies: what a version needs before the registry publishes it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skillery.proof.dsse import SigningKey
from tests.cli.test_cli import skillery
from tests.conftest import Server, manifest, skill_files
from tests.proof.test_attestations import execute, statements_of
from tests.proof.test_keys import register, signed
from tests.support.people import PLUGIN, Caller, Who, people_settings

POLICIES = """
[policy."two.*"]
needs = ["scan", "review"]
reviews = 2

[policy."two.agents.*"]
needs = ["review"]
reviewers = "any"

[policy."own.*"]
needs = ["author", "publication"]

[policy."team.*"]
needs = ["author"]
authors = ["ci:acme:acme/skills", "bot"]

[policy."scanned.*"]
needs = ["scan"]

[policy."keys.*"]
needs = ["review"]
signed_reviews = true

[policy."same.*"]
needs = ["review"]
requires = "same"

[policy."strict.*"]
needs = ["tests", "scan"]
scan = "none"
"""
JOB = """
        from skillery.backends import Provenance
        job = Provenance("https://ci.example.org", "job", "acme/skills") if name[:3] == "ci:" else None
        return Identity(name, kind, frozenset(scopes.split()), tuple(grants.split()), job)
"""
EXAMPLE = [{"name": "small", "args": {}, "expect": {"got": {}}}]


@pytest.fixture(scope="module")
def server(
    database_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("policies")
    (folder / "home").mkdir()
    (folder / "home" / "skillery.toml").write_text(POLICIES)
    url = "" if database_kind == "sqlite" else request.getfixturevalue("migrated_postgres_database")()
    env = people_settings(folder / "plugins", SKILLERY_DATABASE=url)
    lines = PLUGIN.splitlines(keepends=True)
    is_last = next(number for number, line in enumerate(lines) if "return Identity(" in line)
    (folder / "plugins" / "people.py").write_text("".join([*lines[:is_last], JOB, *lines[is_last + 1 :]]))
    running = Server(folder / "home", env=env)
    running.database = url
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def person(server: Server, name: str, scopes: str = "read publish review", kind: str = "person") -> Caller:
    return Caller(server.url, Who(name, scopes, "*", kind))


def explained(caller: Caller, name: str, version: str = "1.0.0") -> dict[str, Any]:
    explanation = dict(caller("explain_policy", name=name, version=version))
    explanation["needs"] = {need.pop("need"): need for need in explanation["needs"]}
    return explanation


def approve(caller: Caller, name: str, version: str = "1.0.0") -> Any:
    return caller("approve_version", name=name, version=version)


def test_two_people_approve_a_version(server: Server, new_name: str) -> None:
    ann, rita, otto = (person(server, name) for name in ("ann", "rita", "otto"))
    name = f"two.{new_name}"
    created = ann.create(name)
    assert (created["status"], created["warnings"]) == ("in_review", ["needs 0 of 2 approvals"])

    first = approve(rita, name)
    assert (first["status"], first["missing"]) == ("in_review", ["1 of 2 approvals"])
    # A repeated approval is the same approval.
    assert approve(rita, name) == first
    review = explained(ann, name)["needs"]["review"]
    assert [evidence["by"] for evidence in review["evidence"]] == ["rita"]
    assert "passed" not in statements_of(ann, name)
    assert approve(otto, name) == {key: created[key] for key in ("name", "version", "digest")} | {"status": "published"}
    explanation = explained(ann, name)
    assert explanation["passed"]
    assert all(need["ok"] for need in explanation["needs"].values())


def test_required_versions_meet_the_policy_of_the_version_that_requires_them(server: Server, new_name: str) -> None:
    ann, rita = person(server, "ann"), person(server, "rita")
    plain, reviewed, name = f"plain.{new_name}", f"two.{new_name}", f"same.{new_name}"
    ann.create(plain)
    ann.create(reviewed)
    for reviewer in ("rita", "otto"):
        approve(person(server, reviewer), reviewed)
    unmet = f"required versions that meet this policy, unlike '{plain}' 1.0.0 (0 of 1 approval)"

    both = {"skills": {reviewed: "*", plain: "*"}}
    assert ann.create(name, requires=both)["warnings"] == [f"needs {unmet}", "needs 0 of 1 approval"]
    assert approve(rita, name)["missing"] == [unmet]
    assert explained(ann, name)["needs"]["requires"]["missing"] == unmet
    ann("set_visibility", name=plain, visibility="private")
    hidden = explained(Caller(server.url, Who("bob", "read publish review", "same.*")), name)["needs"]["requires"]
    assert hidden["missing"].endswith(", unlike a skill that you may not see")

    assert ann.create(name, "1.1.0", requires={"skills": {reviewed: "*"}})["warnings"] == ["needs 0 of 1 approval"]
    assert approve(rita, name, "1.1.0")["status"] == "published"
    assert "SKILLERY_REQUIRES" in statements_of(ann, name, "1.1.0", predicate="passed")["passed"]["verifiedLevels"]


def test_the_publisher_and_agents_never_approve_under_a_policy(server: Server, new_name: str) -> None:
    name = f"two.{new_name}"
    adam = person(server, "adam", "admin")
    adam.create(name)

    refused = adam.error("approve_version", name=name, version="1.0.0")
    assert (refused["code"], "policy 'two.*'" in refused["message"]) == (-32002, True)
    robot = person(server, "robot", "read review", "agent")
    assert robot.error("approve_version", name=name, version="1.0.0")["code"] == -32002
    # The most specific policy counts alone: it needs one review, by any other caller.
    adam.create(f"two.agents.{new_name}")
    assert approve(robot, f"two.agents.{new_name}")["status"] == "published"


def test_passed_is_a_verification_summary_of_its_inputs(server: Server, new_name: str) -> None:
    ann, name = person(server, "ann"), f"two.{new_name}"
    ann.create(name)
    for reviewer in ("rita", "otto"):
        approve(person(server, reviewer), name)
    passed = statements_of(ann, name, predicate="passed")["passed"]
    lines = ann.http.get(f"/skills/{name}/1.0.0.intoto.jsonl").text.splitlines()
    hashes = {hashlib.sha256(line.encode()).hexdigest() for line in lines}

    assert (passed["verificationResult"], passed["resourceUri"]) == ("PASSED", f"skillery:{name}@1.0.0")
    inputs = {each["digest"]["sha256"] for each in passed["inputAttestations"]}
    assert len(inputs) == 3
    assert inputs < hashes
    values = {"needs": ["scan", "review"], "authors": [], "reviews": 2, "reviewers": "people",
              "signed_reviews": False, "scan": "warning", "policy": "two.*"}  # fmt: skip
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert passed["policy"] == {"uri": "skillery:policy:two.*", "digest": {"sha256": digest}}
    assert explained(ann, name)["digest"] == f"sha256:{digest}"


def test_every_published_version_has_passed(server: Server, new_name: str) -> None:
    ann = person(server, "ann")
    ann.create(new_name)

    explanation = explained(ann, new_name)
    assert (explanation["policy"], explanation["passed"], list(explanation["needs"])) == (
        "default",
        True,
        ["publication"],
    )
    assert statements_of(ann, new_name)["passed"]["policy"]["uri"] == "skillery:policy:default"


def test_two_approvals_at_once_publish(server: Server, new_name: str) -> None:
    name = f"two.{new_name}"
    person(server, "ann").create(name)
    callers = [person(server, reviewer) for reviewer in ("rita", "otto")]
    threads = [threading.Thread(target=approve, args=(caller, name)) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert callers[0].status(name) == "published"
    assert explained(callers[0], name)["passed"]


def test_the_signature_of_the_author_publishes(server: Server, new_name: str) -> None:
    ann, key, name = person(server, "ann"), SigningKey.new(), f"own.{new_name}"
    register(ann, key)
    created = ann.create(name)
    assert (created["status"], created["warnings"]) == ("in_review", ["needs the signature of its author"])

    envelope = signed(key, "author", created, author="ann")
    ann("add_attestation", name=name, version="1.0.0", envelope=envelope)
    assert ann.status(name) == "published"
    assert explained(ann, name)["signer"] == "ann"


def test_another_signer_makes_a_version_wait_for_a_review(server: Server, new_name: str) -> None:
    name = f"team.{new_name}"
    job = person(server, "ci:acme:acme/skills", "publish", "agent")
    bot, key = person(server, "bot", "read publish", "agent"), SigningKey.new()
    register(bot, key)
    assert job.create(name)["status"] == "published"
    assert job.create(name, "1.1.0")["status"] == "published"

    created = bot.create(name, "1.2.0")
    bot("add_attestation", name=name, version="1.2.0", envelope=signed(key, "author", created, author="bot"))
    assert bot.status(name, "1.2.0") == "in_review"
    explanation = explained(bot, name, "1.2.0")
    assert (explanation["signer"], explanation["former_signer"]) == ("bot", "ci:acme:acme/skills")
    assert "the signer has changed from ci:acme:acme/skills to bot" in explanation["needs"]["review"]["missing"]
    assert approve(person(server, "rita"), name, "1.2.0")["status"] == "published"
    # The next version has the same signer again.
    created = bot.create(name, "1.3.0")
    bot("add_attestation", name=name, version="1.3.0", envelope=signed(key, "author", created, author="bot"))
    assert bot.status(name, "1.3.0") == "published"


def test_a_yank_of_signed_versions_does_not_hide_the_former_signer(server: Server, new_name: str) -> None:
    name = f"scanned.{new_name}"
    job = person(server, "ci:acme:acme/skills", "publish", "agent")
    assert job.create(name)["status"] == "published"
    bob = person(server, "bob", "read publish")
    bob("yank_version", name=name, version="1.0.0", reason="old")

    assert bob.create(name, "1.1.0")["status"] == "in_review"
    explanation = explained(bob, name, "1.1.0")
    assert (explanation["signer"], explanation["former_signer"]) == ("", "ci:acme:acme/skills")
    # A yanked version is compared with older ones, like a published version.
    assert approve(person(server, "rita"), name, "1.1.0")["status"] == "published"
    assert explained(bob, name)["former_signer"] == ""


def test_only_authors_of_the_policy_count(server: Server, new_name: str) -> None:
    ann, key, name = person(server, "ann"), SigningKey.new(), f"team.{new_name}"
    register(ann, key)
    created = ann.create(name)
    ann("add_attestation", name=name, version="1.0.0", envelope=signed(key, "author", created, author="ann"))

    assert ann.status(name) == "in_review"
    assert explained(ann, name)["needs"]["author"]["missing"] == "the signature of a permitted author (ann is none)"


def test_reviews_are_signed_with_keys_of_the_reviewers(server: Server, new_name: str) -> None:
    ann, rita, key, name = person(server, "ann"), person(server, "rita"), SigningKey.new(), f"keys.{new_name}"
    register(rita, key)
    created = ann.create(name)

    waiting = approve(rita, name)
    assert waiting["missing"] == ["the reviewers' own signatures: rita"]
    envelope = signed(key, "review", created, reviewer="rita", decision="approved")
    rita("add_attestation", name=name, version="1.0.0", envelope=envelope)
    assert rita.status(name) == "published"


def test_policies_can_need_tests_and_scan(server: Server, new_name: str) -> None:
    ann = person(server, "ann")
    untested = ann.create(f"strict.{new_name}.a")
    ugly = ann.create(
        f"strict.{new_name}.b", code="def main(args):\n    return {'got': args}  # UGLY\n", examples=EXAMPLE
    )

    assert untested["warnings"] == ["needs examples that have passed"]
    assert ugly["status"] == "in_review"
    assert "no-ugly" in explained(ann, f"strict.{new_name}.b")["needs"]["scan"]["missing"]
    assert ann.create(f"strict.{new_name}.c", examples=EXAMPLE)["status"] == "published"
    unchecked = {"name": f"strict.{new_name}.d", "version": "1.0.0", "description": "Greets."}
    checked = ann("check_skill", manifest=unchecked, skill_md="# Greet\n", files=[])
    assert checked["status"] == "in_review"


def test_a_withdrawn_input_ends_passed(server: Server, new_name: str) -> None:
    ann, adam, name = person(server, "ann"), person(server, "adam", "admin"), f"two.{new_name}"
    ann.create(name)
    for reviewer in ("rita", "otto"):
        approve(person(server, reviewer), name)
    rows = ann("list_attestations", name=name, predicate="review")["attestations"]
    adam("end_attestation", id=rows[0]["id"], reason="not a review")

    explanation = explained(ann, name)
    assert (explanation["status"], explanation["passed"]) == ("published", False)
    assert explanation["needs"]["review"]["missing"] == "1 of 2 approvals"
    assert statements_of(ann, name, predicate="passed") == {}
    [waiting] = [row for row in adam("list_versions", waiting=True)["versions"] if row["name"] == name]
    assert waiting["status"] == "published"
    again = approve(person(server, "rita"), name)
    assert again["status"] == "published"
    assert explained(ann, name)["passed"]
    assert not [row for row in adam("list_versions", waiting=True)["versions"] if row["name"] == name]


@pytest.mark.full
def test_a_withdrawn_approval_is_needed_again_without_a_policy(server: Server, new_name: str) -> None:
    bot, rita, adam = person(server, "bot", kind="agent"), person(server, "rita"), person(server, "adam", "admin")
    name = f"free.{new_name}"
    if bot.create(name)["status"] == "draft":
        bot("submit_version", name=name, version="1.0.0")
    assert approve(rita, name)["status"] == "published"
    [row] = rita("list_attestations", name=name, predicate="review")["attestations"]
    adam("end_attestation", id=row["id"], reason="not a review")

    explanation = explained(rita, name)
    assert (explanation["passed"], explanation["needs"]["review"]["missing"]) == (False, "0 of 1 approval")
    assert statements_of(rita, name, predicate="passed") == {}


def test_a_row_without_a_valid_signature_is_no_evidence(server: Server, new_name: str) -> None:
    """A program that writes to the database inserts a review, takes over one, or copies one of another version."""
    ann, rita, name = person(server, "ann"), person(server, "rita"), f"two.{new_name}"
    for version in ("1.0.0", "1.1.0"):
        ann.create(name, version)
    approve(rita, name, "1.0.0")
    forged = """
        INSERT INTO attestations (attestation, version_id, digest, predicate, predicate_type, key_id, made_by,
            made_by_kind, envelope, sha256, created_at)
        SELECT 'att_' || {id}, {version}, digest, predicate, predicate_type, key_id, {by}, made_by_kind, {envelope},
            sha256, created_at
        FROM attestations WHERE predicate = 'review' AND version_id = {of} ORDER BY id LIMIT 1
    """
    ids = (
        f"SELECT v.id FROM skill_versions v JOIN skills s ON s.id = v.skill_id WHERE s.name = '{name}' AND v.version ="
    )
    first, second = f"({ids} '1.0.0')", f"({ids} '1.1.0')"
    broken = 'replace(envelope, \'"sig":"\', \'"sig":"AAAA\')'
    rows = ((first, "'otto'", "envelope"), (first, "made_by", broken), (second, "made_by", "envelope"))
    for number, (version, by, envelope) in enumerate(rows):
        own_id = f"'{new_name}{number}'"
        execute(server, forged.format(id=own_id, version=version, by=by, envelope=envelope, of=first))

    for version in ("1.0.0", "1.1.0"):
        needs = ann("explain_policy", name=name, version=version)["needs"]
        [review] = [need for need in needs if need["need"] == "review"]
        assert [evidence["by"] for evidence in review["evidence"]] == (["rita"] if version == "1.0.0" else [])
    assert approve(person(server, "otto"), name, "1.0.0")["status"] == "published"
    assert approve(person(server, "otto"), name, "1.1.0")["missing"] == ["1 of 2 approvals"]


def test_a_revoked_key_ends_passed_until_the_author_signs_again(server: Server, new_name: str) -> None:
    ann, name = person(server, "ann"), f"own.{new_name}"
    stolen, key = SigningKey.new(), SigningKey.new()
    register(ann, stolen)
    created = ann.create(name)
    ann("add_attestation", name=name, version="1.0.0", envelope=signed(stolen, "author", created, author="ann"))
    assert explained(ann, name)["passed"]
    ann("revoke_key", keyid=stolen.keyid, reason="stolen")

    explanation = explained(ann, name)
    assert (explanation["status"], explanation["passed"]) == ("published", False)
    assert explanation["needs"]["author"]["missing"] == "the signature of its author"
    [row] = ann("list_attestations", name=name, predicate="passed")["attestations"]
    assert row["ended"]["reason"] == f"the key {stolen.keyid} was revoked: stolen"
    [entry] = person(server, "adam", "admin")("list_audit", action="end_attestation", subject=row["id"])["entries"]
    assert (entry["identity"]["name"], entry["after"]["name"]) == ("ann", name)
    register(ann, key)
    ann("add_attestation", name=name, version="1.0.0", envelope=signed(key, "author", created, author="ann"))
    assert explained(ann, name)["passed"]


def test_more_permissions_wait_for_a_review_under_each_policy(server: Server, new_name: str) -> None:
    ann, key, name = person(server, "ann"), SigningKey.new(), f"own.{new_name}"
    register(ann, key)
    for version, hosts in (("1.0.0", []), ("1.1.0", ["https://api.example.com"])):
        created = ann.create(name, version, permissions={"network": hosts})
        ann("add_attestation", name=name, version=version, envelope=signed(key, "author", created, author="ann"))

    assert (ann.status(name), ann.status(name, "1.1.0")) == ("published", "in_review")
    assert approve(person(server, "rita"), name, "1.1.0")["status"] == "published"


@pytest.mark.full
def test_a_changed_policy_unpublishes_nothing(start_server: Callable[..., Server], tmp_path: Path) -> None:
    server = start_server()
    server.rpc("create_skill", manifest=manifest("acme.a"), skill_md="# A\n", files=skill_files())
    assert skillery("policy", "check", "acme", "--url", server.url).code == 0
    server.stop()
    (tmp_path / "home" / "skillery.toml").write_text('[policy."acme.*"]\nneeds = ["author", "scan"]\n')
    server = start_server()

    checked = skillery("policy", "check", "--url", server.url)
    assert (checked.code, checked.out) == (1, "acme.a@1.0.0 acme.*: the signature of its author\n")
    ended = skillery("policy", "explain", "acme.a", "--url", server.url)
    assert "no  author      the signature of its author" in ended.out
    assert "ok  scan        local" in ended.out
    described = skillery("describe", "acme.a", "--url", server.url)
    assert ended.out in described.out
    assert server.rpc("describe_skill", name="acme.a")["skill"]["status"] == "published"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[policy."a.*"]\nneeds = ["scan"]\nevaluation = {}\n', "has 'evaluation' without the need"),
        ('[policy."a.*"]\nneeds = ["reviews"]\n', "unknown need 'reviews' (did you mean 'review'?)"),
        ('[policy."a.*"]\n', "has no needs"),
        ('[policy."a*"]\nneeds = ["scan"]\n', "is not a pattern"),
        ('[policy."a.*"]\nneeds = ["scan"]\nreviews = 0\n', "policy.a.*.reviews"),
        ('[policy."a.*"]\nneeds = ["review"]\n', 'auth = "open" has only one identity'),
        ('[signing]\nkey = "off"\n\n[policy."a.*"]\nneeds = ["scan"]\n', "[policy] needs signed statements"),
    ],
)
def test_policies_that_cannot_be_met_refuse_the_start(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "skillery.toml").write_text(text)
    ended = skillery("serve", "--home", str(tmp_path), "--port", "0")

    assert ended.code == 4
    assert message in ended.err


def test_settings_that_contradict_a_policy_are_named(start_server: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    held_out = '[policy."b.*"]\nneeds = ["evaluation"]\nevaluation = { suite = "quality.held@^1" }\n'
    own = '[policy."c.*"]\nneeds = ["evaluation"]\n'
    (tmp_path / "home" / "skillery.toml").write_text(f'[policy."a.*"]\nneeds = ["scan"]\n{held_out}{own}')
    env = people_settings(tmp_path / "plugins", SKILLERY_PUBLISHING_SELF_APPROVAL="true")
    log = start_server(env=env).log.read_text()

    assert 'publishing.self_approval does not count for the skills of [policy."a.*"]' in log
    assert '[policy."a.*"] needs no review' in log
    [left] = [line for line in log.splitlines() if "on_submit" in line]
    assert '[policy."b.*"] needs the suite quality.held@^1, whose tasks evals.on_submit = "run" does not start' in left
