"""The audit trail through methods and endpoints: every change and every refused attempt leaves an entry, on both
databases.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from skillery.methods.table import METHODS
from skillery.proof.dsse import SigningKey
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.proof.test_keys import register, signed
from tests.support.needing import create, needing
from tests.support.people import Caller, Who
from tests.support.prefork import FORKED
from tests.support.processes import eventually, free_port
from tests.support.wheels import make_wheel

CHANGING = [name for name, method in METHODS.items() if method.audits != ""]


class Trail:
    """Callers that act on a server, and the entries that list_audit returns to an admin."""

    def __init__(self, url: str, name: str, house: Path) -> None:
        self.house = house
        self.admin = Caller(url, Who(f"{name}-admin", "admin", "*"))
        self.ann = Caller(url, Who(f"{name}-ann", "read publish", f"{name}.*"))
        self.bot = Caller(url, Who(f"{name}-bot", "read publish", f"{name}.*", "agent"))
        self.rita = Caller(url, Who(f"{name}-rita", "review"))
        self.name = name

    def entries(self, **filters: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.admin("list_audit", **filters)["entries"]
        return entries

    def only(self, **filters: Any) -> dict[str, Any]:
        """Return the only matching entry."""
        return self.exactly(1, **filters)[0]

    def exactly(self, number: int, **filters: Any) -> list[dict[str, Any]]:
        """Return the matching entries. Entries of refused attempts are written with a short delay, so wait for
        them.
        """
        entries = eventually(lambda: listed if len(listed := self.entries(**filters)) >= number else [])
        assert len(entries) == number, entries
        return entries


@pytest.fixture
def trail(org: Server, new_name: str, wheelhouse: Path) -> Trail:
    return Trail(org.url, new_name, wheelhouse)


# -- every method ------------------------------------------------------------------------------------------------


def draft(trail: Trail, version: str = "1.0.0") -> dict[str, str]:
    trail.bot.create(f"{trail.name}.x", version)
    return {"name": f"{trail.name}.x", "version": version}


def in_review(trail: Trail) -> dict[str, str]:
    which = draft(trail)
    trail.bot("submit_version", **which)
    return which


def published(trail: Trail) -> dict[str, str]:
    trail.ann.create(f"{trail.name}.x")
    return {"name": f"{trail.name}.x", "version": "1.0.0"}


def _create_skill(trail: Trail) -> str:
    return "{name}@{version}".format(**published(trail))


def _submit(trail: Trail) -> str:
    which = draft(trail)
    trail.bot("submit_version", **which)
    return "{name}@{version}".format(**which)


def _approve(trail: Trail) -> str:
    which = in_review(trail)
    trail.rita("approve_version", **which)
    return "{name}@{version}".format(**which)


def _reject(trail: Trail) -> str:
    which = in_review(trail)
    trail.rita("reject_version", **which, reason="leaks")
    return "{name}@{version}".format(**which)


def _yank(trail: Trail) -> str:
    which = published(trail)
    trail.ann("yank_version", **which, reason="leaks")
    return "{name}@{version}".format(**which)


def _purge(trail: Trail) -> str:
    which = published(trail)
    trail.admin("purge_version", **which, reason="leaks")
    return "{name}@{version}".format(**which)


def _unyank(trail: Trail) -> str:
    subject = _yank(trail)
    trail.ann("unyank_version", name=f"{trail.name}.x", version="1.0.0")
    return subject


def _deprecate(trail: Trail) -> str:
    name = published(trail)["name"]
    trail.ann("deprecate_skill", name=name, message="old")
    return name


def _undeprecate(trail: Trail) -> str:
    name = _deprecate(trail)
    trail.ann("undeprecate_skill", name=name)
    return name


def _visibility(trail: Trail) -> str:
    name = published(trail)["name"]
    trail.ann("set_visibility", name=name, visibility="private")
    return name


def _set_label(trail: Trail) -> str:
    which = published(trail)
    trail.ann("set_label", **which, label="stable")
    return f"{which['name']}@stable"


def _rollback_label(trail: Trail) -> str:
    subject = _set_label(trail)
    trail.ann.create(f"{trail.name}.x", "2.0.0")
    trail.admin("set_label", name=f"{trail.name}.x", label="stable", version="2.0.0")
    trail.ann("rollback_label", name=f"{trail.name}.x", label="stable")
    return subject


def _remove_label(trail: Trail) -> str:
    subject = _set_label(trail)
    trail.ann("remove_label", name=f"{trail.name}.x", label="stable")
    return subject


def _waive(trail: Trail) -> str:
    trail.rita("waive_finding", name=f"{trail.name}.x", rule="odd", reason="known", until="90d")
    return f"{trail.name}.x"


def _revoke_waiver(trail: Trail) -> str:
    waived = trail.rita("waive_finding", name=f"{trail.name}.x", rule="odd", reason="known")
    trail.rita("revoke_waiver", id=waived["id"])
    return str(waived["id"])


def _recheck(trail: Trail) -> str:
    """Publish under a waiver and revoke the waiver, so that the recheck changes the stored finding."""
    name = f"{trail.name}.x"
    waived = trail.rita("waive_finding", name=name, rule="no-forbidden", reason="known")
    trail.ann.create(name, code="def main(args): return 1  # FORBIDDEN\n")
    trail.rita("revoke_waiver", id=waived["id"])
    trail.rita("recheck_version", name=name, version="1.0.0")
    return f"{name}@1.0.0"


def _cancel_run(trail: Trail) -> str:
    runner = runner_of(trail)
    with ThreadPoolExecutor(1) as pool:
        code = "import time\ndef main(args): time.sleep(60)"
        waiting = pool.submit(runner, "run_code", language="python", code=code)
        found = eventually(lambda: waiting.done() or runner("list_runs", status="started")["runs"])
        assert not waiting.done(), waiting.result()
        runner("cancel_run", run_id=found[0]["run_id"])
        assert waiting.result()["error"]["type"] == "Cancelled"
    return str(found[0]["run_id"])


def runner_of(trail: Trail) -> Caller:
    return Caller(trail.admin.url, Who(f"{trail.name}-runner", "read run"))


def _workspace(trail: Trail) -> str:
    return str(runner_of(trail)("create_workspace", name="w")["id"])


def _reset_workspace(trail: Trail) -> str:
    workspace = _workspace(trail)
    code = "def main(args): open('a', 'w').close()"
    after = runner_of(trail)("run_code", language="python", code=code, workspace=workspace)["workspace"]["after"]
    runner_of(trail)("reset_workspace", workspace=workspace, snapshot=after)
    return workspace


def _delete_workspace(trail: Trail) -> str:
    workspace = _workspace(trail)
    runner_of(trail)("delete_workspace", workspace=workspace)
    return workspace


def _add_hold(trail: Trail) -> str:
    trail.admin("add_hold", kind="identity", name=trail.name, reason="dispute")
    return trail.name


def _remove_hold(trail: Trail) -> str:
    hold: str = trail.admin("add_hold", kind="identity", name=trail.name, reason="dispute")["id"]
    trail.admin("remove_hold", id=hold, reason="settled")
    return hold


def _start_evaluation(trail: Trail) -> str:
    trail.ann.create(f"{trail.name}.x", examples=[{"name": "none", "args": {}}])
    trail.ann("start_evaluation", name=f"{trail.name}.x", version="1.0.0")
    return f"{trail.name}.x@1.0.0"


def _cancel_evaluation(trail: Trail) -> str:
    _start_evaluation(trail)
    [evaluation] = trail.ann("list_evaluations", name=f"{trail.name}.x")["evaluations"]
    trail.ann("cancel_evaluation", id=evaluation["id"])
    return str(evaluation["id"])


def _create_token(trail: Trail) -> str:
    made = trail.admin("create_token", name=trail.name, scopes=["read"])
    return str(made["id"])


def _revoke_token(trail: Trail) -> str:
    token_id = _create_token(trail)
    trail.admin("revoke_token", id=token_id)
    return token_id


def _rotate_token(trail: Trail) -> str:
    _create_token(trail)
    return str(trail.admin("rotate_token", name=trail.name, overlap="1s")["name"])


def _revoke_identity(trail: Trail) -> str:
    name = f"{trail.name}-left"
    trail.admin("create_token", name=name, scopes=["read"], expires="1h")
    trail.admin("revoke_identity", name=name)
    return name


# Each function makes one change with one method and returns the subject of the entry.
def _delete_blob(trail: Trail) -> str:
    bot = Caller(trail.admin.url, Who(f"{trail.name}-runner", "run"))
    blob_id: str = bot("create_blob", content="x", kind="text/plain")["blob_id"]
    bot("delete_blob", blob_id=blob_id)
    return blob_id


def _define_tool(trail: Trail) -> str:
    runner = Caller(trail.admin.url, Who(f"{trail.name}-runner", "run"))
    name: str = runner("define_tool", name=trail.name, description="One", code="return 1")["name"]
    return name


def _remove_tool(trail: Trail) -> str:
    name = _define_tool(trail)
    Caller(trail.admin.url, Who(f"{trail.name}-runner", "run"))("remove_tool", name=name)
    return name


def _rebuild_environment(trail: Trail) -> str:
    """Rebuild the lock of a skill that this test creates, because named environments are shared by all tests."""
    own = f"own{trail.name}"
    make_wheel(trail.house, own, "1.0")
    create(trail.ann, needing(f"{trail.name}.x", own))
    sha256: str = trail.ann("describe_skill", name=f"{trail.name}.x")["skill"]["lock"]["sha256"]
    admin = Caller(trail.admin.url, Who(f"{trail.name}-admin", "admin", "*"))
    admin("rebuild_environment", name=sha256)
    eventually(lambda: admin("describe_environment", name=sha256)["rebuild"]["state"] != "running")
    return sha256


def _add_webhook(trail: Trail) -> str:
    added = trail.admin("add_webhook", url="http://localhost:9/", skills=[f"{trail.name}.none"])
    return str(added["id"])


def _remove_webhook(trail: Trail) -> str:
    webhook_id = _add_webhook(trail)
    trail.admin("remove_webhook", id=webhook_id)
    return webhook_id


def _add_trust_rule(trail: Trail) -> str:
    job = {"repository": "acme/x", "repository_id": "1", "owner_id": "2", "workflow": "release.yml"}
    added = trail.admin("add_trust_rule", target=f"{trail.name}.none", provider="github", **job)
    return str(added["id"])


def _remove_trust_rule(trail: Trail) -> str:
    rule_id = _add_trust_rule(trail)
    trail.admin("remove_trust_rule", id=rule_id)
    return rule_id


def _add_attestation(trail: Trail) -> str:
    created, key = trail.ann.create(f"{trail.name}.x"), SigningKey.new()
    register(trail.ann, key)
    envelope = signed(key, "author", created, author=f"{trail.name}-ann")
    trail.ann("add_attestation", name=created["name"], version="1.0.0", envelope=envelope)
    return f"{created['name']}@1.0.0"


def _end_attestation(trail: Trail) -> str:
    listed = trail.admin("list_attestations", name=published(trail)["name"])["attestations"]
    trail.admin("end_attestation", id=listed[0]["id"], reason="wrong")
    return str(listed[0]["id"])


def _add_key(trail: Trail) -> str:
    key = SigningKey.new()
    register(trail.ann, key)
    return key.keyid


def _revoke_key(trail: Trail) -> str:
    key = SigningKey.new()
    register(trail.ann, key)
    trail.ann("revoke_key", keyid=key.keyid, reason="stolen")
    return key.keyid


def _set_namespace(trail: Trail) -> str:
    trail.ann("set_namespace", namespace=trail.name, title="Tools")
    return trail.name


CHANGES: dict[str, Callable[[Trail], str]] = {
    "add_attestation": _add_attestation,
    "end_attestation": _end_attestation,
    "add_key": _add_key,
    "revoke_key": _revoke_key,
    "define_tool": _define_tool,
    "remove_tool": _remove_tool,
    "delete_blob": _delete_blob,
    "create_skill": _create_skill,
    "submit_version": _submit,
    "approve_version": _approve,
    "reject_version": _reject,
    "yank_version": _yank,
    "purge_version": _purge,
    "unyank_version": _unyank,
    "deprecate_skill": _deprecate,
    "undeprecate_skill": _undeprecate,
    "set_visibility": _visibility,
    "set_label": _set_label,
    "set_namespace": _set_namespace,
    "rollback_label": _rollback_label,
    "remove_label": _remove_label,
    "waive_finding": _waive,
    "revoke_waiver": _revoke_waiver,
    "recheck_version": _recheck,
    "cancel_run": _cancel_run,
    "rebuild_environment": _rebuild_environment,
    "create_workspace": _workspace,
    "reset_workspace": _reset_workspace,
    "delete_workspace": _delete_workspace,
    "start_evaluation": _start_evaluation,
    "cancel_evaluation": _cancel_evaluation,
    "add_hold": _add_hold,
    "remove_hold": _remove_hold,
    "create_token": _create_token,
    "rotate_token": _rotate_token,
    "revoke_token": _revoke_token,
    "revoke_identity": _revoke_identity,
    "add_webhook": _add_webhook,
    "remove_webhook": _remove_webhook,
    "add_trust_rule": _add_trust_rule,
    "remove_trust_rule": _remove_trust_rule,
}


def test_every_method_declares_its_audit_subject() -> None:
    silent = [name for name, method in METHODS.items() if method.audits is None]
    wrong = {
        name: method.audits
        for name, method in METHODS.items()
        if method.audits and method.audits not in method.params.__struct_fields__
    }

    assert silent == [], (
        "these methods do not state in METHODS whether they change data: set audits='<the param with the subject>' and "
        "call audit.record in their transactions, or set audits='' if they change nothing"
    )
    assert wrong == {}


def test_every_change_has_its_case_here() -> None:
    missing = sorted(set(CHANGING) - set(CHANGES))

    assert missing == [], f"add functions to CHANGES that make a change with {', '.join(missing)}"


@pytest.mark.parametrize("method", CHANGING)
def test_every_change_leaves_an_entry(method: str, trail: Trail) -> None:
    subject = CHANGES[method](trail)

    entries = trail.entries(subject=subject, action=method)
    assert len(entries) == 1, f"{method} left no entry: does its transaction call audit.record(…, '{method}', …)?"
    entry = entries[0]
    assert entry["outcome"] == "done"
    assert entry["subject"] == subject
    assert entry["identity"]["name"].startswith(trail.name)
    assert entry["address"] == "127.0.0.1"
    assert entry["request_id"]
    assert entry["before"] or entry["after"]
    assert (entry["code"], entry["type"], entry["count"]) == (None, None, 1)


@pytest.mark.full
def test_a_sweep_records_its_removals_in_a_single_entry(start_server: Callable[..., Server]) -> None:
    rpc = start_server(env={"SKILLERY_GC_GRACE_MINUTES": "0", "SKILLERY_GC_INTERVAL_MINUTES": "0"}).rpc
    rpc("delete_blob", blob_id=rpc("create_blob", content="nobody's", kind="text/plain")["blob_id"])

    for dry_run in (True, False, False):
        rpc("collect_garbage", dry_run=dry_run)

    (entry,) = rpc("list_audit", action="collect_garbage")["entries"]
    one = {"count": 1, "bytes": 8}
    assert (entry["outcome"], entry["before"]) == ("done", None)
    assert entry["after"] == {"expired_blobs": one, "unused_contents": one}


PARAMS: dict[str, Any] = {
    "url": "http://localhost:9",
    "blob_id": "none",
    "name": "no.such.skill",
    "namespace": "no.such",
    "target": "no.such.skill",
    "provider": "github",
    "kind": "identity",
    "version": "1.0.0",
    "reason": "x",
    "envelope": "x",
    "keyid": "none",
    "public": "x",
    "message": "x",
    "visibility": "private",
    "id": "none",
    "scopes": ["read"],
    "manifest": {"name": "no.such.skill", "version": "1.0.0"},
    "label": "stable",
    "rule": "none",
    "run_id": "none",
    "skill_md": "x",
    "workspace": "none",
    "origin": "none",
    "snapshot": "none",
    "path": "none",
}


@pytest.mark.parametrize("scope", sorted({method.needs or "" for method in METHODS.values()}))
def test_a_call_without_the_scope_leaves_an_entry(scope: str, trail: Trail) -> None:
    identity = {"name": f"{trail.name}-none", "kind": "agent"}
    caller = Caller(trail.admin.url, Who(identity["name"], "-", kind="agent"))
    methods = [name for name, method in METHODS.items() if (method.needs or "") == scope]
    params = {name: params_of(name) for name in methods}
    answers = {name: caller.error(name, **params[name])["code"] for name in methods}
    entries = {entry["action"]: entry for entry in trail.exactly(len(methods), identity=identity["name"])}

    assert {name: code for name, code in answers.items() if code != -32002} == {}
    assert entries.keys() == set(methods)
    refused = {"outcome": "refused", "code": -32002, "type": "not_allowed", "before": None, "after": None}
    common = {**refused, "identity": identity, "address": "127.0.0.1"}
    wrong = {
        name: entry
        for name, entry in entries.items()
        if not common.items() <= entry.items() or entry["subject"].partition("@")[0] != subject_of(name, params[name])
    }
    assert wrong == {}


def params_of(method: str) -> dict[str, Any]:
    return {key: value for key, value in PARAMS.items() if key in METHODS[method].params.__struct_fields__}


def subject_of(method: str, params: dict[str, Any]) -> str:
    """Return the subject, without its version, of the entry of a call with these params."""
    named = METHODS[method].audits or next((name for name in ("name", "run_id", "blob_id") if name in params), "")
    subject: str = params["manifest"]["name"] if named == "manifest" else params[named] if named else ""
    return subject


@pytest.mark.parametrize(
    ("verb", "path", "action"), [("POST", "/blobs", "create_blob"), ("GET", "/blobs/x", "read_blob")]
)
def test_an_endpoint_that_refuses_leaves_an_entry(verb: str, path: str, action: str, trail: Trail) -> None:
    nobody = Caller(trail.admin.url, Who(f"{trail.name}-none", "-"))
    assert nobody.http.request(verb, path).status_code == 403

    assert trail.only(identity=f"{trail.name}-none")["action"] == action


def test_a_page_from_elsewhere_that_is_kept_out_leaves_an_entry(trail: Trail) -> None:
    assert trail.ann.raw("{}", host="evil.example").status_code == 403

    knocks = eventually(lambda: trail.entries(action="knock"))
    assert {(entry["identity"], entry["code"], entry["type"]) for entry in knocks} == {
        (None, -32600, "host_not_allowed")
    }


# -- refused attempts ----------------------------------------------------------------------------------------------


def test_steps_that_are_refused_are_recorded_with_their_code(trail: Trail) -> None:
    which = published(trail)
    subject = "{name}@{version}".format(**which)
    assert trail.ann.error("unyank_version", **which)["code"] == -32004
    assert trail.bot.error("yank_version", name=f"{trail.name}.none", version="1.0.0", reason="x")["code"] == -32003
    assert trail.rita.error("reject_version", **which, reason="x")["code"] == -32004
    other = Caller(trail.admin.url, Who(f"{trail.name}-other", "publish", "other.*"))
    assert other.error("yank_version", **which, reason="x")["code"] == -32002

    assert trail.only(subject=subject, action="unyank_version")["type"] == "illegal_step"
    assert trail.only(action="yank_version", subject=f"{trail.name}.none")["code"] == -32003
    assert trail.only(subject=subject, identity=f"{trail.name}-rita")["code"] == -32004
    assert trail.only(identity=f"{trail.name}-other")["subject"] == subject


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://hooks.example.org/services/{}", "https://hooks.example.org"),
        ("http://localhost:9/?key={}", "http://localhost:9"),
        ("https://{}@hooks.example.org/", ""),
        ("hooks.example.org/{}", ""),
    ],
)
def test_a_refused_webhook_is_recorded_by_the_origin_of_its_url(url: str, origin: str, trail: Trail) -> None:
    assert trail.ann.error("add_webhook", url=url.format("hunter2"))["code"] == -32002

    assert trail.only(action="add_webhook", identity=f"{trail.name}-ann")["subject"] == origin


def test_webhooks_are_recorded_without_the_path_of_their_url(trail: Trail) -> None:
    url = f"http://localhost:9/services/hunter2?key={trail.name}"
    webhook_id = trail.admin("add_webhook", url=url, skills=[f"{trail.name}.none"])["id"]
    trail.admin("remove_webhook", id=webhook_id)

    entries = trail.entries(subject=webhook_id)

    assert "hunter2" not in str(entries)
    assert [(one["before"] or one["after"])["url"] for one in entries] == ["http://localhost:9"] * 2


def test_a_version_that_exists_is_a_refused_attempt(trail: Trail) -> None:
    published(trail)
    other = {"manifest": manifest(f"{trail.name}.x"), "skill_md": "# Other\n", "files": skill_files()}
    assert trail.ann.error("create_skill", **other)["code"] == -32004

    entry = trail.only(action="create_skill", subject=f"{trail.name}.x@1.0.0", outcome="refused")
    assert entry["type"] == "version_exists"


def test_calls_without_a_change_leave_no_entry(trail: Trail) -> None:
    which = published(trail)
    trail.ann.create(which["name"])
    trail.ann("set_visibility", name=which["name"], visibility="public")
    token = _revoke_token(trail)
    trail.admin("revoke_token", id=token)
    trail.ann.error("yank_version", **which)
    trail.ann.error("describe_skill", name=f"{trail.name}.none")
    trail.ann("list_skills")

    assert [entry["action"] for entry in trail.entries(subject=which["name"])] == ["create_skill"]
    assert [entry["action"] for entry in trail.entries(subject=token)] == ["revoke_token", "create_token"]
    assert trail.entries(identity=f"{trail.name}-ann", outcome="refused") == []


@pytest.mark.full
def test_a_login_that_fails_is_recorded_with_its_address_and_no_identity(tokens_server: Server) -> None:
    made = json.loads(_token(tokens_server, "audit-logins", "--scope", "admin").out)
    admin = Rpc(tokens_server.url, made["token"])
    bad = made["token"][:-1] + ("a" if made["token"][-1] != "a" else "b")
    assert (
        httpx.post(f"{tokens_server.url}/rpc", headers={"authorization": f"Bearer {bad}"}, json={}).status_code == 401
    )

    found = eventually(lambda: refused_logins(admin))
    assert {entry["address"] for entry in found} == {"127.0.0.1"}
    assert {entry["code"] for entry in found} == {-32001}
    assert {entry["identity"] for entry in found} == {None}


def refused_logins(admin: Rpc) -> list[dict[str, Any]]:
    return [entry for entry in admin("list_audit", action="login")["entries"] if entry["outcome"] == "refused"]


def _token(server: Server, name: str, *options: str) -> Any:
    arguments = ("token", "create", "--name", name, *options, "--home", str(server.home), "--json")
    return skillery(*arguments, SKILLERY_DATABASE=server.database)


# -- before and after ----------------------------------------------------------------------------------------------


def test_an_entry_contains_the_state_before_and_after(trail: Trail) -> None:
    which = in_review(trail)
    trail.rita("approve_version", **which, note="read all of it")
    trail.bot("deprecate_skill", name=which["name"], message="old", successor=f"{trail.name}.y")
    trail.ann("set_visibility", name=which["name"], visibility="namespace")

    visibility, deprecated, approved, submitted, created = trail.entries(subject=which["name"])
    digest = created["after"]["digest"]
    assert (created["before"], created["after"]["status"]) == (None, "draft")
    assert created["identity"] == {"name": f"{trail.name}-bot", "kind": "agent"}
    assert (submitted["before"], submitted["after"]) == (
        {"status": "draft"},
        {"status": "in_review", "digest": digest},
    )
    assert approved["before"] == {"status": "in_review"}
    assert approved["after"] == {"status": "published", "digest": digest, "note": "read all of it"}
    assert approved["identity"] == {"name": f"{trail.name}-rita", "kind": "person"}
    assert deprecated["before"] == {"versions": {"1.0.0": "published"}}
    assert deprecated["after"] == {
        "versions": {"1.0.0": "deprecated"},
        "message": "old",
        "successor": f"{trail.name}.y",
    }
    assert (visibility["before"], visibility["after"]) == ({"visibility": "public"}, {"visibility": "namespace"})


def test_calls_of_a_batch_share_a_request_id(trail: Trail) -> None:
    calls = [
        {"jsonrpc": "2.0", "id": one, "method": "create_token", "params": {"name": trail.name, "scopes": ["read"]}}
        for one in range(2)
    ]
    made = [one["result"]["id"] for one in trail.admin.http.post("/rpc", json=calls).json()]
    other = _create_token(trail)

    first, second, third = (trail.only(subject=one)["request_id"] for one in (*made, other))
    assert first == second != third


def test_the_bundled_skills_were_published_by_the_server_itself(trail: Trail) -> None:
    entry = trail.entries(subject="text.csv.profile")[-1]

    assert (entry["action"], entry["outcome"]) == ("create_skill", "done")
    assert entry["identity"] == {"name": "skillery", "kind": "agent"}
    assert entry["address"] is entry["request_id"] is None


# -- list_audit ----------------------------------------------------------------------------------------------------


def test_pages_hold_every_entry_once_newest_first(trail: Trail) -> None:
    tokens = [_create_token(trail) for _ in range(5)]
    params = {"identity": f"{trail.name}-admin", "limit": 2}

    def pages() -> Iterator[list[dict[str, Any]]]:
        cursor = ""
        while cursor is not None:
            page = trail.admin("list_audit", **params, cursor=cursor)
            cursor = page["next_cursor"]
            yield page["entries"]

    found = list(pages())
    assert [len(page) for page in found] == [2, 2, 1]
    rows = [entry for page in found for entry in page]
    assert [entry["subject"] for entry in rows] == tokens[::-1]
    assert [entry["seq"] for entry in rows] == sorted((entry["seq"] for entry in rows), reverse=True)


def test_after_returns_later_entries_oldest_first(trail: Trail) -> None:
    tokens = [_create_token(trail) for _ in range(5)]
    filters = {"identity": f"{trail.name}-admin"}
    first = trail.entries(**filters)[-1]["seq"]

    page = trail.admin("list_audit", **filters, after=first, limit=3)
    rest = trail.entries(**filters, after=page["entries"][-1]["seq"])

    assert [entry["subject"] for entry in page["entries"] + rest] == tokens[1:]
    assert page["next_cursor"] is None
    assert trail.entries(after=0, limit=1)[0]["seq"] == 1
    error = trail.admin.error("list_audit", after=0, cursor="x")
    assert (error["code"], error["data"]["param"]) == (-32602, "cursor")


def test_a_reader_with_after_gets_entries_of_concurrent_writers_without_a_gap(trail: Trail) -> None:
    """On Postgres, transactions of several connections write at the same time."""
    writers = [Caller(trail.admin.url, Who(f"{trail.name}-w{number}", "admin", "*")) for number in range(6)]
    last = trail.entries(limit=1)[0]["seq"]

    def write(writer: Caller) -> None:
        for _ in range(8):
            writer("create_token", name=f"{trail.name}-made", scopes=["read"])

    seen: list[dict[str, Any]] = []

    def read() -> int:
        page = trail.entries(after=last + len(seen))
        seen.extend(page)
        assert [entry["seq"] for entry in seen] == [last + number + 1 for number in range(len(seen))]
        return len(page)

    with ThreadPoolExecutor(len(writers)) as pool:
        writing = [pool.submit(write, writer) for writer in writers]
        while not all(each.done() for each in writing):
            read()
    while read():
        pass

    assert [each.result() for each in writing] == [None] * len(writers)
    made = [entry["identity"]["name"] for entry in seen if entry["action"] == "create_token"]
    assert sorted(name for name in made if trail.name in name) == sorted(
        [f"{trail.name}-w{number}" for number in range(6)] * 8
    )


class Collector(BaseHTTPRequestHandler):
    """Keeps the attributes of log records in `records`. The first request fails."""

    records: list[dict[str, str]]
    failures: int

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind = type(self)
        kind.failures += 1
        if kind.failures > 1 and self.path == "/v1/logs" and self.headers["x-key"] == "a b":
            for record in body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
                fields = {field["key"]: next(iter(field["value"].values())) for field in record["attributes"]}
                kind.records.append(fields | {"at": record["timeUnixNano"]})
        self.send_response(200 if kind.failures > 1 else 503)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.full(after=1)
def test_a_collector_gets_the_whole_trail_in_order(
    start_server: Callable[..., Server], database_kind: str, request: pytest.FixtureRequest
) -> None:
    new_database = request.getfixturevalue("new_postgres_database") if database_kind == "postgres" else None
    collector: Any = type("Here", (Collector,), {"records": [], "failures": 0})
    with ThreadingHTTPServer(("127.0.0.1", 0), collector) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        env = {"SKILLERY_AUDIT_OTLP": f"http://127.0.0.1:{http.server_port}"}
        env |= {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
        env |= {"SKILLERY_DATABASE": new_database()} if new_database else {}
        rpc = start_server(env=env).rpc
        rpc("create_token", name="ann", scopes=["read"])
        entries = rpc("list_audit", after=0, limit=1000)["entries"]
        eventually(lambda: len(collector.records) >= len(entries))
        http.shutdown()

    keys = [(record["skillery.audit.seq"], record["skillery.audit.hash"]) for record in collector.records]
    assert keys == [(str(entry["seq"]), entry["hash"]) for entry in entries]
    last, at = collector.records[-1], datetime.fromisoformat(entries[-1]["at"])
    assert (last["skillery.audit.action"], json.loads(last["skillery.audit.after"])["name"]) == ("create_token", "ann")
    assert (int(last["at"]) // 1000, "skillery.audit.before" in last) == (
        (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1),
        False,
    )


@pytest.mark.full(after=2)
def test_changed_settings_are_an_entry_without_credentials(start_server: Callable[..., Server]) -> None:
    for metrics, index in (("off", "https://ann:hunter2@a.example/simple"), ("open", "https://ann:hunter3@a.example")):
        env = {"SKILLERY_METRICS": metrics, "SKILLERY_PACKAGES_INDEX_URLS": index}
        server = start_server(env=env)
        server.stop()
    rpc = start_server("--port", str(free_port()), env=env).rpc

    (entry,) = rpc("list_audit", action="change_settings")["entries"]
    assert (entry["identity"]["name"], entry["before"]["metrics"], entry["after"]["metrics"]) == (
        "skillery",
        "off",
        "open",
    )
    assert entry["before"].keys() == {"metrics", "packages.index_urls"}
    assert entry["before"]["packages.index_urls"] != entry["after"]["packages.index_urls"]
    assert "hunter" not in json.dumps(entry)


@pytest.mark.full(after=1)
def test_audit_follow_prints_each_entry_once_across_a_restart(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    port, out = str(free_port()), tmp_path / "entries.jsonl"
    server = start_server("--port", port)

    def names() -> list[str]:
        entries = map(json.loads, out.read_text().splitlines())
        return [entry["after"]["name"] for entry in entries if entry["action"] == "create_token"]

    follow = [FORKED, "audit", "follow", "--after", "0", "--json", "--url", server.url]
    with out.open("w") as file, subprocess.Popen(follow, stdout=file, env=clean_environment()) as process:
        server.rpc("create_token", name="first", scopes=["read"])
        eventually(lambda: names() == ["first"])
        server.stop()
        start_server("--port", port).rpc("create_token", name="second", scopes=["read"])
        eventually(lambda: names() == ["first", "second"])
        process.terminate()

    seqs = [json.loads(line)["seq"] for line in out.read_text().splitlines()]
    assert seqs == list(range(1, len(seqs) + 1))


def test_a_cursor_is_good_for_its_own_filters_only(trail: Trail) -> None:
    for _ in range(2):
        _create_token(trail)
    cursor = trail.admin("list_audit", identity=f"{trail.name}-admin", limit=1)["next_cursor"]

    for other in ({"identity": f"{trail.name}-ann"}, {}, {"outcome": "done", "identity": f"{trail.name}-admin"}):
        error = trail.admin.error("list_audit", **other, cursor=cursor)
        assert (error["code"], error["data"]["type"]) == (-32602, "invalid_cursor")


def test_filters_select_exactly_the_matching_entries(trail: Trail) -> None:
    look_alike = Caller(trail.admin.url, Who(f"{trail.name}-ann", "read publish", "*"))
    which = published(trail)
    look_alike.create(f"{which['name']}a")
    look_alike.create(f"{which['name']}-b")
    trail.ann.create(which["name"], "2.0.0")
    at = datetime.fromisoformat(trail.only(subject=f"{which['name']}@2.0.0")["at"])
    after, before = (at + timedelta(microseconds=1)).isoformat(), at.astimezone(UTC).isoformat()

    def subjects(**filters: Any) -> list[str]:
        return [entry["subject"] for entry in trail.entries(**filters)]

    assert subjects(subject=which["name"]) == [f"{which['name']}@2.0.0", f"{which['name']}@1.0.0"]
    assert subjects(subject=f"{which['name']}@1.0.0") == [f"{which['name']}@1.0.0"]
    assert subjects(identity=f"{trail.name}-ann", action="yank_version") == []
    assert subjects(identity=f"{trail.name}-ann", outcome="refused") == []
    assert subjects(subject=which["name"], since=before) == [f"{which['name']}@2.0.0"]
    assert subjects(subject=which["name"], until=before) == [f"{which['name']}@1.0.0"]
    assert subjects(subject=which["name"], since=after) == []
    assert subjects(subject=which["name"], since="2999-01-01") == []
    assert len(subjects(subject=which["name"], until="2999-01-01")) == 2


@pytest.mark.parametrize(
    "filters", [{"since": "yesterday"}, {"until": "2026-13-01"}, {"identity": "a\0b"}, {"limit": 0}]
)
def test_an_invalid_filter_is_refused_by_name(filters: dict[str, Any], trail: Trail) -> None:
    error = trail.admin.error("list_audit", **filters)

    assert error["code"] == -32602
    assert error["data"]["param"] in filters
