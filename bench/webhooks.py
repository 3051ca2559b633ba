"""`make webhooks`: EVENTS=1000 events through a webhook whose target is down for OUTAGE=60 seconds.

`python -m bench.webhooks --events 1000 --outage 60` uses the default settings of retries, on SQLite and on Postgres.
The exit code is 1 if an event is missing, out of order or repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.conftest import Rpc, Server, publisher
from tests.support.postgres import running_postgres
from tests.webhooks.receiver import Receiver, verified

DEFAULTS = {"SKILLERY_WEBHOOKS_RETRY_SECONDS": "5", "SKILLERY_WEBHOOKS_RETRY_MAX_SECONDS": "3600"}
LONGEST_SECONDS = 600.0
NAME = "bench.events"


class Outage(NamedTuple):
    sent: list[str]
    """The events in the order of their changes."""
    arrived: list[str]
    """The accepted events in the order of their arrival, with repetitions."""
    attempts_while_down: int
    catch_up_seconds: float
    """Time from the return of the target to the last event."""
    first_seconds: float
    """Time from the return of the target to the first event."""
    all_verified: bool

    @property
    def is_whole(self) -> bool:
        return self.arrived == self.sent and self.all_verified


def deliver_through_outage(server: Server, events: int, outage: float) -> Outage:
    """Make events while the target is down, for at least `outage` seconds, and wait until all of them have arrived."""
    receiver = Receiver()
    try:
        added = server.rpc("add_webhook", url=receiver.url, events=["deprecated"])
        receiver.stop()
        down_at = time.monotonic()
        sent = make_events(server.rpc, events)
        time.sleep(max(0.0, outage - (time.monotonic() - down_at)))
        [row] = server.rpc("list_webhooks")["webhooks"]
        back_at = time.monotonic()
        receiver.start()
        receiver.wait_for_accepted(1, LONGEST_SECONDS)
        first_at = time.monotonic()
        accepted = receiver.wait_for_accepted(events, LONGEST_SECONDS)
        ended_at = time.monotonic()
        arrived = [one.data["message"] for one in accepted]
        whole = all(verified(one.headers, one.body, added["secret"]) for one in accepted)
        return Outage(sent, arrived, row["attempts"], ended_at - back_at, first_at - back_at, whole)
    finally:
        receiver.close()


def make_events(rpc: Rpc, count: int) -> list[str]:
    """Deprecate a skill `count` times. Return the messages in order."""
    publisher(rpc)(NAME, kind="instruction")
    messages = [f"change {number}" for number in range(count)]
    for message in messages:
        rpc("deprecate_skill", name=NAME, message=message)
    return messages


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.webhooks")
    parser.add_argument("--events", type=int, default=1000)
    parser.add_argument("--outage", type=float, default=60.0, metavar="SECONDS")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_postgres() as url:
        results = [
            _measure(Path(folder) / kind, {"SKILLERY_DATABASE": database}, asked, kind)
            for kind, database in (("sqlite", ""), ("postgres", url))
        ]
    return 0 if all(results) else 1


def _measure(home: Path, database: Mapping[str, str], asked: argparse.Namespace, kind: str) -> bool:
    server = Server(home, env=DEFAULTS | dict(database))
    try:
        found = deliver_through_outage(server, asked.events, asked.outage)
    finally:
        server.stop()
    print(
        f"{kind}: {len(found.arrived)} of {len(found.sent)} events arrived, "
        f"{'in order, each once' if found.is_whole else 'NOT in order or NOT once'}; "
        f"{found.attempts_while_down} attempts during an outage of {asked.outage:g} s; after it, the first event came "
        f"after {found.first_seconds:.1f} s and the last after {found.catch_up_seconds:.1f} s"
    )
    return found.is_whole


if __name__ == "__main__":
    sys.exit(main())
