"""Webhooks over HTTP: their events, filters and signatures, on both databases."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, manifest, skill_files
from tests.support.growth import check_growth, spent
from tests.support.people import Caller, Who
from tests.webhooks.conftest import row_of, until
from tests.webhooks.receiver import Receiver, verified

Start = Callable[..., Server]
AddWebhook = Callable[..., str]
Publish = Callable[..., dict[str, Any]]


def test_published_version_sends_signed_event(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    add_webhook(rpc, skills=[f"{new_name}.*"])

    made = publish(f"{new_name}.x")

    [message] = receiver.wait_for_accepted(1)
    assert message.path == "/hook"
    assert message.headers["content-type"] == "application/json"
    assert message.json["type"] == "published"
    assert message.json["timestamp"].endswith("Z")
    assert message.data == {
        "name": f"{new_name}.x",
        "namespace": new_name,
        "by": "local",
        "by_kind": "person",
        "version": "1.0.0",
        "digest": made["digest"],
        "status": "published",
        "publisher": "local",
        "note": "",
        "link": f"/skills/{new_name}.x/1.0.0/SKILL.md",
    }
    assert verified(message.headers, message.body, receiver.secret)


def test_a_changed_old_or_foreign_message_has_no_valid_signature(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    add_webhook(rpc, skills=[f"{new_name}.*"])
    publish(f"{new_name}.x")
    [message] = receiver.wait_for_accepted(1)
    headers, body, secret = message.headers, message.body, receiver.secret

    other = "whsec_" + base64.b64encode(b"x" * 32).decode()
    old = headers | {"webhook-timestamp": str(int(time.time()) - 301)}

    assert verified(headers, body, secret)
    assert not verified(headers, body.replace(b"published", b"yanked"), secret)
    assert not verified(headers | {"webhook-id": "evt_other"}, body, secret)
    assert not verified(old, body, secret)
    assert not verified(headers, body, other)


@ON_SQLITE
def test_lifecycle_of_version_sends_events_in_order(
    org: Server, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    admin, agent, reviewer = (
        Caller(org.url, Who(f"{new_name}-{role}", scopes, f"{new_name}.*" if role != "admin" else "*", kind))
        for role, scopes, kind in (
            ("admin", "admin", "person"),
            ("bot", "read publish", "agent"),
            ("rita", "read review", "person"),
        )
    )
    add_webhook(admin, skills=[f"{new_name}.*"])
    for version, submit in (("1.0.0", True), ("1.1.0", None)):  # the second one is a draft
        made = {"manifest": manifest(f"{new_name}.x", version), "skill_md": "# X\n", "files": skill_files()}
        agent("create_skill", **made, submit=submit)
    agent("submit_version", name=f"{new_name}.x", version="1.1.0")
    reviewer("approve_version", name=f"{new_name}.x", version="1.0.0", note="fine")
    reviewer("reject_version", name=f"{new_name}.x", version="1.1.0", reason="wrong")
    agent("deprecate_skill", name=f"{new_name}.x", message="use y")
    agent("yank_version", name=f"{new_name}.x", version="1.0.0", reason="leaks")

    messages = receiver.wait_for_accepted(7)

    told = [(one.type, one.data.get("version") or one.data["versions"], one.data["by"]) for one in messages]
    bot, rita = f"{new_name}-bot", f"{new_name}-rita"
    assert told == [
        ("submitted", "1.0.0", bot),
        ("submitted", "1.1.0", bot),
        ("approved", "1.0.0", rita),
        ("published", "1.0.0", rita),
        ("rejected", "1.1.0", rita),
        ("deprecated", ["1.0.0"], bot),
        ("yanked", "1.0.0", bot),
    ]
    waits, notes = messages[0].data, [one.data.get("note") for one in messages]
    assert (waits["status"], waits["publisher"], waits["by_kind"]) == ("in_review", bot, "agent")
    assert waits["link"].endswith(f"/skills/{new_name}.x/1.0.0/SKILL.md")
    assert notes == ["", "", "fine", "fine", "wrong", None, "leaks"]
    assert messages[5].data["message"] == "use y"


def test_findings_of_stored_version_send_event(
    org: Server, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    admin = Caller(org.url, Who(f"{new_name}-admin", "admin", "*"))
    add_webhook(admin, skills=[f"{new_name}.*"], events=["finding"])
    admin.create(f"{new_name}.good")
    admin.create(f"{new_name}.ugly", code="def main(args):\n    return 1  # UGLY\n")

    [message] = receiver.wait_for_accepted(1)

    assert (message.data["name"], message.data["version"]) == (f"{new_name}.ugly", "1.0.0")
    [finding] = message.data["findings"]
    assert (finding["rule"], finding["severity"]) == ("no-ugly", "warning")
    assert (finding["file"], finding["line"]) == ("code/main.py", 2)


def test_a_webhook_gets_only_the_events_and_skills_of_its_filter(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    add_webhook(rpc, events=["yanked", "published"], skills=[f"{new_name}.a.*", f"{new_name}.b"])
    for name in ("a.x", "a", "ab.x", "b", "b.x"):
        publish(f"{new_name}.{name}")
        rpc("deprecate_skill", name=f"{new_name}.{name}", message="old")
    rpc("yank_version", name=f"{new_name}.b", version="1.0.0", reason="wrong")

    messages = receiver.wait_for_accepted(3)

    told = [(one.type, one.data["name"]) for one in messages]
    assert told == [("published", f"{new_name}.a.x"), ("published", f"{new_name}.b"), ("yanked", f"{new_name}.b")]


@pytest.mark.full
def test_yanks_for_security_and_purges_send_a_second_event(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    add_webhook(rpc, events=["yanked", "revoked"], skills=[f"{new_name}.*"])
    for version in ("1.0.0", "1.1.0"):
        publish(f"{new_name}.a", version)
    requires: dict[str, Any] = {"requires": {"skills": {f"{new_name}.a": "1.0.0"}}}
    for name in ("b", "c"):
        made = manifest(f"{new_name}.{name}", **requires)
        rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files())
    rpc("yank_version", name=f"{new_name}.a", version="1.0.0", reason="leaks", severity="security")
    rpc("purge_version", name=f"{new_name}.a", version="1.1.0", reason="a key", severity="malicious")

    messages = receiver.wait_for_accepted(3)

    sent = [
        (message.type, *(message.data.get(member) for member in ("version", "severity", "note", "dependents")))
        for message in messages
    ]
    assert sent == [
        ("yanked", "1.0.0", "security", "leaks", None),
        ("revoked", "1.0.0", "security", "leaks", 2),
        ("revoked", "1.1.0", "malicious", "a key", 0),
    ]
    assert messages[0].data["advisory"] == messages[1].data["advisory"] < messages[2].data["advisory"]


def test_run_failed_event_requires_explicit_subscription(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    everything = rpc("add_webhook", url="http://localhost:9/", skills=[f"{new_name}.*"])
    add_webhook(rpc, events=["run_failed"], skills=[f"{new_name}.*"])
    publish(f"{new_name}.x", code="def main(args):\n    raise ValueError('secret detail')\n")
    run_id = rpc("execute_skill", name=f"{new_name}.x", args={})["run_id"]

    [message] = receiver.wait_for_accepted(1)

    assert message.data["run_id"] == run_id
    assert message.data["error_type"] == "ValueError"
    assert (message.data["name"], message.data["version"]) == (f"{new_name}.x", "1.0.0")
    assert b"secret detail" not in message.body
    assert not {"run_failed", "seal", "audit"} & {*everything["events"]}
    assert rpc("remove_webhook", id=everything["id"])["dropped"] == 1  # the publication


@pytest.mark.full
def test_a_webhook_that_names_seals_gets_each_seal(start: Start, receiver: Receiver, add_webhook: AddWebhook) -> None:
    rpc = start(env={"SKILLERY_SEALS_SECONDS": "0.2"}).rpc
    add_webhook(rpc, events=["seal"])
    for number in range(2):
        rpc("create_skill", manifest=manifest(f"a.s{number}"), skill_md="# A\n", files=skill_files())
        receiver.wait_for_accepted(number + 1)

    sealed = {seal["seq"]: seal["envelope"] for seal in rpc("list_seals")["seals"]}
    for message in receiver.accepted:
        assert (message.type, message.data["envelope"]) == ("seal", sealed[message.data["seq"]])
        assert message.data["sha256"] == hashlib.sha256(message.data["envelope"].encode()).hexdigest()


def test_an_audit_webhook_gets_each_entry_of_the_trail_in_order(
    rpc: Rpc, receiver: Receiver, add_webhook: AddWebhook, new_name: str
) -> None:
    first = rpc("list_audit", limit=1)["entries"][0]["seq"]
    add_webhook(rpc, events=["audit"])
    rpc("create_token", name=new_name, scopes=["read"])
    rpc.error("yank_version", name=f"{new_name}.x", version="1.0.0", reason="wrong")

    messages = receiver.wait_for_accepted(3)
    entries = rpc("list_audit", after=first)["entries"]

    assert [message.data for message in messages] == entries[: len(messages)]
    assert {message.json["type"] for message in messages} == {"audit"}
    assert [entry["action"] for entry in entries][:3] == ["add_webhook", "create_token", "yank_version"]


def test_a_new_webhook_gets_no_earlier_events(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    publish(f"{new_name}.old")
    add_webhook(rpc, skills=[f"{new_name}.*"])
    publish(f"{new_name}.new")

    assert [one.data["name"] for one in receiver.wait_for_accepted(1)] == [f"{new_name}.new"]


def test_a_refused_change_leaves_no_event(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    add_webhook(rpc, skills=[f"{new_name}.*"])
    publish(f"{new_name}.x")
    rpc.error("yank_version", name=f"{new_name}.x", version="2.0.0", reason="wrong")
    publish(f"{new_name}.x")  # exists already
    publish(f"{new_name}.y")

    assert [one.data["name"] for one in receiver.wait_for_accepted(2)] == [f"{new_name}.x", f"{new_name}.y"]


def test_the_state_of_a_webhook_is_listed_without_its_secret(
    rpc: Rpc, publish: Publish, new_name: str, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    webhook_id = add_webhook(rpc, events=["published"], skills=[f"{new_name}.*"])
    publish(f"{new_name}.x")
    receiver.wait_for_accepted(1)
    until(lambda: row_of(rpc, webhook_id)["delivered"] == 1)

    row = row_of(rpc, webhook_id)

    assert row["url"] == receiver.url
    assert (row["events"], row["skills"]) == (["published"], [f"{new_name}.*"])
    assert (row["state"], row["waiting"], row["dead_letters"], row["last_error"]) == ("live", 0, 0, None)
    assert row["delivered_at"]
    assert receiver.secret.startswith("whsec_")
    assert receiver.secret not in json.dumps(rpc("list_webhooks"))
    assert receiver.secret not in json.dumps(rpc("list_audit", subject=webhook_id))


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"url": "ftp://localhost/"}, "url"),
        ({"url": "localhost:1"}, "url"),
        ({"url": "http://127.0.0.1/"}, "url"),
        ({"url": "http://[::1]/"}, "url"),
        ({"url": "http://2130706433/"}, "url"),
        ({"url": "http://0x7f.1/"}, "url"),
        ({"url": "http://user@localhost/"}, "url"),
        ({"url": "http://localhost:0/"}, "url"),
        ({"url": "http://localhost/#part"}, "url"),
        ({"url": "http://local\nhost/"}, "url"),
        ({"url": "http://no-such-host.invalid/"}, "url"),
        ({"url": "http://localhost/" + "x" * 2000}, "url"),
        ({"url": "http://localhost/", "events": ["publish"]}, "events"),
        ({"url": "http://localhost/", "skills": ["*"]}, None),
    ],
)
def test_an_invalid_webhook_is_refused(sqlite_rpc: Rpc, params: dict[str, Any], param: str | None) -> None:
    error = sqlite_rpc.error("add_webhook", **params)

    assert error["code"] == -32602
    assert error["data"].get("param") == param
    assert error["data"]["hint"]


def test_the_command_line_adds_tests_lists_and_removes_webhooks(
    sqlite_server: Server, receiver: Receiver, new_name: str
) -> None:
    url = ("--url", sqlite_server.url)
    added = skillery("webhook", "add", receiver.url, "--event", "published,yanked", "--skill", f"{new_name}.*", *url)
    secret, webhook_id = added.out.strip(), added.err.partition(":")[0]

    tested = skillery("webhook", "test", webhook_id, *url)
    receiver.answer = lambda _: 500
    failed = skillery("webhook", "test", webhook_id, "--json", *url)
    listed = skillery("webhook", "list", *url)
    dead = skillery("webhook", "dead", webhook_id, *url)
    removed = skillery("webhook", "rm", webhook_id, *url)

    assert "not shown again" in added.err
    assert (tested.code, tested.out.partition(",")[0]) == (0, f"{webhook_id}: accepted with 200")
    assert verified(receiver.requests[0].headers, receiver.requests[0].body, secret)
    assert receiver.requests[0].type == "test"
    assert (failed.code, failed.json["ok"], failed.json["error"]) == (1, False, "the target answered 500")
    assert webhook_id in listed.out
    assert secret not in listed.out
    assert "No dead letters." in dead.out + dead.err
    assert removed.code == 0
    assert skillery("webhook", "rm", webhook_id, *url).code != 0


@pytest.mark.full
def test_the_answer_of_a_target_costs_linear_time_in_its_text(
    sqlite_server: Server, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    webhook_id = add_webhook(sqlite_server.rpc)

    def cost(text: str) -> float:
        line = " ".join(text.split())
        receiver.headers = {"retry-after": line[:8000], "content-type": line[:8000], "content-encoding": line[:8000]}
        receiver.body = text.encode()
        return spent(sqlite_server.process.pid, lambda: sqlite_server.rpc("test_webhook", id=webhook_id))

    check_growth(cost)
