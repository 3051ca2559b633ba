"""The contract of the hook `events`: subclass EventsContract and provide the fixture `listener`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest

from skillery.backends import Event, EventType
from skillery.testing.rules import Contract

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
VERSION = {"version": "1.0.0", "digest": "sha256:" + "0" * 64, "note": "", "link": "/s/team.greet@1.0.0"}
COMMON = {"name": "team.greet", "namespace": "team", "by": "ann", "by_kind": "person"}
FINDING = {"rule": "no-eval", "message": "eval is not allowed", "severity": "error", "file": "main.py", "line": 3}
OF_TYPE: dict[str, dict[str, Any]] = {
    "submitted": VERSION | {"status": "in_review", "publisher": "ann"},
    "approved": VERSION | {"status": "published", "publisher": "ann"},
    "rejected": VERSION | {"status": "rejected", "publisher": "ann", "note": "too short"},
    "published": VERSION | {"status": "published", "publisher": "ann"},
    "yanked": VERSION | {"status": "yanked", "publisher": "ann", "note": "leaks"},
    "deprecated": {"versions": ["1.0.0"], "message": "use team.hello", "successor": "team.hello"},
    "finding": {"version": "1.0.0", "findings": [FINDING], "link": VERSION["link"]},
    "quota_near": {"quota": "blobs_mb", "used": 900, "limit": 1000, "identity": "ann"},
    "run_failed": {
        "run_id": "run_1",
        "method": "call_tool",
        "version": "1.0.0",
        "tool": "greet",
        "error_type": "ValueError",
        "duration_ms": 12.5,
    },
}
"""The members of `data` by the type of the event, without the common ones."""


def sample_events() -> list[Event]:
    """Return one event of each type."""
    kinds = get_args(EventType)
    return [Event(f"evt_{number}", kind, AT, COMMON | OF_TYPE[kind]) for number, kind in enumerate(kinds)]


class EventsContract(Contract):
    """The contract: the hook accepts each event without an exception, also again, and with new or missing members."""

    @pytest.fixture
    def listener(self) -> Any:
        raise NotImplementedError("provide the fixture `listener`: the object that your plugin offers")

    @pytest.mark.parametrize("event", sample_events(), ids=lambda event: event.type)
    def test_each_event_is_taken(self, listener: Any, event: Event) -> None:
        """The hook `events` accepts an event of each type without an exception."""
        listener.events(event=event)

    def test_an_event_may_be_sent_again(self, listener: Any) -> None:
        """The hook accepts an event with the same id again: a server that fails may have sent it before."""
        for _ in range(2):
            listener.events(event=sample_events()[0])

    def test_new_members_are_no_error(self, listener: Any) -> None:
        """The hook accepts members of `data` that it does not know, because later releases may add members."""
        for event in sample_events():
            listener.events(event=msgspec.structs.replace(event, data={**event.data, "new_member": {"a": [1]}}))

    def test_members_may_be_null_or_missing(self, listener: Any) -> None:
        """The hook accepts members of `data` that are null or missing, because they do not apply to the event."""
        for event in sample_events():
            listener.events(event=msgspec.structs.replace(event, data=COMMON | dict.fromkeys(OF_TYPE[event.type])))
            listener.events(event=msgspec.structs.replace(event, data={}))

    def test_the_end_of_the_server_is_no_error(self, listener: Any) -> None:
        """A method `close`, if there is one, returns without an exception."""
        if hasattr(listener, "close"):
            listener.close()
