"""Delivery of events: order, failures, dead letters, kill -9, several servers, and the rules for targets."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from bench.webhooks import deliver_through_outage
from skillery.webhooks.deliveries import AT_ONCE
from tests.cli.test_cli import skillery
from tests.conftest import ON_SQLITE, Rpc, Server, publisher
from tests.support.forms import rounds
from tests.webhooks.conftest import row_of, until
from tests.webhooks.receiver import WAIT_SECONDS, Message, Receiver

Start = Callable[..., Server]
AddWebhook = Callable[..., str]


def _change(rpc: Rpc, name: str, count: int, first: int = 0) -> list[str]:
    """Deprecate a skill again and again. Return the messages, which tell the events apart."""
    messages = [f"{name} {number}" for number in range(first, first + count)]
    if not first:
        publisher(rpc)(name, kind="instruction")
    for message in messages:
        rpc("deprecate_skill", name=name, message=message)
    return messages


def _accepted(receiver: Receiver) -> list[str]:
    """Return the accepted events in the order of their first arrival."""
    return list(dict.fromkeys(one.data["message"] for one in receiver.accepted))


@ON_SQLITE
@pytest.mark.full
def test_events_of_outage_arrive_in_order_after_target_recovers(start: Start) -> None:
    # `make webhooks` does the same with 1,000 events, an outage of a minute and the default pauses.
    found = deliver_through_outage(start(), events=100, outage=1.0)

    assert found.arrived == found.sent
    assert found.all_verified
    assert found.attempts_while_down >= 2


def test_a_failing_target_is_listed_with_its_queue_and_its_error(
    server: Server, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    receiver.stop()
    _change(server.rpc, "not.there", 3)
    until(lambda: row_of(server.rpc, webhook_id)["attempts"] >= 2)
    failing = row_of(server.rpc, webhook_id)
    receiver.start()
    receiver.wait_for_accepted(3)
    until(lambda: row_of(server.rpc, webhook_id)["delivered"] == 3)
    live = row_of(server.rpc, webhook_id)

    assert (failing["state"], failing["waiting"], failing["delivered"]) == ("failing", 3, 0)
    assert failing["last_error"].startswith("no answer")
    assert failing["next_at"]
    assert (live["state"], live["waiting"], live["attempts"], live["last_error"]) == ("live", 0, 0, None)
    assert live["next_at"] is None


def test_failed_event_is_retried_with_same_id_before_later_events(
    server: Server, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    statuses = iter([500, 302, 404])
    receiver.answer = lambda _: next(statuses, 200)
    add_webhook(server.rpc, events=["deprecated"])
    sent = _change(server.rpc, "a.gain", 3)
    receiver.wait_for_accepted(3)

    arrived = [(one.status, one.data["message"]) for one in receiver.requests]
    assert arrived == [(500, sent[0]), (302, sent[0]), (404, sent[0]), *((200, one) for one in sent)]
    assert len({one.id for one in receiver.requests[:4]}) == 1
    assert len({one.body for one in receiver.requests[:4]}) == 1
    assert {one.path for one in receiver.requests} == {"/hook"}  # redirects are not followed


@pytest.mark.full(after=1)
def test_a_slow_target_delays_no_other_target(start: Start, receiver: Receiver, add_webhook: AddWebhook) -> None:
    server = start()
    release = _Gate()
    slow = Receiver(answer=lambda _: release.wait())
    try:
        server.rpc("add_webhook", url=slow.url, events=["deprecated"])
        add_webhook(server.rpc, events=["deprecated"])
        sent = _change(server.rpc, "two.targets", 5)
        receiver.wait_for_accepted(5)
        assert len(slow.requests) <= 2  # each has taken as long as the gate may be closed
        release.open()
        slow.wait_for_accepted(5)
        assert _accepted(slow) == _accepted(receiver) == sent
    finally:
        release.open()
        slow.close()


@ON_SQLITE
@pytest.mark.full
def test_busy_webhooks_yield_slots_to_waiting_webhook(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    server = start()
    slow = Receiver(answer=lambda _: _after(3))
    try:
        for _ in range(AT_ONCE):
            server.rpc("add_webhook", url=slow.url, events=["deprecated"])
        _change(server.rpc, "very.busy", 30)  # each webhook is busy for 90 seconds
        until(lambda: slow.most_busy == AT_ONCE)
        add_webhook(server.rpc, events=["published"])
        publisher(server.rpc)("other.skill")
        receiver.wait_for_accepted(1)

        assert sum(one["waiting"] > 0 for one in server.rpc("list_webhooks")["webhooks"]) >= AT_ONCE
    finally:
        slow.close()


@pytest.mark.full(after=1)
def test_events_that_nobody_accepted_in_time_are_kept_as_dead_letters(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    server = start(env={"SKILLERY_WEBHOOKS_GIVE_UP_HOURS": "0"})
    receiver.answer = lambda message: 500 if message.data["message"] == "dead.letter 1" else 200
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    _change(server.rpc, "dead.letter", 4)
    receiver.wait_for_accepted(3)
    until(lambda: row_of(server.rpc, webhook_id)["delivered"] == 3)

    page = server.rpc("list_dead_letters", id=webhook_id)
    row = row_of(server.rpc, webhook_id)

    assert _accepted(receiver) == ["dead.letter 0", "dead.letter 2", "dead.letter 3"]
    [letter] = page["dead_letters"]
    assert (letter["type"], letter["data"]["message"], letter["attempts"]) == ("deprecated", "dead.letter 1", 1)
    assert letter["error"] == "the target answered 500"
    assert letter["event_id"] in {one.id for one in receiver.requests}
    assert (row["dead_letters"], row["waiting"], row["state"]) == (1, 0, "live")
    assert server.rpc("remove_webhook", id=webhook_id)["dropped"] == 1


@ON_SQLITE
@pytest.mark.full
def test_dead_letters_have_pages(start: Start, receiver: Receiver, add_webhook: AddWebhook) -> None:
    server = start(env={"SKILLERY_WEBHOOKS_GIVE_UP_HOURS": "0"})
    receiver.answer = lambda _: 500
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    sent = _change(server.rpc, "many.dead", 5)
    until(lambda: row_of(server.rpc, webhook_id)["dead_letters"] == 5)

    found, cursor = [], ""
    while cursor is not None:
        page = server.rpc("list_dead_letters", id=webhook_id, limit=2, cursor=cursor)
        found += [one["data"]["message"] for one in page["dead_letters"]]
        cursor = page["next_cursor"]

    assert found == sent
    assert server.rpc.error("list_dead_letters", id=webhook_id, cursor="x")["code"] == -32602


@pytest.mark.full(after=1)
def test_a_target_that_is_gone_gets_no_more_events(start: Start, receiver: Receiver, add_webhook: AddWebhook) -> None:
    server = start()
    other = Receiver()
    receiver.answer = lambda _: 410
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    server.rpc("add_webhook", url=other.url, events=["deprecated"])
    _change(server.rpc, "gone.away", 3)
    other.wait_for_accepted(3)
    other.close()
    until(lambda: row_of(server.rpc, webhook_id)["state"] == "gone")

    row = row_of(server.rpc, webhook_id)
    assert [one.data["message"] for one in receiver.requests] == ["gone.away 0"]
    assert (row["waiting"], row["last_error"]) == (0, "the target answered 410")


@pytest.mark.smoke
@pytest.mark.postgres
@pytest.mark.full(after=1)
def test_killed_server_loses_or_reorders_no_event(start: Start, receiver: Receiver, add_webhook: AddWebhook) -> None:
    server = start()
    add_webhook(server.rpc, events=["deprecated"])
    sent: list[str] = []
    kills = rounds(2, long=4)
    for kill in range(kills):
        sent += _change(server.rpc, "often.killed", 12, first=12 * kill)
        receiver.wait_for_accepted(5 * kill + 3)
        server.stop(signal.SIGKILL)
        server = start()
    receiver.wait_for(lambda one: len(_accepted(one)) == len(sent))

    arrived = [one.data["message"] for one in receiver.accepted]
    repeated = len(arrived) - len(set(arrived))
    assert _accepted(receiver) == sent
    assert repeated <= kills  # the request that was under way at each kill
    assert arrived == sorted(arrived, key=sent.index)
    assert len({one.id for one in receiver.accepted}) == len(sent)


@ON_SQLITE
@pytest.mark.full
def test_a_command_on_a_home_without_a_server_sends_nothing(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    server = start()
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    home = ("--home", str(server.home))
    first = _change(server.rpc, "by.command", 1)
    receiver.wait_for_accepted(1)
    server.stop()
    variables = {"SKILLERY_DATABASE": server.database, "SKILLERY_WEBHOOKS_ALLOW_PRIVATE": "127.0.0.1,::1"}
    made = skillery("deprecate", "by.command", "--message", "second", *home, stdin=b"", **variables)
    [row] = skillery("webhook", "list", "--json", *home, stdin=b"", **variables).json["webhooks"]

    assert made.code == 0, made.err
    assert (row["id"], row["waiting"]) == (webhook_id, 1)
    assert [one.data["message"] for one in receiver.requests] == first
    start()
    assert [one.data["message"] for one in receiver.wait_for_accepted(2)] == [*first, "second"]


@ON_SQLITE
@pytest.mark.full
def test_stopping_server_awaits_response_to_current_attempt(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    under_way = threading.Event()

    def answer_slowly(_: Message) -> int:
        under_way.set()
        time.sleep(0.3)  # no event: the server begins to stop
        return 200

    receiver.answer = answer_slowly
    server = start()
    add_webhook(server.rpc, events=["deprecated"])
    _change(server.rpc, "awaited.answer", 1)
    assert under_way.wait(WAIT_SECONDS)
    server.stop()
    [row] = skillery(
        "webhook", "list", "--json", "--home", str(server.home), stdin=b"", SKILLERY_DATABASE=server.database
    ).json["webhooks"]

    assert (row["waiting"], len(receiver.accepted)) == (0, 1)


@pytest.mark.full
def test_servers_never_send_concurrently_and_second_takes_over(
    start_server: Start,
    migrated_postgres_database: Callable[[], str],
    receiver: Receiver,
    add_webhook: AddWebhook,
    tmp_path: Path,
) -> None:
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }
    with ThreadPoolExecutor(2) as pool:
        servers = list(pool.map(lambda home: start_server(home=home, env=env), ("one", "two")))
    first, second = servers
    add_webhook(second.rpc, events=["deprecated"])
    with ThreadPoolExecutor(2) as pool:
        made = list(
            pool.map(lambda one: _change(one[0].rpc, one[1], 25), zip(servers, ("by.one", "by.two"), strict=True))
        )
    receiver.wait_for_accepted(50)
    first.stop()
    more = _change(second.rpc, "by.two", 5, first=25)
    receiver.wait_for_accepted(55)

    arrived = [one.data["message"] for one in receiver.requests]
    assert receiver.most_busy == 1
    assert len(arrived) == len(set(arrived)) == 55
    assert [one for one in arrived if one.startswith("by.one")] == made[0]
    assert [one for one in arrived if one.startswith("by.two")] == made[1] + more


@pytest.mark.full
def test_other_server_continues_after_lease_of_killed_server_expires(
    start_server: Start,
    migrated_postgres_database: Callable[[], str],
    receiver: Receiver,
    add_webhook: AddWebhook,
    tmp_path: Path,
) -> None:
    database = migrated_postgres_database()
    env = {
        "SKILLERY_DATABASE": database,
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }

    def lease_until(moment: str) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"UPDATE webhooks SET leased_until = now() + interval '{moment}'")

    killed, gate = start_server(home="one", env=env), _Gate()
    receiver.answer = lambda _: gate.wait()
    webhook_id = add_webhook(killed.rpc, events=["deprecated"])
    sent = _change(killed.rpc, "taken.over", 3)
    until(lambda: receiver.busy)
    killed.stop(signal.SIGKILL)
    lease_until("1 hour")
    other = start_server(home="two", env=env)
    sent += _change(other.rpc, "taken.over", 1, first=3)
    gate.open()
    receiver.wait_for_accepted(1)  # the request of the killed server, which has no record
    while_leased = row_of(other.rpc, webhook_id)
    lease_until("-1 second")
    receiver.wait_for_accepted(5)

    assert (while_leased["delivered"], while_leased["waiting"]) == (0, 4)
    assert [one.data["message"] for one in receiver.accepted] == [sent[0], *sent]
    assert receiver.accepted[0].id == receiver.accepted[1].id
    assert receiver.most_busy == 1


@ON_SQLITE
@pytest.mark.full
def test_without_the_setting_a_target_on_this_machine_is_refused(
    start: Start, receiver: Receiver, add_webhook: AddWebhook
) -> None:
    server = start()
    webhook_id = add_webhook(server.rpc, events=["deprecated"])
    server.stop()
    server = start(env={"SKILLERY_WEBHOOKS_ALLOW_PRIVATE": ""})
    error = server.rpc.error("add_webhook", url=receiver.url)
    _change(server.rpc, "not.sent", 1)
    until(lambda: row_of(server.rpc, webhook_id)["attempts"] >= 1)
    tested = server.rpc("test_webhook", id=webhook_id)

    # The rules apply to each attempt, so that a changed address of a name does not help.
    assert error["code"] == -32602
    assert "is not a public address" in error["message"]
    assert "webhooks.allow_private" in error["data"]["hint"]
    assert "is not a public address" in row_of(server.rpc, webhook_id)["last_error"]
    assert not tested["ok"]
    assert receiver.requests == []


def test_an_invalid_network_of_targets_stops_the_start(start_server: Start) -> None:
    with pytest.raises(AssertionError, match=r"webhooks\.allow_private.*'nonsense'"):
        start_server(env={"SKILLERY_WEBHOOKS_ALLOW_PRIVATE": "nonsense"})


def _after(seconds: float) -> int:
    time.sleep(seconds)
    return 200


class _Gate:
    """An answer that waits until the gate is open."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.open = self._event.set

    def wait(self) -> int:
        self._event.wait(12)  # less than webhooks.timeout_seconds
        return 200
