"""The base of contract suites, which shows the rule of a failed case, and the contracts of small backends."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest

from skillery.backends import Event, EventType, Ranker, Secrets
from skillery.errors import NotAllowed

PACKAGE = __name__.rpartition(".")[0]


class Contract:
    """Base class of the contract suites. Each case has a rule: its docstring, or the sentence that its name forms."""

    @pytest.fixture(autouse=True)
    def _rule(self, request: pytest.FixtureRequest) -> None:
        """Add the rule of the case to the report. Pytest shows the rule below the values of a failed case."""
        rule = rule_of(request.function)
        if rule:
            request.node.add_report_section("call", "rule", rule)


def rule_of(case: object) -> str:
    """Return the rule of a case of this package. Return "" for a test that a subclass has added."""
    module, name = getattr(case, "__module__", ""), getattr(case, "__name__", "")
    if not module.startswith(PACKAGE):
        return ""
    rule = inspect.getdoc(case) or f"{name.removeprefix('test_').replace('_', ' ').capitalize()}."
    return f"The contract of skillery.testing says: {' '.join(rule.split())}"


# -- The contract of the hook events: subclass EventsContract and provide the fixture listener -------------------------


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
    "revoked": VERSION
    | {"status": "yanked", "publisher": "ann", "note": "leaks"}
    | {"severity": "security", "advisory": "SKILLERY-2026-0001", "dependents": 2},
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
    "seal": {"seq": 812, "sha256": "0" * 64, "at": "2026-11-28T09:00:00.000000Z", "runs": 1840, "envelope": "{}"},
    "audit": {
        "seq": 4711,
        "at": "2026-11-28T09:00:00.000000Z",
        "identity": {"name": "ann", "kind": "person"},
        "address": "192.0.2.7",
        "request_id": "req_1",
        "action": "create_token",
        "subject": "tok_1",
        "outcome": "done",
        "code": None,
        "type": None,
        "count": 1,
        "before": None,
        "after": {"name": "bob"},
        "hash": "0" * 64,
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


# -- The contract of Rankers: subclass RankerContract and provide the fixture ranker, started and without skills -------


TEXTS = {
    1: "pdf tools\nMerge, split and fill PDF documents.\npdf, documents",
    2: "csv profiler\nProfile the columns of a CSV table.\ncsv, tables",
    30: "rolling deploy\nRoll out a service to a Kubernetes cluster without downtime.\nkubernetes",
}
ODD = ["", " ", "\n\n", "x", "größer 😀 拆分文档", "\u2028\u200b", "word " * 5_000, "x" * 20_000]


class RankerContract(Contract):
    """The contract: the ranker finds the skills that it holds, and no others, nearest first."""

    @pytest.fixture
    def ranker(self) -> Ranker:
        raise NotImplementedError("provide the fixture `ranker`: a started ranker that holds no skills")

    async def hold_texts(self, ranker: Ranker) -> None:
        vectors = await ranker.vectors(list(TEXTS.values()))
        await ranker.hold(list(zip(TEXTS, vectors, strict=True)))

    def test_the_revision_names_the_form_of_the_vectors(self, ranker: Ranker) -> None:
        """`revision` is a text with 1 to 255 characters."""
        assert isinstance(ranker.revision, str)
        assert 1 <= len(ranker.revision) <= 255

    async def test_each_text_has_a_vector(self, ranker: Ranker) -> None:
        """`vectors` returns bytes for each text, in the same order, and the same bytes for the same text."""
        vectors = await ranker.vectors([*TEXTS.values(), *reversed(TEXTS.values())])

        assert all(isinstance(vector, bytes) and vector for vector in vectors)
        assert vectors == vectors[::-1]
        assert len(set(vectors)) == len(TEXTS)
        assert await ranker.vectors([]) == []

    async def test_odd_texts_have_vectors_and_are_queries(self, ranker: Ranker) -> None:
        """Empty, long and unusual texts raise no error."""
        await self.hold_texts(ranker)

        assert len(await ranker.vectors(ODD)) == len(ODD)
        for text in ODD:
            assert {skill_id for skill_id, _ in await ranker.nearest(text, 10)} <= TEXTS.keys()

    async def test_the_nearest_skill_is_first(self, ranker: Ranker) -> None:
        """`nearest` returns pairs of skill id and similarity, the highest similarity first."""
        await self.hold_texts(ranker)

        for skill_id, text in TEXTS.items():
            rows = await ranker.nearest(text, 10)
            assert rows[0][0] == skill_id
            similarities = [similarity for _, similarity in rows]
            assert similarities == sorted(similarities, reverse=True)
            assert len({each for each, _ in rows}) == len(rows)

    async def test_at_most_the_wanted_number_is_returned(self, ranker: Ranker) -> None:
        """`nearest` returns at most `most` skills. Without skills, it returns none."""
        assert await ranker.nearest(TEXTS[1], 10) == []
        await self.hold_texts(ranker)

        everything = await ranker.nearest(TEXTS[1], 10)
        assert await ranker.nearest(TEXTS[1], 1) == everything[:1]

    async def test_a_new_vector_replaces_the_old_vector(self, ranker: Ranker) -> None:
        """`hold` replaces the vector of a skill, and keeps those of all others."""
        await self.hold_texts(ranker)
        await ranker.hold([])
        [new] = await ranker.vectors(["sonnets\nWrite rhyming sonnets about the sea."])
        await ranker.hold([(1, new)])

        assert (await ranker.nearest("Write rhyming sonnets about the sea.", 1))[0][0] == 1
        assert (await ranker.nearest(TEXTS[2], 1))[0][0] == 2

    async def test_a_skill_without_a_vector_is_forgotten(self, ranker: Ranker) -> None:
        """`hold` with None forgets a skill, also one that the ranker does not hold."""
        await self.hold_texts(ranker)
        await ranker.hold([(1, None), (4, None)])

        assert {skill_id for skill_id, _ in await ranker.nearest(TEXTS[1], 10)} <= {2, 30}

    async def test_several_callers_ask_at_once(self, ranker: Ranker) -> None:
        """Several searches may call `nearest` while vectors are computed and held."""
        await self.hold_texts(ranker)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.hold_texts(ranker))
            vectors = group.create_task(ranker.vectors(list(TEXTS.values())))
            searches = [group.create_task(ranker.nearest(text, 1)) for text in [*TEXTS.values()] * 5]

        assert len(vectors.result()) == len(TEXTS)
        assert [search.result()[0][0] for search in searches] == [*TEXTS] * 5


# -- The contract of Secrets: subclass SecretsContract and provide the fixture secrets, and put for a read-only backend


VALUES = [
    "x",
    "hunter2-hunter2",
    " spaces around ",
    "-----BEGIN KEY-----\nabc\ndef\n-----END KEY-----\n",
    "quotes ' \" and \\ and % and =",
    "größer 😀 \u2028",
    "\t\x01\x7f",
    "x" * 65_536,
]
Put = Callable[[str, str], None]


class SecretsContract(Contract):
    """The contract: a value is found by its exact name and is unchanged. `repr` of the backend shows no value."""

    @pytest.fixture
    def secrets(self) -> Secrets:
        raise NotImplementedError("provide the fixture `secrets`: an empty backend")

    @pytest.fixture
    def put(self, secrets: Secrets) -> Put:
        """Return the function that sets a value in this backend."""
        return secrets.set

    @pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
    def test_reads_return_the_stored_value(self, secrets: Secrets, put: Put, value: str) -> None:
        """`get` returns exactly the text that was set, with all spaces, lines and characters."""
        put("API_KEY", value)

        assert secrets.get("API_KEY") == value

    def test_an_unset_name_has_no_value(self, secrets: Secrets, put: Put) -> None:
        """`get` returns None for a name without a value. Names are compared exactly."""
        put("API_KEY", "value")

        assert secrets.get("OTHER") is None
        assert secrets.get("api_key") is None
        assert secrets.get("API_KEY_2") is None
        assert secrets.get("API") is None

    def test_a_new_value_takes_the_place_of_the_old(self, secrets: Secrets, put: Put) -> None:
        """`set` replaces the present value, and `names` lists the name once."""
        put("API_KEY", "the first")
        put("API_KEY", "the second")

        assert secrets.get("API_KEY") == "the second"
        assert secrets.names() == ["API_KEY"]

    def test_the_names_are_sorted(self, secrets: Secrets, put: Put) -> None:
        """`names` returns the names of all values, sorted by their characters."""
        assert secrets.names() == []
        for name in ("B", "a", "_C", "A"):
            put(name, f"value of {name}")

        assert secrets.names() == ["A", "B", "_C", "a"]

    def test_a_removed_name_has_no_value(self, secrets: Secrets, put: Put) -> None:
        """`remove` removes the value and returns True; without a value it returns False."""
        put("API_KEY", "value")
        put("OTHER", "kept")
        if secrets.read_only:
            with pytest.raises(NotAllowed) as refused:
                secrets.remove("API_KEY")
            assert refused.value.hint
            return

        assert secrets.remove("API_KEY") is True
        assert secrets.get("API_KEY") is None
        assert secrets.names() == ["OTHER"]
        assert secrets.remove("API_KEY") is False

    def test_a_read_only_backend_names_the_place_of_its_values(self, secrets: Secrets) -> None:
        """A read-only backend raises NotAllowed from `set`, with a hint and without the value."""
        if not secrets.read_only:
            secrets.set("API_KEY", "value")
            return
        with pytest.raises(NotAllowed) as refused:
            secrets.set("API_KEY", "the-value-itself")

        assert refused.value.hint
        assert "the-value-itself" not in f"{refused.value} {refused.value.hint} {refused.value.data}"
        assert secrets.get("API_KEY") is None

    def test_several_ask_at_once(self, secrets: Secrets, put: Put) -> None:
        """Several threads may call `get` at the same time."""
        for number in range(8):
            put(f"NAME_{number}", f"value {number}")
        values: dict[int, str | None] = {}

        def ask(number: int) -> None:
            for _ in range(10):
                values[number] = secrets.get(f"NAME_{number}")

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert values == {number: f"value {number}" for number in range(8)}

    def test_a_backend_does_not_show_a_value(self, secrets: Secrets, put: Put) -> None:
        """The repr and the attributes of the backend do not show a value."""
        put("API_KEY", "the-value-itself")
        secrets.get("API_KEY")

        assert "the-value-itself" not in f"{secrets!r} {secrets} {vars(secrets)}"
