"""The header Idempotency-Key: a repeated call runs only once, on both databases, across servers and crashes."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from skillery.backends import Identity
from skillery.database import Database
from skillery.database.tables import idempotency_keys
from skillery.errors import CallUnderWay, IdempotencyKeyReused
from skillery.identity.idempotency import Claim, Kept, canonical, claim, forget_keys, keep, release
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.runs.test_run_records import SLEEP, in_background, wait_for
from tests.support.people import Caller, Who
from tests.support.processes import eventually
from tests.support.raw_http import connected

pytestmark = pytest.mark.postgres

INVALID_REQUEST, INVALID, CONFLICT, BUSY = -32600, -32602, -32004, -32006
COUNTED = "from runtime import blobs\ndef main(args):\n    return blobs.write_text('once')\n"
ME = Identity("me")


def send(rpc: Rpc, key: str, method: str, /, **params: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    reply: dict[str, Any] = rpc.http.post("/rpc", json=body, headers={"idempotency-key": key}).json()
    assert reply["id"] == 7
    return reply


def error_of(rpc: Rpc, key: str, method: str, /, **params: Any) -> tuple[int, str]:
    error = send(rpc, key, method, **params)["error"]
    return error["code"], error["data"]["type"]


def calls(name: str) -> dict[str, dict[str, Any]]:
    return {
        "create_blob": {"content": "x", "kind": "text/plain"},
        "run_code": {"language": "python", "code": COUNTED},
        "execute_skill": {"name": "text.redact.pii", "args": {"text": "a@b.example"}},
        "create_skill": {"manifest": manifest(name), "skill_md": f"# {name}\n", "files": skill_files()},
    }


def test_failed_examples_leave_the_idempotency_key_free(rpc: Rpc, new_name: str) -> None:
    """A refused call is not stored as the response of the key, although its examples ran."""
    made = manifest(new_name, examples=[{"args": {}, "expect": {"got": 1}}])
    params = {"manifest": made, "skill_md": "# x\n", "files": skill_files()}

    for _ in range(2):
        assert error_of(rpc, new_name, "create_skill", **params) == (-32007, "refused_by_policy")
    mended = {**params, "files": skill_files("def main(args):\n    return {'got': 1}\n")}
    first = send(rpc, new_name, "create_skill", **mended)["result"]
    assert first["status"] == "published"
    assert send(rpc, new_name, "create_skill", **mended)["result"] == first


def test_omitted_params_equal_their_defaults_in_a_repeated_call(rpc: Rpc, new_name: str) -> None:
    code = {"language": "python", "code": COUNTED}
    others: list[dict[str, Any]] = [{}, {"args": {}}, {"args": None}]
    answers = [send(rpc, new_name, "run_code", **code, **more) for more in others]

    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("method", ["create_blob", "run_code", "execute_skill", "create_skill"])
def test_the_same_call_answers_the_first_result(rpc: Rpc, new_name: str, method: str) -> None:
    params = calls(new_name)[method]

    first = send(rpc, new_name, method, **params)
    again = send(rpc, new_name, method, **params)
    other = send(rpc, new_name + "2", method, **params)

    assert "result" in first
    assert again == first
    assert other != first or method == "create_skill"


def test_repeated_call_is_recognized_by_values_despite_other_json_formatting(rpc: Rpc, new_name: str) -> None:
    head = b'{"jsonrpc":"2.0","id":1,"method":"run_code","params":'
    one = head + b'{"language":"python","code":"def main(a): return a","args":{"x":1,"y":"\xc3\xa4"}}}'
    two = head + b'{ "args": {"y": "\\u00e4", "x": 1}, "code": "def main(a): return a", "language": "python" } }'

    answers = [rpc.raw(body, **{"idempotency-key": new_name}).json() for body in (one, two)]

    assert answers[0]["result"]["run_id"] == answers[1]["result"]["run_id"]


def test_another_call_under_the_same_key_is_a_conflict(rpc: Rpc, new_name: str) -> None:
    send(rpc, new_name, "create_blob", content="x", kind="text/plain")

    reused = (CONFLICT, "idempotency_key_reused")
    assert error_of(rpc, new_name, "create_blob", content="y", kind="text/plain") == reused
    assert error_of(rpc, new_name, "run_code", language="python", code="1") == reused


def test_a_failed_run_is_a_result_and_an_error_is_none(rpc: Rpc, new_name: str) -> None:
    code = "def main(args): raise ValueError('x')"
    failed = send(rpc, new_name, "run_code", language="python", code=code)
    assert failed["result"]["status"] == "failed"
    assert send(rpc, new_name, "run_code", language="python", code=code) == failed

    key = f"{new_name}-2"
    assert error_of(rpc, key, "create_blob", content="x", kind="nonsense") == (INVALID, "invalid_params")
    assert error_of(rpc, key, "execute_skill", name=f"{new_name}.none")[1] == "skill_not_found"
    assert "result" in send(rpc, key, "create_blob", content="x", kind="text/plain")


def test_a_key_belongs_to_its_identity(org: Server, new_name: str) -> None:
    alice, bob = (Caller(org.url, Who(f"{who}-{new_name}")) for who in ("alice", "bob"))

    blobs = [send(who, "k", "create_blob", content=who.url, kind="text/plain") for who in (alice, bob)]

    assert blobs[0]["result"]["blob_id"] != blobs[1]["result"]["blob_id"]
    assert alice.error("read_blob", blob_id=blobs[1]["result"]["blob_id"])["code"] == -32003


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "ä"])
def test_a_malformed_key_is_refused(sqlite_rpc: Rpc, key: str) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"method":"create_blob","params":{"content":"x","kind":"text/plain"}}'
    headers = {"content-type": "application/json", "idempotency-key": key.encode("latin-1")}

    error = sqlite_rpc.http.post("/rpc", content=body, headers=headers).json()["error"]  # type: ignore[arg-type]

    assert (error["code"], error["data"]["type"]) == (INVALID, "invalid_idempotency_key")
    assert "UUID" in error["data"]["hint"]


def test_a_batch_has_no_key_and_other_methods_heed_none(sqlite_rpc: Rpc, new_name: str) -> None:
    batch = b'[{"jsonrpc":"2.0","id":1,"method":"list_skills"}]'

    error = sqlite_rpc.raw(batch, **{"idempotency-key": new_name}).json()["error"]

    assert error["code"] == INVALID_REQUEST
    for limit in (1, 2):
        assert len(send(sqlite_rpc, new_name, "list_skills", limit=limit)["result"]["skills"]) == limit


def test_the_endpoint_for_blobs_honours_the_key(rpc: Rpc, new_name: str) -> None:
    def post(content: bytes, kind: str = "text/csv") -> httpx.Response:
        return rpc.http.post("/blobs", content=content, headers={"idempotency-key": new_name, "content-type": kind})

    first, again = post(b"a,b\n" * 50_000), post(b"a,b\n" * 50_000)

    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    assert rpc.http.get(f"/blobs/{first.json()['blob_id']}").content == b"a,b\n" * 50_000
    for response in (post(b"other"), post(b"a,b\n" * 50_000, "text/plain")):
        assert response.status_code == 409
        assert response.json()["error"]["data"]["type"] == "idempotency_key_reused"


def test_retry_is_refused_during_the_first_call_and_later_gets_the_run(org: Server, new_name: str) -> None:
    alice = Caller(org.url, Who(f"alice-{new_name}"))
    params: dict[str, Any] = {
        "language": "python",
        "code": SLEEP,
        "args": {"s": 600},
        "limits": {"timeout_ms": 600_000},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "run_code", "params": params})
    with connected(org.url) as lost:
        headers = {"content_type": "application/json", "content_length": str(len(body)), "idempotency_key": "k"}
        lost.send(lost.head("POST /rpc", **headers, x_who=alice.http.headers["x-who"]), body)
        run_id = wait_for(alice, "started")

    second = send(alice, "k", "run_code", **params)["error"]
    alice("cancel_run", run_id=run_id)
    # The server is still writing the response for a moment.
    third = eventually(lambda: send(alice, "k", "run_code", **params).get("result"))

    assert (second["code"], second["data"]["type"]) == (BUSY, "call_under_way")
    assert second["data"]["retry_after_ms"] > 0
    assert (third["run_id"], third["error"]["type"]) == (run_id, "Cancelled")
    assert len(alice("list_runs")["runs"]) == 1


@pytest.mark.smoke
def test_two_servers_on_postgres_execute_an_idempotent_call_once(
    start_server: Callable[..., Server], migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }
    servers = [start_server(home=home, env=env) for home in ("one", "two")]
    answers: list[dict[str, Any]] = []
    params: dict[str, Any] = {"language": "python", "code": COUNTED}

    def insist(rpc: Rpc) -> None:
        while True:
            reply = send(rpc, "k", "run_code", **params)
            if "result" in reply:
                return answers.append(reply["result"])
            assert reply["error"]["code"] == BUSY
            time.sleep(0.05)

    threads = [threading.Thread(target=insist, args=(Rpc(servers[number % 2].url),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)
    assert len(servers[0].rpc("list_runs")["runs"]) == 1
    assert error_of(servers[1].rpc, "k", "run_code", language="python", code="1") == (
        CONFLICT,
        "idempotency_key_reused",
    )


@pytest.mark.full
def test_idempotency_key_survives_a_crash_and_the_failed_run_is_not_repeated(
    start_server: Callable[..., Server],
) -> None:
    server = start_server()
    kept = send(server.rpc, "kept", "run_code", language="python", code=COUNTED)
    params: dict[str, Any] = {"language": "python", "code": SLEEP, "args": {"s": 600}}

    def die() -> None:
        with pytest.raises(httpx.HTTPError):
            send(Rpc(server.url), "died", "run_code", **params)

    thread, _ = in_background(die)
    run_id = wait_for(server.rpc, "started")
    server.stop(signal.SIGKILL)
    thread.join()

    again = start_server()

    assert send(again.rpc, "kept", "run_code", language="python", code=COUNTED) == kept
    died = send(again.rpc, "died", "run_code", **params)["result"]
    assert (died["run_id"], died["status"], died["error"]["type"]) == (run_id, "failed", "SandboxError")
    assert len(again.rpc("list_runs")["runs"]) == 2


# -- the rows -------------------------------------------------------------------------------------------------------


def asking(database: Database, asked: str = "a", server: str = "s") -> Claim | Kept:
    return database.write_now(lambda connection: claim(connection, identity=ME, key="k", digest=asked, server=server))


def test_a_claim_is_kept_or_released(database: Database) -> None:
    mine = asking(database)
    assert isinstance(mine, Claim)
    with pytest.raises(CallUnderWay):
        asking(database, server="other")
    with pytest.raises(IdempotencyKeyReused):
        asking(database, "b")

    database.write_now(lambda connection: release(connection, mine))
    again = asking(database, "b")
    assert isinstance(again, Claim)
    database.write_now(lambda connection: keep(connection, again, '{"x":1}'))

    assert asking(database, "b", "other") == Kept('{"x":1}')


def test_a_key_is_forgotten_after_a_day(database: Database) -> None:
    def age(hours: int) -> None:
        created_at = datetime.now(UTC) - timedelta(hours=hours)
        database.write_now(
            lambda connection: connection.execute(update(idempotency_keys).values(created_at=created_at))
        )

    first = asking(database)
    assert isinstance(first, Claim)
    database.write_now(lambda connection: keep(connection, first, "1"))
    age(23)
    assert asking(database) == Kept("1")
    assert database.write_now(lambda connection: forget_keys(connection, limit=10)) == 0
    age(25)

    assert isinstance(asking(database, "b"), Claim)
    age(25)
    assert database.write_now(lambda connection: forget_keys(connection, limit=10)) == 1
    assert isinstance(asking(database, "c"), Claim)


def test_concurrent_claims_of_a_key_have_a_single_winner(database: Database) -> None:
    won: list[Claim | Kept] = []
    told: list[CallUnderWay] = []

    def ask() -> None:
        try:
            won.append(asking(database))
        except CallUnderWay as busy:
            told.append(busy)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(won), len(told)) == (1, 11)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_the_canonical_form_does_not_depend_on_how_json_is_written(value: Any) -> None:
    import json

    plain = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    spaced = json.dumps(_reversed(value), indent=2).encode()

    assert canonical(plain) == canonical(spaced) or _is_odd(value)


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(one) for key, one in reversed(value.items())}
    return [_reversed(one) for one in value] if isinstance(value, list) else value


def _is_odd(value: Any) -> bool:
    """Return whether the value contains an integer beyond 64 bits. Such integers keep their original spelling."""
    if isinstance(value, dict | list):
        return any(_is_odd(one) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64
