"""Foreign Python source is compiled outside the server: no source costs the server time or memory."""

from __future__ import annotations

import asyncio
import base64
import json
import keyword
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.errors import Unavailable
from skillery.formats.bundle import SourceFile
from skillery.publishing.compile_pool import CompileLimits, CompilePool
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.people import Caller, Who, people_settings
from tests.support.processes import (
    compile_workers,
    eventually,
    eventually_async,
    is_running,
    own_seconds,
    peak_bytes,
    seconds_of_ended_children,
)

BOMBS_AT_ONCE = 4
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
MOST_GROWTH = 250 * 1024 * 1024
GOOD = "def main(args):\n    return 1\n"

Start = Callable[..., Server]


def names(count: int) -> list[str]:
    """Return short names: 2,600 of them, twice, fit into 16 KiB."""
    made = chain(LETTERS, (one + other for one in LETTERS for other in LETTERS))
    return list(islice((name for name in made if not keyword.iskeyword(name)), count))


def match_of(bound: list[str], again: list[str]) -> str:
    """Return a pattern whose alternatives bind the same names in different orders. The compiler sorts them name by
    name.
    """
    return f"def main(args):\n match args:\n  case [{','.join(bound)}]|[{','.join(again)}]: pass\n"


def interleaved(items: list[str]) -> list[str]:
    half = len(items) // 2
    return [one for pair in zip_longest(items[:half], items[half:]) for one in pair if one]


BOMBS = {
    "reversed": match_of(names(2_600), names(2_600)[::-1]),
    "interleaved": match_of(names(640), interleaved(names(640))),
}
SLOW = f"def main(args):\n args({','.join(f'k{number}=1' for number in range(30_000))})\n"
"""A source whose compilation takes seconds and little memory: the compiler compares each keyword with all others."""
BODY = "match args:\n case [{}]|[{}]: pass"


@pytest.fixture
def fresh(start_server: Start) -> Server:
    """Return a server whose memory and processor time no other test has used."""
    return start_server()


