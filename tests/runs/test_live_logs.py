"""Runs in the background, their logs while they run, and their progress."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, token_of
from tests.support.processes import eventually

STEPS = """
import time
from runtime import progress
def main(args):
    for number in range(4):
        print("line", number)
        progress(number + 1, 4, f"step {number}")
        time.sleep(0.1)
    time.sleep(args.get("seconds", 0))
    return "done"
"""
LINES = "line 0\nline 1\nline 2\nline 3\n"
STAYS = {"seconds": 600}
"""Arguments of a run that a test reads while it goes on, however slow the machine is. The test cancels the run."""


def begin(rpc: Rpc, code: str, **more: Any) -> dict[str, Any]:
    began: dict[str, Any] = rpc("run_code", language="python", code=code, background=True, **more)
    return began


def followed(rpc: Rpc, run_id: str, after: int = 0) -> tuple[str, list[dict[str, Any]]]:
    """Read the log of a run from an offset to its end. Return the text and the responses."""
    text = ""
    parts: list[dict[str, Any]] = []
    while not parts or not parts[-1]["ended"]:
        parts.append(rpc("read_run_log", run_id=run_id, after=after, wait_ms=5000))
        text, after = text + parts[-1]["text"], parts[-1]["next"]
    return text, parts


def test_background_run_answers_immediately_and_can_be_followed_to_its_end(rpc: Rpc) -> None:
    stays = begin(rpc, STEPS, args=STAYS)
    text, last = "", {"done": 4, "total": 4, "text": "step 3"}
    part: dict[str, Any] = {"next": 0}
    while text != LINES or part.get("progress") != last:
        part = rpc("read_run_log", run_id=stays["run_id"], after=part["next"], wait_ms=100)
        text += part["text"]
        assert (part["status"], part["ended"]) == ("started", False)
    rpc("cancel_run", run_id=stays["run_id"])
    began = begin(rpc, STEPS)

    assert (began["status"], began["output"], began["logs_preview"]) == ("started", None, "")
    text, parts = followed(rpc, began["run_id"])
    assert text == LINES
    assert parts[-1]["status"] == "completed"
    assert rpc("get_run", run_id=began["run_id"])["output"] == "done"
    assert followed(rpc, began["run_id"])[0] == text
    assert followed(rpc, began["run_id"], 7)[0] == text[7:]


def test_get_run_waits_for_the_end_and_shows_the_log_until_then(rpc: Rpc) -> None:
    run_id = begin(rpc, STEPS, args=STAYS)["run_id"]

    def shows_both() -> dict[str, Any] | None:
        """Return the run when it has a log and progress, which arrive on different ways."""
        shown: dict[str, Any] = rpc("get_run", run_id=run_id, wait_ms=100)
        return shown if "progress" in shown and shown["logs_preview"] else None

    live = eventually(shows_both)
    rpc("cancel_run", run_id=run_id)
    ended = rpc("get_run", run_id=begin(rpc, STEPS)["run_id"], wait_ms=60_000)

    assert live["status"] == "started"
    assert live["logs_preview"].startswith("line 0\n")
    assert live["progress"]["total"] == 4
    assert (ended["status"], ended["output"]) == ("completed", "done")
    assert "progress" not in ended


def test_a_cancelled_run_keeps_its_log(rpc: Rpc) -> None:
    run_id = begin(rpc, "import time\ndef main(args):\n    print('begun')\n    time.sleep(600)\n")["run_id"]
    eventually(lambda: rpc("read_run_log", run_id=run_id, wait_ms=5000)["text"])

    rpc("cancel_run", run_id=run_id)
    ended = rpc("get_run", run_id=run_id, wait_ms=60_000)

    assert ended["error"]["type"] == "Cancelled"
    assert ended["logs_preview"] == "begun\n"
    assert followed(rpc, run_id)[0] == "begun\n"


def test_a_long_log_is_read_with_the_same_offsets_live_and_stored(rpc: Rpc) -> None:
    code = "import time\ndef main(args):\n    for i in range(40000):\n        print('ä' * 30, i)\n    time.sleep(1)\n"
    run_id = begin(rpc, code)["run_id"]
    whole = sum(62 + len(str(i)) for i in range(40000))
    live = rpc("read_run_log", run_id=run_id, after=whole - 1000, max_bytes=1000, wait_ms=5000)
    while live["next"] < whole:
        live = rpc("read_run_log", run_id=run_id, after=whole - 1000, max_bytes=1000, wait_ms=5000)
    rpc("get_run", run_id=run_id, wait_ms=60_000)

    stored = rpc("read_run_log", run_id=run_id, after=whole - 1000, max_bytes=1000)

    assert {**stored, "status": "", "ended": ""} == {**live, "status": "", "ended": ""}
    assert live["text"].endswith("39999\n")
    beginning = rpc("read_run_log", run_id=run_id, max_bytes=1 << 20)
    behind = rpc("read_run_log", run_id=run_id, after=beginning["next"], max_bytes=1 << 20)
    assert behind["dropped_bytes"] > 0
    assert behind["next"] == whole


def events_of(http: httpx.Client, run_id: str, **headers: str) -> list[tuple[str, str, Any]]:
    """Return name, id and data of each event of a run, until the stream ends."""
    found = []
    with http.stream("GET", f"/v1/runs/{run_id}/events", headers=headers, timeout=300) as answer:
        assert answer.status_code == 200
        for block in "".join(answer.iter_text()).split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if fields:
                found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


def test_run_events_stream_during_the_run_and_resume_after_an_id(rpc: Rpc) -> None:
    stays = begin(rpc, STEPS, args=STAYS)["run_id"]
    with rpc.http.stream("GET", f"/v1/runs/{stays}/events", timeout=300) as stream:
        lines, seen = stream.iter_lines(), ""
        while "line 3" not in seen or '"done":4' not in seen:
            seen += next(lines)
        rpc("cancel_run", run_id=stays)
        assert "event: end" in list(lines)
    assert rpc("get_run", run_id=stays)["error"]["type"] == "Cancelled"
    run_id = begin(rpc, STEPS)["run_id"]

    events = events_of(rpc.http, run_id)

    assert [name for name, _, _ in events if name == "status"] != []
    assert "".join(data["text"] for name, _, data in events if name == "log") == LINES
    name, last, run = events[-1]
    assert (name, last, run["output"]) == ("end", "28", "done")
    again = events_of(rpc.http, run_id, **{"Last-Event-ID": "14"})
    assert [data["text"] for name, _, data in again if name == "log"] == ["line 2\nline 3\n"]
    text = rpc.http.get(f"/v1/runs/{run_id}/events", headers={"accept": "text/plain"})
    assert text.text == LINES
    assert rpc.http.get("/v1/runs/run_0/events").status_code == 404
    assert rpc.http.get(f"/v1/runs/{run_id}/events?after=x").status_code == 400


def test_unknown_skills_and_runs_are_refused_immediately(rpc: Rpc) -> None:
    assert begin_error(rpc, "no.such")["data"]["type"] == "skill_not_found"
    assert rpc.error("read_run_log", run_id="run_0")["data"]["type"] == "run_not_found"


def begin_error(rpc: Rpc, name: str) -> dict[str, Any]:
    return rpc.error("execute_skill", name=name, background=True)


def test_the_same_key_answers_the_same_run(rpc: Rpc) -> None:
    key = {"Idempotency-Key": f"background-{time.time()}"}
    params = {"language": "python", "code": "def main(args):\n    return 1\n", "background": True}

    first = rpc.http.post("/rpc", json=call("run_code", params), headers=key).json()["result"]
    again = rpc.http.post("/rpc", json=call("run_code", params), headers=key).json()["result"]

    assert first == again


def call(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@pytest.mark.parametrize("what", ["1e999", "'x'"])
def test_progress_is_a_number(rpc: Rpc, what: str) -> None:
    code = f"from runtime import progress\ndef main(args):\n    progress({what})\n"

    assert rpc("run_code", language="python", code=code)["error"]["type"] == "TypeError"


WAITS = "import time\ndef main(args):\n    print('begun')\n    time.sleep(600)\n"


@pytest.mark.full
@pytest.mark.parametrize(
    ("ending", "page"),
    [*product(("revoke_token", "revoke_identity", "expiry"), (False, True)), ("logout", True)],
)
def test_a_stream_ends_when_its_caller_loses_access(
    tokens_server: Server, new_name: str, ending: str, page: bool
) -> None:
    """Another admin follows a run that goes on. The stream ends before the run."""
    root = Rpc(tokens_server.url, token_of(tokens_server, f"{new_name}-root", "admin"))
    run_id = begin(root, WAITS, limits={"timeout_ms": 600_000})["run_id"]
    life = {"expires": "3s"} if ending == "expiry" else {}
    browser = Browser(tokens_server.url)
    path = f"/runs/{run_id}/events" if page else f"/v1/runs/{run_id}/events"

    def follow() -> tuple[dict[str, Any], httpx.Client, httpx.Response] | None:
        """Return the token, the client and the open stream, or None if the machine took longer than the token lives."""
        made = root("create_token", name=f"{new_name}-eve", scopes=["admin"], **life)
        if page:
            browser.sign_in(made["token"])
        http = browser.http if page else Rpc(tokens_server.url, made["token"]).http
        stream = http.send(http.build_request("GET", path, timeout=300), stream=True)
        if stream.status_code == 200:
            return made, http, stream
        assert ending == "expiry"
        stream.close()
        return None

    made, http, stream = eventually(follow)
    endings: dict[str, Callable[[], Any]] = {
        "revoke_token": lambda: root("revoke_token", id=made["id"]),
        "revoke_identity": lambda: root("revoke_identity", name=f"{new_name}-eve"),
        "logout": lambda: Browser.sign_out(other),
        "expiry": lambda: None,
    }
    other = Browser(tokens_server.url)
    other.http.cookies = browser.http.cookies

    with closing(stream):
        pieces = stream.iter_text()
        seen = next(pieces)
        endings[ending]()
        seen += "".join(pieces)

    assert "event: status" in seen
    assert "event: end" not in seen
    assert root("get_run", run_id=run_id)["status"] == "started"
    assert http.get(path).status_code != 200
    root("cancel_run", run_id=run_id)


LOUD = "def main(args):\n    for number in range(10_000):\n        print('x' * 99)\n"


@pytest.mark.full
def test_the_kernel_buffers_little_for_a_client_that_does_not_read(sqlite_server: Server) -> None:
    """By default, the send buffer of a connection grows up to 4 MiB."""
    run_id = begin(sqlite_server.rpc, LOUD)["run_id"]
    sqlite_server.rpc("get_run", run_id=run_id, wait_ms=60_000)
    place = urlsplit(sqlite_server.url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((place.hostname, place.port))
        client.sendall(f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        assert b" 200 " in client.recv(100)
        ports, earlier = (place.port or 0, client.getsockname()[1]), [-1]

        def steady() -> bool:
            earlier.append(sent_and_unread(*ports))
            return earlier[-1] == earlier[-2] > 0

        eventually(steady)

    assert earlier[-1] < 256 * 1024


def sent_and_unread(server: int, client: int) -> int:
    """Return the bytes in the send buffer of a connection, from the port of its server."""
    ends = f":{server:04X} ", f":{client:04X} "
    for line in Path("/proc/net/tcp").read_text().splitlines():
        if ends[0] in line[:30] and ends[1] in line[20:36]:
            return int(line.split()[4].partition(":")[0], 16)
    raise AssertionError("the connection has closed")
