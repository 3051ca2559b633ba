"""The outbox and the leases of its readers, on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import Connection, Update, func, insert, select, update

from skillery import events
from skillery.audit import SERVER
from skillery.database import Database
from skillery.database.leases import Lease, claim, release, release_own, renew
from skillery.database.tables import dead_letters, event_readers, webhooks
from skillery.database.tables import events as outbox
from skillery.settings.groups import Webhooks
from skillery.webhooks.dead_letters import DeadLetter, read_dead_letters
from skillery.webhooks.queue import (
    BURY_BATCH,
    KEEP,
    KEEP_UNREAD,
    MOST_DEAD_LETTERS,
    Queued,
    forget_events,
    move,
    next_events,
    note_failed,
)
from skillery.webhooks.targets import find_webhook, insert_webhook, read_webhooks

WRITERS, EACH = 6, 25
HOUR = timedelta(hours=1)


@pytest.fixture
def webhook_id(database: Database) -> str:
    kinds = [kind for kind in events.EVENT_TYPES if kind not in events.BY_REQUEST]
    work = partial(insert_webhook, actor=SERVER, url="https://localhost/", kinds=kinds, skills=())
    return database.write_now(work).id


def _record(connection: Connection, number: int = 0) -> None:
    events.record(connection, "published", skill="a.b", number=number)


def _record_many(count: int) -> Callable[[Connection], None]:
    def record(connection: Connection) -> None:
        for number in range(count):
            _record(connection, number)

    return record


def _letters(database: Database, webhook_id: str) -> list[DeadLetter]:
    listed = partial(read_dead_letters, key=b"x" * 32, webhook_id=webhook_id, limit=1000, cursor="")
    return database.read_now(listed).dead_letters


def _execute(database: Database, statement: Update) -> None:
    database.write_now(lambda connection: connection.execute(statement))


def _claim(database: Database, webhook_id: str, server: str = "one") -> Lease:
    lease = database.write_now(partial(claim, table=webhooks, row_id=webhook_id, server=server))
    assert lease is not None
    return lease


@pytest.mark.postgres
def test_a_reader_that_remembers_a_number_misses_no_event_of_parallel_writers(
    database: Database, webhook_id: str
) -> None:
    lease, read, ended = _claim(database, webhook_id), list[int](), threading.Event()

    def write(writer: int) -> None:
        for number in range(EACH):
            database.write_now(partial(_record, number=writer * EACH + number))

    def read_all() -> None:
        while True:
            is_last = ended.is_set()
            batch = database.read_now(partial(next_events, lease=lease))
            for queued in batch.events:
                read.append(queued.event.data["number"])
                assert database.write_now(partial(move, lease=lease, position=queued.seq))
            if is_last and not batch.events:
                return

    reader = threading.Thread(target=read_all)
    reader.start()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    ended.set()
    reader.join()

    assert sorted(read) == list(range(WRITERS * EACH))
    for writer in range(WRITERS):  # what happened before is read before
        own = [number for number in read if number // EACH == writer]
        assert own == sorted(own)


def test_an_event_of_a_failed_transaction_does_not_exist(database: Database) -> None:
    def fail(connection: Connection) -> None:
        _record(connection)
        raise RuntimeError("the change fails")

    with pytest.raises(RuntimeError):
        database.write_now(fail)

    assert database.read_now(lambda connection: connection.scalar(select(func.count()).select_from(outbox))) == 0


def test_lease_is_exclusive_until_expiry_or_release(database: Database, webhook_id: str) -> None:
    claiming = partial(claim, table=webhooks, row_id=webhook_id, server="two")
    first = _claim(database, webhook_id)
    assert database.write_now(claiming) is None

    past = datetime.now(UTC) - HOUR
    _execute(database, update(webhooks).values(leased_until=past))
    second = database.write_now(claiming)

    assert second is not None
    assert not database.write_now(partial(renew, lease=first, position=99))
    database.write_now(partial(release, lease=first))
    assert database.write_now(claiming) is None, "a lost lease was released"
    database.write_now(partial(release, lease=second))
    assert database.write_now(claiming) is not None
    database.write_now(partial(release_own, tables=[webhooks], server="two"))
    assert database.write_now(claiming) is not None
    assert database.read_now(partial(find_webhook, webhook_id=webhook_id)).position == 0


def test_event_becomes_dead_letter_after_target_fails_for_give_up_hours(database: Database, webhook_id: str) -> None:
    rules = Webhooks(retry_seconds=1, retry_max_seconds=3600, give_up_hours=24)
    for number in range(2):
        database.write_now(partial(_record, number=number))
    age = update(outbox).values(created_at=datetime.now(UTC) - 30 * HOUR)
    _execute(database, age)
    lease = _claim(database, webhook_id)
    first, second = database.read_now(partial(next_events, lease=lease)).events

    def fail(queued: Queued) -> int:
        work = partial(note_failed, lease=lease, queued=queued, error="no answer", rules=rules)
        assert database.write_now(work)
        return len(_letters(database, webhook_id))

    # The event is old because no server was there to send it: the target gets its time.
    assert fail(first) == 0
    failing = update(webhooks).values(failing_since=datetime.now(UTC) - 25 * HOUR)
    _execute(database, failing)
    _execute(
        database, update(outbox).where(outbox.c.seq == second.seq).values(created_at=datetime.now(UTC) - 23 * HOUR)
    )
    assert fail(first) == 1
    _execute(database, age)
    assert fail(database.read_now(partial(next_events, lease=lease)).events[0]) == 2
    row = database.read_now(partial(find_webhook, webhook_id=webhook_id))
    assert row.position == second.seq
    assert row.attempts == 0


def test_expired_events_become_dead_letters_in_batches(database: Database, webhook_id: str) -> None:
    rules = Webhooks(retry_seconds=1, retry_max_seconds=3600, give_up_hours=24)
    database.write_now(_record_many(BURY_BATCH + 20))
    _execute(database, update(outbox).values(created_at=datetime.now(UTC) - 30 * HOUR))
    database.write_now(_record_many(3))
    _execute(database, update(webhooks).values(failing_since=datetime.now(UTC) - 25 * HOUR))
    lease, found = _claim(database, webhook_id), []
    for _ in range(2):
        first = database.read_now(partial(next_events, lease=lease)).events[0]
        database.write_now(partial(note_failed, lease=lease, queued=first, error="no answer", rules=rules))
        found.append(len(_letters(database, webhook_id)))
    waiting = database.read_now(partial(next_events, lease=lease)).events
    letters = _letters(database, webhook_id)

    assert found == [BURY_BATCH + 1, BURY_BATCH + 20]
    assert [one.data["number"] for one in letters] == list(range(BURY_BATCH + 20))
    assert [(one.attempts, one.error) for one in letters[:2]] == [(1, "no answer"), (0, "no answer")]
    assert [queued.event.data["number"] for queued in waiting] == [0, 1, 2]


def test_a_webhook_keeps_its_newest_dead_letters(database: Database, webhook_id: str) -> None:
    other = database.write_now(
        partial(insert_webhook, actor=SERVER, url="https://b.test/", kinds=["yanked"], skills=())
    ).id
    rules = Webhooks(retry_seconds=1, retry_max_seconds=3600, give_up_hours=24)
    letter = {
        "type": "yanked",
        "event_at": datetime.now(UTC),
        "attempts": 1,
        "error": "x",
        "died_at": datetime.now(UTC),
    }
    letter |= {"data_json": '{"number":-1}', "skill": "a.b"}

    def prepare(connection: Connection) -> None:
        for number in range(8):
            _record(connection, number)
        for target, count in ((other, 1), (webhook_id, MOST_DEAD_LETTERS - 3)):
            rows = [{**letter, "webhook_id": target, "event_id": f"evt_{number}"} for number in range(count)]
            connection.execute(insert(dead_letters), rows)
        connection.execute(update(webhooks).values(failing_since=datetime.now(UTC) - 25 * HOUR))

    database.write_now(prepare)
    _execute(database, update(outbox).values(created_at=datetime.now(UTC) - 30 * HOUR))
    lease = _claim(database, webhook_id)
    first = database.read_now(partial(next_events, lease=lease)).events[0]
    database.write_now(partial(note_failed, lease=lease, queued=first, error="no answer", rules=rules))

    listed = {row.id: row.dead_letters for row in database.read_now(read_webhooks).webhooks}
    assert listed == {other: 1, webhook_id: MOST_DEAD_LETTERS}
    assert _letters(database, webhook_id)[0].event_id == "evt_5"


def test_pauses_are_a_quarter_of_the_outage_within_bounds(database: Database, webhook_id: str) -> None:
    rules = Webhooks(retry_seconds=8, retry_max_seconds=60, give_up_hours=24)
    database.write_now(_record)
    lease = _claim(database, webhook_id)
    [queued] = database.read_now(partial(next_events, lease=lease)).events
    pauses = []
    for outage in (0, 20, 100, 200, 400, 10_000):
        before = datetime.now(UTC)
        failing = update(webhooks).values(failing_since=before - timedelta(seconds=outage))
        _execute(database, failing)
        database.write_now(partial(note_failed, lease=lease, queued=queued, error="no answer", rules=rules))
        after = datetime.now(UTC)
        next_at = database.read_now(partial(find_webhook, webhook_id=webhook_id)).next_at.replace(tzinfo=UTC)
        pauses.append(((next_at - before).total_seconds(), (next_at - after).total_seconds()))

    for (longest, shortest), most in zip(pauses, (8, 8, 25, 50, 60, 60), strict=True):
        assert 0.7 * most <= longest
        assert shortest <= most + 1


@pytest.mark.parametrize(
    ("age", "position", "reader", "left"),
    [
        (KEEP / 2, 9, None, 5),  # young
        (KEEP * 2, 9, None, 1),  # the newest one stays
        (KEEP * 2, 2, None, 3),  # the webhook needs them
        (KEEP * 2, 9, 3, 2),  # the plugins need them
        (KEEP_UNREAD * 2, 9, 0, 1),  # the plugins were removed long ago
        (KEEP_UNREAD * 2, 0, None, 5),
    ],
)
def test_old_events_are_deleted_when_no_reader_needs_them(
    database: Database, webhook_id: str, age: timedelta, position: int, reader: int | None, left: int
) -> None:
    for number in range(5):
        database.write_now(partial(_record, number=number))

    def prepare(connection: Connection) -> None:
        connection.execute(update(outbox).values(created_at=datetime.now(UTC) - age))
        connection.execute(update(webhooks).values(position=position))
        if reader is not None:
            connection.execute(insert(event_readers).values(id="plugins", position=reader))

    database.write_now(prepare)
    while database.write_now(partial(forget_events, limit=2)):
        pass

    assert database.read_now(lambda connection: connection.scalar(select(func.count()).select_from(outbox))) == left