@contextmanager
def healthz_is_asked(server: Server) -> Iterator[None]:
    """Fail if /healthz does not answer, or answers late."""
    statuses: list[int] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=300) as client:
            while not ended.wait(0.1):
                statuses.append(client.get("/healthz").status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()
    assert set(statuses) == {200}


def create(name: str, code: str, **more: str) -> dict[str, Any]:
    return {"manifest": manifest(name), "skill_md": "x", "files": skill_files(code, **more)}


def batch(rpc: Rpc, method: str, all_params: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [
        {"jsonrpc": "2.0", "id": number, "method": method, "params": params} for number, params in enumerate(all_params)
    ]
    replies: list[dict[str, Any]] = rpc.raw(json.dumps(calls)).json()
    return replies


@contextmanager
def server_itself_compiles_nothing(server: Server) -> Iterator[None]:
    """Fail if the server process uses as much time as its workers, or grows by the memory of a bomb."""
    pid = server.process.pid
    own, peak = own_seconds(pid), peak_bytes(pid)
    in_workers = seconds_of_ended_children(pid)
    with healthz_is_asked(server):
        yield
    for worker in compile_workers(pid):
        os.kill(worker, signal.SIGKILL)
    # The server waits for its dead workers when it next needs one. Their processor time counts from then on.
    server.rpc("create_skill", **create("after.the.bombs", GOOD))
    spent = own_seconds(pid) - own
    assert spent < (seconds_of_ended_children(pid) - in_workers) / 2
    assert peak_bytes(pid) - peak < MOST_GROWTH


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_batch_of_compile_bombs_costs_the_server_neither_time_nor_memory(fresh: Server, bomb: str) -> None:
    source = BOMBS[bomb]
    assert len(source) < 16 * 1024
    with server_itself_compiles_nothing(fresh):
        replies = batch(
            fresh.rpc, "create_skill", [create(f"bombs.n{number}", source) for number in range(BOMBS_AT_ONCE)]
        )
    assert len(replies) == BOMBS_AT_ONCE
    for reply in replies:
        error = reply.get("error")
        if error is not None:  # an interpreter that compiles the source within the limits may accept it
            assert (error["code"], error["data"]["file"], error["data"]["line"]) == (-32602, "code/main.py", 1)


@pytest.mark.full
@pytest.mark.long
def test_bombs_in_skill_files_and_tool_code_cost_the_server_nothing(fresh: Server) -> None:
    body = BODY.format(",".join(names(640)), ",".join(interleaved(names(640))))
    with server_itself_compiles_nothing(fresh):
        defined = fresh.rpc.send(
            "define_tool", {"name": "bomb", "description": "x", "parameters": "{}", "code": body, "language": "python"}
        )
        made = fresh.rpc("create_skill", **create("bombs.beside", GOOD, **{"code/other.py": BOMBS["interleaved"]}))
    assert defined.get("error", {"code": -32602})["code"] == -32602
    assert made["status"] == "published"


@pytest.mark.full
def test_a_killed_worker_loses_no_publish(fresh: Server) -> None:
    fresh.rpc("create_skill", **create("killed.first", GOOD))
    (idle,) = compile_workers(fresh.process.pid)
    os.kill(idle, signal.SIGKILL)
    assert fresh.rpc("create_skill", **create("killed.second", GOOD))["status"] == "published"
    assert idle not in compile_workers(fresh.process.pid)
    assert not is_running(idle)


@pytest.mark.full
def test_a_worker_that_is_killed_while_it_compiles_is_replaced_once(fresh: Server) -> None:
    """A worker that has compiled other sources may have died because of them, so the server tries a fresh worker
    once.
    """
    fresh.rpc("create_skill", **create("killed.before", GOOD))
    (idle,) = compile_workers(fresh.process.pid)
    start_seconds = own_seconds(idle)
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(Rpc(fresh.url).send, "create_skill", create("killed.slow", SLOW))
        first = kill_when_it_compiles(fresh, start_seconds)
        second = kill_when_it_compiles(fresh, start_seconds)
        reply = sent.result()
    assert first != second
    assert reply["error"]["code"] == -32602
    assert (reply["error"]["data"]["file"], reply["error"]["data"]["line"]) == ("code/main.py", 1)
    assert "crashed" in reply["error"]["message"]
    assert fresh.rpc("create_skill", **create("killed.after", GOOD))["status"] == "published"


def kill_when_it_compiles(server: Server, start_seconds: float) -> int:
    """Kill the only worker once it has used clearly more processor time than the start of a worker. Return its pid."""

    def busy_worker() -> int | None:
        for pid in compile_workers(server.process.pid):
            has_started = limit(pid, "Max open files") == "0"  # set in the last step of its start
            if has_started and own_seconds(pid) > start_seconds + 0.2:
                return pid
        return None

    pid = eventually(busy_worker)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_running(pid))
    return pid


def limit(pid: int, name: str) -> str:
    """Return the hard limit of the process, as text."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.removeprefix(name).split()[1] for line in lines if line.startswith(name))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_worker_is_left_when_the_server_ends(fresh: Server, number: int) -> None:
    fresh.rpc("create_skill", **create("left.first", GOOD))
    workers = compile_workers(fresh.process.pid)
    assert workers
    fresh.stop(number)
    eventually(lambda: not any(map(is_running, workers)))


def test_a_worker_that_compiles_ends_with_a_killed_server(fresh: Server) -> None:
    fresh.rpc("create_skill", **create("left.first", GOOD))
    (worker,) = compile_workers(fresh.process.pid)
    before = own_seconds(worker)
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(Rpc(fresh.url).send, "create_skill", create("left.slow", SLOW))
        eventually(lambda: own_seconds(worker) > before + 0.2)
        fresh.stop(signal.SIGKILL)
        eventually(lambda: not is_running(worker))
        with pytest.raises(httpx.HTTPError):
            sent.result()


def test_a_publisher_of_bombs_leaves_a_worker_to_others(start_server: Start, tmp_path: Path) -> None:
    server = start_server(env=people_settings(tmp_path / "plugins"))
    hostile = Who("mallory", "read run publish", "mallory.*")
    other = Caller(server.url, Who("ann", "read run publish", "ann.*"))
    connections = [Caller(server.url, hostile) for _ in range(3)]
    with ThreadPoolExecutor(len(connections)) as threads:
        bombs = [
            threads.submit(connection.send, "create_skill", create(f"mallory.n{number}", BOMBS["reversed"]))
            for number, connection in enumerate(connections)
        ]
        eventually(lambda: bool(compile_workers(server.process.pid)))
        assert other.send("create_skill", create("ann.small", GOOD))["result"]
        assert not all(bomb.done() for bomb in bombs)
        assert len(compile_workers(server.process.pid)) <= 2
        assert all("internal" not in str(bomb.result()) for bomb in bombs)


def test_a_worker_knows_nothing_of_the_server_and_can_open_nothing(start_server: Start) -> None:
    server = start_server(env={"SKILLERY_SECRET_KEY": "a-value-of-the-server"})
    server.rpc("create_skill", **create("small.skill", GOOD))
    (worker,) = compile_workers(server.process.pid)
    assert Path(f"/proc/{worker}/environ").read_bytes() == b""
    for name in ("Max open files", "Max file size", "Max processes", "Max core file size"):
        assert limit(worker, name) == "0"
    if os.geteuid() == 0:
        status = Path(f"/proc/{worker}/status").read_text()
        assert "Uid:\t65534\t65534\t65534\t65534" in status
        assert "CapEff:\t0000000000000000" in status


@pytest.mark.parametrize(
    "source",
    [
        b"# coding: gbk\nmain = '\xc4\xe3'.join",
        b"# coding: cp1251\nmain = '\xe9'.join",
        b"# coding: shift_jis\nmain = '\x82\xa0'.join",
        b"main = '\\N{BULLET}'.join",
        "été = main = str".encode(),
        b"\xef\xbb\xbfmain = str",
        b"main = str if 'a' is '\\d' else repr",
    ],
)
def test_compile_worker_handles_encodings_identifiers_and_escapes(
    sqlite_rpc: Rpc, new_name: str, source: bytes
) -> None:
    files = [{"path": "code/main.py", "content": base64.b64encode(source).decode(), "encoding": "base64"}]
    made = sqlite_rpc("create_skill", manifest=manifest(f"{new_name}.coded"), skill_md="x", files=files)
    assert made["status"] == "published"


# -- limits ------------------------------------------------------------------------------------------------------------

OWN = SourceFile("code/main.py", GOOD.encode(), "main")
BOMB = SourceFile("code/bomb.py", BOMBS["reversed"].encode())


async def checked(limits: CompileLimits, *sources: SourceFile) -> dict[str, str]:
    pool = CompilePool(limits)
    try:
        return {path: problem.message for path, problem in (await pool.check("", sources)).items()}
    finally:
        await pool.close()


async def test_a_source_past_the_limit_of_time_takes_too_long() -> None:
    async def is_slow_alone() -> bool:
        found = await checked(CompileLimits(wall_seconds=0.5), SourceFile("code/slow.py", SLOW.encode()), OWN)
        assert found["code/slow.py"] == "code/slow.py takes too long to compile (line 1)"
        return len(found) == 1

    await eventually_async(is_slow_alone)  # on a loaded machine, a small source may take as long


async def test_a_source_past_the_limit_of_memory_does_not_compile() -> None:
    patient = CompileLimits(memory_bytes=128 * 1024 * 1024, wall_seconds=300)
    found = await checked(patient, BOMB, OWN)
    assert "memory" in found["code/bomb.py"]
    assert list(found) == ["code/bomb.py"]


async def test_a_bundle_past_its_time_is_not_checked_any_further() -> None:
    slow = [SourceFile(f"code/n{number}.py", b"x = " + b"-1, " * 20_000) for number in range(3)]
    found = await checked(CompileLimits(bundle_seconds=0), OWN, *slow)
    assert found.keys() == {source.path for source in slow}
    assert all("too long to compile together" in message for message in found.values())


async def test_grown_worker_is_replaced_and_workers_end_with_their_pool() -> None:
    before = compile_workers(os.getpid())
    pool = CompilePool(CompileLimits(resident_bytes=1))
    assert await pool.check("", [OWN, OWN]) == {}
    assert compile_workers(os.getpid()) == before
    pool = CompilePool()
    for _ in range(2):
        assert await pool.check("", [OWN]) == {}
        assert len(compile_workers(os.getpid()) - before) == 1
    await pool.close()
    assert compile_workers(os.getpid()) == before


async def test_a_closed_pool_says_that_the_server_is_stopping() -> None:
    pool = CompilePool()
    waiting = asyncio.create_task(pool.check("", [BOMB]))
    await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(Unavailable, match="stopping"):
        await waiting
    with pytest.raises(Unavailable, match="stopping"):
        await pool.check("", [OWN])
